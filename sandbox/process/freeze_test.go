package process_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
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

// frozen starts a probe that makes processes without end, and freezes it.
func frozen(t *testing.T, b *process.Backend, s *sandbox.Spec) (*peer, int) {
	t.Helper()
	p := start(t, b, s)
	p.must("fork", probeArgs{N: 3})
	p.must("churn", probeArgs{})
	pid := p.inst.Usage().PID
	if err := p.inst.(sandbox.Freezer).Freeze(); err != nil {
		t.Fatal(err)
	}
	return p, pid
}

// activity tells the processes below pid, and the processor's time that each
// had.
func activity(pid int) string {
	var out []string
	for _, p := range tree(pid) {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", p))
		for _, f := range tasks {
			b, _ := os.ReadFile(f)
			ran, _, _ := strings.Cut(string(b), " ")
			out = append(out, f+" "+ran)
		}
	}
	return strings.Join(out, "\n")
}

func TestFrozenUsesNoProcessor(t *testing.T) {
	hierarchies(t, func(t *testing.T, b *process.Backend, _ string) {
		for _, isolation := range isolations {
			p, pid := frozen(t, b, spec(isolation))
			before := activity(pid)
			<-time.After(100 * time.Millisecond)
			if after := activity(pid); after != before {
				t.Errorf("%s: a frozen sandbox ran: before\n%s\nafter\n%s", isolation, before, after)
			}
			// What is written waits, and is answered after Thaw.
			answered := make(chan string, 1)
			go func() {
				text, failed, err := p.try("cwd", probeArgs{})
				answered <- text + failed + fmt.Sprint(err)
			}()
			select {
			case got := <-answered:
				t.Errorf("%s: a frozen server answered %q", isolation, got)
			case <-time.After(50 * time.Millisecond):
			}
			for range 2 {
				if err := p.inst.(sandbox.Freezer).Thaw(); err != nil {
					t.Error(err)
				}
			}
			if got := <-answered; !strings.HasSuffix(got, "<nil>") {
				t.Errorf("%s: after Thaw: %s", isolation, got)
			}
			eventually(t, "the processes to go on", func() string {
				if activity(pid) == before {
					return "none does"
				}
				return ""
			})
			if _, others := states(pid); len(others) == 0 {
				t.Errorf("%s: after Thaw all are stopped", isolation)
			}
		}
	})
}

// states returns the processes below pid that are stopped, and the others.
func states(pid int) (stopped, others []int) {
	for _, p := range tree(pid) {
		b, _ := os.ReadFile("/proc/" + strconv.Itoa(p) + "/status")
		if strings.Contains(string(b), "\nState:\tT") {
			stopped = append(stopped, p)
		} else {
			others = append(others, p)
		}
	}
	return stopped, others
}

func TestFreezeIsRepeatable(t *testing.T) {
	hierarchies(t, func(t *testing.T, b *process.Backend, _ string) {
		p := start(t, b, spec(config.Process))
		f := p.inst.(sandbox.Freezer)
		for n := range 20 {
			if err := f.Freeze(); err != nil {
				t.Fatal(err)
			}
			if n%3 == 0 {
				if err := f.Freeze(); err != nil {
					t.Fatal(err)
				}
			}
			if err := f.Thaw(); err != nil {
				t.Fatal(err)
			}
			p.must("uid", probeArgs{})
		}
	})
}

