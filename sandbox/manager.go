package sandbox

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/trace"
	"github.com/specbox/specbox/wire"
)

// A Config configures a [Manager].
type Config struct {
	Backends  map[config.Isolation]Backend
	Recorder  trace.Recorder            // nil means trace.Discard
	Log       *slog.Logger              // nil means none
	Sandboxes int                       // alive at once, all tenants; default 64
	Memory    int64                     // bytes in use by all of them; 0 means no limit
	Starts    int                       // of calls, under way at once; default the number of cores, at least 2
	Quota     func(tenant string) Quota // called concurrently; nil means that no tenant has one
	Wait      time.Duration             // how long a call waits for room in the budgets; default 30 s
	Info      []byte                    // clientInfo that sandboxes are told that sessions share; default SpecBox's name

	Speculation Speculation // what may be started before it is asked for
}

// A Quota bounds what one tenant may have. Sandboxes of scope shared count for
// no tenant.
type Quota struct {
	Sandboxes int   // alive at once; 0 means no limit
	Memory    int64 // bytes in use by all of them; 0 means no limit
	Starts    int   // of calls, under way at once; 0 means no limit but that of all
	Unclaimed int   // started on a guess and not come for, at once; 0 means no limit but that of all
}

// A Client is what the handshake presents to a server. Empty fields mean the
// newest revision that has a handshake, no capabilities, and SpecBox's name. A
// version of the modern era ([wire.Modern]) asks for that era.
type Client struct {
	Version      string
	Capabilities []byte // JSON object
	Info         []byte // JSON object
}

// Meta returns what each request of the modern era says in _meta of its client.
func (c Client) Meta() []byte {
	caps, info := c.Capabilities, c.Info
	if caps == nil {
		caps = []byte("{}")
	}
	if info == nil {
		info = []byte(`{"name":"specbox","version":"0"}`)
	}
	return fmt.Appendf(nil, `{%q:%q,%q:%s,%q:%s}`, wire.MetaVersion, wire.Modern, wire.MetaClientInfo, info, wire.MetaCapabilities, caps)
}

// A Demand says what a call needs.
type Demand struct {
	Tenant  string
	Session string
	Spec    *Spec
	// Client is presented to a sandbox of scope session. One that sessions
	// share is told the version alone: no capabilities, so that it never asks
	// one session's client what concerns another's.
	Client Client
	// Handler takes what the server sends on its own accord, from the
	// handshake on. The sandbox keeps the handler of the call that had it
	// started, or that came first for one that was there on a guess: for a
	// sandbox that sessions share it must outlive the session.
	Handler wire.Handler
	Cause   trace.Cause // "" means trace.Demand; a catalogue's starts wait behind those of calls
}

// A Manager starts sandboxes, lends them out, and takes them down. It is safe
// for concurrent use.
type Manager struct {
	cfg  Config
	logs logs
	work sync.WaitGroup // every goroutine of a box
	ran  atomic.Bool
	look chan struct{} // the keeper should look again

	mu sync.Mutex
	s  state
}

