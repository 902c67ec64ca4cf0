package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/sandbox/sim"
	"github.com/specbox/specbox/trace"
)

const usual = cold + shake // of a start; also its p99 in these tests

// racing runs f with a manager that knows so many starts of the servers "a" and
// "b", of which the n-th instance takes what takes says; nothing else takes any
// time.
func racing(t *testing.T, known int, cfg sandbox.Config, takes func(server string, n int, l *sim.Life), f func(t *testing.T, h *house)) {
	t.Helper()
	cfg.Speculation.Hedge = true
	b := lives(func(sp *sandbox.Spec, n int, l *sim.Life) { takes(sp.Server, n, l) })
	bubble(t, b, cfg, func(t *testing.T, h *house) {
		times := strings.Trim(strings.Repeat(fmt.Sprintf("%d,", usual), known), ",")
		if err := h.LoadEstimates(strings.NewReader(fmt.Sprintf(`[{"server":"a","backend":"process","cold_ns":[%s]},{"server":"b","backend":"process","cold_ns":[%[1]s]}]`, times))); err != nil {
			t.Fatal(err)
		}
		f(t, h)
	})
}

// slowFirst makes the first instance of a server take so long to be created.
func slowFirst(d time.Duration) func(string, int, *sim.Life) {
	return func(_ string, n int, l *sim.Life) {
		if n == 1 {
			l.Create = d
		}
	}
}

// A start that takes longer than its own p99 is raced by a second one, and one of
// the two stays, for all calls.
func TestSlowStartIsRaced(t *testing.T) {
	for _, tt := range []struct {
		what  string
		first time.Duration // until the first process runs
		waits time.Duration
	}{
		{"the second is faster", 5 * time.Second, 2 * usual},
		{"the first is faster", usual, usual + shake},
		{"both at once", 2*usual - shake, 2 * usual},
	} {
		racing(t, 20, sandbox.Config{Starts: 4}, slowFirst(tt.first), func(t *testing.T, h *house) {
			var calls sync.WaitGroup
			var mu sync.Mutex
			ids, outcomes, fresh := map[string]int{}, map[trace.Outcome]int{}, 0
			for range 5 {
				calls.Go(func() {
					l := h.acquire(demand("t", "s", "a"))
					defer l.Release()
					h.want(tt.what+": provision", l.Provision(), tt.waits)
					mu.Lock()
					defer mu.Unlock()
					ids[l.ID()]++
					outcomes[l.Outcome()]++
					if l.Fresh() {
						fresh++
					}
				})
			}
			time.Sleep(usual + time.Millisecond)
			synctest.Wait()
			h.want(tt.what+": states", h.states(), "[a starting a starting]")
			calls.Wait()
			synctest.Wait()
			h.want(tt.what+": sandboxes of the calls", len(ids), 1)
			h.want(tt.what+": outcomes", outcomes, map[trace.Outcome]int{trace.Cold: 1, trace.Late: 4})
			h.want(tt.what+": fresh", fresh, 1)
			h.want(tt.what+": states", h.states(), "[a ready]")
			h.want(tt.what+": live", len(h.sim.Live()), 1)
			h.want(tt.what+": starts", h.events(trace.Start), "[a a  given up before it was ready: another start of it was faster]")
			l := h.acquire(demand("t", "s", "a"))
			h.want(tt.what+": the next", fmt.Sprint(l.Outcome(), ids[l.ID()]), "warm5")
			l.Release()
		})
	}
}

// A race takes nothing from anybody.
func TestNothingIsRacedAtOthersCost(t *testing.T) {
	slow := slowFirst(3 * time.Second)
	for what, tt := range map[string]struct {
		cfg   sandbox.Config
		known int
		more  func(h *house) // before the time is up
	}{
		"too little is known":      {sandbox.Config{Starts: 4}, 15, nil},
		"no room":                  {sandbox.Config{Starts: 4, Sandboxes: 1}, 20, nil},
		"no room of the tenant":    {sandbox.Config{Starts: 4, Quota: func(string) sandbox.Quota { return sandbox.Quota{Sandboxes: 1} }}, 20, nil},
		"no start of the tenant":   {sandbox.Config{Starts: 4, Quota: func(string) sandbox.Quota { return sandbox.Quota{Starts: 1} }}, 20, nil},
		"no start":                 {sandbox.Config{Starts: 1}, 20, nil},
		"another call waits to go": {sandbox.Config{Starts: 1}, 20, func(h *house) { h.acquire(demand("u", "s", "c")).Release() }},
		"idle ones are in the way": {sandbox.Config{Starts: 4, Sandboxes: 2}, 20, func(h *house) { h.acquire(demand("u", "s", "c")).Release() }},
	} {
		racing(t, tt.known, tt.cfg, slow, func(t *testing.T, h *house) {
			var calls sync.WaitGroup
			if tt.more != nil {
				calls.Go(func() { tt.more(h) })
			}
			l := h.acquire(demand("t", "s", "a"))
			defer l.Release()
			if tt.more == nil {
				h.want(what+": provision", l.Provision(), 3*time.Second+shake)
			}
			calls.Wait()
			for _, e := range h.trace.Events() {
				if e.Kind == trace.Stop || e.Err != "" {
					t.Errorf("%s: %+v", what, e)
				}
			}
		})
	}
	off := lives(func(_ *sandbox.Spec, n int, l *sim.Life) { slow("", n, l) })
	bubble(t, off, sandbox.Config{Starts: 4}, func(t *testing.T, h *house) {
		for i := range 20 {
			h.acquire(demand("t", fmt.Sprint(i), "a")).Discard("learned")
		}
		h.want("starts, where it is off", h.sim.Count().Failed, 0)
	})
}

