package sandbox

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/trace"
	"github.com/specbox/specbox/wire"
)

// Speculation bounds what is started on a guess: the sandboxes that nobody has
// come for yet. They count in all other budgets as well. The zero value is the
// default.
type Speculation struct {
	Sandboxes int           // unclaimed at once; default a quarter of Config.Sandboxes, at least 1; negative means none
	Memory    int64         // bytes in use by these; 0 means no limit of their own
	Starts    int           // under way at once, besides those of calls; default half of Config.Starts, at least 1
	Hold      time.Duration // how long one is kept unused where its hint does not say; default 20 s
	Freeze    Freeze        // default FreezeUnused
	// FreezeAfter is how long an unclaimed sandbox is left alone before it is
	// frozen, so that it can finish what servers do after their start; default 2 s.
	FreezeAfter time.Duration
	// Hedge has a call's start that takes longer than all but one in a hundred of
	// its server raced by a second one, where no budget is in the way. The first
	// that is ready serves the calls, and the other is taken down.
	Hedge bool
}

func (c Speculation) check() error {
	switch {
	case c.Memory < 0 || c.Starts < 0 || c.Hold < 0 || c.FreezeAfter < 0:
		return fmt.Errorf("sandbox: limits of speculation must not be negative: memory %d, starts %d, hold %v, freeze after %v", c.Memory, c.Starts, c.Hold, c.FreezeAfter)
	case !slices.Contains([]Freeze{"", FreezeUnused, FreezeNever, FreezeIdle}, c.Freeze):
		return fmt.Errorf("sandbox: freeze %q is not known; there are %q, %q and %q", c.Freeze, FreezeUnused, FreezeNever, FreezeIdle)
	}
	return nil
}

// fill fills in the defaults.
func (c *Speculation) fill(sandboxes, starts int) {
	c.Sandboxes = cmp.Or(c.Sandboxes, max(1, sandboxes/4))
	c.Starts = cmp.Or(c.Starts, max(1, starts/2))
	c.Hold = cmp.Or(c.Hold, 20*time.Second)
	c.Freeze = cmp.Or(c.Freeze, FreezeUnused)
	c.FreezeAfter = cmp.Or(c.FreezeAfter, 2*time.Second)
}

// A Freeze says which sandboxes are halted while nobody uses them.
type Freeze string

const (
	FreezeUnused Freeze = "unused" // those that nobody has come for yet
	FreezeNever  Freeze = "never"
	// FreezeIdle halts also those of a session that were not used for a while,
	// save where [Lease.KeepAwake] was called. A server that does something on
	// its own accord between calls does it only when it is called again.
	FreezeIdle Freeze = "idle"
)

// freezeIdleAfter is how long a sandbox that was used stays warm to the touch:
// most pauses within one turn of an agent are shorter.
const freezeIdleAfter = 10 * time.Second

// A Hint says that a sandbox may be needed soon.
type Hint struct {
	Tenant string
	// Session, if it is known, is who may need it: nothing is started for one
	// that holds such a sandbox already. What is started belongs to the tenant.
	Session string
	Spec    *Spec
	// Client is what the handshake presents. The sandbox serves demands that
	// present the same, and no others.
	Client Client
	Cause  trace.Cause   // why it is expected; "" means trace.Hint
	P      float64       // how likely it is to be needed, from 0 to 1; 0 means one half
	Hold   time.Duration // how long it is kept for that; 0 means Speculation.Hold
	// Want is how many unclaimed ones there should be for this tenant, server
	// and client, so that the forecasts of concurrent sessions add up; 0 means
	// 1. One that sessions share is wanted once.
	Want int
}

const (
	maxWant    = 64  // of one hint
	maxGuessed = 128 // guesses of one owner that wait; beyond it the least valuable is forgotten
	evenOdds   = 0.5 // P of a hint that does not say
	// maxDisplacers is how many owners' guesses are tried when there is no room:
	// it is done under the lock.
	maxDisplacers = 8
	// A guess displaces another only if it is worth this many times as much:
	// what has been started is not thrown away for a rounding error.
	betterBy = 1.25
)

// A poolKey says whom an unclaimed sandbox of scope session may serve: any
// session of its owner whose client presents the same.
type poolKey struct {
	owner
	server, hash string
	client       string
}