// New returns a Manager. It starts nothing: sandboxes are looked after while
// [Manager.Run] runs.
func New(cfg Config) (*Manager, error) {
	if len(cfg.Backends) == 0 {
		return nil, errors.New("sandbox: no backends are configured")
	}
	if cfg.Sandboxes < 0 || cfg.Starts < 0 || cfg.Wait < 0 || cfg.Memory < 0 {
		return nil, fmt.Errorf("sandbox: limits must not be negative: sandboxes %d, memory %d, starts %d, wait %v", cfg.Sandboxes, cfg.Memory, cfg.Starts, cfg.Wait)
	}
	if err := cfg.Speculation.check(); err != nil {
		return nil, err
	}
	cfg.Sandboxes = cmp.Or(cfg.Sandboxes, 64)
	cfg.Starts = cmp.Or(cfg.Starts, max(2, runtime.NumCPU()))
	cfg.Wait = cmp.Or(cfg.Wait, 30*time.Second)
	cfg.Speculation.fill(cfg.Sandboxes, cfg.Starts)
	cfg.Backends = maps.Clone(cfg.Backends)
	if cfg.Recorder == nil {
		cfg.Recorder = trace.Discard
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Quota == nil {
		cfg.Quota = func(string) Quota { return Quota{} }
	}
	if cfg.Info == nil {
		cfg.Info = []byte(`{"name":"specbox","version":"0"}`)
	}
	m := &Manager{cfg: cfg, look: make(chan struct{}, 1)}
	m.s = state{
		max: cfg.Sandboxes, maxStarts: cfg.Starts, maxMemory: cfg.Memory, spec: cfg.Speculation,
		boxes: map[*box]struct{}{}, bound: map[binding][]*box{}, pools: map[poolKey][]*box{},
		holdings: map[owner]*holding{}, tight: map[owner]struct{}{},
		failures: map[failKey]*failure{}, ended: map[[2]string]struct{}{}, known: map[estimateKey]*figures{},
		reclaim: func(b *box) { m.work.Go(func() { m.reclaim(b) }) },
		begin:   func(ctx context.Context, b *box) { m.work.Go(func() { m.live(ctx, b) }) },
	}
	return m, nil
}

// update changes the state, and does what follows from the change. The func
// must not block.
func (m *Manager) update(f func(s *state, now time.Time)) {
	now := time.Now()
	m.mu.Lock()
	f(&m.s, now)
	m.s.schedule(now)
	wake := m.s.wake
	m.s.wake = false
	m.mu.Unlock()
	if wake {
		select {
		case m.look <- struct{}{}:
		default:
		}
	}
}

// view reads the state. The func must not block, and changes nothing.
func (m *Manager) view(f func(s *state)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(&m.s)
}

// sampleEvery is how often memory is looked at where a quota bounds it.
const sampleEvery = 3 * time.Second

// Run looks after the sandboxes until ctx ends. Then it takes all of them down
// at once; when it returns nothing of the manager is alive, and it was the
// backends' Close that took the time. It returns nil, or an error when it is
// called again.
func (m *Manager) Run(ctx context.Context) error {
	if m.ran.Swap(true) {
		return errors.New("sandbox: the manager has run already")
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		m.sample(func(b *box) bool {
			return m.cfg.Memory > 0 || b.guess && m.cfg.Speculation.Memory > 0 || m.s.holding(b.owner).quota.Memory > 0
		})
		var next time.Time
		m.update(func(s *state, now time.Time) {
			s.sweep(now)
			next = s.planned
		})
		timer.Stop()
		if !next.IsZero() {
			timer.Reset(time.Until(next))
		}
		select {
		case <-timer.C:
		case <-m.look:
		case <-ctx.Done():
		}
	}
	m.update(func(s *state, now time.Time) {
		s.closed = true
		for b := range s.boxes {
			s.stop(b, ReasonShutdown, ErrClosed, now)
		}
	})
	m.work.Wait()
	return nil
}

// sample looks at what the boxes that match use; match is called under the
// lock, the backends are not.
func (m *Manager) sample(match func(*box) bool) {
	insts := map[*box]Instance{}
	m.update(func(s *state, _ time.Time) {
		for b := range s.boxes {
			if b.inst != nil && match(b) {
				insts[b] = b.inst
			}
		}
	})
	if len(insts) == 0 {
		return
	}
	usage := map[*box]Usage{}
	for b, inst := range insts {
		usage[b] = inst.Usage()
	}
	m.update(func(s *state, _ time.Time) {
		for b, u := range usage {
			s.used(b, u)
		}
	})
}

// Acquire returns a lease of a sandbox for one call: of the one that is there,
// of one that was started on a guess and is bound to the session then, or of
// one that is started for it. Calls that need the same sandbox share it, and
// its start. It fails with a [*StartError], a [*QuotaError], ErrClosed,
// ErrSessionEnded, or the cause of ctx; a start under way then goes on, for the
// next call.
func (m *Manager) Acquire(ctx context.Context, d Demand) (*Lease, error) {
	begun := time.Now()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	w := m.wish(d.Tenant, d.Session, d.Spec, d.Client, cmp.Or(d.Cause, trace.Demand))
	w.handler = d.Handler
	for {
		l := &Lease{m: m}
		opening, err := m.join(l, &w, begun)
		if err != nil {
			return nil, err
		}
		if l.outcome != trace.Warm {
			if err := m.await(ctx, l); err != nil {
				return nil, err
			}
			m.update(func(s *state, _ time.Time) { opening = l.fill(s, begun) })
		}
		if opening == nil {
			l.provision = time.Since(begun)
			return l, nil
		}
		select {
		case <-opening:
		case <-ctx.Done():
			l.drop()
			return nil, context.Cause(ctx)
		}
		usable := false
		m.update(func(s *state, _ time.Time) {
			if usable = l.b.state.live(); usable {
				l.fill(s, begun)
			}
		})
		if usable {
			l.provision = time.Since(begun)
			return l, nil
		}
		l.drop() // nothing was said to it: the call gets another one
	}
}

// join finds or adds the box that serves a wish, and adds the call to it.
func (m *Manager) join(l *Lease, w *wish, begun time.Time) (opening chan struct{}, err error) {
	try := func(next *box) {
		m.update(func(s *state, now time.Time) {
			if next != nil {
				s.allow(next)
			}
			if l.b, l.outcome, err = s.join(w, next, now); l.outcome == trace.Warm {
				opening = l.fill(s, begun)
			}
		})
	}
	try(nil)
	if l.b != nil || err != nil {
		return opening, err
	}
	if m.cfg.Backends[w.spec.Isolation] == nil {
		return nil, fmt.Errorf("server %q: isolation %q is not available here; there is %v",
			w.spec.Server, w.spec.Isolation, slices.Sorted(maps.Keys(m.cfg.Backends)))
	}
	if w.findPool(m.cfg.Info); w.pool != (poolKey{}) {
		if try(nil); l.b != nil || err != nil {
			return opening, err
		}
	}
	next := m.prepare(w)
	if next.quota.Memory > 0 || m.cfg.Memory > 0 {
		m.sample(func(o *box) bool { return m.cfg.Memory > 0 || o.owner == next.owner })
	}
	try(next)
	return opening, err
}

// wish returns what a call or a hint is about.
func (m *Manager) wish(tenant, session string, spec *Spec, c Client, cause trace.Cause) wish {
	w := wish{tenant: tenant, session: session, spec: spec, client: c, cause: cause}
	w.key = binding{owner: owner{tenant: tenant}, server: spec.Server, hash: spec.Hash}
	switch spec.Scope {
	case config.PerTenant:
		w.key.version = cmp.Or(c.Version, newest)
	case config.Shared:
		w.key.owner = owner{shared: true}
		w.key.version = cmp.Or(c.Version, newest)
	default:
		w.key.session = session
	}
	return w
}

// newest is the last revision of the protocol that has a handshake.
const newest = "2025-11-25"

// prepare makes the box that a wish needs, on a backend that there is. It is
// not part of the state yet.
func (m *Manager) prepare(w *wish) *box {
	b := &box{
		id: newID(w.spec.Server), binding: w.key, spec: w.spec, asker: w.tenant, backend: m.cfg.Backends[w.spec.Isolation],
		cause: w.cause, handler: w.handler, rank: rank(w.cause), asked: time.Now(), fresh: true,
		admitted: make(chan struct{}), born: make(chan struct{}), gone: make(chan struct{}), look: make(chan struct{}, 1), relief: make(chan struct{}, 1),
		rest: make(chan struct{}, 1),
	}
	if w.perSession() {
		b.client = w.client
		if b.client.Info == nil {
			b.client.Info = m.cfg.Info
		}
	} else {
		b.client = Client{Version: w.key.version, Info: m.cfg.Info}
	}
	if !w.key.shared {
		b.quota = m.cfg.Quota(w.tenant)
	}
	var noise atomic.Int32
	b.stderr = newStderr(w.spec, func(text string) {
		now := time.Now()
		m.logs.add(logKey{b.tenant, b.server}, LogLine{Time: now, Sandbox: b.id, Text: text})
		if junk, ok := strings.CutPrefix(text, NoisePrefix); ok && noise.Add(1) <= maxNoise {
			e := m.event(b, trace.Noise)
			e.Time, e.Detail, e.Memory = now, junk, 0
			m.cfg.Recorder.Record(e)
		}
	})
	return b
}

// newID returns an id that no other sandbox has, in any SpecBox.
func newID(server string) string {
	const longest = 24
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, server)
	var random [6]byte
	_, _ = rand.Read(random[:]) // it never fails
	return name[:min(len(name), longest)] + "-" + hex.EncodeToString(random[:])
}

