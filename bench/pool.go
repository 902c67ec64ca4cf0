package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/sandbox/process"
)

// What [Pool] measures.
var (
	besides = []int{0, 3, 8}
	leads   = []time.Duration{0, 300 * time.Millisecond, 800 * time.Millisecond, 2 * time.Second}
)

const (
	guessTenant = "guess" // whose speculative starts stand beside a demanded one
	callTenant  = "call"
	// A correct guess with some lead may take this much longer than what was left
	// of the start, and then the excess.
	guessSlack = 1.15
	settled    = 5 * time.Minute // everything that is waited for takes less, also on a busy machine
	// underway is how long speculative starts run before something is demanded.
	underway  = 150 * time.Millisecond
	frozenFor = time.Second // over which the processor's time of a frozen sandbox is measured
)

// A PoolServer is a server for [Pool] to start.
type PoolServer struct {
	Name   string
	Argv   []string
	Env    map[string]string
	Mounts []config.Mount
	// Isolation is process or none; "" means process.
	Isolation config.Isolation
}

// PoolOptions say what [Pool] does.
type PoolOptions struct {
	// Servers are started. The first is what is demanded; the speculative starts
	// beside it take turns among all.
	Servers  []PoolServer
	Rounds   int          // of everything
	Progress func(string) // may be nil
}

// A PoolCell is one time that was measured, over all rounds.
type PoolCell struct {
	What     string  `json:"what"`
	MedianMS float64 `json:"median_ms"`
	P90MS    float64 `json:"p90_ms"`

	times []time.Duration
}

// A PoolReport is what a run of [Pool] found. The fields before Rounds are those
// that scripts rely on.
type PoolReport struct {
	DemandRatioK3    float64 `json:"demand_ratio_k3"`    // a demanded start beside 3 guesses, of which as many are under way as there are by default, to one alone; medians
	DemandRatioK8    float64 `json:"demand_ratio_k8"`    // beside 8 guesses
	PromotedExcessMS float64 `json:"promoted_excess_ms"` // what a correct guess waits beyond 1.15 times the rest of the start; the worst lead
	ThawExtraMS      float64 `json:"thaw_extra_ms"`      // first call of a frozen sandbox, less that of a running one; medians
	FrozenCPUPercent float64 `json:"frozen_cpu_percent"` // of one core, by a frozen sandbox

	DemandRatioK3AtOnce float64 `json:"demand_ratio_k3_at_once"` // the same, where all guesses are under way at once
	DemandRatioK8AtOnce float64 `json:"demand_ratio_k8_at_once"`

	Rounds  int         `json:"rounds"`
	Server  string      `json:"server"`
	Seconds float64     `json:"seconds"`
	Cells   []*PoolCell `json:"cells"`
}

// Pool measures what speculation costs calls, and saves them, with a real sandbox
// manager and real processes. In each round everything is measured once, so that
// what else goes on in the machine meets all alike.
func Pool(ctx context.Context, o PoolOptions) (*PoolReport, error) {
	if len(o.Servers) == 0 || o.Rounds < 1 {
		return nil, errors.New("bench pool: there is no server, or no round")
	}
	begun := time.Now()
	r := &PoolReport{Rounds: o.Rounds, Server: o.Servers[0].Name}
	p, err := openPool(ctx, o, 0)
	if err != nil {
		return nil, err
	}
	atOnce, err := openPool(ctx, o, besides[len(besides)-1])
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	if err = p.rounds(ctx, o, r, atOnce); err == nil {
		r.sum(p.cpu)
	}
	r.Seconds = time.Since(begun).Seconds()
	return r, errors.Join(err, p.close(), atOnce.close())
}

// A pool is a manager with what it runs on.
type pool struct {
	dir       string
	processes *process.Backend
	manager   *sandbox.Manager
	end       context.CancelFunc
	ended     chan error
	specs     []*sandbox.Spec
	cpu       []float64 // percent, of each round
}