// A wish is what a call or a hint is about.
type wish struct {
	key             binding
	pool            poolKey // zero until it is needed, and where sessions share a sandbox
	tenant, session string
	spec            *Spec
	client          Client
	cause           trace.Cause
	handler         wire.Handler // of a call
}

// perSession reports whether what is wished for serves one session alone.
func (w *wish) perSession() bool { return w.key.version == "" }

func (w *wish) findPool(info []byte) {
	if !w.perSession() {
		return
	}
	c := w.client
	if c.Info == nil {
		c.Info = info
	}
	if c.Capabilities == nil {
		c.Capabilities = []byte("{}")
	}
	w.pool = poolKey{
		owner: w.key.owner, server: w.key.server, hash: w.key.hash,
		client: cmp.Or(c.Version, newest) + "\x00" + string(c.Capabilities) + "\x00" + string(c.Info),
	}
}

// Warm is a hint that a tenant may need a sandbox soon. It returns at once and
// has no error for its caller: what a hint cannot do, the call will do. It never
// takes away what is in demand, and never delays a lease: what it starts runs
// in the idle class where the backend has one, waits behind every call, and
// leaves room for the next ones. A hint that is repeated renews the hold of
// what it has started.
func (m *Manager) Warm(h Hint) {
	if h.Spec == nil || m.cfg.Speculation.Sandboxes < 0 || m.cfg.Backends[h.Spec.Isolation] == nil {
		return
	}
	h.Cause = cmp.Or(h.Cause, trace.Hint)
	h.P = min(max(cmp.Or(h.P, evenOdds), 0), 1)
	h.Hold = cmp.Or(max(h.Hold, 0), m.cfg.Speculation.Hold)
	h.Want = min(max(h.Want, 1), maxWant)
	w := m.wish(h.Tenant, h.Session, h.Spec, h.Client, h.Cause)
	w.findPool(m.cfg.Info)
	var next *box
	for more := true; more; {
		m.update(func(s *state, now time.Time) { more = s.heed(&w, &h, next, now) })
		if more {
			next = m.prepare(&w)
			next.guess, next.p, next.hold = true, h.P, h.Hold
			next.demanded = make(chan struct{})
			next.pool = w.pool
			next.inbox = &inbox{drained: make(chan struct{})}
			next.inbox.over = func() bool { return m.overflow(next) }
			if w.perSession() {
				next.session = ""
			}
		}
	}
}

// heed does what a hint asks for, and adds next, if that is not nil. It reports
// whether one more is wanted.
func (s *state) heed(w *wish, h *Hint, next *box, now time.Time) (more bool) {
	if s.closed {
		return false
	}
	if _, ok := s.ended[[2]string{w.tenant, w.session}]; ok {
		return false
	}
	if f := s.failures[failKey{w.key.owner, w.key.server, w.key.hash}]; f != nil && (now.Before(f.doubt) || f.err != nil && now.Before(f.err.Retry)) {
		return false
	}
	have, want := s.pools[w.pool], h.Want
	if there := s.bound[w.key]; len(there) > 0 && (!there[0].guess || w.perSession()) {
		return false // it is there already
	} else if !w.perSession() {
		have, want = there, 1
	}
	for _, b := range have[:min(len(have), want)] {
		s.renew(b, h, now)
	}
	if len(have) >= want {
		return false
	}
	if next == nil {
		return true
	}
	s.guess(next, now)
	return len(have)+1 < want
}

// guess adds a box that nobody has come for.
func (s *state) guess(b *box, now time.Time) {
	if waiting := s.guessed.of(b.owner); len(waiting) >= maxGuessed {
		last := waiting[len(waiting)-1]
		if s.worth(last) >= s.worth(b) {
			return
		}
		s.stop(last, "", context.Canceled, now)
	}
	s.allow(b)
	s.boxes[b] = struct{}{}
	if b.pool == (poolKey{}) {
		s.bind(b)
	} else {
		s.pools[b.pool] = append(s.pools[b.pool], b)
	}
	b.until = now.Add(b.hold)
	s.enter(b, Waiting, now)
	s.line(b)
	s.lookAt(b.until)
}

// line puts a guess in the line of its owner, behind those that are worth more.
func (s *state) line(b *box) {
	s.stirred = true
	mine := s.worth(b)
	s.guessed.insert(b, func(o *box) bool { return s.worth(o) < mine })
}

