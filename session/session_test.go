package session_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/specbox/specbox/catalog"
	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/sandbox/sim"
	"github.com/specbox/specbox/session"
	"github.com/specbox/specbox/trace"
	"github.com/specbox/specbox/wire"
)

// A hall is a hub over simulated servers, with a catalogue of its own.
type hall struct {
	t     *testing.T
	hub   *session.Hub
	store *catalog.Store
	sim   *sim.Backend
	log   trace.Log
	stop  func()
}

// open starts a hall with the named servers; life says how their instances
// fare, and edit, which may be nil, changes their settings.
func open(t *testing.T, names []string, life func(*sandbox.Spec, int) sim.Life, edit func(*session.Server)) *hall {
	t.Helper()
	return openWith(t, names, life, edit, func(*session.Config) {})
}

// openWith is open with a configuration that is changed by edit.
func openWith(t *testing.T, names []string, life func(*sandbox.Spec, int) sim.Life, edit func(*session.Server), configure func(*session.Config)) *hall {
	t.Helper()
	h := &hall{t: t, sim: &sim.Backend{Life: life}}
	var err error
	if h.store, err = catalog.Open(t.TempDir(), nil); err != nil {
		t.Fatal(err)
	}
	m, err := sandbox.New(sandbox.Config{
		Backends: map[config.Isolation]sandbox.Backend{config.Process: h.sim}, Recorder: &h.log, Starts: 4,
	})
	if err != nil {
		t.Fatal(err)
	}
	c := session.Config{Catalog: h.store, Sandboxes: m, Recorder: &h.log, Version: "1", Fills: 3}
	configure(&c)
	h.hub = session.New(c)
	var servers []*session.Server
	for _, n := range names {
		s := &session.Server{
			Name: n, Hash: "h", CallTimeout: 10 * time.Minute,
			Spec: &sandbox.Spec{
				Server: n, Hash: "h", Isolation: config.Process, Argv: []string{"sim"}, Scope: config.PerSession,
				StartTimeout: time.Minute, IdleTimeout: 5 * time.Minute, StopGrace: time.Second,
			},
		}
		if edit != nil {
			edit(s)
		}
		servers = append(servers, s)
	}
	h.hub.SetServers(servers)
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { _ = m.Run(ctx) })
	hubCtx, hubCancel := context.WithCancel(context.Background())
	work.Go(func() { _ = h.hub.Run(hubCtx) })
	synctest.Wait()
	h.stop = func() {
		hubCancel()
		synctest.Wait()
		cancel()
		work.Wait()
		if left := h.sim.Live(); len(left) > 0 {
			t.Errorf("alive at the end: %v", left)
		}
	}
	return h
}

// A client is one session with what it was told.
type client struct {
	*session.Session
	t *testing.T

	mu     sync.Mutex
	told   []wire.Message // in the background
	answer func(m wire.Message) wire.Reply
}

const allCaps = catalog.FullCapabilities

func (h *hall) client(tenant, server, caps string) *client {
	h.t.Helper()
	return h.keyed(tenant, server, caps, "")
}

// keyed is a client that names its conversation.
func (h *hall) keyed(tenant, server, caps, key string) *client {
	h.t.Helper()
	c := &client{t: h.t}
	s, err := h.hub.Open(session.Opening{
		Tenant: tenant, Session: session.NewID(), Server: server, Conversation: key,
		Params: []byte(`{"protocolVersion":"2025-06-18","capabilities":` + caps + `,"clientInfo":{"name":"test","version":"1"}}`),
	}, c)
	if err != nil {
		h.t.Fatal(err)
	}
	c.Session = s
	return c
}

// Send takes what comes in the background.
func (c *client) Send(parts ...[]byte) error { return c.hear(nil, parts) }

