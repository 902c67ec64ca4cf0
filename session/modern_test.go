package session_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/sandbox/sim"
	"github.com/specbox/specbox/session"
	"github.com/specbox/specbox/wire"
)

// modern opens a session of the modern era.
func (h *hall) modern(tenant, server, conversation, caps string) *client {
	h.t.Helper()
	c := &client{t: h.t}
	s, err := h.hub.Open(session.Opening{
		Tenant: tenant, Session: session.NewID(), Server: server, Modern: true, Conversation: conversation,
		Params: []byte(`{"protocolVersion":"2026-07-28","capabilities":` + caps + `,"clientInfo":{"name":"test","version":"1"}}`),
	}, c)
	if err != nil {
		h.t.Fatal(err)
	}
	c.Session = s
	return c
}

// modernServer is a life of a server that knows no initialize.
func modernServer(serve func(ctx context.Context, p *sim.Peer, m wire.Message) wire.Reply) sim.Life {
	return sim.Life{Modern: true, Serve: func(ctx context.Context, p *sim.Peer, m wire.Message) wire.Reply {
		if wire.Str(m.Params, "_meta", wire.MetaVersion) != wire.Modern || wire.Get(m.Params, "_meta", wire.MetaCapabilities) == nil {
			return wire.Fail(wire.CodeVersion, "no version")
		}
		switch m.Method {
		case "server/discover":
			return wire.Reply{Result: []byte(`{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{},"resources":{"subscribe":true}}}`)}
		case "subscriptions/listen":
			p.Notify("notifications/subscriptions/acknowledged", []byte(`{}`))
			<-ctx.Done()
			return wire.Reply{Result: []byte("{}")}
		case "resources/list":
			return wire.Reply{Result: []byte(`{"resources":[{"uri":"demo://1","name":"one"}],"resultType":"complete"}`)}
		case "resources/read":
			return wire.Fail(wire.CodeInvalidParams, "no such resource")
		}
		return serve(ctx, p, m)
	}}
}

func TestModernClientsAreServedFromTheCatalogue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := open(t, []string{"a"}, nil, nil)
		defer h.stop()
		h.fill()
		c := h.modern("t", "", "", "{}")
		for _, method := range []string{"server/discover", "tools/list", "resources/list"} {
			r, _ := c.do(t.Context(), method, "{}")
			if wire.Str(r.Result, "resultType") != "complete" || wire.Str(r.Result, "cacheScope") != "private" || string(wire.Get(r.Result, "ttlMs")) != "60000" ||
				wire.Str(r.Result, "_meta", wire.MetaServerInfo, "name") != "specbox" {
				t.Errorf("%s: %s %s", method, r.Result, r.Error)
			}
		}
		for _, method := range []string{"initialize", "ping", "logging/setLevel", "resources/subscribe"} {
			if r, _ := c.do(t.Context(), method, "{}"); !strings.Contains(string(r.Error), "-32601") {
				t.Errorf("%s: %s %s, want method not found", method, r.Result, r.Error)
			}
		}
		if live := h.sim.Live(); len(live) != 0 {
			t.Errorf("alive: %v", live)
		}
		r, _ := c.do(t.Context(), "tools/call", `{"name":"a__echo","arguments":{"n":12345678901234567890}}`)
		if got, want := string(r.Result), `{"content":[{"type":"text","text":"{\"n\":12345678901234567890}"}],"resultType":"complete"}`; got != want {
			t.Errorf("echo: %s, want %s", got, want)
		}
		if r, _ := c.do(t.Context(), "resources/read", `{"uri":"no://where"}`); !strings.Contains(string(r.Error), "-32602") {
			t.Errorf("an unknown resource: %s, want -32602", r.Error)
		}
	})
}

