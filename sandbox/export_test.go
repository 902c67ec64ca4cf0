package sandbox

import (
	"errors"
	"fmt"
	"slices"
)

// Audit counts again all that the state has counted, and reports what is wrong
// with it.
func (m *Manager) Audit() error {
	var errs []error
	m.view(func(s *state) {
		wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
		var live, guesses, starting, guessing, waiting, queued, guessed int
		owners := map[owner]*holding{}
		for b := range s.boxes {
			h := owners[b.owner]
			if h == nil {
				h = &holding{}
				owners[b.owner] = h
			}
			if b.state.counts() {
				live++
				h.live++
				if b.guess {
					guesses++
					h.guesses++
				}
			}
			switch b.slot {
			case callSlot:
				starting++
				h.starting++
			case guessSlot:
				guessing++
			}
			switch {
			case b.state == Waiting && b.guess:
				guessed++
			case b.state == Waiting:
				waiting++
			case b.state == Queued:
				queued++
			}
			auditBox(s, b, wrong)
		}
		same := func(what string, got, want int) {
			if got != want {
				wrong("%s: counted %d, there are %d", what, got, want)
			}
		}
		same("live", s.live, live)
		same("guesses", s.guesses, guesses)
		same("starting", s.starting, starting)
		same("guessing", s.guessing, guessing)
		same("room", s.room.n, waiting)
		same("slots", s.slots.n, queued)
		same("guessed", s.guessed.n, guessed)
		for o, h := range s.holdings {
			want := owners[o]
			if want == nil {
				want = &holding{}
			}
			same("live of "+o.tenant, h.live, want.live)
			same("guesses of "+o.tenant, h.guesses, want.guesses)
			same("starting of "+o.tenant, h.starting, want.starting)
		}
		for key, pool := range s.pools {
			for _, b := range pool {
				if !b.guess || b.pool != key {
					wrong("%s is in a pool that it does not belong to", b.id)
				}
			}
		}
		if s.starting < s.maxStarts && s.slots.next(s.mayStart) != nil {
			wrong("a call could start, and waits")
		}
		if s.room.next(s.fits) != nil {
			wrong("a call has room, and waits")
		}
		if !s.pressed() && s.mayGuess() && s.nextGuess() != nil {
			wrong("a guess could start, and waits")
		}
		for key, bound := range s.bound {
			if len(bound) == 0 || len(bound) > 1 && bound[0].room() == 0 {
				wrong("%d sandboxes are bound to one holder", len(bound))
			}
			for _, b := range bound {
				if key != b.binding {
					wrong("%s is bound to somebody else", b.id)
				}
			}
		}
	})
	return errors.Join(errs...)
}

func auditBox(s *state, b *box, wrong func(string, ...any)) {
	found := slices.Contains(s.bound[b.binding], b)
	pooled := slices.Contains(s.pools[b.pool], b)
	usable := b.state != Draining && b.state != Gone
	switch {
	case b.state == Gone:
		wrong("%s is gone, and is kept", b.id)
	case (b.uses > 0) != (b.state == Leased) && b.state != Draining:
		wrong("%s is %s with %d leases", b.id, b.state, b.uses)
	case b.opening != nil && b.state != Leased && b.state != Draining:
		wrong("%s is being opened for nobody: it is %s", b.id, b.state)
	case b.room() > 0 && b.load() > b.room():
		wrong("%s serves %d calls at once, and may serve %d", b.id, b.load(), b.room())
	case b.state == Frozen && !b.icy:
		wrong("%s is frozen, and is not known to be", b.id)
	case b.guess && (b.uses > 0 || b.waiters > 0):
		wrong("%s is in use, and a guess still", b.id)
	case usable && b.guess && b.pool != (poolKey{}) && (!pooled || found):
		wrong("%s, a guess that is %s, cannot be found", b.id, b.state)
	case b.second && (found || pooled || b.waiters > 0 || b.rival == nil || b.state != Starting) && b.state != Draining:
		wrong("%s, begun second, is %s, and has %d calls", b.id, b.state, b.waiters)
	case b.rival != nil && (b.rival.rival != b || b.second == b.rival.second || b.state != Starting):
		wrong("%s, which is %s, races with nobody", b.id, b.state)
	case b.second:
	case usable && (!b.guess || b.pool == (poolKey{})) && (pooled || !found):
		wrong("%s, which is %s, cannot be found", b.id, b.state)
	case !usable && (pooled || found):
		wrong("%s is %s, and can be found", b.id, b.state)
	}
}
