package tap_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/specbox/specbox/tap"
)

func TestMain(m *testing.M) {
	// Upstreams of the tests that speak TLS are to be trusted.
	s := httptest.NewTLSServer(http.NotFoundHandler())
	dir, err := os.MkdirTemp("", "tap")
	if err != nil {
		panic(err)
	}
	roots := filepath.Join(dir, "roots.pem")
	if err := os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		panic(err)
	}
	s.Close()
	if err := os.Setenv("SSL_CERT_FILE", roots); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

const (
	chatPath = "/v1/chat/completions"
	hello    = `{"model":"gpt-4o","stream":true,"messages":[{"role":"user","content":"hello"}]}`
)

func event(text string) string {
	return fmt.Sprintf("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":%q}}]}\n\n", text)
}

// echo answers with what it was asked.
func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"uri": r.RequestURI, "host": r.Host, "method": r.Method, "header": r.Header, "body": string(body), "trailer": r.Trailer})
}

// An echoed is what echo answers.
type echoed struct {
	URI, Host, Method, Body string
	Header, Trailer         http.Header
}

func decode(t *testing.T, b []byte) (e echoed) {
	t.Helper()
	if err := json.Unmarshal(b, &e); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	return e
}

func TestNewChecks(t *testing.T) {
	for name, ups := range map[string][]tap.Upstream{
		"no upstream":  nil,
		"no name":      {{API: tap.OpenAI, URL: "http://h"}},
		"a bad name":   {{Name: "a/b", API: tap.OpenAI, URL: "http://h"}},
		"twice":        {{Name: "a", API: tap.OpenAI, URL: "http://h"}, {Name: "a", API: tap.Anthropic, URL: "http://h"}},
		"a bad api":    {{Name: "a", API: "gemini", URL: "http://h"}},
		"no host":      {{Name: "a", API: tap.OpenAI, URL: "http://"}},
		"a bad scheme": {{Name: "a", API: tap.OpenAI, URL: "ftp://h"}},
		"a user":       {{Name: "a", API: tap.OpenAI, URL: "http://user:secret@h"}},
		"a pattern":    {{Name: "a", API: tap.OpenAI, URL: "http://h", Models: []string{"["}}},
	} {
		_, err := tap.New(tap.Config{Upstreams: ups})
		if err == nil {
			t.Errorf("%s: no error", name)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error has the secret: %v", name, err)
		}
	}
}

// What is not looked at passes as it is, too.
func TestPaths(t *testing.T) {
	x := newRig(t, http.HandlerFunc(echo))
	for path, want := range map[string]string{
		"/v1/models?limit=2;x":                "/v1/models?limit=2;x",
		"/v1/files/a%2Fb":                     "/v1/files/a%2Fb",
		"/v1/@openai/chat/completions":        "/v1/chat/completions",
		"/s/my-key.1/v1/embeddings":           "/v1/embeddings",
		"/anthropic/v1/messages":              "/v1/messages",
		"/anthropic/v1/messages/count_tokens": "/v1/messages/count_tokens",
		"/s/k/anthropic/@anthropic/v1/models": "/v1/models",
	} {
		_, b := x.post(path, hello)
		if got := decode(t, b); got.URI != want || got.Body != hello || got.Host != strings.TrimPrefix(x.up.URL, "http://") {
			t.Errorf("%s led to %s at %s with %q", path, got.URI, got.Host, got.Body)
		}
	}
	for _, path := range []string{"/", "/v2/models", "/v1", "/s//v1/models", "/s/a%20b/v1/models", "/v1/../admin", "/v1/%2e%2e/admin", "/v1/@none/models", "/sessions/k/other"} {
		req, err := http.NewRequest(http.MethodGet, x.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.URL.Opaque = "//" + req.URL.Host + path
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s: status %d", path, resp.StatusCode)
		}
	}
}

