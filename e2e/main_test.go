// Package e2e_test runs the real specbox program with real servers and real
// clients, and with a server that misbehaves on request (internal/nasty).
package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	house "github.com/specbox/specbox"
	"github.com/specbox/specbox/servers"
)

// Programs that were built for the tests.
var specbox, nasty string

func TestMain(m *testing.M) {
	house.Init() // a house in this process makes sandboxes by this very program
	// Orphans come to this process, so that none is overlooked.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		panic(err)
	}
	dir, err := os.MkdirTemp("", "e2e")
	if err != nil {
		panic(err)
	}
	specbox, nasty = filepath.Join(dir, "specbox"), filepath.Join(dir, "nasty")
	for program, pkg := range map[string]string{specbox: "../cmd/specbox", nasty: "../internal/nasty"} {
		build := exec.Command("go", "build", "-o", program, pkg)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build %s: %v\n%s", pkg, err, out)
			os.Exit(1)
		}
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// running holds the pids of the boxes that run, so that what they run is not
// taken for what another one left.
var running sync.Map

// An object is a JSON object that a test writes.
type object = map[string]any

// A box is a specbox that serves.
type box struct {
	cmd    *exec.Cmd
	ended  chan struct{}
	url    string // of /mcp
	state  string
	output *output
}

// An output keeps what a program prints and lets a test wait for a part of it.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
	more chan struct{} // closed when there is more
}

func newOutput() *output { return &output{more: make(chan struct{})} }

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.more)
	o.more = make(chan struct{})
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// find waits until what was printed matches, and returns the submatches.
func (o *output) find(ctx context.Context, re *regexp.Regexp) ([]string, error) {
	for {
		o.mu.Lock()
		m, more := re.FindStringSubmatch(o.text.String()), o.more
		o.mu.Unlock()
		if m != nil {
			return m, nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return nil, fmt.Errorf("no %s in:\n%s", re, o)
		}
	}
}

var listens = regexp.MustCompile(`serves .* at (http://\S+/mcp)`)

// serve starts a specbox with these servers, on a state folder of its own.
func serve(t *testing.T, servers object, flags ...string) *box {
	t.Helper()
	return serveFile(t, t.TempDir(), object{"servers": servers}, flags...)
}

// serveFile starts a specbox with a whole configuration on a state folder.
func serveFile(t *testing.T, state string, config object, flags ...string) *box {
	t.Helper()
	b, err := json.MarshalIndent(config, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "specbox.json")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	x := start(t, state, append([]string{"serve", "-f", file, "--listen", "127.0.0.1:0"}, flags...)...)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	ctx = endedWith(ctx, x.ended)
	m, err := x.output.find(ctx, listens)
	if err != nil {
		t.Fatal(err)
	}
	x.url = m[1]
	x.note()
	return x
}

// instances are the names that boxes gave themselves, by state folder: those of
// their run folders, which their cgroups have too.
var instances sync.Map // state -> *sync.Map of names

// note remembers how the box calls itself.
func (x *box) note() {
	names, _ := instances.LoadOrStore(x.state, new(sync.Map))
	dirs, _ := filepath.Glob(filepath.Join(x.state, "run", "*"))
	for _, d := range dirs {
		names.(*sync.Map).Store(filepath.Base(d), true)
	}
}

// endedWith returns a context that ends with ctx, or when c is closed.
func endedWith(ctx context.Context, c <-chan struct{}) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		select {
		case <-c:
		case <-ctx.Done():
		}
	}()
	return ctx
}

// start starts specbox with arguments. It is taken down at the end of the test,
// and must then have left nothing behind.
func start(t *testing.T, state string, args ...string) *box {
	t.Helper()
	x := &box{cmd: exec.Command(specbox, append([]string{"--state", state}, args...)...), state: state, ended: make(chan struct{}), output: newOutput()}
	x.begin(t)
	return x
}

// begin starts the program of a box, and sees to its end.
func (x *box) begin(t *testing.T) {
	t.Helper()
	x.cmd.Stdout, x.cmd.Stderr = x.output, x.output
	x.cmd.WaitDelay = 5 * time.Second
	if err := x.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	running.Store(x.cmd.Process.Pid, true)
	go func() {
		_ = x.cmd.Wait()
		running.Delete(x.cmd.Process.Pid)
		close(x.ended)
	}()
	t.Cleanup(func() {
		x.stop(t)
		if t.Failed() {
			t.Logf("%q printed:\n%s", x.cmd.Args[1:], x.output)
		}
	})
}

// stop ends the box as a user does, within a bound, and looks for what it left.
func (x *box) stop(t *testing.T) {
	t.Helper()
	_ = x.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-x.ended:
	case <-time.After(20 * time.Second):
		t.Errorf("specbox did not stop within 20 s")
		_ = x.cmd.Process.Kill()
		<-x.ended
	}
	x.nothingLeft(t)
}

// kill ends the box as nobody should.
func (x *box) kill(t *testing.T) {
	t.Helper()
	if err := x.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-x.ended
}

// run runs another specbox command on the same state folder.
func (x *box) run(t *testing.T, args ...string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), specbox, append([]string{"--state", x.state}, args...)...)
	var errs bytes.Buffer
	c.Stderr = &errs
	out, err := c.Output()
	if err != nil {
		t.Fatalf("specbox %s: %v\n%s%s", strings.Join(args, " "), err, out, &errs)
	}
	return string(out)
}

// A psRow is what specbox ps --json tells of a sandbox.
type psRow struct {
	ID      string
	Server  string
	Tenant  string
	Session string
	State   string
	Cause   string
	PID     int
	Memory  int64 `json:"memory_bytes"`
}

