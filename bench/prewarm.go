package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/specbox/specbox/replay"
	"github.com/specbox/specbox/replay/model"
)

// Policies of [Prewarm] that have names of their own; others are passed on as
// the configuration knows them.
const (
	OnDemand = "on-demand" // nothing is started ahead
	ToolName = "tool-name" // the name of a tool in the stream
	Shipped  = "specbox"   // what SpecBox does by default
)

// PrewarmOptions say what [Prewarm] plays, and how.
type PrewarmOptions struct {
	// Program is the specbox to measure. With the arguments StandIn it is a
	// stand-in, with Serve it serves.
	Program        string
	StandIn, Serve []string

	Traces   []string        // globs of the sessions to play
	Catalog  string          // file with the servers that they use
	Cold     []time.Duration // how long the start of a server takes
	Policies []string
	Rate     float64       // of the model, in tokens a second
	First    time.Duration // of the model, to its first token
	Sessions int           // played at once, of each policy; 0 means 6
	Seeds    int           // how often all is repeated, with other jitter of the model; 0 means once
	Progress func(string)  // told what is measured; may be nil
}

const (
	// share is the part of a core that a server may use. It makes a start of
	// seconds cost little, so that many can be under way without slowing one
	// another, as on a larger machine.
	share = 0.05
	// jitter of the model's gaps between tokens.
	jitter = 0.2
	// together is how many lengths of cold starts are measured at a time: two
	// cores carry them.
	together = 2
	// draws of tasks with replacement, for intervals.
	draws = 2000
)

// A PrewarmReport is what a run of [Prewarm] found.
type PrewarmReport struct {
	Tasks     int            `json:"tasks"`
	Servers   int            `json:"servers"` // in the catalogue
	Rate      float64        `json:"tokens_per_s"`
	First     float64        `json:"first_token_s"`
	Sessions  int            `json:"sessions_at_once"`
	Seeds     int            `json:"seeds"`
	Share     float64        `json:"cpu_share"`   // of a core, for each server
	Limited   bool           `json:"cpu_limited"` // false: this machine cannot limit CPU, and starts are plain work
	CPUs      int            `json:"cpus"`
	Busy      float64        `json:"cpu_busy"` // share of all cores that was in use, by whomever, while sessions were played
	Seconds   float64        `json:"seconds"`
	Cells     []*PrewarmCell `json:"cells"`
	timelines map[string]*Timeline
}

// A PrewarmCell is what was measured of one policy at one length of cold starts.
// Intervals hold 95 % of what a figure is on tasks drawn with replacement.
type PrewarmCell struct {
	Policy   string  `json:"policy"`
	Cold     float64 `json:"cold_s"`          // that starts should take
	Measured float64 `json:"cold_measured_s"` // median of the cold first uses; 0 if there was none

	FirstUses int `json:"first_uses"`
	Warm      int `json:"warm"`
	Late      int `json:"late"`
	ColdUses  int `json:"cold"`

	Ahead         float64    `json:"warm_or_late"` // share of the first uses
	AheadInterval [2]float64 `json:"warm_or_late_interval"`

	Wait          float64    `json:"wait_s"`     // of all first uses, summed
	Ratio         float64    `json:"wait_ratio"` // to that of on-demand in the same run; 0 where it was not measured
	RatioInterval [2]float64 `json:"wait_ratio_interval"`

	Starts         int        `json:"starts"` // for calls, or ahead of them
	Wasted         int        `json:"wasted"` // of them, those that no call used
	WastedPerUse   float64    `json:"wasted_per_first_use"`
	WastedInterval [2]float64 `json:"wasted_per_first_use_interval"`

	Failed  int     `json:"failed_calls"`
	Session float64 `json:"session_s"` // mean length of a session
	CPU     float64 `json:"cpu_s"`     // of SpecBox itself, without its servers

	Uses []PrewarmUse `json:"uses"`

	seeds int
	tasks map[string]*taskSums
}

// A PrewarmUse is the first use of a server in a session.
type PrewarmUse struct {
	Task    string  `json:"task"`
	Seed    int     `json:"seed"`
	Server  string  `json:"server"`
	Outcome string  `json:"outcome"`
	Cause   string  `json:"cause,omitempty"` // of the start of its sandbox
	Wait    float64 `json:"wait_s"`          // from the commit to a ready sandbox
	Lead    float64 `json:"lead_s"`          // from when the start was asked for to the commit
}

// taskSums are what intervals draw.
type taskSums struct {
	uses, ahead, wasted, wait float64
}

