package sandbox

import (
	"slices"
	"time"

	"github.com/specbox/specbox/trace"
)

// room returns how many calls a sandbox of that spec serves at once, or 0 if
// there is no bound: one of a session has none.
func (w *wish) room() int {
	if w.perSession() {
		return 0
	}
	return w.spec.Concurrency
}

// room is that of the box.
func (b *box) room() int {
	if b.version == "" {
		return 0
	}
	return b.spec.Concurrency
}

// load is how many calls a box serves, or will when it is born.
func (b *box) load() int { return b.uses + b.waiters }

// serving returns the box of a binding that a call is to join: one at hand
// rather than one that is not, and among these the one with the least load, of
// which the oldest. It returns nil if all have as many calls as they take.
func (s *state) serving(key binding, room int) *box {
	var best *box
	for _, b := range s.bound[key] {
		if room > 0 && b.load() >= room {
			continue
		}
		if best == nil || b.state.live() && !best.state.live() || b.state.live() == best.state.live() && b.load() < best.load() {
			best = b
		}
	}
	return best
}

// bind lets calls find a box.
func (s *state) bind(b *box) { s.bound[b.binding] = append(s.bound[b.binding], b) }

// unbind keeps calls from finding a box.
func (s *state) unbind(b *box) {
	rest := slices.DeleteFunc(s.bound[b.binding], func(o *box) bool { return o == b })
	if len(rest) == 0 {
		delete(s.bound, b.binding)
	} else {
		s.bound[b.binding] = rest
	}
}

// eased reports whether there is room for a call in a sandbox of b's binding that
// is at hand.
func (s *state) eased(b *box) bool {
	if b.room() == 0 {
		return false
	}
	best := s.serving(b.binding, b.room())
	return best != nil && best.state.live()
}

// ease tells a call that waits for the start of one more sandbox of b's server
// that there is room in one that is at hand.
func (s *state) ease(b *box) {
	if !s.eased(b) {
		return
	}
	for _, o := range s.bound[b.binding] {
		if !o.state.live() && o.waiters > 0 {
			select {
			case o.relief <- struct{}{}:
			default: // it knows
			}
			return
		}
	}
}

// move takes a call away from a start that it waits for, to a sandbox of the
// same server that is at hand and has room for it, and reports whether there is
// one.
func (s *state) move(l *Lease, now time.Time) bool {
	from := l.b
	if from.err != nil || from.state.live() {
		return false // what it waits for has happened
	}
	if !s.eased(from) {
		return false
	}
	to := s.serving(from.binding, from.room())
	l.b, l.outcome = to, trace.Cold // it found nothing that was ready for it
	s.take(to, now)
	s.leave(from, now)
	return true
}
