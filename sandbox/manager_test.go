package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/sandbox/sim"
	"github.com/specbox/specbox/trace"
	"github.com/specbox/specbox/wire"
)

const (
	cold  = 400 * time.Millisecond // until a simulated process runs
	shake = 100 * time.Millisecond // until it has answered initialize
	idle  = time.Minute
)

// lives is the usual life of a test's servers.
func lives(change func(spec *sandbox.Spec, n int, l *sim.Life)) *sim.Backend {
	return &sim.Backend{Life: func(spec *sandbox.Spec, n int) sim.Life {
		l := sim.Life{Create: cold, Handshake: shake}
		if change != nil {
			change(spec, n, &l)
		}
		return l
	}}
}

func spec(server string) *sandbox.Spec {
	return &sandbox.Spec{
		Server: server, Hash: "h", Isolation: config.Process, StartTimeout: 10 * time.Second, IdleTimeout: idle, StopGrace: time.Second,
	}
}

func demand(tenant, session, server string) sandbox.Demand {
	return sandbox.Demand{Tenant: tenant, Session: session, Spec: spec(server)}
}

// A house is a manager that runs on a simulated backend, in a bubble.
type house struct {
	t *testing.T
	*sandbox.Manager
	sim   *sim.Backend
	trace *trace.Log
	stop  func() // ends Run and waits for it
}

// bubble runs f with a manager in a bubble; then it ends the manager and
// checks that nothing is alive.
func bubble(t *testing.T, b *sim.Backend, cfg sandbox.Config, f func(t *testing.T, h *house)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := &house{t: t, sim: b, trace: &trace.Log{}}
		cfg.Backends = map[config.Isolation]sandbox.Backend{config.Process: b}
		cfg.Recorder = h.trace
		m, err := sandbox.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		h.Manager = m
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := m.Run(ctx); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
		h.stop = func() {
			cancel()
			running.Wait()
		}
		f(t, h)
		h.stop()
		if c := b.Count(); c.Live != 0 {
			t.Errorf("%d instances outlive Run", c.Live)
		}
		if left := m.List(); len(left) != 0 {
			t.Errorf("sandboxes outlive Run: %+v", left)
		}
	})
}

func (h *house) acquire(d sandbox.Demand) *sandbox.Lease {
	h.t.Helper()
	l, err := h.Acquire(h.t.Context(), d)
	if err != nil {
		h.t.Fatalf("Acquire for %s/%s/%s: %v", d.Tenant, d.Session, d.Spec.Server, err)
	}
	return l
}

// call calls a tool and returns its text.
func (h *house) call(l *sandbox.Lease, tool, args string) (string, error) {
	r, err := l.Conn().Call(h.t.Context(), "tools/call", []byte(`{"name":"`+tool+`","arguments":`+args+`}`))
	if err != nil {
		return "", l.Explain(err)
	}
	if r.Error != nil {
		return "", r.Err()
	}
	e, _ := wire.Elements(wire.Get(r.Result, "content"))
	return wire.Str(e[0], "text"), nil
}

// events returns the events of a kind, as "server detail err".
func (h *house) events(kind trace.Kind) []string {
	var out []string
	for _, e := range h.trace.Events() {
		if e.Kind == kind {
			out = append(out, strings.TrimSpace(e.Server+" "+e.Detail+" "+e.Err))
		}
	}
	return out
}

func (h *house) want(what string, got, want any) {
	h.t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		h.t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func TestStartedOnceHoweverManyWait(t *testing.T) {
	bubble(t, lives(nil), sandbox.Config{}, func(t *testing.T, h *house) {
		var calls sync.WaitGroup
		var mu sync.Mutex
		outcomes, fresh := map[trace.Outcome]int{}, 0
		for range 50 {
			calls.Go(func() {
				l := h.acquire(demand("t", "s", "a"))
				defer l.Release()
				if _, err := h.call(l, "count", "{}"); err != nil {
					t.Error(err)
				}
				h.want("provision", l.Provision(), cold+shake)
				mu.Lock()
				defer mu.Unlock()
				outcomes[l.Outcome()]++
				if l.Fresh() {
					fresh++
				}
			})
		}
		calls.Wait()
		h.want("instances", h.sim.Count().Created, 1)
		h.want("outcomes", outcomes, map[trace.Outcome]int{trace.Cold: 1, trace.Late: 49})
		h.want("fresh leases", fresh, 1)
		l := h.acquire(demand("t", "s", "a"))
		defer l.Release()
		h.want("outcome of the next", l.Outcome(), trace.Warm)
		h.want("its provision", l.Provision(), time.Duration(0))
		n, err := h.call(l, "count", "{}")
		h.want("calls that the one server saw", fmt.Sprint(n, err), "51<nil>")
		h.want("start events", h.events(trace.Start), []string{"a"})
		if e := h.trace.Events()[0]; e.Provision != cold+shake || e.Cause != trace.Demand || e.Backend != "process" || e.Tenant != "t" || e.Session != "s" {
			t.Errorf("start event %+v", e)
		}
	})
}

func TestCallerThatLeavesDoesNotEndTheStart(t *testing.T) {
	bubble(t, lives(nil), sandbox.Config{}, func(t *testing.T, h *house) {
		ctx, cancel := context.WithTimeout(t.Context(), cold/2)
		defer cancel()
		if _, err := h.Acquire(ctx, demand("t", "s", "a")); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Acquire: %v, want the end of its ctx", err)
		}
		l := h.acquire(demand("t", "s", "a"))
		h.want("outcome", l.Outcome(), trace.Late)
		h.want("provision", l.Provision(), shake+cold/2)
		h.want("instances", h.sim.Count().Created, 1)
		h.want("fresh", l.Fresh(), true)
		l.Release()
		// One that all have left becomes idle, and is stopped like others.
		if _, err := h.Acquire(ctx, demand("t", "s", "b")); err == nil {
			t.Error("Acquire with an ended ctx has no error")
		}
		ctx, cancel = context.WithTimeout(t.Context(), cold/2)
		defer cancel()
		_, _ = h.Acquire(ctx, demand("t", "s", "b"))
		time.Sleep(cold + shake + idle)
		synctest.Wait()
		h.want("stops", h.events(trace.Stop), []string{"a idle", "b idle"})
	})
}