// Prewarm plays recorded sessions through a real SpecBox and measures what the
// first use of each server waits for. All that it started has ended when it
// returns.
//
// All policies are measured at the same time, so that what else goes on in the
// machine meets them alike: each by a SpecBox of its own, whose servers are
// stand-ins of the whole catalogue and whose model is a replay. The agents use what any agent would: an LLM API and MCP.
func Prewarm(ctx context.Context, o PrewarmOptions) (*PrewarmReport, error) {
	began := time.Now()
	if o.Sessions <= 0 {
		o.Sessions = 6
	}
	o.Seeds = max(1, o.Seeds)
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	w, err := newWorld(o)
	if err != nil {
		return nil, err
	}
	defer w.close()
	var all []*setting
	for _, cold := range o.Cold {
		o.Progress(fmt.Sprintf("cold start %v: preparing the servers", cold))
		st := &setting{world: w, cold: cold, dir: filepath.Join(w.dir, cold.String())}
		if err := st.prepare(ctx); err != nil {
			return nil, err
		}
		all = append(all, st)
	}
	r := &PrewarmReport{
		Tasks: len(w.tasks), Servers: len(w.entries), Rate: o.Rate, First: o.First.Seconds(), Sessions: o.Sessions,
		Seeds: o.Seeds, Share: share, Limited: w.limited, CPUs: runtime.NumCPU(), timelines: map[string]*Timeline{},
	}
	used, idle := machineTime()
	for seed := range o.Seeds {
		for some := range slices.Chunk(all, together) {
			o.Progress(fmt.Sprintf("seed %d of %d: cold start %v", seed+1, o.Seeds, some))
			if err := w.measure(ctx, r, some, seed); err != nil {
				return nil, err
			}
		}
	}
	usedNow, idleNow := machineTime()
	r.Busy = share01(usedNow-used, usedNow-used+idleNow-idle)
	r.sum()
	r.Seconds = time.Since(began).Seconds()
	return r, nil
}

// A world is what all cells have in common.
type world struct {
	o       PrewarmOptions
	dir     string
	entries []replay.Entry
	names   map[string]string // server of the catalogue -> of the configuration
	tasks   []replay.Trajectory
	scripts []model.Script

	limited bool
	base    time.Duration // that a start takes without cost
	slope   float64       // seconds that a second of CPU takes
}

// newWorld reads the files.
func newWorld(o PrewarmOptions) (*world, error) {
	entries, err := replay.ReadEntries(o.Catalog)
	if err != nil {
		return nil, err
	}
	all, err := replay.Read(o.Traces...)
	if err != nil {
		return nil, err
	}
	w := &world{o: o, entries: entries, names: configNames(entries)}
	for _, t := range all {
		calls := 0
		for i := range t.Steps {
			for _, c := range t.Steps[i].Calls {
				if c.Unknown {
					continue
				}
				if err := w.offer(c); err != nil {
					return nil, fmt.Errorf("session %s: %w", t.ID, err)
				}
				calls++
			}
		}
		if calls > 0 { // else there is nothing to wait for
			w.tasks = append(w.tasks, t)
		}
	}
	if len(w.tasks) == 0 {
		return nil, errors.New("no session calls anything")
	}
	length := func(t replay.Trajectory) time.Duration {
		return replay.Simulate(t.Turns(), replay.Pace{Rate: o.Rate, First: o.First}).Length
	}
	slices.SortStableFunc(w.tasks, func(a, b replay.Trajectory) int { return int(length(b) - length(a)) }) // so that all end together
	for i := range w.tasks {
		w.scripts = append(w.scripts, Script(&w.tasks[i], w.toolName))
	}
	if w.dir, err = os.MkdirTemp("", "specbox-bench"); err != nil {
		return nil, err
	}
	if err := w.writeCatalogs(); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *world) close() { _ = os.RemoveAll(w.dir) }

// A setting is a world in which starts take so long.
type setting struct {
	*world
	cold time.Duration
	dir  string
}

func (s *setting) String() string { return s.cold.String() }

// measure plays all sessions in some settings under all policies, at once.
func (w *world) measure(ctx context.Context, r *PrewarmReport, some []*setting, seed int) error {
	m, err := StartModel(model.Config{Scripts: w.scripts, Rate: w.o.Rate, First: w.o.First, Jitter: jitter, Seed: uint64(seed)})
	if err != nil {
		return err
	}
	defer m.Stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make([]*played, len(some)*len(w.o.Policies))
	errs := make([]error, len(results))
	var work sync.WaitGroup
	for i := range results {
		st, policy := some[i/len(w.o.Policies)], w.o.Policies[i%len(w.o.Policies)]
		work.Go(func() {
			dir := filepath.Join(st.dir, fmt.Sprintf("%d-%d", seed, i%len(w.o.Policies)))
			if results[i], errs[i] = st.play(ctx, policy, dir, m.url); errs[i] != nil {
				errs[i] = fmt.Errorf("%s, cold start %v: %w", policy, st.cold, errs[i])
				cancel()
			}
		})
	}
	work.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for i, result := range results {
		cold, policy := some[i/len(w.o.Policies)].cold, w.o.Policies[i%len(w.o.Policies)]
		r.cell(policy, cold).enter(result, seed)
		if t := result.timeline(policy); seed == 0 && t != nil {
			r.timelines[policy+cold.String()] = t
		}
	}
	return nil
}

