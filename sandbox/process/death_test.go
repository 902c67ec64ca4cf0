package process_test

import (
	"fmt"
	"io"
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
	"github.com/specbox/specbox/wire"
	"golang.org/x/sys/unix"
)

// manners are the ways in which the instances of the leak test come to an end.
var manners = []struct {
	name string
	end  func(*testing.T, sandbox.Instance, *wire.Conn)
}{
	{"asked to", func(*testing.T, sandbox.Instance, *wire.Conn) {}},
	{"transport first", func(_ *testing.T, _ sandbox.Instance, c *wire.Conn) { _ = c.Close() }},
	{"exit in a call", func(t *testing.T, _ sandbox.Instance, c *wire.Conn) { end(t, c, "exit", probeArgs{N: 3}) }},
	{"signal in a call", func(t *testing.T, _ sandbox.Instance, c *wire.Conn) {
		end(t, c, "signal", probeArgs{N: int(unix.SIGKILL)})
	}},
	{"killed from outside", func(t *testing.T, i sandbox.Instance, c *wire.Conn) {
		_ = unix.Kill(i.Usage().PID, unix.SIGKILL)
		ended(t, c)
	}},
	{"orphans", func(t *testing.T, _ sandbox.Instance, c *wire.Conn) {
		_, _ = c.Call(t.Context(), "tools/call", []byte(`{"name":"daemon","arguments":{}}`))
		_, _ = c.Call(t.Context(), "tools/call", []byte(`{"name":"daemon","arguments":{"Name":"quiet"}}`))
	}},
	{"death beside orphans", func(t *testing.T, _ sandbox.Instance, c *wire.Conn) {
		_, _ = c.Call(t.Context(), "tools/call", []byte(`{"name":"daemon","arguments":{}}`))
		end(t, c, "exit", probeArgs{N: 0})
	}},
}

// end makes the server die, and wants to see that within a second.
func end(t *testing.T, c *wire.Conn, tool string, a probeArgs) {
	t.Helper()
	params := fmt.Appendf(nil, `{"name":%q,"arguments":{"N":%d}}`, tool, a.N)
	if _, err := c.Start("tools/call", params, nil); err != nil {
		t.Error(err)
	}
	ended(t, c)
}

func ended(t *testing.T, c *wire.Conn) {
	t.Helper()
	begun := time.Now()
	select {
	case <-c.Done():
		if d := time.Since(begun); d > time.Second {
			t.Errorf("the end was seen only after %v", d)
		}
	case <-time.After(10 * time.Second):
		t.Error("the end was not seen")
	}
}

func TestNothingIsLeftOfAnyDeath(t *testing.T) {
	b, root := newBackendIn(t, "")
	once := func(n int) {
		m := manners[n%len(manners)]
		s := spec(isolations[n/len(manners)%2])
		if n%5 == 0 && s.Isolation == config.Process {
			s.Network.Hosts = []string{"localhost:9"}
		}
		s.StopGrace = 200 * time.Millisecond
		inst, err := b.Create(t.Context(), fmt.Sprintf("d-%d", n), s, io.Discard)
		if err != nil {
			t.Error(err)
			return
		}
		c := wire.NewConn(inst.Transport())
		if _, err := c.Call(t.Context(), "ping", nil); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
		m.end(t, inst, c)
		begun := time.Now()
		if err := inst.Close(); err != nil {
			t.Errorf("%s: Close: %v", m.name, err)
		}
		if d := time.Since(begun); d > 3*time.Second {
			t.Errorf("%s: Close took %v", m.name, d)
		}
		_ = c.Close()
		if u := inst.Usage(); u.Exit == "" || u.PID != 0 {
			t.Errorf("%s: usage at last is %+v", m.name, u)
		}
	}
	once(0)
	entries, _ := os.ReadDir(root)
	instance := entries[0].Name()
	before, goroutines := descriptors(), runtime.NumGoroutine()
	var all sync.WaitGroup
	next := make(chan int)
	for range 4 {
		all.Go(func() {
			for n := range next {
				once(n)
			}
		})
	}
	for n := range 56 {
		next <- 1 + n
	}
	close(next)
	all.Wait()
	eventually(t, "the goroutines of before", func() string {
		if n := runtime.NumGoroutine(); n > goroutines {
			return fmt.Sprintf("%d, and before %d", n, goroutines)
		}
		return ""
	})
	after := descriptors()
	for kind, n := range after { // there may be fewer: Go keeps pipes for copying between sockets for a while
		if n > before[kind] {
			t.Errorf("descriptors before: %v\nafter: %v", before, after)
		}
	}
	if left := marked(instance); len(left) > 0 {
		t.Errorf("processes left: %v", left)
	}
	if left := cgroups(instance); len(left) > 0 {
		t.Errorf("cgroups left: %v", left)
	}
	if left, _ := os.ReadDir(filepath.Join(root, instance)); len(left) != 1 {
		t.Errorf("files left: %v", left)
	}
	if left := zombies(); left != "" {
		t.Errorf("zombies left: %s", left)
	}
}