// A call that nobody else waits with takes its start along while that has not
// begun.
func TestAbandonedStartInTheQueueNeverBegins(t *testing.T) {
	bubble(t, lives(nil), sandbox.Config{Starts: 1}, func(t *testing.T, h *house) {
		var calls sync.WaitGroup
		calls.Go(func() { h.acquire(demand("t", "s", "a")).Release() })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), cold/2)
		defer cancel()
		if _, err := h.Acquire(ctx, demand("t", "s", "b")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Acquire: %v", err)
		}
		calls.Wait()
		time.Sleep(idle / 2)
		h.want("starts", h.events(trace.Start), []string{"a"})
		h.want("live", h.Stats().Live, 1)
	})
}

func TestOneLeaseOneHolder(t *testing.T) {
	for _, tt := range []struct {
		scope config.Scope
		want  string // which of four holders share a sandbox
	}{
		{config.PerSession, "0 1 2 3"},
		{config.PerTenant, "0 0 2 2"},
		{config.Shared, "0 0 0 0"},
	} {
		bubble(t, lives(nil), sandbox.Config{}, func(t *testing.T, h *house) {
			first, got := map[string]int{}, []string{}
			for i, holder := range [][2]string{{"t", "1"}, {"t", "2"}, {"u", "1"}, {"u", "2"}} {
				d := demand(holder[0], holder[1], "a")
				d.Spec.Scope = tt.scope
				l := h.acquire(d)
				id, err := h.call(l, "whoami", "{}")
				if err != nil || id != l.ID() {
					t.Errorf("whoami: %q, %v, want %q", id, err, l.ID())
				}
				if _, ok := first[id]; !ok {
					first[id] = i
				}
				got = append(got, fmt.Sprint(first[id]))
				l.Release()
			}
			h.want("sharing of scope "+string(tt.scope), strings.Join(got, " "), tt.want)
		})
	}
}

// Another configuration is another sandbox; so is another protocol version,
// where sessions share one.
func TestConfigurationAndVersionTellSandboxesApart(t *testing.T) {
	bubble(t, lives(nil), sandbox.Config{}, func(t *testing.T, h *house) {
		d := demand("t", "s", "a")
		d.Spec.Scope = config.PerTenant
		ids := map[string]bool{}
		for _, version := range []string{"2025-06-18", "2025-11-25", ""} {
			for _, hash := range []string{"h1", "h2"} {
				d.Spec.Hash, d.Client.Version = hash, version
				l := h.acquire(d)
				ids[l.ID()] = true
				l.Release()
				sp := *d.Spec
				d.Spec = &sp
			}
		}
		h.want("sandboxes", len(ids), 4)
	})
}

// What the handshake presents is the client's of the session, and nobody's
// where sessions share a sandbox.
func TestHandshakePresentsTheClient(t *testing.T) {
	var mu sync.Mutex
	inits := map[string]string{}
	b := &sim.Backend{Life: func(spec *sandbox.Spec, _ int) sim.Life {
		return sim.Life{Init: []byte(`{"protocolVersion":"2024-11-05","n":1.0}`), Serve: func(_ context.Context, _ *sim.Peer, m wire.Message) wire.Reply {
			return wire.Reply{Result: []byte("{}")}
		}}
	}}
	rec := recorder{b, func(server string, raw []byte) {
		if m, _ := wire.Parse(raw); m.Method == "initialize" {
			mu.Lock()
			defer mu.Unlock()
			inits[server] = string(m.Params)
		}
	}}
	synctest.Test(t, func(t *testing.T) {
		m, err := sandbox.New(sandbox.Config{Backends: map[config.Isolation]sandbox.Backend{config.Process: rec}, Info: []byte(`{"name":"house"}`)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = m.Run(ctx) })
		client := sandbox.Client{Version: "2025-06-18", Capabilities: []byte(`{"sampling":{},"x":1.50}`), Info: []byte(`{"name":"agent"}`)}
		own, shared := spec("own"), spec("shared")
		shared.Scope = config.PerTenant
		for _, s := range []*sandbox.Spec{own, shared} {
			l, err := m.Acquire(t.Context(), sandbox.Demand{Tenant: "t", Session: "s", Spec: s, Client: client})
			if err != nil {
				t.Fatal(err)
			}
			if got, want := string(l.Init()), `{"protocolVersion":"2024-11-05","n":1.0}`; got != want {
				t.Errorf("Init of %s is %s, want %s", s.Server, got, want)
			}
			l.Release()
		}
		cancel()
		running.Wait()
	})
	for server, want := range map[string]string{
		"own":    `{"protocolVersion":"2025-06-18","capabilities":{"sampling":{},"x":1.50},"clientInfo":{"name":"agent"}}`,
		"shared": `{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"house"}}`,
	} {
		if inits[server] != want {
			t.Errorf("initialize of %s has %s, want %s", server, inits[server], want)
		}
	}
}

