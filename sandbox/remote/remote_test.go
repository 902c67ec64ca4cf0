package remote_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/sandbox/remote"
	"github.com/specbox/specbox/sandbox/sandboxtest"
	"github.com/specbox/specbox/wire"
)

func TestContract(t *testing.T) {
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free := nobody.Addr().String()
	if err := nobody.Close(); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"http", "json", "sse"} {
		t.Run(kind, func(t *testing.T) {
			f := newFixture(t)
			sandboxtest.TestBackend(t, sandboxtest.Suite{
				Backend: remote.New(),
				Spec: func(manner string) *sandbox.Spec {
					if manner == sandboxtest.Chatty { // what runs elsewhere has no stderr
						return nil
					}
					s := f.spec(kind, manner)
					if manner == sandboxtest.Missing {
						s.URL = "http://" + free + "/mcp"
					}
					return s
				},
				Left: f.left,
			})
		})
	}
}

// connect makes an instance and its connection, which end with the test.
func connect(t *testing.T, spec *sandbox.Spec, stderr io.Writer) (*wire.Conn, sandbox.Instance) {
	t.Helper()
	inst, err := remote.New().Create(t.Context(), "test", spec, stderr)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	c := wire.NewConn(inst.Transport())
	t.Cleanup(func() {
		_ = c.Close()
		_ = inst.Close()
	})
	return c, inst
}

const initParams = `{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"test","version":"1"}}`

// shake does the handshake and returns what went wrong.
func shake(t *testing.T, c *wire.Conn) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	r, err := c.Call(ctx, "initialize", []byte(initParams))
	if err == nil {
		err = r.Err()
	}
	if err == nil {
		err = c.Notify("notifications/initialized", nil)
	}
	return err
}

// call calls a method and returns its result.
func call(t *testing.T, c *wire.Conn, method, params string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	r, err := c.Call(ctx, method, []byte(params))
	if err == nil {
		err = r.Err()
	}
	if err != nil {
		t.Fatalf("%s: %v", method, err)
	}
	return string(r.Result)
}

// eventually waits until f reports true.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Second)
	for !f() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("it never happened: %s", what)
		}
	}
}

// A server whose transport is not told is found out, and only where its answer
// says so.
func TestTransportIsFoundOut(t *testing.T) {
	f := newFixture(t)
	for _, kind := range []string{"http", "json", "sse"} {
		spec := f.spec(kind, sandboxtest.Echo)
		spec.Transport = ""
		c, _ := connect(t, spec, io.Discard)
		if err := shake(t, c); err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		if got := call(t, c, "echo", `{"a":1.0}`); got != `{"a":1.0}` {
			t.Errorf("%s: echo: %s", kind, got)
		}
	}
	gets := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			gets++
		}
		http.Error(w, "no", http.StatusUnauthorized)
	}))
	defer s.Close()
	c, _ := connect(t, &sandbox.Spec{Server: "far", URL: s.URL}, io.Discard)
	if err := shake(t, c); err == nil || gets > 0 {
		t.Errorf("handshake: %v, with %d GETs, want an error and none", err, gets)
	}
}

// Session and version go with every message after the handshake, and the
// session is ended.
func TestSessionIsKeptAndEnded(t *testing.T) {
	f := newFixture(t)
	c, inst := connect(t, f.spec("http", sandboxtest.Echo), io.Discard)
	if err := shake(t, c); err != nil {
		t.Fatal(err)
	}
	call(t, c, "echo", "{}")
	eventually(t, "the GET stream", func() bool { return len(f.notes()) == 4 })
	if err := inst.Close(); err != nil {
		t.Error(err)
	}
	got := f.notes()
	slices.Sort(got[2:4]) // the call and the stream
	want := []string{"POST  ", "POST id-1 2025-11-25", "GET id-1 2025-11-25", "POST id-1 2025-11-25", "DELETE id-1 2025-11-25"}
	if !slices.Equal(got, want) {
		t.Errorf("requests %q, want %q", got, want)
	}
}