// A modern client before a legacy server: the call is parked while the client
// fetches what the server asks for.
func TestParkedCalls(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := open(t, []string{"a"}, nil, nil)
		defer h.stop()
		h.fill()
		c := h.modern("t", "", "k", allCaps)
		const call = `"name":"a__ask","arguments":{"method":"elicitation/create","params":{"message":"who?"}}`
		r, _ := c.do(t.Context(), "tools/call", `{`+call+`}`)
		state := wire.Str(r.Result, "requestState")
		if got, want := string(wire.Get(r.Result, "inputRequests")), `{"q1":{"method":"elicitation/create","params":{"message":"who?"}}}`; got != want || wire.Str(r.Result, "resultType") != "input_required" {
			t.Fatalf("got %s, want input_required with %s", r.Result, want)
		}
		retry := func(c *client, state, call, answers string) wire.Reply {
			r, _ := c.do(t.Context(), "tools/call", `{`+call+`,"requestState":"`+state+`","inputResponses":`+answers+`}`)
			return r
		}
		answers := `{"q1":{"action":"accept","content":{"name":"Ada"}}}`
		for why, r := range map[string]wire.Reply{
			"a forged state":          retry(c, "specbox-FORGED", call, answers),
			"another tenant":          retry(h.modern("u", "", "k", allCaps), state, call, answers),
			"another conversation":    retry(h.modern("t", "", "l", allCaps), state, call, answers),
			"another request":         retry(c, state, strings.Replace(call, "who?", "WHO?", 1), answers),
			"a state that was edited": retry(c, state+"x", call, answers),
		} {
			if !strings.Contains(string(r.Error), "-32602") {
				t.Errorf("%s: %s %s, want -32602", why, r.Result, r.Error)
			}
		}
		r = retry(c, state, call, "{}") // nothing is answered yet
		again := wire.Str(r.Result, "requestState")
		if again == "" || again == state {
			t.Fatalf("a retry without answers: %s %s, want input_required and a new state", r.Result, r.Error)
		}
		if r = retry(c, again, call, answers); text(r) != `{"action":"accept","content":{"name":"Ada"}}` || wire.Str(r.Result, "resultType") != "complete" {
			t.Errorf("the retry: %s %s", r.Result, r.Error)
		}
		if r = retry(c, again, call, answers); !strings.Contains(string(r.Error), "used already") {
			t.Errorf("a replay: %s %s", r.Result, r.Error)
		}
	})
}

// A parked call that nobody takes up again ends, and its server is told.
func TestParkedCallsExpire(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := open(t, []string{"a"}, nil, nil)
		defer h.stop()
		h.fill()
		c := h.modern("t", "", "k", allCaps)
		const call = `"name":"a__ask","arguments":{"method":"roots/list"}`
		r, _ := c.do(t.Context(), "tools/call", `{`+call+`}`)
		state := wire.Str(r.Result, "requestState")
		if !strings.Contains(string(r.Result), `"params":{}`) {
			t.Errorf("a request without params is shown as %s", r.Result)
		}
		time.Sleep(11 * time.Minute)
		synctest.Wait()
		r, _ = c.do(t.Context(), "tools/call", `{`+call+`,"requestState":"`+state+`","inputResponses":{"q1":{"roots":[]}}}`)
		if !strings.Contains(string(r.Error), "expired") {
			t.Errorf("after its time: %s %s", r.Result, r.Error)
		}
		if live := h.sim.Live(); len(live) > 0 { // it went idle after the call ended
			time.Sleep(10 * time.Minute)
			synctest.Wait()
		}
		if live := h.sim.Live(); len(live) > 0 {
			t.Errorf("alive: %v", live)
		}
	})
}

// Closing the stream cancels a modern call.
func TestALeavingModernClientCancels(t *testing.T) {
	bubble(t, func(t *testing.T) {
		stopped := make(chan struct{}, 1)
		h := open(t, []string{"a"}, func(*sandbox.Spec, int) sim.Life {
			return sim.Life{Serve: func(ctx context.Context, p *sim.Peer, m wire.Message) wire.Reply {
				if wire.Str(m.Params, "name") == "sleep" {
					<-ctx.Done()
					stopped <- struct{}{}
				}
				return sim.Tools(ctx, p, m)
			}}
		}, nil)
		defer h.stop()
		h.fill()
		c := h.modern("t", "", "k", "{}")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(wire.Cancelled{}) })
		c.do(ctx, "tools/call", `{"name":"a__sleep","arguments":{}}`)
		<-stopped
	})
}

