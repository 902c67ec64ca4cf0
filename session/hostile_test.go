package session_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/sandbox/sim"
	"github.com/specbox/specbox/session"
	"github.com/specbox/specbox/trace"
	"github.com/specbox/specbox/wire"
)

// What a server asked before a call, or has asked for too long, keeps no call
// alive; and one that asks without end leaves room for others.
func TestQuestionsThatNobodyAnswers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := open(t, []string{"greedy", "modest"}, func(*sandbox.Spec, int) sim.Life {
			return sim.Life{Serve: func(ctx context.Context, p *sim.Peer, m wire.Message) wire.Reply {
				ask := func(n int) {
					for range n {
						go func() { _, _ = p.Ask(ctx, "roots/list", nil) }()
					}
				}
				if m.Method == "tools/list" {
					return wire.Reply{Result: []byte(`{"tools":[{"name":"ask"},{"name":"hang"},{"name":"ask-and-hang"}]}`)}
				}
				switch wire.Str(m.Params, "name") {
				case "ask":
					ask(500)
					return sim.Text("asked")
				case "ask-and-hang":
					ask(1)
					<-ctx.Done()
				case "hang":
					<-ctx.Done()
				}
				return sim.Tools(ctx, p, m)
			}}
		}, func(s *session.Server) { s.CallTimeout = time.Minute })
		defer h.stop()
		h.fill()
		c := h.client("t", "", allCaps)
		c.call("greedy__ask", "{}")
		time.Sleep(time.Second)
		begin := time.Now()
		if got := c.call("greedy__hang", "{}"); !strings.Contains(got, "no reply") || time.Since(begin) != time.Minute {
			t.Errorf("a call beside old questions got %q after %v", got, time.Since(begin))
		}
		begin = time.Now()
		if got := c.call("greedy__ask-and-hang", "{}"); !strings.Contains(got, "no reply") || time.Since(begin) > 2*time.Hour || time.Since(begin) < time.Hour {
			t.Errorf("a call with a question got %q after %v", got, time.Since(begin))
		}
		c.mu.Lock()
		c.answer = func(m wire.Message) wire.Reply { return wire.Reply{Result: []byte(`{"roots":[]}`)} }
		c.mu.Unlock()
		for range 30 {
			if got := c.call("modest__ask", "{}"); got != "asked" {
				t.Fatalf("the other server's call got %q", got)
			}
		}
	})
}

// A server that announces changes without end is read now and then.
func TestStormOfChanges(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var mu sync.Mutex
		lists := 0
		h := open(t, []string{"a"}, func(*sandbox.Spec, int) sim.Life {
			return sim.Life{Serve: func(ctx context.Context, p *sim.Peer, m wire.Message) wire.Reply {
				mu.Lock()
				defer mu.Unlock()
				switch {
				case m.Method == "tools/list":
					lists++
					return wire.Reply{Result: fmt.Appendf(nil, `{"tools":[{"name":"storm","inputSchema":{}},{"name":"t%d","inputSchema":{}}]}`, lists)}
				case wire.Str(m.Params, "name") == "storm":
					go func() {
						for range 60_000 {
							p.Notify("notifications/tools/list_changed", nil)
							p.Notify("notifications/prompts/list_changed", nil)
							time.Sleep(time.Millisecond)
						}
					}()
					return sim.Text("begun")
				}
				return wire.Fail(wire.CodeMethodNotFound, "no")
			}}
		}, nil)
		defer h.stop()
		h.fill()
		c := h.client("t", "", "{}")
		c.do(t.Context(), "tools/list", "{}")
		before := lists
		c.call("a__storm", "{}")
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if n := lists - before; n < 3 || n > 20 {
			t.Errorf("the lists were read %d times in a minute of changes", n)
		}
		if told := len(c.background()); told < 2 || told > 40 {
			t.Errorf("the client was told %d times", told)
		}
		r, _ := c.do(t.Context(), "tools/list", "{}")
		if last := fmt.Sprintf("t%d", lists); !strings.Contains(string(r.Result), last) {
			t.Errorf("the list is not the last one: %.200s", r.Result)
		}
	})
}

