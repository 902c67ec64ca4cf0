package tap_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/specbox/specbox/tap"
)

var update = flag.Bool("update", false, "rewrite what is expected of the recorded streams")

// A diary is an Observer that writes down what it is told.
type diary struct {
	mu    sync.Mutex
	pages []*page
	more  chan struct{} // closed when there is more
}

// A page is one exchange.
type page struct {
	d     *diary
	req   *tap.Request
	lines []string
	ended bool
}

func newDiary() *diary { return &diary{more: make(chan struct{})} }

func (d *diary) update(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
	close(d.more)
	d.more = make(chan struct{})
}

func (d *diary) Observe(r *tap.Request) tap.Watcher {
	p := &page{d: d, req: r}
	d.update(func() { d.pages = append(d.pages, p) })
	return p
}

func (p *page) Delta(d tap.Delta) {
	line := kinds[d.Kind]
	if d.Kind == tap.ToolName || d.Kind == tap.Arguments || d.Kind == tap.ToolDone {
		line += fmt.Sprintf(" %d %s %s", d.Index, d.ID, d.Name)
	}
	if len(d.Text) > 0 {
		line += fmt.Sprintf(" %q", d.Text)
	}
	p.d.update(func() { p.lines = append(p.lines, line) })
}

func (p *page) End() { p.d.update(func() { p.ended = true }) }

var kinds = map[tap.Kind]string{
	tap.Text: "text", tap.Reasoning: "reasoning", tap.ToolName: "call", tap.Arguments: "arguments", tap.ToolDone: "called", tap.Done: "done",
}

// wait waits until ok says so of the diary.
func (d *diary) wait(t *testing.T, what string, ok func(pages []*page) bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		d.mu.Lock()
		good, more := ok(d.pages), d.more
		d.mu.Unlock()
		if good {
			return
		}
		select {
		case <-more:
		case <-deadline:
			t.Fatalf("%s: not within 20 s", what)
		}
	}
}

// ended waits for the end of so many exchanges, and returns the last.
func (d *diary) ended(t *testing.T, n int) *page {
	t.Helper()
	var last *page
	d.wait(t, fmt.Sprintf("the end of %d exchanges", n), func(pages []*page) bool {
		ended := 0
		for _, p := range pages {
			if p.ended {
				ended++
			}
		}
		if len(pages) >= n {
			last = pages[n-1]
		}
		return ended >= n
	})
	return last
}

// told returns what a request and its answer were reported as.
func (p *page) told() string {
	var b strings.Builder
	r := p.req
	if r.Model != "" {
		fmt.Fprintf(&b, "model %s\n", r.Model)
	}
	for _, t := range r.Tools {
		fmt.Fprintf(&b, "tool %s: %s\n", t.Name, t.Description)
	}
	for _, m := range r.New {
		b.WriteString(said(m) + "\n")
	}
	b.WriteString("\n")
	for _, l := range p.lines {
		b.WriteString(l + "\n")
	}
	return b.String()
}

func said(m tap.Message) string {
	s := m.Role
	if m.CallID != "" {
		s += " " + m.CallID
	}
	if m.Text != "" {
		s += fmt.Sprintf(" %q", m.Text)
	}
	for _, c := range m.Calls {
		s += fmt.Sprintf(" %s=%s(%s)", c.ID, c.Name, c.Arguments)
	}
	return s
}

// A rig is a proxy in front of an upstream, both on loopback.
type rig struct {
	t     *testing.T
	proxy *tap.Proxy
	url   string // of the proxy
	up    *httptest.Server
	diary *diary
}

// newRig makes a rig whose upstreams answer as h does. Both API families lead to
// it unless cfg names others.
func newRig(t *testing.T, h http.Handler, change ...func(*tap.Config)) *rig {
	t.Helper()
	x := &rig{t: t, up: httptest.NewServer(h), diary: newDiary()}
	t.Cleanup(x.up.Close)
	cfg := tap.Config{Observer: x.diary, Upstreams: []tap.Upstream{
		{Name: "openai", API: tap.OpenAI, URL: x.up.URL + "/v1"},
		{Name: "anthropic", API: tap.Anthropic, URL: x.up.URL},
	}}
	for _, f := range change {
		f(&cfg)
	}
	p, err := tap.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	x.proxy = p
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = p.Run(ctx) }()
	front := httptest.NewServer(p)
	x.url = front.URL
	t.Cleanup(func() {
		cancel()
		<-done
		front.Close()
	})
	return x
}

