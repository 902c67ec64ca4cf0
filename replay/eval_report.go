package replay

import (
	"maps"
	"slices"
	"time"
)

// A Report holds the figures of an evaluation, by policy.
type Report struct {
	Setting  Setting             `json:"setting"`
	Policies []string            `json:"policies"`  // that were scored, in order
	FirstUse map[string]*Figures `json:"first_use"` // decisions about servers not yet used in their session
	AllSteps map[string]*Figures `json:"all_steps"` // decisions about all servers
	Lead     map[string]*Lead    `json:"lead"`      // of right decisions about first uses
	Wait     map[string][]*Wait  `json:"wait"`      // for each cold start of the setting
	Cost     map[string]*Cost    `json:"cost"`
	Missing  map[string]string   `json:"missing,omitempty"` // policies that could not take part, and why

	Mistakes map[string][]Mistake `json:"mistakes,omitempty"` // where they were asked for
}

// A Mistake is a wrong decision about a first use.
type Mistake struct {
	Session string  `json:"session"`
	Step    int     `json:"step"` // turn of the model, from 1
	Server  string  `json:"server"`
	Missed  bool    `json:"missed"` // it was called and had not fired; else it fired and was not called
	Later   bool    `json:"called_later,omitempty"`
	Calls   bool    `json:"step_calls"` // the step calls something for the first time
	P       float64 `json:"p"`          // highest of the step
	Rank    int     `json:"rank"`       // among unused servers at the end of the text, from 1; 0: none
	Seed    uint64  `json:"seed"`
}

// A Setting says what figures were measured on.
type Setting struct {
	ScoredOn   string  `json:"scored_on"`
	TunedOn    string  `json:"tuned_on"`
	Folds      int     `json:"folds,omitempty"`
	Seeds      int     `json:"seeds"`
	Masked     bool    `json:"masked"`
	Candidates bool    `json:"candidates"`
	Every      int     `json:"bytes_between_decisions"`
	Rate       float64 `json:"tokens_per_second"`
	First      float64 `json:"seconds_to_first_token"`
	Hold       float64 `json:"hold_seconds"` // of a sandbox that nobody used
	Servers    int     `json:"servers"`
	Fitted     Size    `json:"fitted"` // what policies were fitted on; in cross-validation, all of it
	Scored     Size    `json:"scored"`
}

// A Size says how much there was.
type Size struct {
	Tasks     int `json:"tasks"`
	Sessions  int `json:"sessions"`
	Steps     int `json:"steps"`
	FirstUses int `json:"first_uses"`
	Outside   int `json:"first_uses_outside_the_catalogue"` // that no policy can foresee, and that do not count
}

// Figures are rates over decisions, which are summed over sessions before they
// are divided. A rate with nothing to divide by is 0. Intervals hold 95 % of
// what a figure is on tasks drawn with replacement.
type Figures struct {
	Precision   float64 `json:"precision"`
	Recall      float64 `json:"recall"`
	F1          float64 `json:"f1"`
	MicroF1     float64 `json:"micro_f1"` // F1 on the steps alone that call something that counts
	Top1        float64 `json:"top1"`     // share of the calls whose server ranks first at the end of the text
	Top3        float64 `json:"top3"`
	FalseStarts float64 `json:"false_starts_per_step"`
	Later       float64 `json:"false_starts_called_later"` // share of the false starts whose server a later step calls

	PrecisionInterval   Interval `json:"precision_interval"`
	RecallInterval      Interval `json:"recall_interval"`
	F1Interval          Interval `json:"f1_interval"`
	MicroF1Interval     Interval `json:"micro_f1_interval"`
	Top1Interval        Interval `json:"top1_interval"`
	Top3Interval        Interval `json:"top3_interval"`
	FalseStartsInterval Interval `json:"false_starts_per_step_interval"`

	F1Seeds []float64 `json:"f1_of_each_seed,omitempty"` // where there are several

	Right  int `json:"right"` // decisions, over all seeds
	Wrong  int `json:"wrong"`
	Missed int `json:"missed"`
}

// A Lead says how early right decisions came.
type Lead struct {
	MedianFraction    float64  `json:"median_fraction"`   // share of the step's text that had been seen
	MedianCharsLeft   float64  `json:"median_chars_left"` // characters of it that were to come
	FractionInterval  Interval `json:"median_fraction_interval"`
	CharsLeftInterval Interval `json:"median_chars_left_interval"`
}

// A Cost is the median over sessions of what a policy takes on this machine.
type Cost struct {
	PerToken    float64 `json:"us_per_token"`
	PerDecision float64 `json:"us_per_decision"`
}

// A score holds what is summed over sessions.
type score struct {
	first, all tally
	waits      []waited // for each cold start
}

func (s *score) add(o *score) {
	s.first.add(&o.first)
	s.all.add(&o.all)
	for i, w := range o.waits {
		if i == len(s.waits) {
			s.waits = append(s.waits, waited{})
		}
		s.waits[i].add(w)
	}
}

// An account collects what a contestant did.
type account struct {
	tasks     map[string]*score // over all seeds
	seeds     map[uint64]*score
	perToken  []float64 // microseconds, of each session
	perDecide []float64
	mistakes  []Mistake
}

