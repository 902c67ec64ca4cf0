package process

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/wire"
	"golang.org/x/sys/unix"
)

// A body is what the two kinds of instances do differently. Its methods are
// called while the instance lives; kill also after its process has ended.
type body interface {
	// server returns the pid of the server itself, or of the nearest ancestor.
	server() int
	// terminate asks the server to end.
	terminate()
	// kill ends all processes of the instance and waits for that. It returns
	// an error that names those that do not die.
	kill() error
	// pids returns all processes of the instance.
	pids() []int
	// exit says how the server ended. The process has been reaped.
	exit(*os.ProcessState) string
	// close gives back what the body holds. Nothing of the instance lives.
	close()
}

// An instance is one running server.
type instance struct {
	b     *Backend
	id    string
	spec  *sandbox.Spec
	body  body
	group *group
	dir   string // in the run folder

	lines  *wire.Lines
	stdin  *os.File
	stdout *os.File
	stderr *os.File
	log    *log

	exited chan struct{} // closed when the process that we started has ended
	gone   chan struct{} // closed when nothing is left of the instance
	close  func() error  // once

	speculative bool // started in the idle class

	turn    chan struct{} // holds one value while somebody changes what follows
	idle    bool          // in the idle class
	frozen  bool
	hushed  bool           // halted, and out of the idle class, while a demanded one is set up
	closing bool           // and not to be frozen any more
	later   sync.WaitGroup // of looking for threads once more

	mu     sync.Mutex
	ended  bool
	forced bool // by Close, with KILL
	exit   string
	now    int64 // memory, when it ended
	peak   int64
	err    error // what could not be given back
}

// How long Close waits for what KILL does at once, and for an output that
// nobody can write to any more to end.
const (
	killPatience  = 5 * time.Second
	drainPatience = 500 * time.Millisecond
)

// reserve returns an instance that has its folder and its cgroup, and no
// process. An instance that never gets one is given back by release.
func (b *Backend) reserve(id string, spec *sandbox.Spec, stderr io.Writer, idle bool) (*instance, error) {
	i := &instance{
		b: b, id: id, spec: spec, speculative: idle, idle: idle,
		turn:   make(chan struct{}, 1),
		log:    &log{w: stderr},
		exited: make(chan struct{}),
		gone:   make(chan struct{}),
	}
	if stderr == nil {
		i.log.w = io.Discard
	}
	i.close = sync.OnceValue(i.stop)
	i.group = b.groups.plan(groupPrefix(b.run.name) + id)
	var err error
	if i.dir, err = b.run.sandbox(id, record{Server: spec.Server, Cgroups: i.group.dirs}); err != nil {
		return nil, err
	}
	pids := spec.Pids
	if pids > 0 && spec.Isolation == config.Process {
		pids++ // bubblewrap's own process 1
	}
	if err := i.group.make(spec.Memory, pids, spec.CPUs); err != nil {
		return nil, errors.Join(err, i.release())
	}
	return i, nil
}

// release gives back what reserve took.
func (i *instance) release() error { return errors.Join(i.group.remove(), removeAll(i.dir)) }

