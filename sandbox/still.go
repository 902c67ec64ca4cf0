package sandbox

import (
	"fmt"
	"time"
)

// haltMost is how long the start of a guess is halted for calls, in all. A guess
// that is never done is worth nothing, and takes room.
const haltMost = 5 * time.Second

// crowded reports whether a call's start is under way and more starts with it
// than go on side by side. Even in the idle class the others then slow it down:
// by what they do in the kernel, and by what each leaves in the processor's
// caches. So they are halted until it is done.
func (s *state) crowded() bool { return s.starting > 0 && s.starting+s.guessing > s.maxStarts }

// mayGuess reports whether one more start may be under way on a guess.
func (s *state) mayGuess() bool {
	return s.slots.n == 0 && s.guessing < s.spec.Starts && !s.crowded()
}

// hush has the guesses that are starting halted, or go on.
func (s *state) hush() {
	if crowded := s.crowded(); crowded != s.still {
		s.still = crowded
		for b := range s.boxes {
			if b.guess && b.state == Starting {
				b.rouse()
			}
		}
	}
}

// rouse has the start of a guess look whether it is to be halted.
func (b *box) rouse() {
	select {
	case b.rest <- struct{}{}:
	default:
	}
}

// A halt is how far the start of a guess is halted. It belongs to the goroutine
// that attends the start.
type halt struct {
	m       *Manager
	b       *box
	freezer Freezer
	since   time.Time     // zero while it goes on
	left    time.Duration // for which it may be halted still
	over    *time.Timer   // fires when it has been halted for long enough
}

// look halts the start, or lets it go on, as the state wants it. It returns for
// how long it has been halted, if it goes on again, and an error if it cannot.
func (h *halt) look(done bool) (halted time.Duration, err error) {
	want := false
	h.m.view(func(s *state) {
		want = s.still && h.b.guess && h.b.state == Starting && !done
		if h.b.inst != nil {
			h.freezer, _ = h.b.inst.(Freezer)
		}
	})
	if !h.since.IsZero() {
		halted = time.Since(h.since)
	}
	want = want && h.freezer != nil && halted < h.left
	switch {
	case want == !h.since.IsZero():
		return 0, nil
	case want:
		h.since = time.Now()
		h.over.Reset(h.left)
		if err = h.freezer.Freeze(); err == nil {
			return 0, nil
		}
		h.m.cfg.Log.Debug("a start on a guess cannot be halted, and goes on", "server", h.b.server, "sandbox", h.b.id, "error", err)
		halted, h.left = time.Since(h.since), 0
	}
	h.since, h.left = time.Time{}, max(0, h.left-halted)
	h.over.Stop()
	if err = h.freezer.Thaw(); err != nil {
		return halted, fmt.Errorf("its start was halted for that of a call, and does not go on: %w", err)
	}
	return halted, nil
}
