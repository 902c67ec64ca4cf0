package docker_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/specbox/specbox/internal/dockertest"
	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/sandbox/docker"
	"github.com/specbox/specbox/sandbox/sandboxtest"
	"github.com/specbox/specbox/wire"
)

// ownerVar tells this binary to be a SpecBox that gets killed, with its run folder.
const ownerVar = "DOCKER_TEST_OWNER"

// owner starts sandboxes, tells about it, and waits to be killed.
func owner(dir string) {
	b, err := docker.New(docker.Config{Run: dir})
	for n, manner := range []string{sandboxtest.Stubborn, sandboxtest.Echo, sandboxtest.Stubborn} {
		var inst sandbox.Instance
		if err == nil {
			inst, err = b.Create(context.Background(), fmt.Sprintf("o-%d", n), spec(manner), io.Discard)
		}
		if err == nil && n == 2 {
			err = inst.(sandbox.Freezer).Freeze()
		}
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("ready")
	select {}
}

func TestReapOfTheDead(t *testing.T) {
	b, _ := newBackend(t)
	live := start(t, b.Create, spec(sandboxtest.Echo))
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(t.TempDir(), "run")
	c := exec.Command(self)
	c.Env = append(os.Environ(), ownerVar+"="+root)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	reaper, err := docker.New(docker.Config{Run: root})
	if err != nil {
		t.Fatal(err)
	}
	defer reaper.Close()
	if rep, err := reaper.Reap(t.Context()); err != nil || len(rep.Instances) != 0 {
		t.Errorf("Reap took from a living instance: %+v, %v", rep, err)
	}
	_ = c.Process.Kill()
	_ = c.Wait()
	if line != "ready\n" {
		t.Fatalf("the owner says %q", line)
	}
	rep, err := reaper.Reap(t.Context())
	if err != nil || len(rep.Instances) != 1 || rep.Containers != 3 {
		t.Errorf("Reap found %+v, %v", rep, err)
	}
	if left := containers(); len(left) != 1 {
		t.Errorf("containers left, besides the living one: %v", left)
	}
	if left, _ := os.ReadDir(root); len(left) > 0 {
		t.Errorf("files left: %v", left)
	}
	if rep, err := reaper.Reap(t.Context()); err != nil || len(rep.Instances) != 0 {
		t.Errorf("a second Reap found %+v, %v", rep, err)
	}
	if _, err := live.conn.Call(t.Context(), "echo", []byte(`{}`)); err != nil {
		t.Errorf("the living one: %v", err)
	}
}

// An engine that goes away takes its sandboxes with it, and is of use again when
// it is back; nothing is left.
func TestEngineRestarts(t *testing.T) {
	for _, args := range [][]string{nil, {"--live-restore"}} {
		t.Run(strings.Join(args, ""), func(t *testing.T) {
			e := &dockertest.Engine{Dir: t.TempDir(), Args: args}
			if err := e.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { e.Stop() }()
			if err := dockertest.Image(e.Host(), testImage, serverPath); err != nil {
				t.Fatal(err)
			}
			b, err := docker.New(docker.Config{Run: t.TempDir(), Host: e.Host()})
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			var all []*peer
			for n := range 3 {
				p := begin(t, b.Create, spec(sandboxtest.Echo))
				if n == 0 {
					if err := p.inst.(sandbox.Freezer).Freeze(); err != nil {
						t.Fatal(err)
					}
				}
				all = append(all, p)
			}
			e.Stop()
			for _, p := range all {
				select {
				case <-p.conn.Done():
				case <-time.After(10 * time.Second):
					t.Fatal("the end was not seen")
				}
				if _, err := p.conn.Call(t.Context(), "echo", []byte(`{}`)); err == nil {
					t.Error("a lost sandbox answers")
				}
			}
			var closing sync.WaitGroup
			for _, p := range all {
				closing.Go(func() {
					_ = p.conn.Close()
					if err := p.inst.Close(); err != nil && !strings.Contains(err.Error(), "is left for now") {
						t.Error(err)
					}
					if exit := p.inst.Usage().Exit; exit == "" {
						t.Error("it is not said how it ended")
					}
				})
			}
			closing.Wait()
			if _, err := b.Create(t.Context(), nextID(), spec(sandboxtest.Echo), nil); err == nil || !strings.Contains(err.Error(), "cannot be reached") {
				t.Errorf("without an engine: %v", err)
			}
			if err := e.Start(); err != nil {
				t.Fatal(err)
			}
			inst, err := b.Create(t.Context(), nextID(), spec(sandboxtest.Echo), nil)
			if err != nil {
				t.Fatal(err)
			}
			c := wire.NewConn(inst.Transport())
			if _, err := c.Call(t.Context(), "echo", []byte(`{}`)); err != nil {
				t.Errorf("after the restart: %v", err)
			}
			_ = c.Close()
			if err := inst.Close(); err != nil {
				t.Error(err)
			}
			t.Setenv("DOCKER_HOST", e.Host())
			for deadline := time.Now().Add(20 * time.Second); len(containers()) > 0; <-time.After(50 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("containers left: %v", containers())
				}
			}
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
