package intent

import (
	"cmp"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
)

// A Corpus is sessions with the servers that they had to choose from.
type Corpus struct {
	Servers  []Server
	Sessions []Session
}

// Fit fits a model on sessions. What it learns of a task it tries on others: a
// session is never shown what was learned from its own task, and thresholds and
// probabilities come from tasks that were left out. The same seed gives the same
// model.
func Fit(seed uint64, corpora ...Corpus) (*Model, error) {
	m := &Model{}
	for _, learned := range []int{0, 1} {
		for _, known := range []int{0, 1} {
			s := newSampler(corpora, learned == 1, known == 1)
			if len(s.fresh.y) == 0 && known == 1 {
				m.stages[learned][1] = m.stages[learned][0] // nothing is known of searches
				continue
			}
			st, err := s.fit(seed)
			if err != nil {
				return nil, err
			}
			m.stages[learned][known] = st
		}
	}
	return m, nil
}

// A sampler turns sessions into samples.
type sampler struct {
	fresh, again sample
	task         []int32 // of each step
	learned      bool
	known        bool
	v            view
}

// newSampler plays all sessions; known: as somebody sees them who is told what
// searches return, and from then on only.
func newSampler(corpora []Corpus, learned, known bool) *sampler {
	s := &sampler{learned: learned, known: known}
	task := int32(0)
	for _, c := range corpora {
		g := newGround(c.Servers)
		m := NewMemory(math.MaxInt32)
		groups := map[string]int32{}
		for _, se := range c.Sessions {
			if groups[se.Task] == 0 {
				task++
				groups[se.Task] = task
			}
			if learned {
				for _, st := range se.Steps {
					m.learn(st, groups[se.Task])
				}
			}
		}
		for _, se := range c.Sessions {
			for i := range se.Steps {
				s.step(g, m, &se.Steps[i], groups[se.Task])
			}
		}
	}
	return s
}

// step plays one step.
func (s *sampler) step(g *ground, m *Memory, st *Step, task int32) {
	h := st.History
	h.Candidates = nil
	if !s.known {
		h.Offered = nil
	}
	id := int32(len(s.task))
	s.task = append(s.task, task)
	first, firstAgain := len(s.fresh.y), len(s.again.y)
	w := g.begin(h, m, task)
	points, last := 0, 0
	at := func() {
		w.look(&s.v)
		if s.known && !(w.searched > 0 || w.offeredServers > 0) {
			return
		}
		points++
		last = len(s.fresh.y)
		for i, server := range s.v.server {
			to := &s.fresh
			if w.standing[server] == used {
				to = &s.again
			}
			to.x = append(to.x, s.v.row(i)...)
			to.y = append(to.y, slices.Contains(st.Called, g.servers[server].Name))
			to.weight = append(to.weight, 0)
			to.step = append(to.step, id)
			to.server = append(to.server, server)
		}
	}
	s.play(w, st, at)
	// What stands at the end counts as much as all that came before it.
	for i := first; i < len(s.fresh.y); i++ {
		s.fresh.weight[i] = 1
		if i < last {
			s.fresh.weight[i] = min(0.999, 1/float32(points-1))
		}
	}
	for i := firstAgain; i < len(s.again.y); i++ {
		s.again.weight[i] = 1 / float32(points)
	}
}

// play streams a step through w and calls at where it is to be looked at.
func (s *sampler) play(w *watch, st *Step, at func()) {
	at()
	seen := 0
	told := false
	lastQuery := -1
	for i, seg := range st.Text {
		if seg.Kind == Query {
			lastQuery = i
		}
		told = told || seg.Found != nil
	}
	tell := func(found []string) {
		if s.known && len(found) > 0 {
			w.Candidates(found)
			at()
		}
	}
	for i, seg := range st.Text {
		text := seg.Text
		if i > 0 {
			text = "\n" + text
		}
		for len(text) > 0 {
			n := min(len(text), Cadence)
			w.Text(seg.Kind, []byte(text[:n]))
			text = text[n:]
			seen++
			if len(text) == 0 || seen <= 4 || seen <= 16 && seen%2 == 0 || seen%4 == 0 {
				at()
			}
		}
		tell(seg.Found)
		if i == lastQuery && !told {
			tell(st.Candidates)
		}
	}
	if lastQuery < 0 && !told {
		tell(st.Candidates)
	}
}

// allowed reports whether a stage may look at a feature.
func (s *sampler) allowed(f int) bool {
	return (s.learned || !learnedFeature(f)) && (s.known || !searchFeature(f))
}

