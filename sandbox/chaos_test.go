package sandbox_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/sandbox/sim"
	"github.com/specbox/specbox/trace"
	"github.com/specbox/specbox/wire"
)

var seeds = flag.Uint64("seeds", 50, "how many seeds the chaos test has")

// TestLawsHoldInChaos does random things to a manager and checks the laws of
// the package after each of them, and at every start, call and end.
func TestLawsHoldInChaos(t *testing.T) {
	for seed := range *seeds {
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) { chaos(t, seed) })
	}
}

// A dice is a random source for concurrent use.
type dice struct {
	mu sync.Mutex
	r  *rand.Rand
}

func (d *dice) n(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.r.IntN(n)
}

func (d *dice) upTo(t time.Duration) time.Duration { return time.Duration(d.n(int(t))) + 1 }

// oneIn reports true once in n times.
func (d *dice) oneIn(n int) bool { return d.n(n) == 0 }

// A ward stands between manager and backend and counts what is alive.
type ward struct {
	*sim.Backend
	t         *testing.T
	max       int
	tenantMax int // the most that a quota ever was

	mu      sync.Mutex
	live    int
	tenants map[string]int // by the tenant that the test puts into Env
}

func (w *ward) add(spec *sandbox.Spec, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.live += n
	w.tenants[spec.Env["tenant"]] += n
	if w.live > w.max {
		w.t.Errorf("%d sandboxes are alive, the limit is %d", w.live, w.max)
	}
	if tenant := spec.Env["tenant"]; tenant != "" && w.tenants[tenant] > w.tenantMax {
		w.t.Errorf("%d sandboxes of %s are alive, the quota is %d", w.tenants[tenant], tenant, w.tenantMax)
	}
}

func (w *ward) Create(ctx context.Context, id string, spec *sandbox.Spec, stderr io.Writer) (sandbox.Instance, error) {
	return w.watch(spec, func() (sandbox.Instance, error) { return w.Backend.Create(ctx, id, spec, stderr) })
}

func (w *ward) Speculate(ctx context.Context, id string, spec *sandbox.Spec, stderr io.Writer) (sandbox.Instance, error) {
	return w.watch(spec, func() (sandbox.Instance, error) { return w.Backend.Speculate(ctx, id, spec, stderr) })
}

func (w *ward) watch(spec *sandbox.Spec, create func() (sandbox.Instance, error)) (sandbox.Instance, error) {
	w.add(spec, 1)
	inst, err := create()
	if err != nil {
		w.add(spec, -1)
		return nil, err
	}
	return &warded{inst.(able), w, spec, sync.Mutex{}, false}, nil
}

// able is all that a simulated instance can do.
type able interface {
	sandbox.Instance
	sandbox.Promoter
	sandbox.Reclaimer
	sandbox.Freezer
}

type warded struct {
	able
	w    *ward
	spec *sandbox.Spec
	mu   sync.Mutex
	gone bool
}

func (i *warded) Close() error {
	err := i.able.Close()
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.gone {
		i.gone = true
		i.w.add(i.spec, -1)
	}
	return err
}

// A turmoil is what one seed makes.
type turmoil struct {
	t      *testing.T
	d      *dice
	m      *sandbox.Manager
	w      *ward
	cfg    sandbox.Config
	scopes map[string]config.Scope
	room   int // calls at once in a sandbox that is shared; 0 means no bound

	mu     sync.Mutex
	holder map[string]string // sandbox -> whom it has served
	quota  int               // sandboxes of a tenant, for now
}

// life is the life of one instance.
func (c *turmoil) life(*sandbox.Spec, int) sim.Life {
	d := c.d
	l := sim.Life{
		Create: d.upTo(2 * time.Second), Handshake: d.upTo(time.Second), Close: d.upTo(3 * time.Second),
		Freeze: d.upTo(20 * time.Millisecond), Thaw: d.upTo(2 * time.Millisecond),
		Reclaim: d.upTo(time.Second), Spare: int64(d.n(20)),
	}
	switch d.n(16) {
	case 0:
		l.Err = errors.New("chaos")
	case 1:
		l.Dies = d.upTo(20 * time.Second)
	case 2:
		l.Mute = true
	case 3:
		l.Create = d.upTo(30 * time.Second)
	case 4:
		l.Deaf = true
	case 5:
		l.FreezeErr = errors.New("chaos")
	case 6:
		l.ThawErr = errors.New("chaos")
	case 7:
		l.Greeted = func(ctx context.Context, p *sim.Peer) { _, _ = p.Ask(ctx, "roots/list", nil) }
	case 8:
		l.Greeted = func(ctx context.Context, p *sim.Peer) {
			for range 300 {
				p.Notify("notifications/message", nil)
			}
		}
	}
	size := int64(d.n(40))
	l.Memory = func(age time.Duration, _ int) int64 { return size + int64(age/time.Second) }
	l.Serve = func(ctx context.Context, p *sim.Peer, m wire.Message) wire.Reply {
		c.mu.Lock()
		_, held := c.holder[p.ID()]
		c.mu.Unlock()
		if !held {
			c.t.Errorf("%s was said to sandbox %s, which nobody holds", m.Method, p.ID())
		}
		return sim.Tools(ctx, p, m)
	}
	return l
}

