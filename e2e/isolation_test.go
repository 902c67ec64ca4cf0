package e2e_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A listener answers every connection with its name.
func listener(t *testing.T, name string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte(name))
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// What a probe finds from inside a sandbox, through the whole of SpecBox.
func TestIsolation(t *testing.T) {
	shared, secret := t.TempDir(), filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("of the host"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(shared, "file"), []byte("to be seen"), 0o644); err != nil {
		t.Fatal(err)
	}
	allowed, other := listener(t, "allowed"), listener(t, "other")
	probe := with(bad(), object{"mounts": []string{shared}, "memory": "128MiB", "pids": 40, "cpus": 0.5, "env": object{"OWN": "mine"}})
	x := serve(t, object{
		"probe": probe,
		"list":  with(bad(), object{"network": []string{"localhost:" + allowed}}),
		"all":   with(bad(), object{"network": "all"}),
		"other": with(bad(), object{"env": object{"SECRET": "of-the-other"}}),
	})
	x.filled(t, "probe", "list", "all", "other")
	c := connect(t, x.url, "{}")
	c.call(t, "other__echo", "{}")
	refused := func(tool, args, part string) {
		t.Helper()
		if got, err := c.try(t.Context(), tool, args); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%s %s: got %.200q, %v", tool, args, got, err)
		}
	}
	dial := func(host, port string) string {
		return `{"address":` + strconv.Quote(net.JoinHostPort(host, port)) + `}`
	}

	t.Run("network", func(t *testing.T) {
		refused("probe__dial", dial("127.0.0.1", allowed), "refused")
		refused("probe__dial", dial("192.0.2.1", "80"), "unreachable")
		refused("probe__lookup", `{"host":"example.org"}`, "")
		if got := c.call(t, "list__dial", dial("localhost", allowed)); got != "connected: allowed" {
			t.Errorf("an allowed host: %s", got)
		}
		refused("list__dial", dial("localhost", other), "refused")
		refused("list__dial", dial("127.0.0.1", other), "refused")
		began := time.Now()
		refused("list__lookup", `{"host":"example.org"}`, "")
		if d := time.Since(began); d > 5*time.Second {
			t.Errorf("another name failed after %v", d)
		}
		if got := c.call(t, "all__dial", dial("127.0.0.1", other)); got != "connected: other" {
			t.Errorf("with network all: %s", got)
		}
	})

	t.Run("processes", func(t *testing.T) {
		var seen map[string]string
		decode(t, c.call(t, "probe__processes", "{}"), &seen)
		for pid, line := range seen {
			if !strings.Contains(line, "nasty") && !strings.Contains(line, "bwrap") {
				t.Errorf("it sees process %s: %s", pid, line)
			}
		}
		if len(seen) > 2 {
			t.Errorf("it sees %v", seen)
		}
		refused("probe__read", fmt.Sprintf(`{"path":"/proc/%d/environ"}`, os.Getpid()), "no such file")
	})

	t.Run("files", func(t *testing.T) {
		if got := c.call(t, "probe__read", `{"path":`+strconv.Quote(shared+"/file")+`}`); got != "to be seen" {
			t.Errorf("a mount: %q", got)
		}
		refused("probe__write", `{"path":`+strconv.Quote(shared+"/file")+`,"text":"x"}`, "read-only")
		refused("probe__write", `{"path":"/usr/x","text":"x"}`, "")
		refused("probe__read", `{"path":`+strconv.Quote(secret)+`}`, "no such file")
		refused("probe__read", `{"path":"/etc/shadow"}`, "no such file")
		refused("probe__dir", `{"path":"/root"}`, "")
		refused("probe__write", `{"path":"/proc/sys/kernel/hostname","text":"x"}`, "")
		var names []string
		decode(t, c.call(t, "probe__dir", `{"path":"/tmp"}`), &names)
		for _, name := range names { // the way to the mounts and the program
			if !strings.Contains(shared, name) && !strings.Contains(nasty, name) {
				t.Errorf("/tmp of the host is seen: %q", names)
			}
		}
		c.call(t, "probe__write", `{"path":"/tmp/own","text":"x"}`)
		if _, err := os.Stat("/tmp/own"); err == nil {
			t.Error("its /tmp is the host's")
		}
	})

	t.Run("identity", func(t *testing.T) {
		var status map[string]string
		decode(t, c.call(t, "probe__status", "{}"), &status)
		for key, value := range status {
			if strings.HasPrefix(key, "Cap") && strings.Trim(value, "0") != "" {
				t.Errorf("it has capabilities: %s %s", key, value)
			}
		}
		if status["NoNewPrivs"] != "1" || status["Seccomp"] != "2" || strings.HasPrefix(status["Uid"], "0") {
			t.Errorf("got %v", status)
		}
	})

	t.Run("secrets", func(t *testing.T) {
		var env map[string]string
		decode(t, c.call(t, "probe__env", "{}"), &env)
		if env["OWN"] != "mine" {
			t.Errorf("its own variable: %v", env)
		}
		for name := range env {
			if !slices.Contains([]string{"OWN", "HOME", "PATH", "TMPDIR", "LANG", "PWD"}, name) && !strings.HasPrefix(name, "SPECBOX_") {
				t.Errorf("it sees %s", name)
			}
		}
	})

	t.Run("limits", func(t *testing.T) {
		var n, ms int
		decode(t, c.call(t, "probe__fork", `{"n":100}`), &n)
		if n >= 40 {
			t.Errorf("with pids 40 it has %d children", n)
		}
		began := time.Now()
		decode(t, c.call(t, "probe__burn", `{"ms":1000}`), &ms)
		if d := time.Since(began).Milliseconds(); float64(ms) > 0.8*float64(d) {
			t.Errorf("with half a core it had %d ms of %d", ms, d)
		}
		_, err := c.try(t.Context(), "probe__alloc", `{"bytes":268435456}`)
		if err == nil || !strings.Contains(err.Error(), "memory") {
			t.Errorf("with 128 MiB, 256: %v", err)
		}
		if got := c.call(t, "probe__echo", "{}"); got != "{}" {
			t.Errorf("after that: %s", got)
		}
	})
}