// The sandbox that reads a shared server's lists is the one of all: it has the
// kept state, and what it announces reaches the sessions. That of a tenant's
// server is nobody's, and goes.
func TestReadingLeavesTheRightSandbox(t *testing.T) {
	bubble(t, func(t *testing.T) {
		homes := filepath.Join(t.TempDir(), "homes")
		var mu sync.Mutex
		seen := map[string][]string{} // server -> homes
		more := false
		h := open(t, []string{"all", "tenant"}, func(spec *sandbox.Spec, _ int) sim.Life {
			mu.Lock()
			seen[spec.Server] = append(seen[spec.Server], spec.Home)
			mu.Unlock()
			return sim.Life{Serve: func(ctx context.Context, p *sim.Peer, m wire.Message) wire.Reply {
				mu.Lock()
				defer mu.Unlock()
				switch {
				case wire.Str(m.Params, "name") == "add":
					more = true
					p.Notify("notifications/tools/list_changed", nil)
					return sim.Text("added")
				case m.Method == "tools/list" && more:
					return wire.Reply{Result: []byte(`{"tools":[{"name":"add","inputSchema":{}},{"name":"more","inputSchema":{}}]}`)}
				case m.Method == "tools/list":
					return wire.Reply{Result: []byte(`{"tools":[{"name":"add","inputSchema":{}}]}`)}
				}
				return wire.Fail(wire.CodeMethodNotFound, "no")
			}}
		}, func(s *session.Server) {
			s.Spec.Scope = config.Shared
			if s.Name == "tenant" {
				s.Spec.Scope = config.PerTenant
			}
			s.Home = func(tenant string) (string, error) {
				dir := filepath.Join(homes, tenant, s.Name)
				return dir, os.MkdirAll(dir, 0o700)
			}
		})
		defer h.stop()
		if err := h.hub.Fill(t.Context(), nil, false, nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if live := h.sim.Live(); len(live) != 1 || !strings.HasPrefix(live[0], "all") {
			t.Errorf("alive after the reading: %v", live)
		}
		c := h.client("t", "", "{}")
		c.do(t.Context(), "tools/list", "{}")
		c.call("all__add", "{}")
		time.Sleep(time.Second)
		synctest.Wait()
		if got, want := c.background(), []string{"notifications/tools/list_changed"}; !slices.Equal(got, want) {
			t.Errorf("told %v, want %v", got, want)
		}
		if r, _ := c.do(t.Context(), "tools/list", "{}"); !strings.Contains(string(r.Result), "all__more") {
			t.Errorf("the list is %s", r.Result)
		}
		c.call("tenant__add", "{}")
		old, err := h.hub.Open(session.Opening{Tenant: "t", Session: "old", Params: []byte(`{"protocolVersion":"2024-11-05","capabilities":{}}`)}, c)
		if err != nil {
			t.Fatal(err)
		}
		(&client{Session: old, t: t}).call("all__add", "{}") // a client of another revision shares it too
		if got, want := seen["all"], []string{filepath.Join(homes, ".shared", "all")}; !slices.Equal(got, want) {
			t.Errorf("homes of the shared one: %q, want %q", got, want)
		}
		if got, want := seen["tenant"][len(seen["tenant"])-1], filepath.Join(homes, "t", "tenant"); got != want {
			t.Errorf("home of the tenant's: %q, want %q", got, want)
		}
		for _, e := range h.log.Events() {
			if e.Kind == trace.Start && e.Server == "all" && e.Cause != trace.Catalog {
				t.Errorf("the shared one was started again: %+v", e)
			}
		}
	})
}

// Whatever a client can do, it is told why a server has no tools.
func TestWhyToolsAreNotKnown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := open(t, []string{"broken"}, func(*sandbox.Spec, int) sim.Life {
			return sim.Life{Err: fmt.Errorf("no such file")}
		}, nil)
		defer h.stop()
		_ = h.hub.Fill(t.Context(), nil, false, nil)
		for _, caps := range []string{"{}", allCaps, `{"experimental":{"x":{}}}`} {
			r, _ := h.client("t", "", caps).do(t.Context(), "tools/call", `{"name":"broken__x","arguments":{}}`)
			if !strings.Contains(string(r.Error), "no such file") {
				t.Errorf("a client with %s is told %s", caps, r.Error)
			}
		}
	})
}

