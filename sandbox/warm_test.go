package sandbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/sandbox/sim"
	"github.com/specbox/specbox/trace"
	"github.com/specbox/specbox/wire"
)

// hint says that server may be needed by a session of tenant.
func hint(tenant, server string) sandbox.Hint {
	return sandbox.Hint{Tenant: tenant, Spec: spec(server), Cause: trace.Intent, P: 0.8}
}

// likely is hint with a probability.
func likely(tenant, server string, p float64) sandbox.Hint {
	h := hint(tenant, server)
	h.P = p
	return h
}

// states returns "server state" of all sandboxes, sorted.
func (h *house) states() []string {
	var out []string
	for _, st := range h.List() {
		out = append(out, st.Server+" "+string(st.State))
	}
	slices.Sort(out)
	return out
}

// unused is speculation that is never frozen, where a test is about other things.
func unused(sandboxes, starts int) sandbox.Speculation {
	return sandbox.Speculation{Sandboxes: sandboxes, Starts: starts, Freeze: sandbox.FreezeNever}
}

func TestGuessIsLeasedWarm(t *testing.T) {
	bubble(t, lives(nil), sandbox.Config{}, func(t *testing.T, h *house) {
		h.Warm(hint("t", "a"))
		time.Sleep(time.Second)
		l := h.acquire(demand("t", "s", "a"))
		defer l.Release()
		h.want("outcome", l.Outcome(), trace.Warm)
		h.want("provision", l.Provision(), time.Duration(0))
		h.want("cause", l.Cause(), trace.Intent)
		h.want("lead", l.Lead(), time.Second)
		h.want("saved", l.Saved(), cold+shake)
		h.want("fresh", l.Fresh(), true)
		h.want("in the idle class", len(h.sim.Lowly()), 0)
		h.want("instances", fmt.Sprint(h.sim.Count().Created, h.sim.Count().Guessed), "1 1")
		again := h.acquire(demand("t", "s", "a"))
		defer again.Release()
		h.want("the same one", again.ID(), l.ID())
		h.want("saved again", again.Saved(), time.Duration(0))
		h.want("fresh again", again.Fresh(), false)
	})
}

func TestGuessUnderWayIsLate(t *testing.T) {
	for _, at := range []time.Duration{0, cold / 2, cold, cold + shake/2} {
		bubble(t, lives(nil), sandbox.Config{}, func(t *testing.T, h *house) {
			h.Warm(hint("t", "a"))
			time.Sleep(at)
			synctest.Wait()
			l := h.acquire(demand("t", "s", "a"))
			defer l.Release()
			h.want("outcome", l.Outcome(), trace.Late)
			h.want("provision", l.Provision(), cold+shake-at)
			h.want("lead", l.Lead(), at)
			h.want("in the idle class", len(h.sim.Lowly()), 0)
			h.want("instances", h.sim.Count().Created, 1)
		})
	}
}

// A guess that somebody came for counts among the starts of calls: another one
// may begin, but never more in all than both bounds together.
func TestClaimedStartIsACallsStart(t *testing.T) {
	bubble(t, lives(nil), sandbox.Config{Starts: 1, Speculation: unused(8, 1)}, func(t *testing.T, h *house) {
		var calls sync.WaitGroup
		for _, server := range []string{"a", "b"} {
			h.Warm(hint("t", server))
			h.Warm(hint("t", "other"))
			h.want("states of "+server, slices.Contains(h.states(), server+" starting"), true)
			h.want("the other", slices.Contains(h.states(), "other waiting"), true)
			calls.Go(func() { h.acquire(demand("t", "s", server)).Release() })
			synctest.Wait()
			if server == "a" { // its slot is free
				h.want("states", h.states(), "[a starting other starting]")
				_, _ = h.Stop(t.Context(), func(st sandbox.Status) bool { return st.Server == "other" })
			}
		}
		h.want("states", h.states(), "[a starting b starting other waiting]")
		calls.Wait()
	})
}

// What is claimed makes room for the next guess at once.
func TestClaimMakesRoomForTheNextGuess(t *testing.T) {
	bubble(t, lives(nil), sandbox.Config{Speculation: unused(1, 1)}, func(t *testing.T, h *house) {
		h.Warm(hint("t", "a"))
		h.Warm(hint("t", "b"))
		time.Sleep(time.Second)
		h.want("states", h.states(), "[a ready b waiting]")
		l := h.acquire(demand("t", "s", "a"))
		defer l.Release()
		h.want("states", h.states(), "[a leased b starting]")
	})
}

// What has not begun is begun by the call.
func TestGuessThatWaitsIsCold(t *testing.T) {
	bubble(t, lives(nil), sandbox.Config{Speculation: unused(4, 1)}, func(t *testing.T, h *house) {
		h.Warm(hint("t", "a"))
		h.Warm(hint("t", "b"))
		h.want("states", h.states(), "[a starting b waiting]")
		l := h.acquire(demand("t", "s", "b"))
		defer l.Release()
		h.want("outcome", fmt.Sprint(l.Outcome(), l.Provision(), l.Cause(), l.Saved()), fmt.Sprint(trace.Cold, cold+shake, trace.Demand, "0s"))
		h.want("starts", h.events(trace.Start), "[b]") // the call's went first
	})
}

func TestUnusedGuessIsStoppedAfterItsHold(t *testing.T) {
	bubble(t, lives(nil), sandbox.Config{Speculation: sandbox.Speculation{Hold: 7 * time.Second}}, func(t *testing.T, h *house) {
		for _, own := range []time.Duration{0, 3 * time.Second} {
			hint := hint("t", "a")
			hint.Hold = own
			hold := own
			if own == 0 {
				hold = 7 * time.Second
			}
			h.Warm(hint)
			time.Sleep(cold + shake + hold - time.Second)
			h.Warm(hint) // renews it
			time.Sleep(hold - time.Nanosecond)
			synctest.Wait()
			h.want("alive before", len(h.sim.Live()), 1)
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			h.want("alive after", len(h.sim.Live()), 0)
		}
		h.want("stops", h.events(trace.Stop), "[a unused a unused]")
		for _, e := range h.trace.Events() {
			if e.Cause != trace.Intent || e.P != 0.8 || e.Session != "" || e.Tenant != "t" {
				t.Errorf("event %+v", e)
			}
		}
	})
}