// renew brings what a hint has started before up to date.
func (s *state) renew(b *box, h *Hint, now time.Time) {
	b.hold = h.Hold
	if t := now.Add(h.Hold); t.After(b.until) {
		b.until = t
	}
	if b.p == h.P && b.cause == h.Cause {
		return
	}
	s.stirred = true
	b.p = h.P
	if b.state == Waiting {
		b.cause = h.Cause
		s.guessed.remove(b)
		s.line(b)
	}
}

// unclaimed returns the box that may serve a wish soonest among those that
// nobody has come for: one at hand, or else the one that is furthest in its
// start. A catalogue takes nothing that was started for a call.
func (s *state) unclaimed(w *wish) *box {
	if w.pool == (poolKey{}) || rank(w.cause) > 0 {
		return nil
	}
	distance := func(b *box) int { return slices.Index([]State{Ready, Frozen, Starting, Waiting}, b.state) }
	var best *box
	for _, b := range s.pools[w.pool] { // older ones first: they are further
		if best == nil || distance(b) < distance(best) || b.state == Starting && best.state == Starting && b.since.Before(best.since) {
			best = b
		}
	}
	return best
}

// claim binds a guess to the session of a wish, for good.
func (s *state) claim(b *box, w *wish) {
	s.unpool(b)
	if b.state.counts() {
		s.guesses--
		s.holding(b.owner).guesses--
	}
	s.stirred = true
	b.guess = false
	b.session, b.handler = w.key.session, w.handler // the rest of its binding is that of the wish already
	if w.perSession() {
		s.bind(b)
	}
	if b.slot == guessSlot {
		s.fillSlot(b, callSlot)
	}
	close(b.demanded)
}

// unpool takes a guess out of its pool.
func (s *state) unpool(b *box) {
	if !b.guess || b.pool == (poolKey{}) {
		return
	}
	rest := slices.DeleteFunc(s.pools[b.pool], func(o *box) bool { return o == b })
	if len(rest) == 0 {
		delete(s.pools, b.pool)
	} else {
		s.pools[b.pool] = rest
	}
}

// speculate begins what was asked for on a guess, as far as no call wants the
// means for it.
func (s *state) speculate(now time.Time) {
	if s.pressed() {
		return
	}
	for s.guessed.n > 0 && s.mayGuess() {
		b := s.nextGuess()
		if b == nil {
			s.displace(now)
			return
		}
		s.guessed.remove(b)
		_, b.lowly = b.backend.(Speculator)
		close(b.admitted)
		s.launch(b, guessSlot, now)
	}
}

// nextGuess returns the guess that may begin, of the owner who has fewest: what
// another owner had to give up for it does not go back to that owner.
func (s *state) nextGuess() *box {
	var next *box
	s.guessed.heads(func(b *box) {
		_, idle := b.backend.(Speculator)
		if (idle || s.starting == 0) && (next == nil || s.holding(b.owner).guesses < s.holding(next.owner).guesses) && s.hindrance(b) == nil {
			next = b
		}
	})
	return next
}

// pressed reports whether a call waits for what all share.
func (s *state) pressed() bool {
	pressed := false
	if s.room.n > 0 {
		s.room.all(func(b *box) {
			_, own := s.obstacle(b)
			pressed = pressed || !own
		})
	}
	return pressed
}

// reserve is the room that guesses leave free, so that the next calls need not
// wait until a guess is gone.
func (s *state) reserve() int { return max(1, min(s.maxStarts, s.max/4)) }

// hindrance says what keeps a guess from being started: it returns which other
// guesses would have to go for it, or nil if nothing does.
func (s *state) hindrance(b *box) func(*box) bool {
	anyone := func(*box) bool { return true }
	own := func(c *box) bool { return c.owner == b.owner }
	h, need := s.holding(b.owner), s.expected(b)
	switch q := h.quota; {
	case len(s.room.of(b.owner)) > 0:
		return func(*box) bool { return false } // a call of the owner waits
	case q.Sandboxes > 0 && h.live+2 > q.Sandboxes: // this one, and the next call's
		return own
	case q.Unclaimed > 0 && h.guesses >= q.Unclaimed:
		return own
	case s.guesses >= s.spec.Sandboxes, s.live+1+s.reserve() > s.max:
		return anyone
	case q.Memory > 0 && s.memory(own)+need > q.Memory:
		return own
	case s.spec.Memory > 0 && s.memory(func(c *box) bool { return c.guess })+need > s.spec.Memory,
		s.maxMemory > 0 && s.memory(anyone)+need > s.maxMemory:
		return anyone
	}
	return nil
}

