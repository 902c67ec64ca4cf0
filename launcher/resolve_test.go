package launcher_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/launcher"
)

// resolve resolves the one server of some YAML, in which {} is dir.
func resolve(t *testing.T, dir, text string, environment ...string) (*launcher.Program, error) {
	t.Helper()
	c, faults := config.Parse("/srv/specbox.yaml", []byte("servers: {s: "+strings.ReplaceAll(text, "{}", dir)+"}"), func(name string) (string, bool) {
		for _, kv := range environment {
			if k, v, _ := strings.Cut(kv, "="); k == name {
				return v, true
			}
		}
		return "", false
	})
	if c == nil || len(c.Servers) != 1 {
		t.Fatal(faults)
	}
	return launcher.Resolve(c.Servers[0], launcher.New(filepath.Join(dir, "packages")))
}

// mounted returns where a program's mounts are, relative to dir. All of them
// must be read-only.
func mounted(t *testing.T, p *launcher.Program, dir string) string {
	t.Helper()
	var paths []string
	for _, m := range p.Mounts {
		if m.Write || m.At != "" {
			t.Errorf("mount %v", m)
		}
		rel, err := filepath.Rel(dir, m.Path)
		if err != nil || strings.HasPrefix(rel, "..") {
			rel = m.Path
		}
		paths = append(paths, rel)
	}
	slices.Sort(paths)
	return strings.Join(paths, " ")
}

