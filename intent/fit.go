package intent

import (
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
	m := &Model{common: commonIn(corpora)}
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
	over         sample  // a row for each moment: is the text over?
	task         []int32 // of each step
	learned      bool
	known        bool
	v            view
}

// newSampler plays all sessions; known: as somebody sees them who is told what
// searches return, and from then on only.
func newSampler(corpora []Corpus, learned, known bool) *sampler {
	s := &sampler{learned: learned, known: known}
	common := commonIn(corpora)
	groups := map[string]int32{} // numbers of tasks, from 1 on
	for _, c := range corpora {
		g := newGround(c.Servers, common)
		m := NewMemory(math.MaxInt32 / 2)
		for _, se := range c.Sessions {
			if groups[se.Task] == 0 {
				groups[se.Task] = int32(len(groups)) + 1
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
		point := int32(len(s.over.y))
		var shared [features]float32
		w.situation(&shared)
		s.over.x = append(s.over.x, shared[:]...)
		s.over.y = append(s.over.y, false)
		s.over.weight = append(s.over.weight, 1)
		s.over.step = append(s.over.step, id)
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
			to.point = append(to.point, point)
		}
	}
	s.stream(w, st, at)
	if points > 0 {
		s.over.y[len(s.over.y)-1] = true
	}
	// What stands at the end counts as much as all that came before it.
	for i := first; i < len(s.fresh.y); i++ {
		s.fresh.weight[i] = 1
		if i < last {
			s.fresh.weight[i] = 1 / float32(points-1)
		}
	}
	for i := firstAgain; i < len(s.again.y); i++ {
		s.again.weight[i] = 1 / float32(points)
	}
}

// stream streams a step through w and calls at where it is to be looked at.
func (s *sampler) stream(w *watch, st *Step, at func()) {
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
			if len(text) == 0 || seen <= 16 || seen%4 == 0 {
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
	linear, forest := make([]float64, len(s.fresh.y)), make([]float64, len(s.fresh.y))
	over := make([]float64, len(s.over.y))
	again := make([]float64, len(s.again.y))
	for p := range parts {
		in := func(step int32) bool { return part[s.task[step]] != p }
		st := s.models(in, seed)
		s.fresh.predict(linear, in, st.Linear.logit)
		s.fresh.predict(forest, in, st.Forest.logit)
		s.over.predict(over, in, st.Over.logit)
		s.again.predict(again, in, st.Again.logit)
	}
	st := s.models(func(int32) bool { return true }, seed)
	st.OfLinear, st.OfForest, st.Shift = calibrate(&s.fresh, linear, forest)
	z := make([]float64, len(s.fresh.y))
	for i := range z {
		z[i] = st.OfLinear*linear[i] + st.OfForest*forest[i] + st.Shift
	}
	st.Threshold = best(func(t float64) outcome { return s.play(z, over, t) })
	st.AgainThreshold = best(func(t float64) outcome { return s.playAgain(again, t) })
	return st, nil
}

// predict fills z with what a model says of the rows that it was not fitted on.
func (s *sample) predict(z []float64, in func(step int32) bool, logit func([]float32) float64) {
	for i := range z {
		if !in(s.step[i]) {
			z[i] = logit(s.row(i))
		}
	}
}

// models fits the models of a stage on the steps that in holds for, without
// calibration and thresholds.
func (s *sampler) models(in func(step int32) bool, seed uint64) *stage {
	fresh, again := s.fresh.choose(in), s.again.choose(in)
	return &stage{
		Linear: fitLinear(fresh, s.allowed, ridge), Forest: fitForest(fresh, s.allowed, seed),
		Over: fitForest(s.over.choose(in), situationFeature, seed), Again: fitLinear(again, s.allowed, ridge),
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
			if s.server != nil {
				c.server = append(c.server, s.server[i])
				c.point = append(c.point, s.point[i])
			}
		}
	}
	return c
}

// calibrate returns how two scores together become log odds (Platt). Neither
// counts against itself.
func calibrate(s *sample, a, b []float64) (ofA, ofB, shift float64) {
	w := minimize([]float64{0.5, 0.5, 0}, func(w, grad []float64) float64 {
		clear(grad)
		loss := 0.0
		for i, y := range s.y {
			t := w[0]*a[i] + w[1]*b[i] + w[2]
			if !y {
				t = -t
			}
			c := float64(s.weight[i])
			loss += c * softplus(-t)
			d := -c / (1 + math.Exp(t))
			if !y {
				d = -d
			}
			grad[0] += d * a[i]
			grad[1] += d * b[i]
			grad[2] += d
		}
		return loss
	})
	none := make([]float64, len(a))
	switch {
	case w[0] < 0 && w[1] > 0:
		_, ofB, shift = calibrate(s, none, b)
		return 0, ofB, shift
	case w[1] < 0 && w[0] > 0:
		ofA, _, shift = calibrate(s, a, none)
		return ofA, 0, shift
	}
	return w[0], w[1], w[2]
}

// An outcome counts decisions.
type outcome struct{ hits, wrong, missed int }

func (o outcome) precision() float64 { return float64(o.hits) / float64(max(1, o.hits+o.wrong)) }
func (o outcome) f1() float64 {
	return float64(2*o.hits) / float64(max(1, 2*o.hits+o.wrong+o.missed))
}

// play counts what fires in all steps at a threshold, given the log odds of
// each row and of the text being over at each moment. Once a server has fired in
// a step it has fired.
func (s *sampler) play(z, over []float64, threshold float64) outcome {
	var o outcome
	step := int32(-1)
	var fired, called []int32
	f := &s.fresh
	for i := 0; i < len(z); {
		if f.step[i] != step {
			o.missed += len(called)
			step, fired, called = f.step[i], fired[:0], called[:0]
		}
		bar := threshold + haste*(1-logistic(over[f.point[i]])) + further*float64(len(fired))
		for point := f.point[i]; i < len(z) && f.point[i] == point; i++ {
			server := f.server[i]
			if slices.Contains(fired, server) {
				continue
			}
			at := slices.Index(called, server)
			switch {
			case z[i] >= bar && f.y[i]:
				o.hits++
				if at >= 0 {
					called = slices.Delete(called, at, at+1)
				}
			case z[i] >= bar:
				o.wrong++
			case f.y[i] && at < 0:
				called = append(called, server)
			}
			if z[i] >= bar {
				fired = append(fired, server)
			}
		}
	}
	o.missed += len(called)
	return o
}

// playAgain counts what fires of the used servers, by what stands at the end of
// each step.
func (s *sampler) playAgain(z []float64, threshold float64) outcome {
	var o outcome
	a := &s.again
	for i := range z {
		if !s.over.y[a.point[i]] {
			continue
		}
		switch fires := z[i] >= threshold; {
		case fires && a.y[i]:
			o.hits++
		case fires:
			o.wrong++
		case a.y[i]:
			o.missed++
		}
	}
	return o
}

// Thresholds see to precision, with a margin on what is asked for, because other
// tasks are other tasks.
const (
	precise = 0.62
	// near is how far below the best F1 a threshold still counts as good. Of all
	// the good ones the middle is taken: the very best is luck.
	near = 0.01
	// never is a threshold that nothing reaches.
	never = 1e9
)

// best returns the threshold that gives the best F1 with enough precision.
func best(play func(threshold float64) outcome) float64 {
	const (
		low, high = -5, 5
		step      = 0.05
	)
	var tried []float64
	var got []float64
	top := 0.0
	for t := float64(low); t <= high; t += step {
		o := play(t)
		f := 0.0
		if o.precision() >= precise {
			f = o.f1()
		}
		tried, got = append(tried, t), append(got, f)
		top = max(top, f)
	}
	if top == 0 {
		return never
	}
	var good []float64
	for i, f := range got {
		if f >= top-near {
			good = append(good, tried[i])
		}
	}
	return good[len(good)/2]
}