// One lease, one holder: what was started for the tenant is bound to the first
// session that takes it, for good, and serves those alone who present the same
// client.
func TestGuessServesOneSession(t *testing.T) {
	bubble(t, lives(nil), sandbox.Config{}, func(t *testing.T, h *house) {
		h.Warm(hint("t", "a"))
		time.Sleep(time.Second)
		l := h.acquire(demand("t", "s", "a"))
		l.Release()
		for name, d := range map[string]sandbox.Demand{
			"session": demand("t", "s2", "a"), "tenant": demand("u", "s", "a"),
		} {
			other := h.acquire(d)
			h.want("outcome of another "+name, other.Outcome(), trace.Cold)
			other.Release()
		}
		h.Warm(hint("t", "a"))
		time.Sleep(time.Second)
		for name, change := range map[string]func(d *sandbox.Demand){
			"configuration": func(d *sandbox.Demand) { d.Spec.Hash = "other" },
			"version":       func(d *sandbox.Demand) { d.Client.Version = "2025-06-18" },
			"capabilities":  func(d *sandbox.Demand) { d.Client.Capabilities = []byte(`{"roots":{}}`) },
			"name":          func(d *sandbox.Demand) { d.Client.Info = []byte(`{"name":"agent"}`) },
			"catalogue":     func(d *sandbox.Demand) { d.Cause = trace.Catalog },
		} {
			d := demand("t", "s "+name, "a")
			change(&d)
			other := h.acquire(d)
			h.want("outcome for another "+name, other.Outcome(), trace.Cold)
			other.Release()
		}
		d := demand("t", "s3", "a")
		d.Client = sandbox.Client{Version: "2025-11-25", Capabilities: []byte("{}")} // what the empty one means
		same := h.acquire(d)
		h.want("outcome for the same", same.Outcome(), trace.Warm)
		same.Release()
		h.EndSession("t", "s3")
		synctest.Wait()
		h.want("stopped with its session", slices.Contains(h.sim.Live(), same.ID()), false)
	})
}

// A hint about a session that holds such a sandbox, or has ended, starts nothing.
func TestGuessForASessionThatHasOne(t *testing.T) {
	bubble(t, lives(nil), sandbox.Config{}, func(t *testing.T, h *house) {
		h.acquire(demand("t", "s", "a")).Release()
		for _, session := range []string{"s", "s", "ended"} {
			h.EndSession("t", "ended")
			hint := hint("t", "a")
			hint.Session = session
			h.Warm(hint)
		}
		time.Sleep(time.Second)
		h.want("instances", h.sim.Count().Created, 1)
		hint := hint("t", "a")
		hint.Session = "s2"
		h.Warm(hint)
		time.Sleep(time.Second)
		h.want("instances", h.sim.Count().Created, 2)
		hint.Session = "s3"
		h.Warm(hint) // the one that is there may serve it
		time.Sleep(time.Second)
		h.want("instances", h.sim.Count().Created, 2)
		hint.Want = 3
		h.Warm(hint)
		time.Sleep(2 * time.Second)
		h.want("instances for three sessions", h.sim.Count().Created, 4)
		h.want("outcome", h.acquire(demand("t", "s4", "a")).Outcome(), trace.Warm)
	})
}

func TestGuessOfASharedServer(t *testing.T) {
	for _, scope := range []config.Scope{config.PerTenant, config.Shared} {
		bubble(t, lives(nil), sandbox.Config{}, func(t *testing.T, h *house) {
			hint, d := hint("t", "a"), demand("t", "s", "a")
			hint.Spec.Scope, d.Spec.Scope = scope, scope
			hint.Want = 3
			h.Warm(hint)
			time.Sleep(time.Second)
			h.Warm(hint)
			heard := &hearer{}
			d.Handler = heard
			l := h.acquire(d)
			h.want("outcome", l.Outcome(), trace.Warm)
			text, err := h.call(l, "ask", `{"method":"roots/list"}`)
			h.want("ask", fmt.Sprint(text, err), `{"heard":1}<nil>`)
			d.Session = "s2"
			other := h.acquire(d)
			h.want("shared", other.ID(), l.ID())
			l.Release()
			other.Release()
			h.Warm(hint) // there is one
			time.Sleep(30 * time.Second)
			synctest.Wait()
			h.want("instances", fmt.Sprint(h.sim.Count().Created, h.sim.Count().Live), "1 1") // it is no guess any more
		})
	}
}

// Nothing is said to a sandbox that nobody has come for but the handshake; what
// its server says and asks meanwhile reaches its holder, in order.
func TestGuessIsHeardByItsHolder(t *testing.T) {
	for _, after := range []time.Duration{0, time.Second, 5 * time.Second} { // while it starts, ready, frozen
		asked := make(chan string, 1)
		b := lives(func(_ *sandbox.Spec, _ int, l *sim.Life) {
			l.Greeted = func(ctx context.Context, p *sim.Peer) {
				p.Notify("notifications/message", []byte(`{"n":1}`))
				go func() { p.Notify("notifications/late", nil) }()
				r, err := p.Ask(ctx, "roots/list", nil)
				asked <- fmt.Sprint(string(r.Result), err)
			}
		})
		bubble(t, b, sandbox.Config{}, func(t *testing.T, h *house) {
			h.Warm(hint("t", "a"))
			time.Sleep(after)
			synctest.Wait()
			h.want("answered", len(asked), 0)
			d := demand("t", "s", "a")
			heard := &hearer{}
			d.Handler = heard
			l := h.acquire(d)
			defer l.Release()
			h.want("the server's question", <-asked, `{"heard":1}<nil>`)
			_, _ = h.call(l, "emit", `{"method":"notifications/last"}`)
			synctest.Wait()
			got := strings.Fields(heard.all())
			if len(got) != 4 || got[0] != "notifications/message" || got[3] != "notifications/last" || !slices.Contains(got, "roots/list") {
				t.Errorf("heard %v", got)
			}
		})
	}
}

