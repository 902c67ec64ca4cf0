package bench

import (
	"testing"
	"time"
)

// The figures are medians of the rounds, and the tap is what it adds to the hop.
func TestSumTap(t *testing.T) {
	round := func(cpu time.Duration, gap time.Duration) tapRound {
		gaps := make([]time.Duration, 1000)
		for i := range gaps {
			gaps[i] = gap
		}
		gaps[0] = time.Second // one in a thousand is no p99
		return tapRound{tokens: len(gaps), took: time.Second, cpu: cpu, gaps: gaps}
	}
	r := sumTap(map[string][]tapRound{
		Direct: {round(0, 5*time.Millisecond), round(0, 5*time.Millisecond), round(0, 5*time.Millisecond)},
		Plain:  {round(9*time.Millisecond, 5*time.Millisecond), round(8*time.Millisecond, 5*time.Millisecond), round(30*time.Millisecond, 5*time.Millisecond)},
		Tapped: {round(11*time.Millisecond, 6*time.Millisecond), round(10*time.Millisecond, 6*time.Millisecond), round(12*time.Millisecond, 6*time.Millisecond)},
	})
	if r.CPUusPerToken != 11 || r.HopUsPerToken != 9 || r.TapUsPerToken != 2 || r.GapP50Ratio != 1.2 || r.GapP99Ratio != 1.2 {
		t.Errorf("got %+v", r)
	}
	if w := r.Ways[2]; w.Way != Tapped || w.PerSec != 1000 || w.CPULow != 10 || w.CPUHigh != 12 || w.CoresUsed != 0.011 {
		t.Errorf("got %+v", w)
	}
}
