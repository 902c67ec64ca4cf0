package sandbox

import (
	"context"
	"fmt"
	"time"
)

// schedule gives room and slots to those that wait: first to calls, and what
// they leave to guesses.
func (s *state) schedule(now time.Time) {
	for s.room.n > 0 {
		b := s.room.next(s.fits)
		if b == nil {
			s.makeRoom(now)
			break
		}
		s.enter(b, Queued, now)
		close(b.admitted)
		s.slots.push(b)
	}
	for s.starting < s.maxStarts && s.slots.n > 0 {
		b := s.slots.next(s.mayStart)
		if b == nil {
			break
		}
		s.launch(b, callSlot, now)
	}
	if s.guesses > 0 {
		s.trim(now)
	}
	if s.stirred && s.guessed.n > 0 {
		s.speculate(now)
	}
	s.stirred = false
	s.hush()
}

// launch begins the start of a box.
func (s *state) launch(b *box, in slot, now time.Time) {
	s.enter(b, Starting, now)
	s.fillSlot(b, in)
	ctx, cancel := context.WithCancel(context.Background())
	b.cancel = cancel
	s.begin(ctx, b)
}

// fillSlot counts a box among the starts under way, as what it is now.
func (s *state) fillSlot(b *box, in slot) {
	add := func(n int) {
		switch b.slot {
		case callSlot:
			s.starting += n
			s.holding(b.owner).starting += n
		case guessSlot:
			s.guessing += n
		}
	}
	s.stirred = true
	add(-1)
	b.slot = in
	add(1)
}

// allow notes the quota of b's owner, as it was when b was asked for.
func (s *state) allow(b *box) {
	if h := s.holding(b.owner); h.quota != b.quota {
		h.quota = b.quota
		s.tight[b.owner] = struct{}{}
	}
}

// mayStart reports whether the owner of b may have one more start under way.
func (s *state) mayStart(b *box) bool {
	h := s.holding(b.owner)
	return h.quota.Starts <= 0 || h.starting < h.quota.Starts
}

// obstacle says which budget keeps a call's box waiting, and whether it is one
// that only boxes of the same owner can make room in. It says "" if there is
// none but that of all sandboxes.
func (s *state) obstacle(b *box) (limit string, own bool) {
	h := s.holding(b.owner)
	if q := h.quota.Sandboxes; q > 0 && h.live >= q {
		return fmt.Sprintf("the quota of tenant %q is %d sandboxes (tenants: sandboxes)", b.tenant, q), true
	}
	if q := h.quota.Memory; q > 0 && h.live > 0 {
		used := s.memory(func(c *box) bool { return c.owner == b.owner })
		if used >= q || used+s.expected(b) > q {
			return fmt.Sprintf("the quota of tenant %q is %d MiB of memory, and %d MiB are in use (tenants: memory)", b.tenant, q>>20, used>>20), true
		}
	}
	if s.maxMemory > 0 && s.live > 0 {
		used := s.memory(func(*box) bool { return true })
		if used >= s.maxMemory || used+s.expected(b) > s.maxMemory {
			return fmt.Sprintf("all sandboxes may use %d MiB of memory, and %d MiB are in use (limits: memory)", s.maxMemory>>20, used>>20), false
		}
	}
	return "", false
}

// memory is what the boxes that match use. What has not been looked at counts
// with what its server used before.
func (s *state) memory(match func(*box) bool) int64 {
	var sum int64
	for b := range s.boxes {
		if b.state.counts() && match(b) {
			if m := b.usage.Memory; m > 0 {
				sum += m
			} else {
				sum += s.expected(b)
			}
		}
	}
	return sum
}

func (s *state) fits(b *box) bool {
	if s.live >= s.max {
		return false
	}
	limit, _ := s.obstacle(b)
	return limit == ""
}

// makeRoom stops what is in nobody's use for the calls that wait, as much as
// needed and no more: what is draining already makes room as well.
func (s *state) makeRoom(now time.Time) {
	closing, closingOf := 0, map[owner]int{}
	for b := range s.boxes {
		if b.state == Draining {
			closing++
			closingOf[b.owner]++
		}
	}
	free := s.max - s.live
	s.room.all(func(b *box) {
		limit, own := s.obstacle(b)
		switch {
		case s.eased(b): // its call goes where there is room
		case own && closingOf[b.owner] > 0:
			closingOf[b.owner]--
			closing--
		case own:
			s.evict(now, func(c *box) bool { return c.owner == b.owner })
		case limit == "" && free > 0: // it only waits behind others of its owner
			free--
		case closing > 0:
			closing--
		default:
			s.evict(now, func(*box) bool { return true })
		}
	})
}

// draining counts the boxes that match and are being stopped.
func (s *state) draining(match func(*box) bool) int {
	n := 0
	for b := range s.boxes {
		if b.state == Draining && match(b) {
			n++
		}
	}
	return n
}

// evict stops one of the boxes that match: the guess that is worth least, or
// else the one that is idle longest.
func (s *state) evict(now time.Time, match func(*box) bool) {
	victim := s.worst(now, match)
	if victim == nil {
		for b := range s.boxes {
			if (b.state == Ready || b.state == Frozen) && match(b) && (victim == nil || b.idle.Before(victim.idle)) {
				victim = b
			}
		}
	}
	if victim != nil {
		s.stop(victim, ReasonQuota, context.Canceled, now)
	}
}

// freeSlot lets another start begin.
func (s *state) freeSlot(b *box) { s.fillSlot(b, noSlot) }

// shrink stops what is in nobody's use where a budget of memory is exceeded, has
// memory of what is frozen taken back where it is short, and reports whether there is such a budget at all.
func (s *state) shrink(now time.Time) (bounded bool) {
	over := func(limit int64, match func(*box) bool) {
		if limit <= 0 {
			return
		}
		bounded = true
		used := s.memory(match)
		if s.draining(match) == 0 && used > limit {
			s.evict(now, match)
		}
		if used > limit/shortDen*shortNum {
			s.wring(match)
		}
	}
	if s.live == 0 {
		return false
	}
	for o, h := range s.holdings {
		if h.live > 0 {
			over(h.quota.Memory, func(b *box) bool { return b.owner == o })
		}
	}
	over(s.spec.Memory, func(b *box) bool { return b.guess })
	over(s.maxMemory, func(*box) bool { return true })
	return bounded
}

// noRoom returns the error of a call that waited for room in vain.
func (s *state) noRoom(b *box, waited time.Duration) error {
	limit, _ := s.obstacle(b)
	e := &QuotaError{Server: b.server, Tenant: b.asker, Limit: limit, Waited: waited, Held: map[string]int{}}
	if e.Limit == "" {
		e.Limit = fmt.Sprintf("all %d sandboxes are in use (limits: sandboxes)", s.max)
	}
	for c := range s.boxes {
		switch {
		case c.state == Waiting:
		case c.shared || c.tenant == b.asker:
			e.Held[c.server]++
		default:
			e.Others++
		}
	}
	return e
}
