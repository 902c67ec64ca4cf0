package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/specbox/specbox/gateway"
	"github.com/specbox/specbox/wire"
)

func TestModernRequestsOverStdio(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &server{modern: true}
		g, _ := newGateway(t, srv, nil)
		p := newPipe(t, g)
		p.say(ask("0", "server/discover", ""))
		if got := p.hear(); !strings.Contains(got, `"supportedVersions"`) {
			t.Fatalf("discover: %s", got)
		}
		o := srv.last(t).o
		if !o.Modern || o.Tenant != "me" || o.Server != "one" || o.Conversation == "" || wire.Str(o.Params, "clientInfo", "name") != "raw" {
			t.Errorf("opened with %+v", o)
		}
		time.Sleep(3 * time.Hour) // a pipe that is open is a client that is there
		p.say(use("1", "echo", `{"a":1}`))
		if got, want := p.hear(), `{"jsonrpc":"2.0","id":1,"result":{"a":1}}`; got != want || len(srv.all()) != 1 {
			t.Errorf("got %s, want %s; %d sessions", got, want, len(srv.all()))
		}
		p.say(use("2", "wait", "{}"))
		synctest.Wait()
		p.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2,"reason":"enough"}}`)
		var cancelled wire.Cancelled
		if cause := <-srv.last(t).ended; !errors.As(cause, &cancelled) || string(cancelled.Reason) != `"enough"` {
			t.Errorf("the call ended because %v", cause)
		}
		for i, line := range []string{
			strings.Replace(use("3", "echo", "{}"), wire.Modern, "2099-01-01", 1),
			strings.Replace(use("3", "echo", "{}"), `Capabilities":{}`, `Capabilities":7`, 1),
			ask("3", "ping", ""), ask("3", "initialize", ""), ask("3", "nope", ""),
			strings.Replace(use("3", "echo", "{}"), `"_meta":{`, `"_meta":{"dev.specbox/session":"a b",`, 1),
		} {
			p.say(line)
			want := fmt.Sprintf(`{"jsonrpc":"2.0","id":3,"error":{"code":%d`, []int{-32022, -32602, -32601, -32601, -32601, -32602}[i])
			if got := p.hear(); !strings.HasPrefix(got, want) {
				t.Errorf("%s: got %s, want %s", line, got, want)
			}
		}
		p.say(`{"jsonrpc":"2.0","method":"notifications/x","params":{"_meta":{`+triple+`}}}`,
			strings.Replace(use("4", "echo", "{}"), `"_meta":{`, `"_meta":{"dev.specbox/session":"named",`, 1))
		if p.hear(); srv.last(t).o.Conversation != "named" {
			t.Errorf("opened with %+v", srv.last(t).o)
		}
		g.CloseSessions(func(gateway.SessionInfo) bool { return true })
		p.say(use("5", "echo", "{}"))
		if got := p.hear(); !strings.Contains(got, "result") || len(srv.all()) != 3 {
			t.Errorf("after the session ended: %s, %d sessions", got, len(srv.all()))
		}
		p.close()
		for _, f := range srv.all() {
			if _, _, closes := f.seen(); closes != 1 {
				t.Errorf("closed %d times", closes)
			}
		}
		if n := len(g.Sessions()); n != 0 {
			t.Errorf("%d sessions are left", n)
		}
	})
}

func TestBothErasOnOnePipe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &server{modern: true, initWait: time.Second}
		g, _ := newGateway(t, srv, nil)
		p := newPipe(t, g)
		p.say(initializeBody, use("1", "wait", "{}"), call("2", "wait", "{}"))
		synctest.Wait() // the legacy call waits for initialize, the modern one does not
		p.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
		if got := p.hear(); !strings.HasPrefix(got, `{"jsonrpc":"2.0","id":"i"`) {
			t.Errorf("got %s", got)
		}
		synctest.Wait()
		p.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`)
		all := srv.all()
		if len(all) != 2 || all[0].o.Modern || !all[1].o.Modern {
			t.Fatalf("%d sessions", len(all))
		}
		<-all[0].ended
		<-all[1].ended
		p.close()
	})
}

// TestPipesAreApart holds that one client's cancellation is not another's, even
// where both name one conversation and one id.
func TestPipesAreApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &server{}
		g, _ := newGateway(t, srv, nil)
		a, b := newPipe(t, g), newPipe(t, g)
		wait := strings.Replace(use("1", "wait", `{"n":5000}`), `"_meta":{`, `"_meta":{"dev.specbox/session":"same",`, 1)
		a.say(wait)
		synctest.Wait()
		b.say(wait)
		synctest.Wait()
		a.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
		if got := b.hear(); !strings.Contains(got, "waited") {
			t.Errorf("got %s", got)
		}
		a.close()
		b.close()
	})
}