// descriptors counts what this process has open, by kind.
func descriptors() map[string]int {
	all, _ := filepath.Glob("/proc/self/fd/*")
	kinds := map[string]int{}
	for _, f := range all {
		if l, err := os.Readlink(f); err == nil {
			kind, _, _ := strings.Cut(l, ":")
			kinds[kind]++
		}
	}
	return kinds
}

// zombies returns the dead children of this process.
func zombies() string {
	var out []string
	for _, d := range allProc() {
		b, _ := os.ReadFile(d + "/status")
		if s := string(b); strings.Contains(s, "\nState:\tZ") && strings.Contains(s, "\nPPid:\t"+strconv.Itoa(os.Getpid())+"\n") {
			out = append(out, d)
		}
	}
	return strings.Join(out, " ")
}

func TestHowItEnded(t *testing.T) {
	b := newBackend(t, "")
	for _, isolation := range isolations {
		for want, die := range map[string]func(*peer){
			"exit status 0":      func(p *peer) {},
			"exit status 3":      func(p *peer) { end(p.t, p.conn, "exit", probeArgs{N: 3}) },
			"killed by SIGHUP":   func(p *peer) { end(p.t, p.conn, "signal", probeArgs{N: int(unix.SIGHUP)}) },
			"killed":             func(p *peer) { end(p.t, p.conn, "signal", probeArgs{N: int(unix.SIGKILL)}) },
			"killed by SIGTERM":  nil,
			"killed: it did not": nil,
		} {
			s := spec(isolation)
			switch want {
			case "killed by SIGTERM":
				s.Env = map[string]string{"PROBE_NOEOF": "1"}
			case "killed: it did not":
				s.Env = map[string]string{"PROBE_IGNORE": "1"}
			}
			p := start(t, b, s)
			p.must("uid", probeArgs{})
			if u := p.inst.Usage(); u.Exit != "" || u.PID == 0 {
				t.Errorf("%s: usage while it lives is %+v", isolation, u)
			}
			if die != nil {
				die(p)
			}
			begun := time.Now()
			if err := p.inst.Close(); err != nil {
				t.Error(err)
			}
			if d := time.Since(begun); d > 2*s.StopGrace+2*time.Second {
				t.Errorf("%s: Close took %v", want, d)
			}
			if got := p.inst.Usage().Exit; got != want && !strings.HasPrefix(got, want) || want == "killed" && got != want {
				t.Errorf("%s: it ended with %q, want %q", isolation, got, want)
			}
		}
	}
}

// The server is asked itself, not what stands between.
func TestTermReachesTheServer(t *testing.T) {
	b := newBackend(t, "")
	for _, isolation := range isolations {
		s := spec(isolation)
		s.Env = map[string]string{"PROBE_NOEOF": "1"}
		s.StopGrace = time.Second
		p := start(t, b, s)
		p.must("uid", probeArgs{})
		begun := time.Now()
		if err := p.inst.Close(); err != nil {
			t.Error(err)
		}
		if d := time.Since(begun); d < s.StopGrace || d > s.StopGrace+time.Second {
			t.Errorf("%s: Close took %v: TERM, after %v, did not end it", isolation, d, s.StopGrace)
		}
	}
}

func TestPlainDescendantsDoNotGetAway(t *testing.T) {
	needs(t, "kill of plain servers")
	b := newBackend(t, "")
	p := start(t, b, spec(config.None))
	var pids []string
	for _, how := range []string{"", "quiet", "bare"} {
		pids = append(pids, p.must("daemon", probeArgs{Name: how}))
	}
	end(t, p.conn, "exit", probeArgs{})
	if err := p.inst.Close(); err != nil {
		t.Error(err)
	}
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("grandchild %s lives", pid)
		}
	}
}