// What arrives while a holder hears what was kept does not overtake it.
func TestGuessIsHeardInOrder(t *testing.T) {
	bubble(t, lives(func(_ *sandbox.Spec, _ int, l *sim.Life) {
		l.Greeted = func(_ context.Context, p *sim.Peer) {
			p.Notify("1", nil)
			p.Notify("2", nil)
			time.Sleep(time.Second + time.Millisecond)
			p.Notify("3", nil)
		}
	}), sandbox.Config{}, func(t *testing.T, h *house) {
		h.Warm(hint("t", "a"))
		time.Sleep(cold + shake + time.Second)
		d := demand("t", "s", "a")
		slow := &slowHearer{}
		d.Handler = slow
		l := h.acquire(d)
		defer l.Release()
		time.Sleep(time.Second)
		h.want("heard", slow.all(), "1 2 3")
	})
}

// A slowHearer takes its time.
type slowHearer struct{ hearer }

func (h *slowHearer) Notified(c *wire.Conn, m wire.Message) {
	time.Sleep(10 * time.Millisecond)
	h.hearer.Notified(c, m)
}

// A server that talks and talks to nobody is not worth its memory.
func TestGuessThatSaysTooMuchIsDiscarded(t *testing.T) {
	bubble(t, lives(func(_ *sandbox.Spec, _ int, l *sim.Life) {
		l.Greeted = func(ctx context.Context, p *sim.Peer) {
			for ctx.Err() == nil {
				p.Notify("notifications/message", []byte(`{"level":"debug"}`))
			}
		}
	}), sandbox.Config{}, func(t *testing.T, h *house) {
		h.Warm(hint("t", "a"))
		time.Sleep(cold + shake)
		synctest.Wait()
		h.want("stops", h.events(trace.Stop), "[a unused: it said too much before anybody listened]")
	})
}

func TestDemandGoesBeforeSpeculation(t *testing.T) {
	t.Run("a call's start beside guesses takes as long as alone", func(t *testing.T) {
		for _, k := range []int{0, 1, 3, 8} {
			b := lives(nil)
			b.Cores = 1
			bubble(t, b, sandbox.Config{Starts: 8, Speculation: unused(8, 8)}, func(t *testing.T, h *house) {
				for i := range k {
					h.Warm(hint("t", fmt.Sprint("guess", i)))
				}
				time.Sleep(cold / 2)
				l := h.acquire(demand("t", "s", "a"))
				defer l.Release()
				h.want(fmt.Sprint("provision beside ", k), l.Provision(), cold+shake)
			})
		}
	})
	t.Run("a guess that was right is never slower than none", func(t *testing.T) {
		b := lives(nil)
		b.Cores = 1
		bubble(t, b, sandbox.Config{Speculation: unused(8, 8)}, func(t *testing.T, h *house) {
			for i := range 8 {
				h.Warm(hint("t", fmt.Sprint("guess", i)))
			}
			time.Sleep(cold / 2)
			l := h.acquire(demand("t", "s", "guess3"))
			defer l.Release()
			if l.Outcome() != trace.Late || l.Provision() >= cold+shake {
				t.Errorf("%s after %v, want less than the %v of a cold start", l.Outcome(), l.Provision(), cold+shake)
			}
		})
	})
	t.Run("guesses do not begin while calls wait to start", func(t *testing.T) {
		bubble(t, lives(nil), sandbox.Config{Starts: 1, Speculation: unused(8, 1)}, func(t *testing.T, h *house) {
			var calls sync.WaitGroup
			for i := range 3 {
				calls.Go(func() { h.acquire(demand("t", "s", fmt.Sprint(i))).Release() })
			}
			synctest.Wait()
			h.Warm(hint("u", "guess"))
			time.Sleep(cold + shake)
			synctest.Wait()
			h.want("states", fmt.Sprint(h.Stats().States), "map[queued:1 ready:1 starting:1 waiting:1]")
			calls.Wait()
			time.Sleep(cold + shake)
		})
	})
	t.Run("without an idle class guesses wait until no call starts", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m, err := sandbox.New(sandbox.Config{Backends: map[config.Isolation]sandbox.Backend{config.Process: plain{lives(nil)}}})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() { _ = m.Run(ctx) })
			h := &house{t: t, Manager: m}
			running.Go(func() { h.acquire(demand("t", "s", "a")).Release() })
			synctest.Wait()
			h.Warm(hint("t", "guess"))
			h.want("states", h.states(), "[a starting guess waiting]")
			time.Sleep(cold + shake)
			synctest.Wait()
			h.want("states", h.states(), "[a ready guess starting]")
			l := h.acquire(demand("t", "s", "guess"))
			h.want("outcome", fmt.Sprint(l.Outcome(), l.Provision()), fmt.Sprint(trace.Late, cold+shake))
			l.Release()
			cancel()
			running.Wait()
		})
	})
}

// A plain backend can create, and no more.
type plain struct{ b sandbox.Backend }

func (p plain) Create(ctx context.Context, id string, spec *sandbox.Spec, stderr io.Writer) (sandbox.Instance, error) {
	inst, err := p.b.Create(ctx, id, spec, stderr)
	if err != nil {
		return nil, err
	}
	return struct{ sandbox.Instance }{inst}, nil
}

