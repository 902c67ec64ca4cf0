package process_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/sandbox/process"
	"golang.org/x/sys/unix"
)

// hierarchies are the kinds of cgroups that this machine has for a backend.
func hierarchies(t *testing.T, test func(t *testing.T, b *process.Backend, root string)) {
	for _, name := range []string{"cgroups", "version 1", "none"} {
		t.Run(name, func(t *testing.T) {
			where := ""
			if name == "none" {
				where = "none"
			}
			b, root := newBackendIn(t, where)
			if name == "version 1" && !process.WithoutVersion2(b) {
				return // a machine of today has none
			}
			test(t, b, root)
		})
	}
}

// tree returns the processes below and including pid, as /proc has them now.
func tree(pid int) []int {
	out := []int{pid}
	for n := 0; n < len(out); n++ {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", out[n]))
		for _, f := range files {
			b, _ := os.ReadFile(f)
			for w := range strings.FieldsSeq(string(b)) {
				child, _ := strconv.Atoi(w)
				out = append(out, child)
			}
		}
	}
	return out
}

// idle says which classes a server's threads have: what of "cpu" and "io" is
// idle, of all of them ("cpu io"), or of some ("some cpu").
func idle(t *testing.T, pid int) string {
	t.Helper()
	grouped := strings.Contains(cpuFile(pid, "cpu.idle"), "1")
	n, cpu, io := 0, 0, 0
	for _, p := range tree(pid) {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", p))
		for _, task := range tasks {
			tid, _ := strconv.Atoi(filepath.Base(task))
			attr, err := unix.SchedGetAttr(tid, 0)
			if err != nil {
				continue
			}
			n++
			if grouped || attr.Policy == unix.SCHED_IDLE {
				cpu++
			}
			if process.IOIdle(tid) {
				io++
			}
		}
	}
	var out []string
	for name, count := range map[string]int{"cpu": cpu, "io": io} {
		switch count {
		case n:
			out = append(out, name)
		case 0:
		default:
			out = append(out, "some "+name)
		}
	}
	if len(out) == 2 && out[0] > out[1] {
		out[0], out[1] = out[1], out[0]
	}
	return strings.Join(out, " ")
}

// cpuFile reads a file of the cgroup that the processor's time of pid is
// accounted to.
func cpuFile(pid int, file string) string {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		for _, mount := range []string{"/sys/fs/cgroup/" + f[1], "/sys/fs/cgroup"} {
			if c, err := os.ReadFile(filepath.Join(mount, f[2], file)); err == nil {
				return string(c)
			}
		}
	}
	return ""
}

func TestSpeculationIsIdleUntilItIsPromoted(t *testing.T) {
	needs(t, "idle class")
	hierarchies(t, func(t *testing.T, b *process.Backend, _ string) {
		for _, isolation := range isolations {
			p := startBy(t, b.Speculate, spec(isolation))
			pid := p.inst.Usage().PID
			eventually(t, string(isolation)+": a speculative start in the idle class", func() string {
				if got := idle(t, pid); got != "cpu io" {
					return "idle is " + strconv.Quote(got)
				}
				return ""
			})
			var churning sync.WaitGroup // threads are born while it is promoted
			churning.Go(func() { p.must("churn", probeArgs{}) })
			for range 2 {
				if err := p.inst.(sandbox.Promoter).Promote(); err != nil {
					t.Error(err)
				}
				eventually(t, string(isolation)+": no thread in the idle class", func() string { return idle(t, pid) })
			}
			churning.Wait()
			if got := idle(t, pid); got != "" {
				t.Errorf("%s: idle some time after Promote: %q", isolation, got)
			}
			q := start(t, b, spec(isolation))
			if err := q.inst.(sandbox.Promoter).Promote(); err != nil {
				t.Errorf("%s: promote a demanded start: %v", isolation, err)
			}
			if got := idle(t, q.inst.Usage().PID); got != "" {
				t.Errorf("%s: idle in a demanded start: %q", isolation, got)
			}
		}
	})
}

func TestPromoteOfWhatIsGone(t *testing.T) {
	b := newBackend(t, "")
	p := startBy(t, b.Speculate, spec(config.Process))
	if err := p.inst.Close(); err != nil {
		t.Error(err)
	}
	if err := p.inst.(sandbox.Promoter).Promote(); err != nil {
		t.Error(err)
	}
}

// What both want, demand gets.
func TestSpeculationYields(t *testing.T) {
	needs(t, "idle class")
	hierarchies(t, func(t *testing.T, b *process.Backend, _ string) {
		for _, isolation := range isolations {
			guess, call := startBy(t, b.Speculate, spec(isolation)), start(t, b, spec(isolation))
			pid := guess.inst.Usage().PID
			var burning sync.WaitGroup
			burning.Go(func() { guess.must("burn", probeArgs{N: 2 * runtime.NumCPU(), Ms: 800}) })
			before := processorTime(pid)
			for begun := time.Now(); processorTime(pid) == before && time.Since(begun) < time.Second; {
				runtime.Gosched()
			}
			before = processorTime(pid)
			ms, _ := strconv.Atoi(call.must("burn", probeArgs{N: 2 * runtime.NumCPU(), Ms: 400}))
			got, want := processorTime(pid)-before, time.Duration(ms)*time.Millisecond
			if got > want/3 {
				t.Errorf("%s: the guess had %v of the processors beside %v of the call", isolation, got, want)
			}
			if err := guess.inst.(sandbox.Promoter).Promote(); err != nil { // or it waits for a quiet machine
				t.Error(err)
			}
			burning.Wait()
		}
	})
}

// processorTime returns what a process has had of it.
func processorTime(pid int) time.Duration {
	var sum time.Duration
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, f := range tasks {
		b, _ := os.ReadFile(f)
		ran, _, _ := strings.Cut(string(b), " ")
		n, _ := strconv.ParseInt(ran, 10, 64)
		sum += time.Duration(n)
	}
	return sum
}