func chaos(t *testing.T, seed uint64) {
	c := &turmoil{t: t, d: &dice{r: rand.New(rand.NewPCG(seed, 1))}, holder: map[string]string{}}
	c.scopes = map[string]config.Scope{"a": config.PerSession, "b": config.PerSession, "c": config.PerTenant, "d": config.Shared}
	c.room = c.d.n(4)
	backend := &sim.Backend{Life: c.life, Cores: c.d.n(3)}
	synctest.Test(t, func(t *testing.T) {
		d := c.d
		c.t = t
		c.w = &ward{Backend: backend, t: t, max: 3 + d.n(8), tenantMax: 2 + d.n(4), tenants: map[string]int{}}
		c.quota = c.w.tenantMax
		log := &trace.Log{}
		c.cfg = sandbox.Config{
			Backends: map[config.Isolation]sandbox.Backend{config.Process: c.w}, Recorder: log, Sandboxes: c.w.max, Starts: 1 + d.n(4),
			Quota: c.quotaOf,
			Speculation: sandbox.Speculation{
				Sandboxes: 1 + d.n(6), Starts: 1 + d.n(3), Hold: d.upTo(20 * time.Second),
				Freeze: []sandbox.Freeze{"", sandbox.FreezeNever, sandbox.FreezeIdle}[d.n(3)], FreezeAfter: d.upTo(3 * time.Second),
				Hedge: d.oneIn(2),
			},
		}
		if d.oneIn(3) {
			c.cfg.Memory = 100
			c.cfg.Speculation.Memory = 50
		}
		m, err := sandbox.New(c.cfg)
		if err != nil {
			t.Fatal(err)
		}
		c.m = m
		ctx, cancel := context.WithCancel(t.Context())
		var running, acting sync.WaitGroup
		running.Go(func() { _ = m.Run(ctx) })
		for range 12 {
			acting.Go(func() {
				for range 25 {
					time.Sleep(d.upTo(4 * time.Second))
					c.act()
					c.check()
				}
			})
		}
		if d.oneIn(2) {
			time.Sleep(d.upTo(time.Minute))
			cancel()
			running.Wait()
			acting.Wait()
		} else {
			acting.Wait()
			if st := m.Stats(); st.Uses != 0 {
				t.Errorf("all leases were given back, and %d are held", st.Uses)
			}
			time.Sleep(20 * time.Minute) // all is idle long since
			synctest.Wait()
			if left := m.List(); len(left) != 0 {
				t.Errorf("after the idle time there are %+v", left)
			}
			cancel()
			running.Wait()
		}
		c.check()
		if w := c.w; w.live != 0 || len(backend.Live()) != 0 || m.Stats().Live != 0 {
			t.Errorf("%d instances outlive Run, and %d are counted", w.live, m.Stats().Live)
		}
		checkEvents(t, log.Events())
	})
}

func (c *turmoil) quotaOf(tenant string) sandbox.Quota {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := sandbox.Quota{Sandboxes: c.quota}
	switch tenant {
	case "t1":
		q.Memory = 60
	case "t2":
		q.Starts, q.Unclaimed = 1, 2
	}
	return q
}

// check checks the laws that can be seen at any moment.
func (c *turmoil) check() {
	if err := c.m.Audit(); err != nil {
		c.t.Error(err)
	}
	var unclaimed, guessing, starting int
	now := time.Now()
	for _, st := range c.m.List() {
		counts := st.State != sandbox.Waiting
		if counts && !st.Claimed {
			unclaimed++
		}
		if age := now.Sub(st.Since); st.State == sandbox.Starting { // for so long it counts among the starts
			if age < 5*time.Second {
				starting++
			}
			if age < 20*time.Second && !st.Claimed {
				guessing++
			}
		}
		if st.State == sandbox.Frozen && st.Uses > 0 {
			c.t.Errorf("a frozen sandbox is in use: %+v", st)
		}
	}
	if limit := c.cfg.Speculation; unclaimed > limit.Sandboxes || guessing > limit.Starts || starting > c.cfg.Starts+limit.Starts {
		c.t.Errorf("%d unclaimed, %d and in all %d starts, with limits of %d, %d, and %d more", unclaimed, guessing, starting, limit.Sandboxes, limit.Starts, c.cfg.Starts)
	}
}

// by notes whom a sandbox serves.
func (c *turmoil) by(id, holder string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h, ok := c.holder[id]; ok && h != holder {
		c.t.Errorf("sandbox %s served %s and then %s", id, h, holder)
	}
	c.holder[id] = holder
}