func (c *client) hear(into *[]wire.Message, parts [][]byte) error {
	m, err := wire.Parse(bytes.Join(parts, nil))
	if err != nil {
		c.t.Errorf("the client was told %q: %v", bytes.Join(parts, nil), err)
	}
	c.mu.Lock()
	if into == nil {
		into = &c.told
	}
	*into = append(*into, m)
	answer := c.answer
	c.mu.Unlock()
	if m.IsRequest() && answer != nil {
		go func() {
			r := answer(m)
			c.Post(wire.Message{ID: m.ID, Result: r.Result, Error: r.Error})
		}()
	}
	return nil
}

// background returns the methods that came in the background.
func (c *client) background() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for _, m := range c.told {
		out = append(out, m.Method)
	}
	return out
}

type stream struct {
	c    *client
	told []wire.Message
}

func (s *stream) Send(parts ...[]byte) error { return s.c.hear(&s.told, parts) }

// do sends a request and returns the reply and what came with it.
func (c *client) do(ctx context.Context, method, params string) (wire.Reply, []wire.Message) {
	raw := []byte(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":%s}`, method, params))
	m, err := wire.Parse(raw)
	if err != nil {
		c.t.Fatal(err)
	}
	s := &stream{c: c}
	r := c.Request(ctx, m, s)
	c.mu.Lock()
	defer c.mu.Unlock()
	return r, s.told
}

// call calls a tool and returns its text.
func (c *client) call(tool, args string) string {
	c.t.Helper()
	r, _ := c.do(c.t.Context(), "tools/call", `{"name":"`+tool+`","arguments":`+args+`}`)
	return text(r)
}

func text(r wire.Reply) string {
	if r.Error != nil {
		return "error: " + wire.Str(r.Error, "message")
	}
	items, _ := wire.Elements(wire.Get(r.Result, "content"))
	if len(items) == 0 {
		return string(r.Result)
	}
	return wire.Str(items[0], "text")
}

func (h *hall) fill() {
	h.t.Helper()
	if err := h.hub.Fill(h.t.Context(), nil, false, nil); err != nil {
		h.t.Fatal(err)
	}
	time.Sleep(10 * time.Minute) // what filled it is gone, also where it may be shared
	synctest.Wait()
	if left := h.sim.Live(); len(left) > 0 {
		h.t.Fatalf("alive after the catalogue was filled: %v", left)
	}
}

func bubble(t *testing.T, f func(t *testing.T)) { t.Helper(); synctest.Test(t, f) }

// seconds is a life whose start takes that long.
func seconds(n int) func(*sandbox.Spec, int) sim.Life {
	return func(*sandbox.Spec, int) sim.Life { return sim.Life{Create: time.Duration(n) * time.Second} }
}

func TestNothingIsStartedForAList(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := open(t, []string{"a", "b"}, seconds(1), nil)
		defer h.stop()
		h.fill()
		made := h.sim.Count()
		c := h.client("t", "", allCaps)
		begin := time.Now()
		for _, method := range []string{"initialize", "tools/list", "prompts/list", "resources/list", "resources/templates/list", "ping"} {
			if r, _ := c.do(t.Context(), method, "{}"); r.Error != nil {
				t.Errorf("%s: %s", method, r.Error)
			}
		}
		r, _ := c.do(t.Context(), "tools/list", "{}")
		tools, _ := wire.Elements(wire.Get(r.Result, "tools"))
		if len(tools) != 14 || wire.Str(tools[0], "name") != "a__echo" {
			t.Errorf("%d tools, the first %s; want 7 of each server, a__echo first", len(tools), wire.Str(tools[0], "name"))
		}
		if took := time.Since(begin); took != 0 {
			t.Errorf("the lists took %v", took)
		}
		if now := h.sim.Count(); now != made {
			t.Errorf("instances %+v, were %+v: a list started something", now, made)
		}
	})
}

