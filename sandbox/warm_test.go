package sandbox_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/trace"
)

// hint says that server may be needed by a session of tenant.
func hint(tenant, server string) sandbox.Hint {
	return sandbox.Hint{Tenant: tenant, Spec: spec(server), Cause: trace.Intent, P: 0.8}
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
		h.want("instances", h.sim.Count().Created, 1)
		again := h.acquire(demand("t", "s", "a"))
		defer again.Release()
		h.want("the same one", again.ID(), l.ID())
		h.want("saved again", again.Saved(), time.Duration(0))
		other := h.acquire(demand("t", "s2", "a"))
		defer other.Release()
		h.want("outcome of another session", other.Outcome(), trace.Cold)
	})
}

func TestGuessUnderWayIsLate(t *testing.T) {
	bubble(t, lives(nil), sandbox.Config{}, func(t *testing.T, h *house) {
		h.Warm(hint("t", "a"))
		time.Sleep(cold / 2)
		l := h.acquire(demand("t", "s", "a"))
		defer l.Release()
		h.want("outcome", l.Outcome(), trace.Late)
		h.want("provision", l.Provision(), cold/2+shake)
		h.want("instances", h.sim.Count().Created, 1)
	})
}

func TestUnusedGuessIsStoppedAfterItsHold(t *testing.T) {
	bubble(t, lives(nil), sandbox.Config{}, func(t *testing.T, h *house) {
		h.Warm(hint("t", "a"))
		time.Sleep(cold + shake + 20*time.Second - time.Nanosecond)
		synctest.Wait()
		h.want("alive before", len(h.sim.Live()), 1)
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		h.want("alive after", len(h.sim.Live()), 0)
		h.want("stops", h.events(trace.Stop), []string{"a unused"})
		for _, e := range h.trace.Events() {
			if e.Cause != trace.Intent || e.P != 0.8 || e.Session != "" || e.Tenant != "t" {
				t.Errorf("event %+v", e)
			}
		}
	})
}
