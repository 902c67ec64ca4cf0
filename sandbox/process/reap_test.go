package process_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/sandbox/process"
	"github.com/specbox/specbox/wire"
)

// owner is a SpecBox that starts sandboxes, tells about them, and waits to be
// killed.
func owner(dir string) {
	var specs map[string]*sandbox.Spec
	if err := json.NewDecoder(os.Stdin).Decode(&specs); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	b, err := process.New(process.Config{Run: dir})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	if os.Getenv(stormVar) != "" {
		storm(b, specs)
	}
	for id, s := range specs {
		inst, err := b.Create(context.Background(), id, s, io.Discard)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		c := wire.NewConn(inst.Transport())
		if _, err := c.Call(context.Background(), "tools/call", []byte(`{"name":"daemon","arguments":{"Name":"quiet"}}`)); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	fmt.Println("ready")
	select {}
}

// storm starts sandboxes without end.
func storm(b *process.Backend, specs map[string]*sandbox.Spec) {
	fmt.Println("ready")
	for id, s := range specs {
		go func() {
			for n := 0; ; n++ {
				inst, err := b.Create(context.Background(), fmt.Sprintf("%s-%d", id, n), s, io.Discard)
				if err == nil && n%2 == 0 {
					_ = inst.Close()
				}
			}
		}()
	}
	select {}
}

// ownerOf starts an owner of these sandboxes in root and waits until it is
// ready.
func ownerOf(t *testing.T, root string, specs map[string]*sandbox.Spec, env ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	in, err := json.Marshal(specs)
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(self)
	c.Env = append(append(os.Environ(), ownerVar+"="+root), env...)
	c.Stdin = strings.NewReader(string(in))
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		_ = c.Process.Kill()
		_ = c.Wait()
		t.Fatalf("the owner says %q", line)
	}
	return c
}

// mix returns specs of every kind, of servers that do not stop when asked to.
func mix() map[string]*sandbox.Spec {
	specs := map[string]*sandbox.Spec{}
	for i, isolation := range []config.Isolation{config.Process, config.None, config.Process} {
		s := spec(isolation)
		s.Env = map[string]string{"PROBE_IGNORE": "1"}
		s.StopGrace = time.Millisecond
		if i == 2 {
			s.Network.Hosts = []string{"localhost:9"}
		}
		specs[fmt.Sprintf("k-%d", i)] = s
	}
	return specs
}

// SpecBox is killed while sandboxes are between all stages of their lives.
func TestNothingSurvivesKillInMidStart(t *testing.T) {
	for round := range 8 {
		root := filepath.Join(t.TempDir(), "run")
		c := ownerOf(t, root, mix(), stormVar+"=1")
		live, _ := os.ReadDir(root)
		<-time.After(time.Duration(5+17*round) * time.Millisecond)
		_ = c.Process.Kill()
		_ = c.Wait()
		if rep, err := process.Reap(root); err != nil || len(rep.Instances) != 1 {
			t.Errorf("Reap: %+v, %v", rep, err)
		}
		eventually(t, "no process of it", func() string {
			left := marked(live[0].Name())
			for _, d := range allProc() {
				if exe, _ := os.Readlink(d + "/exe"); strings.HasPrefix(exe, probePath) {
					left = append(left, d)
				}
			}
			return strings.Join(left, " ")
		})
		if left := cgroups(live[0].Name()); len(left) > 0 {
			t.Errorf("cgroups left: %v", left)
		}
		if left, _ := os.ReadDir(root); len(left) > 0 {
			t.Errorf("folders left: %v", left)
		}
	}
}

func TestNothingSurvivesKillOfSpecBox(t *testing.T) {
	const rounds = 3
	for round := range rounds {
		root := filepath.Join(t.TempDir(), "run")
		c := ownerOf(t, root, mix())
		live, _ := os.ReadDir(root)
		if rep, err := process.Reap(root); err != nil || len(rep.Instances) != 0 {
			t.Errorf("Reap took from a living instance: %+v, %v", rep, err)
		}
		if n := len(marked(live[0].Name())); n < 5 {
			t.Errorf("only %d processes with the marker are alive", n)
		}
		_ = c.Process.Kill()
		_ = c.Wait()
		// The kernel ends all but the orphan of the plain server.
		eventually(t, "most to die with it", func() string {
			if left := marked(live[0].Name()); len(left) > 1 {
				return strings.Join(left, " ")
			}
			return ""
		})
		rep, err := process.Reap(root)
		if err != nil {
			t.Errorf("Reap: %v", err)
		}
		if len(rep.Instances) != 1 || rep.Sandboxes != 3 {
			t.Errorf("round %d: Reap found %+v", round, rep)
		}
		eventually(t, "no process with the marker", func() string { return strings.Join(marked(live[0].Name()), " ") })
		if left := cgroups(live[0].Name()); len(left) > 0 {
			t.Errorf("cgroups left: %v", left)
		}
		if left, _ := os.ReadDir(root); len(left) > 0 {
			t.Errorf("folders left: %v", left)
		}
		if rep, err := process.Reap(root); err != nil || len(rep.Instances) != 0 {
			t.Errorf("a second Reap found %+v, %v", rep, err)
		}
	}
}

func TestReapOfNothing(t *testing.T) {
	if rep, err := process.Reap(filepath.Join(t.TempDir(), "none")); err != nil || rep.Sandboxes != 0 {
		t.Errorf("got %+v, %v", rep, err)
	}
}

// marked returns the processes of an instance, as their /proc folders.
func marked(instance string) []string {
	var out []string
	all, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, f := range all {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), "SPECBOX_SANDBOX="+instance) {
			out = append(out, filepath.Dir(f))
		}
	}
	return out
}

// cgroups returns those of an instance, wherever they are mounted.
func cgroups(instance string) []string {
	var out []string
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), "specbox-"+instance) {
			out = append(out, path)
		}
		return nil
	})
	return out
}

// eventually waits for what to be "".
func eventually(t *testing.T, what string, left func() string) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(5 * time.Second)
	for {
		l := left()
		if l == "" {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Errorf("wanted %s, still there: %s", what, l)
			return
		}
	}
}
