package launcher

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A Store is a folder of installed packages. Its methods may be called
// concurrently, and several processes may use one folder.
//
// Each package has a folder, and in it a folder for each installed version,
// complete once its manifest is written. The link "current" names the one to
// run and is replaced whole. Versions are installed where they stay, since a
// Python environment cannot be moved.
type Store struct {
	dir string
}

// New returns the store in a folder, which is made when it is needed.
func New(dir string) *Store { return &Store{dir: dir} }

// Progress is what an installation is doing.
type Progress struct {
	Package string // as [Package.String] has it
	Message string // such as "downloading: 12 MiB"
}

const (
	currentName  = "current"
	manifestName = "specbox.json"
	lockName     = "lock"
)

// A manifest says what a version's folder holds.
type manifest struct {
	Kind      Kind      `json:"kind"`
	Name      string    `json:"name"`
	Asked     string    `json:"asked,omitempty"`
	Specs     []string  `json:"specs"`
	Python    string    `json:"python,omitempty"`
	Scripts   bool      `json:"scripts,omitempty"`
	Version   string    `json:"version"`
	Size      int64     `json:"size_bytes"`
	Installed time.Time `json:"installed"`
	Notes     []string  `json:"notes,omitempty"`
}

// An Entry is one installed package.
type Entry struct {
	Kind      Kind      `json:"kind"`
	Name      string    `json:"name"`
	Asked     string    `json:"asked,omitempty"` // as the configuration has it; "" means the newest
	Version   string    `json:"version"`         // that it is pinned to
	Size      int64     `json:"size_bytes"`
	Installed time.Time `json:"installed"`
	Path      string    `json:"path"`
}

// List returns what is installed, by kind and name. What cannot be read is
// left out.
func (s *Store) List() ([]Entry, error) {
	links, err := filepath.Glob(filepath.Join(globEscape(s.dir), "*", currentName))
	if err != nil {
		return nil, fmt.Errorf("list the packages in %s: %w", s.dir, err)
	}
	entries := []Entry{}
	for _, link := range links {
		dir, m, err := current(filepath.Dir(link))
		if err != nil {
			continue
		}
		entries = append(entries, Entry{m.Kind, m.Name, m.Asked, m.Version, m.Size, m.Installed, dir})
	}
	slices.SortFunc(entries, func(a, b Entry) int {
		return strings.Compare(string(a.Kind)+" "+a.Name+" "+a.Asked, string(b.Kind)+" "+b.Name+" "+b.Asked)
	})
	return entries, nil
}

func globEscape(dir string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(dir)
}

// Installed returns how to run an installed package. The error is
// [ErrNotInstalled] if it is not there.
func (s *Store) Installed(p Package) (*Program, error) {
	if p.Kind == Docker {
		return nil, fmt.Errorf("%s: %w", p, ErrContainer)
	}
	dir, m, err := current(filepath.Join(s.dir, p.id()))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w: specbox serve installs it, and so does specbox servers update", p, ErrNotInstalled)
	} else if err != nil {
		return nil, fmt.Errorf("%s: %w: run specbox servers update", p, err)
	}
	return program(p, dir, m)
}

// current returns the folder of the version to run, with its manifest.
func current(base string) (string, manifest, error) {
	var m manifest
	target, err := os.Readlink(filepath.Join(base, currentName))
	if err != nil {
		return "", m, err
	}
	dir, err := filepath.EvalSymlinks(filepath.Join(base, filepath.Base(target)))
	if err != nil {
		return "", m, err
	}
	data, err := os.ReadFile(filepath.Join(dir, manifestName))
	if err != nil {
		return "", m, err
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return "", m, fmt.Errorf("its manifest is damaged: %w", err)
	}
	return dir, m, nil
}