// Starts of guesses are bounded, fair among tenants, and the likeliest of a
// tenant's go first.
func TestGuessesStartInOrder(t *testing.T) {
	bubble(t, lives(nil), sandbox.Config{Speculation: unused(10, 1)}, func(t *testing.T, h *house) {
		for i, p := range []float64{0.5, 0.1, 0.9, 0.5} {
			h.Warm(likely("flood", fmt.Sprint("f", i), p))
		}
		h.Warm(likely("small", "s0", 0.01))
		h.Warm(likely("flood", "f1", 0.95)) // more is known of it now
		time.Sleep(6 * (cold + shake))
		synctest.Wait()
		h.want("starts", h.events(trace.Start), "[f0 s0 f1 f2 f3]")
		h.want("most at once", h.sim.Count().MaxLive, 5)
	})
}

func TestGuessesStayWithinTheirBudgets(t *testing.T) {
	const mib = 1 << 20
	storm := func(h *house, tenant string, n int) {
		for i := range n {
			h.Warm(likely(tenant, fmt.Sprint(tenant, i), 0.5))
		}
		time.Sleep(15 * time.Second)
		synctest.Wait()
	}
	for name, tt := range map[string]struct {
		cfg  sandbox.Config
		want int // most alive of a storm of 20
	}{
		"count":          {sandbox.Config{Speculation: unused(5, 2)}, 5},
		"default":        {sandbox.Config{Sandboxes: 16}, 4},
		"none":           {sandbox.Config{Speculation: unused(-1, 0)}, 0},
		"room for calls": {sandbox.Config{Sandboxes: 12, Starts: 2, Speculation: unused(12, 2)}, 10},
		"quota":          {sandbox.Config{Quota: func(string) sandbox.Quota { return sandbox.Quota{Sandboxes: 4} }}, 3},
		"quota of them":  {sandbox.Config{Quota: func(string) sandbox.Quota { return sandbox.Quota{Unclaimed: 2} }}, 2},
		"memory":         {sandbox.Config{Memory: 110 * mib}, 2},
		"their memory":   {sandbox.Config{Speculation: sandbox.Speculation{Memory: 150 * mib}}, 3},
		"quota's memory": {sandbox.Config{Quota: func(string) sandbox.Quota { return sandbox.Quota{Memory: 110 * mib} }}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			b := lives(func(_ *sandbox.Spec, _ int, l *sim.Life) {
				l.Memory = func(time.Duration, int) int64 { return 40 * mib }
			})
			bubble(t, b, tt.cfg, func(t *testing.T, h *house) {
				storm(h, "t", 20)
				h.want("most alive", h.sim.Count().MaxLive, tt.want)
				l := h.acquire(demand("t", "s", "call"))
				defer l.Release()
				h.want("provision of a call", l.Provision(), cold+shake)
			})
		})
	}
}

// Guesses give room back before the next call needs it, and the least valuable
// go first.
func TestGuessesMakeRoomAhead(t *testing.T) {
	slow := lives(func(_ *sandbox.Spec, _ int, l *sim.Life) { l.Close = 2 * time.Second })
	bubble(t, slow, sandbox.Config{Sandboxes: 8, Starts: 2, Speculation: unused(8, 2)}, func(t *testing.T, h *house) {
		for i := range 6 {
			h.Warm(likely("t", fmt.Sprint("guess", i), 0.9-float64(i)/10))
		}
		time.Sleep(3 * time.Second)
		for i := range 3 {
			l := h.acquire(demand("t", "s", fmt.Sprint(i)))
			defer l.Release()
			h.want("provision", l.Provision(), cold+shake)
			time.Sleep(2 * time.Second)
		}
		h.want("stops", h.events(trace.Stop), "[guess5 unused: quota guess4 unused: quota guess3 unused: quota]")
		h.want("most alive", h.sim.Count().MaxLive, 7)
	})
}

// A call that finds no room takes it from the guess that is worth least, and
// from idle sandboxes only when there is none.
func TestCallEvictsGuessesBeforeIdleOnes(t *testing.T) {
	bubble(t, lives(func(_ *sandbox.Spec, _ int, l *sim.Life) { l.Close = 2 * time.Second }), sandbox.Config{
		Quota: func(string) sandbox.Quota { return sandbox.Quota{Sandboxes: 4} }, Speculation: unused(4, 4),
	}, func(t *testing.T, h *house) {
		h.acquire(demand("t", "s", "idle")).Release()
		h.Warm(likely("t", "good", 0.9))
		h.Warm(likely("t", "bad", 0.2))
		time.Sleep(time.Second)
		var calls sync.WaitGroup
		for i := range 2 {
			calls.Go(func() { defer h.acquire(demand("t", "s", fmt.Sprint(i))).Release(); time.Sleep(time.Minute) })
		}
		calls.Wait()
		h.want("stops", h.events(trace.Stop)[:2], "[bad unused: quota good unused: quota]")
	})
}

func TestCallEvictsAGuessForItsMemory(t *testing.T) {
	const mib = 1 << 20
	bubble(t, lives(func(_ *sandbox.Spec, _ int, l *sim.Life) {
		l.Memory = func(time.Duration, int) int64 { return 40 * mib }
	}), sandbox.Config{
		Memory: 110 * mib, Speculation: unused(4, 4),
	}, func(t *testing.T, h *house) {
		h.acquire(demand("t", "s", "idle")).Release()
		h.Warm(hint("t", "guess"))
		time.Sleep(time.Second)
		h.want("states", h.states(), "[guess ready idle ready]")
		l := h.acquire(demand("t", "s2", "idle"))
		h.want("stops", h.events(trace.Stop), "[guess unused: quota]")
		l.Release()
	})
}

