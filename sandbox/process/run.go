package process

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A run is the folder of one Backend. Its lock is held while the process lives:
// the kernel drops it with the last descriptor.
type run struct {
	name string // unique, of a-z and 0-9
	dir  string
	lock *os.File
}

const (
	lockFile   = "lock"
	recordFile = "record.json"
)

// A record is written before a sandbox takes anything, for [Reap].
type record struct {
	Server  string   `json:"server"`
	Cgroups []string `json:"cgroups"`
}

// openRun makes and locks a folder in root. It gets its name when it is locked,
// so that no reaper takes it for a dead one.
func openRun(root string) (*run, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("run folder: %w", err)
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, fmt.Errorf("run folder: %w", err)
	}
	r := &run{name: strings.ToLower(rand.Text()[:12])}
	r.dir = filepath.Join(root, r.name)
	young := filepath.Join(root, "."+r.name)
	if err := os.Mkdir(young, 0o700); err != nil {
		return nil, fmt.Errorf("run folder: %w", err)
	}
	r.lock, err = os.OpenFile(filepath.Join(young, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = unix.Flock(int(r.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err == nil {
		_, err = r.lock.WriteString(birth(os.Getpid()))
	}
	if err == nil {
		err = os.Rename(young, r.dir)
	}
	if err != nil {
		r.lock.Close()
		os.RemoveAll(young)
		return nil, fmt.Errorf("run folder: %w", err)
	}
	return r, nil
}

// birth names a process by pid and start, so that no other one is taken for it.
// It is "" when the process is dead.
func birth(pid int) string {
	st, ok := readStat(strconv.Itoa(pid))
	if !ok || st.dead() {
		return ""
	}
	return fmt.Sprintf("%d %d", pid, st.start)
}

// close removes the folder and drops the lock.
func (r *run) close() error {
	err := os.RemoveAll(r.dir)
	return errors.Join(err, r.lock.Close())
}

// mark is the value of the marker of a sandbox.
func (r *run) mark(id string) string { return r.name + "." + id }

// sandbox makes the folder of a sandbox, with its record in it.
func (r *run) sandbox(id string, rec record) (dir string, err error) {
	dir = filepath.Join(r.dir, id)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", fmt.Errorf("run folder: %w", err)
	}
	b, err := json.Marshal(rec)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, recordFile), b, 0o600)
	}
	if err != nil {
		os.RemoveAll(dir)
		return "", fmt.Errorf("record of the sandbox: %w", err)
	}
	return dir, nil
}

// A Report says what [Reap] found and removed.
type Report struct {
	Instances []string // run folders of dead SpecBox instances
	Sandboxes int      // sandboxes that those had recorded
	Processes int      // processes killed
	Cgroups   int      // cgroups removed
}

// Reap kills and removes what dead SpecBox instances left behind in runRoot:
// folders whose lock nobody holds, with the processes, cgroups and files of
// their sandboxes. Living instances are left alone, and several may reap at
// once. It takes at most some seconds; the error names what is still there.
func Reap(runRoot string) (Report, error) {
	var rep Report
	entries, err := os.ReadDir(runRoot)
	if errors.Is(err, os.ErrNotExist) {
		return rep, nil
	}
	if err != nil {
		return rep, fmt.Errorf("run folder: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if e.IsDir() {
			errs = append(errs, reapInstance(filepath.Join(runRoot, e.Name()), &rep))
		}
	}
	return rep, errors.Join(errs...)
}

// youth is how long a folder may be about to be locked.
const youth = time.Minute

func reapInstance(dir string, rep *Report) error {
	name := filepath.Base(dir)
	if strings.HasPrefix(name, ".") {
		name = name[1:]
		if st, err := os.Stat(dir); err != nil || time.Since(st.ModTime()) < youth {
			return nil
		}
	}
	lock, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR, 0)
	switch {
	case err == nil:
		defer lock.Close()
		if took, err := takeOver(lock); !took || err != nil {
			return err
		}
	case !errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("run folder: %w", err)
	}
	if _, err := os.Stat(dir); err != nil {
		return nil // another reaper was faster
	}
	rep.Instances = append(rep.Instances, name)
	var cgroups []string
	records, _ := filepath.Glob(filepath.Join(dir, "*", recordFile))
	for _, f := range records {
		var rec record
		if b, err := os.ReadFile(f); err == nil && json.Unmarshal(b, &rec) == nil {
			rep.Sandboxes++
			cgroups = append(cgroups, ownGroups(rec.Cgroups, name)...)
		}
	}
	thawGroups(cgroups)
	killed, left := killAll(func() []int {
		return slices.Concat(groupProcs(cgroups), markedPids(func(v string) bool { return strings.HasPrefix(v, name+".") }))
	}, 5*time.Second)
	rep.Processes += killed
	if len(left) > 0 {
		return fmt.Errorf("run folder %s: processes %v do not die", dir, left)
	}
	for _, c := range cgroups {
		if _, err := os.Stat(c); err == nil {
			rep.Cgroups++
		}
	}
	return errors.Join(removeGroups(cgroups), removeAll(dir))
}

// takeOver takes the lock of a dead owner, and reports whether it did. A child
// that the owner was about to start when it was killed may hold the lock for a
// moment longer.
func takeOver(lock *os.File) (bool, error) {
	for deadline := time.Now().Add(killPatience); ; <-time.After(5 * time.Millisecond) {
		err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return true, nil
		}
		owner, readErr := os.ReadFile(lock.Name())
		if errors.Is(readErr, os.ErrNotExist) {
			return false, nil // another reaper was faster
		}
		var pid int
		if _, err := fmt.Sscan(string(owner), &pid); err != nil || birth(pid) == string(owner) {
			return false, nil // it lives
		}
		if time.Now().After(deadline) {
			return false, fmt.Errorf("lock %s is held by somebody else than its dead owner, process %d: %w", lock.Name(), pid, err)
		}
	}
}

// ownGroups leaves out what cannot be a cgroup that we made: a record is a file,
// and files can be damaged.
func ownGroups(dirs []string, instance string) []string {
	return slices.DeleteFunc(dirs, func(d string) bool {
		return !filepath.IsAbs(d) || !strings.HasPrefix(filepath.Base(d), groupPrefix(instance))
	})
}

// groupPrefix begins the names of the cgroups of an instance's sandboxes.
func groupPrefix(instance string) string { return "specbox-" + instance + "-" }

// markedPids returns the processes whose marker match likes.
func markedPids(match func(string) bool) []int {
	return slices.DeleteFunc(allPids(), func(pid int) bool { return !marked(pid, match) })
}