// A frozen server is asked to end like any other, and may do so by itself.
func TestCloseOfTheFrozen(t *testing.T) {
	hierarchies(t, func(t *testing.T, b *process.Backend, root string) {
		for _, isolation := range isolations {
			for _, how := range []string{"exit status 0", "killed: it did not stop when asked to"} {
				s := spec(isolation)
				if how != "exit status 0" {
					s.Env = map[string]string{"PROBE_IGNORE": "1"}
				}
				p, pid := frozen(t, b, s)
				begun := time.Now()
				if err := p.inst.Close(); err != nil {
					t.Error(err)
				}
				if d := time.Since(begun); d > 2*s.StopGrace+2*time.Second {
					t.Errorf("%s: Close took %v", isolation, d)
				}
				if got := p.inst.Usage().Exit; got != how {
					t.Errorf("%s: it ended with %q, want %q", isolation, got, how)
				}
				if alive(strconv.Itoa(pid)) {
					t.Errorf("%s: it lives", isolation)
				}
				if err := p.inst.(sandbox.Freezer).Freeze(); err == nil || !strings.Contains(err.Error(), "at its end") {
					t.Errorf("%s: Freeze after Close: %v", isolation, err)
				}
				if err := p.inst.(sandbox.Freezer).Thaw(); err != nil {
					t.Errorf("%s: Thaw after Close: %v", isolation, err)
				}
			}
		}
		entries, _ := os.ReadDir(root)
		if left := cgroups(entries[0].Name()); len(left) > 0 {
			t.Errorf("cgroups left: %v", left)
		}
	})
}

// What kills a frozen server from outside is seen at once, as of any other.
func TestDeathOfTheFrozen(t *testing.T) {
	hierarchies(t, func(t *testing.T, b *process.Backend, root string) {
		for _, isolation := range isolations {
			p, pid := frozen(t, b, spec(isolation))
			parent := parentOf(parentOf(pid)) // the monitor of bubblewrap, or this process
			victim := pid
			if isolation == config.Process {
				victim = parent
			}
			if err := unix.Kill(victim, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			entries, _ := os.ReadDir(root)
			if isolation == config.None && slices.Contains(entriesOf(cgroups(entries[0].Name())), "freezer.state") {
				if err := p.inst.Close(); err != nil { // version 1 lets it die when it is thawed
					t.Error(err)
				}
				continue
			}
			ended(t, p.conn)
			if err := p.inst.Close(); err != nil {
				t.Error(err)
			}
			if alive(strconv.Itoa(pid)) {
				t.Errorf("%s: it lives", isolation)
			}
		}
	})
}

func parentOf(pid int) int {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	_, rest, _ := strings.Cut(string(b), "\nPPid:\t")
	line, _, _ := strings.Cut(rest, "\n")
	n, _ := strconv.Atoi(line)
	return n
}

func entriesOf(dirs []string) []string {
	var out []string
	for _, d := range dirs {
		entries, _ := os.ReadDir(d)
		for _, e := range entries {
			out = append(out, e.Name())
		}
	}
	return out
}

// Freeze, Thaw, Promote, Usage and Close may come at any time.
func TestFreezeInAnyOrder(t *testing.T) {
	hierarchies(t, func(t *testing.T, b *process.Backend, _ string) {
		for _, isolation := range isolations {
			idle := spec(isolation)
			idle.StopGrace = 10 * time.Second // in its class it may have to wait for a core
			p := startBy(t, b.Speculate, idle)
			f := p.inst.(sandbox.Freezer)
			var all sync.WaitGroup
			for n := range 4 {
				all.Go(func() {
					for range 10 {
						switch n {
						case 0:
							_ = f.Freeze()
						case 1:
							_ = f.Thaw()
						case 2:
							_ = p.inst.(sandbox.Promoter).Promote()
						case 3:
							_ = p.inst.Usage()
						}
					}
				})
			}
			all.Go(func() {
				<-time.After(10 * time.Millisecond)
				if err := p.inst.(sandbox.Promoter).Promote(); err != nil { // or it ends when nobody else has anything to do
					t.Error(err)
				}
				if err := p.inst.Close(); err != nil {
					t.Error(err)
				}
			})
			all.Go(func() {
				for range 3 {
					q := start(t, b, spec(isolation))
					q.must("uid", probeArgs{})
				}
			})
			all.Wait()
			if got := p.inst.Usage().Exit; got != "exit status 0" {
				t.Errorf("%s: it ended with %q", isolation, got)
			}
		}
	})
}
