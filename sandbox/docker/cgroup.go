package docker

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A cgroup is where this process may see to a container itself, which takes some
// ten microseconds, and the engine some ten milliseconds. Folders that are not
// there, or may not be written to, are "".
type cgroup struct {
	freezer string // of version 1
	cpu     string // of version 1
	memory  string // of version 1
	v2      string
}

// findCgroup returns the cgroup of a container of this machine, by its process 1.
// The engine may run elsewhere, so that the process is a stranger here: then the
// name of the container does not stand in its cgroup.
func findCgroup(pid int, container string) cgroup {
	var g cgroup
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil || pid <= 1 {
		return g
	}
	may := func(dir, file string) string {
		if unix.Access(filepath.Join(dir, file), unix.W_OK) != nil {
			return ""
		}
		return dir
	}
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 || !strings.Contains(f[2], container) {
			continue
		}
		dir := filepath.Join("/sys/fs/cgroup", f[1], f[2])
		switch f[1] {
		case "freezer":
			g.freezer = may(dir, "freezer.state")
		case "cpu", "cpu,cpuacct", "cpuacct,cpu":
			g.cpu = may(dir, "cpu.shares")
		case "memory":
			g.memory = dir
		case "":
			if g.v2 = may(dir, "cgroup.freeze"); g.v2 == "" {
				g.v2 = may(filepath.Join("/sys/fs/cgroup/unified", f[2]), "cgroup.freeze")
			}
		}
	}
	return g
}

// freezeTries bounds how often a version 1 cgroup is asked to freeze.
const freezeTries = 200

// freeze halts the container. It is false where this process may not do that.
func (g cgroup) freeze() (bool, error) {
	switch {
	case g.v2 != "":
		return true, write(g.v2, "cgroup.freeze", "1")
	case g.freezer == "":
		return false, nil
	}
	for range freezeTries { // the kernel has to be asked until it is done
		if err := write(g.freezer, "freezer.state", "FROZEN"); err != nil {
			return true, err
		}
		if b, _ := os.ReadFile(filepath.Join(g.freezer, "freezer.state")); string(b) == "FROZEN\n" {
			return true, nil
		}
		<-time.After(time.Millisecond)
	}
	return true, errors.New("the kernel does not freeze its cgroup")
}

// thaw undoes freeze.
func (g cgroup) thaw() (bool, error) {
	switch {
	case g.v2 != "":
		return true, write(g.v2, "cgroup.freeze", "0")
	case g.freezer != "":
		return true, write(g.freezer, "freezer.state", "THAWED")
	}
	return false, nil
}

// promote gives the container the usual weight for the processor.
func (g cgroup) promote() (bool, error) {
	switch {
	case g.cpu != "":
		return true, write(g.cpu, "cpu.shares", strconv.Itoa(usualShares))
	case g.v2 != "" && unix.Access(filepath.Join(g.v2, "cpu.weight"), unix.W_OK) == nil:
		return true, write(g.v2, "cpu.weight", "100")
	}
	return false, nil
}

// usage returns the memory in use, without file pages that can be dropped, and
// the peak, 0 where the kernel does not tell it.
func (g cgroup) usage() (now, peak int64, ok bool) {
	dir, use, most, cache := g.memory, "memory.usage_in_bytes", "memory.max_usage_in_bytes", "total_inactive_file"
	if dir == "" {
		dir, use, most, cache = g.v2, "memory.current", "memory.peak", "inactive_file"
	}
	if dir == "" {
		return 0, 0, false
	}
	if now, ok = number(filepath.Join(dir, use)); !ok {
		return 0, 0, false
	}
	peak, _ = number(filepath.Join(dir, most))
	b, _ := os.ReadFile(filepath.Join(dir, "memory.stat"))
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, cache+" "); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
			now -= n
		}
	}
	return max(now, 0), peak, true
}

func number(file string) (int64, bool) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n, err == nil
}

func write(dir, file, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
