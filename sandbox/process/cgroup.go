package process

import (
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

// groups knows where cgroups can be made. A machine has version 2, version 1,
// or both, with some controllers in each; any of them may be out of reach.
type groups struct {
	v2     string            // folder in which sandboxes get theirs; "" if there is none
	v2ctl  []string          // controllers that those have
	v1     map[string]string // controller -> folder in which sandboxes get theirs
	leaf   string            // version 2 folder that SpecBox moved itself into, to hand out controllers
	mother string            // where it was before
}

// limiters are the controllers that limits are set with.
var limiters = []string{"memory", "pids", "cpu"}

// version1 are the controllers that are used in version 1. Where there is a
// version 2, in which each cgroup can be frozen, freezer is not.
var version1 = append([]string{"freezer"}, limiters...)

// leafName is the cgroup that SpecBox moves into where version 2 wants
// processes in leaves only.
const leafName = "specbox-itself"

// findGroups looks for cgroups that we may use; see [Config.Cgroup].
func findGroups(where string) (*groups, error) {
	g := &groups{v1: map[string]string{}}
	switch {
	case where == "none":
		return g, nil
	case where != "":
		if !filepath.IsAbs(where) {
			return nil, fmt.Errorf("cgroup %q: neither \"none\" nor an absolute path", where)
		}
		if err := tryMkdir(where); err != nil {
			return nil, fmt.Errorf("cgroup %s: no cgroup can be made there: %w; delegate it to this user or leave it out", where, err)
		}
		g.v2, g.v2ctl = where, words(filepath.Join(where, "cgroup.subtree_control"))
		return g, nil
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return g, nil
	}
	paths := map[string]string{} // controller, or "" for version 2 -> our cgroup
	for line := range strings.Lines(string(own)) {
		if f := strings.SplitN(strings.TrimSpace(line), ":", 3); len(f) == 3 {
			for c := range strings.SplitSeq(f[1], ",") {
				paths[c] = f[2]
			}
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		m, ok := parseMount(line)
		if !ok {
			continue
		}
		if m.kind == "cgroup2" && g.v2 == "" {
			if own, ok := m.inside(paths[""]); ok {
				g.findV2(m.point, own)
			}
		}
		for _, c := range version1 {
			path, mine := paths[c]
			if m.kind != "cgroup" || !mine || !slices.Contains(m.options, c) || g.v1[c] != "" {
				continue
			}
			if own, ok := m.inside(path); ok && tryMkdir(own) == nil {
				g.v1[c] = own
			}
		}
	}
	return g, nil
}

// findV2 chooses the version 2 folder for sandboxes. SpecBox's own cgroup is
// best: its limits then hold for the sandboxes too. It can hand out controllers
// if nobody but SpecBox is in it. An ancestor will do if there are no limits
// on the way to it. Without controllers a cgroup still ends trees.
func (g *groups) findV2(root, own string) {
	if tryMkdir(own) == nil {
		g.v2, g.v2ctl = own, words(filepath.Join(own, "cgroup.subtree_control"))
	}
	offered := words(filepath.Join(own, "cgroup.controllers"))
	if g.v2 != "" && (has(g.v2ctl, "memory", "pids") || has(offered, "memory", "pids") && g.handOut(own, offered)) {
		return
	}
	for dir := own; dir != root && !limited(dir); {
		dir = filepath.Dir(dir)
		if ctl := words(filepath.Join(dir, "cgroup.subtree_control")); has(ctl, "memory", "pids") && tryMkdir(dir) == nil && canMove(dir) {
			g.v2, g.v2ctl = dir, ctl
			return
		}
	}
}

// handOut moves SpecBox into a leaf of dir and enables controllers there.
func (g *groups) handOut(dir string, offered []string) bool {
	self := strconv.Itoa(os.Getpid())
	if others := slices.DeleteFunc(words(filepath.Join(dir, "cgroup.procs")), func(p string) bool { return p == self }); len(others) > 0 {
		return false
	}
	leaf := filepath.Join(dir, leafName)
	if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return false
	}
	g.leaf, g.mother = leaf, dir
	if write(leaf, "cgroup.procs", self) == nil {
		for _, c := range limiters {
			if slices.Contains(offered, c) && write(dir, "cgroup.subtree_control", "+"+c) == nil {
				g.v2ctl = append(g.v2ctl, c)
			}
		}
		if has(g.v2ctl, "memory", "pids") {
			return true
		}
	}
	_ = g.leave()
	return false
}

// leave undoes handOut. No cgroup of a sandbox is left.
func (g *groups) leave() error {
	if g.leaf == "" {
		return nil
	}
	for _, c := range g.v2ctl {
		_ = write(g.mother, "cgroup.subtree_control", "-"+c)
	}
	err := errors.Join(write(g.mother, "cgroup.procs", strconv.Itoa(os.Getpid())), os.Remove(g.leaf))
	g.leaf, g.v2ctl = "", nil
	return err
}

// limited reports whether a version 2 cgroup has limits of its own.
func limited(dir string) bool {
	for _, f := range []string{"memory.max", "memory.high", "pids.max", "cpu.max"} {
		if w := words(filepath.Join(dir, f)); len(w) > 0 && w[0] != "max" {
			return true
		}
	}
	return false
}

// canMove reports whether we may bring processes to version 2 cgroups in dir.
func canMove(dir string) bool {
	return unix.Access(filepath.Join(dir, "cgroup.procs"), unix.W_OK) == nil
}

// tryMkdir finds out whether a cgroup can be made in dir.
func tryMkdir(dir string) error {
	try, err := os.MkdirTemp(dir, "specbox-try-")
	if err != nil {
		return err
	}
	return os.Remove(try)
}

// missing names the limits that no cgroup can hold.
func (g *groups) missing() []string {
	var out []string
	for _, c := range limiters {
		if g.v1[c] == "" && !slices.Contains(g.v2ctl, c) {
			out = append(out, c)
		}
	}
	return out
}

// A group is the cgroup of one sandbox, in as many hierarchies as it takes.
type group struct {
	v2   string            // "" if it has none
	v1   map[string]string // controller -> folder
	ctl2 []string          // controllers of v2
	dirs []string          // all folders, each once
	over int64             // memory limit, for messages
}

// plan returns a group by that name, which does not exist yet.
func (g *groups) plan(name string) *group {
	out := &group{v1: map[string]string{}, ctl2: g.v2ctl}
	if g.v2 != "" {
		out.v2 = filepath.Join(g.v2, name)
		out.dirs = append(out.dirs, out.v2)
	}
	for _, c := range version1 {
		if parent := g.v1[c]; parent != "" && (c != "freezer" || g.v2 == "") {
			out.v1[c] = filepath.Join(parent, name)
			if !slices.Contains(out.dirs, out.v1[c]) { // cpu and cpuacct may be one
				out.dirs = append(out.dirs, out.v1[c])
			}
		}
	}
	return out
}

// cpuPeriod is the time over which a share of the CPUs is dealt out, in µs.
const cpuPeriod = 100_000

// make makes the folders and sets limits; 0 means none. The caller removes the
// group also after an error.
func (g *group) make(memory int64, pids int, cpus float64) error {
	for _, d := range g.dirs {
		if err := os.Mkdir(d, 0o755); err != nil {
			return fmt.Errorf("make its cgroup: %w", err)
		}
	}
	quota := strconv.Itoa(max(1000, int(cpus*cpuPeriod))) // the kernel takes no less than 1 ms
	var err error
	set := func(dir, file, value string) { err = errors.Join(err, write(dir, file, value)) }
	if memory > 0 {
		g.over = memory
		bytes := strconv.FormatInt(memory, 10)
		if d := g.v1["memory"]; d != "" {
			set(d, "memory.limit_in_bytes", bytes)
			_ = write(d, "memory.memsw.limit_in_bytes", bytes) // absent where swap is not accounted
		} else if g.has2("memory") {
			set(g.v2, "memory.max", bytes)
			_ = write(g.v2, "memory.swap.max", "0")
			_ = write(g.v2, "memory.oom.group", "1")
		}
	}
	if pids > 0 {
		if d := g.v1["pids"]; d != "" {
			set(d, "pids.max", strconv.Itoa(pids))
		} else if g.has2("pids") {
			set(g.v2, "pids.max", strconv.Itoa(pids))
		}
	}
	if cpus > 0 {
		if d := g.v1["cpu"]; d != "" {
			set(d, "cpu.cfs_period_us", strconv.Itoa(cpuPeriod))
			set(d, "cpu.cfs_quota_us", quota)
		} else if g.has2("cpu") {
			set(g.v2, "cpu.max", quota+" "+strconv.Itoa(cpuPeriod))
		}
	}
	if err != nil {
		return fmt.Errorf("set the limits of its cgroup: %w", err)
	}
	return nil
}

func (g *group) has2(c string) bool { return g.v2 != "" && slices.Contains(g.ctl2, c) }

// holds reports whether the group limits what controller c is for.
func (g *group) holds(c string) bool { return g.v1[c] != "" || g.has2(c) }

// add moves a process in. Its children follow, those it has do not.
func (g *group) add(pid int) error {
	for _, d := range g.dirs {
		if err := write(d, "cgroup.procs", strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("move process %d to its cgroup: %w", pid, err)
		}
	}
	return nil
}

// setIdle gives the group the idle class of the scheduler, or the ordinary one.
// It is false if the group has no say in that.
func (g *group) setIdle(idle bool) (bool, error) {
	dir, file, least, usual := g.v1["cpu"], "cpu.shares", "2", "1024"
	if dir == "" && g.has2("cpu") {
		dir, file, least, usual = g.v2, "cpu.weight", "1", "100"
	}
	if dir == "" {
		return false, nil
	}
	class, weight := "0", usual
	if idle {
		class, weight = "1", least
	}
	if write(dir, "cpu.idle", class) == nil {
		return true, nil
	}
	if err := write(dir, file, weight); err != nil { // Linux before 5.15
		return true, fmt.Errorf("set the weight of its cgroup: %w", err)
	}
	return true, nil
}

// threads returns the threads inside.
func (g *group) threads() []int {
	if g.v2 != "" {
		return numbers(filepath.Join(g.v2, "cgroup.threads"))
	}
	if len(g.dirs) == 0 {
		return nil
	}
	return numbers(filepath.Join(g.dirs[0], "tasks"))
}

// procs returns the processes inside.
func (g *group) procs() []int { return groupProcs(g.dirs) }

func groupProcs(dirs []string) []int {
	var out []int
	for _, d := range dirs {
		for _, n := range numbers(filepath.Join(d, "cgroup.procs")) {
			if n > 0 && !slices.Contains(out, n) {
				out = append(out, n)
			}
		}
	}
	return out
}

// kill kills all inside at once, where the kernel can do that.
func (g *group) kill() {
	if g.v2 != "" {
		_ = write(g.v2, "cgroup.kill", "1")
	}
}

// memory returns what is in use now, without file pages that can be dropped,
// and the peak. It is false if the group does not count memory.
func (g *group) memory() (now, peak int64, ok bool) {
	switch {
	case g.v1["memory"] != "":
		d := g.v1["memory"]
		now, ok = number(d, "memory.usage_in_bytes")
		peak, _ = number(d, "memory.max_usage_in_bytes")
		now -= field(d, "memory.stat", "total_inactive_file")
	case g.has2("memory"):
		now, ok = number(g.v2, "memory.current")
		peak, _ = number(g.v2, "memory.peak") // since Linux 5.19
		now -= field(g.v2, "memory.stat", "inactive_file")
	}
	return max(now, 0), peak, ok
}

// oomKills returns how many processes were killed for want of memory.
func (g *group) oomKills() int64 {
	if d := g.v1["memory"]; d != "" {
		return field(d, "memory.oom_control", "oom_kill")
	}
	if g.has2("memory") {
		return field(g.v2, "memory.events", "oom_kill")
	}
	return 0
}

// remove removes the folders. Nothing runs inside any more; the kernel may
// need a moment to see it.
func (g *group) remove() error { return removeGroups(g.dirs) }

func removeGroups(dirs []string) error {
	deadline := time.Now().Add(2 * time.Second)
	var errs []error
	for _, d := range dirs {
		for {
			err := unix.Rmdir(d)
			if err == nil || err == unix.ENOENT {
				break
			}
			if err != unix.EBUSY || time.Now().After(deadline) {
				errs = append(errs, fmt.Errorf("remove cgroup %s: %w", d, err))
				break
			}
			<-time.After(2 * time.Millisecond)
		}
	}
	return errors.Join(errs...)
}

// write writes a value to a file of a cgroup.
func write(dir, file, value string) error {
	return os.WriteFile(filepath.Join(dir, file), []byte(value), 0o644)
}

func numbers(file string) []int {
	var out []int
	for _, w := range words(file) {
		if n, err := strconv.Atoi(w); err == nil {
			out = append(out, n)
		}
	}
	return out
}

func words(file string) []string {
	b, _ := os.ReadFile(file)
	return strings.Fields(string(b))
}

func has(all []string, want ...string) bool {
	for _, w := range want {
		if !slices.Contains(all, w) {
			return false
		}
	}
	return true
}

func number(dir, file string) (int64, bool) {
	w := words(filepath.Join(dir, file))
	if len(w) == 0 {
		return 0, false
	}
	n, err := strconv.ParseInt(w[0], 10, 64)
	return n, err == nil
}

// field returns the number behind a key in a file of "key number" lines.
func field(dir, file, key string) int64 {
	w := words(filepath.Join(dir, file))
	for i := 0; i+1 < len(w); i += 2 {
		if w[i] == key {
			n, _ := strconv.ParseInt(w[i+1], 10, 64)
			return n
		}
	}
	return 0
}

// A mount is a line of /proc/self/mountinfo.
type mount struct {
	root    string // what of the file system is mounted
	point   string
	kind    string
	options []string // of the file system
}

func parseMount(line string) (mount, bool) {
	before, after, ok := strings.Cut(line, " - ")
	b, a := strings.Fields(before), strings.Fields(after)
	if !ok || len(b) < 5 || len(a) < 3 {
		return mount{}, false
	}
	return mount{root: unescape(b[3]), point: unescape(b[4]), kind: a[0], options: strings.Split(a[2], ",")}, true
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// inside returns where the path of a cgroup is found below the mount.
func (m mount) inside(path string) (string, bool) {
	rel, err := filepath.Rel(m.root, path)
	if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
		return "", false
	}
	return filepath.Join(m.point, rel), true
}
