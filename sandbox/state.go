package sandbox

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/specbox/specbox/trace"
	"github.com/specbox/specbox/wire"
)

// A State says where a sandbox is in its life.
type State string

const (
	Waiting  State = "waiting"  // for room in the budgets
	Queued   State = "queued"   // it has room, and waits until fewer starts are under way
	Starting State = "starting" // until its handshake is done
	Ready    State = "ready"
	Stopping State = "stopping" // it still counts
)

// Why a sandbox was stopped: the Detail of a [trace.Stop] event.
const (
	ReasonIdle     = "idle"
	ReasonSession  = "session end"
	ReasonCrash    = "crash"
	ReasonShutdown = "shutdown"
	ReasonOperator = "stopped by operator"
	ReasonQuota    = "quota"
	reasonStart    = "failed start" // never seen in an event: it was never ready
)

// A binding says whom a sandbox serves.
type binding struct {
	owner
	session string // of scope session
	server  string
	hash    string
	version string // what the handshake of a sandbox presents that sessions share
}

// A box is one sandbox, from the wish for it until it is gone. What stands
// above the line never changes; the rest is changed in update only, save where
// it says otherwise.
type box struct {
	id string
	binding
	demand   Demand
	backend  Backend
	client   Client // that the handshake presents
	quota    Quota  // of its owner, when it was asked for
	stderr   *stderr
	admitted chan struct{} // closed when there is room for it
	born     chan struct{} // closed when it is ready, or never will be: err is then set
	gone     chan struct{} // closed when it counts no more

	// ---

	state   State
	rank    int // 0 if a call waits for it, 1 if not
	since   time.Time
	slot    bool // it counts among the starts under way
	waiters int  // calls that wait until it is born
	uses    int  // leases
	fresh   bool // there was no lease yet
	served  bool // a lease was given back while the server lived
	idle    time.Time
	ready   time.Time
	reason  string
	err     error
	exit    string
	cancel  context.CancelFunc // ends the start, or the life
	inst    Instance
	conn    *wire.Conn // of a box that is born, never changed then
	init    []byte     // result of initialize or server/discover
	modern  bool       // the server was met in the modern era
	usage   Usage      // when it was last looked at
}

// A holding is what an owner has.
type holding struct {
	live  int // boxes that count
	quota Quota
}

type failKey struct {
	owner
	server, hash string
}

// A failure remembers starts that went wrong.
type failure struct {
	starts  int // in a row
	crashes int // right after they were ready, in a row
	err     *StartError
}

const (
	backoffMin = time.Second
	backoffMax = time.Minute
	// A sandbox that dies this soon, and has answered nothing, counts as a
	// start that went wrong, from the third in a row on: below that it may be
	// what the call asked for.
	infancy       = 3 * time.Second
	infantCrashes = 3
	maxFailures   = 1024 // what has not been tried for a while is forgotten beyond
	maxEnded      = 4096 // sessions that ended: late calls of theirs start nothing
	maxFootprints = 1024
)

// state is all that goroutines share. It is changed in [Manager.update] only.
type state struct {
	max, maxStarts int
	begin          func(context.Context, *box) // starts the goroutine of a box

	closed     bool
	boxes      map[*box]struct{}
	bound      map[binding]*box   // waiting to ready: what an Acquire finds
	room       line               // waiting
	slots      line               // queued
	live       int                // boxes that count: queued to stopping
	starting   int                // boxes with a slot
	holdings   map[owner]*holding // as many as there are tenants
	failures   map[failKey]*failure
	ended      map[[2]string]struct{} // tenant, session
	endedOrder [][2]string
	footprints map[failKey]int64 // memory seen last; the owner is not set

	planned time.Time // when the keeper looks next; zero means it sleeps
	wake    bool      // it should look earlier
}

func (b *box) failKey() failKey { return failKey{b.owner, b.server, b.hash} }

// join adds a call to the box of key. Without one it adds next, if that is not
// nil. It returns no box if there is none.
func (s *state) join(key binding, d *Demand, next *box, now time.Time) (*box, trace.Outcome, error) {
	if s.closed {
		return nil, "", ErrClosed
	}
	if _, ok := s.ended[[2]string{d.Tenant, d.Session}]; ok {
		return nil, "", ErrSessionEnded
	}
	if b := s.bound[key]; b != nil {
		if b.state == Ready {
			b.uses++
			return b, trace.Warm, nil
		}
		b.waiters++
		if b.rank > rank(d.Cause) {
			s.promote(b)
		}
		return b, trace.Late, nil
	}
	if f := s.failures[failKey{key.owner, key.server, key.hash}]; f != nil && f.err != nil && now.Before(f.err.Retry) {
		err := *f.err
		err.now = now
		return nil, "", &err
	}
	if next == nil {
		return nil, "", nil
	}
	next.state, next.since, next.waiters, next.fresh = Waiting, now, 1, true
	s.boxes[next] = struct{}{}
	s.bound[key] = next
	s.room.push(next)
	return next, trace.Cold, nil
}

// rank says how urgent a start of that cause is.
func rank(c trace.Cause) int {
	if c == trace.Catalog {
		return 1
	}
	return 0
}

