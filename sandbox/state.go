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
	Ready    State = "ready"    // nobody uses it
	Frozen   State = "frozen"   // nobody uses it, and it uses no CPU
	Leased   State = "leased"   // calls use it
	Draining State = "draining" // it is being stopped, and still counts
	Gone     State = "gone"     // it counts no more
)

// leadsTo reports whether a sandbox may go from one state to another.
func (from State) leadsTo(to State) bool {
	switch from {
	case "":
		return to == Waiting
	case Waiting:
		return to == Queued || to == Starting || to == Gone
	case Queued:
		return to == Starting || to == Gone
	case Starting:
		return to == Ready || to == Leased || to == Draining
	case Ready:
		return to == Leased || to == Frozen || to == Draining
	case Leased:
		return to == Ready || to == Draining
	case Frozen:
		return to == Leased || to == Draining
	case Draining:
		return to == Gone
	}
	return false
}

// counts reports whether a sandbox in that state takes room in the budgets.
func (st State) counts() bool { return st != "" && st != Waiting && st != Gone }

// live reports whether a sandbox in that state is at hand.
func (st State) live() bool { return st == Ready || st == Leased || st == Frozen }

// Why a sandbox was stopped: the Detail of a [trace.Stop] event.
const (
	ReasonIdle     = "idle"
	ReasonSession  = "session end"
	ReasonCrash    = "crash"
	ReasonShutdown = "shutdown"
	ReasonOperator = "stopped by operator"
	ReasonQuota    = "quota"
	// ReasonUnused begins the reason of one that was started on a guess, and
	// that nobody ever came for: it was in vain. What ended it may follow, as
	// in "unused: quota".
	ReasonUnused = "unused"

	reasonStart = "failed start" // never seen in an event: it was never ready
	reasonInbox = "it said too much before anybody listened"
	reasonThaw  = "it could not be thawed"
	// of a start that was raced; in its event alone
	reasonOutrun = "another start of it was faster"
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
	id       string
	pool     poolKey // where it stands while it is unclaimed; zero if sessions share it
	spec     *Spec
	asker    string // tenant that wanted it first, also of one that all share
	backend  Backend
	client   Client // that the handshake presents
	quota    Quota  // of its owner, when it was asked for
	stderr   *stderr
	admitted chan struct{} // closed when there is room for it
	born     chan struct{} // closed when it is ready, or never will be: err is then set
	gone     chan struct{} // closed when it counts no more
	demanded chan struct{} // of a guess: closed when somebody comes for it
	look     chan struct{} // its goroutine should look at it again
	rest     chan struct{} // its start should look whether it is to be halted
	relief   chan struct{} // one of the calls that wait for it may go elsewhere

	// ---

	binding // its session is set when it is claimed
	cause   trace.Cause
	asked   time.Time // when its start was asked for
	handler wire.Handler

	state   State
	rank    int // 0 if a call waits for it, 1 if not
	since   time.Time
	slot    slot // among which starts under way it counts
	waiters int  // calls that wait until it is born
	uses    int  // leases
	fresh   bool // there was no lease yet
	served  bool // a lease was given back while the server lived
	awake   bool // it may have something to say while it is idle
	idle    time.Time
	ready   time.Time
	lead    time.Duration // from asked to its first lease
	reason  string
	err     error
	exit    string
	cancel  context.CancelFunc // ends the start, or the life
	inst    Instance
	conn    *wire.Conn // of a box that is born, never changed then
	init    []byte     // result of initialize or server/discover
	modern  bool       // the server was met in the modern era
	usage   Usage      // when it was last looked at

	rival  *box // the other start of a race; see [state.race]
	second bool // it was begun second, and no call finds it
	heir   *box // who serves the calls that waited for it, if it lost a race

	guess bool          // it was started on a guess, and nobody has come for it yet
	p     float64       // how likely somebody comes
	hold  time.Duration // how long it is kept for that
	until time.Time     // when it is given up

	inbox *inbox // what its server said before it was claimed; nil once it was delivered
	lowly bool   // it is in the idle class
	chill bool   // it is to be frozen
	icy   bool   // it is frozen, or being frozen
	stiff bool   // it cannot be frozen
	wrung bool   // memory of it was taken back since it was frozen
	// opening is closed when a leased box is at hand: thawed, in the ordinary
	// class, and heard. It is nil if it is already.
	opening chan struct{}
}

// A slot says among which starts a box counts.
type slot int

const (
	noSlot slot = iota
	callSlot
	guessSlot
)

// A holding is what an owner has.
type holding struct {
	live     int // boxes that count
	guesses  int // of these, those that nobody has come for
	starting int // boxes with the slot of a call
	quota    Quota
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
	guesses int       // starts on a guess that went wrong, in a row
	doubt   time.Time // until then nothing is started on a guess
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
)