// What a client makes a session remember is checked and bounded.
func TestWhatIsRememberedIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := open(t, []string{"a"}, func(*sandbox.Spec, int) sim.Life {
			return sim.Life{
				Init: []byte(`{"protocolVersion":"2025-06-18","capabilities":{"resources":{"subscribe":true}},"serverInfo":{"name":"x","version":"1"}}`),
				Serve: func(context.Context, *sim.Peer, wire.Message) wire.Reply {
					return wire.Reply{Result: []byte(`{"resources":[],"resourceTemplates":[]}`)}
				},
			}
		}, nil)
		defer h.stop()
		h.fill()
		c := h.client("t", "", "{}")
		for _, level := range []string{`"loud"`, `7`, `{}`, `"` + strings.Repeat("x", 1<<20) + `"`, `""`} {
			if r, _ := c.do(t.Context(), "logging/setLevel", `{"level":`+level+`}`); r.Error == nil {
				t.Errorf("level %.20s is taken", level)
			}
		}
		if r, _ := c.do(t.Context(), "logging/setLevel", `{"level":"debug"}`); r.Error != nil {
			t.Errorf("level debug is refused: %s", r.Error)
		}
		if r, _ := c.do(t.Context(), "resources/subscribe", `{"uri":"a://`+strings.Repeat("x", 10_000)+`"}`); r.Error == nil {
			t.Error("a URI of 10 kB is subscribed to")
		}
		taken := 0
		for i := range 5000 {
			if r, _ := c.do(t.Context(), "resources/subscribe", fmt.Sprintf(`{"uri":"a://%d"}`, i)); r.Error == nil {
				taken++
			}
		}
		if taken != 4096 {
			t.Errorf("%d subscriptions are kept", taken)
		}
		c.do(t.Context(), "resources/unsubscribe", `{"uri":"a://1"}`)
		if r, _ := c.do(t.Context(), "resources/subscribe", `{"uri":"a://more"}`); r.Error != nil {
			t.Errorf("after one was given up, another is refused: %s", r.Error)
		}
	})
}

// An answer that cannot be passed on is told of with the name of its server, and
// the next call finds it alive.
func TestAnswersThatCannotBeTaken(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := open(t, []string{"odd"}, func(*sandbox.Spec, int) sim.Life {
			return sim.Life{Serve: func(ctx context.Context, p *sim.Peer, m wire.Message) wire.Reply {
				switch {
				case m.Method == "tools/list":
					return wire.Reply{Result: []byte(`{"tools":[{"name":"broken"},{"name":"long"},{"name":"fine"}]}`)}
				case wire.Str(m.Params, "name") == "broken":
					return wire.Reply{Result: []byte(`{"content":[oops]}`)}
				case wire.Str(m.Params, "name") == "long":
					return sim.Text(strings.Repeat("x", 100_000))
				}
				return sim.Text("fine")
			}}
		}, func(s *session.Server) { s.Spec.Limit = 50_000 })
		defer h.stop()
		h.fill()
		c := h.client("t", "", "{}")
		if got := c.call("odd__broken", "{}"); !strings.Contains(got, `server "odd": its answer is not JSON`) {
			t.Errorf("broken: %s", got)
		}
		if got := c.call("odd__long", "{}"); !strings.Contains(got, `server "odd": its answer is too large: message of`) || !strings.Contains(got, "limits") {
			t.Errorf("long: %s", got)
		}
		if got := c.call("odd__fine", "{}"); got != "fine" {
			t.Errorf("fine: %s", got)
		}
		if n := h.sim.Count().Live; n != 1 {
			t.Errorf("%d sandboxes are alive", n)
		}
	})
}
