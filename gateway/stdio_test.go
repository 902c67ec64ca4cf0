package gateway_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/specbox/specbox/gateway"
	"github.com/specbox/specbox/wire"
)

// A pipe is a client of ServeStdio.
type pipe struct {
	t    testing.TB
	in   *io.PipeWriter
	out  *bufio.Reader
	raw  *io.PipeReader
	done chan error
	stop context.CancelFunc
}

func newPipe(t testing.TB, g *gateway.Gateway) *pipe {
	r, in := io.Pipe()
	raw, w := io.Pipe()
	p := &pipe{t: t, in: in, out: bufio.NewReader(raw), raw: raw, done: make(chan error, 1)}
	ctx, stop := context.WithCancel(t.Context())
	p.stop = stop
	go func() {
		err := g.ServeStdio(ctx, r, w, gateway.Opening{Tenant: "me", Server: "one"})
		_ = w.Close()
		p.done <- err
	}()
	return p
}

func (p *pipe) say(lines ...string) {
	p.t.Helper()
	for _, l := range lines {
		if _, err := io.WriteString(p.in, l+"\n"); err != nil {
			p.t.Fatal(err)
		}
	}
}

func (p *pipe) hear() string {
	p.t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil {
		p.t.Fatal(err)
	}
	return strings.TrimSuffix(line, "\n")
}

// close ends the input and expects an orderly end.
func (p *pipe) close() {
	p.t.Helper()
	_ = p.in.Close()
	if rest, _ := io.ReadAll(p.out); len(rest) != 0 {
		p.t.Errorf("at the end: %s", rest)
	}
	if err := <-p.done; err != nil {
		p.t.Error(err)
	}
}

func (p *pipe) initialize(version string) {
	p.t.Helper()
	p.say(strings.Replace(initializeBody, "2025-11-25", version, 1))
	if got := p.hear(); !strings.HasPrefix(got, `{"jsonrpc":"2.0","id":"i","result":`) {
		p.t.Fatalf("initialize: %s", got)
	}
}

func TestSessionLifeOverStdio(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &server{}
		g, events := newGateway(t, srv, nil)
		p := newPipe(t, g)
		p.initialize("2025-11-25")
		if o := srv.last(t).o; o.Tenant != "me" || o.Server != "one" || o.Session == "" || o.Version != "2025-11-25" {
			t.Errorf("opened with %+v", o)
		}
		time.Sleep(3 * time.Hour) // a pipe that is open is a client that is there
		p.say(call("1.0", "echo", `{"x": 9007199254740993 ,"y":1.0}`))
		if got, want := p.hear(), `{"jsonrpc":"2.0","id":1.0,"result":{"x": 9007199254740993 ,"y":1.0}}`; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		p.say(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"progress","arguments":{"n":2},"_meta":{"progressToken":"t"}}}`)
		for _, want := range []string{`"progress":1`, `"progress":2`, `"id":2,"result"`} {
			if got := p.hear(); !strings.Contains(got, want) {
				t.Errorf("got %s, want %s", got, want)
			}
		}
		p.say(call("3", "roots/list", "{}"))
		ask := []byte(p.hear())
		p.say(`{"jsonrpc":"2.0","id":` + string(wire.Get(ask, "id")) + `,"result":{"roots":[]}}`)
		if got := p.hear(); !strings.Contains(got, `roots`) {
			t.Errorf("the answer of the client came back as %s", got)
		}
		p.say(call("4", "news", `{}`))
		if got := p.hear(); !strings.Contains(got, "list_changed") {
			t.Errorf("got %s", got)
		}
		p.hear()
		p.close()
		synctest.Wait()
		if _, _, closes := srv.last(t).seen(); closes != 1 || len(g.Sessions()) != 0 || len(events.Events()) != 2 {
			t.Errorf("closed %d times, %d sessions, events %v", closes, len(g.Sessions()), events.Events())
		}
	})
}

func TestStdioConcurrencyAndCancellation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &server{}
		g, _ := newGateway(t, srv, nil)
		p := newPipe(t, g)
		p.initialize("2025-11-25")
		p.say(call("1", "wait", "{}"), call("1", "wait", `{"n":1000}`), call("1", "echo", `{"quick":1}`))
		if got := p.hear(); !strings.Contains(got, "quick") {
			t.Errorf("got %s", got)
		}
		if got := p.hear(); !strings.Contains(got, "waited") {
			t.Errorf("got %s", got)
		}
		p.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"reason":"why"}}`,
			`{"jsonrpc":"2.0","id":9,"method":"ping"}`)
		if got := p.hear(); got != `{"jsonrpc":"2.0","id":9,"result":{}}` {
			t.Errorf("a cancelled request was answered: %s", got)
		}
		synctest.Wait()
		_, causes, _ := srv.last(t).seen()
		var cancelled wire.Cancelled
		if len(causes) != 1 || !errors.As(causes[0], &cancelled) || string(cancelled.Reason) != `"why"` {
			t.Errorf("causes: %v", causes)
		}
		p.close()
	})
}

func TestEndOfInputGrantsAGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &server{}
		g, _ := newGateway(t, srv, nil)
		p := newPipe(t, g)
		began := time.Now()
		// All at once, as from a file, without waiting for the initialize.
		p.say(initializeBody, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, call("1", "wait", `{"n":9000}`), call("2", "wait", "{}"))
		_ = p.in.Close()
		for _, want := range []string{`"id":"i"`, "waited", `"id":2,"error"`} {
			if got := p.hear(); !strings.Contains(got, want) {
				t.Errorf("got %s, want %s", got, want)
			}
		}
		if err := <-p.done; err != nil {
			t.Error(err)
		}
		if d := time.Since(began); d != 10*time.Second {
			t.Errorf("it took %v", d)
		}
		if posted, _, closes := srv.last(t).seen(); closes != 1 || len(posted) != 1 {
			t.Errorf("posted %q, closed %d times", posted, closes)
		}
	})
}

func TestWhatAPipeGetsToHear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &server{}
		g, _ := newGateway(t, srv, func(c *gateway.Config) { c.Limits.Body = 1000 })
		p := newPipe(t, g)
		long := strings.Repeat("x", 9000)
		try := func(line, want string) {
			t.Helper()
			p.say(line)
			if got := p.hear(); !strings.HasPrefix(got, want) {
				t.Errorf("%.80s: got %s, want %s", line, got, want)
			}
		}
		try(`{"jsonrpc":"2.0","id":1,"method":"ping"}`, `{"jsonrpc":"2.0","id":1,"result":{}}`)
		try(call("1", "echo", "{}"), `{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"there is no session`)
		try(`{"jsonrpc":"2.0","id":"d","method":"server/discover"}`, `{"jsonrpc":"2.0","id":"d","error":{"code":-32602`)
		p.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`) // before there is anybody to tell
		srv.initErr = true
		try(initializeBody, `{"jsonrpc":"2.0","id":"i","error":{"code":-32099`)
		srv.initErr = false
		srv.openErr = errors.New("on fire")
		try(initializeBody, `{"jsonrpc":"2.0","id":"i","error":{"code":-32000,"message":"on fire"`)
		srv.openErr = nil
		p.initialize("2025-11-25")
		try(initializeBody, `{"jsonrpc":"2.0","id":"i","error":{"code":-32600`)
		try("hello", `{"jsonrpc":"2.0","id":null,"error":{"code":-32700`)
		try("7", `{"jsonrpc":"2.0","id":null,"error":{"code":-32600`)
		try(`{"jsonrpc":"2.0","id":5`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32700`)
		try(`{"jsonrpc":"2.0","id":null,"method":"ping"}`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600`)
		try(`[`+call("1", "echo", "{}")+`]`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600`)
		try(call("77", "echo", `"`+long+`"`), `{"jsonrpc":"2.0","id":77,"error":{"code":-32600,"message":"the message has 9`)
		try(`{"method":"tools/call","params":["`+long+`"],"jsonrpc":"2.0","id":78}`, `{"jsonrpc":"2.0","id":78,"error":{"code":-32600`)
		try(call("79", "panic", "{}"), `{"jsonrpc":"2.0","id":79,"error":{"code":-32603`)
		try(call("80", "echo", "{}"), `{"jsonrpc":"2.0","id":80,"result":{}}`)
		p.close()
		for _, f := range srv.all() {
			if _, _, closes := f.seen(); closes != 1 {
				t.Errorf("a session was closed %d times", closes)
			}
		}
	})
}

func TestBatchOverStdio(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := newGateway(t, &server{}, nil)
		p := newPipe(t, g)
		p.initialize("2025-03-26")
		p.say("[" + call("1", "echo", "{}") + "," + call("2", "wait", `{"n":9}`) + "]")
		for _, want := range []string{`"id":1`, `"id":2`} {
			if got := p.hear(); !strings.Contains(got, want) {
				t.Errorf("got %s", got)
			}
		}
		p.close()
	})
}

func TestStdioEndsWithItsContext(t *testing.T) {
	for name, end := range map[string]func(*gateway.Gateway, *pipe){
		"context":  func(_ *gateway.Gateway, p *pipe) { p.stop() },
		"operator": func(g *gateway.Gateway, _ *pipe) { g.CloseSessions(func(gateway.SessionInfo) bool { return true }) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := &server{}
				g, _ := newGateway(t, srv, nil)
				p := newPipe(t, g)
				p.initialize("2025-11-25")
				p.say(call("1", "wait", "{}"))
				synctest.Wait()
				end(g, p)
				if got := p.hear(); !strings.Contains(got, `"id":1,"error"`) || !strings.Contains(got, "session has ended") {
					t.Errorf("the request under way got %s", got)
				}
				err := <-p.done
				if name == "context" && err != nil || name == "operator" && !errors.Is(err, gateway.ErrEnded) {
					t.Errorf("it ended with %v", err)
				}
				if _, _, closes := srv.last(t).seen(); closes != 1 || len(g.Sessions()) != 0 {
					t.Errorf("closed %d times, %d sessions are left", closes, len(g.Sessions()))
				}
			})
		})
	}
}

func TestStdioOfAClientThatDied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &server{}
		g, _ := newGateway(t, srv, nil)
		p := newPipe(t, g)
		p.initialize("2025-11-25")
		p.say(call("1", "wait", "{}"))
		synctest.Wait()
		_ = p.raw.Close() // it reads no more
		p.say(call("2", "echo", "{}"))
		if err := <-p.done; err == nil || !strings.Contains(err.Error(), "write to the client") {
			t.Errorf("it ended with %v", err)
		}
		if _, causes, closes := srv.last(t).seen(); closes != 1 || len(causes) != 1 {
			t.Errorf("closed %d times, causes %v", closes, causes)
		}
	})
}

func TestStdioOfAClientThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &server{}
		g, _ := newGateway(t, srv, func(c *gateway.Config) { c.Limits.QueueCount = 10 })
		p := newPipe(t, g)
		p.initialize("2025-11-25")
		p.say(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"progress","arguments":{"n":1000},"_meta":{"progressToken":1}}}`)
		synctest.Wait() // the tool is done, though nobody reads
		if n := g.Stats().Dropped; n < 900 {
			t.Errorf("%d messages fell", n)
		}
		p.stop()
		synctest.Wait()
		time.Sleep(time.Second)
		if err := <-p.done; err != nil {
			t.Error(err)
		}
		_ = p.raw.Close()
	})
}

func TestMessagesWaitForInitialize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &server{initWait: time.Second}
		g, _ := newGateway(t, srv, func(c *gateway.Config) { c.Limits.Calls = 2 })
		p := newPipe(t, g)
		p.say(initializeBody, call("1", "echo", "{}"), `{"jsonrpc":"2.0","method":"notifications/initialized"}`, call("2", "echo", "{}"))
		for _, want := range []string{`"id":2,"error"`, `"id":"i","result"`, `"id":1,"result"`} {
			if got := p.hear(); !strings.Contains(got, want) {
				t.Errorf("got %s, want %s", got, want)
			}
		}
		p.close()
	})
}

func TestStdioStopsReadingForOneThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := newGateway(t, &server{}, func(c *gateway.Config) { c.Limits.Calls = 10 })
		p := newPipe(t, g)
		p.initialize("2025-11-25")
		var said atomic.Int64
		go func() {
			for said.Load() < 1000 {
				if _, err := io.WriteString(p.in, call("1", "echo", "{}")+"\n"); err != nil {
					return
				}
				said.Add(1)
			}
		}()
		time.Sleep(time.Second)
		if n := said.Load(); n > 100 {
			t.Errorf("%d requests were taken while no answer was read", n)
		}
		for range 1000 {
			if got := p.hear(); !strings.Contains(got, `"id":1,"result"`) {
				t.Fatalf("got %s", got)
			}
		}
		p.close()
	})
}

func TestStdioIsReadToItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := newGateway(t, &server{}, nil)
		p := newPipe(t, g)
		p.initialize("2025-11-25")
		p.say(call("1", "echo", "{}"), call("2", "echo", "{}"))
		_ = p.in.Close()
		time.Sleep(time.Minute) // a slow reader
		for range 2 {
			if got := p.hear(); !strings.Contains(got, "result") {
				t.Errorf("got %s", got)
			}
		}
		if err := <-p.done; err != nil {
			t.Error(err)
		}
	})
}