// promote makes a box as urgent as a call.
func (s *state) promote(b *box) {
	for _, l := range []*line{&s.room, &s.slots} {
		if l.remove(b) {
			b.rank = 0
			l.push(b)
		}
	}
	b.rank = 0
}

// schedule gives room and slots to those that wait.
func (s *state) schedule(now time.Time) {
	for s.room.n > 0 {
		b := s.room.next(s.fits)
		if b == nil {
			s.makeRoom(now)
			break
		}
		b.state = Queued
		s.live++
		s.holding(b.owner).live++
		close(b.admitted)
		s.slots.push(b)
	}
	for s.starting < s.maxStarts {
		b := s.slots.next(func(*box) bool { return true })
		if b == nil {
			break
		}
		b.state, b.since, b.slot = Starting, now, true
		s.starting++
		ctx, cancel := context.WithCancel(context.Background())
		b.cancel = cancel
		s.begin(ctx, b)
	}
}

func (s *state) holding(o owner) *holding {
	h := s.holdings[o]
	if h == nil {
		h = &holding{}
		s.holdings[o] = h
	}
	return h
}

// full says which quota of its owner keeps b waiting, if one does.
func (s *state) full(b *box) string {
	h := s.holding(b.owner)
	if q := h.quota.Sandboxes; q > 0 && h.live >= q {
		return fmt.Sprintf("the quota of tenant %q is %d sandboxes (tenants: sandboxes)", b.tenant, q)
	}
	if q := h.quota.Memory; q > 0 && h.live > 0 {
		used := s.memory(b.owner)
		if expected := s.footprints[footprintKey(b)]; used >= q || used+expected > q {
			return fmt.Sprintf("the quota of tenant %q is %d MiB of memory, and %d MiB are in use (tenants: memory)", b.tenant, q>>20, used>>20)
		}
	}
	return ""
}

func footprintKey(b *box) failKey { return failKey{owner{}, b.server, b.hash} }

// memory is what an owner's boxes use. What has not been looked at counts with
// what its server used before.
func (s *state) memory(o owner) int64 {
	var sum int64
	for b := range s.boxes {
		if b.owner == o && b.state != Waiting {
			sum += cmp.Or(b.usage.Memory, s.footprints[footprintKey(b)])
		}
	}
	return sum
}

func (s *state) fits(b *box) bool { return s.live < s.max && s.full(b) == "" }

// makeRoom stops idle boxes for those that wait, as many as needed and no more:
// what is stopping already makes room as well.
func (s *state) makeRoom(now time.Time) {
	closing, closingOf := 0, map[owner]int{}
	for b := range s.boxes {
		if b.state == Stopping {
			closing++
			closingOf[b.owner]++
		}
	}
	free := s.max - s.live
	s.room.all(func(b *box) {
		switch {
		case s.full(b) != "" && closingOf[b.owner] > 0:
			closingOf[b.owner]--
			closing--
		case s.full(b) != "":
			s.evict(now, func(c *box) bool { return c.owner == b.owner })
		case free > 0: // it only waits behind others of its owner
			free--
		case closing > 0:
			closing--
		default:
			s.evict(now, func(*box) bool { return true })
		}
	})
}

// evict stops the box that is idle longest among those that match.
func (s *state) evict(now time.Time, match func(*box) bool) {
	var oldest *box
	for b := range s.boxes {
		if b.state == Ready && b.uses == 0 && match(b) && (oldest == nil || b.idle.Before(oldest.idle)) {
			oldest = b
		}
	}
	if oldest != nil {
		s.stop(oldest, ReasonQuota, nil, now)
	}
}

// stop begins the end of a box. Those that wait for it get err.
func (s *state) stop(b *box, reason string, err error, now time.Time) {
	if s.bound[b.binding] == b {
		delete(s.bound, b.binding)
	}
	switch b.state {
	case Waiting, Queued:
		s.room.remove(b)
		s.slots.remove(b)
		s.unborn(b, err)
		s.forget(b)
	case Starting:
		s.unborn(b, err)
		b.state, b.reason, b.since = Stopping, reason, now
		b.cancel()
	case Ready:
		b.state, b.reason, b.since = Stopping, reason, now
		b.cancel()
	}
}

// unborn tells those that wait for b that it will not be.
func (s *state) unborn(b *box, err error) {
	b.err, b.waiters = err, 0
	close(b.born)
}

// forget ends what b counts for.
func (s *state) forget(b *box) {
	delete(s.boxes, b)
	if b.state != Waiting {
		s.live--
		s.holding(b.owner).live--
	}
	close(b.gone)
}

// freeSlot lets another start begin.
func (s *state) freeSlot(b *box) {
	if b.slot {
		b.slot = false
		s.starting--
	}
}

// failed notes that a start went wrong, or that a server died in its infancy.
func (s *state) failed(b *box, f *failure, err *StartError, tries int, now time.Time) {
	delay := backoffMax
	if tries <= 6 { // 1, 2, 4 … 32 s
		delay = min(backoffMax, backoffMin<<(tries-1))
	}
	err.Tries, err.Retry, err.now = tries, now.Add(delay), now
	f.err = err
	s.failures[b.failKey()] = f
	if len(s.failures) > maxFailures {
		for key, f := range s.failures {
			if f.err == nil || now.Sub(f.err.Retry) > backoffMax {
				delete(s.failures, key)
			}
		}
	}
}