// parts is in how many parts tasks are divided to try each on a model of the
// others.
const parts = 5

// fit fits a stage.
func (s *sampler) fit(seed uint64) (*stage, error) {
	tasks := slices.Compact(slices.Sorted(slices.Values(s.task)))
	if len(tasks) < parts {
		return nil, errors.New("fit: there are too few tasks to fit on")
	}
	rng := rand.New(rand.NewPCG(seed, 11))
	rng.Shuffle(len(tasks), func(i, j int) { tasks[i], tasks[j] = tasks[j], tasks[i] })
	part := make(map[int32]int, len(tasks))
	for i, t := range tasks {
		part[t] = i % parts
	}
	z := make([]float64, len(s.fresh.y))
	again := make([]float64, len(s.again.y))
	for p := range parts {
		in := func(step int32) bool { return part[s.task[step]] != p }
		st := s.models(s.fresh.choose(in), s.again.choose(in), seed)
		for i := range z {
			if !in(s.fresh.step[i]) {
				z[i] = st.raw(s.fresh.row(i))
			}
		}
		for i := range again {
			if !in(s.again.step[i]) {
				again[i] = st.Again.logit(s.again.row(i))
			}
		}
	}
	st := s.models(&s.fresh, &s.again, seed)
	st.Slope, st.Shift = calibrate(&s.fresh, z)
	for i := range z {
		z[i] = st.Slope*z[i] + st.Shift
	}
	st.Threshold = threshold(&s.fresh, z)
	st.AgainThreshold = threshold(&s.again, again)
	return st, nil
}

// models fits the models of a stage, without calibration and thresholds.
func (s *sampler) models(fresh, again *sample, seed uint64) *stage {
	return &stage{
		Linear: fitLinear(fresh, s.allowed, ridge), Forest: fitForest(fresh, s.allowed, seed),
		Slope: 1, Again: fitLinear(again, s.allowed, ridge),
	}
}

// choose returns the rows of the steps that in holds for.
func (s *sample) choose(in func(step int32) bool) *sample {
	c := &sample{}
	for i, st := range s.step {
		if in(st) {
			c.x = append(c.x, s.row(i)...)
			c.y = append(c.y, s.y[i])
			c.weight = append(c.weight, s.weight[i])
			c.step = append(c.step, st)
			c.server = append(c.server, s.server[i])
		}
	}
	return c
}

// calibrate returns how scores become log odds (Platt).
func calibrate(s *sample, z []float64) (slope, shift float64) {
	w := minimize([]float64{1, 0}, func(w, grad []float64) float64 {
		clear(grad)
		loss := 0.0
		for i, y := range s.y {
			t := w[0]*z[i] + w[1]
			if !y {
				t = -t
			}
			c := float64(s.weight[i])
			loss += c * softplus(-t)
			d := -c / (1 + math.Exp(t))
			if !y {
				d = -d
			}
			grad[0] += d * z[i]
			grad[1] += d
		}
		return loss
	})
	return w[0], w[1]
}

// Precision is what thresholds see to; a margin on what is asked for, because
// other tasks are other tasks.
const (
	precise = 0.65
	// near is how far below the best F1 a threshold still counts as good. Of all
	// the good ones the middle is taken: the very best is luck.
	near = 0.01
	// never is a threshold that nothing reaches.
	never = 1e9
)

// threshold returns the log odds from which on firing gives the best F1 with
// enough precision. Once a server has fired in a step it has fired.
func threshold(s *sample, z []float64) float64 {
	best := map[int64]float64{}
	truth := map[int64]bool{}
	for i := range s.y {
		key := int64(s.step[i])<<32 | int64(s.server[i])
		if b, ok := best[key]; !ok || z[i] > b {
			best[key] = z[i]
		}
		truth[key] = s.y[i]
	}
	type point struct {
		z float64
		y bool
	}
	var all []point
	yes := 0.0
	for k, b := range best {
		all = append(all, point{b, truth[k]})
		if truth[k] {
			yes++
		}
	}
	slices.SortFunc(all, func(a, b point) int { return cmp.Compare(b.z, a.z) })
	f1 := make([]float64, len(all))
	hits, top := 0.0, 0.0
	for i, p := range all {
		if p.y {
			hits++
		}
		n := float64(i + 1)
		if hits/n >= precise {
			f1[i] = 2 * hits / (n + yes)
			top = max(top, f1[i])
		}
	}
	if top == 0 {
		return never
	}
	var good []float64
	for i, f := range f1 {
		if f >= top-near {
			good = append(good, all[i].z)
		}
	}
	return good[len(good)/2]
}
