package gateway_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/specbox/specbox/gateway"
	"github.com/specbox/specbox/trace"
	"github.com/specbox/specbox/wire"
)

// A server is a fake far side: a small MCP server with one session a client.
type server struct {
	mu       sync.Mutex
	sessions []*far
	version  string // "" answers with the version that was asked for
	openErr  error
	openWait time.Duration
	initErr  bool
	initWait time.Duration
	modern   bool // answers server/discover
	instant  bool // tools/call of "echo" alone, without bookkeeping: for benchmarks
}

func (s *server) open(ctx context.Context, o gateway.Opening, background wire.Sender) (gateway.Session, error) {
	time.Sleep(s.openWait)
	if s.openErr != nil {
		return nil, s.openErr
	}
	f := &far{srv: s, o: o, life: ctx, background: background, asks: map[string]chan wire.Message{},
		waiting: make(chan struct{}, 1000), ended: make(chan error, 1000), unheard: make(chan error, 1000)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions = append(s.sessions, f)
	return f, nil
}

func (s *server) all() []*far {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*far(nil), s.sessions...)
}

// last returns the far side of the newest session.
func (s *server) last(t testing.TB) *far {
	t.Helper()
	all := s.all()
	if len(all) == 0 {
		t.Fatal("no session was opened")
	}
	return all[len(all)-1]
}

type far struct {
	srv        *server
	o          gateway.Opening
	life       context.Context
	background wire.Sender

	mu     sync.Mutex
	n      int
	asks   map[string]chan wire.Message
	posted []string
	causes []error // of requests whose context ended
	closes int

	waiting chan struct{} // one for each "wait" that began
	unheard chan error    // why its context ended, of each "subscriptions/listen"
	ended   chan error    // why its context ended, of each "wait" that did not
}

func (f *far) Post(m wire.Message) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.posted = append(f.posted, string(m.Raw))
	if c := f.asks[string(m.ID)]; m.IsResponse() && c != nil {
		c <- m
	}
}

func (f *far) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closes++
}

func (f *far) seen() (posted []string, causes []error, closes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.posted...), append([]error(nil), f.causes...), f.closes
}

func text(s string) wire.Reply {
	return wire.Reply{Result: []byte(`{"content":[{"type":"text","text":` + string(wire.Quote(s)) + `}]}`)}
}

func (f *far) Request(ctx context.Context, m wire.Message, stream wire.Sender) wire.Reply {
	if f.srv.instant && m.Method == "tools/call" {
		return wire.Reply{Result: m.Params}
	}
	switch m.Method {
	case "initialize":
		time.Sleep(f.srv.initWait)
		if f.srv.initErr {
			return wire.Fail(-32099, "not today")
		}
		v := f.srv.version
		if v == "" {
			v = f.o.Version
		}
		return wire.Reply{Result: []byte(`{"protocolVersion":"` + v + `","capabilities":{"tools":{"listChanged":true},"logging":{},"resources":{"subscribe":true}},"serverInfo":{"name":"fake","version":"1"}}`)}
	case "ping", "logging/setLevel", "resources/subscribe":
		return wire.Reply{Result: []byte(`{}`)}
	case "raw":
		return wire.Reply{Result: wire.Get(m.Params, "value")}
	case "server/discover":
		if f.srv.modern {
			return wire.Reply{Result: []byte(`{"resultType":"complete","supportedVersions":["2026-07-28","2025-11-25"],"capabilities":{"tools":{"listChanged":true},"logging":{}},"ttlMs":0,"cacheScope":"private","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"fake","version":"1"}}}`)}
		}
	case "subscriptions/listen":
		return f.listen(ctx, m, stream)
	case "tools/list":
		if f.o.Modern {
			return wire.Reply{Result: []byte(`{"resultType":"complete","ttlMs":0,"cacheScope":"private","tools":[{"name":"echo","inputSchema":{"type":"object"}},{"name":"headed","inputSchema":` + headed + `}]}`)}
		}
		return wire.Reply{Result: []byte(`{"tools":[{"name":"echo","inputSchema":{"type":"object"}}]}`)}
	case "tools/call":
		return f.tool(ctx, m, stream)
	}
	return wire.Fail(wire.CodeMethodNotFound, "no method %s", m.Method)
}