// The end of one start in a race is not that of the other.
func TestStartThatFailsInARace(t *testing.T) {
	fault := errors.New("fault")
	for _, tt := range []struct {
		what  string
		fails int
		waits time.Duration
	}{
		{"the first", 1, 2 * usual}, {"the second", 2, 5*time.Second + shake},
	} {
		takes := func(_ string, n int, l *sim.Life) {
			if n == 1 {
				l.Create = 5 * time.Second
			}
			if n == tt.fails {
				l.Create, l.Err = usual+cold/2, fault
			}
		}
		racing(t, 20, sandbox.Config{Starts: 4}, takes, func(t *testing.T, h *house) {
			var calls sync.WaitGroup
			for i := range 3 {
				calls.Go(func() {
					time.Sleep(time.Duration(i) * usual)
					l := h.acquire(demand("t", "s", "a"))
					h.want(tt.what+": provision", l.Provision(), max(0, tt.waits-time.Duration(i)*usual))
					l.Release()
				})
			}
			calls.Wait()
			h.want(tt.what+": states", h.states(), "[a ready]")
			h.acquire(demand("t", "s2", "a")).Release() // no call is refused for it
		})
	}
	both := func(_ string, n int, l *sim.Life) { l.Create, l.Err = usual*2, fault }
	racing(t, 20, sandbox.Config{Starts: 4}, both, func(t *testing.T, h *house) {
		var start *sandbox.StartError
		if _, err := h.Acquire(t.Context(), demand("t", "s", "a")); !errors.As(err, &start) || !errors.Is(err, fault) || start.Tries != 1 {
			t.Errorf("both fail: %v", err)
		}
	})
}

// What ends a start ends a race.
func TestEndOfARace(t *testing.T) {
	for _, tt := range []struct {
		what string
		end  func(h *house)
		want error
	}{
		{"the session ends", func(h *house) { h.EndSession("t", "s") }, sandbox.ErrSessionEnded},
		{"the manager ends", func(h *house) { h.stop() }, sandbox.ErrClosed},
	} {
		racing(t, 20, sandbox.Config{Starts: 4}, slowFirst(5*time.Second), func(t *testing.T, h *house) {
			time.AfterFunc(usual+cold, func() { tt.end(h) })
			if _, err := h.Acquire(t.Context(), demand("t", "s", "a")); !errors.Is(err, tt.want) {
				t.Errorf("%s: %v", tt.what, err)
			}
			synctest.Wait()
			h.want(tt.what+": states", h.states(), "[]")
		})
	}
	racing(t, 20, sandbox.Config{Starts: 4}, slowFirst(5*time.Second), func(t *testing.T, h *house) {
		ctx, cancel := context.WithTimeout(t.Context(), usual+cold)
		defer cancel()
		if _, err := h.Acquire(ctx, demand("t", "s", "a")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the call leaves: %v", err)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		h.want("the call leaves: states", h.states(), "[a ready]") // for the next one
	})
}

// A guess is raced only when somebody has come for it.
func TestGuessIsRacedOnceItIsClaimed(t *testing.T) {
	racing(t, 20, sandbox.Config{Starts: 4}, slowFirst(9*time.Second), func(t *testing.T, h *house) {
		h.Warm(hint("t", "a"))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		h.want("states", h.states(), "[a starting]")
		l := h.acquire(demand("t", "s", "a"))
		h.want("provision", l.Provision(), 2*usual)
		l.Release()
		synctest.Wait()
		h.want("states", h.states(), "[a ready]")
	})
}