// While a call waits for room, nothing is started on a guess, though it would
// fit: the room is the call's.
func TestGuessTakesNoRoomThatACallWaitsFor(t *testing.T) {
	const mib = 1 << 20
	b := lives(func(spec *sandbox.Spec, _ int, l *sim.Life) {
		size := int64(10 * mib)
		if spec.Server == "big" {
			size = 60 * mib
		}
		l.Memory = func(time.Duration, int) int64 { return size }
	})
	for name, cfg := range map[string]sandbox.Config{
		"all":    {Memory: 100 * mib},
		"tenant": {Quota: func(string) sandbox.Quota { return sandbox.Quota{Memory: 100 * mib} }},
	} {
		t.Run(name, func(t *testing.T) {
			asker := map[string]string{"all": "u", "tenant": "t"}[name]
			bubble(t, b, cfg, func(t *testing.T, h *house) {
				h.acquire(demand("t", "s", "small")).Release() // now its size is known
				h.EndSession("t", "s")
				synctest.Wait()
				l := h.acquire(demand("t", "1", "big"))
				var waiting sync.WaitGroup
				ctx, cancel := context.WithCancel(t.Context())
				waiting.Go(func() {
					if _, err := h.Acquire(ctx, demand("t", "2", "big")); !errors.Is(err, context.Canceled) {
						t.Errorf("Acquire: %v", err)
					}
				})
				synctest.Wait()
				h.Warm(hint(asker, "small"))
				time.Sleep(time.Second)
				h.want("states", h.states(), "[big leased big waiting small waiting]")
				cancel()
				waiting.Wait()
				h.want("states", h.states(), "[big leased small starting]")
				l.Release()
			})
		})
	}
}