func handshake(c Client) []byte {
	caps, info := c.Capabilities, c.Info
	if caps == nil {
		caps = []byte("{}")
	}
	return fmt.Appendf(nil, `{"protocolVersion":%s,"capabilities":%s,"clientInfo":%s}`, wire.Quote(cmp.Or(c.Version, newest)), caps, info)
}

// await waits until the box of l is born, with the lease of the call that waits,
// or another one has room for the call, which then has a lease of that.
func (m *Manager) await(ctx context.Context, l *Lease) error {
	begun := time.Now()
	room := time.NewTimer(m.cfg.Wait)
	defer room.Stop()
	admitted := l.b.admitted
	for {
		b := l.b
		select {
		case <-b.born:
			if b.heir != nil {
				l.b = b.heir
				continue
			}
			return b.err
		case <-b.relief:
			moved := false
			m.update(func(s *state, now time.Time) { moved = s.move(l, now) })
			if moved {
				return nil
			}
		case <-admitted:
			admitted = nil
			room.Stop()
		case <-room.C:
			var err error
			m.update(func(s *state, now time.Time) {
				if b.state == Waiting && b.err == nil {
					err = s.noRoom(b, now.Sub(begun))
					s.leave(b, now)
				}
			})
			if err != nil {
				return err
			}
		case <-ctx.Done():
			m.update(func(s *state, now time.Time) { s.leave(b, now) })
			return context.Cause(ctx)
		}
	}
}