func TestUpstreamIsChosen(t *testing.T) {
	named := func(name string) *httptest.Server {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, name+" "+r.URL.Path) }))
		t.Cleanup(s.Close)
		return s
	}
	gpt, llama, claude := named("gpt"), named("llama"), named("claude")
	x := newRig(t, http.NotFoundHandler(), func(c *tap.Config) {
		c.Upstreams = []tap.Upstream{
			{Name: "gpt", API: tap.OpenAI, URL: gpt.URL, Models: []string{"gpt-*", "o3"}},
			{Name: "llama", API: tap.OpenAI, URL: llama.URL + "/api/v2/", Models: []string{"meta/llama*"}},
			{Name: "claude", API: tap.Anthropic, URL: claude.URL + "/v1", Models: []string{"claude-*"}},
		}
	})
	for _, test := range []struct{ path, model, want string }{
		{chatPath, "gpt-5", "gpt /v1/chat/completions"},
		{chatPath, "o3", "gpt /v1/chat/completions"},
		{chatPath, "meta/llama-4", "llama /api/v2/chat/completions"},
		{"/v1/embeddings", "meta/llama-4", "llama /api/v2/embeddings"},
		{"/v1/@llama/responses", "meta/llama-4", "llama /api/v2/responses"},
		{"/anthropic/v1/messages", "claude-5", "claude /v1/messages"},
	} {
		if _, b := x.post(test.path, `{"model":"`+test.model+`"}`); string(b) != test.want {
			t.Errorf("%s with %s went to %s", test.path, test.model, b)
		}
	}
	for path, part := range map[string]string{
		chatPath:                 `no upstream of SpecBox has the model \"mistral\": name it in the models of one of gpt, llama`,
		"/anthropic/v1/messages": `no upstream of SpecBox has the model \"mistral\"`,
		"/v1/@x/responses":       `is named \"x\": there are gpt, llama`,
	} {
		resp, b := x.post(path, `{"model":"mistral"}`)
		if resp.StatusCode != http.StatusNotFound || !strings.Contains(string(b), part) || !json.Valid(b) {
			t.Errorf("%s: %d %s", path, resp.StatusCode, b)
		}
	}
}

func TestCredentials(t *testing.T) {
	x := newRig(t, http.HandlerFunc(echo), func(c *tap.Config) {
		c.Upstreams = append(c.Upstreams, tap.Upstream{Name: "keyed", API: tap.Anthropic, URL: c.Upstreams[1].URL, Headers: map[string]string{"x-api-key": "ours", "X-Team": "a"}})
		c.Tenant = func(r *http.Request) (string, error) {
			if r.Header.Get("X-SpecBox-Token") != "sbx" {
				return "", errors.New("no token: send it")
			}
			return "t", nil
		}
	})
	theirs := []string{"X-SpecBox-Token", "sbx", "Specbox-Session", "k", "Authorization", "Bearer theirs", "X-Forwarded-For", "1.2.3.4", "Accept-Encoding", "gzip"}
	_, b := x.post(chatPath, hello, theirs...)
	h := decode(t, b).Header
	if h.Get("Authorization") != "Bearer theirs" || h.Get("Accept-Encoding") != "identity" {
		t.Errorf("the upstream got %v", h)
	}
	if r := x.diary.ended(t, 1).req; r.Tenant != "t" || r.Key != "k" {
		t.Errorf("tenant %q, key %q", r.Tenant, r.Key)
	}
	_, b = x.post("/anthropic/@keyed/v1/messages/batches", hello, theirs...)
	k := decode(t, b).Header
	if k.Get("X-Api-Key") != "ours" || k.Get("X-Team") != "a" || k.Get("Authorization") != "" || k.Get("Accept-Encoding") != "gzip" {
		t.Errorf("the upstream with a key got %v", k)
	}
	for _, h := range []http.Header{h, k} {
		for name := range h {
			if strings.Contains(strings.ToLower(name), "specbox") || strings.HasPrefix(name, "X-Forwarded") {
				t.Errorf("the upstream got %s", name)
			}
		}
	}
	for path, part := range map[string]string{
		chatPath:                 `{"error":{"message":"no token: send it","type":"authentication_error"`,
		"/anthropic/v1/messages": `{"type":"error","error":{"type":"authentication_error","message":"no token: send it"}}`,
	} {
		if resp, b := x.post(path, hello); resp.StatusCode != http.StatusUnauthorized || !strings.Contains(string(b), part) {
			t.Errorf("%s: %d %s", path, resp.StatusCode, b)
		}
	}
}

// The session's key is named by path, header or body, in this order.
func TestSessionKey(t *testing.T) {
	x := newRig(t, http.HandlerFunc(echo))
	body := `{"metadata":{"dev.specbox/session":"in-body"},"messages":[{"role":"user","content":"x"}]}`
	for i, test := range []struct {
		path   string
		header []string
		want   string
	}{
		{"/s/in-path" + chatPath, []string{"Specbox-Session", "in-header"}, "in-path"},
		{chatPath, []string{"Specbox-Session", "in-header"}, "in-header"},
		{chatPath, nil, "in-body"},
	} {
		x.post(test.path, body, test.header...)
		if r := x.diary.ended(t, i+1).req; r.Key != test.want {
			t.Errorf("%s %v: the key is %q", test.path, test.header, r.Key)
		}
	}
}