// Warm never evicts what is in demand, nor what holds the state of a session.
func TestWarmEvictsNothingInDemand(t *testing.T) {
	bubble(t, lives(nil), sandbox.Config{Sandboxes: 4, Speculation: unused(4, 2)}, func(t *testing.T, h *house) {
		l := h.acquire(demand("t", "s", "leased"))
		h.acquire(demand("t", "s", "idle")).Release()
		h.acquire(demand("t", "s", "idle too")).Release()
		for i := range 10 {
			h.Warm(likely("t", fmt.Sprint(i), 1))
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		h.want("instances", h.sim.Count().Created, 3)
		h.want("stops", len(h.events(trace.Stop)), 0)
		l.Release()
	})
}

// Among guesses, the better one displaces the worse, if it is clearly better.
func TestBetterGuessDisplacesAWorse(t *testing.T) {
	second := lives(func(_ *sandbox.Spec, _ int, l *sim.Life) { l.Create, l.Handshake = time.Second, 0 }) // what is expected of those that were never seen
	bubble(t, second, sandbox.Config{Speculation: unused(2, 2)}, func(t *testing.T, h *house) {
		h.Warm(likely("t", "a", 0.5))
		h.Warm(likely("t", "b", 0.4))
		time.Sleep(1100 * time.Millisecond)
		h.Warm(likely("t", "same", 0.42))
		time.Sleep(1100 * time.Millisecond)
		h.want("states", h.states(), "[a ready b ready same waiting]")
		h.Warm(likely("t", "better", 0.9))
		time.Sleep(1100 * time.Millisecond)
		synctest.Wait()
		h.want("states", h.states(), "[a ready better ready same waiting]")
		h.want("stops", h.events(trace.Stop), "[b unused: quota]")
		h.Warm(likely("t", "a", 0.1)) // it has become unlikely
		time.Sleep(1100 * time.Millisecond)
		synctest.Wait()
		h.want("states", h.states(), "[better ready same ready]")
	})
}

// A tenant that is sure of all that it guesses does not have all the room.
func TestGuessesShareTheirRoomAmongTenants(t *testing.T) {
	bubble(t, lives(nil), sandbox.Config{Speculation: unused(6, 2)}, func(t *testing.T, h *house) {
		for i := range 20 {
			h.Warm(likely("flood", fmt.Sprint("f", i), 1))
		}
		time.Sleep(3 * time.Second)
		h.Warm(likely("other", "o", 0.01)) // first, or it depends on the moment whose guess makes room for it
		for i := range 5 {
			h.Warm(likely("small", fmt.Sprint("s", i), 0.1))
		}
		time.Sleep(8 * time.Second)
		synctest.Wait()
		got := map[string]int{}
		for _, st := range h.List() {
			if st.State != sandbox.Waiting {
				got[st.Tenant]++
			}
		}
		h.want("shares", fmt.Sprint(got), "map[flood:3 other:1 small:2]")
		h.want("stops", len(h.events(trace.Stop)), 3) // and that is that
	})
}

// A guess that fails keeps no call from trying, and no other guess from being
// made, but the same guess for a while.
func TestGuessThatFailsHarmsNoCall(t *testing.T) {
	broken := true
	bubble(t, lives(func(spec *sandbox.Spec, _ int, l *sim.Life) {
		if broken && spec.Server == "a" {
			l.Err = errors.New("no such file")
		}
	}), sandbox.Config{}, func(t *testing.T, h *house) {
		h.Warm(hint("t", "a"))
		time.Sleep(cold)
		synctest.Wait()
		for range 10 {
			h.Warm(hint("t", "a")) // not yet again
		}
		h.Warm(hint("t", "b"))
		synctest.Wait()
		h.want("states", h.states(), "[b starting]")
		broken = false
		l := h.acquire(demand("t", "s", "a"))
		h.want("outcome", fmt.Sprint(l.Outcome(), l.Provision()), fmt.Sprint(trace.Cold, cold+shake))
		l.Release()
		h.Warm(hint("t", "a")) // it works again
		time.Sleep(2 * time.Second)
		h.want("failed", h.sim.Count().Failed, 1)
		h.want("outcome of the next", h.acquire(demand("t", "s2", "a")).Outcome(), trace.Warm)
		if starts := h.events(trace.Start); !strings.Contains(starts[0], "no such file") {
			t.Errorf("start events %q", starts)
		}
		broken = true
		h.Warm(hint("t", "a"))
		time.Sleep(cold / 2)
		if _, err := h.Acquire(t.Context(), demand("t", "s3", "a")); !errors.As(err, new(*sandbox.StartError)) {
			t.Errorf("Acquire during a guess that fails: %v, want a StartError", err)
		}
	})
}

// In the idle class a start may have had no time at all: when somebody comes
// for it, it has the whole of its time.
func TestStartTimeoutBeginsAnewWithTheCall(t *testing.T) {
	b := lives(func(spec *sandbox.Spec, _ int, l *sim.Life) {
		if strings.HasPrefix(spec.Server, "busy") {
			l.Handshake = time.Hour // and the processor is theirs
		}
	})
	bubble(t, b, sandbox.Config{Starts: 2}, func(t *testing.T, h *house) {
		var calls sync.WaitGroup
		calls.Go(func() { _, _ = h.Acquire(t.Context(), demand("t", "s", "busy")) })
		synctest.Wait()
		h.Warm(hint("t", "a"))
		time.Sleep(9900 * time.Millisecond) // the limit is 10 s
		l := h.acquire(demand("t", "s", "a"))
		h.want("outcome", fmt.Sprint(l.Outcome(), l.Provision()), fmt.Sprint(trace.Late, cold+shake))
		l.Release()
		calls.Wait()
	})
}

// What was begun and given up is seen in the trace.
func TestGuessGivenUpDuringItsStart(t *testing.T) {
	bubble(t, lives(nil), sandbox.Config{Quota: func(string) sandbox.Quota { return sandbox.Quota{Sandboxes: 2} }}, func(t *testing.T, h *house) {
		h.Warm(hint("t", "a"))
		time.Sleep(cold / 2)
		l := h.acquire(demand("t", "s", "b"))
		l.Release()
		h.want("starts", h.events(trace.Start), "[a  given up before it was ready: quota b]")
		h.want("stops", len(h.events(trace.Stop)), 0)
		h.want("failed creates", h.sim.Count().Failed, 1)
	})
}

func TestFreeze(t *testing.T) {
	const thaw = time.Millisecond
	lives := func(change func(l *sim.Life)) *sim.Backend {
		return lives(func(_ *sandbox.Spec, _ int, l *sim.Life) {
			l.Freeze, l.Thaw = 10*time.Millisecond, thaw
			if change != nil {
				change(l)
			}
		})
	}
	ready := cold + shake
	t.Run("an unclaimed sandbox is frozen, and thawed for its call", func(t *testing.T) {
		bubble(t, lives(nil), sandbox.Config{}, func(t *testing.T, h *house) {
			h.Warm(hint("t", "a"))
			time.Sleep(ready + 2*time.Second)
			h.want("frozen before", len(h.sim.Frozen()), 0)
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
			h.want("frozen", len(h.sim.Frozen()), 1)
			h.want("states", h.states(), "[a frozen]")
			l := h.acquire(demand("t", "s", "a"))
			h.want("lease", fmt.Sprint(l.Outcome(), l.Provision(), l.Fresh(), l.Saved()), fmt.Sprint(trace.Warm, thaw, true, ready-thaw))
			h.want("frozen", len(h.sim.Frozen()), 0)
			h.want("states", h.states(), "[a leased]")
			if _, err := h.call(l, "count", "{}"); err != nil {
				t.Error(err)
			}
			l.Release()
			time.Sleep(idle - time.Second)
			h.want("it is not frozen again", h.states(), "[a ready]")
		})
	})
	t.Run("what is nearest to being ready is taken", func(t *testing.T) {
		bubble(t, lives(nil), sandbox.Config{}, func(t *testing.T, h *house) {
			hint := hint("t", "a")
			h.Warm(hint)
			time.Sleep(3 * time.Second)
			hint.Want = 2
			h.Warm(hint)
			time.Sleep(time.Second)
			hint.Want = 3
			h.Warm(hint)
			h.want("states", h.states(), "[a frozen a ready a starting]")
			for i, provision := range []time.Duration{0, thaw, ready - thaw} {
				l := h.acquire(demand("t", fmt.Sprint(i), "a"))
				h.want(fmt.Sprint("provision ", i), l.Provision(), provision)
				l.Release()
			}
		})
	})
	t.Run("and stopped after its hold", func(t *testing.T) {
		bubble(t, lives(nil), sandbox.Config{}, func(t *testing.T, h *house) {
			h.Warm(hint("t", "a"))
			time.Sleep(ready + 20*time.Second)
			synctest.Wait()
			h.want("stops", h.events(trace.Stop), "[a unused]")
		})
	})
	t.Run("a call that comes while it is being frozen has it thawed", func(t *testing.T) {
		bubble(t, lives(nil), sandbox.Config{}, func(t *testing.T, h *house) {
			h.Warm(hint("t", "a"))
			time.Sleep(ready + 2*time.Second)
			synctest.Wait()
			time.Sleep(4 * time.Millisecond)
			var calls sync.WaitGroup
			for range 3 {
				calls.Go(func() {
					l := h.acquire(demand("t", "s", "a"))
					h.want("lease", fmt.Sprint(l.Outcome(), l.Provision()), fmt.Sprint(trace.Warm, 6*time.Millisecond+thaw))
					l.Release()
				})
			}
			calls.Wait()
			h.want("instances", h.sim.Count().Created, 1)
		})
	})
	t.Run("one call leaves while it is thawed", func(t *testing.T) {
		bubble(t, lives(func(l *sim.Life) { l.Thaw = time.Second }), sandbox.Config{}, func(t *testing.T, h *house) {
			h.Warm(hint("t", "a"))
			time.Sleep(ready + 3*time.Second)
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			if _, err := h.Acquire(ctx, demand("t", "s", "a")); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Acquire: %v", err)
			}
			l := h.acquire(demand("t", "s", "a"))
			h.want("lease", fmt.Sprint(l.Outcome(), l.Provision(), l.Fresh()), fmt.Sprint(trace.Warm, 999*time.Millisecond, true))
			l.Release()
			h.want("leases", h.Stats().Uses, 0)
		})
	})
	t.Run("what cannot be thawed is replaced", func(t *testing.T) {
		first := true
		bubble(t, lives(func(l *sim.Life) {
			if first {
				l.ThawErr = errors.New("stuck")
			}
			first = false
		}), sandbox.Config{}, func(t *testing.T, h *house) {
			h.Warm(hint("t", "a"))
			time.Sleep(ready + 3*time.Second)
			l := h.acquire(demand("t", "s", "a"))
			h.want("lease", fmt.Sprint(l.Outcome(), l.Provision(), l.Cause(), l.Saved()), fmt.Sprint(trace.Cold, thaw+ready, trace.Demand, "0s"))
			h.want("stops", h.events(trace.Stop), "[a it could not be thawed]")
			l.Release()
		})
	})
	t.Run("what dies before it is thawed is replaced", func(t *testing.T) {
		bubble(t, lives(func(l *sim.Life) { l.Thaw = time.Second }), sandbox.Config{}, func(t *testing.T, h *house) {
			h.Warm(hint("t", "a"))
			time.Sleep(ready + 3*time.Second)
			time.AfterFunc(time.Second/2, func() { h.sim.Kill(h.sim.Frozen()[0]) })
			l := h.acquire(demand("t", "s", "a"))
			h.want("lease", fmt.Sprint(l.Outcome(), l.Provision(), l.Cause()), fmt.Sprint(trace.Cold, time.Second/2+ready, trace.Demand))
			if _, err := h.call(l, "count", "{}"); err != nil {
				t.Error(err)
			}
			h.want("stops", h.events(trace.Stop), "[a it could not be thawed]")
			l.Release()
		})
	})
	t.Run("what cannot be frozen goes on", func(t *testing.T) {
		bubble(t, lives(func(l *sim.Life) { l.FreezeErr = errors.New("no") }), sandbox.Config{}, func(t *testing.T, h *house) {
			h.Warm(hint("t", "a"))
			time.Sleep(ready + 3*time.Second)
			l := h.acquire(demand("t", "s", "a"))
			h.want("lease", fmt.Sprint(l.Outcome(), l.Provision()), fmt.Sprint(trace.Warm, "0s"))
			l.Release()
		})
	})
	t.Run("never", func(t *testing.T) {
		bubble(t, lives(nil), sandbox.Config{Speculation: sandbox.Speculation{Freeze: sandbox.FreezeNever}}, func(t *testing.T, h *house) {
			h.Warm(hint("t", "a"))
			time.Sleep(15 * time.Second)
			h.want("states", h.states(), "[a ready]")
		})
	})
	t.Run("idle", func(t *testing.T) {
		bubble(t, lives(nil), sandbox.Config{Speculation: sandbox.Speculation{Freeze: sandbox.FreezeIdle}}, func(t *testing.T, h *house) {
			h.acquire(demand("t", "s", "a")).Release()
			l := h.acquire(demand("t", "s", "subscribed"))
			l.KeepAwake()
			l.Release()
			shared := demand("t", "s", "shared")
			shared.Spec.Scope = config.Shared
			h.acquire(shared).Release()
			time.Sleep(10*time.Second + 10*time.Millisecond)
			synctest.Wait()
			h.want("states", h.states(), "[a frozen shared ready subscribed ready]")
			l = h.acquire(demand("t", "s", "a"))
			h.want("lease", fmt.Sprint(l.Outcome(), l.Provision(), l.Fresh()), fmt.Sprint(trace.Warm, thaw, false))
			l.Release()
			time.Sleep(idle)
			synctest.Wait()
			h.want("states", h.states(), "[]")
		})
	})
}

