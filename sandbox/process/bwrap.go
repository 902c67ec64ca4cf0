package process

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/sandbox"
	"golang.org/x/sys/unix"
)

// What a sandbox looks like from inside.
const (
	homeDir  = "/home/specbox"
	userID   = "1000"
	basePath = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
	baseLang = "C.UTF-8"
	// scratch bounds each of /tmp, HOME and /dev/shm, together with the memory
	// limit, which holds for all.
	scratch = 1 << 30
)

// system is what of the root every program may need: read-only, or the link
// that the host has there.
var system = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store"}

// etc is what is shown of the host's /etc: how libraries are found, whom TLS
// trusts, what time it is. Nothing there is about this machine's users.
var etc = []string{
	"/etc/ld.so.cache", "/etc/alternatives",
	"/etc/ssl/certs", "/etc/ssl/cert.pem", "/etc/ssl/openssl.cnf", "/etc/pki/tls/certs", "/etc/pki/ca-trust/extracted",
	"/etc/localtime", "/etc/mime.types", "/etc/protocols", "/etc/services", "/etc/fonts",
}

// bwrap is the bubblewrap program of this machine, looked at once.
type bwrap struct {
	covers func() []string // of covers, once

	mu    sync.Mutex
	path  string
	sized bool // it can bound a tmpfs
}

const installBwrap = "install it (apt-get install bubblewrap, dnf install bubblewrap, apk add bubblewrap)"

// find returns bubblewrap's path and whether it can bound a tmpfs. Until it is
// found it is looked for again, so that installing it needs no restart.
func (b *bwrap) find(ctx context.Context) (path string, sized bool, err error) {
	b.mu.Lock()
	path, sized = b.path, b.sized
	b.mu.Unlock()
	if path != "" {
		return path, sized, nil
	}
	path, err = exec.LookPath("bwrap")
	if err != nil {
		return "", false, errors.New("isolation \"process\" needs bubblewrap, and there is no bwrap in PATH: " + installBwrap + ", or ask for isolation: none")
	}
	help, err := exec.CommandContext(ctx, path, "--help").CombinedOutput()
	if err != nil {
		return "", false, fmt.Errorf("bubblewrap at %s does not run: %w", path, cmp.Or(context.Cause(ctx), err))
	}
	sized = bytes.Contains(help, []byte("--size "))
	b.mu.Lock()
	b.path, b.sized = path, sized
	b.mu.Unlock()
	return path, sized, nil
}

// files are what a child is given besides its standard streams: descriptors
// from 3 on, closed here when it has been started.
type files struct {
	list []*os.File
}

// add returns the number that the child will see f under.
func (f *files) add(file *os.File) string {
	f.list = append(f.list, file)
	return strconv.Itoa(2 + len(f.list))
}

// data gives the child a file in memory with that content. What only passes
// through memory stands in no argument list and on no disk.
func (f *files) data(content []byte) (string, error) {
	fd, err := unix.MemfdCreate("specbox", unix.MFD_CLOEXEC)
	if err != nil {
		return "", fmt.Errorf("file in memory: %w", err)
	}
	m := os.NewFile(uintptr(fd), "memfd")
	n := f.add(m)
	if _, err = m.Write(content); err == nil {
		_, err = m.Seek(0, 0)
	}
	if err != nil {
		return "", fmt.Errorf("file in memory: %w", err)
	}
	return n, nil
}

func (f *files) close() {
	for _, x := range f.list {
		x.Close()
	}
	f.list = nil
}

// A bind is a host path to be seen inside.
type bind struct {
	from, at string
	write    bool
	empty    bool // nothing is to be seen there
}

