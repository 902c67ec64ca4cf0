// Package process runs servers as processes of this machine: in a bubblewrap
// sandbox (isolation "process"), or as plain children (isolation "none").
//
// Its laws:
//
//   - A sandbox sees what its spec names and what its program needs to run, and
//     nothing else: no other process, no network but the allowed hosts, no file
//     of the host outside its mounts, no capability.
//   - A secret of a server is in the environment of that server alone: in no
//     argument list, no log, no error, no file.
//   - Limits hold from the first instruction of the server on.
//   - What an instance took is given back when it is gone, by whatever death:
//     processes, cgroups, folders, sockets, descriptors.
//   - What is started by Speculate takes only the processor's time that nobody
//     else wants, until it is promoted.
//   - A frozen instance uses no processor, and can be thawed, closed, killed and
//     reaped like any other.
//   - When SpecBox is killed its sandboxes die with it; what the kernel cannot
//     end by itself, the next [Reap] does.
//
// It needs Linux. A program that allows sandboxes some hosts of the network
// calls [Init] first thing in main.
package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/sandbox"
	"golang.org/x/sys/unix"
)

// Config says how a [Backend] works.
type Config struct {
	// Run is the folder of what running SpecBox instances hold on to. Each
	// Backend makes and locks a folder of its own in it, which [Reap] finds
	// when its owner is dead. It must be set, and is made if it is missing.
	Run string
	// Private are host folders that no sandbox sees, whatever is mounted: what a
	// mount shows of them is an empty folder, save for mounts inside of them.
	Private []string
	// Cgroup is where the cgroups of sandboxes are made. "" means below
	// SpecBox's own; "none" means that limits are set by rlimits alone; else
	// it is the absolute path of a writable (delegated) version 2 folder.
	Cgroup string
	// Log takes what an operator should know. nil means that nobody does.
	Log *slog.Logger
}

// A Backend makes instances of isolation process and none. It is safe for
// concurrent use.
type Backend struct {
	log    *slog.Logger
	hidden []string // Config.Private, without symbolic links
	run    *run
	groups *groups
	starts *starter
	bwrap  bwrap
	quiet  quiet
	idles  bool // threads can be taken out of the idle class again

	life context.Context // ended by Close
	end  context.CancelFunc

	mu     sync.Mutex
	closed bool
	live   map[string]*instance // nil while Create is about it
	work   sync.WaitGroup       // what was begun by Create, and is not gone
}

// ErrClosed is the error of Create on a Backend that was closed.
var ErrClosed = errors.New("the process backend is closed")

// New returns a Backend, with a run folder made and locked. [Backend.Close]
// gives both back. Descriptors that the program inherited, other than the
// standard streams, are no longer passed on to what it starts.
func New(c Config) (*Backend, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Run == "" {
		return nil, errors.New("process backend: Config.Run names no folder")
	}
	if err := keepDescriptors(); err != nil {
		return nil, err
	}
	g, err := findGroups(c.Cgroup)
	if err != nil {
		return nil, err
	}
	for _, w := range g.missing() {
		c.Log.Warn("a limit of sandboxes is weaker than configured", "limit", w, "hint", "see specbox doctor")
	}
	r, err := openRun(c.Run)
	if err != nil {
		return nil, err
	}
	b := &Backend{log: c.Log, hidden: resolved(c.Private), run: r, groups: g, starts: newStarter(), live: map[string]*instance{}, idles: canIdle()}
	if !b.idles && slices.Contains(g.missing(), "cpu") {
		c.Log.Warn("speculative starts are not in the idle class", "reason", noIdle, "hint", "see specbox doctor")
	}
	b.bwrap.covers = sync.OnceValue(covers)
	b.life, b.end = context.WithCancel(context.Background())
	return b, nil
}

// resolved returns paths as the kernel sees them.
func resolved(paths []string) []string {
	out := make([]string, len(paths))
	for i, p := range paths {
		out[i] = realPath(p)
	}
	return out
}

// Create makes an instance; see [sandbox.Backend].
func (b *Backend) Create(ctx context.Context, id string, spec *sandbox.Spec, stderr io.Writer) (sandbox.Instance, error) {
	return b.begin(ctx, id, spec, stderr, false)
}

