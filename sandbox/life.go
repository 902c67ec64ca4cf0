package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/specbox/specbox/trace"
	"github.com/specbox/specbox/wire"
)

const (
	// slotHold is how long a start counts among those under way. A start that
	// takes longer mostly waits, and must not hold up the others.
	slotHold = 5 * time.Second
	// explainWait is how long an error waits for the server's last words. A
	// call fails within a second of the server's death.
	explainWait = 300 * time.Millisecond
	usualStart  = time.Minute // StartTimeout where a spec has none
	// guessSlotHold is slotHold of a guess: in the idle class a start may take
	// long because it gets nothing.
	guessSlotHold = 4 * slotHold
)

// live is the life of a box, from its start to its end.
func (m *Manager) live(ctx context.Context, b *box) {
	defer b.cancel()
	begun := time.Now()
	var lowly bool
	m.view(func(*state) { lowly = b.lowly })
	err := b.spec.RedactError(m.start(ctx, b, lowly))
	ready, given := false, ""
	var failure *StartError
	m.update(func(s *state, now time.Time) {
		s.freeSlot(b)
		switch {
		case b.state != Starting: // stopped meanwhile
			if b.guess || b.heir != nil {
				given = b.reason
			}
		case err != nil:
			failure = s.stillborn(b, err, now)
		default:
			s.started(b, now.Sub(begun), lowly, !b.lowly)
			s.born(b, now)
			ready = true
		}
	})
	took := time.Since(begun)
	switch {
	case ready:
		m.record(b, trace.Start, took, "", "")
		m.cfg.Log.Debug("sandbox ready", "server", b.server, "sandbox", b.id, "tenant", b.tenant, "took", took)
		m.lookAfter(ctx, b)
	case failure != nil:
		m.record(b, trace.Start, took, "", failure.Error())
		m.cfg.Log.Warn("sandbox did not start", "server", b.server, "sandbox", b.id, "tenant", b.tenant, "error", failure)
	case given != "":
		m.record(b, trace.Start, took, "", "given up before it was ready: "+given)
	}
	m.takeDown(b, ready)
}

// lookAfter serves a live box until it is stopped or its server ends.
func (m *Manager) lookAfter(ctx context.Context, b *box) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.look:
			m.settle(b)
		case <-b.conn.Done():
			exit := b.inst.Usage().Exit
			m.update(func(s *state, now time.Time) {
				if b.state.live() {
					b.exit = exit
					s.crashed(b, b.conn.Err(), now)
				}
			})
			return
		}
	}
}

// start makes the instance and shakes hands, within the time that the spec
// allows. What it has made stands in b also when it fails.
func (m *Manager) start(ctx context.Context, b *box, lowly bool) (err error) {
	limit := usualStart
	if b.spec.StartTimeout > 0 {
		limit = b.spec.StartTimeout
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done, attended := make(chan struct{}), make(chan struct{})
	m.work.Go(func() {
		defer close(attended)
		m.attend(b, limit, cancel, done)
	})
	defer func() { // from here on it is not halted
		close(done)
		<-attended
		if err == nil {
			err = context.Cause(ctx)
		}
	}()
	inst, err := m.create(ctx, b, lowly)
	if err != nil {
		if ctx.Err() != nil && !errors.Is(err, context.Cause(ctx)) {
			err = context.Cause(ctx)
		}
		return err
	}
	conn := wire.NewConn(inst.Transport())
	demanded := false
	m.update(func(*state, time.Time) {
		b.inst, b.conn, demanded = inst, conn, !b.guess
		b.rouse()
	})
	if demanded { // while there was no instance yet, perhaps
		m.promote(b)
	}
	// A server that does not read may block what is written to it.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	init, modern, err := shake(ctx, conn, b.client)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		m.lastWords(b)
		return err
	}
	usage := inst.Usage()
	m.update(func(s *state, _ time.Time) {
		b.init, b.modern = init, modern
		s.used(b, usage)
		s.weighed(b)
	})
	switch {
	case b.demanded != nil: // a guess, or one that was
		conn.Handle(b.inbox)
	case b.handler != nil:
		conn.Handle(b.handler)
	default:
		conn.Handle(refuser{})
	}
	return nil
}