// program says how to run a version.
func program(p Package, dir string, m manifest) (*Program, error) {
	var out *Program
	var err error
	if p.Kind == NPM {
		out, err = npmProgram(p, dir)
	} else {
		out, err = pyProgram(p, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", p, m.Version, err)
	}
	out.Argv = append(out.Argv, p.Args...)
	out.Version = m.Version
	out.Notes = append(out.Notes, m.Notes...)
	return out, nil
}

// Install installs a package, unless it is there. It uses the network. Several
// calls for one package, also from several processes, install it once. Report
// may be nil; it is called from one goroutine at a time. When Install returns,
// nothing of it runs, and after an error nothing of it is left.
func (s *Store) Install(ctx context.Context, p Package, report func(Progress)) (*Program, error) {
	if prog, err := s.Installed(p); err == nil || errors.Is(err, ErrContainer) {
		return prog, err
	}
	return s.install(ctx, p, report, false)
}

// Update installs the newest version that the package's wish allows into a new
// folder and makes it the one to run. Programs of the version before go on;
// older ones are removed. If nothing has changed, nothing does.
func (s *Store) Update(ctx context.Context, p Package, report func(Progress)) (*Program, error) {
	if p.Kind == Docker {
		return nil, fmt.Errorf("%s: %w", p, ErrContainer)
	}
	return s.install(ctx, p, report, true)
}

func (s *Store) install(ctx context.Context, p Package, report func(Progress), update bool) (_ *Program, err error) {
	say := func(message string) {
		if report != nil {
			report(Progress{p.String(), message})
		}
	}
	base, err := filepath.Abs(filepath.Join(s.dir, p.id()))
	if err != nil {
		return nil, fmt.Errorf("install %s: %w", p, err)
	}
	if err := os.MkdirAll(base, 0o755); err != nil {
		return nil, fmt.Errorf("install %s: %w", p, err)
	}
	lock, err := lock(ctx, filepath.Join(base, lockName), func() { say("waiting for another installation of it") })
	if err != nil {
		return nil, fmt.Errorf("install %s: %w", p, err)
	}
	defer lock.Close()
	if prog, err := s.Installed(p); err == nil && !update {
		return prog, nil // meanwhile
	}
	clean(base)
	dir, err := os.MkdirTemp(base, "v-")
	if err != nil {
		return nil, fmt.Errorf("install %s: %w", p, err)
	}
	done := false
	defer func() {
		if !done {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	if err := os.Chmod(dir, 0o755); err != nil { // a sandbox may be another user
		return nil, fmt.Errorf("install %s: %w", p, err)
	}
	m, err := fetch(ctx, p, dir, lock, say)
	if err != nil {
		return nil, fmt.Errorf("install %s: %w", p, err)
	}
	if update && s.same(p, base, dir) {
		say("nothing newer than " + m.Version)
		return s.Installed(p)
	}
	prog, err := program(p, dir, m)
	if err != nil {
		return nil, err
	}
	if err := publish(base, dir, m); err != nil {
		return nil, fmt.Errorf("install %s: %w", p, err)
	}
	done = true
	say("installed " + m.Version)
	return prog, nil
}

// fetch runs the installer while it says how far it is.
func fetch(ctx context.Context, p Package, dir string, lock *os.File, say func(string)) (manifest, error) {
	m := manifest{Kind: p.Kind, Name: p.Name, Asked: p.Asked, Specs: p.Specs, Python: p.Python, Scripts: p.Scripts}
	say("asking the registry")
	ctx, stop := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		tick := time.NewTicker(2 * time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				say(fmt.Sprintf("downloading: %d MiB", size(dir)>>20))
			case <-ctx.Done():
				return
			}
		}
	})
	i := installer{ctx: ctx, dir: dir, lock: lock}
	var err error
	if p.Kind == NPM {
		err = i.npm(p, &m)
	} else {
		err = i.pypi(p, &m)
	}
	stop()
	watch.Wait()
	m.Size, m.Installed = size(dir), time.Now().UTC().Truncate(time.Second)
	return m, err
}

// publish completes a version and makes it current.
func publish(base, dir string, m manifest) error {
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, manifestName), append(data, '\n'), 0o644); err != nil {
		return err
	}
	before, _ := os.Readlink(filepath.Join(base, currentName))
	next := filepath.Join(base, currentName+".next")
	_ = os.Remove(next) // of one that was killed here
	if err := os.Symlink(filepath.Base(dir), next); err != nil {
		return err
	}
	if err := os.Rename(next, filepath.Join(base, currentName)); err != nil {
		return err
	}
	prune(base, filepath.Base(dir), before)
	return nil
}

// prune removes all versions but those named.
func prune(base string, keep ...string) {
	versions, _ := filepath.Glob(filepath.Join(globEscape(base), "v-*"))
	for _, v := range versions {
		if !slices.Contains(keep, filepath.Base(v)) {
			_ = os.RemoveAll(v) // what cannot be removed is tried again next time
		}
	}
}

// clean removes what killed installations left. Whoever holds the lock is the
// only one to install here.
func clean(base string) {
	versions, _ := filepath.Glob(filepath.Join(globEscape(base), "v-*"))
	for _, v := range versions {
		if _, err := os.Stat(filepath.Join(v, manifestName)); errors.Is(err, fs.ErrNotExist) {
			_ = os.RemoveAll(v)
		}
	}
}

// same reports whether two versions were locked to the same packages.
func (s *Store) same(p Package, base, dir string) bool {
	now, _, err := current(base)
	if err != nil {
		return false
	}
	name := "package-lock.json"
	if p.Kind == PyPI {
		name = "requirements.lock"
	}
	a, errA := os.ReadFile(filepath.Join(now, name))
	b, errB := os.ReadFile(filepath.Join(dir, name))
	return errA == nil && errB == nil && len(a) > 0 && bytes.Equal(a, b)
}

// lock waits for the lock of a package. Closing the file gives it back, when
// no installer that was started with it lives any more.
func lock(ctx context.Context, path string, waiting func()) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	// The kernel's own waiting cannot be cancelled.
	const again = 50 * time.Millisecond
	for first := true; ; first = false {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if first {
			waiting()
		}
		select {
		case <-time.After(again):
		case <-ctx.Done():
			f.Close()
			return nil, context.Cause(ctx)
		}
	}
}

// size returns the bytes of all files in a folder.
func size(dir string) int64 {
	var n int64
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error { // files may vanish while an installer works
		if err != nil || !e.Type().IsRegular() {
			return nil
		}
		if info, err := e.Info(); err == nil {
			n += info.Size()
		}
		return nil
	})
	return n
}