func TestIdleSandboxesAreStopped(t *testing.T) {
	bubble(t, lives(func(_ *sandbox.Spec, _ int, l *sim.Life) {
		l.Memory = func(age time.Duration, _ int) int64 { return int64(age / time.Second) }
	}), sandbox.Config{}, func(t *testing.T, h *house) {
		l := h.acquire(demand("t", "s", "a"))
		time.Sleep(10 * idle)
		synctest.Wait()
		h.want("alive while leased", len(h.sim.Live()), 1)
		l.Release()
		l.Release() // twice is fine
		time.Sleep(idle - time.Nanosecond)
		synctest.Wait()
		h.want("alive a moment before", len(h.sim.Live()), 1)
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		h.want("alive after", len(h.sim.Live()), 0)
		h.want("stops", h.events(trace.Stop), []string{"a idle"})
		events := h.trace.Events()
		h.want("peak in the event", events[len(events)-1].Memory, 660)
		h.want("outcome of the next", h.acquire(demand("t", "s", "a")).Outcome(), trace.Cold)
	})
}

func TestDeadServerFailsItsCallsAndTheNextIsNew(t *testing.T) {
	bubble(t, lives(func(_ *sandbox.Spec, _ int, l *sim.Life) { l.LastWords = "out of \x1b luck\nreally" }), sandbox.Config{}, func(t *testing.T, h *house) {
		l := h.acquire(demand("t", "s", "a"))
		var calls sync.WaitGroup
		begun := time.Now()
		for range 3 {
			calls.Go(func() {
				_, err := h.call(l, "sleep", `{"ms":60000}`)
				var lost *sandbox.LostError
				if !errors.As(err, &lost) || lost.Reason != sandbox.ReasonCrash || time.Since(begun) > 2*time.Second {
					t.Fatalf("call: %v after %v, want a LostError at once", err, time.Since(begun))
				}
				h.want("error", err, `server "a" died during the call; it ended: killed by signal 9; its last words: out of `+"\x1b"+` luck | really; the next call starts it anew`)
			})
		}
		time.Sleep(time.Second)
		h.sim.Kill(l.ID())
		calls.Wait()
		next := h.acquire(demand("t", "s", "a"))
		if next.ID() == l.ID() {
			t.Error("the dead sandbox was lent again")
		}
		next.Release()
		l.Release()
		h.want("stops", h.events(trace.Stop), []string{"a crash killed by signal 9"})
		lines := h.Logs("t", "a")
		if len(lines) != 2 || lines[1].Text != "really" || lines[1].Sandbox != l.ID() {
			t.Errorf("Logs: %+v", lines)
		}
		h.want("logs of another tenant", len(h.Logs("u", "a")), 0)
	})
}

// An error that has nothing to do with the connection is not explained away.
func TestExplainLeavesOtherErrorsAlone(t *testing.T) {
	bubble(t, lives(nil), sandbox.Config{}, func(t *testing.T, h *house) {
		l := h.acquire(demand("t", "s", "a"))
		other := errors.New("other")
		h.want("of a live server", l.Explain(other), other)
		h.sim.Kill(l.ID())
		synctest.Wait()
		h.want("of a cancelled call", l.Explain(context.Canceled), context.Canceled)
		h.want("nil", l.Explain(nil), nil)
		if err := l.Explain(l.Conn().Err()); !errors.As(err, new(*sandbox.LostError)) {
			t.Errorf("of the connection: %v", err)
		}
		l.Release()
	})
}