// A refuser is the handler of a sandbox whose server nobody listens to.
type refuser struct{}

func (refuser) Notified(*wire.Conn, wire.Message) {}

func (refuser) Requested(c *wire.Conn, m wire.Message) {
	_ = c.Respond(m.ID, wire.Fail(wire.CodeMethodNotFound, "no client is there to answer %s", m.Method))
}

// shake does the handshake of the client's era, or of the other one if the
// server speaks that alone. It returns the result of initialize, or that of
// server/discover and true.
func shake(ctx context.Context, conn *wire.Conn, c Client) (init []byte, modern bool, err error) {
	first, second := initialize, discover
	if c.Version >= wire.Modern {
		first, second = discover, initialize
	}
	init, err = first(ctx, conn, c)
	var refusal *wire.Error
	if err == nil || !errors.As(err, &refusal) {
		return init, c.Version >= wire.Modern, err
	}
	other, otherErr := second(ctx, conn, c)
	if otherErr != nil {
		return nil, false, err // the era that was asked for tells more
	}
	return other, c.Version < wire.Modern, nil
}

func initialize(ctx context.Context, conn *wire.Conn, c Client) ([]byte, error) {
	if c.Version >= wire.Modern {
		c.Version = newest
	}
	r, err := conn.Call(ctx, "initialize", handshake(c))
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, fmt.Errorf("initialize: %w", err)
	case r.Error != nil:
		return nil, fmt.Errorf("initialize was answered with an error: %w", r.Err())
	case wire.Str(r.Result, "protocolVersion") == "":
		return nil, fmt.Errorf("initialize was answered without a protocolVersion: %.200s", r.Result)
	}
	if err := conn.Notify("notifications/initialized", nil); err != nil {
		return nil, fmt.Errorf("notifications/initialized: %w", err)
	}
	return r.Result, nil
}

// discoverPatience is how long a server may think about server/discover: one of
// the legacy era may leave unanswered what comes before initialize.
const discoverPatience = 5 * time.Second

func discover(ctx context.Context, conn *wire.Conn, c Client) ([]byte, error) {
	late := wire.Errorf(wire.CodeMethodNotFound, "server/discover was not answered within %v", discoverPatience)
	bounded, cancel := context.WithTimeoutCause(ctx, discoverPatience, late)
	defer cancel()
	params := append(append([]byte(`{"_meta":`), c.Meta()...), '}')
	r, err := conn.Call(bounded, "server/discover", params)
	if err == nil && string(wire.Get(r.Error, "code")) == strconv.Itoa(wire.CodeVersion) && names(wire.Get(r.Error, "data", "supported"), wire.Modern) {
		r, err = conn.Call(bounded, "server/discover", params) // it refuses what it then says it speaks
	}
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, fmt.Errorf("server/discover: %w", err)
	case r.Error != nil:
		return nil, fmt.Errorf("server/discover was answered with an error: %w", r.Err())
	}
	if !names(wire.Get(r.Result, "supportedVersions"), wire.Modern) {
		return nil, wire.Errorf(wire.CodeVersion, "server/discover names no version that SpecBox speaks: %.200s", r.Result)
	}
	return r.Result, nil
}

// names reports whether a JSON array holds a string.
func names(array []byte, s string) bool {
	found := false
	_ = wire.Each(array, func(v []byte) bool {
		found = found || string(v) == `"`+s+`"`
		return !found
	})
	return found
}

// lastWords begins to take down what could not be started, so that it is known
// how it ended and what it printed: a moment is waited for that.
func (m *Manager) lastWords(b *box) {
	down := make(chan struct{})
	m.work.Go(func() {
		defer close(down)
		_ = b.inst.Close() // takeDown reports it
	})
	t := time.NewTimer(explainWait)
	defer t.Stop()
	select {
	case <-down:
	case <-t.C:
	}
	exit := b.inst.Usage().Exit
	m.update(func(*state, time.Time) { b.exit = exit })
}