// ps returns the sandboxes that are alive, but for those of which only the lists
// are being read.
func (x *box) ps(t *testing.T) []psRow {
	t.Helper()
	var rows []psRow
	decode(t, x.run(t, "ps", "--json"), &rows)
	return slices.DeleteFunc(rows, func(r psRow) bool { return r.Cause == "catalog" })
}

// A catalogRow is what specbox catalog ls --json tells of a server.
type catalogRow struct {
	Server    string
	Tools     int
	Filled    string `json:"filled_at"`
	Error     string
	Truncated json.RawMessage
}

func (x *box) catalog(t *testing.T) map[string]catalogRow {
	t.Helper()
	var rows []catalogRow
	decode(t, x.run(t, "catalog", "ls", "--json"), &rows)
	out := map[string]catalogRow{}
	for _, r := range rows {
		out[r.Server] = r
	}
	return out
}

// filled waits until the lists of the servers are there, or an error is.
func (x *box) filled(t *testing.T, names ...string) {
	t.Helper()
	eventually(t, 60*time.Second, "the catalogue is filled", func() string {
		rows := x.catalog(t)
		for _, name := range names {
			if r := rows[name]; r.Tools == 0 && r.Error == "" {
				return fmt.Sprintf("%s: %+v", name, r)
			}
		}
		return ""
	})
}

// eventually waits until look returns "", and fails the test with what it
// returned last if that does not come.
func eventually(t *testing.T, d time.Duration, what string, look func() string) {
	t.Helper()
	deadline := time.After(d)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		missing := look()
		if missing == "" {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: not within %v: %s", what, d, missing)
		}
	}
}

func decode(t *testing.T, s string, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(s), v); err != nil {
		t.Fatalf("%v in %s", err, s)
	}
}

// A proc is a process as /proc tells.
type proc struct {
	pid, parent int
	state       string
	line        string // its command line
}

func processes() map[int]proc {
	out := map[int]proc{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		line, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		parent, _ := strconv.Atoi(fields[1])
		out[pid] = proc{pid: pid, parent: parent, state: fields[0], line: strings.ReplaceAll(string(line), "\x00", " ")}
	}
	return out
}

// below returns the processes that descend from pid.
func below(pid int) []proc { return descend(pid, func(int) bool { return false }) }

// orphans returns the processes of this test that belong to no box that runs.
func orphans() []proc {
	return descend(os.Getpid(), func(pid int) bool { _, ok := running.Load(pid); return ok })
}

// descend returns the processes that descend from pid on a way without any that
// cut reports.
func descend(pid int, cut func(pid int) bool) []proc {
	all := processes()
	var out []proc
	for _, p := range slices.SortedFunc(maps.Values(all), func(a, b proc) int { return a.pid - b.pid }) {
		for q := p; q.pid > 1 && !cut(q.pid); q = all[q.parent] {
			if q.parent == pid {
				out = append(out, p)
				break
			}
		}
	}
	return out
}

// nothingLeft looks for what the box left behind after its end: processes,
// cgroups, files.
func (x *box) nothingLeft(t *testing.T) {
	t.Helper()
	eventually(t, 10*time.Second, "no process is left", func() string {
		for _, p := range orphans() {
			switch {
			case p.state == "Z" && p.parent == os.Getpid() && p.line == "":
				reap(p.pid)
			case strings.Contains(p.line, nasty), strings.Contains(p.line, x.state), strings.Contains(p.line, "bwrap"), strings.Contains(p.line, "node_modules"):
				return fmt.Sprintf("%+v", p)
			}
		}
		return ""
	})
	if dirs, _ := filepath.Glob(filepath.Join(x.state, "run", "*")); len(dirs) > 0 {
		t.Errorf("left in the state folder: %q", dirs)
	}
	if groups := x.cgroups(); len(groups) > 0 {
		t.Errorf("left cgroups: %q", groups)
	}
}

// cgroups returns the cgroup folders of this box, and of those that ran on its
// state folder before.
func (x *box) cgroups() []string {
	names, ok := instances.Load(x.state)
	if !ok {
		return nil
	}
	var out []string
	_ = filepath.WalkDir("/sys/fs/cgroup", func(p string, d os.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil
		}
		if instance, _, ok := strings.Cut(strings.TrimPrefix(d.Name(), "specbox-"), "-"); ok {
			if _, ours := names.(*sync.Map).Load(instance); ours {
				out = append(out, p)
			}
		}
		return nil
	})
	return out
}

// reap takes a zombie that came to this process when its parent died. Those of
// this process itself are waited for where they were started.
func reap(pid int) {
	var status unix.WaitStatus
	_, _ = unix.Wait4(pid, &status, unix.WNOHANG, nil)
}

// bad returns a nasty server with flags, as a configuration has it.
func bad(flags ...string) object { return object{"command": nasty, "args": flags} }

// with returns o with more in it.
func with(o object, more object) object {
	out := maps.Clone(o)
	maps.Copy(out, more)
	return out
}

// real installs servers of others and returns their place and their entries.
func real(t *testing.T, names ...string) (servers.Place, []servers.Server, object) {
	t.Helper()
	dir, err := servers.Dir()
	if err != nil {
		t.Fatal(err)
	}
	if err := servers.Install(t.Context(), dir, nil, names...); err != nil {
		t.Fatal(err)
	}
	place, err := servers.Lay(dir, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	all, err := servers.Select(names...)
	if err != nil {
		t.Fatal(err)
	}
	entries := object{}
	for _, s := range all {
		e := place.Entry(s)
		entries[s.Name] = object{"command": e.Command, "args": e.Args, "env": e.Env, "mounts": e.SpecBox["mounts"]}
	}
	return place, all, entries
}

// lines yields the lines of r to f, for a program's output.
func lines(r io.Reader, f func(string)) {
	for s := bufio.NewScanner(r); s.Scan(); {
		f(s.Text())
	}
}