func TestFailingStartsBackOff(t *testing.T) {
	failing := true
	bubble(t, lives(func(_ *sandbox.Spec, _ int, l *sim.Life) {
		if failing {
			l.Err, l.LastWords = errors.New("exec: no such file"), "cannot find module"
		}
	}), sandbox.Config{}, func(t *testing.T, h *house) {
		acquire := func() (time.Duration, *sandbox.StartError) {
			begun := time.Now()
			l, err := h.Acquire(t.Context(), demand("t", "s", "a"))
			var e *sandbox.StartError
			if errors.As(err, &e) {
				return time.Since(begun), e
			}
			l.Release()
			return time.Since(begun), nil
		}
		for i, wait := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
			took, e := acquire()
			if e == nil || took != cold || e.Tries != i+1 || time.Until(e.Retry) != wait*time.Second {
				t.Fatalf("attempt %d: %v after %v, want an error after %v and a wait of %d s", i+1, e, took, cold, wait)
			}
			created := h.sim.Count().Failed
			time.Sleep(wait*time.Second - time.Millisecond)
			took, e = acquire()
			if e == nil || took != 0 || h.sim.Count().Failed != created {
				t.Fatalf("during the back-off: %v after %v, want the error at once", e, took)
			}
			time.Sleep(time.Millisecond)
		}
		// Another tenant is not held up by it, nor is another configuration.
		if _, err := h.Acquire(t.Context(), demand("u", "s", "a")); err == nil {
			t.Error("it works for another tenant")
		}
		failing = false
		if _, e := acquire(); e != nil {
			t.Errorf("after the repair: %v", e)
		}
		h.EndSession("t", "s")
		synctest.Wait()
		failing = true
		d := demand("t", "s2", "a")
		_, err := h.Acquire(t.Context(), d)
		var e *sandbox.StartError
		if !errors.As(err, &e) || e.Tries != 1 {
			t.Errorf("a success did not reset the count: %v", err)
		}
		want := `server "a" could not be started: exec: no such file; its last words: cannot find module; ` +
			"this was one attempt: it is tried again in 1s at the earliest; `specbox logs a` shows more"
		h.want("error", err, want)
		if events := h.events(trace.Start); !strings.Contains(events[0], "no such file") {
			t.Errorf("start events %q", events)
		}
	})
}

func TestCrashesRightAfterTheStartBackOff(t *testing.T) {
	bubble(t, lives(func(_ *sandbox.Spec, _ int, l *sim.Life) { l.Dies, l.LastWords = shake+time.Second, "no config" }), sandbox.Config{}, func(t *testing.T, h *house) {
		for i := range 3 {
			l := h.acquire(demand("t", "s", "a"))
			if _, err := h.call(l, "sleep", `{"ms":60000}`); !errors.As(err, new(*sandbox.LostError)) {
				t.Fatalf("call %d: %v", i, err)
			}
			l.Release()
		}
		_, err := h.Acquire(t.Context(), demand("t", "s", "a"))
		var e *sandbox.StartError
		if !errors.As(err, &e) || !slices.Equal(e.Stderr, []string{"no config"}) {
			t.Fatalf("Acquire: %v, want a StartError with the last words", err)
		}
		time.Sleep(time.Until(e.Retry))
		l := h.acquire(demand("t", "s", "a"))
		if _, err := h.call(l, "count", "{}"); err != nil {
			t.Fatal(err)
		}
		l.Release()             // it has answered
		time.Sleep(time.Second) // and dies
		synctest.Wait()
		for range 2 {
			l := h.acquire(demand("t", "s", "a")) // the count begins anew
			_, _ = h.call(l, "sleep", `{"ms":60000}`)
			l.Release()
		}
		h.acquire(demand("t", "s", "a")).Release()
	})
}

func TestHandshakeIsBounded(t *testing.T) {
	for name, life := range map[string]sim.Life{
		"mute": {Mute: true, Close: time.Second},
		"deaf": {Deaf: true, Close: time.Second},
		"slow": {Create: time.Hour},
	} {
		bubble(t, lives(func(_ *sandbox.Spec, _ int, l *sim.Life) { *l = life }), sandbox.Config{}, func(t *testing.T, h *house) {
			begun := time.Now()
			_, err := h.Acquire(t.Context(), demand("t", "s", "a"))
			if name == "deaf" && err == nil {
				t.Error("a deaf server was started")
			}
			if !errors.As(err, new(*sandbox.StartError)) || !strings.Contains(err.Error(), "not ready within 10s") {
				t.Errorf("%s: %v", name, err)
			}
			if took := time.Since(begun); took > 10*time.Second+300*time.Millisecond {
				t.Errorf("%s: took %v", name, took)
			}
		})
	}
	for init, want := range map[string]string{
		`[]`: "without a protocolVersion",
		`{}`: "without a protocolVersion",
	} {
		bubble(t, lives(func(_ *sandbox.Spec, _ int, l *sim.Life) { l.Init = []byte(init) }), sandbox.Config{}, func(t *testing.T, h *house) {
			if _, err := h.Acquire(t.Context(), demand("t", "s", "a")); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("initialize answered with %s: %v", init, err)
			}
		})
	}
}

// A server that dies during its start says how in the error.
func TestDeathDuringTheStartIsExplained(t *testing.T) {
	bubble(t, lives(func(_ *sandbox.Spec, _ int, l *sim.Life) {
		l.Dies, l.Handshake, l.LastWords, l.Exit = time.Second, time.Hour, "missing API_KEY", "exit status 78"
	}), sandbox.Config{}, func(t *testing.T, h *house) {
		_, err := h.Acquire(t.Context(), demand("t", "s", "a"))
		var e *sandbox.StartError
		if !errors.As(err, &e) || e.Exit != "exit status 78" || !slices.Equal(e.Stderr, []string{"missing API_KEY"}) {
			t.Errorf("Acquire: %+v", err)
		}
	})
}

