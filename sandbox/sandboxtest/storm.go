package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/sandbox"
)

// Bounds of the manager in a storm: small, so that they are met.
const (
	stormSandboxes = 12
	stormQuota     = 8
	stormGuesses   = 5
	stormActors    = 4
)

// A storm is what acts on a manager at random.
type storm struct {
	t     *testing.T
	m     *sandbox.Manager
	specs []*sandbox.Spec
	end   time.Time

	mu     sync.Mutex
	holder map[string]string // sandbox -> session that it served
	calls  int               // that were answered
	warm   int               // of these, those whose sandbox was there on a guess
}

// TestManager has a manager do random things with the backend's servers for that
// long: hints, calls, crashes, cancels, ends of sessions, stops. It checks that
// every call is answered with what is its own or fails for a reason, that the
// budgets hold, that no sandbox serves two sessions, and that nothing is left.
func TestManager(t *testing.T, suite Suite, length time.Duration) {
	before := runtime.NumGoroutine()
	t.Cleanup(func() { checkLeft(t, suite, before) })
	s := &storm{t: t, end: time.Now().Add(length), holder: map[string]string{}}
	backends := map[config.Isolation]sandbox.Backend{}
	for _, manner := range []string{Echo, Chatty, Crash, Stubborn, Missing} {
		if suite.Spec(manner) == nil {
			continue
		}
		spec := suite.spec(manner)
		spec.Server, spec.Hash, spec.StartTimeout, spec.IdleTimeout = manner, manner, patient, time.Second
		backends[spec.Isolation] = suite.Backend
		s.specs = append(s.specs, spec)
	}
	m, err := sandbox.New(sandbox.Config{
		Backends: backends, Sandboxes: stormSandboxes, Starts: 4, Wait: 2 * time.Second,
		Quota:       func(string) sandbox.Quota { return sandbox.Quota{Sandboxes: stormQuota} },
		Speculation: sandbox.Speculation{Sandboxes: stormGuesses, Starts: 2, Hold: time.Second, FreezeAfter: 20 * time.Millisecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.m = m
	ctx, cancel := context.WithCancel(context.Background())
	var running, acting sync.WaitGroup
	running.Go(func() { _ = m.Run(ctx) })
	for range stormActors {
		acting.Go(func() {
			for time.Now().Before(s.end) {
				s.act()
			}
		})
	}
	acting.Wait()
	cancel()
	running.Wait()
	if st := m.Stats(); st.Live != 0 || st.Uses != 0 {
		t.Errorf("when Run has returned %d sandboxes are alive, with %d leases", st.Live, st.Uses)
	}
	t.Logf("%d calls were answered, %d of them by a sandbox that was there on a guess; %d sandboxes were used", s.calls, s.warm, len(s.holder))
	if s.calls == 0 {
		t.Error("no call was answered")
	}
}

func (s *storm) act() {
	tenant, session := fmt.Sprint("t", rand.IntN(2)), fmt.Sprint("s", rand.IntN(200))
	spec := s.specs[rand.IntN(len(s.specs))]
	switch rand.IntN(12) {
	case 0:
		s.m.EndSession(tenant, session)
	case 1:
		ctx, cancel := context.WithTimeout(context.Background(), patient)
		defer cancel()
		if _, err := s.m.Stop(ctx, func(st sandbox.Status) bool { return st.Tenant == tenant && rand.IntN(4) == 0 }); err != nil {
			s.t.Errorf("Stop: %v", err)
		}
	case 2, 3, 4, 5:
		s.m.Warm(sandbox.Hint{Tenant: tenant, Spec: spec, P: rand.Float64(), Want: 1 + rand.IntN(2)})
		<-time.After(time.Duration(rand.IntN(200)) * time.Millisecond)
		session = fmt.Sprint("new", rand.Int64())
		s.call(tenant, session, spec)
		s.m.EndSession(tenant, session)
	default:
		s.call(tenant, session, spec)
	}
	if st := s.m.Stats(); st.Live > stormSandboxes || st.Unclaimed > stormGuesses {
		s.t.Errorf("%d sandboxes are alive, %d of them unclaimed; the limits are %d and %d", st.Live, st.Unclaimed, stormSandboxes, stormGuesses)
	}
}

// call leases a sandbox and has it answer, unless it gives up before.
func (s *storm) call(tenant, session string, spec *sandbox.Spec) {
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	if rand.IntN(5) == 0 {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(rand.IntN(200))*time.Millisecond)
		defer cancel()
	}
	l, err := s.m.Acquire(ctx, sandbox.Demand{Tenant: tenant, Session: session, Spec: spec})
	if err != nil {
		s.excuse("Acquire", spec, err)
		return
	}
	defer l.Release()
	s.mu.Lock()
	if h, ok := s.holder[l.ID()]; ok && h != tenant+"/"+session {
		s.t.Errorf("sandbox %s served %s and then %s/%s", l.ID(), h, tenant, session)
	}
	s.holder[l.ID()] = tenant + "/" + session
	s.mu.Unlock()
	if spec.Server == Crash && rand.IntN(3) == 0 {
		_, _ = l.Conn().Call(ctx, "crash", nil)
		return
	}
	params := fmt.Sprintf(`{"n":%d}`, rand.Int64())
	r, err := l.Conn().Call(ctx, "echo", []byte(params))
	switch {
	case err != nil:
		s.excuse("call", spec, l.Explain(err))
	case string(r.Result) != params:
		s.t.Errorf("echo of %s came back as %s%s", params, r.Result, r.Error)
	default:
		s.mu.Lock()
		s.calls++
		if l.Fresh() && l.Cause().Speculative() {
			s.warm++
		}
		s.mu.Unlock()
	}
	if rand.IntN(10) == 0 {
		l.Discard("storm")
	}
}

// excuse reports an error that nothing in the storm accounts for.
func (s *storm) excuse(what string, spec *sandbox.Spec, err error) {
	var start *sandbox.StartError
	var quota *sandbox.QuotaError
	var lost *sandbox.LostError
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, sandbox.ErrSessionEnded), errors.As(err, &quota):
	case errors.As(err, &start) && (spec.Server == Missing || spec.Server == Crash):
	case errors.As(err, &lost) && (slices.Contains([]string{sandbox.ReasonOperator, sandbox.ReasonSession, "storm"}, lost.Reason) || spec.Server == Crash):
	case err.Error() == fmt.Sprintf("server %q was stopped by the operator during its start", spec.Server):
	default:
		s.t.Errorf("%s of %s: %v", what, spec.Server, err)
	}
}
