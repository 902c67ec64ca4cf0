package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/specbox/specbox/gateway"
	"github.com/specbox/specbox/wire"
)

// An endpoint is a gateway before sessions that do what a message asks for.
type endpoint struct {
	opened, closed atomic.Int32
	cancelled      chan string // ids of requests that were given up
	begun          chan struct{}
}

func newEndpoint() *endpoint {
	return &endpoint{cancelled: make(chan string, 10), begun: make(chan struct{}, 10)}
}

func (e *endpoint) open(_ context.Context, _ gateway.Opening, background wire.Sender) (gateway.Session, error) {
	e.opened.Add(1)
	return &talk{e, background}, nil
}

// A talk is one session of an endpoint.
type talk struct {
	*endpoint
	background wire.Sender
}

func (s *talk) Request(ctx context.Context, m wire.Message, stream wire.Sender) wire.Reply {
	switch m.Method {
	case "initialize":
		return wire.Reply{Result: []byte(`{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"x","version":"1"}}`)}
	case "wait":
		s.begun <- struct{}{}
		<-ctx.Done()
		s.cancelled <- string(m.ID)
		return wire.Reply{}
	case "steps":
		stream.Send([]byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`))
	case "tell":
		s.background.Send([]byte(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`))
	}
	return wire.Reply{Result: m.Params}
}

func (s *talk) Post(wire.Message) {}
func (s *talk) Close()            { s.closed.Add(1) }

// gate starts a gateway before e and returns it.
func gate(t *testing.T, e *endpoint, auth func(*http.Request) (string, error)) http.Handler {
	t.Helper()
	g, err := gateway.New(gateway.Config{Open: e.open, Tenant: auth})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return g
}

// An agent speaks to a bridge as a client does.
type agent struct {
	t    *testing.T
	in   *io.PipeWriter
	out  *bufio.Reader
	done chan error
}

func newAgent(t *testing.T, b *bridge) *agent {
	in, toBridge := io.Pipe()
	fromBridge, out := io.Pipe()
	a := &agent{t, toBridge, bufio.NewReader(fromBridge), make(chan error, 1)}
	go func() {
		a.done <- b.run(t.Context(), in, out)
		out.Close()
	}()
	return a
}

func (a *agent) say(format string, args ...any) {
	a.t.Helper()
	if _, err := fmt.Fprintf(a.in, format+"\n", args...); err != nil {
		a.t.Fatal(err)
	}
}

// hear returns the next message.
func (a *agent) hear() string {
	a.t.Helper()
	line, err := a.out.ReadString('\n')
	if err != nil {
		a.t.Fatal(err)
	}
	return strings.TrimSuffix(line, "\n")
}

func (a *agent) expect(want string) {
	a.t.Helper()
	if got := a.hear(); got != want {
		a.t.Fatalf("got %s\nwant %s", got, want)
	}
}

func (a *agent) initialize() {
	a.t.Helper()
	a.say(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`)
	if got := a.hear(); !strings.Contains(got, `"protocolVersion":"2025-11-25"`) {
		a.t.Fatalf("initialize: %s", got)
	}
	a.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
}

// leave closes the agent's side and waits for the bridge to end.
func (a *agent) leave() {
	a.t.Helper()
	a.in.Close()
	if rest, err := io.ReadAll(a.out); err != nil || len(rest) > 0 {
		a.t.Errorf("after the end: %q, %v", rest, err)
	}
	if err := <-a.done; err != nil {
		a.t.Error(err)
	}
}

var quiet = slog.New(slog.DiscardHandler)

func TestMessagesPassTheBridgeAsTheyAre(t *testing.T) {
	e := newEndpoint()
	srv := httptest.NewServer(gate(t, e, nil))
	defer srv.Close()
	a := newAgent(t, newBridge(srv.URL+"/mcp", "", quiet))
	a.initialize()
	a.say(`{"jsonrpc":"2.0","id":"x","method":"echo","params":{"n":9007199254740993,"f":1.0,"s":"<>\u2028"}}`)
	a.expect(`{"jsonrpc":"2.0","id":"x","result":{"n":9007199254740993,"f":1.0,"s":"<>\u2028"}}`)
	a.say(`{"jsonrpc":"2.0","id":2,"method":"steps","params":{}}`)
	a.expect(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`)
	a.expect(`{"jsonrpc":"2.0","id":2,"result":{}}`)
	a.say(`{"jsonrpc":"2.0","id":3,"method":"tell","params":{}}`)
	heard := a.hear() + a.hear() // in either order
	if !strings.Contains(heard, `"id":3`) || !strings.Contains(heard, "list_changed") {
		t.Errorf("heard %s", heard)
	}
	a.say(`{"no json`)
	if got := a.hear(); !strings.Contains(got, "-32700") || !json.Valid([]byte(got)) {
		t.Errorf("got %s", got)
	}
	a.leave()
	if o, c := e.opened.Load(), e.closed.Load(); o != 1 || c != 1 {
		t.Errorf("%d sessions were opened, %d closed", o, c)
	}
}