// An answer that breaks off is read on from where it was, also when nothing
// new came in between; and what is lost for good is an error, not a silence.
func TestBrokenAnswerIsResumed(t *testing.T) {
	var mu sync.Mutex
	var afters []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		m, _ := wire.Parse(raw)
		w.Header().Set("Content-Type", "text/event-stream")
		switch {
		case m.Method == "resume":
			_, _ = io.WriteString(w, "id: a1\nretry: 20\ndata:\n\n")
		case m.Method == "break": // no id: nothing to resume
			_, _ = io.WriteString(w, "data: {\"jsonrpc\":\"2.0\",\"id\":")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		case r.Method == http.MethodGet && r.Header.Get("Last-Event-Id") == "":
			w.WriteHeader(http.StatusMethodNotAllowed)
		case r.Method == http.MethodGet:
			mu.Lock()
			afters = append(afters, r.Header.Get("Last-Event-Id"))
			n := len(afters)
			mu.Unlock()
			switch n {
			case 1:
				w.WriteHeader(http.StatusServiceUnavailable)
			case 2: // nothing new yet
			case 3:
				_, _ = io.WriteString(w, "id: a2\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/pushed\"}\n\n")
			default:
				_, _ = io.WriteString(w, "id: a3\ndata: {\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{\"n\":1.0}}\n\n")
			}
		default:
			for _, a := range sandboxtest.Answer(raw) {
				event(w, "message", string(a))
			}
		}
	}))
	defer s.Close()
	c, _ := connect(t, &sandbox.Spec{Server: "far", URL: s.URL}, io.Discard)
	if err := shake(t, c); err != nil {
		t.Fatal(err)
	}
	if got := call(t, c, "resume", "{}"); got != `{"n":1.0}` {
		t.Errorf("result %s", got)
	}
	if want := []string{"a1", "a1", "a1", "a2"}; !slices.Equal(afters, want) {
		t.Errorf("Last-Event-ID %q, want %q", afters, want)
	}
	r, err := c.Call(t.Context(), "break", nil)
	if err != nil || r.Err() == nil || !strings.Contains(r.Err().Error(), "broke off before the answer") {
		t.Errorf("a lost answer: %v, %v", r.Err(), err)
	}
}

// A cancelled call ends also for this side: nobody waits for its answer.
func TestCancelledCallIsGivenUp(t *testing.T) {
	hung := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		m, _ := wire.Parse(raw)
		switch m.Method {
		case "hang":
			w.Header().Set("Content-Type", "text/event-stream")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			close(hung)
		case "notifications/cancelled":
			if string(wire.Get(m.Params, "requestId")) != "2" {
				t.Errorf("cancelled is %s", m.Raw)
			}
			w.WriteHeader(http.StatusAccepted)
		default:
			w.Header().Set("Content-Type", "application/json")
			for _, a := range sandboxtest.Answer(raw) {
				_, _ = w.Write(a)
			}
		}
	}))
	defer s.Close()
	c, _ := connect(t, &sandbox.Spec{Server: "far", URL: s.URL}, io.Discard)
	if err := shake(t, c); err != nil {
		t.Fatal(err)
	}
	hang, err := c.Start("hang", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	hang.Abandon(nil)
	select {
	case <-hung:
	case <-time.After(10 * time.Second):
		t.Error("the connection of a cancelled call stays open")
	}
}

// Headers go to the server, and to no other host that it redirects to.
func TestHeadersStayWithTheServer(t *testing.T) {
	var mu sync.Mutex
	var got []string
	see := func(where string, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, fmt.Sprintf("%s %s %q %q", where, r.Method, r.Header.Get("X-Api-Key"), r.Header.Get("Authorization")))
	}
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		see("other", r)
		raw, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		for _, a := range sandboxtest.Answer(raw) {
			_, _ = w.Write(a)
		}
	}))
	defer other.Close()
	first := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		see("first", r)
		switch r.URL.Path {
		case "/away":
			http.Redirect(w, r, other.URL+"/there", http.StatusTemporaryRedirect)
		case "/here":
			http.Redirect(w, r, "/away", http.StatusPermanentRedirect)
		case "/get":
			http.Redirect(w, r, other.URL, http.StatusFound)
		default:
			http.Redirect(w, r, r.URL.Path, http.StatusTemporaryRedirect)
		}
	}))
	defer first.Close()
	try := func(path string) error {
		c, _ := connect(t, &sandbox.Spec{
			Server: "far", URL: first.URL + path, Transport: "http", Headers: map[string]string{"x-api-key": "k1", "Authorization": "Bearer k2"},
		}, io.Discard)
		_, err := c.Call(t.Context(), "initialize", []byte(initParams))
		return err
	}
	if err := try("/here"); err != nil {
		t.Error(err)
	}
	want := []string{`first POST "k1" "Bearer k2"`, `first POST "k1" "Bearer k2"`, `other POST "" ""`}
	if !slices.Equal(got, want) {
		t.Errorf("seen %q, want %q", got, want)
	}
	if r, err := tryReply(t, first.URL+"/get"); err != nil || !strings.Contains(r, "it redirects to "+other.URL) {
		t.Errorf("a redirect that loses the message: %s, %v", r, err)
	}
	if r, err := tryReply(t, first.URL+"/loop"); err != nil || !strings.Contains(r, "redirects 10 times") {
		t.Errorf("endless redirects: %s, %v", r, err)
	}
}