// displace stops a guess for one that waits, where that helps: one at a time.
// Among those of one owner it goes for one that is worth more. Another owner's
// goes if that owner has clearly more of them, so that whoever is surest of all
// that it guesses does not have all the room.
func (s *state) displace(now time.Time) {
	if s.draining(func(b *box) bool { return b.guess }) > 0 {
		return
	}
	for n, b := range s.firstGuesses(now) {
		match := s.hindrance(b)
		if n == maxDisplacers {
			return
		}
		if match == nil {
			continue
		}
		few, mine := s.holding(b.owner).guesses, s.value(b, now)
		victim := s.worst(now, func(c *box) bool {
			if !match(c) {
				return false
			}
			if c.owner != b.owner {
				return s.holding(c.owner).guesses > few+1
			}
			return s.value(c, now)*betterBy < mine
		})
		if victim != nil {
			s.stop(victim, ReasonQuota, context.Canceled, now)
			return
		}
	}
}

// firstGuesses returns the best guess of each owner that waits: those of owners
// who have few started first, and then by value.
func (s *state) firstGuesses(now time.Time) []*box {
	var heads []*box
	s.guessed.heads(func(b *box) { heads = append(heads, b) })
	slices.SortFunc(heads, func(a, b *box) int {
		return cmp.Or(cmp.Compare(s.holding(a.owner).guesses, s.holding(b.owner).guesses), cmp.Compare(s.value(b, now), s.value(a, now)))
	})
	return heads
}

// trim stops guesses that use the room which the next calls need.
func (s *state) trim(now time.Time) {
	if need := s.live + s.reserve() - s.max; need > 0 {
		s.cut(need, func(*box) bool { return true }, now)
	}
	for o := range s.tight {
		h := s.holding(o)
		if q := h.quota.Sandboxes; h.guesses > 0 && q > 0 && h.live+1 > q {
			s.cut(h.live+1-q, func(b *box) bool { return b.owner == o }, now)
		}
	}
	clear(s.tight)
}

// cut has that many of the boxes that match go, guesses of least value; what is
// draining already counts.
func (s *state) cut(need int, match func(*box) bool, now time.Time) {
	for need -= s.draining(match); need > 0; need-- {
		victim := s.worst(now, match)
		if victim == nil {
			return
		}
		s.stop(victim, ReasonQuota, context.Canceled, now)
	}
}

// worst returns the guess that has begun and is worth least among those that
// match, or nil.
func (s *state) worst(now time.Time, match func(*box) bool) *box {
	var worst *box
	for b := range s.boxes {
		if b.guess && (b.state == Starting || b.state.live()) && match(b) &&
			(worst == nil || s.value(b, now) < s.value(worst, now)) {
			worst = b
		}
	}
	return worst
}

// worth is what a guess may save for each byte that it takes.
func (s *state) worth(b *box) float64 {
	const least = 8 << 20 // bytes: less is not worth a distinction
	return b.p * s.cold(b).Seconds() / float64(max(s.expected(b), least))
}

// value is worth, less of it the longer nobody has come: of a guess near the
// end of its hold a quarter is left.
func (s *state) value(b *box, now time.Time) float64 {
	left := 1.0
	if b.state != Starting && b.hold > 0 {
		left = min(1, max(0, b.until.Sub(now).Seconds()/b.hold.Seconds()))
	}
	return s.worth(b) * (1 + 3*left) / 4
}

// chillAt returns when a box is to be frozen; zero means never.
func (s *state) chillAt(b *box) time.Time {
	switch {
	case b.state != Ready || b.stiff || b.icy || s.spec.Freeze == FreezeNever:
		return time.Time{}
	case b.guess:
		return b.ready.Add(s.spec.FreezeAfter)
	case s.spec.Freeze == FreezeIdle && !b.awake && (b.spec.Scope == "" || b.spec.Scope == config.PerSession):
		return b.idle.Add(freezeIdleAfter)
	}
	return time.Time{}
}

// overflow discards a guess whose server says more than is kept of it. It
// reports whether it is to be heard all the same: somebody has come for it.
func (m *Manager) overflow(b *box) (keep bool) {
	m.update(func(s *state, now time.Time) {
		if keep = !b.guess; !keep {
			s.stop(b, reasonInbox, context.Canceled, now)
		}
	})
	return keep
}