func TestStartTimeoutDoesNotCountTheQueue(t *testing.T) {
	bubble(t, lives(func(_ *sandbox.Spec, _ int, l *sim.Life) { l.Create = 4 * time.Second }), sandbox.Config{Starts: 1}, func(t *testing.T, h *house) {
		var calls sync.WaitGroup
		for i := range 6 { // the last waits 20 s, its StartTimeout is 10 s
			calls.Go(func() { h.acquire(demand("t", "s", fmt.Sprint(i))).Release() })
		}
		calls.Wait()
	})
}

// One server that hangs in its start does not hold up the others' starts.
func TestHangingStartGivesItsSlotAway(t *testing.T) {
	bubble(t, lives(func(spec *sandbox.Spec, _ int, l *sim.Life) { l.Mute = spec.Server == "hangs" }), sandbox.Config{Starts: 1}, func(t *testing.T, h *house) {
		var calls sync.WaitGroup
		calls.Go(func() {
			if _, err := h.Acquire(t.Context(), demand("t", "s", "hangs")); err == nil {
				t.Error("it was started")
			}
		})
		synctest.Wait()
		l := h.acquire(demand("t", "s", "a"))
		h.want("provision", l.Provision(), 5*time.Second+cold+shake)
		l.Release()
		calls.Wait()
	})
}

func TestStartsAreFairAmongTenants(t *testing.T) {
	bubble(t, lives(nil), sandbox.Config{Starts: 1}, func(t *testing.T, h *house) {
		var mu sync.Mutex
		var order []string
		var calls sync.WaitGroup
		call := func(tenant string, cause trace.Cause, i int) {
			calls.Go(func() {
				d := demand(tenant, "s", fmt.Sprint("server", i, cause))
				d.Cause = cause
				l := h.acquire(d)
				defer l.Release()
				mu.Lock()
				defer mu.Unlock()
				order = append(order, tenant+string(cause[0]))
			})
			synctest.Wait()
		}
		for i := range 3 {
			call("c", trace.Catalog, i)
		}
		for i := range 5 {
			call("flood", trace.Demand, i)
		}
		call("small", trace.Demand, 1)
		call("small", trace.Demand, 2)
		calls.Wait()
		h.want("order of starts", order, "[cc floodd smalld floodd smalld floodd floodd floodd cc cc]")
	})
}

// A catalogue's start that a call comes to need becomes as urgent as the call.
func TestCallPromotesAStart(t *testing.T) {
	bubble(t, lives(nil), sandbox.Config{Starts: 1}, func(t *testing.T, h *house) {
		var calls sync.WaitGroup
		for i := range 4 {
			calls.Go(func() {
				d := demand("t", "s", fmt.Sprint(i))
				d.Cause = trace.Catalog
				h.acquire(d).Release()
			})
			synctest.Wait()
		}
		l := h.acquire(demand("t", "s", "3"))
		h.want("provision", l.Provision(), 2*(cold+shake))
		l.Release()
		calls.Wait()
	})
}

