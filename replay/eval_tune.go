package replay

import (
	"cmp"
	"math"
	"slices"

	"github.com/specbox/specbox/intent"
)

// threshold returns the P from which on p should fire, so that its F1 on first
// uses in the given sessions is highest; of several, the highest. It is +Inf
// where firing never helps.
func threshold(p intent.Policy, tune []recorded, catalogue map[string]bool, pl *player) float64 {
	type decision struct {
		p     float64
		right bool
	}
	var all []decision
	rights := 0
	for _, r := range tune {
		for i := range r.steps {
			t := &r.steps[i]
			used := usedBefore(&t.History)
			for _, s := range t.Called {
				if catalogue[s] && !used[s] {
					rights++
				}
			}
			for server, o := range pl.play(p, t).said {
				if catalogue[server] && !used[server] && o.best > 0 {
					all = append(all, decision{o.best, slices.Contains(t.Called, server)})
				}
			}
		}
	}
	slices.SortFunc(all, func(a, b decision) int { return cmp.Compare(b.p, a.p) })
	best, at, hits := 0.0, math.Inf(1), 0
	for i, d := range all {
		if d.right {
			hits++
		}
		if i+1 < len(all) && all[i+1].p == d.p {
			continue // they fire together
		}
		if f := ratio(2*hits, i+1+rights); f > best {
			best, at = f, d.p
		}
	}
	return at
}

// A thresholded policy fires where its P reaches from.
type thresholded struct {
	intent.Policy
	from float64
}

// Begin watches one step.
func (t thresholded) Begin(h intent.History) intent.Watch {
	return thresholdedWatch{t.Policy.Begin(h), t.from}
}

type thresholdedWatch struct {
	intent.Watch
	from float64
}

// Intents appends the guesses of the watch within, decided anew.
func (w thresholdedWatch) Intents(dst []intent.Intent, explain bool) []intent.Intent {
	n := len(dst)
	dst = w.Watch.Intents(dst, explain)
	for i := range dst[n:] {
		dst[n+i].Fired = dst[n+i].P >= w.from
	}
	return dst
}