func TestListeningOverStdio(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &server{}
		g, _ := newGateway(t, srv, nil)
		p := newPipe(t, g)
		p.say(ask("7", "subscriptions/listen", ""))
		for _, want := range []string{"acknowledged", "list_changed"} {
			if got := p.hear(); !strings.Contains(got, want) || !strings.Contains(got, `subscriptionId":7`) {
				t.Errorf("got %s, want %s", got, want)
			}
		}
		p.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`)
		<-srv.last(t).unheard
		p.say(ask("8", "subscriptions/listen", ""))
		p.hear()
		p.hear()
		start := time.Now()
		p.close()
		if d := time.Since(start); d != 0 {
			t.Errorf("a subscription holds up the end for %v", d)
		}
	})
}

func TestAGatewayThatEndsEndsModernPipes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &server{}
		g, err := gateway.New(gateway.Config{Open: srv.open})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- g.Run(ctx) }()
		p := newPipe(t, g)
		p.say(use("1", "wait", "{}"))
		synctest.Wait()
		stop()
		if got := p.hear(); !strings.Contains(got, "session has ended") {
			t.Errorf("got %s", got)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := <-p.done; !errors.Is(err, gateway.ErrEnded) {
			t.Errorf("the pipe ended with %v", err)
		}
	})
}

func TestTheOfficialModernClient(t *testing.T) {
	for _, name := range []string{"http", "a connection a request", "stdio"} {
		t.Run(name, func(t *testing.T) {
			srv := &server{modern: true}
			g, _ := newGateway(t, srv, nil)
			c := connect(t, transports(t, g)[name]())
			far := srv.last(t)
			tool := func(ctx context.Context, name string, args any) string {
				t.Helper()
				p := &mcp.CallToolParams{Name: name, Arguments: args}
				p.SetProgressToken("tok")
				r, err := c.CallTool(ctx, p)
				if err != nil {
					return err.Error()
				}
				if len(r.Content) == 0 {
					return ""
				}
				return r.Content[0].(*mcp.TextContent).Text
			}
			if v := c.InitializeResult().ProtocolVersion; v != wire.Modern || !far.o.Modern {
				t.Errorf("the client speaks %s", v)
			}
			hear(t, c.changes, "tools") // it subscribed by itself, and forgets the tools that it knows
			if l, err := c.ListTools(t.Context(), nil); err != nil || len(l.Tools) != 2 {
				t.Errorf("tools: %v %v", l, err)
			}
			if got := tool(t.Context(), "progress", map[string]any{"n": 3}); got != "done" {
				t.Errorf("progress: %s", got)
			}
			for i := range 3 {
				hear(t, c.progress, fmt.Sprint("tok ", i+1))
			}
			if got := tool(t.Context(), "log", nil); got != "logged" {
				t.Errorf("log: %s", got)
			}
			hear(t, c.logs, "hello")
			headed := map[string]any{"region": " é\n", "n": 7, "dry": true, "in": map[string]any{"zone": "z"}, "content": []any{map[string]any{"type": "text", "text": "both agree"}}}
			if got := tool(t.Context(), "headed", headed); got != "both agree" {
				t.Errorf("arguments in headers: %s", got)
			}
			if got := tool(t.Context(), "nope", nil); !strings.Contains(got, "no tool") {
				t.Errorf("an error: %s", got)
			}
			ctx, cancel := context.WithCancel(t.Context())
			errc := make(chan string)
			go func() { errc <- tool(ctx, "wait", map[string]any{}) }()
			<-far.waiting
			cancel()
			if got := <-errc; !strings.Contains(got, "canceled") {
				t.Errorf("the cancelled call: %s", got)
			}
			var cancelled wire.Cancelled
			if cause := <-far.ended; !errors.As(cause, &cancelled) {
				t.Errorf("the call ended because %v", cause)
			}
			if got := tool(t.Context(), "echo", map[string]any{"content": []any{}}); got != "" {
				t.Errorf("after all that: %s", got)
			}
		})
	}
}
