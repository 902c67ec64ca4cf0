package launcher_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/launcher"
)

// recognise reads a line as a configuration would have it.
func recognise(t *testing.T, line string) launcher.Package {
	t.Helper()
	words := strings.Fields(line)
	p, ok := launcher.Recognise(words[0], words[1:])
	if !ok {
		t.Fatalf("%s is not recognised", line)
	}
	return p
}

// answers starts a program and returns its reply to a first message.
func answers(t *testing.T, p *launcher.Program) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.Argv[0], p.Argv[1:]...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + t.TempDir()}
	for k, v := range p.Env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.Dir = "/"
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(in, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Errorf("%q: %v", p.Argv, err)
	}
	in.Close()
	cancel()
	_ = cmd.Wait() // killed
	return line
}

// These install real packages from the registries.
func TestRealPackages(t *testing.T) {
	store := launcher.New(filepath.Join(t.TempDir(), "packages"))
	t.Run("install", func(t *testing.T) {
		for _, tt := range []struct{ line, version, first string }{
			{"npx -y @modelcontextprotocol/server-everything@2026.8.31 stdio", "2026.8.31", "node"},
			{"npx -y mcp-time-linux-x64@v0.4.0", "0.4.0", "mcp-time"},
			{"uvx mcp-server-time@2026.10.19 --local-timezone=UTC", "2026.10.19", "python"},
		} {
			t.Run(strings.Fields(tt.line)[0]+" "+tt.version, func(t *testing.T) {
				t.Parallel()
				p := recognise(t, tt.line)
				if _, err := store.Installed(p); !errors.Is(err, launcher.ErrNotInstalled) {
					t.Fatalf("before: %v", err)
				}
				var said []string
				prog, err := store.Install(t.Context(), p, func(p launcher.Progress) { said = append(said, p.Message) })
				if err != nil {
					t.Fatal(err)
				}
				if strings.TrimPrefix(prog.Version, "v") != tt.version || filepath.Base(prog.Argv[0]) != tt.first || !filepath.IsAbs(prog.Argv[0]) {
					t.Errorf("%s %q", prog.Version, prog.Argv)
				}
				if last := prog.Argv[len(prog.Argv)-1]; len(p.Args) > 0 && last != p.Args[len(p.Args)-1] {
					t.Errorf("arguments: %q", prog.Argv)
				}
				if len(said) < 2 || said[len(said)-1] != "installed "+prog.Version {
					t.Errorf("progress: %q", said)
				}
				if line := answers(t, prog); !strings.Contains(line, `"serverInfo"`) {
					t.Errorf("answer: %s", line)
				}
				again, err := store.Installed(p)
				if err != nil || strings.Join(again.Argv, " ") != strings.Join(prog.Argv, " ") {
					t.Errorf("again: %v %v", again, err)
				}
			})
		}
	})
	entries, err := store.List()
	if err != nil || len(entries) != 3 || entries[0].Name != "@modelcontextprotocol/server-everything" || entries[0].Asked != "2026.8.31" || entries[0].Size < 1<<20 {
		t.Errorf("list: %+v %v", entries, err)
	}
	_, err = store.Install(t.Context(), recognise(t, "npx -y @modelcontextprotocol/server-everything@0.0.999"), nil)
	if err == nil || !strings.Contains(err.Error(), "no such version") || !strings.Contains(err.Error(), "server-everything@0.0.999") {
		t.Errorf("a version that is not there: %v", err)
	}
}

// fakeNPM puts a shell script in npm's place. It runs in the version's folder;
// make VERSION makes the package there.
func fakeNPM(t *testing.T, script string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	const install = `#!/bin/sh
for spec; do :; done
name=${spec%@*}; [ -n "$name" ] || name=$spec
make() {
  mkdir -p "node_modules/$name"
  printf '{"version": "%s", "bin": "run.js"}' "$1" >"node_modules/$name/package.json"
  echo "console.log(1)" >"node_modules/$name/run.js"
  echo "{\"v\": \"$1\"}" >package-lock.json
}
`
	write(t, filepath.Join(dir, "npm"), install+strings.ReplaceAll(script, "$DIR", dir))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return dir
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// versions are the folders of a store's only package.
func versions(t *testing.T, store string) []string {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(store, "*", "v-*"))
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

// However many want a package, of one process or of several, it is installed
// once. Stores are as good as processes here: the lock belongs to open files.
func TestInstalledOnce(t *testing.T) {
	dir := fakeNPM(t, `echo x >>$DIR/runs; sleep 0.2; make 1.0.0`)
	folder := t.TempDir()
	p := recognise(t, "npx -y pkg a")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			prog, err := launcher.New(folder).Install(t.Context(), p, nil)
			if err != nil || prog.Version != "1.0.0" {
				t.Errorf("%v %v", prog, err)
			}
		})
	}
	all.Wait()
	runs, err := os.ReadFile(filepath.Join(dir, "runs"))
	if err != nil || string(runs) != "x\n" || len(versions(t, folder)) != 1 {
		t.Errorf("runs %q %v, versions %v", runs, err, versions(t, folder))
	}
}