func TestACallStartsItsSandboxAndNoOther(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := open(t, []string{"a", "b"}, seconds(2), nil)
		defer h.stop()
		h.fill()
		c := h.client("t", "", "{}")
		begin := time.Now()
		if got, want := c.call("a__echo", `{"n":12345678901234567890}`), `{"n":12345678901234567890}`; got != want {
			t.Errorf("echo: %s, want %s", got, want)
		}
		if took := time.Since(begin); took != 2*time.Second {
			t.Errorf("the cold call took %v, want 2s", took)
		}
		if got := c.call("a__count", "{}") + c.call("a__count", "{}"); got != "12" {
			t.Errorf("two counts: %s, want 12: the same sandbox", got)
		}
		if live := h.sim.Live(); len(live) != 1 {
			t.Errorf("alive: %v, want the one of a", live)
		}
		var got []string
		for _, e := range h.log.Events() {
			if e.Kind == trace.CallEnd {
				got = append(got, fmt.Sprintf("%d %s %s %v", e.Step, e.Tool, e.Outcome, e.Provision))
			}
		}
		if want := "[1 echo cold 2s 2 count warm 0s 3 count warm 0s]"; fmt.Sprint(got) != want {
			t.Errorf("events %v, want %v", got, want)
		}
	})
}

// Two tools of one name stay reachable, and two sessions have two sandboxes.
func TestSessionsDoNotShare(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := open(t, []string{"a", "b"}, nil, nil)
		defer h.stop()
		h.fill()
		one, two := h.client("t", "", "{}"), h.client("t", "", "{}")
		ids := map[string]bool{}
		for _, id := range []string{one.call("a__whoami", "{}"), one.call("b__whoami", "{}"), two.call("a__whoami", "{}")} {
			ids[id] = true
		}
		if len(ids) != 3 {
			t.Errorf("sandboxes %v, want three", ids)
		}
		one.Close()
		time.Sleep(time.Minute)
		synctest.Wait()
		if live := h.sim.Live(); len(live) != 1 {
			t.Errorf("alive after one session closed: %v, want the other's", live)
		}
		if got := one.call("a__echo", "{}"); !strings.Contains(got, "session ended") {
			t.Errorf("a call in a closed session: %s", got)
		}
	})
}

func TestProgressWhileASlowServerStarts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := open(t, []string{"slow"}, seconds(20), nil)
		defer h.stop()
		h.fill()
		c := h.client("t", "", "{}")
		r, told := c.do(t.Context(), "tools/call", `{"name":"slow__sleep","arguments":{"ms":100},"_meta":{"progressToken":"tok"}}`)
		if text(r) != "slept" {
			t.Errorf("reply %s", text(r))
		}
		last, starting := -1.0, 0
		for _, m := range told {
			if string(wire.Get(m.Params, "progressToken")) != `"tok"` {
				t.Errorf("progress %s has not the client's token", m.Raw)
			}
			var p float64
			fmt.Sscan(string(wire.Get(m.Params, "progress")), &p)
			if p <= last {
				t.Errorf("progress went from %v to %v", last, p)
			}
			last = p
			if strings.Contains(wire.Str(m.Params, "message"), "starting slow") {
				starting++
			}
		}
		if starting != 4 || len(told) != 14 { // after 1, 6, 11 and 16 s; then ten of the server
			t.Errorf("%d words about the start, %d in all; want 4 and 14", starting, len(told))
		}
	})
}

func TestCancellationReachesTheServer(t *testing.T) {
	for _, stopOn := range []bool{false, true} {
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
			}, func(s *session.Server) { s.StopOnCancel = stopOn })
			defer h.stop()
			h.fill()
			c := h.client("t", "", "{}")
			c.call("a__echo", "{}")
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Second, func() { cancel(wire.Cancelled{Reason: []byte(`"no longer needed"`)}) })
			c.do(ctx, "tools/call", `{"name":"a__sleep","arguments":{}}`)
			<-stopped
			time.Sleep(time.Minute)
			synctest.Wait()
			if live := len(h.sim.Live()); (live == 0) != stopOn {
				t.Errorf("stop_on_cancel %v: %d alive", stopOn, live)
			}
		})
	}
}