// A legacy client before a modern server: what the server wants is asked for by
// requests.
func TestLegacyClientsOnModernServers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := open(t, []string{"m"}, func(*sandbox.Spec, int) sim.Life {
			return modernServer(func(ctx context.Context, p *sim.Peer, m wire.Message) wire.Reply {
				switch {
				case m.Method == "tools/list":
					return wire.Reply{Result: []byte(sim.ToolsList)}
				case wire.Str(m.Params, "name") == "ask" && wire.Get(m.Params, "inputResponses") == nil:
					return wire.Reply{Result: []byte(`{"resultType":"input_required","inputRequests":{"a":{"method":"roots/list","params":{}},"b":{"method":"sampling/createMessage","params":{"n":1}}},"requestState":"mine"}`)}
				case wire.Str(m.Params, "name") == "ask":
					return sim.Text(wire.Str(m.Params, "requestState") + string(wire.Get(m.Params, "inputResponses")))
				case wire.Str(m.Params, "name") == "emit":
					p.Notify("notifications/resources/updated", []byte(`{"uri":"demo://1"}`))
				}
				return sim.Text(string(wire.Get(m.Params, "_meta", wire.MetaLogLevel)))
			})
		}, nil)
		defer h.stop()
		h.fill()
		c := h.client("t", "", allCaps)
		c.answer = func(m wire.Message) wire.Reply {
			if m.Method == "roots/list" {
				return wire.Reply{Result: []byte(`{"roots":[]}`)}
			}
			return wire.Reply{Result: []byte(`{"model":"m","n":` + string(wire.Get(m.Params, "n")) + `}`)}
		}
		got := c.call("m__ask", "{}")
		if got != `mine{"a":{"roots":[]},"b":{"model":"m","n":1}}` && got != `mine{"b":{"model":"m","n":1},"a":{"roots":[]}}` {
			t.Errorf("the call went on with %s", got)
		}
		if r, _ := c.do(t.Context(), "resources/read", `{"uri":"demo://1"}`); !strings.Contains(string(r.Error), "-32002") {
			t.Errorf("a resource that is not there: %s, want -32002", r.Error)
		}
		c.do(t.Context(), "logging/setLevel", `{"level":"debug"}`)
		if got := c.call("m__echo", "{}"); got != `"debug"` {
			t.Errorf("the server was told the level %s", got)
		}
		if r, _ := c.do(t.Context(), "resources/subscribe", `{"uri":"demo://1"}`); r.Error != nil {
			t.Errorf("subscribe: %s", r.Error)
		}
		c.call("m__emit", "{}")
		synctest.Wait()
		if got, want := c.background(), []string{"notifications/resources/updated"}; !slices.Equal(got, want) {
			t.Errorf("told %v, want %v", got, want)
		}
	})
}