// A failure leaves nothing, says what the installer said, and shows no login.
func TestFailureLeavesNothing(t *testing.T) {
	for words, want := range map[string]string{
		"npm error code E404":                            "there is no such package",
		"npm error code ETARGET":                         "there is no such version",
		"npm error network request failed ENOTFOUND":     "the registry cannot be reached",
		"npm error code ENOSPC":                          "the disk is full",
		"npm error code E401 https://u:pw@r.example.com": "check the login",
		"something else":                                 "something else",
	} {
		fakeNPM(t, fmt.Sprintf("mkdir node_modules; echo '%s' >&2; exit 7", words))
		folder := t.TempDir()
		_, err := launcher.New(folder).Install(t.Context(), recognise(t, "npx pkg@1"), nil)
		text := fmt.Sprint(err)
		if !strings.Contains(text, want) || !strings.Contains(text, "install npm:pkg@1") || !strings.Contains(text, "exit status 7") || strings.Contains(text, "u:pw") {
			t.Errorf("%s: %s", words, text)
		}
		if v := versions(t, folder); len(v) != 0 {
			t.Errorf("left: %v", v)
		}
	}
}

// A cancelled installation ends with all its processes, and leaves nothing. Its
// grandchild holds a pipe, which closes when it is gone.
func TestCancelledInstallation(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "alive")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	fakeNPM(t, `(exec 5>`+fifo+`; echo ready >&5; exec sleep 300) & wait`)
	folder := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := launcher.New(folder).Install(ctx, recognise(t, "npx pkg"), nil)
		done <- err
	}()
	alive, err := os.Open(fifo) // when the grandchild has opened it too
	if err != nil {
		t.Fatal(err)
	}
	defer alive.Close()
	r := bufio.NewReader(alive)
	if line, err := r.ReadString('\n'); line != "ready\n" {
		t.Fatal(line, err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("error: %v", err)
	}
	if err := alive.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.ReadString('\n'); err != io.EOF {
		t.Errorf("the grandchild lives: %v", err)
	}
	if v := versions(t, folder); len(v) != 0 {
		t.Errorf("left: %v", v)
	}
}