// A cancelled start goes on: the next call finds it.
func TestACallersCancelDoesNotEndTheStart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := open(t, []string{"a"}, seconds(10), nil)
		defer h.stop()
		h.fill()
		made := h.sim.Count()
		c := h.client("t", "", "{}")
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		c.do(ctx, "tools/call", `{"name":"a__echo","arguments":{}}`)
		begin := time.Now()
		c.call("a__echo", "{}")
		if took := time.Since(begin); took != 6*time.Second {
			t.Errorf("the next call waited %v, want the remaining 6s", took)
		}
		if n := h.sim.Count().Created - made.Created; n != 1 {
			t.Errorf("%d starts, want 1", n)
		}
	})
}

// Servers number their requests as they like; each answer finds its way back.
func TestServersAskTheClient(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := open(t, []string{"a", "b"}, nil, nil)
		defer h.stop()
		h.fill()
		c := h.client("t", "", allCaps)
		var mu sync.Mutex
		ids := map[string]bool{}
		c.answer = func(m wire.Message) wire.Reply {
			mu.Lock()
			ids[string(m.ID)] = true
			mu.Unlock()
			time.Sleep(time.Second)
			if m.Method == "roots/list" {
				return wire.Reply{Error: []byte(`{"code":-1,"message":"no roots"}`)}
			}
			return wire.Reply{Result: []byte(`{"who":` + string(wire.Get(m.Params, "who")) + `}`)}
		}
		var work sync.WaitGroup
		for _, s := range []string{"a", "b"} {
			for i := range 3 {
				work.Go(func() {
					who := fmt.Sprintf("%s%d", s, i)
					got := c.call(s+"__ask", fmt.Sprintf(`{"method":"sampling/createMessage","params":{"who":%q}}`, who))
					if want := fmt.Sprintf(`{"who":"%s"}`, who); got != want {
						t.Errorf("%s was answered %s, want %s", who, got, want)
					}
				})
			}
		}
		work.Wait()
		if len(ids) != 6 {
			t.Errorf("the client saw the ids %v, want six", ids)
		}
		if got := c.call("a__ask", `{"method":"roots/list"}`); !strings.Contains(got, "no roots") {
			t.Errorf("the client's error arrived as %s", got)
		}
	})
}

func TestNotificationsReachTheirSessionAlone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := open(t, []string{"a"}, nil, nil)
		defer h.stop()
		h.fill()
		one, two := h.client("t", "", "{}"), h.client("t", "", "{}")
		two.call("a__echo", "{}")
		_, told := one.do(t.Context(), "tools/call", `{"name":"a__emit","arguments":{"method":"notifications/message","params":{"level":"info","data":"x"}}}`)
		if len(told) != 1 || string(told[0].Params) != `{"level":"info","data":"x"}` {
			t.Errorf("with its call came %v", told)
		}
		if got := two.background(); len(got) != 0 {
			t.Errorf("the other session was told %v", got)
		}
	})
}

func TestACrashFailsItsCallAndTheNextGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := open(t, []string{"a"}, func(*sandbox.Spec, int) sim.Life { return sim.Life{LastWords: "out of cheese"} }, nil)
		defer h.stop()
		h.fill()
		c := h.client("t", "", "{}")
		c.call("a__echo", "{}")
		time.Sleep(10 * time.Second) // no crash right after the start
		begin := time.Now()
		got := c.call("a__crash", "{}")
		for _, want := range []string{`"a"`, "died", "exit status 2", "out of cheese"} {
			if !strings.Contains(got, want) {
				t.Errorf("the error %q does not say %q", got, want)
			}
		}
		if took := time.Since(begin); took > time.Second {
			t.Errorf("it took %v to fail", took)
		}
		r, told := c.do(t.Context(), "tools/call", `{"name":"a__count","arguments":{}}`)
		if text(r) != "1" {
			t.Errorf("the next call: %s, want a new sandbox", text(r))
		}
		if len(told) != 1 || !strings.Contains(string(told[0].Params), "started anew") {
			t.Errorf("told %v, want that the state is gone", told)
		}
	})
}

func TestCallTimeoutAndProgressExtendsIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := open(t, []string{"a"}, func(*sandbox.Spec, int) sim.Life {
			return sim.Life{Serve: func(ctx context.Context, p *sim.Peer, m wire.Message) wire.Reply {
				if wire.Str(m.Params, "name") == "whoami" {
					<-ctx.Done()
				}
				return sim.Tools(ctx, p, m)
			}}
		}, func(s *session.Server) { s.CallTimeout = 5 * time.Second })
		defer h.stop()
		h.fill()
		c := h.client("t", "", "{}")
		begin := time.Now()
		got := c.call("a__whoami", "{}")
		if took := time.Since(begin); took != 5*time.Second || !strings.Contains(got, "call_timeout") || !strings.Contains(got, `"a"`) {
			t.Errorf("after %v: %s", took, got)
		}
		if r, _ := c.do(t.Context(), "tools/call", `{"name":"a__sleep","arguments":{"ms":20000},"_meta":{"progressToken":1}}`); text(r) != "slept" {
			t.Errorf("a call with progress every 2 s ended with %s", text(r))
		}
	})
}

// One server that hangs and one that fails delay nobody, and show up as their
// own errors.
func TestABrokenServerEmptiesNobodysList(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := open(t, []string{"hangs", "good", "fails"}, func(s *sandbox.Spec, _ int) sim.Life {
			switch s.Server {
			case "hangs":
				return sim.Life{Mute: true}
			case "fails":
				return sim.Life{Err: errors.New("exec: no such file")}
			}
			return sim.Life{Create: time.Second}
		}, nil)
		defer h.stop()
		c := h.client("t", "", "{}")
		begin := time.Now()
		r, _ := c.do(t.Context(), "tools/list", "{}")
		if took := time.Since(begin); took > 4500*time.Millisecond {
			t.Errorf("the first list took %v: clients give up after 5s", took)
		}
		tools, _ := wire.Elements(wire.Get(r.Result, "tools"))
		if len(tools) != 7 {
			t.Errorf("%d tools, want the 7 of the good one", len(tools))
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		begin = time.Now()
		c.do(t.Context(), "tools/list", "{}")
		if took := time.Since(begin); took != 0 {
			t.Errorf("a later list took %v: it waits for a server that is known to fail", took)
		}
		if got := c.call("good__echo", "{}"); got != "{}" {
			t.Errorf("the good one answers %s", got)
		}
		problems := map[string]string{}
		for _, e := range h.hub.Entries() {
			if p := e.Problem(); p != "" {
				problems[e.Key.Server] = p
			}
		}
		if !strings.Contains(problems["fails"], "no such file") || problems["hangs"] == "" || problems["good"] != "" {
			t.Errorf("problems %v", problems)
		}
	})
}

// A tool that is added at run time is listed, and its client is told once.
func TestListChanged(t *testing.T) {
	bubble(t, func(t *testing.T) {
		more := `{"tools":[{"name":"added","inputSchema":{"type":"object"}}]}`
		h := open(t, []string{"a"}, func(*sandbox.Spec, int) sim.Life {
			var mu sync.Mutex
			added := false
			return sim.Life{Serve: func(ctx context.Context, p *sim.Peer, m wire.Message) wire.Reply {
				mu.Lock()
				defer mu.Unlock()
				switch {
				case wire.Str(m.Params, "name") == "add":
					added = true
					p.Notify("notifications/tools/list_changed", nil)
					p.Notify("notifications/tools/list_changed", nil)
					return sim.Text("added")
				case m.Method == "tools/list" && added:
					return wire.Reply{Result: []byte(more)}
				case m.Method == "tools/list":
					return wire.Reply{Result: []byte(`{"tools":[{"name":"add","inputSchema":{"type":"object"}}]}`)}
				}
				return wire.Fail(wire.CodeMethodNotFound, "no")
			}}
		}, nil)
		defer h.stop()
		h.fill()
		mine, same, other := h.client("t", "", "{}"), h.client("t", "", "{}"), h.client("u", "", "{}")
		for _, c := range []*client{mine, same, other} {
			c.do(t.Context(), "tools/list", "{}")
		}
		mine.call("a__add", "{}")
		synctest.Wait()
		time.Sleep(time.Second)
		synctest.Wait()
		r, _ := mine.do(t.Context(), "tools/list", "{}")
		if !strings.Contains(string(r.Result), `"a__added"`) {
			t.Errorf("the list is %s", r.Result)
		}
		if got, want := mine.background(), []string{"notifications/tools/list_changed"}; !slices.Equal(got, want) {
			t.Errorf("told %v, want %v", got, want)
		}
		r, _ = other.do(t.Context(), "tools/list", "{}")
		if got := other.background(); len(got) != 0 || strings.Contains(string(r.Result), "added") {
			t.Errorf("another tenant was told %v and sees %s", got, r.Result)
		}
	})
}