func TestNoUpstream(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	slow := make(chan struct{})
	x := newRig(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case <-slow:
		case <-r.Context().Done():
		}
	}), func(c *tap.Config) {
		c.Upstreams = append(c.Upstreams,
			tap.Upstream{Name: "gone", API: tap.OpenAI, URL: "http://" + addr},
			tap.Upstream{Name: "gone2", API: tap.Anthropic, URL: "http://" + addr},
			tap.Upstream{Name: "slow", API: tap.OpenAI, URL: c.Upstreams[0].URL, Timeout: 50 * time.Millisecond})
	})
	defer close(slow)
	for _, test := range []struct {
		path   string
		status int
		parts  []string
	}{
		{"/v1/@gone/chat/completions", 502, []string{`{"error":{"message":"LLM upstream \"gone\" at ` + addr, "connection refused", "see whether it runs"}},
		{"/anthropic/@gone2/v1/messages", 502, []string{`{"type":"error","error":{"type":"api_error","message":"LLM upstream \"gone2\"`}},
		{"/v1/@slow/chat/completions", 504, []string{`LLM upstream \"slow\"`, "longer timeout"}},
	} {
		resp, b := x.post(test.path, hello)
		if resp.StatusCode != test.status || !json.Valid(b) {
			t.Errorf("%s: %d %s", test.path, resp.StatusCode, b)
		}
		for _, part := range test.parts {
			if !strings.Contains(string(b), part) {
				t.Errorf("%s: no %q in %s", test.path, part, b)
			}
		}
	}
	if s := x.proxy.Stats(); s.Failed != 3 {
		t.Errorf("%+v", s)
	}
}

// What cannot be understood flows on.
func TestNotUnderstood(t *testing.T) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = io.WriteString(z, event("packed"))
	_ = z.Close()
	for name, test := range map[string]struct {
		header map[string]string
		status int
		answer []byte
	}{
		"gzip, though it was not asked": {map[string]string{"Content-Type": "text/event-stream", "Content-Encoding": "gzip"}, 200, packed.Bytes()},
		"another type":                  {map[string]string{"Content-Type": "text/html"}, 200, []byte("<p>")},
		"no JSON":                       {map[string]string{"Content-Type": "application/json"}, 200, []byte(`{"choices":[{`)},
		"an error":                      {map[string]string{"Content-Type": "application/json"}, 429, []byte(`{"error":{"message":"slow down"}}`)},
		"no text":                       {map[string]string{"Content-Type": "text/event-stream"}, 200, []byte("data: \xff\xfe{\n\n\x00\r\r")},
		"bytes that are no text":        {map[string]string{"Content-Type": "text/event-stream"}, 200, []byte("data: {\"choices\":[{\"delta\":{\"content\":\"\xff\"}}]}\n\n")},
		"JSON of another form":          {map[string]string{"Content-Type": "text/event-stream"}, 200, []byte("data: {\"choices\":{\"a\":[]}}\n\ndata: [1]\n\ndata: {\"choices\":[[],1,{\"delta\":[]}]}\n\n")},
	} {
		t.Run(name, func(t *testing.T) {
			x := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				for k, v := range test.header {
					w.Header().Set(k, v)
				}
				w.WriteHeader(test.status)
				_, _ = w.Write(test.answer)
			}))
			for _, body := range []string{hello, "{", `[]`, `{"messages":7}`, `{"model":{},"messages":[[],{"role":3},{"content":{"a":1}}],"tools":"x"}`} {
				resp, b := x.post(chatPath, body)
				if resp.StatusCode != test.status || !bytes.Equal(b, test.answer) {
					t.Errorf("%s: %d %q", body, resp.StatusCode, b)
				}
				for k, v := range test.header {
					if resp.Header.Get(k) != v {
						t.Errorf("%s: %s is %q", body, k, resp.Header.Get(k))
					}
				}
			}
			p := x.diary.ended(t, 5)
			for _, l := range p.lines {
				if l != "text \"\uFFFD\"" {
					t.Errorf("told %q", l)
				}
			}
		})
	}
}