func (f *far) tool(ctx context.Context, m wire.Message, stream wire.Sender) wire.Reply {
	n, _ := strconv.Atoi(string(wire.Get(m.Params, "arguments", "n")))
	switch name := wire.Str(m.Params, "name"); name {
	case "echo", "headed":
		return wire.Reply{Result: wire.Get(m.Params, "arguments")}
	case "fail":
		return wire.Fail(n, "as asked")
	case "size":
		return wire.Reply{Result: big(n)}
	case "progress":
		token := wire.Get(m.Params, "_meta", "progressToken")
		for i := range n {
			_ = stream.Send(wire.NotificationParts("notifications/progress", fmt.Appendf(nil, `{"progressToken":%s,"progress":%d}`, token, i+1))...)
		}
		return text("done")
	case "log":
		_ = stream.Send(wire.NotificationParts("notifications/message", []byte(`{"level":"info","data":"hello"}`))...)
		return text("logged")
	case "news":
		_ = f.background.Send(wire.NotificationParts("notifications/tools/list_changed", nil)...)
		return text("told")
	case "lines":
		_ = stream.Send([]byte("{\"jsonrpc\":\"2.0\",\r\n\"method\":\"notifications/message\",\n\"params\":{\"level\":\"info\",\r\"data\":\"split\"}}"))
		return wire.Reply{Result: []byte("{\n\"content\":\r\n[]\r}")}
	case "sampling/createMessage", "elicitation/create", "roots/list":
		r, err := f.ask(ctx, stream, name, wire.Get(m.Params, "arguments", "params"))
		if err != nil {
			return wire.Fail(wire.CodeServer, "%v", err)
		}
		return text(string(r.Result) + string(r.Error))
	case "wait": // for good, or for n milliseconds
		over := make(<-chan time.Time)
		f.waiting <- struct{}{}
		if n > 0 {
			over = time.After(time.Duration(n) * time.Millisecond)
		}
		select {
		case <-over:
			return text("waited")
		case <-ctx.Done():
			f.mu.Lock()
			f.causes = append(f.causes, context.Cause(ctx))
			f.mu.Unlock()
			f.ended <- context.Cause(ctx)
			return wire.Reply{}
		}
	case "late": // asks the client after three seconds
		time.Sleep(3 * time.Second)
		r, err := f.ask(ctx, stream, "roots/list", nil)
		if err != nil {
			return wire.Fail(wire.CodeServer, "%v", err)
		}
		return text(string(r.Result))
	case "later": // a result of n bytes after three seconds
		time.Sleep(3 * time.Second)
		return wire.Reply{Result: big(n)}
	case "stubborn": // does not care for its context
		time.Sleep(time.Duration(n) * time.Millisecond)
		return text("at last")
	case "panic":
		panic("the fake's own fault")
	}
	return wire.Fail(wire.CodeInvalidParams, "no tool")
}

// headed is the schema of a tool whose arguments are repeated in headers.
const headed = `{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"},"n":{"type":"integer","x-mcp-header":"N"},"dry":{"type":"boolean","x-mcp-header":"Dry"},"in":{"type":"object","properties":{"zone":{"type":"string","x-mcp-header":"Zone"}}}}}`

func (f *far) Schema(tool string) []byte {
	switch tool {
	case "headed":
		return []byte(headed)
	case "panic at schema":
		panic("the fake's own fault")
	}
	return nil
}

// listen acknowledges, tells once, and then waits to be given up.
func (f *far) listen(ctx context.Context, m wire.Message, stream wire.Sender) wire.Reply {
	about := fmt.Sprintf(`{"_meta":{"io.modelcontextprotocol/subscriptionId":%s}`, m.ID)
	_ = stream.Send(wire.NotificationParts("notifications/subscriptions/acknowledged", []byte(about+`,"notifications":{"toolsListChanged":true}}`))...)
	_ = stream.Send(wire.NotificationParts("notifications/tools/list_changed", []byte(about+`}`))...)
	<-ctx.Done()
	f.unheard <- context.Cause(ctx)
	return wire.Reply{Result: []byte(`{"resultType":"complete"}`)}
}

