package replay

import (
	"math"
	"time"
)

// A Wait says what the first uses of servers wait for at one cold start, in
// virtual time. On demand, each waits for the whole of it.
type Wait struct {
	Cold     float64 `json:"cold_seconds"`
	OnDemand float64 `json:"on_demand_seconds"` // mean of a first use, without any decision

	Mean   float64 `json:"seconds"`    // mean of a first use, with the policy's decisions
	Less   float64 `json:"times_less"` // than on demand
	Met    float64 `json:"met"`        // share of the first uses whose start was under way or over
	Wasted float64 `json:"wasted"`     // starts that nobody used, for each first use

	// The same where, besides, a tool's name in the stream starts its server.
	NamedMean float64 `json:"with_tool_name_seconds"`
	NamedLess float64 `json:"with_tool_name_times_less"`

	MeanInterval      Interval `json:"seconds_interval"`
	LessInterval      Interval `json:"times_less_interval"`
	NamedLessInterval Interval `json:"with_tool_name_times_less_interval"`
}

// waited sums what sessions wait for at one cold start.
type waited struct {
	uses, met, wasted    int
	demand, alone, named time.Duration
}

func (w *waited) add(o waited) {
	w.uses += o.uses
	w.met += o.met
	w.wasted += o.wasted
	w.demand += o.demand
	w.alone += o.alone
	w.named += o.named
}

func (w *waited) mean(d time.Duration) float64 {
	if w.uses == 0 {
		return 0
	}
	return d.Seconds() / float64(w.uses)
}

// less is how many times d goes into what on-demand waits. It is at most a
// thousand, where nothing is left to wait for.
func (w *waited) less(d time.Duration) float64 {
	const most = 1000
	if w.demand == 0 {
		return 1
	}
	return math.Min(most, float64(w.demand)/float64(max(d, 1)))
}

// wait computes what a session waits for with the decisions of turns, which
// are those of flow.
func (e *Evaluation) wait(turns []*played, flow []Turn) []waited {
	undecided := make([]Turn, len(flow))
	decided := make([]Turn, len(flow))
	for i, p := range turns {
		t := flow[i]
		t.Chars = p.chars // masked text is of another length
		undecided[i] = t
		t.Fired = nil
		for server, o := range p.said {
			if o.fired {
				t.Fired = append(t.Fired, Firing{server, o.at})
			}
		}
		decided[i] = t
	}
	var all []waited
	for _, cold := range e.Cold {
		pace := Pace{Rate: e.Rate, First: e.First, Cold: time.Duration(cold * float64(time.Second)), Hold: e.Hold}
		demand, alone := Simulate(undecided, pace), Simulate(decided, pace)
		pace.ToolName = true
		named := Simulate(decided, pace)
		all = append(all, waited{
			uses: len(alone.Uses), met: len(alone.Uses) - alone.Outcomes()[Cold], wasted: alone.Wasted,
			demand: demand.Sum, alone: alone.Sum, named: named.Sum,
		})
	}
	return all
}

// waits reads the waits of an account.
func waits(draws []*score, all *score, cold []float64) []*Wait {
	var list []*Wait
	for i, c := range cold {
		of := func(s *score) *waited {
			if i < len(s.waits) {
				return &s.waits[i]
			}
			return &waited{}
		}
		mean := func(s *score) float64 { w := of(s); return w.mean(w.alone) }
		less := func(s *score) float64 { w := of(s); return w.less(w.alone) }
		named := func(s *score) float64 { w := of(s); return w.less(w.named) }
		w := of(all)
		list = append(list, &Wait{
			Cold: c, OnDemand: w.mean(w.demand),
			Mean: mean(all), Less: less(all), Met: ratio(w.met, w.uses), Wasted: ratio(w.wasted, w.uses),
			NamedMean: w.mean(w.named), NamedLess: named(all),
			MeanInterval: middle(draws, mean), LessInterval: middle(draws, less), NamedLessInterval: middle(draws, named),
		})
	}
	return list
}
