package sandbox

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/specbox/specbox/trace"
	"github.com/specbox/specbox/wire"
)

// A Lease is the hold of one call on a sandbox. While it is held the sandbox
// is not idle. It must be given back, by Release or Discard; more of these, in
// any order and concurrently, do nothing.
type Lease struct {
	m         *Manager
	b         *box
	outcome   trace.Outcome
	provision time.Duration
	cause     trace.Cause
	lead      time.Duration
	cold      time.Duration // what a start of its server takes, if a guess has saved it
	fresh     bool
	over      atomic.Bool
}

// Conn returns the connection to the server, initialised. It belongs to the
// sandbox: the holder does not close it and gives it no handler.
func (l *Lease) Conn() *wire.Conn { return l.b.conn }

// Init returns the server's result of initialize, or of server/discover if
// [Lease.Modern], as it came. It is not to be changed.
func (l *Lease) Init() []byte { return l.b.init }

// Modern reports whether the server was met in the modern era: each request to
// it must then say what [Client.Meta] returns.
func (l *Lease) Modern() bool { return l.b.modern }

// ID returns the id of the sandbox.
func (l *Lease) ID() string { return l.b.id }

// Outcome returns what the call found: Warm, Late or Cold.
func (l *Lease) Outcome() trace.Outcome { return l.outcome }

// Provision returns the time from the call's Acquire to the sandbox being
// ready for it.
func (l *Lease) Provision() time.Duration { return l.provision }

// Fresh reports whether this is the first lease of its sandbox.
func (l *Lease) Fresh() bool { return l.fresh }

// Cause returns why the start of the sandbox was asked for.
func (l *Lease) Cause() trace.Cause { return l.cause }

// Lead returns how long before the call's Acquire that was.
func (l *Lease) Lead() time.Duration { return l.lead }

// Saved returns how much longer the call would have waited if nobody had
// guessed that it comes, by what the starts of its server take. It is 0 for all
// but the calls that found a sandbox which was started on a guess and not used
// yet: later ones would have found it anyway.
func (l *Lease) Saved() time.Duration { return max(0, l.cold-l.provision) }

// KeepAwake says that the server may have something to say between calls, as
// it has to one that subscribes, or that began a task: its sandbox is not
// frozen any more while it is idle.
func (l *Lease) KeepAwake() {
	l.m.update(func(*state, time.Time) { l.b.awake = true })
}

// fill notes what there is to know of a box that was leased, unless it is being
// made fit still: what it then returns is closed when it is.
func (l *Lease) fill(s *state, begun time.Time) (opening chan struct{}) {
	b := l.b
	if b.opening != nil {
		return b.opening
	}
	l.cause, l.lead = b.cause, max(0, begun.Sub(b.asked))
	l.fresh, b.fresh = b.fresh, false
	if l.fresh {
		b.lead = l.lead
	}
	if b.cause.Speculative() && (l.fresh || l.outcome == trace.Late) {
		l.cold = s.cold(b)
	}
	return nil
}

// Release gives the lease back.
func (l *Lease) Release() {
	if l.over.Swap(true) {
		return
	}
	alive := l.b.conn.Err() == nil
	l.m.update(func(s *state, now time.Time) {
		if alive && !l.b.served {
			s.proved(l.b)
		}
		s.release(l.b, now)
	})
}

// drop gives back a lease that nobody has had: that its server lives tells
// nothing.
func (l *Lease) drop() {
	l.over.Store(true)
	l.m.update(func(s *state, now time.Time) { s.release(l.b, now) })
}

// Discard gives the lease back and stops the sandbox at once; the calls of
// other holders fail. The reason stands in the event and in their errors. It
// returns before the sandbox is gone.
func (l *Lease) Discard(reason string) {
	if l.over.Swap(true) {
		return
	}
	l.m.update(func(s *state, now time.Time) {
		s.stop(l.b, reason, nil, now)
		s.release(l.b, now)
	})
}

// Explain turns the error of a call whose connection was lost into a
// [*LostError]: how the server ended, and its last words. For these it waits a
// moment. Other errors are returned as they are. It may be called after
// Release.
func (l *Lease) Explain(err error) error {
	b := l.b
	var long *wire.TooLongError
	if err == nil || b.conn.Err() == nil || errors.As(err, &long) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	t := time.NewTimer(explainWait)
	defer t.Stop()
	select {
	case <-b.gone:
	case <-t.C:
	}
	lost := &LostError{Server: b.server, Sandbox: b.id, Exit: b.inst.Usage().Exit, Err: err}
	l.m.update(func(*state, time.Time) {
		lost.Reason = b.reason
		if b.exit != "" {
			lost.Exit = b.exit
		}
	})
	if lost.Reason == "" { // its connection ended in this moment
		lost.Reason = ReasonCrash
	}
	lost.Stderr = b.stderr.last()
	return lost
}
