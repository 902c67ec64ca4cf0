package sandbox

import (
	"errors"
	"slices"
	"time"
)

// hedgeFrom is how many starts of a server must be known before one is said to
// take too long.
const hedgeFrom = 16

// errOutrun is what stands in a box whose calls have another one; nobody sees it.
var errOutrun = errors.New("another start serves its calls")

// tooLong returns how long a start of b's server takes at the most, but for one
// in a hundred; 0 if that is not known, or if starts are not raced.
func (s *state) tooLong(b *box) time.Duration {
	f := s.known[b.estimateKey()]
	if !s.spec.Hedge || b.second || b.rank > 0 || f == nil || len(f.cold.values) < hedgeFrom {
		return 0
	}
	return time.Duration(f.cold.quantile(0.99))
}

// hedge begins a second start of what b is to be, if calls wait for it still and
// no budget and no other call is in the way. The first of the two that is ready
// serves them.
func (m *Manager) hedge(b *box) {
	var w wish
	m.view(func(*state) {
		w = wish{key: b.binding, tenant: b.asker, spec: b.spec, client: b.client, cause: b.cause, handler: b.handler}
	})
	second := m.prepare(&w)
	begun := false
	m.update(func(s *state, now time.Time) { begun = s.race(b, second, now) })
	if begun {
		m.cfg.Log.Debug("a start takes long, and another one is tried", "server", b.server, "sandbox", b.id, "second", second.id)
	}
}

// race begins the second start, where it may begin at once.
func (s *state) race(b, second *box, now time.Time) bool {
	if s.closed || b.state != Starting || b.guess || b.waiters == 0 || b.rival != nil || s.room.n > 0 || s.slots.n > 0 {
		return false
	}
	s.allow(second)
	if s.starting >= s.maxStarts || !s.mayStart(second) || !s.fits(second) {
		return false
	}
	second.second, second.asked = true, b.asked
	b.rival, second.rival = second, b
	s.boxes[second] = struct{}{}
	s.enter(second, Waiting, now)
	close(second.admitted)
	s.launch(second, callSlot, now)
	return true
}

// part ends a race, and returns who b ran against.
func (b *box) part() (rival *box) {
	if rival = b.rival; rival != nil {
		b.rival, rival.rival = nil, nil
	}
	return rival
}

// succeed has b serve the calls of a rival, which is stopped.
func (s *state) succeed(b, rival *box, reason string, now time.Time) {
	if b.second { // calls that come now find it in the other's place
		bound := s.bound[rival.binding]
		bound[slices.Index(bound, rival)] = b
		b.second = false
	}
	b.waiters += rival.waiters
	rival.heir = b
	s.stop(rival, reason, errOutrun, now)
}

// outrun ends the race that b has won. How long the other has taken so far is
// remembered: a server whose slow starts are not counted seems faster than it is.
func (s *state) outrun(b *box, now time.Time) {
	rival := b.part()
	if rival == nil {
		return
	}
	if b.second && rival.demanded == nil { // of one that was a guess it is not known how long it would have taken
		s.started(rival, now.Sub(rival.since), false, false)
	}
	s.succeed(b, rival, reasonOutrun, now)
}

// retire takes a box whose start went wrong out of a race that goes on without
// it, and reports whether there is one. It is the other's end that counts.
func (s *state) retire(b *box, err error, now time.Time) bool {
	rival := b.part()
	switch {
	case rival == nil:
		return false
	case b.second:
		s.stop(b, reasonStart, err, now)
	default:
		s.succeed(rival, b, reasonStart, now)
	}
	return true
}

// successor returns the box that serves the calls of b.
func (b *box) successor() *box {
	for b.heir != nil {
		b = b.heir
	}
	return b
}