func (s *state) failure(b *box) *failure {
	if f := s.failures[b.failKey()]; f != nil {
		return f
	}
	return &failure{}
}

// crashed ends a ready box whose connection ended by itself.
func (s *state) crashed(b *box, err error, now time.Time) {
	s.stop(b, ReasonCrash, nil, now)
	f := s.failure(b)
	if b.served || now.Sub(b.ready) >= infancy {
		delete(s.failures, b.failKey())
		return
	}
	f.crashes++
	s.failures[b.failKey()] = f
	if f.crashes >= infantCrashes {
		s.failed(b, f, &StartError{
			Server: b.server, Err: b.demand.Spec.RedactError(fmt.Errorf("it dies right after its start: %w", err)), Exit: b.exit, Stderr: b.stderr.last(),
		}, f.crashes-infantCrashes+1, now)
	}
}

// leave takes a call away from a box that it waited for.
func (s *state) leave(b *box, now time.Time) {
	switch {
	case b.state == Ready || b.state == Stopping && b.err == nil:
		s.release(b, now) // it was born in this moment
	case b.err != nil:
	case b.waiters > 1:
		b.waiters--
	case b.state == Starting:
		b.waiters-- // the start goes on: the next call can use it
	default: // nobody wants it and nothing has begun
		s.stop(b, "", context.Canceled, now)
	}
}

// release takes a lease back.
func (s *state) release(b *box, now time.Time) {
	if b.uses--; b.uses < 0 {
		panic("sandbox: release without acquire")
	}
	if b.uses == 0 && b.state == Ready {
		s.rest(b, now)
	}
}

// proved notes that the server of b has answered.
func (s *state) proved(b *box) {
	b.served = true
	if f := s.failures[b.failKey()]; f != nil && f.starts == 0 {
		delete(s.failures, b.failKey())
	}
}

// rest notes that b is idle, and wakes the keeper if it would come too late.
func (s *state) rest(b *box, now time.Time) {
	b.idle = now
	s.lookAt(now.Add(idleTimeout(b)))
}

// lookAt makes the keeper look at t at the latest.
func (s *state) lookAt(t time.Time) {
	if s.planned.IsZero() || t.Before(s.planned) {
		s.planned = t
		s.wake = true
	}
}

func idleTimeout(b *box) time.Duration {
	const usual = 5 * time.Minute
	if b.demand.Spec.IdleTimeout > 0 {
		return b.demand.Spec.IdleTimeout
	}
	return usual
}

// end notes that a session has ended.
func (s *state) end(tenant, session string, now time.Time) {
	key := [2]string{tenant, session}
	if _, ok := s.ended[key]; !ok {
		s.ended[key] = struct{}{}
		s.endedOrder = append(s.endedOrder, key)
		if len(s.endedOrder) > maxEnded {
			delete(s.ended, s.endedOrder[0])
			s.endedOrder = s.endedOrder[1:]
		}
	}
	for b := range s.boxes {
		if b.session == session && b.owner == (owner{tenant: tenant}) && b.session != "" {
			s.stop(b, ReasonSession, ErrSessionEnded, now)
		}
	}
}

// sweep stops what was idle too long, or is over a quota of memory, and plans
// the next look.
func (s *state) sweep(now time.Time) {
	s.planned = time.Time{}
	sampled := false
	for b := range s.boxes {
		if b.state != Ready {
			continue
		}
		if q := s.holding(b.owner).quota.Memory; q > 0 {
			sampled = true
			if s.memory(b.owner) > q {
				s.evictOver(b.owner, now)
			}
		}
		if b.state != Ready || b.uses > 0 {
			continue
		}
		if t := b.idle.Add(idleTimeout(b)); !t.After(now) {
			s.stop(b, ReasonIdle, nil, now)
		} else {
			s.lookAt(t)
		}
	}
	if sampled {
		s.lookAt(now.Add(sampleEvery))
	}
	s.wake = false
}

// evictOver stops one idle box of an owner that is over its quota of memory,
// unless one is stopping already.
func (s *state) evictOver(o owner, now time.Time) {
	for b := range s.boxes {
		if b.owner == o && b.state == Stopping {
			return
		}
	}
	s.evict(now, func(b *box) bool { return b.owner == o })
}

// noRoom returns the error of a call that waited for room in vain.
func (s *state) noRoom(b *box, waited time.Duration) error {
	e := &QuotaError{Server: b.server, Tenant: b.demand.Tenant, Limit: s.full(b), Waited: waited, Held: map[string]int{}}
	if e.Limit == "" {
		e.Limit = fmt.Sprintf("all %d sandboxes are in use (limits: sandboxes)", s.max)
	}
	for c := range s.boxes {
		switch {
		case c.state == Waiting:
		case c.shared || c.tenant == b.demand.Tenant:
			e.Held[c.server]++
		default:
			e.Others++
		}
	}
	return e
}