// What a hint cannot do, it does not do.
func TestWarmHasNoErrors(t *testing.T) {
	bubble(t, lives(nil), sandbox.Config{}, func(t *testing.T, h *house) {
		h.Warm(sandbox.Hint{Tenant: "t"})
		elsewhere := hint("t", "a")
		elsewhere.Spec.Isolation = config.Remote
		h.Warm(elsewhere)
		odd := hint("t", "odd")
		odd.P, odd.Hold, odd.Want = 17, -1, -3
		h.Warm(odd)
		synctest.Wait()
		h.want("states", h.states(), "[odd starting]")
		h.want("p", h.List()[0].P, 1)
		h.stop()
		h.Warm(hint("t", "late"))
		h.want("states", h.states(), "[]")
	})
}

func TestListShowsGuesses(t *testing.T) {
	bubble(t, lives(nil), sandbox.Config{}, func(t *testing.T, h *house) {
		h.Warm(hint("t", "a"))
		h.Warm(likely("t", "b", 0.6))
		time.Sleep(time.Second)
		l := h.acquire(demand("t", "s", "a"))
		defer l.Release()
		time.Sleep(4 * time.Second)
		var got []string
		for _, st := range h.List() {
			got = append(got, fmt.Sprint(st.Server, " ", st.State, " ", st.Cause, " ", st.P, " ", st.Lead, " ", time.Since(st.Asked), " ", st.Claimed, " ", st.Session))
		}
		slices.Sort(got)
		h.want("List", strings.Join(got, "; "), "a leased intent 0.8 1s 5s true s; b frozen intent 0.6 0s 5s false ")
		h.want("unclaimed", h.Stats().Unclaimed, 1)
	})
}