// Stop stops the sandboxes whose status matches, and waits until they are gone
// or ctx ends. It returns how many there were. Calls that use them fail.
func (m *Manager) Stop(ctx context.Context, match func(Status) bool) (int, error) {
	wanted := map[string]bool{}
	for _, st := range m.List() {
		wanted[st.ID] = match(st)
	}
	var stopped []*box
	m.update(func(s *state, now time.Time) {
		for b := range s.boxes {
			if wanted[b.id] {
				stopped = append(stopped, b)
				s.stop(b, ReasonOperator, fmt.Errorf("server %q was stopped by the operator during its start", b.server), now)
			}
		}
	})
	for _, b := range stopped {
		select {
		case <-b.gone:
		case <-ctx.Done():
			return len(stopped), fmt.Errorf("server %q, sandbox %s, is still being stopped: %w", b.server, b.id, context.Cause(ctx))
		}
	}
	return len(stopped), nil
}

// EndSession stops the sandboxes of a session, which will not come back. It
// returns at once; calls of the session fail.
func (m *Manager) EndSession(tenant, session string) {
	m.update(func(s *state, now time.Time) { s.endSession(tenant, session, now) })
}

// Logs returns what a server of a tenant printed besides its messages, oldest
// first: the last lines, also of sandboxes that are gone. What sandboxes of
// scope shared print belongs to the tenant "".
func (m *Manager) Logs(tenant, server string) []LogLine {
	return m.logs.get(logKey{tenant, server})
}