func newAccount() *account {
	return &account{tasks: make(map[string]*score), seeds: make(map[uint64]*score)}
}

// enter adds a session.
func (a *account) enter(seed uint64, task string, s *score, cost stopwatch) {
	addTo(a.tasks, task, s)
	addTo(a.seeds, seed, s)
	if cost.tokens > 0 {
		a.perToken = append(a.perToken, micros(cost.text, cost.tokens))
	}
	a.perDecide = append(a.perDecide, micros(cost.decide, cost.decisions))
}

func addTo[K comparable](m map[K]*score, key K, s *score) {
	if m[key] == nil {
		m[key] = &score{}
	}
	m[key].add(s)
}

func micros(d time.Duration, n int) float64 {
	return float64(d.Nanoseconds()) / 1e3 / float64(n)
}

// A rate is a figure of a score.
type rate func(*score) float64

// enter puts the figures of a contestant into the report.
func (r *Report) enter(name string, a *account, cold []float64) {
	var all score
	for _, task := range slices.Sorted(maps.Keys(a.tasks)) {
		all.add(a.tasks[task])
	}
	r.Policies = append(r.Policies, name)
	draws := resample(a.tasks)
	r.FirstUse[name] = figures(a, draws, &all, func(s *score) *tally { return &s.first })
	r.AllSteps[name] = figures(a, draws, &all, func(s *score) *tally { return &s.all })
	fraction := func(s *score) float64 { return median(s.first.fraction) }
	left := func(s *score) float64 { return median(s.first.left) }
	r.Lead[name] = &Lead{fraction(&all), left(&all), middle(draws, fraction), middle(draws, left)}
	r.Wait[name] = waits(draws, &all, cold)
	if len(a.mistakes) > 0 {
		r.Mistakes[name] = a.mistakes
	}
	r.Cost[name] = &Cost{median(a.perToken), median(a.perDecide)}
}

// figures reads the figures of the tallies that of leads to.
func figures(a *account, draws []*score, all *score, of func(*score) *tally) *Figures {
	t := of(all)
	f := &Figures{Later: ratio(t.later, t.falses), Right: t.hits, Wrong: t.falses, Missed: t.missed}
	for _, x := range []struct {
		to       *float64
		interval *Interval
		rate     func(*tally) float64
	}{
		{&f.Precision, &f.PrecisionInterval, (*tally).precision},
		{&f.Recall, &f.RecallInterval, (*tally).recall},
		{&f.F1, &f.F1Interval, (*tally).f1},
		{&f.MicroF1, &f.MicroF1Interval, (*tally).microF1},
		{&f.Top1, &f.Top1Interval, func(t *tally) float64 { return ratio(t.top1, t.hits+t.missed) }},
		{&f.Top3, &f.Top3Interval, func(t *tally) float64 { return ratio(t.top3, t.hits+t.missed) }},
		{&f.FalseStarts, &f.FalseStartsInterval, func(t *tally) float64 { return ratio(t.falses, t.turns) }},
	} {
		*x.to = x.rate(t)
		*x.interval = middle(draws, func(s *score) float64 { return x.rate(of(s)) })
	}
	if len(a.seeds) > 1 {
		for _, seed := range slices.Sorted(maps.Keys(a.seeds)) {
			f.F1Seeds = append(f.F1Seeds, of(a.seeds[seed]).f1())
		}
	}
	return f
}

// report returns an empty report on what is scored.
func (e *Evaluation) report(arms []arm, catalogue map[string]bool) *Report {
	s := Setting{
		ScoredOn: "test", TunedOn: "validation", Folds: e.Folds, Seeds: max(1, e.Seeds),
		Masked: e.Masked, Candidates: e.Candidates, Every: e.Every, Rate: e.Rate, First: e.First.Seconds(), Hold: e.Hold.Seconds(), Servers: len(catalogue),
		Fitted: size(arms[0].train, catalogue), Scored: size(arms[0].score, catalogue),
	}
	switch {
	case e.Folds > 0:
		s.ScoredOn, s.TunedOn = "train and validation, task by task", "the tasks of another fold"
		s.Fitted = size(slices.Concat(arms[0].train, arms[0].tune, arms[0].score), catalogue)
		s.Scored = s.Fitted
	case len(e.Test) == 0:
		s.ScoredOn = "validation"
	}
	return &Report{
		Setting: s, FirstUse: make(map[string]*Figures), AllSteps: make(map[string]*Figures),
		Lead: make(map[string]*Lead), Wait: make(map[string][]*Wait), Cost: make(map[string]*Cost), Missing: make(map[string]string), Mistakes: make(map[string][]Mistake),
	}
}

// size counts sessions.
func size(rs []recorded, catalogue map[string]bool) Size {
	s := Size{Sessions: len(rs)}
	tasks := make(map[string]bool)
	for _, r := range rs {
		tasks[r.task] = true
		for i := range r.steps {
			t := &r.steps[i]
			s.Steps++
			used := usedBefore(&t.History)
			for _, name := range t.Called {
				switch {
				case used[name]:
				case catalogue[name]:
					s.FirstUses++
				default:
					s.Outside++
				}
			}
		}
	}
	s.Tasks = len(tasks)
	return s
}