func (f *far) ask(ctx context.Context, stream wire.Sender, method string, params []byte) (wire.Message, error) {
	answer := make(chan wire.Message, 1)
	f.mu.Lock()
	f.n++
	id := fmt.Sprintf(`"ask-%d"`, f.n)
	f.asks[id] = answer
	f.mu.Unlock()
	if err := stream.Send(wire.RequestParts([]byte(id), method, params)...); err != nil {
		return wire.Message{}, err
	}
	select {
	case m := <-answer:
		return m, nil
	case <-ctx.Done():
		return wire.Message{}, context.Cause(ctx)
	}
}

var bigText = sync.OnceValue(func() []byte {
	return bytes.Repeat([]byte("0123456789abcdef"), 64<<20/16)
})

// big returns a result of n bytes.
func big(n int) []byte {
	const head, tail = `{"content":[{"type":"text","text":"`, `"}]}`
	fill := n - len(head) - len(tail)
	return []byte(head + string(bigText()[:fill]) + tail)
}

// newGateway returns a running gateway in front of s.
func newGateway(t testing.TB, s *server, change func(*gateway.Config)) (*gateway.Gateway, *trace.Log) {
	t.Helper()
	var events trace.Log
	cfg := gateway.Config{Open: s.open, Recorder: &events, Loopback: true,
		Known: func(_, name string) bool { return name == "one" || name == "two" },
		Names: func(string) []string { return []string{"one", "two"} }}
	if change != nil {
		change(&cfg)
	}
	g, err := gateway.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return g, &events
}

// listen returns the address of an HTTP server for g.
func listen(t testing.TB, g http.Handler) string {
	t.Helper()
	h := httptest.NewServer(g)
	t.Cleanup(func() {
		h.CloseClientConnections()
		h.Close()
	})
	return h.URL
}

// A client speaks raw HTTP to the handler, without a network.
type client struct {
	t       testing.TB
	g       http.Handler
	path    string
	key     string
	version string
	accept  string
}

func newClient(t testing.TB, g http.Handler) *client {
	return &client{t: t, g: g, path: "/mcp", accept: "application/json, text/event-stream"}
}

func (c *client) request(ctx context.Context, method, body string) *http.Request {
	r := httptest.NewRequestWithContext(ctx, method, "http://127.0.0.1:1"+c.path, strings.NewReader(body))
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/json")
	}
	for k, v := range map[string]string{"Accept": c.accept, "Mcp-Session-Id": c.key, "Mcp-Protocol-Version": c.version} {
		if v != "" {
			r.Header.Set(k, v)
		}
	}
	return r
}

func (c *client) do(ctx context.Context, method, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	c.g.ServeHTTP(w, c.request(ctx, method, body))
	return w
}

func (c *client) post(body string) *httptest.ResponseRecorder {
	return c.do(context.Background(), http.MethodPost, body)
}

const initializeBody = `{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}`

// initialize opens the session of c.
func (c *client) initialize(version string) *client {
	c.t.Helper()
	w := c.post(strings.Replace(initializeBody, "2025-11-25", version, 1))
	if c.key = w.Header().Get("Mcp-Session-Id"); w.Code != 200 || c.key == "" {
		c.t.Fatalf("initialize: %d %s", w.Code, w.Body)
	}
	c.version = version
	return c
}

// call is the body of a tools/call.
func call(id, tool, args string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"` + tool + `","arguments":` + args + `}}`
}

// errorOf returns the error in a response body.
func errorOf(t testing.TB, body []byte) (id string, e *wire.Error) {
	t.Helper()
	m := wire.Message{Raw: body, ID: wire.Get(body, "id"), Error: wire.Get(body, "error")}
	if !wire.Valid(body) || m.Error == nil || !errors.As(wire.Reply{Error: m.Error}.Err(), &e) {
		t.Fatalf("no JSON-RPC error: %q", body)
	}
	return string(m.ID), e
}
