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
)

// live is the life of a box, from its start to its end.
func (m *Manager) live(ctx context.Context, b *box) {
	defer b.cancel()
	begun := time.Now()
	held := make(chan struct{})
	m.work.Go(func() { m.holdSlot(b, held) })
	err := b.demand.Spec.RedactError(m.start(ctx, b))
	close(held)
	ready := false
	var failure *StartError
	m.update(func(s *state, now time.Time) {
		s.freeSlot(b)
		switch {
		case b.state != Starting: // stopped meanwhile
		case err != nil:
			failure = s.stillborn(b, err, now)
		default:
			s.born(b, now)
			ready = true
		}
	})
	switch {
	case ready:
		m.record(b, trace.Start, time.Since(begun), "", "")
		m.cfg.Log.Debug("sandbox ready", "server", b.server, "sandbox", b.id, "tenant", b.tenant, "took", time.Since(begun))
		select {
		case <-ctx.Done():
		case <-b.conn.Done():
			exit := b.inst.Usage().Exit
			m.update(func(s *state, now time.Time) {
				if b.state == Ready {
					b.exit = exit
					s.crashed(b, b.conn.Err(), now)
				}
			})
		}
	case failure != nil:
		m.record(b, trace.Start, time.Since(begun), "", failure.Error())
		m.cfg.Log.Warn("sandbox did not start", "server", b.server, "sandbox", b.id, "tenant", b.tenant, "error", failure)
	}
	m.takeDown(b, ready)
}

// holdSlot gives the slot of a start away when the start takes long.
func (m *Manager) holdSlot(b *box, done <-chan struct{}) {
	t := time.NewTimer(slotHold)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
		m.update(func(s *state, _ time.Time) { s.freeSlot(b) })
	}
}

// start makes the instance and shakes hands. What it has made stands in b also
// when it fails.
func (m *Manager) start(ctx context.Context, b *box) error {
	spec := b.demand.Spec
	limit := usualStart
	if spec.StartTimeout > 0 {
		limit = spec.StartTimeout
	}
	late := fmt.Errorf("it was not ready within %v (start_timeout: raise it if the server needs longer)", limit)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, late)
	defer cancel()
	inst, err := b.backend.Create(ctx, b.id, spec, b.stderr)
	if err != nil {
		if ctx.Err() != nil && !errors.Is(err, late) {
			err = context.Cause(ctx)
		}
		return err
	}
	conn := wire.NewConn(inst.Transport())
	m.update(func(*state, time.Time) { b.inst, b.conn = inst, conn })
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
	})
	if b.demand.Handler != nil {
		conn.Handle(b.demand.Handler)
	} else {
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
	b.state, b.since, b.ready = Ready, now, now
	b.uses, b.waiters = b.waiters, 0
	if f := s.failures[b.failKey()]; f != nil {
		f.starts = 0
		if f.crashes == 0 {
			delete(s.failures, b.failKey())
		}
	}
	close(b.born)
	if b.uses == 0 {
		s.rest(b, now)
	}
	if s.holding(b.owner).quota.Memory > 0 {
		s.lookAt(now.Add(sampleEvery))
	}
}

// stillborn notes that the start of b went wrong.
func (s *state) stillborn(b *box, err error, now time.Time) *StartError {
	e := &StartError{Server: b.server, Err: err, Exit: b.exit, Stderr: b.stderr.last()}
	f := s.failure(b)
	f.starts++
	s.failed(b, f, e, f.starts, now)
	s.stop(b, reasonStart, e, now)
	return e
}

// used notes what b uses.
func (s *state) used(b *box, u Usage) {
	u.Peak = max(u.Peak, u.Memory, b.usage.Peak)
	b.usage = u
	if u.Memory > 0 {
		if len(s.footprints) >= maxFootprints {
			clear(s.footprints)
		}
		s.footprints[footprintKey(b)] = u.Memory
	}
}

// takeDown ends what there is of b. Until it returns b counts.
func (m *Manager) takeDown(b *box, wasReady bool) {
	if b.inst != nil {
		before := b.inst.Usage()
		_ = b.conn.Close() // the instance's Close reports what matters
		err := b.inst.Close()
		after := b.inst.Usage()
		m.update(func(s *state, _ time.Time) {
			before.Peak = max(before.Peak, after.Peak)
			s.used(b, before)
			b.usage.Memory = 0
			b.exit = cmp.Or(b.exit, after.Exit)
		})
		if err != nil {
			m.cfg.Log.Error("sandbox was not taken down cleanly", "server", b.server, "sandbox", b.id, "error", err)
		}
	}
	b.stderr.end()
	var reason, exit string
	m.update(func(s *state, _ time.Time) {
		reason, exit = b.reason, b.exit
		s.forget(b)
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
	m.record(b, trace.Stop, 0, reason, exit)
}

func (m *Manager) event(b *box, kind trace.Kind) trace.Event {
	return trace.Event{
		Time: time.Now(), Kind: kind, Tenant: b.tenant, Session: b.session, Server: b.server, Sandbox: b.id,
		Backend: string(b.demand.Spec.Isolation), Cause: b.demand.Cause,
	}
}

func (m *Manager) record(b *box, kind trace.Kind, provision time.Duration, detail, err string) {
	e := m.event(b, kind)
	e.Provision, e.Detail, e.Err = provision, detail, err
	m.update(func(*state, time.Time) { e.Memory = b.usage.Peak })
	m.cfg.Recorder.Record(e)
}