// binds returns what a spec mounts and what its program needs, parents before
// children so that none hides another, and the program. Of what is hidden an
// empty folder is all that is seen.
func binds(spec *sandbox.Spec, hidden []string) ([]bind, program, error) {
	var out []bind
	for _, m := range spec.Mounts {
		if err := checkMount(m); err != nil {
			return nil, program{}, err
		}
		out = append(out, bind{from: m.Path, at: target(m), write: m.Write})
	}
	for _, s := range system {
		out = append(out, covering([]bind{{from: s, at: s}}, hidden)...)
	}
	out = append(out, covering(out, hidden)...)
	visible := func(path string) bool {
		shown := bind{empty: true}
		for _, b := range out { // the deepest counts, and of equals the last
			if within(path, b.at) && len(b.at) >= len(shown.at) {
				shown = b
			}
		}
		return !shown.empty || shown.at == "" && (slices.ContainsFunc(system, func(s string) bool { return within(path, s) }) ||
			spec.Home != "" && within(path, homeDir))
	}
	prog, err := findProgram(spec, visible)
	if err != nil {
		return nil, program{}, err
	}
	for _, p := range prog.show {
		if !visible(p) {
			b := bind{from: p, at: p}
			out = append(append(out, b), covering([]bind{b}, hidden)...)
		}
	}
	if d := spec.Dir; d != "" && !visible(d) && !within(d, homeDir) && !within(d, "/tmp") && d != "/" {
		if !filepath.IsAbs(d) {
			return nil, program{}, fmt.Errorf("working directory %q is not absolute: give its full path", d)
		}
		return nil, program{}, fmt.Errorf("working directory %s is not visible in the sandbox: add it to the server's mounts", d)
	}
	slices.SortStableFunc(out, func(a, b bind) int { return strings.Compare(a.at, b.at) })
	return out, prog, nil
}

// covering returns the binds that cover what is hidden wherever others show it.
func covering(shown []bind, hidden []string) []bind {
	var out []bind
	for _, b := range shown {
		if b.empty {
			continue
		}
		from := realPath(b.from)
		for _, h := range hidden {
			if rel, err := filepath.Rel(from, h); err == nil && within(h, from) {
				out = append(out, bind{at: filepath.Join(b.at, rel), empty: true})
			}
		}
	}
	return out
}

// realPath returns a path without symbolic links, as far as it exists.
func realPath(p string) string {
	if real, err := filepath.EvalSymlinks(p); err == nil {
		return real
	}
	return filepath.Clean(p)
}

func target(m config.Mount) string {
	if m.At != "" {
		return filepath.Clean(m.At)
	}
	return filepath.Clean(m.Path)
}

func checkMount(m config.Mount) error {
	at := target(m)
	switch {
	case !filepath.IsAbs(m.Path) || !filepath.IsAbs(at):
		return fmt.Errorf("mount %q: the path is not absolute: give the full path", cmp.Or(m.At, m.Path))
	case at == "/":
		return fmt.Errorf("mount %q: it would replace the whole root of the sandbox: name the folders that the server needs", m.Path)
	case at != homeDir && within(homeDir, at):
		return fmt.Errorf("mount %q: it would hide the HOME of the sandbox, %s: name the folders in it that the server needs", m.Path, homeDir)
	case within(at, "/proc") || at == "/dev":
		return fmt.Errorf("mount %q: the sandbox has a %s of its own: leave the mount out", m.Path, at)
	}
	if _, err := os.Stat(m.Path); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("mount %s does not exist: create it, or correct the mount", m.Path)
		}
		return fmt.Errorf("mount: %w", err)
	}
	return nil
}

// A layout collects bubblewrap's arguments, which are passed in a file.
type layout struct {
	bytes.Buffer
	files  *files
	sized  bool
	covers []string
	err    error
}

func (l *layout) arg(args ...string) {
	for _, a := range args {
		if strings.ContainsRune(a, 0) {
			l.err = errors.Join(l.err, errors.New("a path or variable holds a NUL character"))
		}
		l.WriteString(a)
		l.WriteByte(0)
	}
}

// file puts a file with that content in the sandbox.
func (l *layout) file(at, content string) {
	fd, err := l.files.data([]byte(content))
	l.err = errors.Join(l.err, err)
	l.arg("--perms", "0444", "--file", fd, at)
}

func (l *layout) tmpfs(at, mode string, size int64) {
	l.arg("--perms", mode)
	if l.sized {
		l.arg("--size", strconv.FormatInt(size, 10))
	}
	l.arg("--tmpfs", at)
}