func TestACancellationPassesTheBridgeBehindItsRequest(t *testing.T) {
	e := newEndpoint()
	srv := httptest.NewServer(gate(t, e, nil))
	defer srv.Close()
	a := newAgent(t, newBridge(srv.URL+"/mcp", "", quiet))
	a.initialize()
	a.say(`{"jsonrpc":"2.0","id":7,"method":"wait"}`)
	<-e.begun
	a.say(`{"jsonrpc":"2.0","id":8,"method":"echo","params":{}}`)
	a.expect(`{"jsonrpc":"2.0","id":8,"result":{}}`)
	a.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`)
	if id := <-e.cancelled; id != "7" {
		t.Errorf("cancelled %s", id)
	}
	a.say(`{"jsonrpc":"2.0","id":9,"method":"echo","params":{}}`)
	a.expect(`{"jsonrpc":"2.0","id":9,"result":{}}`)
	a.leave()
}

// What a server says does not command the terminal of who reads an error.
func TestErrorsAreFitForATerminal(t *testing.T) {
	var out strings.Builder
	a := &app{errs: &out}
	a.complain(errors.New("it said \x1b[31mred\x1b]0;title\x07\r\nand more"), "")
	if got := out.String(); strings.ContainsAny(got, "\x1b\x07\r") || !strings.Contains(got, "red") || !strings.Contains(got, "\nand more") {
		t.Errorf("printed %q", got)
	}
}

func TestALostSessionIsOpenedAgainOnce(t *testing.T) {
	before, after := newEndpoint(), newEndpoint()
	var now atomic.Pointer[http.Handler]
	old, fresh := gate(t, before, nil), gate(t, after, nil)
	now.Store(&old)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*now.Load()).ServeHTTP(w, r) }))
	defer srv.Close()
	defer srv.CloseClientConnections()
	a := newAgent(t, newBridge(srv.URL+"/mcp", "", quiet))
	a.initialize()
	now.Store(&fresh) // as after a restart
	for i := range 5 {
		a.say(`{"jsonrpc":"2.0","id":%d,"method":"echo","params":{}}`, 10+i)
	}
	heard := ""
	for range 5 {
		heard += a.hear()
	}
	for i := range 5 {
		if want := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{}}`, 10+i); !strings.Contains(heard, want) {
			t.Errorf("no %s in %s", want, heard)
		}
	}
	if n := after.opened.Load(); n != 1 {
		t.Errorf("%d sessions were opened", n)
	}
	a.leave()
	if n := after.closed.Load(); n != 1 {
		t.Errorf("%d sessions were closed", n)
	}
}

func TestWhatTheBridgeCannotDeliverIsAnswered(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close() // nobody listens there now
	b := newBridge("http://"+l.Addr().String()+"/mcp", "", quiet)
	b.wait = 0
	a := newAgent(t, b)
	a.say(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`)
	if got := a.hear(); !strings.Contains(got, `"id":1`) || !strings.Contains(got, "specbox serve") {
		t.Errorf("got %s", got)
	}
	a.leave()

	srv := httptest.NewServer(gate(t, newEndpoint(), func(r *http.Request) (string, error) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			return "", errors.New("no")
		}
		return "ann", nil
	}))
	defer srv.Close()
	a = newAgent(t, newBridge(srv.URL+"/mcp", "wrong", quiet))
	a.say(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`)
	if got := a.hear(); !strings.Contains(got, "SPECBOX_TOKEN") || strings.Contains(got, "wrong") {
		t.Errorf("got %s", got)
	}
	a.leave()
	a = newAgent(t, newBridge(srv.URL+"/mcp", "secret", quiet))
	a.initialize()
	a.leave()
}

func TestTheBridgeWaitsForARestart(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	a := newAgent(t, newBridge("http://"+addr+"/mcp", "", quiet))
	var late sync.WaitGroup
	h := gate(t, newEndpoint(), nil)
	started := make(chan *http.Server, 1)
	late.Go(func() {
		<-time.After(300 * time.Millisecond) // a socket that is not there cannot be waited for
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Error(err)
		}
		srv := &http.Server{Handler: h}
		started <- srv
		srv.Serve(l)
	})
	a.initialize()
	a.leave()
	(<-started).Close()
	late.Wait()
}

func TestABrokenAnswerIsAnError(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", "1000")
		w.Write([]byte(`{"jsonrpc":"2.0",`))
	}))
	defer srv.Close()
	a := newAgent(t, newBridge(srv.URL, "", quiet))
	a.say(`{"jsonrpc":"2.0","id":1,"method":"echo"}`)
	if got := a.hear(); !strings.Contains(got, `"id":1`) || !strings.Contains(got, "middle of its answer") {
		t.Errorf("got %s", got)
	}
	a.leave()
}
