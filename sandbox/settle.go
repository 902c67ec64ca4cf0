package sandbox

import (
	"context"
	"fmt"
	"time"

	"github.com/specbox/specbox/wire"
)

type demandedKey struct{}

// Demanded returns a channel that is closed when somebody comes for what a
// [Speculator] is starting, or nil if ctx is not of such a start. A backend in
// which Speculate takes more than a moment leaves the idle class then.
func Demanded(ctx context.Context) <-chan struct{} {
	c, _ := ctx.Value(demandedKey{}).(<-chan struct{})
	return c
}

// create makes the instance of a box, in the idle class if that is asked for
// and nobody has come for it yet.
func (m *Manager) create(ctx context.Context, b *box, lowly bool) (Instance, error) {
	if lowly {
		select {
		case <-b.demanded:
			m.update(func(*state, time.Time) { b.lowly = false })
		default:
			ctx = context.WithValue(ctx, demandedKey{}, (<-chan struct{})(b.demanded))
			return b.backend.(Speculator).Speculate(ctx, b.id, b.spec, b.stderr)
		}
	}
	return b.backend.Create(ctx, b.id, b.spec, b.stderr)
}

// attend looks after a start until it is done: it ends one that takes too long,
// gives its slot away when it takes long, and promotes it when somebody comes
// for it. The time that a start may take begins anew then: in the idle class it
// may have had none. A guess is halted while the start of a call wants all there
// is; that time does not count.
func (m *Manager) attend(b *box, limit time.Duration, fail func(error), done <-chan struct{}) {
	hold := slotHold
	if b.demanded != nil {
		hold = guessSlotHold
	}
	deadline := time.Now().Add(limit)
	slot, end, over := time.NewTimer(hold), time.NewTimer(limit), time.NewTimer(haltMost)
	defer slot.Stop()
	defer end.Stop()
	defer over.Stop()
	demanded := b.demanded
	h := halt{m: m, b: b, left: haltMost, over: over}
	race := time.NewTimer(limit)
	race.Stop()
	defer race.Stop()
	plan := func() {
		m.view(func(s *state) {
			if d := s.tooLong(b); d > 0 && !b.guess {
				race.Reset(d)
			}
		})
	}
	plan()
	look := func(done bool) {
		halted, err := h.look(done)
		if err != nil {
			fail(err)
		}
		if halted > 0 {
			deadline = deadline.Add(halted)
			end.Reset(time.Until(deadline))
		}
	}
	for {
		select {
		case <-done:
			look(true)
			return
		case <-slot.C:
			m.update(func(s *state, _ time.Time) { s.freeSlot(b) })
		case <-end.C:
			if h.since.IsZero() {
				fail(fmt.Errorf("it was not ready within %v (start_timeout: raise it if the server needs longer)", limit))
			}
		case <-b.rest:
			look(false)
		case <-over.C:
			look(false)
		case <-demanded:
			demanded = nil
			look(false)
			deadline = time.Now().Add(limit)
			slot.Reset(slotHold)
			end.Reset(limit)
			m.promote(b)
			plan()
		case <-race.C:
			m.hedge(b)
		}
	}
}

// promote takes the instance of a box out of the idle class, if it is there.
func (m *Manager) promote(b *box) {
	var inst Instance
	m.view(func(*state) {
		if b.lowly {
			inst = b.inst
		}
	})
	if inst == nil {
		return
	}
	if err := inst.(Promoter).Promote(); err != nil { // it goes on in the idle class: slower, no more
		m.cfg.Log.Warn("sandbox stays in the idle class", "server", b.server, "sandbox", b.id, "error", err)
	}
	m.update(func(*state, time.Time) { b.lowly = false })
}

// settle makes the instance of a box what the state says of it: frozen, or fit
// for the calls that hold it. It is called from the goroutine of the box alone.
func (m *Manager) settle(b *box) {
	freezer, _ := b.inst.(Freezer)
	var chill, open bool
	m.update(func(s *state, _ time.Time) {
		chill = b.chill && b.state == Ready && freezer != nil
		b.stiff = b.stiff || freezer == nil
		b.chill = false
		b.icy = b.icy || chill // from here on, who comes waits until it is thawed
	})
	if chill {
		err := freezer.Freeze()
		m.update(func(s *state, now time.Time) {
			if err != nil {
				b.stiff = true
			} else if b.state == Ready {
				s.enter(b, Frozen, now)
			}
		})
		if err != nil {
			m.cfg.Log.Warn("sandbox cannot be frozen, and goes on", "server", b.server, "sandbox", b.id, "error", err)
			err = freezer.Thaw()
			m.update(func(*state, time.Time) { b.icy = err != nil })
		}
	}
	m.view(func(*state) { open = b.opening != nil })
	if open {
		m.open(b, freezer)
	}
}

// open makes a box fit for the calls that hold it, and lets them go on.
func (m *Manager) open(b *box, freezer Freezer) {
	m.promote(b)
	var icy bool
	var kept *inbox
	var handler wire.Handler
	m.view(func(*state) { icy, kept, handler = b.icy, b.inbox, b.handler })
	var err error
	if icy {
		err = freezer.Thaw()
	}
	if kept != nil && err == nil {
		if handler == nil {
			handler = refuser{}
		}
		kept.open(b.conn, handler)
	}
	if err != nil {
		m.cfg.Log.Warn("sandbox cannot be thawed, and is stopped", "server", b.server, "sandbox", b.id, "error", err)
	}
	lost := b.conn.Err() != nil
	m.update(func(s *state, now time.Time) {
		switch {
		case err != nil:
			s.stop(b, reasonThaw, nil, now)
		case lost && b.state.live(): // no call has reached it: they get another one
			s.stop(b, ReasonCrash, nil, now)
			s.doubted(b, now)
		default:
			b.icy, b.inbox = false, nil
		}
		b.admit()
	})
}

// admit lets the calls go on that wait for a box to be fit.
func (b *box) admit() {
	if b.opening != nil {
		close(b.opening)
		b.opening = nil
	}
}