// post sends a request and returns the answer.
func (x *rig) post(path, body string, header ...string) (*http.Response, []byte) {
	x.t.Helper()
	resp := x.begin(context.Background(), path, body, header...)
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		x.t.Fatalf("%s: %v after %q", path, err, b)
	}
	return resp, b
}

func (x *rig) begin(ctx context.Context, path, body string, header ...string) *http.Response {
	x.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, x.url+path, strings.NewReader(body))
	if err != nil {
		x.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		x.t.Fatal(err)
	}
	return resp
}

// client does not unpack what it gets.
var client = &http.Client{Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 300}}

var paths = map[string]string{"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/anthropic/v1/messages"}

// A script is an answer in pieces.
type script struct {
	kind   string
	answer []byte
	piece  int // bytes; 0 means all at once
}

func (s script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", s.kind)
	for rest := s.answer; len(rest) > 0; {
		n := len(rest)
		if s.piece > 0 {
			n = min(n, s.piece)
		}
		if _, err := w.Write(rest[:n]); err != nil {
			return
		}
		_ = http.NewResponseController(w).Flush()
		rest = rest[n:]
	}
}

// A recording is a recorded exchange.
type recording struct {
	file, api, kind, request, response, want string
}

func recordings(t testing.TB) []recording {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	var out []recording
	for _, f := range files {
		a, err := txtar.ParseFile(f)
		if err != nil {
			t.Fatal(err)
		}
		r := recording{file: f}
		for _, part := range a.Files {
			s := string(part.Data)
			switch part.Name {
			case "api":
				r.api = strings.TrimSpace(s)
			case "type":
				r.kind = strings.TrimSpace(s)
			case "request":
				r.request = s
			case "response":
				r.response = s
			case "want":
				r.want = s
			}
		}
		out = append(out, r)
	}
	return out
}

// What is told of a stream is the same however it is split and its lines end,
// and the client gets the very bytes.
func TestRecordings(t *testing.T) {
	for _, rec := range recordings(t) {
		t.Run(strings.TrimSuffix(filepath.Base(rec.file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			variants := [][2]string{{"as it is", rec.response}}
			if rec.kind == "text/event-stream" {
				variants = append(variants,
					[2]string{"CRLF", strings.ReplaceAll(rec.response, "\n", "\r\n")},
					[2]string{"CR", strings.ReplaceAll(rec.response, "\n", "\r")},
					[2]string{"no end", strings.TrimRight(rec.response, "\n")},
					[2]string{"mark", "\uFEFF" + rec.response},
					[2]string{"two lines", strings.ReplaceAll(rec.response, `,"choices":`, ",\ndata: \"choices\":")},
				)
			}
			s := script{kind: rec.kind}
			x := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.ServeHTTP(w, r) }))
			n := 0
			for _, variant := range variants {
				name, response := variant[0], variant[1]
				for _, piece := range []int{0, 1, 50} {
					if piece == 1 && name != "as it is" && name != "CRLF" {
						continue
					}
					s.answer, s.piece = []byte(response), piece
					_, got := x.post("/s/"+strconv.Itoa(n)+paths[rec.api], fresh(rec.request, n))
					if string(got) != response {
						t.Fatalf("%s, pieces of %d: the client got %q", name, piece, got)
					}
					n++
					told := x.diary.ended(t, n).told()
					if *update && name == "as it is" && piece == 0 {
						rewrite(t, rec.file, told)
						rec.want = told
					}
					if told != rec.want {
						t.Fatalf("%s, pieces of %d: told\n%s\nnot\n%s", name, piece, told, rec.want)
					}
				}
			}
		})
	}
}

// fresh returns a request that belongs to no conversation that was seen.
func fresh(request string, n int) string {
	return strings.ReplaceAll(request, "conv_", fmt.Sprintf("conv_%d_", n))
}

// A stream may be split at every byte.
func TestEverySplit(t *testing.T) {
	for _, rec := range recordings(t) {
		const long = 4 << 10 // takes its time: the square of it
		if rec.kind != "text/event-stream" || len(rec.response) > long {
			continue
		}
		stream := []byte(strings.ReplaceAll(rec.response, "\n", "\r\n"))
		whole := told(t, tap.API(rec.api), [][]byte{stream})
		for i := range stream {
			if got := told(t, tap.API(rec.api), [][]byte{stream[:i], stream[i:]}); got != whole {
				t.Fatalf("%s, split at %d: told\n%s", rec.file, i, got)
			}
		}
	}
}

func rewrite(t *testing.T, file, want string) {
	t.Helper()
	a, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for i := range a.Files {
		if a.Files[i].Name == "want" {
			a.Files[i].Data = []byte(want)
		}
	}
	if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
		t.Fatal(err)
	}
}