// act does one random thing.
func (c *turmoil) act() {
	d, m := c.d, c.m
	tenant, session := fmt.Sprint("t", d.n(3)), fmt.Sprint("s", d.n(40))
	switch d.n(24) {
	case 0:
		m.EndSession(tenant, session)
	case 1:
		ctx, cancel := context.WithTimeout(c.t.Context(), d.upTo(4*time.Second))
		defer cancel()
		_, _ = m.Stop(ctx, func(st sandbox.Status) bool { return st.Tenant == tenant && d.oneIn(3) })
	case 2:
		c.mu.Lock()
		c.quota = 1 + d.n(c.w.tenantMax)
		c.mu.Unlock()
	case 3:
		if live := c.w.Backend.Live(); len(live) > 0 {
			c.w.Kill(live[d.n(len(live))])
		}
	case 4, 5, 6, 7, 8:
		c.storm(tenant, session, 1+d.n(3))
	case 9:
		c.storm(tenant, session, 40)
	default:
		c.call(tenant, session)
	}
}

// spec returns how to run a random server, and who shares its sandbox.
func (c *turmoil) spec(tenant, session string) (*sandbox.Spec, string) {
	server := string(rune('a' + c.d.n(len(c.scopes))))
	sp := &sandbox.Spec{
		Server: server, Hash: "h", Isolation: config.Process, Scope: c.scopes[server],
		Concurrency: c.room, StartTimeout: 10 * time.Second, IdleTimeout: 15 * time.Second, Env: map[string]string{"tenant": tenant},
	}
	switch sp.Scope {
	case config.PerTenant:
		return sp, tenant
	case config.Shared:
		sp.Env["tenant"] = ""
		return sp, "all"
	}
	return sp, tenant + "/" + session
}

// storm gives hints.
func (c *turmoil) storm(tenant, session string, n int) {
	begun := time.Now()
	for range n {
		sp, _ := c.spec(tenant, session)
		h := sandbox.Hint{Tenant: tenant, Spec: sp, Cause: trace.Intent, P: float64(c.d.n(100)) / 100, Want: c.d.n(4)}
		if c.d.oneIn(2) {
			h.Session = session
		}
		c.m.Warm(h)
	}
	if took := time.Since(begun); took != 0 {
		c.t.Errorf("%d hints took %v", n, took)
	}
}

// call leases a sandbox and uses it.
func (c *turmoil) call(tenant, session string) {
	t, d, m := c.t, c.d, c.m
	sp, holder := c.spec(tenant, session)
	dem := sandbox.Demand{Tenant: tenant, Session: session, Spec: sp, Handler: &hearer{}}
	if d.oneIn(5) {
		dem.Cause = trace.Catalog
	}
	ctx, cancel := context.WithTimeout(t.Context(), d.upTo(time.Minute))
	defer cancel()
	begun := time.Now()
	l, err := m.Acquire(ctx, dem)
	if err != nil {
		var start *sandbox.StartError
		var quota *sandbox.QuotaError
		switch {
		case errors.As(err, &start), errors.As(err, &quota) && time.Since(begun) >= 30*time.Second:
		case errors.Is(err, context.DeadlineExceeded), errors.Is(err, sandbox.ErrClosed), errors.Is(err, sandbox.ErrSessionEnded):
		default:
			if want := fmt.Sprintf("server %q was stopped by the operator during its start", sp.Server); err.Error() != want {
				t.Errorf("Acquire: %v", err)
			}
		}
		return
	}
	defer l.Release()
	c.by(l.ID(), holder)
	if l.Conn().Err() == nil && (slices.Contains(c.w.Frozen(), l.ID()) || slices.Contains(c.w.Lowly(), l.ID())) {
		if st := c.status(l.ID()); st == sandbox.Leased {
			t.Errorf("sandbox %s was leased frozen or in the idle class", l.ID())
		}
	}
	if _, err := l.Conn().Call(ctx, "tools/call", fmt.Appendf(nil, `{"name":"sleep","arguments":{"ms":%d}}`, d.n(5000))); err != nil {
		var lost *sandbox.LostError
		if err = l.Explain(err); errors.As(err, &lost) && (lost.Reason == sandbox.ReasonQuota || lost.Reason == sandbox.ReasonIdle) {
			t.Errorf("a sandbox was taken away from its call: %v", err)
		}
	}
	if d.oneIn(10) {
		l.Discard("chaos")
	}
}

func (c *turmoil) status(id string) sandbox.State {
	for _, st := range c.m.List() {
		if st.ID == id {
			return st.State
		}
	}
	return sandbox.Gone
}

// checkEvents checks that each sandbox that was started is stopped, once, and
// none that was not.
func checkEvents(t *testing.T, events []trace.Event) {
	ready := map[string]int{}
	for _, e := range events {
		switch {
		case e.Kind == trace.Start && e.Err == "":
			ready[e.Sandbox]++
		case e.Kind == trace.Stop:
			ready[e.Sandbox]--
			if e.Detail == "" {
				t.Errorf("a stop without a reason: %+v", e)
			}
			if strings.HasPrefix(e.Detail, sandbox.ReasonUnused) && !e.Cause.Speculative() {
				t.Errorf("what was no guess was unused: %+v", e)
			}
		}
	}
	for id, n := range ready {
		if n != 0 {
			t.Errorf("sandbox %s: %d more starts than stops", id, n)
		}
	}
}