// project makes a folder with things that servers name.
func project(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{
		"app/package.json": "{}", "app/dist/index.js": "", "app/config.json": "{}", "loose/server.py": "", "data/a.txt": "", "more/b.txt": "",
		"home/notes/n.md": "", "home/server.py": "", "home/.ssh/id": "", "tools/go.mod": "", "tools/bin/server": "#!/bin/sh\n", "tools/notexec": "",
		"py/pyproject.toml": "", "py/.venv/pyvenv.cfg": "",
	} {
		write(t, filepath.Join(dir, path), text)
	}
	if err := os.MkdirAll(filepath.Join(dir, "py/.venv/bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/bin/sh", filepath.Join(dir, "py/.venv/bin/python")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "tools/notexec"), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestMountsOfWhatALineNames(t *testing.T) {
	dir := project(t)
	t.Setenv("HOME", filepath.Join(dir, "home"))
	socket, err := net.Listen("unix", filepath.Join(dir, "data", "s.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	for _, tt := range []struct{ text, want, notes string }{
		{"{command: sh}", "", ""},
		{"{command: sh, args: ['{}/app/dist/index.js']}", "app", "the folder around args[0] {}/app/dist/index.js is mounted read-only"},
		{"{command: sh, args: ['{}/loose/server.py', '{}/data', --root, '{}/more/b.txt']}", "data loose more/b.txt",
			`args[1] {}/data is mounted read-only; add mounts: ["{}/data:rw"] to let the server write`},
		{"{command: sh, args: ['--root={}/data', '-c={}/app/config.json', 'x={}/more']}", "app/config.json data", "args[0] {}/data is"},
		{"{command: sh, env: {DATA: '{}/data', PATH: '/usr/bin:/bin', HOME: '{}/more'}}", "data", `what env DATA names is mounted read-only; add mounts: ["PATH:rw"]`},
		{"{command: sh, dir: '{}/app/dist', args: [index.js]}", "app", ""},
		{"{command: sh, dir: '{}/data'}", "data", "dir {}/data is mounted read-only"},
		{"{command: sh, args: ['{}/data'], mounts: ['{}/data:rw']}", "", ""},
		{"{command: sh, args: ['{}/data/a.txt'], mounts: ['{}/data:rw']}", "", ""},
		{"{command: sh, args: ['{}/data/a.txt'], mounts: ['{}/more:{}/data']}", "", ""},
		{"{command: sh, args: ['{}/data', '{}/data/a.txt', '{}/data']}", "data", ""},
		{"{command: sh, args: ['{}/data/s.sock', '{}/nothing', /dev/null, /proc/self, /usr/share, relative]}", "", ""},
		{"{command: sh, args: ['{}/home', /, /etc, /tmp, '{}']}", "", "args[0] {}/home is not mounted by itself, because it holds more than one server's business"},
		{"{command: sh, args: ['{}/home/.ssh', '{}/home/.ssh/id']}", "", "it holds keys"},
		{"{command: sh, args: ['{}/home/notes', '{}/home/server.py']}", "home/notes home/server.py", ""},
		{"{command: sh, args: ['${D}/data']}", "data", `args[0] ${D}/data is mounted read-only; add mounts: ["${D}/data:rw"]`},
		{"{command: '{}/tools/bin/server'}", "tools/bin/server", ""},
		{"{command: '{}/py/.venv/bin/python', args: [-m, x]}", "py", ""},
		{"{command: sh, args: ['{}/data'], isolation: none}", "", ""},
		{"{command: cmd, args: [/c, sh, '{}/data']}", "data", "args[2] {}/data"},
	} {
		p, err := resolve(t, dir, tt.text, "D="+dir)
		if err != nil {
			t.Errorf("%s: %v", tt.text, err)
			continue
		}
		notes := strings.Join(p.Notes, "\n")
		if got := mounted(t, p, dir); got != tt.want || !strings.Contains(notes, strings.ReplaceAll(tt.notes, "{}", dir)) {
			t.Errorf("%s:\n got %s\nwant %s\n%s", tt.text, got, tt.want, notes)
		}
		if strings.Contains(tt.text, "${D}") && strings.Contains(notes, dir) {
			t.Errorf("what came from a variable is printed: %s", notes)
		}
		if !filepath.IsAbs(p.Argv[0]) {
			t.Errorf("%s: %q", tt.text, p.Argv)
		}
	}
}

func TestWhatCannotRunSaysWhy(t *testing.T) {
	dir := project(t)
	for text, want := range map[string]string{
		"{command: no-such-program-here}":              "command no-such-program-here is not in PATH: install it",
		"{command: '{}/nothing/deno'}":                 "is not there: see docs.deno.com",
		"{command: '{}/data'}":                         "is a folder",
		"{command: '{}/tools/notexec'}":                "chmod +x",
		"{command: sh, env: {PATH: '{}/data'}}":        "not in the PATH of its env",
		"{command: '${S}'}":                            "command ${S} is not in PATH",
		"{command: npx, args: [-y, pkg]}":              "specbox servers update",
		"{command: docker, args: [run, --what, x, i]}": "--what, which is not known here",
	} {
		_, err := resolve(t, dir, text, "S=hunter2")
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

func TestRunsAsWrittenWithANote(t *testing.T) {
	dir := project(t)
	fakeNPM(t, "")
	write(t, filepath.Join(dir, "bin", "npx"), "#!/bin/sh\n")
	t.Setenv("PATH", filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
	p, err := resolve(t, dir, "{command: npx, args: [-y, 'github:user/repo']}")
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(p.Argv[1:], " "); got != "-y github:user/repo" || !strings.Contains(fmt.Sprint(p.Notes), "does not come from the registry") {
		t.Errorf("%s %v", got, p.Notes)
	}
}

// A pyenv shim is seen through.
func TestShims(t *testing.T) {
	dir := project(t)
	write(t, filepath.Join(dir, "pyenv/shims/python3"), "#!/bin/sh\n")
	write(t, filepath.Join(dir, "pyenv/versions/3.12.1/bin/python3"), "#!/bin/sh\n")
	write(t, filepath.Join(dir, "pyenv/version"), "system\n3.12.1\n")
	t.Setenv("PYENV_VERSION", "")
	t.Setenv("PATH", filepath.Join(dir, "pyenv/shims")+":"+os.Getenv("PATH"))
	p, err := resolve(t, dir, "{command: python3, args: [-V]}")
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(dir, "pyenv/versions/3.12.1/bin/python3"); p.Argv[0] != want || mounted(t, p, dir) != "pyenv/versions/3.12.1" {
		t.Errorf("%q %s", p.Argv, mounted(t, p, dir))
	}
}

// What is known of a package holds where the configuration is silent.
func TestKnownPackages(t *testing.T) {
	fakeNPM(t, "make 1.0.0; printf 'console.log(process.env.MEMORY_FILE_PATH, process.argv[2])' >node_modules/$name/run.js")
	dir := project(t)
	const line = "command: npx, args: [-y, '@modelcontextprotocol/server-memory', arg]"
	words := strings.Fields("npx -y @modelcontextprotocol/server-memory arg")
	pkg, _ := launcher.Recognise(words[0], words[1:])
	if _, err := launcher.New(filepath.Join(dir, "packages")).Install(t.Context(), pkg, nil); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		text, prints string
		keep         bool
	}{
		{"{" + line + "}", "/h o/memory.jsonl arg", true},
		{"{" + line + ", state: private}", "/h o/memory.jsonl arg", false},
		{"{" + line + ", env: {MEMORY_FILE_PATH: /m}}", "/m arg", true},
	} {
		p, err := resolve(t, dir, tt.text)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), p.Argv[0], p.Argv[1:]...)
		cmd.Env = []string{"HOME=/h o", "MEMORY_FILE_PATH=/m"}
		out, err := cmd.CombinedOutput()
		if got := strings.TrimSpace(string(out)); got != tt.prints || p.KeepState != tt.keep || p.Version != "1.0.0" {
			t.Errorf("%s: %s %v, keep %v", tt.text, got, err, p.KeepState)
		}
		if tt.keep != strings.Contains(fmt.Sprint(p.Notes), "HOME is kept") {
			t.Errorf("notes: %q", p.Notes)
		}
	}
}

// Which program of a package runs is decided as npx does.
func TestWhichProgram(t *testing.T) {
	for _, tt := range []struct{ bin, line, want string }{
		{`"run.js"`, "npx pkg", "run.js"},
		{`{"other": "run.js"}`, "npx pkg", "run.js"},
		{`{"a": "run.js", "b": "./run.js"}`, "npx pkg", "run.js"},
		{`{"a": "a.js", "pkg": "run.js"}`, "npx pkg", "run.js"},
		{`{"a": "run.js", "b": "b.js"}`, "npx -p pkg a", "run.js"},
		{`{"a": "run.js", "b": "b.js"}`, "npx pkg", "it has several programs: a, b: write npx -p pkg PROGRAM"},
		{`{"a": "run.js"}`, "npx -p pkg c", `it has no program "c", but a`},
		{`{}`, "npx pkg", "it has no program to run"},
		{`{"pkg": "../../../../etc/passwd"}`, "npx pkg", "it has no program to run"},
		{`"missing.js"`, "npx pkg", "its program is missing"},
	} {
		fakeNPM(t, `make 1; printf '%s' '{"version": "1", "bin": `+tt.bin+`}' >node_modules/$name/package.json; touch node_modules/$name/b.js`)
		p, err := launcher.New(t.TempDir()).Install(t.Context(), recognise(t, tt.line), nil)
		got := ""
		if err == nil {
			got = filepath.Base(p.Argv[len(p.Argv)-1])
		} else {
			got = err.Error()
		}
		if got != tt.want && (err == nil || !strings.Contains(got, tt.want)) {
			t.Errorf("%s %s: %s, want %s", tt.line, tt.bin, got, tt.want)
		}
	}
}