// write lays the sandbox of spec out. The network namespace is made by
// bubblewrap unless net holds an allow-list, whose namespace is there already.
func (l *layout) write(spec *sandbox.Spec, show []bind, prog program, net *allowList) {
	l.arg("--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try")
	if !spec.Network.All && net == nil {
		l.arg("--unshare-net")
	}
	l.arg("--uid", userID, "--gid", userID, "--cap-drop", "ALL", "--hostname", "specbox",
		"--die-with-parent", "--new-session", "--clearenv")
	for k, v := range environment(spec, prog) {
		l.arg("--setenv", k, v)
	}
	for _, s := range system {
		l.show(s)
	}
	for _, e := range etc {
		if _, err := os.Stat(e); err == nil {
			l.arg("--ro-bind", e, e)
		}
	}
	l.file("/etc/passwd", "specbox:x:"+userID+":"+userID+":SpecBox:"+homeDir+":/bin/sh\n")
	l.file("/etc/group", "specbox:x:"+userID+":\n")
	l.file("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n")
	l.network(spec, net)

	size := int64(scratch)
	if spec.Memory > 0 {
		size = min(size, spec.Memory)
	}
	l.arg("--proc", "/proc")
	l.arg(l.covers...)
	l.arg("--dev", "/dev")
	l.tmpfs("/dev/shm", "1777", size)
	l.arg("--remount-ro", "/dev")
	l.tmpfs("/tmp", "1777", size)
	l.arg("--dir", "/var", "--symlink", "../tmp", "/var/tmp", "--dir", "/run")
	if spec.Home == "" {
		l.tmpfs(homeDir, "0700", size)
	} else {
		l.arg("--bind", spec.Home, homeDir)
	}
	for _, b := range show {
		switch {
		case b.empty:
			l.tmpfs(b.at, "0555", 4096)
		case b.write:
			l.arg("--bind", b.from, b.at)
		default:
			l.arg("--ro-bind", b.from, b.at)
		}
	}
	l.arg("--remount-ro", "/", "--chdir", cmp.Or(spec.Dir, homeDir))
}

// show shows a host path read-only, or as the link that it is, if it exists.
func (l *layout) show(path string) {
	if link, err := os.Readlink(path); err == nil {
		l.arg("--symlink", link, path)
	} else if _, err := os.Stat(path); err == nil {
		l.arg("--ro-bind", path, path)
	}
}

func (l *layout) network(spec *sandbox.Spec, net *allowList) {
	hosts := "127.0.0.1 localhost specbox\n::1 localhost\n"
	if spec.Network.All {
		for _, f := range []string{"/etc/hosts", "/etc/resolv.conf", "/etc/gai.conf"} {
			if b, err := os.ReadFile(f); err == nil {
				l.file(f, string(b))
			}
		}
		return
	}
	if net != nil {
		hosts += net.hostsFile()
	}
	l.file("/etc/hosts", hosts)
	// Nobody listens there, so that other names are refused at once.
	l.file("/etc/resolv.conf", "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
}

// covers returns the arguments that cover /proc. The server of a SpecBox run as
// root is root to the kernel where files are concerned, though without a
// capability, and much of /proc asks for no more than that: what is not about
// processes and has something to write becomes read-only, and what others than
// root may not read is hidden. Any server could write the settings of its own
// namespaces.
func covers() []string {
	var args []string
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		path := "/proc/" + e.Name()
		info, err := e.Info()
		if _, notPid := strconv.Atoi(e.Name()); err != nil || notPid == nil {
			continue
		}
		switch mode := info.Mode(); {
		case e.Name() == "irq" || e.Name() == "bus": // bubblewrap covers these
		case mode.IsDir() && writable(path), mode.IsRegular() && mode&0o222 != 0 && mode&0o004 != 0:
			args = append(args, "--ro-bind", path, path)
		case mode.IsRegular() && mode&0o004 == 0 && os.Geteuid() == 0:
			args = append(args, "--ro-bind", "/dev/null", path)
		}
	}
	return args
}

// writable reports whether there is anything in dir that its owner may write to.
func writable(dir string) bool {
	found := false
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if info, err := d.Info(); err == nil && info.Mode()&0o222 != 0 && info.Mode()&fs.ModeSymlink == 0 {
			found = true
			return fs.SkipAll
		}
		return nil
	})
	return found
}

// environment returns the complete environment of the server.
func environment(spec *sandbox.Spec, prog program) map[string]string {
	path := slices.Compact(append(slices.Clone(prog.dirs), basePath))
	env := map[string]string{"HOME": homeDir, "TMPDIR": "/tmp", "LANG": baseLang, "PATH": strings.Join(path, ":")}
	maps.Copy(env, spec.Env)
	return env
}
