package servers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/specbox/specbox/servers"
	"github.com/specbox/specbox/wire"
)

// installed returns the folder of the installed servers.
func installed(t *testing.T, names ...string) string {
	t.Helper()
	dir, err := servers.Dir()
	if err != nil {
		t.Fatal(err)
	}
	if err := servers.Install(t.Context(), dir, nil, names...); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A process is a server that runs without isolation.
type process struct {
	*wire.Conn
	cmd   *exec.Cmd
	stdin func() error

	mu    sync.Mutex
	noise []string
}

func start(t *testing.T, e servers.Entry) *process {
	t.Helper()
	home := t.TempDir()
	p := &process{cmd: exec.Command(e.Command, e.Args...)}
	p.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + home}
	for k, v := range e.Env {
		p.cmd.Env = append(p.cmd.Env, k+"="+v)
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.stdin = in.Close
	p.Conn = wire.NewConn(wire.NewLines(out, in, in.Close, 0, func(line []byte) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.noise = append(p.noise, string(line))
	}))
	t.Cleanup(func() {
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		_ = p.cmd.Wait() // closes the pipe, should a child still hold its other end
		<-p.Done()
	})
	return p
}

func (p *process) call(t *testing.T, method, params string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := p.Call(ctx, method, []byte(params))
	if err == nil {
		err = r.Err()
	}
	if err != nil {
		t.Fatalf("%s: %v", method, err)
	}
	return r.Result
}

func (p *process) handshake(t *testing.T) {
	t.Helper()
	p.call(t, "initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"servers_test","version":"1"}}`)
	if err := p.Notify("notifications/initialized", nil); err != nil {
		t.Fatal(err)
	}
}

// text joins the text blocks of a result.
func text(result []byte) string {
	var r struct {
		Content []struct{ Text string }
	}
	_ = json.Unmarshal(result, &r)
	var b strings.Builder
	for _, c := range r.Content {
		b.WriteString(c.Text)
	}
	return b.String()
}

func TestEachAnswersItsCalls(t *testing.T) {
	dir := installed(t)
	place, err := servers.Lay(dir, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Run("all", func(t *testing.T) {
		for _, s := range servers.All() {
			t.Run(s.Name, func(t *testing.T) {
				t.Parallel()
				began := time.Now()
				p := start(t, place.Entry(s))
				p.handshake(t)
				list := p.call(t, "tools/list", "{}")
				t.Logf("%v to tools/list, %v on a quiet machine", time.Since(began).Round(time.Millisecond), s.Cold())
				for _, c := range s.Calls {
					if !strings.Contains(string(list), fmt.Sprintf("%q", c.Tool)) {
						t.Errorf("tool %s is not listed", c.Tool)
					}
					params := fmt.Sprintf(`{"name":%q,"arguments":%s}`, c.Tool, place.Arguments(s, c))
					if got := text(p.call(t, "tools/call", params)); !strings.Contains(got, c.Answer) {
						t.Errorf("%s answered %q, want %q in it", c.Tool, got, c.Answer)
					}
				}
				junk := slices.ContainsFunc(s.Manners, func(m string) bool { return strings.Contains(m, "junk") })
				p.mu.Lock()
				defer p.mu.Unlock()
				if (len(p.noise) > 0) != junk {
					t.Errorf("junk on stdout: %q, but the index says %v", p.noise, junk)
				}
			})
		}
	})
}

// The manners that the tests of SpecBox stand on hold for the installed versions.
func TestMannersHold(t *testing.T) {
	dir := installed(t, "cron", "cclsp", "everything")
	place, err := servers.Lay(dir, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		eof  bool // ends when its stdin does
	}{{"everything", true}, {"cclsp", false}, {"cron", false}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			all, err := servers.Select(tt.name)
			if err != nil {
				t.Fatal(err)
			}
			p := start(t, place.Entry(all[0]))
			p.handshake(t)
			if err := p.stdin(); err != nil {
				t.Fatal(err)
			}
			wait := time.Second
			if tt.eof {
				wait = 20 * time.Second
			}
			ended := false
			select {
			case <-p.Done():
				ended = true
			case <-time.After(wait):
			}
			if ended != tt.eof {
				t.Errorf("ended at EOF: %v, want %v", ended, tt.eof)
			}
		})
	}
}