func TestBudgetsHold(t *testing.T) {
	slow := func(_ *sandbox.Spec, _ int, l *sim.Life) { l.Close = 2 * time.Second }
	t.Run("idle ones make room, longest idle first", func(t *testing.T) {
		bubble(t, lives(slow), sandbox.Config{Sandboxes: 3}, func(t *testing.T, h *house) {
			var ids []string
			for i := range 3 {
				l := h.acquire(demand("t", "s", fmt.Sprint(i)))
				ids = append(ids, l.ID())
				defer l.Release()
				if i > 0 {
					l.Release()
				}
				time.Sleep(time.Second)
			}
			l := h.acquire(demand("u", "s", "x"))
			h.want("provision", l.Provision(), 2*time.Second+cold+shake) // the room is there when the other is gone
			if live := h.sim.Live(); slices.Contains(live, ids[1]) || !slices.Contains(live, ids[0]) || !slices.Contains(live, ids[2]) {
				t.Errorf("live are %v of %v, want the second stopped", live, ids)
			}
			h.want("most alive", h.sim.Count().MaxLive, 3)
			h.want("stops", h.events(trace.Stop), []string{"1 quota"})
			l.Release()
		})
	})
	t.Run("and no more of them than needed", func(t *testing.T) {
		for _, cfg := range []sandbox.Config{
			{Sandboxes: 3},
			{Quota: func(string) sandbox.Quota { return sandbox.Quota{Sandboxes: 3} }},
		} {
			bubble(t, lives(slow), cfg, func(t *testing.T, h *house) {
				for i := range 3 {
					h.acquire(demand("t", "s", fmt.Sprint(i))).Release()
				}
				var waiting sync.WaitGroup
				waiting.Go(func() { h.acquire(demand("t", "s", "x")).Release() })
				for range 5 { // each call has the manager look again
					time.Sleep(100 * time.Millisecond)
					h.Stats()
				}
				waiting.Wait()
				h.want("stops", h.events(trace.Stop), []string{"0 quota"})
			})
		}
	})
	t.Run("calls wait until a lease ends", func(t *testing.T) {
		bubble(t, lives(nil), sandbox.Config{Sandboxes: 1}, func(t *testing.T, h *house) {
			l := h.acquire(demand("t", "s", "a"))
			time.AfterFunc(10*time.Second, l.Release)
			next := h.acquire(demand("t", "s", "b"))
			h.want("provision", next.Provision(), 10*time.Second+cold+shake)
			next.Release()
		})
	})
	t.Run("or time is up", func(t *testing.T) {
		bubble(t, lives(nil), sandbox.Config{Sandboxes: 3, Quota: func(tenant string) sandbox.Quota {
			return sandbox.Quota{Sandboxes: map[string]int{"t": 2}[tenant]}
		}}, func(t *testing.T, h *house) {
			a, b := h.acquire(demand("t", "s", "a")), h.acquire(demand("t", "s", "b"))
			var q *sandbox.QuotaError
			_, err := h.Acquire(t.Context(), demand("t", "s", "c"))
			if !errors.As(err, &q) || q.Waited != 30*time.Second {
				t.Fatalf("Acquire: %v, want a QuotaError after 30 s", err)
			}
			h.want("error", err, `server "c" found no room for its sandbox within 30s: the quota of tenant "t" is 2 sandboxes (tenants: sandboxes); `+
				"in use: a 1, b 1; let calls end, or stop some with `specbox stop`")
			c := h.acquire(demand("u", "s", "secret")) // the other tenant's room is its own
			if _, err = h.Acquire(t.Context(), demand("u", "s", "d")); !errors.As(err, &q) || strings.Contains(err.Error(), "a 1") || q.Others != 2 {
				t.Errorf("Acquire: %v, want the limit of all, and nothing of the other tenant", err)
			}
			a.Release()
			h.acquire(demand("t", "s", "c")).Release() // its own idle one makes room
			h.want("stops", h.events(trace.Stop), []string{"a quota"})
			b.Release()
			c.Release()
		})
	})
	t.Run("one tenant's idle ones are safe from the other's quota", func(t *testing.T) {
		bubble(t, lives(nil), sandbox.Config{Quota: func(string) sandbox.Quota { return sandbox.Quota{Sandboxes: 1} }}, func(t *testing.T, h *house) {
			h.acquire(demand("u", "s", "a")).Release()
			time.Sleep(time.Second)
			h.acquire(demand("t", "s", "a")).Release()
			h.acquire(demand("t", "s", "b")).Release()
			h.want("stops", len(h.events(trace.Stop)), 1)
			h.want("live of u", h.acquire(demand("u", "s", "a")).Outcome(), trace.Warm)
		})
	})
}

func TestMemoryQuotaHoldsByMeasure(t *testing.T) {
	const mib = 1 << 20
	bubble(t, lives(func(spec *sandbox.Spec, _ int, l *sim.Life) {
		l.Memory = func(age time.Duration, _ int) int64 {
			if spec.Server == "grows" && age > 10*time.Second {
				return 95 * mib
			}
			return 40 * mib
		}
	}), sandbox.Config{Quota: func(string) sandbox.Quota { return sandbox.Quota{Memory: 100 * mib} }}, func(t *testing.T, h *house) {
		a, b := h.acquire(demand("t", "s", "a")), h.acquire(demand("t", "s", "b"))
		c := h.acquire(demand("t", "s", "c")) // unknown yet, and 80 of 100 are in use
		c.Release()
		time.Sleep(4 * time.Second) // now it is known, and over
		synctest.Wait()
		h.want("stops", h.events(trace.Stop), []string{"c quota"})
		_, err := h.Acquire(t.Context(), demand("t", "s", "c"))
		if !errors.As(err, new(*sandbox.QuotaError)) || !strings.Contains(err.Error(), "100 MiB of memory, and 80 MiB are in use") {
			t.Errorf("Acquire: %v, want a QuotaError: 40 more are expected", err)
		}
		b.Release()
		h.acquire(demand("t", "s", "c")).Release()
		h.want("stops", h.events(trace.Stop), []string{"c quota", "b quota"})
		a.Release()
		h.EndSession("t", "s")
		synctest.Wait()
		grows := h.acquire(demand("t", "s2", "grows"))
		h.acquire(demand("t", "s2", "a")).Release()
		time.Sleep(14 * time.Second)
		synctest.Wait()
		h.want("an idle one goes when another grows", h.events(trace.Stop)[4:], []string{"a quota"})
		grows.Release()
	})
}