func TestSubscriptionsSurviveARestart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var mu sync.Mutex
		var subscribed []string
		h := open(t, []string{"a"}, func(*sandbox.Spec, int) sim.Life {
			return sim.Life{
				Init: []byte(`{"protocolVersion":"2025-06-18","capabilities":{"tools":{},"resources":{"subscribe":true}},"serverInfo":{"name":"x","version":"1"},"instructions":"be kind"}`),
				Serve: func(ctx context.Context, p *sim.Peer, m wire.Message) wire.Reply {
					switch m.Method {
					case "resources/list":
						return wire.Reply{Result: []byte(`{"resources":[{"uri":"demo://1","name":"one"}]}`)}
					case "resources/templates/list":
						return wire.Reply{Result: []byte(`{"resourceTemplates":[]}`)}
					case "resources/subscribe":
						mu.Lock()
						subscribed = append(subscribed, p.ID()+wire.Str(m.Params, "uri"))
						mu.Unlock()
						return wire.Reply{Result: []byte("{}")}
					case "resources/read":
						return wire.Reply{Result: []byte(`{"contents":[{"uri":"demo://1","text":"1"}]}`)}
					}
					return sim.Tools(ctx, p, m)
				},
			}
		}, nil)
		defer h.stop()
		h.fill()
		c := h.client("t", "", "{}")
		if r, _ := c.do(t.Context(), "initialize", "{}"); !strings.Contains(wire.Str(r.Result, "instructions"), "be kind") {
			t.Errorf("initialize says %s, want the server's instructions", r.Result)
		}
		if r, _ := c.do(t.Context(), "resources/subscribe", `{"uri":"demo://1"}`); r.Error != nil {
			t.Fatalf("subscribe: %s", r.Error)
		}
		c.call("a__emit", `{"method":"notifications/resources/updated","params":{"uri":"demo://1"}}`)
		synctest.Wait()
		if got, want := c.background(), []string{"notifications/resources/updated"}; !slices.Equal(got, want) {
			t.Errorf("told %v, want %v", got, want)
		}
		time.Sleep(10 * time.Minute) // it is stopped while idle
		synctest.Wait()
		if live := h.sim.Live(); len(live) != 0 {
			t.Fatalf("alive while idle: %v", live)
		}
		if r, _ := c.do(t.Context(), "resources/read", `{"uri":"demo://1"}`); r.Error != nil {
			t.Errorf("read: %s", r.Error)
		}
		mu.Lock()
		defer mu.Unlock()
		if len(subscribed) != 2 || subscribed[0] == subscribed[1] {
			t.Errorf("subscriptions %v, want one in each sandbox", subscribed)
		}
	})
}

func TestSharedServers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := open(t, []string{"a"}, nil, func(s *session.Server) { s.Spec.Scope = config.Shared })
		defer h.stop()
		h.fill()
		one, two := h.client("t", "", allCaps), h.client("u", "", allCaps)
		if a, b := one.call("a__whoami", "{}"), two.call("a__whoami", "{}"); a != b {
			t.Errorf("sandboxes %s and %s, want one", a, b)
		}
		if got := one.call("a__ask", `{"method":"sampling/createMessage","params":{}}`); !strings.Contains(got, "shared") {
			t.Errorf("a shared server asked, and got %s", got)
		}
		// Both are calling: nobody can tell whose message it is.
		var work sync.WaitGroup
		work.Go(func() { two.call("a__sleep", `{"ms":1000}`) })
		synctest.Wait()
		_, told := one.do(t.Context(), "tools/call", `{"name":"a__emit","arguments":{"method":"notifications/message","params":{"level":"info","data":"x"}}}`)
		work.Wait()
		if len(told)+len(two.background())+len(one.background()) != 0 {
			t.Errorf("told %v, %v, %v", told, one.background(), two.background())
		}
	})
}