// begin is Create, in the idle class or not.
func (b *Backend) begin(ctx context.Context, id string, spec *sandbox.Spec, stderr io.Writer, idle bool) (sandbox.Instance, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("server %q: %w", spec.Server, err)
	}
	if !validID(id) {
		return nil, fmt.Errorf("server %q: sandbox id %q is not made of a-z, 0-9 and '-'", spec.Server, id)
	}
	if len(spec.Argv) == 0 {
		return nil, fmt.Errorf("server %q: there is no command to run", spec.Server)
	}
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil, fmt.Errorf("server %q: %w", spec.Server, ErrClosed)
	}
	if _, ok := b.live[id]; ok {
		b.mu.Unlock()
		return nil, fmt.Errorf("server %q: sandbox id %q is in use", spec.Server, id)
	}
	b.live[id] = nil
	b.work.Add(1)
	b.mu.Unlock()

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(b.life, func() { cancel(ErrClosed) })()
	if !idle {
		defer b.demand()()
	} else if err := b.lull(ctx); err != nil {
		b.forget(id)
		return nil, fmt.Errorf("server %q: %w", spec.Server, err)
	}
	i, err := b.create(ctx, id, spec, stderr, idle)
	if err != nil {
		err = cmp.Or(context.Cause(ctx), err)
		return nil, fmt.Errorf("server %q: %w", spec.Server, err)
	}
	b.mu.Lock()
	closed := b.closed
	if _, ok := b.live[id]; ok { // else it is gone already
		b.live[id] = i
	}
	b.mu.Unlock()
	if closed {
		return nil, errors.Join(fmt.Errorf("server %q: %w", spec.Server, ErrClosed), i.Close())
	}
	return i, nil
}

func (b *Backend) create(ctx context.Context, id string, spec *sandbox.Spec, stderr io.Writer, idle bool) (*instance, error) {
	switch spec.Isolation {
	case config.Process:
		return b.createSandbox(ctx, id, spec, stderr, idle)
	case config.None:
		return b.createPlain(ctx, id, spec, stderr, idle)
	}
	b.forget(id)
	return nil, fmt.Errorf("the process backend does not know isolation %q: it knows %q and %q", spec.Isolation, config.Process, config.None)
}

// forget ends what Create began for id: each id that create was called for is
// forgotten once, when nothing of it is left.
func (b *Backend) forget(id string) {
	b.mu.Lock()
	delete(b.live, id)
	b.mu.Unlock()
	b.work.Done()
}

// Close takes down the instances that are left, waits until all are gone, and
// gives the run folder back. Create fails from then on. It may be called more
// than once; later calls return at once.
func (b *Backend) Close() error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	var left []*instance
	for _, i := range b.live {
		if i != nil {
			left = append(left, i)
		}
	}
	b.mu.Unlock()
	b.end() // what Create is about ends itself
	failed := make(chan error, len(left))
	for _, i := range left {
		go func() { failed <- i.Close() }()
	}
	var errs []error
	for range left {
		errs = append(errs, <-failed)
	}
	b.work.Wait()
	b.starts.close()
	errs = append(errs, b.groups.leave(), b.run.close())
	return errors.Join(errs...)
}

// keepDescriptors keeps what SpecBox inherited from its parent from the servers.
// What Go opens is closed on exec already.
func keepDescriptors() error {
	err := unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC)
	if err == nil {
		return nil
	}
	all, err := os.ReadDir("/proc/self/fd") // Linux before 5.11
	if err != nil {
		return fmt.Errorf("inherited descriptors: %w", err)
	}
	for _, e := range all {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// validID reports whether id can be part of a file name, of a cgroup's and of
// the marker.
func validID(id string) bool {
	return id != "" && len(id) <= 100 && strings.Trim(id, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// removeAll is os.RemoveAll, also for folders that a server made unwritable.
func removeAll(dir string) error {
	if err := os.RemoveAll(dir); err == nil || os.Geteuid() == 0 {
		return err
	}
	makeWritable(dir)
	return os.RemoveAll(dir)
}