// start starts the process of a reserved instance, with the standard streams
// and more files from descriptor 3 on. From then on run gives everything back.
func (i *instance) start(path string, argv []string, attr os.ProcAttr, more []*os.File, make func(*os.Process) body) (*os.Process, error) {
	var ours, theirs [3]*os.File
	giveBack := func(fs [3]*os.File) {
		for _, f := range fs {
			f.Close() // nil is an error, and no harm
		}
	}
	var err error
	if theirs[0], ours[0], err = os.Pipe(); err == nil {
		if ours[1], theirs[1], err = os.Pipe(); err == nil {
			ours[2], theirs[2], err = os.Pipe()
		}
	}
	defer giveBack(theirs)
	if err != nil {
		giveBack(ours)
		return nil, fmt.Errorf("pipes: %w", err)
	}
	attr.Files = append(theirs[:], more...)
	p, err := i.b.starts.start(path, argv, &attr)
	if err != nil {
		giveBack(ours)
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	i.stdin, i.stdout, i.stderr = ours[0], ours[1], ours[2]
	i.lines = wire.NewLines(&output{f: i.stdout}, i.stdin, func() error {
		i.stdin.Close()
		i.stdout.Close()
		return nil
	}, i.spec.Limit, i.log.noise)
	i.body = make(p)
	go i.run(p)
	return p, nil
}

// abandon ends an instance whose start went wrong, and waits until it is gone.
func (i *instance) abandon(p *os.Process) {
	_ = p.Kill()
	_ = i.body.kill()
	<-i.gone
	_ = i.lines.Close()
	i.log.end()
}

// run follows the process until the instance is gone and gives back what it
// took.
func (i *instance) run(p *os.Process) {
	var logged sync.WaitGroup
	logged.Go(func() { _, _ = io.Copy(i.log, i.stderr) })
	state, err := i.b.starts.reap(p)
	close(i.exited)
	i.unfreezable()
	i.later.Wait()
	killErr := i.kill()
	i.b.starts.sweep()
	i.settle(state, err)
	i.stdin.Close()
	endReading(i.stdout)
	endReading(i.stderr)
	logged.Wait()
	i.stderr.Close()
	i.body.close()
	err = errors.Join(killErr, i.group.remove(), removeAll(i.dir))
	if err != nil {
		i.b.log.Error("a sandbox left something behind", "server", i.spec.Server, "sandbox", i.id, "error", err)
	}
	i.mu.Lock()
	i.err = err
	i.mu.Unlock()
	i.b.forget(i.id)
	close(i.gone)
}

// settle keeps the last figures and says how the server ended.
func (i *instance) settle(state *os.ProcessState, err error) {
	now, peak, _ := i.group.memory()
	oom := i.group.oomKills() > 0
	exit := "its end is not known"
	if err == nil {
		exit = i.body.exit(state)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	switch memory := "out of memory (limit " + mebibytes(i.group.over) + ")"; {
	case oom && !i.forced && exit == killedText:
		exit = "killed: " + memory
	case oom:
		exit += "; a process was killed: " + memory
	case i.forced:
		exit = "killed: it did not stop when asked to"
	}
	i.ended, i.exit, i.now, i.peak = true, exit, now, max(i.peak, peak)
}

// killedText is what body.exit says of a server that ended by KILL.
const killedText = "killed"

func mebibytes(n int64) string {
	if n%(1<<20) == 0 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}

// endReading lets a reader of a pipe have what is in it and then its end. All
// who could write are dead; if somebody got away, the pipe is cut.
func endReading(f *os.File) {
	conn, err := f.SyscallConn()
	if err != nil {
		return // closed
	}
	over := false
	_ = conn.Control(func(fd uintptr) { over = poll(int(fd), 0, unix.POLLHUP, drainPatience) })
	if !over {
		_ = f.SetReadDeadline(time.Unix(1, 0))
	}
}

// An output is the pipe that a server speaks through. Every end of it is io.EOF: a
// cut and a close are ends too.
type output struct {
	f    *os.File
	wide bool
}

// What a pipe holds, and that of a server which has much to say: with the usual
// size, server and reader wait for one another at every piece of a large result.
const (
	usualPipe = 64 << 10
	widePipe  = 256 << 10
)

func (o *output) Read(p []byte) (int, error) {
	n, err := o.f.Read(p)
	if err != nil {
		err = io.EOF
	}
	if n == len(p) && n >= usualPipe && !o.wide {
		o.wide = true
		o.widen()
	}
	return n, err
}

// widen enlarges the pipe. Where that is not granted, it is as it was.
func (o *output) widen() {
	conn, err := o.f.SyscallConn()
	if err != nil {
		return // closed
	}
	_ = conn.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, widePipe) })
}

// A log is the writer that a server's words go to. Two goroutines write; when
// the instance is closed nobody does.
type log struct {
	mu    sync.Mutex // held while w writes: it orders the writes
	w     io.Writer
	early []byte // what came first, for the error of a start
}

// maxEarly bounds what is kept for an error.
const maxEarly = 2 << 10

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.early = append(l.early, p[:min(len(p), maxEarly-len(l.early))]...)
	_, _ = l.w.Write(p) // a log that is full must not stop the server
	return len(p), nil
}

func (l *log) say(line string) { _, _ = fmt.Fprintf(l, "specbox: %s\n", line) }

func (l *log) noise(line []byte) { _, _ = fmt.Fprintf(l, "stdout: %s\n", line) }

// first returns what was said first, as a part of an error.
func (l *log) first() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if said := strings.TrimSpace(string(l.early)); said != "" {
		return ": " + said
	}
	return ""
}

func (l *log) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.w = io.Discard
}

// Transport returns the connection to the server.
func (i *instance) Transport() wire.Transport { return i.lines }

// Usage returns what the instance is using; when it has ended, what it last did.
func (i *instance) Usage() sandbox.Usage {
	i.mu.Lock()
	ended := sandbox.Usage{Memory: i.now, Peak: i.peak, Exit: i.exit}
	done := i.ended
	i.mu.Unlock()
	if done {
		return ended
	}
	now, peak, ok := i.group.memory()
	if !ok {
		now, peak = residentMemory(i.body.pids())
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.peak = max(i.peak, peak, now)
	return sandbox.Usage{PID: i.body.server(), Memory: now, Peak: i.peak}
}

// Close takes the instance down; see [sandbox.Instance].
func (i *instance) Close() error { return i.close() }

// stop is Close, once: EOF, TERM, KILL.
func (i *instance) stop() error {
	i.stdin.Close() // and whoever writes to it is let go
	i.unfreezable()
	if !i.wait(i.spec.StopGrace) {
		i.body.terminate()
		if !i.wait(i.spec.StopGrace) {
			i.mu.Lock()
			i.forced = true
			i.mu.Unlock()
			_ = i.kill()
		}
	}
	late := time.NewTimer(2*killPatience + 2*drainPatience)
	defer late.Stop()
	select {
	case <-i.gone:
	case <-late.C:
		return fmt.Errorf("server %q: sandbox %s does not end: process %d is stuck in the kernel", i.spec.Server, i.id, i.body.server())
	}
	_ = i.lines.Close()
	i.log.end()
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.err
}

// kill ends all processes of the instance. In the idle class they would die when
// nobody else wants a processor.
func (i *instance) kill() error {
	if i.speculative {
		_, _ = i.setAll(false)
	}
	return i.body.kill()
}

// wait reports whether the process ends within d.
func (i *instance) wait(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-i.exited:
		return true
	case <-t.C:
		return false
	}
}