func TestUnknownNamesAndUnreadyServers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := open(t, []string{"a", "broken"}, nil, func(s *session.Server) {
			if s.Name == "broken" {
				s.Spec, s.Unready = nil, "its package is not installed: specbox servers update broken"
			}
		})
		defer h.stop()
		_ = h.hub.Fill(t.Context(), nil, false, nil)
		c := h.client("t", "", "{}")
		if got := c.call("nowhere__x", "{}"); !strings.Contains(got, `unknown tool "nowhere__x"`) {
			t.Errorf("an unknown tool: %s", got)
		}
		if r, _ := c.do(t.Context(), "no/such", "{}"); !strings.Contains(string(r.Error), "-32601") {
			t.Errorf("an unknown method: %s", r.Error)
		}
		if _, err := h.hub.Open(session.Opening{Tenant: "t", Session: "x", Server: "zzz"}, c); err == nil || !strings.Contains(err.Error(), "a, broken") {
			t.Errorf("an unknown endpoint: %v, want the names that exist", err)
		}
		only := h.client("t", "broken", "{}")
		if got := only.call("x", "{}"); !strings.Contains(got, "servers update broken") {
			t.Errorf("a server that is not ready: %s", got)
		}
	})
}

// At its own endpoint a server keeps its names, its words, and methods that are
// not known to SpecBox.
func TestOneServerEndpoint(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := open(t, []string{"a", "b"}, func(*sandbox.Spec, int) sim.Life {
			return sim.Life{Serve: func(ctx context.Context, p *sim.Peer, m wire.Message) wire.Reply {
				if m.Method == "tasks/list" {
					return wire.Reply{Result: []byte(`{"tasks":[]}`)}
				}
				return sim.Tools(ctx, p, m)
			}}
		}, nil)
		defer h.stop()
		h.fill()
		c := h.client("t", "a", "{}")
		r, _ := c.do(t.Context(), "tools/list", "{}")
		if got, want := string(r.Result), sim.ToolsList; got != want {
			t.Errorf("list %s, want the server's own", got)
		}
		if r, _ := c.do(t.Context(), "initialize", "{}"); wire.Str(r.Result, "serverInfo", "name") != "sim" {
			t.Errorf("initialize: %s, want the server's own info", r.Result)
		}
		if r, _ := c.do(t.Context(), "tasks/list", "{}"); string(r.Result) != `{"tasks":[]}` {
			t.Errorf("a method of the server's own: %s %s", r.Result, r.Error)
		}
	})
}

// Each tenant and session may do what it likes at once; the laws hold.
func TestManySessionsAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := open(t, []string{"a", "b", "c"}, seconds(1), nil)
		defer h.stop()
		h.fill()
		var work sync.WaitGroup
		for i := range 10 {
			c := h.client(fmt.Sprint("t", i%3), "", "{}")
			work.Go(func() {
				defer c.Close()
				var calls sync.WaitGroup
				for j := range 50 {
					calls.Go(func() {
						arg := fmt.Sprintf(`{"i":%d,"j":%d}`, i, j)
						if got := c.call([]string{"a", "b", "c"}[j%3]+"__echo", arg); got != arg {
							t.Errorf("session %d call %d: %s", i, j, got)
						}
					})
				}
				calls.Wait()
			})
		}
		work.Wait()
		time.Sleep(time.Minute)
		synctest.Wait()
		if live := h.sim.Live(); len(live) != 0 {
			t.Errorf("alive after all sessions closed: %v", live)
		}
	})
}