// Whoever waits for another's installation can be called off.
func TestCancelledWait(t *testing.T) {
	dir := fakeNPM(t, `while [ ! -e $DIR/go ]; do sleep 0.05; done; make 1.0.0`)
	folder := t.TempDir()
	p := recognise(t, "npx pkg")
	first := make(chan error, 1)
	began := make(chan struct{}, 1)
	go func() {
		_, err := launcher.New(folder).Install(t.Context(), p, func(p launcher.Progress) {
			if p.Message == "asking the registry" {
				began <- struct{}{}
			}
		})
		first <- err
	}()
	<-began
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	_, err := launcher.New(folder).Install(ctx, p, func(p launcher.Progress) {
		if strings.Contains(p.Message, "waiting") {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("waiter: %v", err)
	}
	write(t, filepath.Join(dir, "go"), "")
	if err := <-first; err != nil {
		t.Errorf("installer: %v", err)
	}
}

// What a killed installation left is never run, and the next one removes it.
func TestCrashLeavesNothingHalfInstalled(t *testing.T) {
	fakeNPM(t, `make 1.0.0`)
	folder := t.TempDir()
	store := launcher.New(folder)
	p := recognise(t, "npx pkg")
	if _, err := store.Install(t.Context(), p, nil); err != nil {
		t.Fatal(err)
	}
	base := filepath.Dir(versions(t, folder)[0])
	write(t, filepath.Join(base, "v-half", "node_modules", "pkg", "package.json"), "{}")
	if err := os.Symlink("v-half", filepath.Join(base, "current.next")); err != nil {
		t.Fatal(err)
	}
	if prog, err := store.Installed(p); err != nil || prog.Version != "1.0.0" {
		t.Errorf("%v %v", prog, err)
	}
	if prog, err := store.Update(t.Context(), p, nil); err != nil || prog.Version != "1.0.0" {
		t.Errorf("%v %v", prog, err)
	}
	if _, err := os.Stat(filepath.Join(base, "v-half")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the half is there: %v", err)
	}
	fakeNPM(t, `make 2.0.0`)
	if prog, err := store.Update(t.Context(), p, nil); err != nil || prog.Version != "2.0.0" {
		t.Errorf("over the link of a killed one: %v %v", prog, err)
	}
}

// An update switches to a new folder, keeps the one before for those who run
// it, removes older ones, and does nothing where nothing is new.
func TestUpdate(t *testing.T) {
	dir := fakeNPM(t, `make $(cat $DIR/newest)`)
	folder := t.TempDir()
	store := launcher.New(folder)
	p := recognise(t, "npx pkg")
	var programs []string
	for _, v := range []string{"1.0.0", "2.0.0", "2.0.0", "3.0.0"} {
		write(t, filepath.Join(dir, "newest"), v)
		prog, err := store.Update(t.Context(), p, nil)
		if err != nil || prog.Version != v {
			t.Fatalf("%s: %v %v", v, prog, err)
		}
		programs = append(programs, prog.Argv[1])
	}
	if programs[1] != programs[2] {
		t.Error("an update to the same made a new folder")
	}
	for i, there := range []bool{false, true, true, true} {
		if _, err := os.Stat(programs[i]); (err == nil) != there {
			t.Errorf("program %d: %v", i, err)
		}
	}
	if now, err := store.Installed(p); err != nil || now.Argv[1] != programs[3] {
		t.Errorf("%v %v", now, err)
	}
	write(t, filepath.Join(dir, "npm"), "#!/bin/sh\nexit 1")
	if _, err := store.Update(t.Context(), p, nil); err == nil {
		t.Error("no error")
	}
	if now, err := store.Installed(p); err != nil || now.Version != "3.0.0" {
		t.Errorf("after a failed update: %v %v", now, err)
	}
}

// Installers see none of SpecBox's secrets, and packages run no scripts unless
// the configuration says so.
func TestInstallersAreKeptShort(t *testing.T) {
	dir := fakeNPM(t, `env >$DIR/env; echo "$@" >>$DIR/args; make 1.0.0; echo '{"packages": {"": {}, "node_modules/pkg": {"hasInstallScript": true}}}' >package-lock.json`)
	t.Setenv("GITHUB_TOKEN", "hunter2")
	t.Setenv("npm_config_cache", "/tmp/cache")
	store := launcher.New(t.TempDir())
	prog, err := store.Install(t.Context(), recognise(t, "npx pkg"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if notes := strings.Join(prog.Notes, "\n"); !strings.Contains(notes, "install scripts of pkg were not run") {
		t.Errorf("notes: %s", notes)
	}
	env, _ := os.ReadFile(filepath.Join(dir, "env"))
	if strings.Contains(string(env), "hunter2") || !strings.Contains(string(env), "npm_config_cache=/tmp/cache") {
		t.Errorf("environment: %s", env)
	}
	s := &config.Server{Name: "s", Command: "npx", Args: []string{"pkg"}, InstallScripts: true}
	if _, err := launcher.Resolve(s, store); !errors.Is(err, launcher.ErrNotInstalled) {
		t.Errorf("with scripts it is another installation: %v", err)
	}
	p, _ := launcher.For(s)
	if prog, err = store.Install(t.Context(), p, nil); err != nil || len(prog.Notes) != 0 {
		t.Errorf("%v %v", prog, err)
	}
	args, _ := os.ReadFile(filepath.Join(dir, "args"))
	lines := strings.Split(string(args), "\n")
	if !strings.Contains(lines[0], "--ignore-scripts ") || !strings.Contains(lines[1], "--ignore-scripts=false") {
		t.Errorf("arguments: %q", lines)
	}
}

func TestMissingInstaller(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := launcher.New(t.TempDir()).Install(t.Context(), recognise(t, "npx pkg"), nil)
	if err == nil || !strings.Contains(err.Error(), "npm is not installed: apt-get install") {
		t.Error(err)
	}
	_, err = launcher.New(t.TempDir()).Install(t.Context(), recognise(t, "uvx pkg"), nil)
	if err == nil || !strings.Contains(err.Error(), "there is no python3 here: apt-get install") {
		t.Error(err)
	}
}

func TestContainersAreNotInstalled(t *testing.T) {
	store := launcher.New(t.TempDir())
	p := recognise(t, "docker run -i img")
	_, a := store.Install(t.Context(), p, nil)
	_, b := store.Update(t.Context(), p, nil)
	_, c := store.Installed(p)
	for _, err := range []error{a, b, c} {
		if !errors.Is(err, launcher.ErrContainer) {
			t.Error(err)
		}
	}
}
