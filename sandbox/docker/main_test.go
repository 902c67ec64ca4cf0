package docker_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/internal/dockertest"
	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/sandbox/docker"
	"github.com/specbox/specbox/wire"
)

const testImage = "specbox-test:server"

var serverPath string // the test server, a static program

func TestMain(m *testing.M) {
	if dir := os.Getenv(ownerVar); dir != "" {
		owner(dir)
	}
	os.Exit(run(m))
}

// run runs the tests against the engine of this machine, or one of their own.
func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "docker-test-")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer os.RemoveAll(dir)
	serverPath = filepath.Join(dir, "server")
	if err := build(serverPath); err != nil {
		fmt.Println("build the test server:", err)
		return 1
	}
	if api, err := dockertest.Connect(""); err == nil {
		api.Close()
	} else {
		own := &dockertest.Engine{Dir: dir}
		if err := own.Start(); err != nil {
			fmt.Println("no Docker engine answers, and none can be started:", err)
			return 1
		}
		defer own.Stop()
		os.Setenv("DOCKER_HOST", own.Host())
	}
	if err := dockertest.Image("", testImage, serverPath); err != nil {
		fmt.Println("image of the test server:", err)
		return 1
	}
	return m.Run()
}

// build builds the test server.
func build(program string) error {
	c := exec.Command("go", "build", "-o", program, "./testdata/server")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// newBackend returns a backend that is closed at the end of the test; then no
// container of it is left.
func newBackend(t *testing.T) (*docker.Backend, string) {
	t.Helper()
	root := filepath.Join(t.TempDir(), "run")
	b, err := docker.New(docker.Config{Run: root, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
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
		if left := containers(); len(left) > 0 {
			t.Errorf("containers left: %v", left)
		}
	})
	return b, root
}

// containers returns those that any SpecBox made, by state.
func containers() []string { return dockertest.Labelled("", docker.LabelInstance) }

func spec(manner string) *sandbox.Spec {
	return &sandbox.Spec{
		Server: manner, Isolation: config.Docker, Image: testImage, Env: map[string]string{"MANNER": manner},
		Memory: 256 << 20, Pids: 64, StopGrace: 300 * time.Millisecond,
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

// A peer is a test server that runs.
type peer struct {
	t    *testing.T
	inst sandbox.Instance
	conn *wire.Conn
	said *buffer
}

// A creator is Create or Speculate of a backend.
type creator func(context.Context, string, *sandbox.Spec, io.Writer) (sandbox.Instance, error)

func start(t *testing.T, create creator, s *sandbox.Spec) *peer {
	t.Helper()
	p := begin(t, create, s)
	t.Cleanup(func() {
		if err := p.inst.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		_ = p.conn.Close()
	})
	return p
}

// begin is start for a server that the caller closes.
func begin(t *testing.T, create creator, s *sandbox.Spec) *peer {
	t.Helper()
	p := &peer{t: t, said: &buffer{}}
	inst, err := create(t.Context(), nextID(), s, p.said)
	if err != nil {
		t.Fatal(err)
	}
	p.inst, p.conn = inst, wire.NewConn(inst.Transport())
	return p
}

// ask sends the probe a request and returns what it says.
func (p *peer) ask(method, path string, n int) string {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), 20*time.Second)
	defer cancel()
	r, err := p.conn.Call(ctx, method, fmt.Appendf(nil, `{"path":%q,"n":%d}`, path, n))
	if err != nil {
		p.t.Fatalf("%s: %v; it said %q and ended with %q", method, err, p.said.String(), p.inst.Usage().Exit)
	}
	return wire.Str(fmt.Appendf(nil, `{"s":%s}`, r.Result), "s")
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
