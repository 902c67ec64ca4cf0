package process_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/sandbox/process"
	"github.com/specbox/specbox/sandbox/sandboxtest"
	"github.com/specbox/specbox/wire"
)

const (
	mannerVar = "PROCESS_TEST_MANNER" // this binary is to be a server
	stormVar  = "PROCESS_TEST_STORM"  // … and that is busy until then
	ownerVar  = "PROCESS_TEST_OWNER"  // this binary is to be a SpecBox that gets killed
)

var probePath string

func TestMain(m *testing.M) {
	process.Init()
	if manner := os.Getenv(mannerVar); manner != "" {
		sandboxtest.Main(manner)
	}
	if dir := os.Getenv(ownerVar); dir != "" {
		owner(dir)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "probe-")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer os.RemoveAll(dir)
	probePath = filepath.Join(dir, "probe")
	build := exec.Command("go", "build", "-o", probePath, "./testdata/probe")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Printf("build the probe: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// newBackend returns a backend that is closed at the end of the test; then its
// run folder must be empty.
func newBackend(t *testing.T, cgroup string) *process.Backend {
	t.Helper()
	b, _ := newBackendIn(t, cgroup)
	return b
}

func newBackendIn(t *testing.T, cgroup string) (*process.Backend, string) {
	t.Helper()
	root := filepath.Join(t.TempDir(), "run")
	b, err := process.New(process.Config{Run: root, Cgroup: cgroup, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("Close of the backend: %v", err)
		}
		if left, _ := os.ReadDir(root); len(left) > 0 {
			t.Errorf("left in the run folder: %v", left)
		}
	})
	return b, root
}

// spec returns how to run the probe.
func spec(isolation config.Isolation) *sandbox.Spec {
	return &sandbox.Spec{
		Server:    "probe",
		Isolation: isolation,
		Argv:      []string{probePath},
		Memory:    512 << 20,
		Pids:      128,
		StopGrace: 300 * time.Millisecond,
	}
}

var count struct {
	sync.Mutex
	n int
}

func nextID() string {
	count.Lock()
	defer count.Unlock()
	count.n++
	return fmt.Sprintf("t-%d", count.n)
}

// A peer is a probe that runs.
type peer struct {
	t    *testing.T
	inst sandbox.Instance
	conn *wire.Conn
	said *buffer
}

func start(t *testing.T, b *process.Backend, s *sandbox.Spec) *peer {
	t.Helper()
	return startBy(t, b.Create, s)
}

// startBy starts a probe by Create or Speculate.
func startBy(t *testing.T, create func(context.Context, string, *sandbox.Spec, io.Writer) (sandbox.Instance, error), s *sandbox.Spec) *peer {
	t.Helper()
	p := &peer{t: t, said: &buffer{}}
	inst, err := create(t.Context(), nextID(), s, p.said)
	if err != nil {
		t.Fatal(err)
	}
	p.inst = inst
	p.conn = wire.NewConn(inst.Transport())
	t.Cleanup(func() {
		if err := inst.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		_ = p.conn.Close()
	})
	return p
}

type probeArgs struct {
	Path, Data, Name, Addr, Network string
	N, Ms                           int
}

// call calls a tool of the probe; failed is what it met.
func (p *peer) call(name string, a probeArgs) (text, failed string) {
	p.t.Helper()
	text, failed, err := p.try(name, a)
	if err != nil {
		p.t.Fatalf("%s: %v; it said %q and ended with %q", name, err, p.said.String(), p.inst.Usage().Exit)
	}
	return text, failed
}

func (p *peer) try(name string, a probeArgs) (text, failed string, err error) {
	ctx, cancel := context.WithTimeout(p.t.Context(), 30*time.Second)
	defer cancel()
	params, err := json.Marshal(map[string]any{"name": name, "arguments": a})
	if err != nil {
		return "", "", err
	}
	r, err := p.conn.Call(ctx, "tools/call", params)
	if err != nil {
		return "", "", err
	}
	var result struct {
		Content []struct{ Text string }
		IsError bool
	}
	if err := json.Unmarshal(r.Result, &result); err != nil || len(result.Content) != 1 {
		return "", "", fmt.Errorf("reply %s %s: %w", r.Result, r.Error, err)
	}
	if result.IsError {
		return "", result.Content[0].Text, nil
	}
	return result.Content[0].Text, "", nil
}

// must calls a tool that has to succeed.
func (p *peer) must(name string, a probeArgs) string {
	p.t.Helper()
	text, failed := p.call(name, a)
	if failed != "" {
		p.t.Fatalf("%s %+v: %s", name, a, failed)
	}
	return text
}

// A buffer is a bytes.Buffer for concurrent use.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

var _ io.Writer = (*buffer)(nil)

func hasAny(s string, subs ...string) bool {
	for _, sub := range subs {
		if strings.Contains(s, sub) {
			return true
		}
	}
	return false
}

// needs skips a test of what the machine, as [process.Check] says, cannot do.
func needs(t *testing.T, finding string) {
	t.Helper()
	for _, f := range process.Check(t.Context()) {
		if f.Name == finding && !f.OK {
			t.Skipf("%s: %s", f.Name, f.Detail)
		}
	}
}