// Without cgroups the marker is all that there is. Who gets rid of it gets away,
// but holds nobody up, even with the server's output in hand.
func TestPlainDescendantsWithoutCgroups(t *testing.T) {
	p := start(t, newBackend(t, "none"), spec(config.None))
	known, unknown := p.must("daemon", probeArgs{}), p.must("daemon", probeArgs{Name: "bare"})
	defer func() {
		pid, _ := strconv.Atoi(unknown)
		_ = unix.Kill(pid, unix.SIGKILL)
	}()
	end(t, p.conn, "exit", probeArgs{}) // within a second
	if err := p.inst.Close(); err != nil {
		t.Error(err)
	}
	if alive(known) {
		t.Errorf("grandchild %s lives", known)
	}
	if !alive(unknown) {
		t.Error("the test's own escape did not work")
	}
}

func alive(pid string) bool {
	b, err := os.ReadFile("/proc/" + pid + "/status")
	return err == nil && !strings.Contains(string(b), "\nState:\tZ")
}

func TestOrphansAreReapedByTheirNewParent(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) }()
	b := newBackend(t, "")
	for _, isolation := range isolations {
		p := start(t, b, spec(isolation))
		pid, err := strconv.Atoi(p.must("daemon", probeArgs{}))
		if err != nil {
			t.Fatal(err)
		}
		if isolation == config.None { // orphaned, and dead, while its sandbox goes on
			q := start(t, b, spec(isolation))
			other, _ := strconv.Atoi(q.must("daemon", probeArgs{Name: "quiet"}))
			end(t, q.conn, "exit", probeArgs{})
			_ = unix.Kill(other, unix.SIGKILL)
		}
		end(t, p.conn, "exit", probeArgs{})
		if err := p.inst.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat("/proc/" + strconv.Itoa(pid)); err == nil && isolation == config.None {
			t.Errorf("process %d is still there", pid)
		}
		eventually(t, "no zombie", zombies)
	}
}

func TestBackendCloseTakesAllDown(t *testing.T) {
	b, root := newBackendIn(t, "")
	entries, _ := os.ReadDir(root)
	var created sync.WaitGroup
	for n := range 8 {
		s := spec(isolations[n%2])
		s.Env = map[string]string{"PROBE_IGNORE": "1"}
		s.StopGrace = 50 * time.Millisecond
		if n < 4 {
			if _, err := b.Create(t.Context(), nextID(), s, io.Discard); err != nil {
				t.Fatal(err)
			}
			continue
		}
		created.Go(func() { _, _ = b.Create(t.Context(), nextID(), s, io.Discard) })
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	created.Wait()
	if left := marked(entries[0].Name()); len(left) > 0 {
		t.Errorf("processes left: %v", left)
	}
	if _, err := b.Create(t.Context(), nextID(), spec(config.None), io.Discard); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("Create after Close: %v", err)
	}
}

func TestIDs(t *testing.T) {
	b := newBackend(t, "")
	for _, id := range []string{"", "../x", "a/b", "A", "a b", strings.Repeat("a", 200)} {
		if _, err := b.Create(t.Context(), id, spec(config.None), io.Discard); err == nil {
			t.Errorf("id %q was taken", id)
		}
	}
	inst, err := b.Create(t.Context(), "twice", spec(config.None), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Create(t.Context(), "twice", spec(config.None), io.Discard); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("an id was taken twice: %v", err)
	}
	if err := inst.Close(); err != nil {
		t.Error(err)
	}
	if inst, err = b.Create(t.Context(), "twice", spec(config.None), io.Discard); err != nil {
		t.Errorf("an id is not free again: %v", err)
	} else if err := inst.Close(); err != nil {
		t.Error(err)
	}
}

func TestWordsOfTheServer(t *testing.T) {
	b := newBackend(t, "")
	for _, isolation := range isolations {
		p := start(t, b, spec(isolation))
		p.must("say", probeArgs{Data: "half a line", Name: "a banner"})
		eventually(t, "both in the log", func() string {
			if got := p.said.String(); !strings.Contains(got, "half a line") || !strings.Contains(got, "stdout: a banner\n") {
				return strconv.Quote(got)
			}
			return ""
		})
	}
}