func TestEndOfASessionStopsItsSandboxes(t *testing.T) {
	bubble(t, lives(func(_ *sandbox.Spec, _ int, l *sim.Life) { l.Close = time.Second }), sandbox.Config{}, func(t *testing.T, h *house) {
		l := h.acquire(demand("t", "1", "a"))
		other := h.acquire(demand("t", "2", "a"))
		same := h.acquire(demand("u", "1", "a")) // another tenant's session of that name
		tenants := demand("t", "1", "shared")
		tenants.Spec.Scope = config.PerTenant
		kept := h.acquire(tenants)
		kept.Release()
		var starting sync.WaitGroup
		starting.Go(func() {
			if _, err := h.Acquire(t.Context(), demand("t", "1", "b")); !errors.Is(err, sandbox.ErrSessionEnded) {
				t.Errorf("Acquire during the end: %v", err)
			}
		})
		time.Sleep(cold / 2)
		begun := time.Now()
		h.EndSession("t", "1")
		h.want("EndSession took", time.Since(begun), time.Duration(0))
		starting.Wait()
		synctest.Wait()
		_, err := h.call(l, "count", "{}")
		h.want("call", err, `the sandbox of server "a" was stopped during the call (session end)`)
		if _, err := h.Acquire(t.Context(), demand("t", "1", "a")); !errors.Is(err, sandbox.ErrSessionEnded) {
			t.Errorf("Acquire after the end: %v", err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		for _, l := range []*sandbox.Lease{other, same, kept} {
			if !slices.Contains(h.sim.Live(), l.ID()) {
				t.Errorf("%s was stopped as well", l.ID())
			}
		}
		h.want("stops", h.events(trace.Stop), []string{"a session end"})
		l.Release()
		other.Release()
		same.Release()
	})
}

func TestNothingOutlivesRun(t *testing.T) {
	bubble(t, lives(func(_ *sandbox.Spec, n int, l *sim.Life) { l.Close = time.Second }), sandbox.Config{Starts: 2}, func(t *testing.T, h *house) {
		l := h.acquire(demand("t", "s", "leased"))
		for i := range 3 {
			h.acquire(demand("t", "s", fmt.Sprint("idle", i))).Release()
		}
		var waiting sync.WaitGroup
		for i := range 4 { // two start, two are queued
			waiting.Go(func() {
				if _, err := h.Acquire(t.Context(), demand("t", "s", fmt.Sprint("late", i))); !errors.Is(err, sandbox.ErrClosed) {
					t.Errorf("Acquire: %v, want ErrClosed", err)
				}
			})
		}
		time.Sleep(cold / 2)
		begun := time.Now()
		h.stop()
		h.want("shutdown took", time.Since(begun), time.Second) // all at once
		waiting.Wait()
		h.want("stops", len(h.events(trace.Stop)), 4)
		h.want("reason", strings.Fields(h.events(trace.Stop)[0])[1], sandbox.ReasonShutdown)
		if _, err := h.Acquire(t.Context(), demand("t", "s", "a")); !errors.Is(err, sandbox.ErrClosed) {
			t.Errorf("Acquire: %v, want ErrClosed", err)
		}
		l.Release()
		l.Discard("late")
		if err := h.Run(t.Context()); err == nil {
			t.Error("Run can be called twice")
		}
	})
}

func TestDiscardStopsTheSandbox(t *testing.T) {
	bubble(t, lives(nil), sandbox.Config{}, func(t *testing.T, h *house) {
		l, other := h.acquire(demand("t", "s", "a")), h.acquire(demand("t", "s", "a"))
		l.Discard("goes on after its cancellation")
		l.Release()
		synctest.Wait()
		_, err := h.call(other, "count", "{}")
		h.want("the other's call", err, `the sandbox of server "a" was stopped during the call (goes on after its cancellation)`)
		h.want("the next", h.acquire(demand("t", "s", "a")).Outcome(), trace.Cold)
		other.Release()
		h.want("stops", h.events(trace.Stop), []string{"a goes on after its cancellation"})
	})
}

func TestStopWaitsUntilTheyAreGone(t *testing.T) {
	bubble(t, lives(func(_ *sandbox.Spec, _ int, l *sim.Life) { l.Close = 3 * time.Second }), sandbox.Config{}, func(t *testing.T, h *house) {
		l := h.acquire(demand("t", "s", "a"))
		h.acquire(demand("t", "s", "b")).Release()
		begun := time.Now()
		n, err := h.Stop(t.Context(), func(st sandbox.Status) bool { return st.Server == "a" })
		h.want("Stop", fmt.Sprint(n, err, time.Since(begun)), "1 <nil> 3s")
		h.want("live", len(h.sim.Live()), 1)
		l.Release()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		n, err = h.Stop(ctx, func(sandbox.Status) bool { return true })
		if n != 1 || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Stop: %d, %v, want the end of its ctx", n, err)
		}
	})
}

func TestListAndStats(t *testing.T) {
	bubble(t, lives(func(_ *sandbox.Spec, _ int, l *sim.Life) {
		l.Memory = func(time.Duration, int) int64 { return 7 }
	}), sandbox.Config{Starts: 1}, func(t *testing.T, h *house) {
		l := h.acquire(demand("t", "s", "a"))
		time.Sleep(time.Second)
		h.acquire(demand("t", "s", "b")).Release()
		var starting sync.WaitGroup
		for i := range 2 {
			starting.Go(func() { h.acquire(demand("t", "s", fmt.Sprint("c", i))).Release() })
			synctest.Wait()
		}
		var got []string
		for _, st := range h.List() {
			got = append(got, fmt.Sprint(st.Server, " ", st.State, " ", st.Uses, " ", st.Memory, " ", !st.Idle.IsZero()))
		}
		h.want("List", strings.Join(got, "; "), "a leased 1 7 false; b ready 0 7 true; c0 starting 1 0 false; c1 queued 1 0 false")
		st := h.Stats()
		h.want("Stats", fmt.Sprint(st.States, st.Idle, st.Uses, st.Live, st.Limit, st.Memory), "map[leased:1 queued:1 ready:1 starting:1] 1 1 4 64 14")
		live := h.Live("t", "s")
		if len(live) != 2 || live[0].Conn != l.Conn() || live[1].Server != "b" || len(h.Live("u", "s")) != 0 || len(h.Live("t", "")) != 0 {
			t.Errorf("Live: %+v", live)
		}
		starting.Wait()
		l.Release()
	})
}

// What a server sends before its first call reaches the handler, before the
// first lease.
func TestHandlerHearsTheServerFromTheStart(t *testing.T) {
	b := lives(func(_ *sandbox.Spec, _ int, l *sim.Life) {})
	bubble(t, b, sandbox.Config{}, func(t *testing.T, h *house) {
		d := demand("t", "s", "a")
		heard := &hearer{}
		d.Handler = heard
		l := h.acquire(d)
		defer l.Release()
		text, err := h.call(l, "ask", `{"method":"roots/list"}`)
		h.want("ask", fmt.Sprint(text, err), `{"heard":1}<nil>`)
		_, _ = h.call(l, "emit", `{"method":"notifications/tools/list_changed"}`)
		synctest.Wait()
		h.want("heard", heard.all(), "roots/list notifications/tools/list_changed")
	})
	bubble(t, b, sandbox.Config{}, func(t *testing.T, h *house) { // without a handler it is refused, not left waiting
		l := h.acquire(demand("t", "s", "a"))
		defer l.Release()
		text, err := h.call(l, "ask", `{"method":"roots/list"}`)
		if err != nil || !strings.Contains(text, "no client is there") {
			t.Errorf("ask: %q, %v", text, err)
		}
	})
}

type hearer struct {
	mu    sync.Mutex
	heard []string
}

func (h *hearer) add(m wire.Message) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.heard = append(h.heard, m.Method)
}

