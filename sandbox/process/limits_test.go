package process_test

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/sandbox/process"
	"golang.org/x/sys/unix"
)

var isolations = []config.Isolation{config.Process, config.None}

func TestMemoryLimit(t *testing.T) {
	needs(t, "memory limit")
	b := newBackend(t, "")
	for _, isolation := range isolations {
		s := spec(isolation)
		s.Memory = 64 << 20
		p := start(t, b, s)
		p.must("alloc", probeArgs{N: 20})
		if u := p.inst.Usage(); u.Memory < 20<<20 || u.Memory > s.Memory || u.Peak < u.Memory || u.PID == 0 {
			t.Errorf("%s: usage %+v with 20 MiB in use", isolation, u)
		}
		begun := time.Now()
		if _, _, err := p.try("alloc", probeArgs{N: 200}); err == nil {
			t.Errorf("%s: it has more than its limit", isolation)
		}
		if d := time.Since(begun); d > 5*time.Second {
			t.Errorf("%s: its death was seen only after %v", isolation, d)
		}
		if err := p.inst.Close(); err != nil {
			t.Error(err)
		}
		u := p.inst.Usage()
		if want := "killed: out of memory (limit 64 MiB)"; u.Exit != want {
			t.Errorf("%s: it ended with %q, want %q", isolation, u.Exit, want)
		}
		if u.Peak < 50<<20 {
			t.Errorf("%s: its peak was %d", isolation, u.Peak)
		}
	}
}

func TestFilesInMemoryCount(t *testing.T) {
	s := spec(config.Process)
	s.Memory = 64 << 20
	b := newBackend(t, "")
	for _, path := range []string{"/tmp/f", "/home/specbox/f", "/dev/shm/f"} {
		p := start(t, b, s)
		if n, failed, err := p.try("fill", probeArgs{Path: path, N: 100}); err == nil && failed == "" {
			t.Errorf("%s took %s MiB", path, n)
		}
	}
}

func TestPidsLimit(t *testing.T) {
	needs(t, "pids limit")
	b := newBackend(t, "")
	for _, isolation := range isolations {
		s := spec(isolation)
		s.Pids = 40
		p := start(t, b, s)
		got, _ := strconv.Atoi(p.must("fork", probeArgs{N: 100}))
		if got >= 40 || got < 2 {
			t.Errorf("%s: it has %d children, of several threads each, under a limit of 40", isolation, got)
		}
	}
}

func TestCPULimit(t *testing.T) {
	needs(t, "cpu limit")
	b := newBackend(t, "")
	for _, isolation := range isolations {
		s := spec(isolation)
		s.CPUs = 0.2
		p := start(t, b, s)
		ms, _ := strconv.Atoi(p.must("burn", probeArgs{N: 2, Ms: 1500}))
		if ms > 600 { // 300, and what is dealt out ahead
			t.Errorf("%s: it had %d ms of CPU in 1,500 under a limit of 0.2", isolation, ms)
		}
	}
}

func TestLimitsWithoutCgroups(t *testing.T) {
	b := newBackend(t, "none")
	for _, isolation := range isolations {
		s := spec(isolation)
		s.Memory = 256 << 20
		p := start(t, b, s)
		limits := strings.Join(strings.Fields(p.must("read", probeArgs{Path: "/proc/self/limits"})), " ")
		for _, want := range []string{"Max data size 268435456 268435456", "Max processes 128 128", "Max core file size 0 0"} {
			if !strings.Contains(limits, want) {
				t.Errorf("%s: limits lack %q: %s", isolation, want, limits)
			}
		}
		p.must("alloc", probeArgs{N: 20})
		if u := p.inst.Usage(); u.Memory < 20<<20 || u.Memory > 200<<20 || u.Peak < u.Memory {
			t.Errorf("%s: usage %+v with 20 MiB in use", isolation, u)
		}
		if _, _, err := p.try("alloc", probeArgs{N: 400}); err == nil {
			t.Errorf("%s: it has more than its limit", isolation)
		}
	}
}

