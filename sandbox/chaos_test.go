package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/sandbox/sim"
	"github.com/specbox/specbox/trace"
)

// TestLawsHoldInChaos does random things to a manager and checks the laws of
// the package at every start, call and end.
func TestLawsHoldInChaos(t *testing.T) {
	for seed := range uint64(40) {
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
	sandbox.Backend
	t         *testing.T
	max       int
	tenantMax int

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
	w.add(spec, 1)
	inst, err := w.Backend.Create(ctx, id, spec, stderr)
	if err != nil {
		w.add(spec, -1)
		return nil, err
	}
	return &warded{inst, w, spec, sync.Mutex{}, false}, nil
}

type warded struct {
	sandbox.Instance
	w    *ward
	spec *sandbox.Spec
	mu   sync.Mutex
	gone bool
}

func (i *warded) Close() error {
	err := i.Instance.Close()
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.gone {
		i.gone = true
		i.w.add(i.spec, -1)
	}
	return err
}

func chaos(t *testing.T, seed uint64) {
	d := &dice{r: rand.New(rand.NewPCG(seed, 1))}
	scopes := map[string]config.Scope{"a": config.PerSession, "b": config.PerSession, "c": config.PerTenant, "d": config.Shared}
	backend := &sim.Backend{Life: func(*sandbox.Spec, int) sim.Life {
		l := sim.Life{Create: d.upTo(2 * time.Second), Handshake: d.upTo(time.Second), Close: d.upTo(3 * time.Second)}
		switch d.n(12) {
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
		}
		size := int64(d.n(40))
		l.Memory = func(age time.Duration, _ int) int64 { return size + int64(age/time.Second) }
		return l
	}}
	synctest.Test(t, func(t *testing.T) {
		w := &ward{Backend: backend, t: t, max: 3 + d.n(6), tenantMax: 2 + d.n(3), tenants: map[string]int{}}
		log := &trace.Log{}
		m, err := sandbox.New(sandbox.Config{
			Backends: map[config.Isolation]sandbox.Backend{config.Process: w}, Recorder: log, Sandboxes: w.max, Starts: 1 + d.n(4),
			Quota: func(tenant string) sandbox.Quota {
				q := sandbox.Quota{Sandboxes: w.tenantMax}
				if tenant == "t1" {
					q.Memory = 60
				}
				return q
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running, acting sync.WaitGroup
		running.Go(func() { _ = m.Run(ctx) })
		served := &served{t: t, holder: map[string]string{}}
		for range 12 {
			acting.Go(func() {
				for range 25 {
					time.Sleep(d.upTo(4 * time.Second))
					act(t, m, d, scopes, served)
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
		if w.live != 0 || len(backend.Live()) != 0 {
			t.Errorf("%d instances outlive Run", w.live)
		}
		checkEvents(t, log.Events())
	})
}

// served knows which session a sandbox has served.
type served struct {
	t      *testing.T
	mu     sync.Mutex
	holder map[string]string
}

func (s *served) by(id, holder string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h, ok := s.holder[id]; ok && h != holder {
		s.t.Errorf("sandbox %s served %s and then %s", id, h, holder)
	}
	s.holder[id] = holder
}

// act does one random thing.
func act(t *testing.T, m *sandbox.Manager, d *dice, scopes map[string]config.Scope, served *served) {
	tenant, session := fmt.Sprint("t", d.n(3)), fmt.Sprint("s", d.n(40))
	switch d.n(20) {
	case 0:
		m.EndSession(tenant, session)
		return
	case 1:
		ctx, cancel := context.WithTimeout(t.Context(), d.upTo(4*time.Second))
		defer cancel()
		_, _ = m.Stop(ctx, func(st sandbox.Status) bool { return st.Tenant == tenant && d.oneIn(3) })
		return
	}
	server := string(rune('a' + d.n(len(scopes))))
	sp := &sandbox.Spec{
		Server: server, Hash: "h", Isolation: config.Process, Scope: scopes[server],
		StartTimeout: 10 * time.Second, IdleTimeout: 10 * time.Second, Env: map[string]string{"tenant": tenant},
	}
	holder := tenant + "/" + session
	switch scopes[server] {
	case config.PerTenant:
		holder = tenant
	case config.Shared:
		holder = "all"
		sp.Env["tenant"] = ""
	}
	dem := sandbox.Demand{Tenant: tenant, Session: session, Spec: sp}
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
			if want := fmt.Sprintf("server %q was stopped by the operator during its start", server); err.Error() != want {
				t.Errorf("Acquire: %v", err)
			}
		}
		return
	}
	defer l.Release()
	served.by(l.ID(), holder)
	if _, err := l.Conn().Call(ctx, "tools/call", fmt.Appendf(nil, `{"name":"sleep","arguments":{"ms":%d}}`, d.n(5000))); err != nil {
		_ = l.Explain(err)
	}
	if d.oneIn(10) {
		l.Discard("chaos")
	}
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
		}
	}
	for id, n := range ready {
		if n != 0 {
			t.Errorf("sandbox %s: %d more starts than stops", id, n)
		}
	}
}