func TestIndexIsComplete(t *testing.T) {
	languages, seen := map[string]int{}, map[string]bool{}
	for _, s := range servers.All() {
		languages[s.Language]++
		if seen[s.Name] {
			t.Errorf("%s: twice in the index", s.Name)
		}
		seen[s.Name] = true
		if len(s.Calls) == 0 || s.Version == "" || s.Cold() == 0 {
			t.Errorf("%s: incomplete: %+v", s.Name, s)
		}
		for _, c := range s.Calls {
			if !json.Valid(c.Arguments) || c.Answer == "" {
				t.Errorf("%s: incomplete call %+v", s.Name, c)
			}
		}
	}
	if len(seen) < 14 || len(languages) < 4 {
		t.Errorf("%d servers, languages %v: want at least 14 and 4", len(seen), languages)
	}
	if err := fs.WalkDir(os.DirFS("lock"), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && name != "." && !seen[name] {
			t.Errorf("lock/%s belongs to no server", name)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// A lock file pins by digest and names no host, so that every registry serves.
func TestLockFilesPinAndNameNoHost(t *testing.T) {
	packages := regexp.MustCompile(`"node_modules/[^"]+": \{`)
	integrity := regexp.MustCompile(`"integrity": "sha512-`)
	for _, s := range servers.All() {
		npm, err := os.ReadFile(filepath.Join("lock", s.Name, "package-lock.json"))
		if err == nil {
			if strings.Contains(string(npm), `"resolved"`) {
				t.Errorf("%s: the lock file names a host", s.Name)
			}
			if p, i := len(packages.FindAll(npm, -1)), len(integrity.FindAll(npm, -1)); p == 0 || p != i {
				t.Errorf("%s: %d packages, %d digests", s.Name, p, i)
			}
			continue
		}
		pip, err := os.ReadFile(filepath.Join("lock", s.Name, "requirements.txt"))
		if err != nil {
			t.Errorf("%s: no lock file", s.Name)
		}
		if strings.Contains(string(pip), "://") || !strings.Contains(string(pip), "--hash=sha256:") {
			t.Errorf("%s: requirements name a host, or no digest", s.Name)
		}
	}
}

func TestAHalfInstalledFolderIsInstalledAnew(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "gotime", "node_modules"), 0o755); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	fresh := 0
	var work sync.WaitGroup
	for range 3 { // at once: one of them installs
		work.Go(func() {
			err := servers.Install(t.Context(), dir, func(servers.Server, time.Duration) {
				mu.Lock()
				defer mu.Unlock()
				fresh++
			}, "gotime")
			if err != nil {
				t.Error(err)
			}
		})
	}
	work.Wait()
	if fresh != 1 {
		t.Errorf("installed %d times, want once", fresh)
	}
	if _, err := os.Stat(filepath.Join(dir, "gotime", "node_modules", "mcp-time-"+runtime.GOOS+"-x64", "bin", "mcp-time")); err != nil {
		t.Error(err)
	}
}

func TestInstallNamesWhatItCannotInstall(t *testing.T) {
	if err := servers.Install(t.Context(), t.TempDir(), nil, "nonesuch"); err == nil || !strings.Contains(err.Error(), `"nonesuch"`) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := servers.Install(ctx, t.TempDir(), nil, "gotime", "calculator")
	if err == nil || !strings.Contains(err.Error(), "install gotime") || !strings.Contains(err.Error(), "install calculator") {
		t.Errorf("got %v, want both named", err)
	}
}

func TestConfigIsAnMCPServersFile(t *testing.T) {
	all, err := servers.Select("memory")
	if err != nil {
		t.Fatal(err)
	}
	place := servers.Place{Installs: "/i", Fixtures: "/f", Data: "/d"}
	var got struct {
		MCPServers map[string]servers.Entry `json:"mcpServers"`
	}
	if err := json.Unmarshal(place.Config(all), &got); err != nil {
		t.Fatal(err)
	}
	e := got.MCPServers["memory"]
	if e.Command != "node" || e.Args[0] != "/i/memory/node_modules/@modelcontextprotocol/server-memory/dist/index.js" ||
		e.Env["MEMORY_FILE_PATH"] != "/d/memory.jsonl" {
		t.Errorf("got %+v", e)
	}
}
