package bench

import (
	"os"
	"testing"
	"time"

	"github.com/specbox/specbox/config"
)

// poolVar tells this binary to be a server of the pool.
const poolVar = "BENCH_TEST_POOL"

func TestMain(m *testing.M) {
	if os.Getenv(poolVar) == "" {
		os.Exit(m.Run())
	}
	if err := Echo(os.Stdin, os.Stdout); err != nil {
		os.Exit(1)
	}
}

func TestPool(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	all := leads
	leads = all[:2]
	t.Cleanup(func() { leads = all })
	r, err := Pool(t.Context(), PoolOptions{
		Rounds: 1,
		Servers: []PoolServer{
			{Name: "one", Argv: []string{self}, Env: map[string]string{poolVar: "1"}, Isolation: config.None},
			{Name: "two", Argv: []string{self}, Env: map[string]string{poolVar: "1"}, Isolation: config.None},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Cells) != 9 || r.DemandRatioK3 <= 0 || r.DemandRatioK8 <= 0 || r.Server != "one" {
		t.Errorf("the report is %+v", r)
	}
	for _, c := range r.Cells {
		if c.MedianMS <= 0 || c.P90MS < c.MedianMS {
			t.Errorf("%s took %v ms", c.What, c.MedianMS)
		}
	}
	if r.FrozenCPUPercent != 0 {
		t.Errorf("a frozen sandbox used %v %% of a core", r.FrozenCPUPercent)
	}
}

// The figures are those of the medians, and of the worst lead.
func TestPoolSum(t *testing.T) {
	ms := func(all ...int) []time.Duration {
		var out []time.Duration
		for _, n := range all {
			out = append(out, time.Duration(n)*time.Millisecond)
		}
		return out
	}
	r := &PoolReport{}
	for _, times := range [][]time.Duration{
		ms(900, 1000, 1100), ms(1100, 1050, 5000), ms(1200, 1200, 1), // beside 0, 3, 8
		ms(1300), ms(1500), // at once
		ms(1000), ms(900), ms(100), ms(3), // after 0, 0.3, 0.8, 2 s
		ms(10), ms(14),
	} {
		r.Cells = append(r.Cells, &PoolCell{times: times})
	}
	r.sum([]float64{0, 3, 1})
	if r.DemandRatioK3 != 1.1 || r.DemandRatioK8 != 1.2 || r.DemandRatioK3AtOnce != 1.3 || r.DemandRatioK8AtOnce != 1.5 || r.ThawExtraMS != 4 || r.FrozenCPUPercent != 1 {
		t.Errorf("the report is %+v", r)
	}
	if want := 900 - 1.15*700; r.PromotedExcessMS < want-0.01 || r.PromotedExcessMS > want+0.01 {
		t.Errorf("the excess is %v, want that of 0.3 s: %v", r.PromotedExcessMS, want)
	}
}