// cell returns the cell of a policy and a length of cold starts.
func (r *PrewarmReport) cell(policy string, cold time.Duration) *PrewarmCell {
	for _, c := range r.Cells {
		if c.Policy == policy && c.Cold == cold.Seconds() {
			return c
		}
	}
	c := &PrewarmCell{Policy: policy, Cold: cold.Seconds(), tasks: map[string]*taskSums{}}
	r.Cells = append(r.Cells, c)
	return c
}

// enter adds what one seed gave.
func (c *PrewarmCell) enter(p *played, seed int) {
	for i := range p.sessions {
		s := &p.sessions[i]
		sums := c.tasks[s.task]
		if sums == nil {
			sums = &taskSums{}
			c.tasks[s.task] = sums
		}
		for _, u := range s.uses {
			u.Task, u.Seed = s.task, seed
			c.Uses = append(c.Uses, u)
			sums.uses++
			sums.wait += u.Wait
			if u.Outcome != replay.Cold {
				sums.ahead++
			}
		}
		sums.wasted += s.wasted
		c.Failed += s.failed
		c.Session += s.end.Sub(s.begin).Seconds() / float64(len(p.sessions))
	}
	c.Starts += p.starts
	c.Wasted += p.wasted
	c.CPU += p.cpu.Seconds()
	c.seeds++
}

// sum turns what was measured into figures.
func (r *PrewarmReport) sum() {
	for _, c := range r.Cells {
		var cold []float64
		for _, u := range c.Uses {
			c.FirstUses++
			c.Wait += u.Wait
			switch u.Outcome {
			case replay.Warm:
				c.Warm++
			case replay.Late:
				c.Late++
			default:
				c.ColdUses++
				cold = append(cold, u.Wait)
			}
		}
		c.Session /= float64(c.seeds)
		c.Measured = median(cold)
		c.Ahead = share01(float64(c.Warm+c.Late), float64(c.FirstUses))
		c.WastedPerUse = share01(float64(c.Wasted), float64(c.FirstUses))
	}
	for _, c := range r.Cells {
		base := r.find(OnDemand, c.Cold)
		if base != nil {
			c.Ratio = share01(c.Wait, base.Wait)
		}
		r.spread(c, base)
	}
}

// find returns a cell, or nil.
func (r *PrewarmReport) find(policy string, cold float64) *PrewarmCell {
	for _, c := range r.Cells {
		if c.Policy == policy && c.Cold == cold {
			return c
		}
	}
	return nil
}

// spread computes the intervals of a cell.
func (r *PrewarmReport) spread(c, base *PrewarmCell) {
	var tasks []string
	for t := range c.tasks {
		tasks = append(tasks, t)
	}
	slices.Sort(tasks)
	if len(tasks) == 0 {
		return
	}
	var ahead, ratio, wasted []float64
	random := rand.New(rand.NewPCG(1, 2)) // the same tasks for every cell
	for range draws {
		var s, b taskSums
		for range tasks {
			t := tasks[random.IntN(len(tasks))]
			s.add(c.tasks[t])
			if base != nil {
				b.add(base.tasks[t])
			}
		}
		ahead = append(ahead, share01(s.ahead, s.uses))
		wasted = append(wasted, share01(s.wasted, s.uses))
		ratio = append(ratio, share01(s.wait, b.wait))
	}
	c.AheadInterval, c.WastedInterval = middle95(ahead), middle95(wasted)
	if base != nil {
		c.RatioInterval = middle95(ratio)
	}
}

func (s *taskSums) add(o *taskSums) {
	if o == nil {
		return
	}
	s.uses += o.uses
	s.ahead += o.ahead
	s.wasted += o.wasted
	s.wait += o.wait
}

// middle95 returns the bounds of the middle 95 % of values, which it sorts.
func middle95(values []float64) [2]float64 {
	slices.Sort(values)
	return [2]float64{values[len(values)*25/1000], values[len(values)*975/1000]}
}

// machineTime returns how long all cores of the machine have worked and not, in
// ticks of the kernel's clock; nothing where it does not tell.
func machineTime() (used, idle float64) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0
	}
	line, _, _ := strings.Cut(string(b), "\n")
	for i, f := range strings.Fields(line) {
		n, err := strconv.ParseFloat(f, 64)
		switch {
		case err != nil, i > 8: // the name; what guests have used stands in the others already
		case i == 4 || i == 5: // idle, and waiting for a disk
			idle += n
		default:
			used += n
		}
	}
	return used, idle
}

// share01 divides; what has nothing to divide by is 0.
func share01(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}