// A chunk reaches the client before the next one exists, and the observer may
// take for ever over it: neither the client nor other exchanges wait.
func TestObserverThatBlocks(t *testing.T) {
	next := make(chan struct{})
	stuck := make(chan struct{})
	d := newDiary()
	x := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 100 {
			_, _ = io.WriteString(w, event(fmt.Sprint(i)))
			_ = http.NewResponseController(w).Flush()
			if r.Header.Get("X-Step") == "" {
				return
			}
			<-next
		}
	}), func(c *tap.Config) {
		c.Observer = blocking{d, stuck}
		c.Limits.Pending = 500
	})
	resp := x.begin(context.Background(), chatPath, `{"model":"block","messages":[]}`, "X-Step", "1")
	for i := range 100 {
		want := event(fmt.Sprint(i))
		got := make([]byte, len(want))
		if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != want {
			t.Fatalf("event %d: %q, %v", i, got, err)
		}
		next <- struct{}{}
	}
	_ = resp.Body.Close()
	for range 3 {
		x.post(chatPath, hello)
	}
	x.diary = d
	d.wait(t, "three others are told", func(pages []*page) bool {
		n := 0
		for _, p := range pages {
			if p.ended && len(p.lines) > 0 {
				n++
			}
		}
		return n == 3
	})
	if s := x.proxy.Stats(); s.Dropped == 0 || s.Active != 1 {
		t.Errorf("%+v", s)
	}
	close(stuck)
	d.ended(t, 4)
}

// A blocking observer is a diary, but for one model.
type blocking struct {
	*diary
	until chan struct{}
}

func (b blocking) Observe(r *tap.Request) tap.Watcher {
	w := b.diary.Observe(r)
	if r.Model == "block" {
		return blockingWatcher{w, b.until}
	}
	return w
}

type blockingWatcher struct {
	tap.Watcher
	until chan struct{}
}

func (b blockingWatcher) Delta(d tap.Delta) {
	<-b.until
	b.Watcher.Delta(d)
}

// What is dropped takes the events with it that it was a part of, and no others.
func TestDropped(t *testing.T) {
	var all strings.Builder
	for i := range 1000 {
		all.WriteString(event(fmt.Sprintf("word-%d ", i)))
	}
	x := newRig(t, script{"text/event-stream", []byte(all.String()), 333}, func(c *tap.Config) { c.Limits.Pending = 800 })
	if _, b := x.post(chatPath, hello); string(b) != all.String() {
		t.Fatal("the client got something else")
	}
	p := x.diary.ended(t, 1)
	last := -1
	for _, l := range p.lines {
		var n int
		if _, err := fmt.Sscanf(l, `text "word-%d "`, &n); err != nil || n <= last || n > 999 {
			t.Errorf("told %q after %d", l, last)
		}
		last = n
	}
	if x.proxy.Stats().Dropped == 0 {
		t.Error("nothing was dropped")
	}
}

// Nothing is buffered, also where the length of the answer is known.
func TestPiecesPassAtOnce(t *testing.T) {
	next := make(chan struct{})
	x := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", "10")
		for range 5 {
			_, _ = io.WriteString(w, "[]")
			_ = http.NewResponseController(w).Flush()
			<-next
		}
	}))
	for _, path := range []string{chatPath, "/v1/files"} {
		resp := x.begin(context.Background(), path, hello)
		for range 5 {
			if _, err := io.ReadFull(resp.Body, make([]byte, 2)); err != nil {
				t.Fatal(err)
			}
			next <- struct{}{}
		}
		_ = resp.Body.Close()
	}
}

func TestClientLeaves(t *testing.T) {
	left := make(chan struct{})
	x := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, event("one"))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(left)
	}))
	ctx, cancel := context.WithCancel(context.Background())
	resp := x.begin(ctx, chatPath, hello)
	if _, err := io.ReadFull(resp.Body, make([]byte, len(event("one")))); err != nil {
		t.Fatal(err)
	}
	cancel()
	_ = resp.Body.Close()
	select {
	case <-left:
	case <-time.After(20 * time.Second):
		t.Fatal("the upstream goes on")
	}
	if p := x.diary.ended(t, 1); !slices.Equal(p.lines, []string{`text "one"`}) {
		t.Errorf("told %q", p.lines)
	}
}

// A stream that breaks off breaks off for the client, too.
func TestUpstreamBreaksOff(t *testing.T) {
	x := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, event("one")+`data: {"choices":[{"delta":{"content":"tw`)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))
	resp := x.begin(context.Background(), chatPath, hello)
	b, err := io.ReadAll(resp.Body)
	if err == nil || !strings.HasPrefix(string(b), event("one")) {
		t.Errorf("%q, %v", b, err)
	}
	if p := x.diary.ended(t, 1); !slices.Equal(p.lines, []string{`text "one"`}) {
		t.Errorf("told %q", p.lines)
	}
}

