package sandbox

import (
	"errors"
	"time"
)

// A budget of memory is short from three quarters on: then frozen sandboxes give
// back what can be read again, before one of them has to go.
const shortNum, shortDen = 3, 4

// wring has the machine take back memory of one of the frozen boxes that match:
// of the one that has been idle longest among those of which it was not taken
// since they were frozen. One box is wrung out at a time: what is enough is seen
// when it is done.
func (s *state) wring(match func(*box) bool) {
	if s.wringing {
		return
	}
	var driest *box
	for b := range s.boxes {
		if b.state != Frozen || b.wrung || !match(b) {
			continue
		}
		if _, can := b.inst.(Reclaimer); can && (driest == nil || b.idle.Before(driest.idle)) {
			driest = b
		}
	}
	if driest != nil {
		driest.wrung, s.wringing = true, true
		s.reclaim(driest)
	}
}

// reclaim takes back memory of a box. It is on no call's way: whoever comes for
// the box has it thawed meanwhile.
func (m *Manager) reclaim(b *box) {
	before := b.inst.Usage().Memory
	err := b.inst.(Reclaimer).Reclaim()
	after := b.inst.Usage()
	switch {
	case errors.Is(err, errors.ErrUnsupported): // no harm: what it has it keeps
	case err != nil:
		m.cfg.Log.Debug("memory of a frozen sandbox is not taken back", "server", b.server, "sandbox", b.id, "error", err)
	default:
		m.cfg.Log.Debug("memory of a frozen sandbox is taken back", "server", b.server, "sandbox", b.id, "before", before, "after", after.Memory)
	}
	m.update(func(s *state, now time.Time) {
		s.wringing, s.stirred = false, true
		if b.state.live() {
			b.usage = after // what it will use when it goes on is known from before
		}
		s.lookAt(now)
	})
}
