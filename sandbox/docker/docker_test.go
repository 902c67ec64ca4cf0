package docker_test

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/internal/dockertest"
	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/sandbox/docker"
	"github.com/specbox/specbox/sandbox/sandboxtest"
)

// inspect returns what the engine says of the container of a sandbox.
func inspect(t *testing.T, label, value string) client.ContainerInspectResult {
	t.Helper()
	api, err := dockertest.Connect("")
	if err != nil {
		t.Fatal(err)
	}
	defer api.Close()
	found, err := api.ContainerList(t.Context(), client.ContainerListOptions{All: true, Filters: client.Filters{}.Add("label", label+"="+value)})
	if err != nil || len(found.Items) != 1 {
		t.Fatalf("containers with %s=%s: %v, %v", label, value, found.Items, err)
	}
	in, err := api.ContainerInspect(t.Context(), found.Items[0].ID, client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func TestEveryHardeningFlagIsSet(t *testing.T) {
	b, _ := newBackend(t)
	s := spec("probe")
	s.Server, s.CPUs = "hard", 0.5
	start(t, b.Create, s)
	in := inspect(t, docker.LabelServer, "hard")
	var got struct {
		Config struct {
			User   string
			Labels map[string]string
		}
		HostConfig struct {
			Init, Privileged, ReadonlyRootfs, PublishAllPorts bool
			CapAdd, CapDrop, SecurityOpt                      []string
			NetworkMode, IpcMode, PidMode, UsernsMode         string
			Memory, MemorySwap, PidsLimit, NanoCpus           int64
			Tmpfs                                             map[string]string
			RestartPolicy                                     struct{ Name string }
			LogConfig                                         struct{ Type string }
			Devices, Binds                                    []any
		}
	}
	if err := json.Unmarshal(in.Raw, &got); err != nil {
		t.Fatal(err)
	}
	h := got.HostConfig
	for what, ok := range map[string]bool{
		"a process 1 that reaps": h.Init,
		"not privileged":         !h.Privileged,
		"read-only root":         h.ReadonlyRootfs,
		"tmpfs":                  h.Tmpfs["/tmp"] != "" && h.Tmpfs["/home/specbox"] != "",
		"no capability":          slices.Equal(h.CapDrop, []string{"ALL"}) && len(h.CapAdd) == 0,
		"no new privileges":      slices.Contains(h.SecurityOpt, "no-new-privileges"),
		"default seccomp":        len(h.SecurityOpt) == 1,
		"a user":                 got.Config.User != "" && !strings.HasPrefix(got.Config.User, "0") && got.Config.User != "root",
		"no network":             h.NetworkMode == "none" && !h.PublishAllPorts,
		"memory":                 h.Memory == 256<<20 && h.MemorySwap == 256<<20,
		"processes":              h.PidsLimit == 65,
		"processors":             h.NanoCpus == 5e8,
		"no restart":             h.RestartPolicy.Name == "no",
		"no log on disk":         h.LogConfig.Type == "none",
		"no device":              len(h.Devices) == 0,
		"own namespaces":         h.IpcMode == "private" && h.PidMode == "" && h.UsernsMode == "",
		"labels":                 got.Config.Labels[docker.LabelInstance] != "" && strings.HasPrefix(got.Config.Labels[docker.LabelSandbox], "t-"),
	} {
		if !ok {
			t.Errorf("it lacks: %s in %s", what, in.Raw)
		}
	}
}

func TestWhatAContainerMay(t *testing.T) {
	b, _ := newBackend(t)
	shown := t.TempDir()
	if err := os.Chmod(shown, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(shown, "f"), []byte("seen"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := spec("probe")
	s.Argv, s.Dir = []string{"one", "two words"}, "/tmp"
	s.Mounts = []config.Mount{{Path: shown, At: "/shown"}, {Path: shown, At: "/writable", Write: true}}
	p := start(t, b.Create, s)
	for _, c := range []struct {
		ask, path string
		want      string
	}{
		{"write", "/x", "read-only file system"},
		{"write", "/tmp/x", ""},
		{"write", "/home/specbox/x", ""},
		{"write", "/shown/x", "read-only file system"},
		{"write", "/writable/x", ""},
		{"read", "/shown/f", "seen"},
		{"write", "/proc/sysrq-trigger", "error"},
		{"networks", "", "1"},
		{"args", "", "/tmp /server one two words"},
		{"env", "", "HOME=/home/specbox"},
		{"read", "/proc/self/status", "CapEff:\t0000000000000000"},
		{"read", "/proc/self/status", "NoNewPrivs:\t1"},
		{"read", "/proc/self/status", "Seccomp:\t2"},
	} {
		if got := p.ask(c.ask, c.path, 0); !strings.Contains(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%s %s: %q, want %q", c.ask, c.path, got, c.want)
		}
	}
	s = spec("probe")
	s.Network.All = true
	if got := start(t, b.Create, s).ask("networks", "", 0); got == "1" {
		t.Error("network: all has a loopback alone")
	}
}

func TestKeptState(t *testing.T) {
	b, _ := newBackend(t)
	s := spec("probe")
	s.Home = t.TempDir()
	p := start(t, b.Create, s)
	if got := p.ask("write", "/home/specbox/kept", 0); got != "" {
		t.Error(got)
	}
	if err := p.inst.Close(); err != nil {
		t.Error(err)
	}
	if got := start(t, b.Create, s).ask("read", "/home/specbox/kept", 0); got != "x" {
		t.Errorf("what was kept is %q", got)
	}
}

// The errors say which server it is about, what is wrong, and what to do.
func TestErrors(t *testing.T) {
	b, _ := newBackend(t)
	for name, c := range map[string]struct {
		change func(*sandbox.Spec)
		want   []string
	}{
		"image":      {func(s *sandbox.Spec) { s.Image = "specbox-test:missing" }, []string{"specbox-test:missing", "docker pull"}},
		"no image":   {func(s *sandbox.Spec) { s.Image = "" }, []string{"image: NAME"}},
		"program":    {func(s *sandbox.Spec) { s.Program = "nothing" }, []string{`"nothing"`, testImage}},
		"root":       {func(s *sandbox.Spec) { s.User = "0:5" }, []string{"root"}},
		"runtime":    {func(s *sandbox.Spec) { s.Runtime = "magic" }, []string{`"magic"`, "daemon.json"}},
		"mount":      {func(s *sandbox.Spec) { s.Mounts = []config.Mount{{Path: "/no/such"}} }, []string{"/no/such", "create it"}},
		"allow-list": {func(s *sandbox.Spec) { s.Network.Hosts = []string{"example.org"} }, []string{"network: none"}},
		"id":         {nil, []string{"sandbox id"}},
	} {
		s := spec(sandboxtest.Echo)
		s.Server = "named"
		id := nextID()
		if c.change == nil {
			id = "Bad/ID"
		} else {
			c.change(s)
		}
		begun := time.Now()
		_, err := b.Create(t.Context(), id, s, io.Discard)
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		for _, want := range append(c.want, `server "named"`) {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: the error lacks %q: %v", name, want, err)
			}
		}
		if d := time.Since(begun); d > 5*time.Second {
			t.Errorf("%s: the error took %v", name, d)
		}
	}
}

func TestNoEngine(t *testing.T) {
	b, err := docker.New(docker.Config{Run: t.TempDir(), Host: "unix:///no/such.sock"})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if _, err := b.Reap(t.Context()); err != nil {
		t.Errorf("Reap, with nothing to do: %v", err)
	}
	_, err = b.Create(t.Context(), "x", spec(sandboxtest.Echo), nil)
	if err == nil || !strings.Contains(err.Error(), "unix:///no/such.sock cannot be reached: start it") {
		t.Errorf("the error is %v", err)
	}
}

// What cannot be an engine is no reason not to start.
func TestEngineThatCannotBe(t *testing.T) {
	b, err := docker.New(docker.Config{Run: t.TempDir(), Host: "nonsense"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = b.Create(t.Context(), "x", spec(sandboxtest.Echo), nil); err == nil || !strings.Contains(err.Error(), "correct DOCKER_HOST") {
		t.Errorf("the error is %v", err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

func TestWhatIsPrivateIsCovered(t *testing.T) {
	outer := t.TempDir()
	private := filepath.Join(outer, "state")
	if err := os.MkdirAll(filepath.Join(private, "home"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{filepath.Join(private, "secret"), filepath.Join(private, "home", "f"), filepath.Join(outer, "open")} {
		if err := os.WriteFile(f, []byte("content"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b, err := docker.New(docker.Config{Run: t.TempDir(), Private: []string{private}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	s := spec("probe")
	s.Mounts = []config.Mount{{Path: outer, At: "/outer"}, {Path: filepath.Join(private, "home"), At: "/inner"}}
	p := start(t, b.Create, s)
	for path, want := range map[string]string{"/outer/open": "content", "/outer/state/secret": "error", "/inner/f": "content"} {
		if got := p.ask("read", path, 0); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

func TestOutOfMemory(t *testing.T) {
	b, _ := newBackend(t)
	s := spec("probe")
	s.Memory = 64 << 20
	p := start(t, b.Create, s)
	p.ask("alloc", "", 20)
	if u := p.inst.Usage(); u.Memory < 20<<20 || u.Memory > s.Memory || u.Peak < u.Memory || u.PID == 0 {
		t.Errorf("usage %+v with 20 MiB in use", u)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := p.conn.Call(ctx, "alloc", []byte(`{"n":200}`)); err == nil {
		t.Error("it has more than its limit")
	}
	if err := p.inst.Close(); err != nil {
		t.Error(err)
	}
	if got, want := p.inst.Usage().Exit, "killed: out of memory (limit 64 MiB)"; got != want {
		t.Errorf("it ended with %q, want %q", got, want)
	}
}

func TestHowItEnded(t *testing.T) {
	b, _ := newBackend(t)
	for want, s := range map[string]*sandbox.Spec{
		"exit status 0":                         spec(sandboxtest.Echo),
		"killed: it did not stop when asked to": spec(sandboxtest.Stubborn),
		"killed by SIGTERM":                     spec(sandboxtest.Deaf),
		"exit status 7":                         spec("probe"),
	} {
		p := start(t, b.Create, s)
		if want == "exit status 7" {
			_, _ = p.conn.Call(t.Context(), "exit", []byte(`{"n":7}`))
		}
		if err := p.inst.Close(); err != nil {
			t.Error(err)
		}
		if got := p.inst.Usage().Exit; got != want && !(want == "killed by SIGTERM" && got == "exit status 2") {
			t.Errorf("it ended with %q, want %q", got, want)
		}
	}
}

// Much on both outputs stops nothing, and is told apart.
func TestBothOutputs(t *testing.T) {
	b, _ := newBackend(t)
	p := start(t, b.Create, spec("probe"))
	p.ask("flood", "", 3000)
	if err := p.inst.Close(); err != nil {
		t.Error(err)
	}
	said := p.said.String()
	if n := strings.Count(said, "stdout: xxx"); n != 3000 {
		t.Errorf("%d lines of noise on standard output, want 3000", n)
	}
	if n := strings.Count(said, "\nxxx"); n < 2999 {
		t.Errorf("%d lines on standard error, want 3000", n)
	}
}

// What is still on its way when the transport is closed reaches the log.
func TestLastWordsAfterTheTransport(t *testing.T) {
	b, _ := newBackend(t)
	p := start(t, b.Create, spec("probe"))
	p.ask("networks", "", 0)
	if _, err := p.conn.Start("flood", []byte(`{"n":200}`), nil); err != nil {
		t.Fatal(err)
	}
	_ = p.conn.Close()
	if err := p.inst.Close(); err != nil {
		t.Error(err)
	}
	if n := strings.Count(p.said.String(), "xxx"); n == 0 {
		t.Error("nothing of standard error is in the log")
	}
}

func TestFreezeInAnyOrder(t *testing.T) {
	b, _ := newBackend(t)
	p := start(t, b.Speculate, spec("probe"))
	p.ask("burn", "", 0)
	f := p.inst.(sandbox.Freezer)
	var all sync.WaitGroup
	for n := range 4 {
		all.Go(func() {
			for range 5 {
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
	all.Wait()
	if err := f.Freeze(); err != nil {
		t.Error(err)
	}
	if err := p.inst.Close(); err != nil {
		t.Error(err)
	}
	if got := p.inst.Usage().Exit; got != "exit status 0" {
		t.Errorf("a frozen container ended with %q", got)
	}
	if err := f.Freeze(); err == nil {
		t.Error("Freeze of what is gone has no error")
	}
	if err := f.Thaw(); err != nil {
		t.Errorf("Thaw of what is gone: %v", err)
	}
}

// A speculative container has the least weight until it is promoted, by our own
// hand or the engine's.
func TestSpeculationHasTheLeastWeight(t *testing.T) {
	for _, hand := range []string{"own", "engine"} {
		b, _ := newBackend(t)
		s := spec("probe")
		s.Server = hand
		p := start(t, b.Speculate, s)
		if hand == "engine" {
			docker.WithoutCgroup(p.inst)
		}
		in := inspect(t, docker.LabelServer, hand)
		if got := in.Container.HostConfig.CPUShares; got != 2 {
			t.Errorf("shares %d, want the least", got)
		}
		for range 2 {
			if err := p.inst.(sandbox.Promoter).Promote(); err != nil {
				t.Error(err)
			}
		}
		if got := p.ask("read", "/sys/fs/cgroup/cpu/cpu.shares", 0) + p.ask("read", "/sys/fs/cgroup/cpu.weight", 0); !strings.HasPrefix(got, "1024") && !strings.Contains(got, "100\n") && !strings.Contains(got, "39\n") {
			t.Errorf("after Promote the weight is %q", got)
		}
		f := p.inst.(sandbox.Freezer)
		if err := f.Freeze(); err != nil {
			t.Error(err)
		}
		if err := f.Thaw(); err != nil {
			t.Error(err)
		}
		p.ask("networks", "", 0)
		if u := p.inst.Usage(); u.Memory <= 0 {
			t.Errorf("usage %+v", u)
		}
		if err := p.inst.Close(); err != nil {
			t.Error(err)
		}
	}
}
