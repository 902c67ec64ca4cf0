package replay

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/specbox/specbox/intent"
)

// A tally counts decisions. A decision is a pair of a turn and a server, of
// those that count: the servers not yet used in the session, or all.
type tally struct {
	turns      int
	hits       int // fired, and called in that turn
	missed     int // called, and had not fired by the end of the text
	falses     int // fired, and not called in that turn
	later      int // of falses: first called in a later turn of the session
	idle       int // of falses: in turns that called nothing that counts
	top1, top3 int // called, and among the first of those that count

	fraction, left []float64 // of hits: share of the text seen, and characters to come
}

// add adds o.
func (t *tally) add(o *tally) {
	t.turns += o.turns
	t.hits += o.hits
	t.missed += o.missed
	t.falses += o.falses
	t.later += o.later
	t.idle += o.idle
	t.top1 += o.top1
	t.top3 += o.top3
	t.fraction = append(t.fraction, o.fraction...)
	t.left = append(t.left, o.left...)
}

// count adds the decisions of one turn about the servers of the catalogue that
// are not in used; in the rest of the session, later is called.
func (t *tally) count(p *played, catalogue, used, later map[string]bool) {
	counts := func(server string) bool { return catalogue[server] && !used[server] }
	var called []string
	for _, s := range p.Called {
		if counts(s) {
			called = append(called, s)
		}
	}
	t.turns++
	for server, o := range p.said {
		if !o.fired || !counts(server) {
			continue
		}
		if slices.Contains(called, server) {
			t.hits++
			t.lead(o.at, p.chars)
			continue
		}
		t.falses++
		if later[server] && !used[server] {
			t.later++
		}
		if len(called) == 0 {
			t.idle++
		}
	}
	rank := 0
	for _, server := range p.order {
		if !counts(server) {
			continue
		}
		rank++
		if rank <= 3 && slices.Contains(called, server) {
			t.top3++
			if rank == 1 {
				t.top1++
			}
		}
	}
	for _, server := range called {
		if o := p.said[server]; o == nil || !o.fired {
			t.missed++
		}
	}
}

// lead keeps how early a hit was. Of an empty text all has been seen.
func (t *tally) lead(at, chars int) {
	fraction := 1.0
	if chars > 0 {
		fraction = float64(at) / float64(chars)
	}
	t.fraction = append(t.fraction, fraction)
	t.left = append(t.left, float64(chars-at))
}

// ratio is a/b, and 0 where there is nothing to divide by.
func ratio(a, b int) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

func (t *tally) precision() float64 { return ratio(t.hits, t.hits+t.falses) }
func (t *tally) recall() float64    { return ratio(t.hits, t.hits+t.missed) }
func (t *tally) f1() float64        { return ratio(2*t.hits, 2*t.hits+t.falses+t.missed) }

// microF1 is f1 on turns that called something that counts alone, which is how
// the single-turn requests of Table 2 of the paper are scored.
func (t *tally) microF1() float64 {
	return ratio(2*t.hits, 2*t.hits+t.falses-t.idle+t.missed)
}

// resamples of tasks, of which intervals are taken.
const resamples = 1000

// An Interval holds the middle 95 % of what a figure is on resampled tasks.
type Interval [2]float64

// resample draws as many tasks as there are, with replacement, again and again,
// and returns the sum of each draw. The draws are the same each time.
func resample(tasks map[string]*score) []*score {
	names := slices.Sorted(maps.Keys(tasks))
	rng := rand.New(rand.NewPCG(1, 2))
	draws := make([]*score, resamples)
	for i := range draws {
		draws[i] = &score{}
		for range names {
			draws[i].add(tasks[names[rng.IntN(len(names))]])
		}
	}
	return draws
}

// middle returns the interval of a figure over draws.
func middle(draws []*score, figure rate) Interval {
	values := make([]float64, len(draws))
	for i, d := range draws {
		values[i] = figure(d)
	}
	slices.Sort(values)
	return Interval{quantile(values, 0.025), quantile(values, 0.975)}
}

// quantile returns the q-quantile of sorted values, interpolated; 0 of none.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	at := q * float64(len(sorted)-1)
	low := int(at)
	high := min(low+1, len(sorted)-1)
	return sorted[low] + (at-float64(low))*(sorted[high]-sorted[low])
}

// median returns the median of values; 0 of none.
func median(values []float64) float64 {
	return quantile(slices.Sorted(slices.Values(values)), 0.5)
}

// laters returns, for each turn, the servers that are called after it.
func laters(turns []*played) []map[string]bool {
	all := make([]map[string]bool, len(turns))
	later := map[string]bool{}
	for i := len(turns) - 1; i >= 0; i-- {
		all[i] = maps.Clone(later)
		for _, s := range turns[i].Called {
			later[s] = true
		}
	}
	return all
}

// scored sums the decisions of a session about first uses, and about all.
func scored(turns []*played, catalogue map[string]bool) *score {
	s := &score{}
	later := laters(turns)
	for i, p := range turns {
		s.first.count(p, catalogue, usedBefore(&p.History), later[i])
		s.all.count(p, catalogue, nil, later[i])
	}
	return s
}

// mistakes lists the wrong decisions about first uses in a session.
func mistakes(turns []*played, catalogue map[string]bool) []Mistake {
	var all []Mistake
	later := laters(turns)
	for i, p := range turns {
		used := usedBefore(&p.History)
		counts := func(server string) bool { return catalogue[server] && !used[server] }
		ranks := make(map[string]int)
		for _, server := range p.order {
			if counts(server) {
				ranks[server] = len(ranks) + 1
			}
		}
		calls := slices.ContainsFunc(p.Called, counts)
		for server := range catalogue {
			called := slices.Contains(p.Called, server)
			o := p.said[server]
			if o == nil {
				o = &outlook{}
			}
			if counts(server) && called != o.fired {
				all = append(all, Mistake{
					Step: i + 1, Server: server, Missed: called, Later: !called && later[i][server],
					Calls: calls, P: o.best, Rank: ranks[server],
				})
			}
		}
	}
	slices.SortFunc(all, func(a, b Mistake) int {
		return cmp.Or(cmp.Compare(a.Step, b.Step), cmp.Compare(a.Server, b.Server))
	})
	return all
}

// usedBefore returns the servers that earlier turns of the session called.
func usedBefore(h *intent.History) map[string]bool {
	used := make(map[string]bool)
	for _, turn := range h.Used {
		for _, s := range turn {
			used[s] = true
		}
	}
	return used
}