// tryReply returns the error that initialize is answered with.
func tryReply(t *testing.T, url string) (string, error) {
	t.Helper()
	c, _ := connect(t, &sandbox.Spec{Server: "far", URL: url, Transport: "http"}, io.Discard)
	r, err := c.Call(t.Context(), "initialize", []byte(initParams))
	if err != nil {
		return "", err
	}
	return r.Err().Error(), nil
}

func TestErrorsSayWhatIsWrongAndWhatToDo(t *testing.T) {
	answer := func(status int, kind, body string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", kind)
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0) // it complains of the client, as it should
	secure.StartTLS()
	defer secure.Close()
	gone := httptest.NewServer(nil)
	gone.Close()
	for _, tt := range []struct{ name, url, want string }{
		{"refused", gone.URL + "/mcp?key=hidden", "the connection was refused: nobody listens there; check the url and whether the server runs"},
		{"unknown host", "http://no-such-host.invalid/mcp", `its host "no-such-host.invalid" is not found`},
		{"untrusted", secure.URL, "its certificate is not trusted"},
		{"no TLS", strings.Replace(answer(200, "text/plain", ""), "http:", "https:", 1), "it does not speak TLS"},
		{"401", answer(401, "text/plain", "who are you, Bearer hunter22?"), "401 Unauthorized: who are you, ***?; it wants credentials: set them under headers"},
		{"403", answer(403, "application/json", `{"error":"no"}`), `403 Forbidden: {"error":"no"}; it does not accept the credentials`},
		{"404", answer(404, "text/html", "<html>"), "404 Not Found: a web page; is this the url of its MCP endpoint?"},
		{"429", answer(429, "text/plain", ""), "429 Too Many Requests; it is asked too often"},
		{"500", answer(500, "text/plain", strings.Repeat("x", 1000)), "500 Internal Server Error: " + strings.Repeat("x", 200)},
		{"web page", answer(200, "text/html; charset=utf-8", "<html>"), "it answered with a web page, not with MCP; is this the url of its MCP endpoint?"},
		{"no JSON-RPC", answer(200, "application/json", `{"ok":`), "its answer is no JSON-RPC message"},
		{"binary", answer(200, "application/octet-stream", "x"), "it answered with application/octet-stream, which is no MCP"},
		{"nothing", answer(202, "", ""), "202 Accepted, and gave no result"},
		{"another's answer", answer(200, "application/json", `{"jsonrpc":"2.0","id":77,"result":{}}`), "it answered with a message that is no answer to the request"},
		{"too long", answer(200, "application/json", `{"x":"`+strings.Repeat("x", 20_000)+`"}`), "its answer is over the limit of 10000 bytes"},
		{"too long an event", answer(200, "text/event-stream", `data: {"x":"`+strings.Repeat("x", 20_000)+"\"}\n\n"), "its answer is over the limit of 10000 bytes"},
		{"JSON-RPC error", answer(400, "application/json", `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"bad version"}}`), "bad version"},
	} {
		spec := &sandbox.Spec{Server: "far", URL: tt.url, Transport: "http", Headers: map[string]string{"Authorization": "Bearer hunter22"}, Limit: 10_000}
		c, _ := connect(t, spec, io.Discard)
		err := shake(t, c)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
			continue
		}
		if tt.name != "JSON-RPC error" && !strings.Contains(err.Error(), `server "far" at http`) {
			t.Errorf("%s: the error does not name server and URL: %v", tt.name, err)
		}
		if strings.Contains(err.Error(), "hidden") || strings.Contains(err.Error(), "hunter22") {
			t.Errorf("%s: the error shows a secret: %v", tt.name, err)
		}
	}
	for url, want := range map[string]string{
		"ftp://x/": "no http:// or https:// URL", "http://user:hidden@/": "no http:// or https:// URL", "::hidden": "no http:// or https:// URL",
	} {
		_, err := remote.New().Create(t.Context(), "x", &sandbox.Spec{Server: "far", URL: url}, io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: %v", url, err)
		}
	}
	if _, err := remote.New().Create(t.Context(), "x", &sandbox.Spec{Server: "far", URL: "http://x/", Transport: "ws"}, io.Discard); err == nil {
		t.Error("transport ws has no error")
	}
}