func TestTrailersAndInformation(t *testing.T) {
	x := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</style.css>")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("Trailer", "X-After")
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, r.Trailer.Get("X-Before"))
		w.Header().Set("X-After", "after")
	}))
	for _, path := range []string{chatPath, "/v1/files"} {
		req, err := http.NewRequest(http.MethodPost, x.url+path, io.MultiReader(strings.NewReader(hello)))
		if err != nil {
			t.Fatal(err)
		}
		req.Trailer = http.Header{"X-Before": {"before"}}
		hints := 0
		trace := &httptrace.ClientTrace{Got1xxResponse: func(code int, _ textproto.MIMEHeader) error {
			hints = code
			return nil
		}}
		resp, err := client.Do(req.WithContext(httptrace.WithClientTrace(context.Background(), trace)))
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		if err != nil || string(b) != "before" || resp.Trailer.Get("X-After") != "after" || hints != http.StatusEarlyHints {
			t.Errorf("%s: %q, %v, trailer %v, information %d", path, b, err, resp.Trailer, hints)
		}
		_ = resp.Body.Close()
	}
}

// A request that is too long to look at passes.
func TestLongRequest(t *testing.T) {
	x := newRig(t, http.HandlerFunc(echo), func(c *tap.Config) { c.Limits.Look = 1000 })
	long := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("x", 1<<20) + `"}]}`
	for i, body := range []io.Reader{strings.NewReader(long), io.MultiReader(strings.NewReader(long))} { // of known length and not
		resp, err := client.Post(x.url+chatPath, "application/json", body)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || decode(t, b).Body != long {
			t.Errorf("the upstream got something else: %v", err)
		}
		if r := x.diary.ended(t, i+1).req; r.Conversation != "" || len(r.New) > 0 || r.API != tap.Chat {
			t.Errorf("told %+v", r)
		}
	}
}

// HTTP/2 on both sides.
func TestHTTP2(t *testing.T) {
	rec := recordings(t)
	i := slices.IndexFunc(rec, func(r recording) bool { return strings.Contains(r.file, "chat_parallel") })
	up := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Proto", r.Proto)
		script{rec[i].kind, []byte(rec[i].response), 50}.ServeHTTP(w, r)
	}))
	up.EnableHTTP2 = true
	up.StartTLS()
	defer up.Close()
	d := newDiary()
	p, err := tap.New(tap.Config{Observer: d, Upstreams: []tap.Upstream{{Name: "tls", API: tap.OpenAI, URL: up.URL}}})
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewUnstartedServer(p)
	front.EnableHTTP2 = true
	front.StartTLS()
	defer front.Close()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = p.Run(ctx) }()
	defer func() { cancel(); <-done }()
	x := &rig{t: t, url: front.URL}
	http2 := front.Client()
	resp, err := http2.Post(x.url+chatPath, "application/json", strings.NewReader(rec[i].request))
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil || string(b) != rec[i].response || resp.Proto != "HTTP/2.0" || resp.Header.Get("X-Proto") != "HTTP/2.0" {
		t.Errorf("%s, %s upstream, %v: %q", resp.Proto, resp.Header.Get("X-Proto"), err, b)
	}
	if told := d.ended(t, 1).told(); told != rec[i].want {
		t.Errorf("told\n%s", told)
	}
}

// Many streams at once: each client gets its bytes, and each is told as it is.
func TestManyStreams(t *testing.T) {
	recs := recordings(t)
	x := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var i, piece int
		_, _ = fmt.Sscan(r.Header.Get("X-Test"), &i, &piece)
		script{recs[i].kind, []byte(recs[i].response), piece}.ServeHTTP(w, r)
	}))
	var work sync.WaitGroup
	for n := range 200 {
		work.Go(func() {
			rec := recs[n%len(recs)]
			body := strings.Replace(fresh(rec.request, n), "{", fmt.Sprintf(`{"metadata":{"dev.specbox/session":"n%d"},`, n), 1)
			_, b := x.post(paths[rec.api], body, "X-Test", fmt.Sprint(n%len(recs), 20+n))
			if string(b) != rec.response {
				t.Errorf("%s: the client got %q", rec.file, b)
			}
		})
	}
	work.Wait()
	x.diary.ended(t, 200)
	for _, p := range x.diary.pages {
		var n int
		_, _ = fmt.Sscanf(p.req.Key, "n%d", &n)
		if rec := recs[n%len(recs)]; p.told() != rec.want {
			t.Errorf("%s: told\n%s", rec.file, p.told())
		}
	}
	if s := x.proxy.Stats(); s.Active != 0 || s.Exchanges != 200 {
		t.Errorf("%+v", s)
	}
}