// The client's trace goes on through the call to the server.
func TestTraceContextIsContinued(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := open(t, []string{"a"}, func(*sandbox.Spec, int) sim.Life {
			return sim.Life{Serve: func(ctx context.Context, p *sim.Peer, m wire.Message) wire.Reply {
				if m.Method == "tools/call" {
					return sim.Text(string(wire.Get(m.Params, "_meta")))
				}
				return sim.Tools(ctx, p, m)
			}}
		}, nil)
		defer h.stop()
		h.fill()
		c := h.client("t", "", "{}")
		const id = "4bf92f3577b34da6a3ce929d0e0e4736"
		seen := func(parent string) string {
			r, _ := c.do(t.Context(), "tools/call", `{"name":"a__whoami","_meta":{"traceparent":"`+parent+`","tracestate":"k=v","baggage":"b=1"}}`)
			return text(r)
		}
		got := seen("00-" + id + "-00f067aa0ba902b7-01")
		events := h.log.Events()
		e := events[len(events)-1]
		if want := `{"traceparent":"00-` + id + `-` + e.SpanID + `-01","tracestate":"k=v","baggage":"b=1"}`; got != want || e.TraceID != id || e.ParentID != "00f067aa0ba902b7" || e.SpanID == e.ParentID {
			t.Errorf("the server saw %s, want %s; event %+v", got, want, e)
		}
		for _, odd := range []string{"", "00-" + id, "01-" + id + "-00f067aa0ba902b7-01", "00-" + strings.Repeat("0", 32) + "-00f067aa0ba902b7-01", "00-" + strings.ToUpper(id) + "-00f067aa0ba902b7-01"} {
			if got := seen(odd); !strings.Contains(got, `"traceparent":"`+odd+`"`) {
				t.Errorf("a trace that is not understood, %q, became %s", odd, got)
			}
		}
	})
}

// A task that a call has begun is asked about at the server that has it.
func TestTasksPassThrough(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := open(t, []string{"a", "b"}, func(spec *sandbox.Spec, _ int) sim.Life {
			return sim.Life{
				Init: []byte(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"tasks":{"list":{},"requests":{"tools":{"call":{}}}}},"serverInfo":{"name":"x","version":"1"}}`),
				Serve: func(ctx context.Context, p *sim.Peer, m wire.Message) wire.Reply {
					switch m.Method {
					case "tools/call":
						return wire.Reply{Result: []byte(`{"task":{"taskId":"of-` + spec.Server + `","status":"working"}}`)}
					case "tasks/get":
						return wire.Reply{Result: []byte(`{"taskId":` + string(wire.Get(m.Params, "taskId")) + `,"server":"` + spec.Server + `","status":"completed"}`)}
					}
					return sim.Tools(ctx, p, m)
				},
			}
		}, nil)
		defer h.stop()
		h.fill()
		c := h.client("t", "", "{}")
		if r, _ := c.do(t.Context(), "initialize", "{}"); wire.Get(r.Result, "capabilities", "tasks", "requests") == nil {
			t.Errorf("initialize declares %s, want tasks", wire.Get(r.Result, "capabilities"))
		}
		for _, server := range []string{"b", "a"} {
			c.do(t.Context(), "tools/call", `{"name":"`+server+`__echo","task":{"ttl":1000}}`)
		}
		for _, server := range []string{"a", "b"} {
			r, _ := c.do(t.Context(), "tasks/get", `{"taskId":"of-`+server+`"}`)
			if got, want := string(r.Result), `{"taskId":"of-`+server+`","server":"`+server+`","status":"completed"}`; got != want {
				t.Errorf("tasks/get: %s %s, want %s", got, r.Error, want)
			}
		}
		if r, _ := c.do(t.Context(), "tasks/get", `{"taskId":"nobody's"}`); !strings.Contains(string(r.Error), "unknown task") {
			t.Errorf("a task that nobody has: %s %s", r.Result, r.Error)
		}
	})
}