// A modern client and a modern server understand each other as they are.
func TestModernOnModernPassesThrough(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const asked = `{"inputRequests":{"z":{"method":"roots/list"}},"resultType":"input_required","requestState":"of the server"}`
		h := open(t, []string{"m"}, func(*sandbox.Spec, int) sim.Life {
			return modernServer(func(ctx context.Context, p *sim.Peer, m wire.Message) wire.Reply {
				if m.Method == "tools/list" {
					return wire.Reply{Result: []byte(sim.ToolsList)}
				}
				if state := wire.Str(m.Params, "requestState"); state != "" {
					return sim.Text(state)
				}
				return wire.Reply{Result: []byte(asked)}
			})
		}, nil)
		defer h.stop()
		h.fill()
		c := h.modern("t", "", "", allCaps)
		const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`
		if r, _ := c.do(t.Context(), "tools/call", `{"name":"m__ask",`+meta+`}`); string(r.Result) != asked {
			t.Errorf("got %s %s, want %s", r.Result, r.Error, asked)
		}
		if r, _ := c.do(t.Context(), "tools/call", `{"name":"m__ask","requestState":"of the server",`+meta+`}`); text(r) != "of the server" {
			t.Errorf("the retry: %s %s", r.Result, r.Error)
		}
	})
}

// A server that was said to keep state for each session gets no call of which
// nobody knows the session.
func TestAffinity(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := open(t, []string{"free", "strict"}, nil, func(s *session.Server) { s.NeedsSession = s.Name == "strict" })
		defer h.stop()
		h.fill()
		nameless := h.modern("t", "", "", "{}")
		if got := nameless.call("strict__count", "{}"); !strings.Contains(got, "Specbox-Session") || !strings.Contains(got, "strict") {
			t.Errorf("without a conversation: %s", got)
		}
		if got := nameless.call("free__count", "{}"); got != "1" {
			t.Errorf("a server that was not said to: %s", got)
		}
		one, other := h.modern("t", "", "one", "{}"), h.modern("t", "", "other", "{}")
		if got := one.call("strict__count", "{}") + one.call("strict__count", "{}") + other.call("strict__count", "{}"); got != "121" {
			t.Errorf("counts of two conversations: %s, want 1, 2 and 1", got)
		}
	})
}

func TestListening(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := 0
		var mu sync.Mutex
		h := open(t, []string{"a"}, func(*sandbox.Spec, int) sim.Life {
			return sim.Life{
				Init: []byte(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"resources":{"subscribe":true}},"serverInfo":{"name":"x","version":"1"}}`),
				Serve: func(ctx context.Context, p *sim.Peer, m wire.Message) wire.Reply {
					mu.Lock()
					defer mu.Unlock()
					switch {
					case m.Method == "tools/list":
						return wire.Reply{Result: []byte(fmt.Sprintf(`{"tools":[{"name":"more"},{"name":"touch"},{"name":"n%d"}]}`, n))}
					case m.Method == "resources/list":
						return wire.Reply{Result: []byte(`{"resources":[{"uri":"demo://1","name":"one"}]}`)}
					case wire.Str(m.Params, "name") == "more":
						n++
						p.Notify("notifications/tools/list_changed", nil)
					case wire.Str(m.Params, "name") == "touch":
						p.Notify("notifications/resources/updated", []byte(`{"uri":"demo://1"}`))
					}
					return sim.Text("ok")
				},
			}
		}, nil)
		defer h.stop()
		h.fill()
		c := h.modern("t", "", "k", "{}")
		ctx, cancel := context.WithCancel(t.Context())
		var told []wire.Message
		var work sync.WaitGroup
		work.Go(func() {
			_, told = c.do(ctx, "subscriptions/listen", `{"notifications":{"toolsListChanged":true,"promptsListChanged":false,"resourceSubscriptions":["demo://1"]}}`)
		})
		synctest.Wait()
		for range 2 {
			c.call("a__more", "{}")
			time.Sleep(time.Second)
		}
		c.call("a__touch", "{}")
		synctest.Wait()
		cancel()
		work.Wait()
		var got []string
		for _, m := range told {
			got = append(got, m.Method)
			if id := wire.Get(m.Params, "_meta", wire.MetaSubscription); string(id) != "1" {
				t.Errorf("%s does not name its subscription", m.Raw)
			}
		}
		want := []string{"notifications/subscriptions/acknowledged", "notifications/tools/list_changed", "notifications/tools/list_changed", "notifications/resources/updated"}
		if !slices.Equal(got, want) {
			t.Errorf("heard %v, want %v", got, want)
		}
		if granted := string(wire.Get(told[0].Params, "notifications")); granted != `{"toolsListChanged":true,"resourceSubscriptions":["demo://1"]}` {
			t.Errorf("granted %s", granted)
		}
	})
}