// state is all that goroutines share. It is changed in [Manager.update] only.
type state struct {
	max, maxStarts int
	maxMemory      int64
	spec           Speculation
	begin          func(context.Context, *box) // starts the goroutine of a box
	reclaim        func(*box)                  // takes back memory of a frozen box, in a goroutine

	closed     bool
	boxes      map[*box]struct{}
	bound      map[binding][]*box // waiting to leased: what an Acquire finds, oldest first; more than one where sessions share
	pools      map[poolKey][]*box // unclaimed ones of scope session, oldest first
	room       line               // waiting, of calls
	slots      line               // queued
	guessed    line               // waiting, on a guess
	live       int                // boxes that count: queued to draining
	guesses    int                // of these, those that nobody has come for
	starting   int                // boxes with the slot of a call
	guessing   int                // boxes with the slot of a guess
	holdings   map[owner]*holding // as many as there are tenants
	tight      map[owner]struct{} // their guesses may stand in the way of calls
	failures   map[failKey]*failure
	ended      map[[2]string]struct{} // tenant, session
	endedOrder [][2]string
	known      map[estimateKey]*figures
	typical    time.Duration // median of what the starts of known servers take; 0 without any

	wringing bool      // memory of a frozen box is being taken back
	still    bool      // guesses that are starting are to be halted
	stirred  bool      // what guesses may be started for may have changed
	planned  time.Time // when the keeper looks next; zero means it sleeps
	wake     bool      // it should look earlier
}

func (b *box) failKey() failKey { return failKey{b.owner, b.server, b.hash} }

// enter takes a box to another state, with all that it counts for.
func (s *state) enter(b *box, to State, now time.Time) {
	from := b.state
	if !from.leadsTo(to) {
		panic(fmt.Sprintf("sandbox: %s cannot go from %q to %q", b.id, from, to))
	}
	b.state, b.wrung = to, false
	if !from.live() || !to.live() {
		b.since = now
	}
	switch {
	case !from.counts() && to.counts():
		s.count(b, 1)
	case from.counts() && !to.counts():
		s.count(b, -1)
	}
}

// count adds n times b to what its owner, and all, have.
func (s *state) count(b *box, n int) {
	h := s.holding(b.owner)
	s.live += n
	h.live += n
	if b.guess {
		s.guesses += n
		h.guesses += n
	}
	if n > 0 {
		s.tight[b.owner] = struct{}{}
	}
}

// join adds a call to the box that serves it, or to an unclaimed one that may.
// Without one it adds next, if that is not nil. It returns no box if there is
// none.
func (s *state) join(w *wish, next *box, now time.Time) (*box, trace.Outcome, error) {
	if s.closed {
		return nil, "", ErrClosed
	}
	if _, ok := s.ended[[2]string{w.tenant, w.session}]; ok {
		return nil, "", ErrSessionEnded
	}
	b := s.serving(w.key, w.room())
	if b == nil {
		b = s.unclaimed(w)
	}
	switch {
	case b == nil:
	case b.guess && b.state == Waiting: // nothing of it has begun: it is the call that begins
		s.stop(b, "", context.Canceled, now)
	default:
		return b, s.enlist(b, w, now), nil
	}
	if f := s.failures[failKey{w.key.owner, w.key.server, w.key.hash}]; f != nil && f.err != nil && now.Before(f.err.Retry) {
		err := *f.err
		err.now = now
		return nil, "", &err
	}
	if next == nil {
		return nil, "", nil
	}
	next.waiters = 1
	s.boxes[next] = struct{}{}
	s.bind(next)
	s.enter(next, Waiting, now)
	s.room.push(next)
	return next, trace.Cold, nil
}

// enlist adds a call to a box, which is then no guess any more.
func (s *state) enlist(b *box, w *wish, now time.Time) trace.Outcome {
	if b.guess {
		s.claim(b, w)
	}
	if b.state.live() {
		s.take(b, now)
		return trace.Warm
	}
	b.waiters++
	if b.rank > rank(w.cause) {
		s.promote(b)
	}
	return trace.Late
}

// take adds a lease to a box that is at hand.
func (s *state) take(b *box, now time.Time) {
	b.uses++
	if b.state != Leased {
		s.enter(b, Leased, now)
	}
	s.unseal(b)
}

// unseal has a leased box made fit for use, if it is not.
func (s *state) unseal(b *box) {
	if b.opening == nil && (b.inbox != nil || b.icy || b.lowly) {
		b.opening = make(chan struct{})
		b.poke()
	}
}