// A key in the path of a URL is not shown; a name is.
func TestErrorsShowNoKeyOfThePath(t *testing.T) {
	gone := httptest.NewServer(nil)
	gone.Close()
	c, _ := connect(t, &sandbox.Spec{Server: "far", URL: gone.URL + "/v1/0123456789abcdef0123456789abcdef/mcp"}, io.Discard)
	err := shake(t, c)
	if err == nil || strings.Contains(err.Error(), "abcdef") || !strings.Contains(err.Error(), "/v1/…/mcp") {
		t.Errorf("error: %v", err)
	}
}

// A connection that was closed by its owner says nothing of how the server ended.
func TestClosingIsNoEndOfTheServer(t *testing.T) {
	f := newFixture(t)
	_, inst := connect(t, f.spec("json", "echo"), io.Discard)
	if err := inst.Close(); err != nil {
		t.Fatal(err)
	}
	if exit := inst.Usage().Exit; exit != "" {
		t.Errorf("it ended: %s", exit)
	}
}

// What came from a variable is not shown, wherever in the URL it stands.
func TestErrorsShowNoHiddenPart(t *testing.T) {
	for _, url := range []string{"http://127.0.0.1:1/v1/short-key/mcp", "http://short-key.invalid/mcp", "http://127.0.0.1:1/mcp?key=short-key"} {
		c, _ := connect(t, &sandbox.Spec{Server: "far", URL: url, Hide: map[string]string{"short-key": "${KEY}"}}, io.Discard)
		if err := shake(t, c); err == nil || strings.Contains(err.Error(), "short-key") {
			t.Errorf("%s: error: %v", url, err)
		}
	}
}

// An endpoint of another host is not used: headers would go there.
func TestForeignEndpointIsRefused(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		event(w, "endpoint", "http://elsewhere.invalid/messages")
		<-r.Context().Done()
	}))
	defer s.Close()
	_, err := remote.New().Create(t.Context(), "x", &sandbox.Spec{Server: "far", URL: s.URL, Transport: "sse"}, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "another host") {
		t.Errorf("Create: %v", err)
	}
}

// Create of HTTP with SSE waits for the endpoint, and no longer than its ctx.
func TestMissingEndpointIsNotWaitedFor(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := remote.New().Create(ctx, "x", &sandbox.Spec{Server: "far", URL: s.URL, Transport: "sse"}, io.Discard)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Create: %v", err)
	}
}

// A server that is killed is noticed at once, in a call as well as without
// one.
func TestKilledServerIsNoticed(t *testing.T) {
	for _, inCall := range []bool{false, true} {
		f := newFixture(t)
		hang := make(chan struct{})
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			raw, _ := io.ReadAll(r.Body)
			if m, _ := wire.Parse(raw); m.Method == "hang" {
				close(hang)
				<-r.Context().Done()
				return
			}
			r.Body = io.NopCloser(strings.NewReader(string(raw)))
			f.ServeHTTP(w, r)
		}))
		kind := "http"
		if inCall {
			kind = "json" // no stream would notice
		}
		c, inst := connect(t, &sandbox.Spec{Server: "far", URL: s.URL + "/" + kind + "/echo", Transport: "http"}, io.Discard)
		if err := shake(t, c); err != nil {
			t.Fatal(err)
		}
		if inCall {
			if _, err := c.Start("hang", nil, nil); err != nil {
				t.Fatal(err)
			}
			<-hang
		} else {
			eventually(t, "the GET stream", func() bool { return strings.Contains(strings.Join(f.notes(), " "), "GET") })
		}
		if err := s.Listener.Close(); err != nil {
			t.Error(err)
		}
		begun := time.Now()
		s.CloseClientConnections()
		select {
		case <-c.Done():
		case <-time.After(5 * time.Second):
			t.Fatalf("in a call %v: the connection did not end", inCall)
		}
		if took := time.Since(begun); took > time.Second {
			t.Errorf("in a call %v: it took %v", inCall, took)
		}
		if exit := inst.Usage().Exit; !strings.Contains(exit, "not there any more") {
			t.Errorf("exit %q", exit)
		}
		s.Close()
	}
}