// born hands b to those that wait for it.
func (s *state) born(b *box, now time.Time) {
	b.ready = now
	if f := s.failures[b.failKey()]; f != nil {
		f.starts, f.guesses, f.doubt = 0, 0, time.Time{}
		if f.crashes == 0 {
			delete(s.failures, b.failKey())
		}
	}
	s.outrun(b, now)
	close(b.born)
	b.uses, b.waiters = b.waiters, 0
	if b.uses > 0 {
		s.enter(b, Leased, now)
		s.unseal(b)
	} else {
		b.until = later(b.until, now.Add(b.hold))
		s.enter(b, Ready, now)
		s.rest(b, now)
	}
	s.ease(b)
	if s.maxMemory > 0 || s.holding(b.owner).quota.Memory > 0 || s.spec.Memory > 0 {
		s.lookAt(now.Add(sampleEvery))
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// stillborn notes that the start of b went wrong.
func (s *state) stillborn(b *box, err error, now time.Time) *StartError {
	e := &StartError{Server: b.server, Err: err, Exit: b.exit, Stderr: b.stderr.last()}
	if s.retire(b, e, now) {
		return e
	}
	if b.guess {
		s.doubted(b, now)
	} else {
		f := s.failure(b)
		f.starts++
		s.failed(b, f, e, f.starts, now)
	}
	s.stop(b, reasonStart, e, now)
	return e
}

// takeDown ends what there is of b. Until it returns b counts.
func (m *Manager) takeDown(b *box, wasReady bool) {
	m.update(func(*state, time.Time) { b.admit() }) // their calls learn why
	if b.inst != nil {
		before := b.inst.Usage()
		_ = b.conn.Close() // the instance's Close reports what matters
		err := b.inst.Close()
		after := b.inst.Usage()
		m.update(func(s *state, _ time.Time) {
			before.Peak = max(before.Peak, after.Peak)
			s.used(b, before)
			s.weighed(b)
			b.usage.Memory = 0
			b.exit = cmp.Or(b.exit, after.Exit)
		})
		if err != nil {
			m.cfg.Log.Error("sandbox was not taken down cleanly", "server", b.server, "sandbox", b.id, "error", err)
		}
	}
	b.stderr.end()
	var reason, exit string
	m.update(func(s *state, now time.Time) {
		reason, exit = b.reason, b.exit
		s.forget(b, now)
	})
	if !wasReady {
		return
	}
	if reason == ReasonCrash {
		m.cfg.Log.Warn("server died", "server", b.server, "sandbox", b.id, "tenant", b.tenant, "exit", exit, "stderr", b.stderr.last())
	} else {
		m.cfg.Log.Debug("sandbox stopped", "server", b.server, "sandbox", b.id, "tenant", b.tenant, "reason", reason)
		exit = ""
	}
	switch {
	case b.guess && reason == ReasonIdle:
		reason = ReasonUnused
	case b.guess:
		reason = ReasonUnused + ": " + reason
	}
	m.record(b, trace.Stop, 0, reason, exit)
}

func (m *Manager) event(b *box, kind trace.Kind) trace.Event {
	e := trace.Event{
		Time: time.Now(), Kind: kind, Tenant: b.tenant, Server: b.server, Sandbox: b.id, Backend: string(b.spec.Isolation),
	}
	m.view(func(*state) { e.Session, e.Cause, e.P, e.Memory = b.session, b.cause, b.p, b.usage.Peak })
	return e
}

func (m *Manager) record(b *box, kind trace.Kind, provision time.Duration, detail, err string) {
	e := m.event(b, kind)
	e.Provision, e.Detail, e.Err = provision, detail, err
	m.cfg.Recorder.Record(e)
}