// What is learned of starts and footprints is kept.
func TestEstimates(t *testing.T) {
	const mib = 1 << 20
	times := []time.Duration{cold, 2 * cold, 3 * cold}
	b := lives(func(_ *sandbox.Spec, n int, l *sim.Life) {
		l.Create, l.Handshake = times[(n-1)%len(times)], 0
		l.Memory = func(time.Duration, int) int64 { return int64(n) * mib }
	})
	var kept bytes.Buffer
	bubble(t, b, sandbox.Config{}, func(t *testing.T, h *house) {
		for i := range 6 {
			h.acquire(demand("t", fmt.Sprint(i), "a")).Release()
			h.EndSession("t", fmt.Sprint(i))
			synctest.Wait()
		}
		h.Warm(hint("t", "guessed"))
		time.Sleep(time.Second)
		synctest.Wait()
		got := fmt.Sprintf("%+v", h.Estimates())
		want := fmt.Sprintf("[{Server:a Backend:process Starts:6 Cold:%v ColdP99:%v Memory:%d Peak:%d PeakP99:%d} {Server:guessed Backend:process Starts:0 Cold:%v ColdP99:%v Memory:%d Peak:%d PeakP99:%d}]",
			2*cold, 3*cold, 4*mib, 4*mib, 6*mib, cold, cold, mib, mib, mib)
		h.want("Estimates", got, want)
		if err := h.SaveEstimates(&kept); err != nil {
			t.Fatal(err)
		}
	})
	bubble(t, lives(nil), sandbox.Config{}, func(t *testing.T, h *house) {
		if err := h.LoadEstimates(bytes.NewReader(kept.Bytes())); err != nil {
			t.Fatal(err)
		}
		var again bytes.Buffer
		if err := h.SaveEstimates(&again); err != nil || again.String() != kept.String() {
			t.Errorf("what was kept is %s, %v, want %s", again.String(), err, kept.String())
		}
		h.Warm(hint("t", "a"))
		time.Sleep(time.Second)
		h.want("saved", h.acquire(demand("t", "s", "a")).Saved(), 2*cold)
		if err := h.LoadEstimates(strings.NewReader("{")); err == nil {
			t.Error("half a file has no error")
		}
	})
}

func FuzzLoadEstimates(f *testing.F) {
	f.Add([]byte(`[{"server":"a","backend":"process","cold_ns":[1,2],"memory_bytes":[3]}]`))
	f.Add([]byte(`[{"server":"a","cold_ns":[-1,0]}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := sandbox.New(sandbox.Config{Backends: map[config.Isolation]sandbox.Backend{config.Process: &sim.Backend{}}})
		if err != nil {
			t.Fatal(err)
		}
		if m.LoadEstimates(bytes.NewReader(data)) != nil {
			return
		}
		for _, e := range m.Estimates() {
			if e.Cold < 0 || e.Memory < 0 || e.Cold > e.ColdP99 {
				t.Errorf("%+v", e)
			}
		}
		if err := m.SaveEstimates(io.Discard); err != nil {
			t.Error(err)
		}
	})
}

func TestStartsOfATenantAreBounded(t *testing.T) {
	bubble(t, lives(nil), sandbox.Config{Starts: 4, Quota: func(tenant string) sandbox.Quota {
		return sandbox.Quota{Starts: map[string]int{"t": 1}[tenant]}
	}}, func(t *testing.T, h *house) {
		var calls sync.WaitGroup
		for i := range 3 {
			calls.Go(func() {
				h.acquire(demand("t", "s", fmt.Sprint(i))).Release()
				h.acquire(demand("u", "s", fmt.Sprint(i))).Release()
			})
		}
		synctest.Wait()
		h.want("states", fmt.Sprint(h.Stats().States), "map[queued:2 starting:1]")
		time.Sleep(cold + shake)
		synctest.Wait()
		h.want("states", fmt.Sprint(h.Stats().States), "map[queued:1 ready:1 starting:2]")
		calls.Wait()
	})
}

// A stream that names everything there is fills no more than its line.
func TestGuessesThatWaitAreBounded(t *testing.T) {
	bubble(t, lives(nil), sandbox.Config{}, func(t *testing.T, h *house) {
		for i := range 1000 {
			h.Warm(likely("t", fmt.Sprint(i), float64(i+1)/1000))
		}
		h.want("states", fmt.Sprint(h.Stats().States), "map[starting:1 waiting:128]")
		time.Sleep(cold + shake)
		synctest.Wait()
		h.want("the likeliest is next", slices.Contains(h.states(), "999 starting"), true)
		time.Sleep(20 * time.Second) // a hint is about what comes soon
		synctest.Wait()
		h.want("waiting", h.Stats().States[sandbox.Waiting], 0)
	})
}

// A quota that is lowered lets nothing new in until there is room.
func TestQuotaThatIsLowered(t *testing.T) {
	var limit atomic.Int64
	limit.Store(5)
	bubble(t, lives(nil), sandbox.Config{Quota: func(string) sandbox.Quota { return sandbox.Quota{Sandboxes: int(limit.Load())} }}, func(t *testing.T, h *house) {
		l := h.acquire(demand("t", "s", "leased"))
		for i := range 3 {
			h.Warm(hint("t", fmt.Sprint(i)))
		}
		time.Sleep(3 * time.Second)
		h.want("live", h.Stats().Live, 4)
		limit.Store(2)
		h.Warm(hint("t", "x"))
		time.Sleep(3 * time.Second)
		synctest.Wait()
		h.want("live", h.Stats().Live, 1)
		again := h.acquire(demand("t", "s", "y"))
		h.want("provision", again.Provision(), cold+shake)
		again.Release()
		l.Release()
	})
}