// openPool opens a pool that has so many speculative starts under way at once; 0
// means the manager's default.
func openPool(ctx context.Context, o PoolOptions, starts int) (_ *pool, err error) {
	p := &pool{ended: make(chan error, 1)}
	if p.dir, err = os.MkdirTemp("", "specbox-pool-"); err != nil {
		return nil, err
	}
	if p.processes, err = process.New(process.Config{Run: filepath.Join(p.dir, "run")}); err != nil {
		return nil, errors.Join(err, os.RemoveAll(p.dir))
	}
	most := besides[len(besides)-1]
	p.manager, err = sandbox.New(sandbox.Config{
		Backends:    map[config.Isolation]sandbox.Backend{config.Process: p.processes, config.None: p.processes},
		Sandboxes:   4 * most,
		Speculation: sandbox.Speculation{Sandboxes: 2 * most, Starts: starts, FreezeAfter: 50 * time.Millisecond, Hold: 2 * settled},
	})
	if err != nil {
		return nil, errors.Join(err, p.processes.Close(), os.RemoveAll(p.dir))
	}
	for _, s := range o.Servers {
		isolation := s.Isolation
		if isolation == "" {
			isolation = config.Process
		}
		p.specs = append(p.specs, &sandbox.Spec{
			Server: s.Name, Hash: s.Name, Isolation: isolation, Argv: s.Argv, Env: s.Env, Mounts: s.Mounts,
			Memory: 2 << 30, Pids: 512, StartTimeout: settled, IdleTimeout: 2 * settled, StopGrace: 50 * time.Millisecond,
		})
	}
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	p.end = end
	go func() { p.ended <- p.manager.Run(life) }()
	return p, nil
}

func (p *pool) close() error {
	p.end()
	return errors.Join(<-p.ended, p.processes.Close(), os.RemoveAll(p.dir))
}

func (p *pool) rounds(ctx context.Context, o PoolOptions, r *PoolReport, atOnce *pool) error {
	cell := func(format string, args ...any) *PoolCell {
		c := &PoolCell{What: fmt.Sprintf(format, args...)}
		r.Cells = append(r.Cells, c)
		return c
	}
	var beside, allBeside, ahead []*PoolCell
	for _, k := range besides {
		beside = append(beside, cell("demanded start beside %d guesses", k))
	}
	for _, k := range besides[1:] {
		allBeside = append(allBeside, cell("beside %d guesses under way at once", k))
	}
	for _, l := range leads {
		ahead = append(ahead, cell("wait after a guess %v ahead", l))
	}
	running, frozen := cell("first call of a running sandbox"), cell("first call of a frozen sandbox")
	for round := range o.Rounds {
		if o.Progress != nil {
			o.Progress(fmt.Sprintf("round %d of %d", round+1, o.Rounds))
		}
		for n := range besides {
			n = (n + round) % len(besides)
			if err := p.beside(ctx, besides[n], min(1, besides[n]), beside[n]); err != nil {
				return err
			}
			if n > 0 {
				if err := atOnce.beside(ctx, besides[n], besides[n], allBeside[n-1]); err != nil {
					return err
				}
			}
		}
		for n, lead := range leads {
			if err := p.ahead(ctx, lead, ahead[n]); err != nil {
				return err
			}
		}
		for _, c := range []*PoolCell{running, frozen} {
			if err := p.firstCall(ctx, c, c == frozen); err != nil {
				return err
			}
		}
	}
	return nil
}

// beside measures a demanded start beside k guesses, of which at least so many are
// under way.
func (p *pool) beside(ctx context.Context, k, least int, c *PoolCell) error {
	for n := range k {
		spec := p.specs[n%len(p.specs)]
		p.manager.Warm(sandbox.Hint{Tenant: guessTenant, Spec: spec, P: 1, Want: n/len(p.specs) + 1})
	}
	under := func(all []sandbox.Status) bool {
		starting := 0
		for _, s := range all {
			if s.State == sandbox.Starting {
				starting++
			}
		}
		return starting >= least && len(all) == k
	}
	if err := p.until(ctx, fmt.Sprintf("%d guesses", k), under); err != nil {
		return err
	}
	if err := pause(ctx, underway); err != nil {
		return err
	}
	if err := p.demand(ctx, c); err != nil {
		return err
	}
	return p.clear(ctx)
}

// ahead measures what a call waits for whose server was guessed before.
func (p *pool) ahead(ctx context.Context, lead time.Duration, c *PoolCell) error {
	p.manager.Warm(sandbox.Hint{Tenant: callTenant, Spec: p.specs[0], P: 1})
	if err := pause(ctx, lead); err != nil {
		return err
	}
	if err := p.demand(ctx, c); err != nil {
		return err
	}
	return p.clear(ctx)
}

// demand measures what a call waits for.
func (p *pool) demand(ctx context.Context, c *PoolCell) error {
	begun := time.Now()
	l, err := p.acquire(ctx)
	if err != nil {
		return err
	}
	c.times = append(c.times, time.Since(begun))
	l.Release()
	return nil
}