func (h *hearer) all() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.heard, " ")
}

func (h *hearer) Notified(_ *wire.Conn, m wire.Message) { h.add(m) }

func (h *hearer) Requested(c *wire.Conn, m wire.Message) {
	h.add(m)
	_ = c.Respond(m.ID, wire.Reply{Result: []byte(`{"heard":1}`)})
}

func TestIsolationMustBeAvailable(t *testing.T) {
	bubble(t, lives(nil), sandbox.Config{}, func(t *testing.T, h *house) {
		d := demand("t", "s", "a")
		d.Spec.Isolation = config.Remote
		if _, err := h.Acquire(t.Context(), d); err == nil || !strings.Contains(err.Error(), `server "a": isolation "remote" is not available here; there is [process]`) {
			t.Errorf("Acquire: %v", err)
		}
	})
	if _, err := sandbox.New(sandbox.Config{}); err == nil {
		t.Error("New without backends has no error")
	}
	if _, err := sandbox.New(sandbox.Config{Backends: map[config.Isolation]sandbox.Backend{"x": nil}, Starts: -1}); err == nil {
		t.Error("New with a negative limit has no error")
	}
}

func BenchmarkWarmAcquire(b *testing.B) {
	for name, hints := range map[string]int{"alone": 0, "beside guesses that wait": 100} {
		b.Run(name, func(b *testing.B) {
			m, err := sandbox.New(sandbox.Config{Backends: map[config.Isolation]sandbox.Backend{config.Process: &sim.Backend{}}})
			if err != nil {
				b.Fatal(err)
			}
			ctx, cancel := context.WithCancel(b.Context())
			var running sync.WaitGroup
			running.Go(func() { _ = m.Run(ctx) })
			defer running.Wait()
			defer cancel()
			for i := range hints {
				m.Warm(sandbox.Hint{Tenant: "t", Spec: spec(fmt.Sprint(i)), Hold: time.Hour})
			}
			d := demand("t", "s", "a")
			b.ReportAllocs()
			for b.Loop() {
				l, err := m.Acquire(ctx, d)
				if err != nil {
					b.Fatal(err)
				}
				l.Release()
			}
		})
	}
}

// BenchmarkWarm measures a hint that is repeated, as a model's stream does it.
func BenchmarkWarm(b *testing.B) {
	m, err := sandbox.New(sandbox.Config{Backends: map[config.Isolation]sandbox.Backend{config.Process: &sim.Backend{}}})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = m.Run(ctx) })
	defer running.Wait()
	defer cancel()
	for i := range 70 {
		m.Warm(sandbox.Hint{Tenant: "t", Spec: spec(fmt.Sprint(i)), Hold: time.Hour})
	}
	h := sandbox.Hint{Tenant: "t", Spec: spec("69"), Hold: time.Hour}
	b.ReportAllocs()
	for b.Loop() {
		m.Warm(h)
	}
}