// poke has the goroutine of a box look at it again.
func (b *box) poke() {
	select {
	case b.look <- struct{}{}:
	default:
	}
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

func (s *state) holding(o owner) *holding {
	h := s.holdings[o]
	if h == nil {
		h = &holding{}
		s.holdings[o] = h
	}
	return h
}

// stop begins the end of a box. Those that wait for it get err.
func (s *state) stop(b *box, reason string, err error, now time.Time) {
	s.unbind(b)
	s.unpool(b)
	if rival := b.part(); rival != nil && rival.second {
		s.stop(rival, reason, err, now)
	}
	switch {
	case b.state == Waiting || b.state == Queued:
		s.room.remove(b)
		s.slots.remove(b)
		s.guessed.remove(b)
		s.unborn(b, err)
		s.forget(b, now)
	case b.state == Starting:
		s.unborn(b, err)
		b.reason = reason
		s.enter(b, Draining, now)
		b.cancel()
	case b.state.live():
		b.reason = reason
		s.enter(b, Draining, now)
		b.cancel()
	}
	s.ease(b)
}

// unborn tells those that wait for b that it will not be.
func (s *state) unborn(b *box, err error) {
	b.err, b.waiters = err, 0
	close(b.born)
}

// forget ends what b counts for.
func (s *state) forget(b *box, now time.Time) {
	s.enter(b, Gone, now)
	s.stirred = true
	delete(s.boxes, b)
	close(b.gone)
}

// failed notes that a start went wrong, or that a server died in its infancy.
func (s *state) failed(b *box, f *failure, err *StartError, tries int, now time.Time) {
	err.Tries, err.Retry, err.now = tries, now.Add(backoff(tries)), now
	f.err = err
	s.failures[b.failKey()] = f
	s.forgetFailures(now)
}

// backoff returns 1, 2, 4 … 32 s, and then a minute.
func backoff(tries int) time.Duration {
	if tries > 6 {
		return backoffMax
	}
	return min(backoffMax, backoffMin<<(tries-1))
}

func (s *state) forgetFailures(now time.Time) {
	if len(s.failures) <= maxFailures {
		return
	}
	for key, f := range s.failures {
		if (f.err == nil || now.Sub(f.err.Retry) > backoffMax) && now.Sub(f.doubt) > backoffMax {
			delete(s.failures, key)
		}
	}
}

func (s *state) failure(b *box) *failure {
	if f := s.failures[b.failKey()]; f != nil {
		return f
	}
	return &failure{}
}

// doubted notes that a guess ended by itself. No call was harmed, so that none
// is refused for it; but nothing is started on a guess for a while.
func (s *state) doubted(b *box, now time.Time) {
	f := s.failure(b)
	f.guesses++
	f.doubt = now.Add(backoff(f.guesses))
	s.failures[b.failKey()] = f
	s.forgetFailures(now)
}

// crashed ends a live box whose connection ended by itself.
func (s *state) crashed(b *box, err error, now time.Time) {
	s.stop(b, ReasonCrash, nil, now)
	if b.guess {
		s.doubted(b, now)
		return
	}
	f := s.failure(b)
	if b.served || now.Sub(b.ready) >= infancy {
		delete(s.failures, b.failKey())
		return
	}
	f.crashes++
	s.failures[b.failKey()] = f
	if f.crashes >= infantCrashes {
		s.failed(b, f, &StartError{
			Server: b.server, Err: b.spec.RedactError(fmt.Errorf("it dies right after its start: %w", err)), Exit: b.exit, Stderr: b.stderr.last(),
		}, f.crashes-infantCrashes+1, now)
	}
}

// leave takes a call away from a box that it waited for.
func (s *state) leave(b *box, now time.Time) {
	b = b.successor()
	switch {
	case b.state == Leased || b.state == Draining && b.err == nil:
		s.release(b, now) // it was born in this moment
	case b.err != nil:
	case b.waiters > 1:
		b.waiters--
	case b.state == Starting:
		b.waiters-- // the start goes on: the next call can use it
	default: // nobody wants it and nothing has begun
		s.stop(b, "", context.Canceled, now)
	}
	s.ease(b)
}

// release takes a lease back.
func (s *state) release(b *box, now time.Time) {
	if b.uses--; b.uses < 0 {
		panic("sandbox: release without acquire")
	}
	if b.uses == 0 && b.state == Leased {
		s.enter(b, Ready, now)
		s.rest(b, now)
	}
	s.ease(b)
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
	s.lookAt(b.end())
	if t := s.chillAt(b); !t.IsZero() {
		s.lookAt(t)
	}
}

// end returns when an idle box is given up.
func (b *box) end() time.Time {
	if b.guess {
		return b.until
	}
	return b.idle.Add(idleTimeout(b))
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
	return cmp.Or(max(b.spec.IdleTimeout, 0), usual)
}

// endSession notes that a session has ended.
func (s *state) endSession(tenant, session string, now time.Time) {
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

// sweep stops what was idle too long, or is over a budget of memory, freezes
// what is to be frozen, and plans the next look.
func (s *state) sweep(now time.Time) {
	s.planned = time.Time{}
	s.stirred = true // the older a guess, the less it is worth
	for b := range s.boxes {
		switch {
		case b.state == Waiting && b.guess, (b.state == Ready || b.state == Frozen):
			if t := b.end(); !t.After(now) {
				s.stop(b, ReasonIdle, context.Canceled, now)
				continue
			}
			s.lookAt(b.end())
		}
		if t := s.chillAt(b); t.IsZero() {
			continue
		} else if t.After(now) {
			s.lookAt(t)
		} else {
			b.chill = true
			b.poke()
		}
	}
	if s.shrink(now) {
		s.lookAt(now.Add(sampleEvery))
	}
	s.wake = false
}
