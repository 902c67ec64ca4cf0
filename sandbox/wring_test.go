package sandbox_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/sandbox/sim"
	"github.com/specbox/specbox/trace"
)

// Where a budget of memory is short, what is frozen gives back what it can do
// without, the longest idle first, as much as needed; nothing of it is on a
// call's way, and where there is room nothing is taken back.
func TestMemoryOfTheFrozenIsTakenBack(t *testing.T) {
	const mib = 1 << 20
	big := lives(func(sp *sandbox.Spec, _ int, l *sim.Life) {
		l.Memory = func(time.Duration, int) int64 { return 40 * mib }
		l.Spare, l.Reclaim = 25*mib, 200*time.Millisecond
		if sp.Server == "dense" {
			l.Spare = 0
		}
	})
	for _, tt := range []struct {
		what   string
		memory int64
		first  string
		want   int64 // MiB in use then
	}{
		{"there is room", 1000 * mib, "a", 120},
		{"it is short", 150 * mib, "a", 95},
		{"it is shorter", 125 * mib, "a", 70},
		{"the first has nothing to give", 150 * mib, "dense", 95},
		{"one has to give, and then all", 122 * mib, "dense", 70},
	} {
		bubble(t, big, sandbox.Config{Memory: tt.memory}, func(t *testing.T, h *house) {
			for _, server := range []string{tt.first, "b", "c"} {
				known := fmt.Sprintf(`[{"server":%q,"backend":"process","cold_ns":[%d],"memory_bytes":[%d],"peak_bytes":[%[3]d]}]`, server, cold, 40*mib)
				if err := h.LoadEstimates(strings.NewReader(known)); err != nil {
					t.Fatal(err)
				}
				g := hint("t", server)
				g.Hold = idle
				h.Warm(g)
				time.Sleep(time.Second)
			}
			time.Sleep(10 * time.Second)
			synctest.Wait()
			h.want(tt.what+": frozen", h.Stats().States[sandbox.Frozen], 3)
			h.List()
			h.want(tt.what+": in use", h.Stats().Memory/mib, tt.want)
			h.want(tt.what+": stops", len(h.events(trace.Stop)), 0)
			for _, e := range h.Estimates() {
				h.want(tt.what+": estimate", e.Memory, 40*mib) // it will be in use again
			}
			l := h.acquire(demand("t", "s", "b"))
			h.want(tt.what+": provision", l.Provision(), time.Duration(0))
			l.Release()
		})
	}
}

// A call that comes while memory is taken back does not wait for that.
func TestCallDoesNotWaitForMemory(t *testing.T) {
	const mib = 1 << 20
	slow := lives(func(_ *sandbox.Spec, _ int, l *sim.Life) {
		l.Memory = func(time.Duration, int) int64 { return 80 * mib }
		l.Spare, l.Reclaim, l.Thaw = 25*mib, 30*time.Second, time.Millisecond
	})
	bubble(t, slow, sandbox.Config{Memory: 100 * mib}, func(t *testing.T, h *house) {
		g := hint("t", "a")
		g.Hold = idle
		h.Warm(g)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		h.want("frozen", h.Stats().States[sandbox.Frozen], 1)
		l := h.acquire(demand("t", "s", "a"))
		h.want("provision", l.Provision(), time.Millisecond)
		time.Sleep(idle) // it was not frozen any more when it was done
		h.List()
		h.want("in use", h.Stats().Memory/mib, 80)
		l.Release()
	})
}
