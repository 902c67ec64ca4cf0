package process

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/specbox/specbox/sandbox"
)

// A program is what a server's command runs, found on the host.
type program struct {
	path string   // inside: what is executed
	show []string // host paths to make visible at the same path
	dirs []string // inside: folders of the program and its interpreter, for PATH
}

// binNames are the folders whose neighbours belong to what is in them.
var binNames = []string{"bin", "sbin", "shims", "libexec"}

// broad folders are never shown whole because a program happens to be in one.
var broad = []string{"/", "/home", "/root", "/opt", "/var", "/etc", "/tmp", "/var/tmp", "/mnt", "/media", "/srv", "/run", "/dev", "/proc", "/sys", "/usr", "/usr/local"}

// maxHops bounds symbolic links and interpreters on the way to a program.
const maxHops = 40

// findProgram finds the program of argv[0] and what it needs to be seen.
// Visible tells which paths of the sandbox are seen anyway.
func findProgram(spec *sandbox.Spec, visible func(string) bool) (program, error) {
	name := spec.Argv[0]
	search, ok := spec.Env["PATH"]
	if !ok {
		search = os.Getenv("PATH")
	}
	f := finder{spec: spec, visible: visible, search: search}
	path := name
	if !strings.Contains(name, "/") {
		if path = f.look(name); path == "" {
			return program{}, fmt.Errorf("there is no program %q in PATH: install it, or give its full path", name)
		}
	} else if !filepath.IsAbs(name) {
		if !filepath.IsAbs(spec.Dir) {
			return program{}, fmt.Errorf("program %q is relative to a working directory, and none is configured: give its full path", name)
		}
		path = filepath.Join(spec.Dir, name)
	}
	if err := f.follow(path); err != nil {
		return program{}, err
	}
	f.out.path = path
	return f.out, nil
}

type finder struct {
	spec    *sandbox.Spec
	visible func(string) bool
	search  string // PATH
	hops    int
	out     program
}

// look finds a name in PATH on the host.
func (f *finder) look(name string) string {
	for _, dir := range filepath.SplitList(f.search) {
		p := filepath.Join(dir, name)
		if filepath.IsAbs(p) && runnable(p) == nil {
			return p
		}
	}
	return ""
}

func runnable(path string) error {
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("program %s does not exist: install it, or correct the command", path)
	case err != nil:
		return fmt.Errorf("program: %w", err)
	case st.IsDir():
		return fmt.Errorf("program %s is a folder: name the file to run", path)
	case st.Mode()&0o111 == 0:
		return fmt.Errorf("program %s is not executable: chmod +x it, or run it with its interpreter", path)
	}
	return nil
}

// follow makes path visible, each link on the way, and the interpreter of a
// script. Path is as the sandbox sees it.
func (f *finder) follow(path string) error {
	f.out.dirs = append(f.out.dirs, filepath.Dir(path))
	host := hostPath(f.spec, path)
	if err := runnable(host); err != nil {
		return err
	}
	for {
		if f.hops++; f.hops > maxHops {
			return fmt.Errorf("program %s: too many links and interpreters", path)
		}
		f.show(path)
		link, err := os.Readlink(hostPath(f.spec, path))
		if err != nil {
			break // the file itself
		}
		path = linkTarget(path, link)
		if _, err := os.Lstat(hostPath(f.spec, path)); err != nil { // a folder on the way is a link
			real, err := filepath.EvalSymlinks(host)
			if err != nil {
				return fmt.Errorf("program: %w", err)
			}
			path = real
		}
	}
	interpreter, arg := shebang(hostPath(f.spec, path))
	if interpreter == "" {
		return nil
	}
	if filepath.Base(interpreter) == "env" {
		if interpreter = f.look(arg); interpreter == "" {
			return fmt.Errorf("program %s wants to be run by %q, which is not in PATH: install that", path, arg)
		}
	}
	return f.follow(interpreter)
}

// linkTarget returns where the link at path leads.
func linkTarget(path, link string) string {
	if filepath.IsAbs(link) {
		return filepath.Clean(link)
	}
	return filepath.Join(filepath.Dir(path), link)
}

// show adds what has to be seen for the program at path, unless it is.
func (f *finder) show(path string) {
	if f.visible(path) {
		return
	}
	for _, p := range footprint(path) {
		if _, err := os.Stat(p); err == nil && !slices.Contains(f.out.show, p) {
			f.out.show = append(f.out.show, p)
		}
	}
}

// footprint returns what belongs to a program: the prefix that it is installed
// in, its whole node_modules, or its folder; less where that would show things
// that are not its own.
func footprint(path string) []string {
	dir := filepath.Dir(path)
	if before, _, ok := strings.Cut(path, "/node_modules/"); ok {
		return []string{before + "/node_modules"}
	}
	prefix := dir
	if slices.Contains(binNames, filepath.Base(dir)) {
		prefix = filepath.Dir(dir)
	}
	switch {
	case filepath.Base(prefix) == ".local": // also the home of other programs' data
		return []string{dir, filepath.Join(prefix, "lib")}
	case !tooBroad(prefix):
		return []string{prefix}
	case !tooBroad(dir):
		return []string{dir}
	}
	return []string{path}
}

func tooBroad(dir string) bool {
	if slices.Contains(broad, dir) {
		return true
	}
	home, err := os.UserHomeDir()
	return err == nil && within(home, dir)
}

// within reports whether path is dir or below it.
func within(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// hostPath returns where the host has what the sandbox sees at path.
func hostPath(spec *sandbox.Spec, path string) string {
	best, out := -1, path
	try := func(at, host string) {
		if host != "" && len(at) > best && within(path, at) {
			best, out = len(at), filepath.Join(host, strings.TrimPrefix(path, at))
		}
	}
	try(homeDir, spec.Home)
	for _, m := range spec.Mounts {
		try(target(m), m.Path)
	}
	return out
}

// shebang returns the interpreter that a script asks for, and its first
// argument: of env, the program that env is to find.
func shebang(path string) (interpreter, arg string) {
	file, err := os.Open(path)
	if err != nil {
		return "", ""
	}
	defer file.Close()
	line, _ := bufio.NewReader(io.LimitReader(file, 512)).ReadBytes('\n')
	return parseShebang(line)
}

func parseShebang(line []byte) (interpreter, arg string) {
	line, ok := bytes.CutPrefix(line, []byte("#!"))
	if !ok {
		return "", ""
	}
	w := strings.Fields(string(line))
	if len(w) == 0 || !filepath.IsAbs(w[0]) {
		return "", ""
	}
	if filepath.Base(w[0]) != "env" {
		return w[0], ""
	}
	for _, a := range w[1:] {
		if !strings.HasPrefix(a, "-") && !strings.Contains(a, "=") {
			return w[0], a
		}
	}
	return "", ""
}