func (p *pool) acquire(ctx context.Context) (*sandbox.Lease, error) {
	return p.manager.Acquire(ctx, sandbox.Demand{Tenant: callTenant, Session: "s", Spec: p.specs[0]})
}

// firstCall measures the first call of a sandbox that has been ready for a while,
// from asking for it to the answer.
func (p *pool) firstCall(ctx context.Context, c *PoolCell, frozen bool) error {
	p.manager.Warm(sandbox.Hint{Tenant: callTenant, Spec: p.specs[0], P: 1})
	state := func(want sandbox.State) func([]sandbox.Status) bool {
		return func(all []sandbox.Status) bool { return len(all) == 1 && all[0].State == want }
	}
	if err := p.until(ctx, "a frozen sandbox", state(sandbox.Frozen)); err != nil {
		return err
	}
	if frozen {
		if err := p.measureFrozen(ctx); err != nil {
			return err
		}
	} else {
		l, err := p.acquire(ctx) // thaws it
		if err != nil {
			return err
		}
		l.Release()
		if err := p.until(ctx, "a running sandbox", state(sandbox.Ready)); err != nil {
			return err
		}
		if err := pause(ctx, underway); err != nil {
			return err
		}
	}
	begun := time.Now()
	l, err := p.acquire(ctx)
	if err != nil {
		return err
	}
	defer l.Discard("measured")
	reply, err := l.Conn().Call(ctx, "tools/list", nil)
	if err == nil {
		err = reply.Err()
	}
	if err != nil {
		return l.Explain(err)
	}
	c.times = append(c.times, time.Since(begun))
	l.Discard("measured")
	return p.clear(ctx)
}

// measureFrozen measures the processor's time of a frozen sandbox.
func (p *pool) measureFrozen(ctx context.Context) error {
	all := p.manager.List()
	if len(all) != 1 || all[0].PID == 0 {
		return errors.New("the frozen sandbox has no process")
	}
	before, ok := processorTime(all[0].PID)
	begun := time.Now()
	if err := pause(ctx, frozenFor); err != nil {
		return err
	}
	after, still := processorTime(all[0].PID)
	if !ok || !still {
		return fmt.Errorf("the frozen sandbox, process %d, is gone", all[0].PID)
	}
	p.cpu = append(p.cpu, 100*(after-before).Seconds()/time.Since(begun).Seconds())
	return nil
}

// processorTime returns what the threads of a process have had.
func processorTime(pid int) (time.Duration, bool) {
	tasks, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/schedstat")
	var sum time.Duration
	for _, f := range tasks {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		ran, _, _ := strings.Cut(string(b), " ")
		n, err := strconv.ParseInt(ran, 10, 64)
		if err != nil {
			return 0, false
		}
		sum += time.Duration(n)
	}
	return sum, len(tasks) > 0
}

// clear takes all sandboxes down, so that nothing of one measurement is left in
// the next.
func (p *pool) clear(ctx context.Context) error {
	if _, err := p.manager.Stop(ctx, func(sandbox.Status) bool { return true }); err != nil {
		return err
	}
	return p.until(ctx, "an end of all sandboxes", func(all []sandbox.Status) bool { return len(all) == 0 })
}

// until waits for the sandboxes to be as they should.
func (p *pool) until(ctx context.Context, what string, are func([]sandbox.Status) bool) error {
	for deadline := time.Now().Add(settled); ; {
		all := p.manager.List()
		if are(all) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("there is no %s after %v: there are %+v", what, settled, all)
		}
		if err := pause(ctx, 2*time.Millisecond); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// sum makes the figures out of the times.
func (r *PoolReport) sum(cpu []float64) {
	for _, c := range r.Cells {
		slices.Sort(c.times)
		c.MedianMS, c.P90MS = percentile(c.times, 0.5)/1e3, percentile(c.times, 0.9)/1e3
	}
	at := func(n int) float64 { return r.Cells[n].MedianMS } // in the order of rounds
	cold := at(0)
	r.DemandRatioK3, r.DemandRatioK8 = at(1)/cold, at(2)/cold
	r.DemandRatioK3AtOnce, r.DemandRatioK8AtOnce = at(3)/cold, at(4)/cold
	for n, lead := range leads {
		rest := max(0, cold-float64(lead.Milliseconds()))
		excess := at(2*len(besides)-1+n) - guessSlack*rest
		if n == 0 || excess > r.PromotedExcessMS {
			r.PromotedExcessMS = excess
		}
	}
	last := len(r.Cells) - 1
	r.ThawExtraMS = at(last) - at(last-1)
	r.FrozenCPUPercent = median(cpu)
}
