package sandbox_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/sandbox/sim"
	"github.com/specbox/specbox/trace"
)

const long = 8 * time.Second // the handshake of a guess in these tests

// guessing warms so many servers and waits until all of them are in their
// handshake.
func (h *house) guessing(n int) {
	for i := range n {
		h.Warm(hint("t", fmt.Sprint("guess", i)))
	}
	time.Sleep(cold)
	synctest.Wait()
}

// longGuesses are servers that take cold and shake, save those called guess.
func longGuesses(change func(l *sim.Life)) *sim.Backend {
	return lives(func(sp *sandbox.Spec, _ int, l *sim.Life) {
		if sp.Server[0] == 'g' {
			l.Handshake = long
			if change != nil {
				change(l)
			}
		}
	})
}

// Demand goes before speculation: what has begun on a guess stands still while
// the start of a call would share the processor with more than go side by side.
func TestGuessesStandStillForACall(t *testing.T) {
	for _, tt := range []struct{ starts, guesses, halted int }{{2, 3, 3}, {2, 8, 8}, {2, 1, 0}, {8, 3, 0}, {1, 1, 1}} {
		bubble(t, longGuesses(nil), sandbox.Config{Starts: tt.starts, Speculation: unused(8, 8)}, func(t *testing.T, h *house) {
			h.guessing(tt.guesses)
			h.want("halted before", len(h.sim.Frozen()), 0)
			var calls sync.WaitGroup
			calls.Go(func() {
				l := h.acquire(demand("u", "s", "a"))
				defer l.Release()
				h.want("provision", l.Provision(), cold+shake)
			})
			synctest.Wait()
			h.want(fmt.Sprint("halted ", tt), len(h.sim.Frozen()), tt.halted)
			time.Sleep(cold + shake - 1)
			synctest.Wait()
			h.want("halted at the end", len(h.sim.Frozen()), tt.halted)
			calls.Wait()
			synctest.Wait()
			h.want("halted after", len(h.sim.Frozen()), 0)
			time.Sleep(long)
			synctest.Wait()
			h.want("ready", h.Stats().States[sandbox.Ready], tt.guesses+1)
		})
	}
}

// A guess that somebody comes for goes on at once.
func TestHaltedGuessGoesOnWhenItIsClaimed(t *testing.T) {
	bubble(t, longGuesses(nil), sandbox.Config{Starts: 2, Speculation: unused(8, 8)}, func(t *testing.T, h *house) {
		h.guessing(3)
		var calls sync.WaitGroup
		calls.Go(func() { h.acquire(demand("u", "s", "a")).Release() })
		synctest.Wait()
		h.want("halted", len(h.sim.Frozen()), 3)
		calls.Go(func() {
			l := h.acquire(demand("t", "s", "guess1"))
			defer l.Release()
			h.want("outcome", l.Outcome(), trace.Late)
			h.want("provision", l.Provision(), long)
		})
		synctest.Wait()
		h.want("halted", len(h.sim.Frozen()), 2)
		h.want("in the idle class", len(h.sim.Lowly()), 2)
		calls.Wait()
	})
}

// However many calls come, a guess is not halted for ever.
func TestHaltIsBounded(t *testing.T) {
	slow := longGuesses(nil)
	usual := slow.Life
	slow.Life = func(sp *sandbox.Spec, n int) sim.Life {
		l := usual(sp, n)
		if sp.Server[0] != 'g' {
			l.Create = 3 * time.Second
		}
		return l
	}
	bubble(t, slow, sandbox.Config{Starts: 2, Speculation: unused(8, 8)}, func(t *testing.T, h *house) {
		h.guessing(3)
		var halted time.Duration
		for i := range 4 { // 12 s of calls
			var calls sync.WaitGroup
			calls.Go(func() { h.acquire(demand("u", "s", fmt.Sprint(i))).Release() })
			for range 31 {
				synctest.Wait()
				if len(h.sim.Frozen()) > 0 {
					halted += 100 * time.Millisecond
				}
				time.Sleep(100 * time.Millisecond)
			}
			calls.Wait()
		}
		if halted < 4900*time.Millisecond || halted > 5100*time.Millisecond {
			t.Errorf("the guesses were halted for %v, the bound is 5 s", halted)
		}
	})
}

// What cannot be halted goes on; what does not go on is discarded; and the time
// for which a start was halted does not count against it.
func TestHaltThatFails(t *testing.T) {
	fault := errors.New("fault")
	for _, tt := range []struct {
		what   string
		change func(l *sim.Life)
		config func(sp *sandbox.Spec)
		ready  bool
	}{
		{"it cannot be halted", func(l *sim.Life) { l.FreezeErr = fault }, nil, true},
		{"it does not go on", func(l *sim.Life) { l.ThawErr = fault }, nil, false},
		{"the time is short", nil, func(sp *sandbox.Spec) { sp.StartTimeout = long + cold + shake/2 }, true},
	} {
		bubble(t, longGuesses(tt.change), sandbox.Config{Starts: 1, Speculation: unused(8, 8)}, func(t *testing.T, h *house) {
			g := hint("t", "guess")
			g.Spec.StartTimeout = time.Minute
			if tt.config != nil {
				tt.config(g.Spec)
			}
			h.Warm(g)
			time.Sleep(cold + long - shake)
			l := h.acquire(demand("u", "s", "a")) // halts it where it would be ready
			h.want(tt.what+": provision", l.Provision(), cold+shake)
			l.Release()
			time.Sleep(cold)
			synctest.Wait()
			h.want(tt.what+": halted", len(h.sim.Frozen()), 0)
			h.want(tt.what+": ready", h.Stats().States[sandbox.Ready] == 2, tt.ready)
			h.want(tt.what+": live", h.Stats().Live, map[bool]int{true: 2, false: 1}[tt.ready])
		})
	}
}
