package docker_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
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

	"github.com/moby/moby/client"
	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/sandbox/docker"
	"github.com/specbox/specbox/wire"
	"golang.org/x/sys/unix"
)

const testImage = "specbox-test:server"

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
	if _, err := try(os.Getenv("DOCKER_HOST")); err != nil {
		own := &engine{dir: dir}
		if err := own.start(); err != nil {
			fmt.Println("no Docker engine answers, and none can be started (apt-get install docker.io, as root):", err)
			return 1
		}
		defer own.stop()
		os.Setenv("DOCKER_HOST", own.host())
	}
	if err := makeImage(dir, os.Getenv("DOCKER_HOST"), testImage); err != nil {
		fmt.Println("image of the test server:", err)
		return 1
	}
	return m.Run()
}

// try asks an engine whether it is there.
func try(host string) (*client.Client, error) {
	opts := []client.Opt{client.FromEnv}
	if host != "" {
		opts = append(opts, client.WithHost(host))
	}
	api, err := client.New(opts...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err = api.Ping(ctx, client.PingOptions{})
	return api, err
}

// An engine is a dockerd that a test started.
type engine struct {
	dir  string
	args []string
	cmd  *exec.Cmd
	said bytes.Buffer
}

func (e *engine) host() string { return "unix://" + filepath.Join(e.dir, "docker.sock") }

// start starts the engine, again if it was stopped.
func (e *engine) start() error {
	path, err := exec.LookPath("dockerd")
	if err != nil {
		return err
	}
	e.cmd = exec.Command(path, append([]string{
		"--host", e.host(), "--data-root", filepath.Join(e.dir, "data"), "--exec-root", filepath.Join(e.dir, "exec"),
		"--pidfile", filepath.Join(e.dir, "pid"), "--storage-driver", "vfs", "--iptables=false", "--ip6tables=false",
	}, e.args...)...)
	e.said.Reset()
	e.cmd.Stdout, e.cmd.Stderr = &e.said, &e.said
	if err := e.cmd.Start(); err != nil {
		return err
	}
	for deadline := time.Now().Add(30 * time.Second); ; <-time.After(50 * time.Millisecond) {
		if _, err = try(e.host()); err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			e.stop()
			return fmt.Errorf("dockerd: %w: %s", err, e.said.String())
		}
	}
}

// stop ends the engine. Containers end with it, unless it runs with --live-restore.
func (e *engine) stop() {
	_ = e.cmd.Process.Signal(os.Interrupt)
	done := make(chan error, 1)
	go func() { done <- e.cmd.Wait() }()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		_ = e.cmd.Process.Kill()
		<-done
	}
	_ = unix.Unmount(filepath.Join(e.dir, "data"), unix.MNT_DETACH) // left by --live-restore
}

// makeImage makes an image of the test server alone.
func makeImage(dir, host, name string) error {
	program := filepath.Join(dir, "server")
	build := exec.Command("go", "build", "-o", program, "./testdata/server")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	b, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	var root bytes.Buffer
	w := tar.NewWriter(&root)
	err = errors.Join(
		w.WriteHeader(&tar.Header{Name: "server", Mode: 0o755, Size: int64(len(b))}),
		second(w.Write(b)),
		w.WriteHeader(&tar.Header{Name: "tmp/", Mode: 0o777, Typeflag: tar.TypeDir}),
		w.Close(),
	)
	if err != nil {
		return err
	}
	api, err := try(host)
	if err != nil {
		return err
	}
	defer api.Close()
	res, err := api.ImageImport(context.Background(), client.ImageImportSource{Source: &root, SourceName: "-"}, name,
		client.ImageImportOptions{Changes: []string{`ENTRYPOINT ["/server"]`, "WORKDIR /"}})
	if err != nil {
		return err
	}
	defer res.Close()
	_, err = io.Copy(io.Discard, res)
	return err
}

func second(_ int, err error) error { return err }

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
func containers() []string {
	api, err := try(os.Getenv("DOCKER_HOST"))
	if err != nil {
		return []string{err.Error()}
	}
	defer api.Close()
	found, err := api.ContainerList(context.Background(), client.ContainerListOptions{All: true, Filters: client.Filters{}.Add("label", docker.LabelInstance)})
	if err != nil {
		return []string{err.Error()}
	}
	var out []string
	for _, c := range found.Items {
		out = append(out, strings.Join(c.Names, " ")+" "+string(c.State))
	}
	return out
}

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
