package servers

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Dir returns the folder that servers are installed in unless one is named:
// $SPECBOX_SERVERS, else .cache/servers of the SpecBox working tree that the
// process stands in, else a folder of the user's cache.
func Dir() (string, error) {
	if d := os.Getenv("SPECBOX_SERVERS"); d != "" {
		return filepath.Abs(d)
	}
	wd, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for d := wd; ; d = filepath.Dir(d) {
		b, err := os.ReadFile(filepath.Join(d, "go.mod"))
		if err == nil && bytes.HasPrefix(b, []byte("module github.com/specbox/specbox\n")) {
			return filepath.Join(d, ".cache", "servers"), nil
		}
		if d == filepath.Dir(d) {
			break
		}
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "specbox", "servers"), nil
}

// stamp is the file that says what a folder holds, written last.
const stamp = ".installed"

// Install installs the named servers, or all of them, into folders of dir, as
// many at once as there are cores, each tried twice. Report, which may be nil,
// is told of each server that was installed; it is called from one goroutine
// at a time. All that could not be installed stands in the error.
func Install(ctx context.Context, dir string, report func(Server, time.Duration), names ...string) error {
	all, err := Select(names...)
	if err != nil {
		return err
	}
	var (
		work  sync.WaitGroup
		mu    sync.Mutex // guards errs and the calls of report
		errs  []error
		slots = make(chan struct{}, runtime.NumCPU())
	)
	for _, s := range all {
		work.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			began := time.Now()
			fresh, err := ensure(ctx, dir, s)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, fmt.Errorf("install %s (%s %s): %w", s.Name, s.Package, s.Version, err))
			} else if fresh && report != nil {
				report(s, time.Since(began))
			}
		})
	}
	work.Wait()
	return errors.Join(errs...)
}

// ensure installs s unless it is there, and reports whether it had to.
func ensure(ctx context.Context, dir string, s Server) (bool, error) {
	locks, err := fs.Sub(files, path.Join("lock", s.Name))
	if err != nil {
		return false, err
	}
	return InstallLocked(ctx, dir, s.Name, locks)
}

// InstallLocked installs what the lock files of a folder pin (package-lock.json
// of npm, or requirements.txt of pip) into the folder name of dir, beside a copy
// of all that is in locks. It does nothing if that is there already, and reports
// whether it had to do something.
func InstallLocked(ctx context.Context, dir, name string, locks fs.FS) (bool, error) {
	want, err := digest(locks)
	if err != nil {
		return false, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return false, err
	}
	to := filepath.Join(dir, name)
	if installed(to, want) {
		return false, nil
	}
	unlock, err := lock(filepath.Join(dir, "."+name+".lock"))
	if err != nil {
		return false, err
	}
	defer unlock()
	if installed(to, want) { // by another process, meanwhile
		return false, nil
	}
	err = lay(ctx, to, locks)
	if err != nil && ctx.Err() == nil {
		err = lay(ctx, to, locks)
	}
	if err != nil {
		return false, err
	}
	return true, os.WriteFile(filepath.Join(to, stamp), []byte(want), 0o644)
}

func installed(dir, want string) bool {
	got, err := os.ReadFile(filepath.Join(dir, stamp))
	return err == nil && string(got) == want
}

// digest names the content of a folder of lock files.
func digest(locks fs.FS) (string, error) {
	h := sha256.New()
	err := fs.WalkDir(locks, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(locks, name)
		fmt.Fprintf(h, "%s %d\n%s", name, len(b), b)
		return err
	})
	return hex.EncodeToString(h.Sum(nil)), err
}

// lock takes the lock of a file, which goes with the process that holds it.
func lock(name string) (unlock func(), err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", name, err)
		}
	}
}

// lay fills the folder to with what the lock files name.
func lay(ctx context.Context, to string, locks fs.FS) error {
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	if err := os.CopyFS(to, locks); err != nil {
		return err
	}
	if _, err := fs.Stat(locks, "package-lock.json"); err == nil {
		if _, err := exec.LookPath("npm"); err != nil {
			return errors.New("npm is not there: install Node.js 20 or later with npm (apt-get install nodejs npm)")
		}
		return run(ctx, to, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")
	}
	python, err := Python(ctx)
	if err != nil {
		return err
	}
	if err := run(ctx, to, python, "-m", "venv", "venv"); err != nil {
		return err
	}
	return run(ctx, to, filepath.Join(to, "venv", "bin", "python"), "-m", "pip", "install",
		"--quiet", "--disable-pip-version-check", "--no-input", "--only-binary=:all:", "--require-hashes", "-r", "requirements.txt")
}

// Python returns an interpreter of Python 3.10 or later that can make virtual
// environments. The system's own is preferred: it is visible in every sandbox.
func Python(ctx context.Context) (string, error) {
	for _, name := range []string{"/usr/bin/python3", "python3"} {
		c := exec.CommandContext(ctx, name, "-c", "import ensurepip, venv, sys; sys.exit(sys.version_info < (3, 10))")
		if c.Run() == nil {
			return name, nil
		}
	}
	return "", errors.New("no Python 3.10 or later that can make virtual environments: apt-get install python3-venv")
}

// run runs a program in dir. Its whole process group ends with ctx.
func run(ctx context.Context, dir, name string, args ...string) error {
	c := exec.CommandContext(ctx, name, args...)
	c.Dir = dir
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = 5 * time.Second
	out, err := c.CombinedOutput()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	const tail = 2000
	text := strings.TrimSpace(string(out[max(0, len(out)-tail):]))
	return fmt.Errorf("%s %s: %w\n%s", filepath.Base(name), args[0], err, text)
}