// TestCgroupVersion2 has a folder stand for a delegated cgroup: the kernel of a
// machine has each controller in one version only.
func TestCgroupVersion2(t *testing.T) {
	root := t.TempDir()
	for _, f := range []string{"cgroup.controllers", "cgroup.subtree_control"} {
		if err := os.WriteFile(filepath.Join(root, f), []byte("cpu memory pids\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b := newBackend(t, root)
	s := spec(config.Process)
	s.Memory, s.Pids, s.CPUs = 300<<20, 99, 1.5
	said := &buffer{}
	inst, err := b.Create(t.Context(), "v2", s, said)
	if err != nil {
		t.Fatal(err)
	}
	dirs, _ := filepath.Glob(filepath.Join(root, "specbox-*"))
	if len(dirs) != 1 {
		t.Fatalf("cgroups %v, want one", dirs)
	}
	read := func(file string) string {
		b, _ := os.ReadFile(filepath.Join(dirs[0], file))
		return string(b)
	}
	for file, want := range map[string]string{
		"memory.max": "314572800", "memory.swap.max": "0", "memory.oom.group": "1", "pids.max": "100", "cpu.max": "150000 100000",
	} {
		if got := read(file); got != want {
			t.Errorf("%s is %q, want %q", file, got, want)
		}
	}
	eventually(t, "process 1 of the sandbox in the cgroup", func() string {
		status, _ := os.ReadFile("/proc/" + strconv.Itoa(inst.Usage().PID) + "/status")
		if init := read("cgroup.procs"); init == "" || !strings.Contains(string(status), "\nPPid:\t"+init+"\n") {
			return init
		}
		return ""
	})
	for file, text := range map[string]string{
		"memory.current": "5000000\n", "memory.peak": "7000000\n",
		"memory.stat": "anon 1\ninactive_file 1000000\n", "memory.events": "low 0\noom 1\noom_kill 1\n",
	} {
		if err := os.WriteFile(filepath.Join(dirs[0], file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if u := inst.Usage(); u.Memory != 4000000 || u.Peak != 7000000 {
		t.Errorf("usage %+v", u)
	}
	if err := unix.Kill(inst.Usage().PID, unix.SIGKILL); err != nil {
		t.Error(err)
	}
	// A folder, unlike a cgroup, is not removed while there are files in it.
	if err := inst.Close(); err == nil || !strings.Contains(err.Error(), dirs[0]) {
		t.Errorf("Close does not say that the cgroup is still there: %v", err)
	}
	if got, want := inst.Usage().Exit, "killed: out of memory (limit 300 MiB)"; got != want {
		t.Errorf("it ended with %q, want %q", got, want)
	}
}

func TestCgroupThatIsNoFolder(t *testing.T) {
	for _, where := range []string{"relative", filepath.Join(t.TempDir(), "missing")} {
		if _, err := process.New(process.Config{Run: t.TempDir(), Cgroup: where}); err == nil || !strings.Contains(err.Error(), where) {
			t.Errorf("%s: %v", where, err)
		}
	}
}

func TestCheck(t *testing.T) {
	var names []string
	for _, f := range process.Check(t.Context()) {
		t.Logf("%+v", f)
		if f.Detail == "" || f.OK != (f.Fix == "") {
			t.Errorf("%s: %+v", f.Name, f)
		}
		if !f.OK && slices.Contains([]string{"bubblewrap", "sandbox", "seccomp", "allow-list"}, f.Name) {
			t.Errorf("these tests need what does not work: %+v", f)
		}
		names = append(names, f.Name)
	}
	want := []string{"bubblewrap", "sandbox", "seccomp", "allow-list", "memory limit", "pids limit", "cpu limit", "kill of plain servers", "idle class"}
	if !slices.Equal(names, want) {
		t.Errorf("findings %q, want %q", names, want)
	}
}

func TestCheckWithoutBubblewrap(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	f := process.Check(t.Context())[0]
	if f.OK || !strings.Contains(f.Fix, "apt-get install bubblewrap") {
		t.Errorf("%+v", f)
	}
	if _, err := newBackend(t, "none").Create(t.Context(), "x", spec(config.Process), nil); err == nil || !strings.Contains(err.Error(), "apt-get install bubblewrap") {
		t.Errorf("the error is %v", err)
	}
}