// When Run has returned, requests were cut off and nothing is told any more.
func TestRunEnds(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, event("one"))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	defer up.Close()
	d := newDiary()
	p, err := tap.New(tap.Config{Observer: d, Upstreams: []tap.Upstream{{Name: "a", API: tap.OpenAI, URL: up.URL}}})
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(p)
	defer front.Close()
	x := &rig{t: t, url: front.URL}
	early := make(chan *http.Response, 1)
	go func() { early <- x.begin(context.Background(), chatPath, hello) }() // who comes before Run waits for it
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = p.Run(ctx) }()
	open := []*http.Response{<-early}
	for range 4 {
		open = append(open, x.begin(context.Background(), chatPath, hello))
	}
	cancel()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("Run goes on")
	}
	for _, resp := range open {
		if _, err := io.ReadAll(resp.Body); err == nil {
			t.Error("a stream that was cut off came to a good end")
		}
		_ = resp.Body.Close()
	}
	d.mu.Lock()
	for _, page := range d.pages {
		if !page.ended {
			t.Error("an exchange has no end")
		}
	}
	if len(d.pages) != 5 {
		t.Errorf("%d exchanges", len(d.pages))
	}
	d.mu.Unlock()
	if resp, b := x.post(chatPath, hello); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("after Run: %d %s", resp.StatusCode, b)
	}
}

// Clients that never end what they send, or never read, do not keep Run.
func TestRunEndsWithStubbornClients(t *testing.T) {
	flood := make(chan struct{})
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, event(strings.Repeat("x", 64<<10))); err != nil {
				return
			}
			select {
			case flood <- struct{}{}:
			default:
			}
		}
	}))
	defer up.Close()
	d := newDiary()
	p, err := tap.New(tap.Config{Observer: d, Upstreams: []tap.Upstream{{Name: "a", API: tap.OpenAI, URL: up.URL}}})
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(p)
	defer front.Close()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = p.Run(ctx) }()
	x := &rig{t: t, url: front.URL}
	for _, head := range []string{"POST /sessions/k/stream", "POST " + chatPath} {
		conn, err := net.Dial("tcp", front.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		_, _ = fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n{\"text\":\"a\"}\n", head)
	}
	resp := x.begin(ctx, chatPath, hello) // it is not read
	defer func() { _ = resp.Body.Close() }()
	d.wait(t, "all have begun", func(pages []*page) bool { return len(pages) == 2 })
	<-flood
	cancel()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("Run goes on")
	}
}

// A fault of the observer is not the client's.
func TestObserverThatPanics(t *testing.T) {
	for _, where := range []string{"observe", "delta", "end"} {
		x := newRig(t, script{"text/event-stream", []byte(event("a") + event("b")), 10}, func(c *tap.Config) { c.Observer = panicking(where) })
		if _, b := x.post(chatPath, hello); string(b) != event("a")+event("b") {
			t.Errorf("%s: the client got %q", where, b)
		}
	}
}

type panicking string

func (p panicking) Observe(*tap.Request) tap.Watcher {
	if p == "observe" {
		panic("observe")
	}
	return p
}

func (p panicking) Delta(tap.Delta) {
	if p == "delta" {
		panic("delta")
	}
}

func (p panicking) End() {
	if p == "end" {
		panic("end")
	}
}

// An answer in one piece that is very long passes, and is not kept.
func TestLongAnswer(t *testing.T) {
	long := `{"choices":[{"index":0,"message":{"content":"` + strings.Repeat("x", 20<<20) + `"}}]}`
	x := newRig(t, script{"application/json", []byte(long), 0})
	if _, b := x.post(chatPath, hello); string(b) != long {
		t.Error("the client got something else")
	}
	if p := x.diary.ended(t, 1); len(p.lines) > 0 {
		t.Errorf("told %d deltas", len(p.lines))
	}
	if s := x.proxy.Stats(); s.Unread == 0 {
		t.Errorf("%+v", s)
	}
}
