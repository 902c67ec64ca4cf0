package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/wire"
	"golang.org/x/sys/unix"
)

// An instance is one running container.
type instance struct {
	b         *Backend
	id        string
	spec      *sandbox.Spec
	container string
	log       *log

	conn   client.HijackedResponse
	pipe   pipe
	lines  *wire.Lines
	wait   client.ContainerWaitResult
	unwait context.CancelFunc
	pid    int // on the engine's machine
	group  cgroup

	draining sync.WaitGroup // of what is left to read when the transport is closed

	exited chan struct{} // closed when the server has ended, or is lost
	gone   chan struct{} // closed when nothing is left, or it is removed later
	close  func() error  // once

	turn    chan struct{} // holds one value while somebody changes what follows
	idle    bool          // with the least weight
	frozen  bool
	closing bool // and not to be frozen any more

	mu     sync.Mutex
	ended  bool
	forced bool // by Close, with KILL
	exit   string
	now    int64 // memory, when it was last asked for
	peak   int64
	err    error // what could not be given back
}

func newInstance(b *Backend, id string, spec *sandbox.Spec, container string, stderr io.Writer, idle bool) *instance {
	if stderr == nil {
		stderr = io.Discard
	}
	i := &instance{
		b: b, id: id, spec: spec, container: container, log: &log{w: stderr}, idle: idle, unwait: func() {},
		exited: make(chan struct{}), gone: make(chan struct{}), turn: make(chan struct{}, 1),
	}
	i.close = sync.OnceValue(i.stop)
	return i
}

// start attaches to the container that was made, and starts it.
func (i *instance) start(ctx context.Context) error {
	attached, err := i.b.api.ContainerAttach(ctx, i.container, client.ContainerAttachOptions{Stream: true, Stdin: true, Stdout: true, Stderr: true})
	if err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	i.conn = attached.HijackedResponse
	i.pipe = pipe{conn: &i.conn, stream: newStream(i.conn.Reader, i.log)}
	i.lines = wire.NewLines(i.pipe, i.conn.Conn, i.hangUp, i.spec.Limit, i.log.noise)
	var life context.Context
	life, i.unwait = context.WithCancel(context.Background())
	i.wait = i.b.api.ContainerWait(life, i.container, client.ContainerWaitOptions{Condition: container.WaitConditionNextExit})
	if _, err := i.b.api.ContainerStart(ctx, i.container, client.ContainerStartOptions{}); err != nil {
		return err
	}
	in, err := i.b.api.ContainerInspect(ctx, i.container, client.ContainerInspectOptions{})
	if err != nil {
		return err
	}
	if in.Container.State != nil {
		i.pid = in.Container.State.Pid
		i.group = findCgroup(i.pid, i.container)
	}
	return nil
}

// abandon gives an instance back whose start went wrong, and which has no run.
func (i *instance) abandon() {
	i.log.end()
	if i.lines != nil {
		i.conn.Close()
		i.unwait()
		_, _ = i.outcome()
	}
	_ = i.b.remove(i.container, i.spec.Server) // now, or later
}

// outcome waits for what the engine tells of the end.
func (i *instance) outcome() (container.WaitResponse, error) {
	select {
	case res := <-i.wait.Result:
		return res, nil
	case err := <-i.wait.Error:
		return container.WaitResponse{}, err
	}
}

// hangUp closes the transport: nobody reads messages any more, but what the
// server says aside is still wanted.
func (i *instance) hangUp() error {
	i.pipe.closeInput()
	i.pipe.letGo()
	i.draining.Go(i.pipe.drain) // stop cuts the connection
	return nil
}

// run follows the container until it is gone, and gives back what it took.
func (i *instance) run() {
	res, err := i.outcome()
	i.unwait()
	i.settle(res, err)
	close(i.exited)
	i.unfreezable()
	i.pipe.closeInput()
	// The engine closes the connection when all output has passed. A reader has
	// it then; if somebody reads slowly, or the engine is gone, it is cut.
	_ = i.conn.Conn.SetReadDeadline(time.Now().Add(drainPatience))
	if err := i.b.remove(i.container, i.spec.Server); err != nil {
		i.mu.Lock()
		i.err = fmt.Errorf("server %q: container %s is left for now: %w", i.spec.Server, i.container, err)
		i.mu.Unlock()
	}
	i.b.leave(i.id)
	close(i.gone)
}

// settle says how the server ended.
func (i *instance) settle(res container.WaitResponse, err error) {
	exit := codeText(int(res.StatusCode))
	oom := false
	if err != nil {
		exit = "lost: the Docker engine ended the connection to its container"
	} else {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		in, err := i.b.api.ContainerInspect(ctx, i.container, client.ContainerInspectOptions{})
		cancel()
		oom = err == nil && in.Container.State != nil && in.Container.State.OOMKilled
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	switch memory := "out of memory (limit " + mebibytes(i.spec.Memory) + ")"; {
	case oom && !i.forced && exit == killedText:
		exit = "killed: " + memory
	case oom:
		exit += "; a process was killed: " + memory
	case i.forced && err == nil:
		exit = "killed: it did not stop when asked to"
	}
	i.ended, i.exit = true, exit
}

const killedText = "killed"

// codeText says what an exit code means that may stand for a signal.
func codeText(code int) string {
	sig := syscall.Signal(code - 128)
	switch name := unix.SignalName(sig); {
	case code <= 128 || name == "":
		return "exit status " + strconv.Itoa(code)
	case sig == unix.SIGKILL:
		return killedText
	default:
		return "killed by " + name
	}
}

func mebibytes(n int64) string {
	if n%(1<<20) == 0 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
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
	now, peak, ok := i.group.usage()
	if !ok {
		now, peak = i.ask()
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.now, i.peak = now, max(i.peak, peak, now)
	return sandbox.Usage{PID: i.pid, Memory: now, Peak: i.peak, Exit: i.exit}
}

// usagePatience bounds how long the engine is asked for a figure.
const usagePatience = 2 * time.Second

// ask asks the engine what memory is in use.
func (i *instance) ask() (now, peak int64) {
	ctx, cancel := context.WithTimeout(i.b.life, usagePatience)
	defer cancel()
	stats, err := i.b.api.ContainerStats(ctx, i.container, client.ContainerStatsOptions{})
	if err != nil {
		return 0, 0
	}
	defer stats.Body.Close()
	var s container.StatsResponse
	if json.NewDecoder(stats.Body).Decode(&s) != nil {
		return 0, 0
	}
	cache := max(s.MemoryStats.Stats["total_inactive_file"], s.MemoryStats.Stats["inactive_file"])
	return int64(s.MemoryStats.Usage) - int64(cache), int64(s.MemoryStats.MaxUsage)
}

// Promote gives the container the usual weight; see [sandbox.Promoter]. Where this
// process may not write to the container's cgroup the engine does it, which takes
// it some ten milliseconds.
func (i *instance) Promote() error {
	i.turn <- struct{}{}
	defer func() { <-i.turn }()
	if !i.idle || i.over() {
		return nil
	}
	can, err := i.group.promote()
	if !can {
		err = i.b.act(func(ctx context.Context) error {
			_, err := i.b.api.ContainerUpdate(ctx, i.container, client.ContainerUpdateOptions{Resources: &container.Resources{CPUShares: usualShares}})
			return err
		})
	}
	if err != nil && !i.over() {
		return fmt.Errorf("server %q: sandbox %s keeps the least weight: %w", i.spec.Server, i.id, err)
	}
	i.idle = false
	return nil
}

// act asks the engine for what takes it no time to speak of.
func (b *Backend) act(f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := f(ctx); err != nil {
		return b.explain(err)
	}
	return nil
}

// Freeze halts the container, by its cgroup where this process may, or else by
// pausing it; see [sandbox.Freezer].
func (i *instance) Freeze() error {
	i.turn <- struct{}{}
	defer func() { <-i.turn }()
	switch {
	case i.frozen:
		return nil
	case i.closing || i.over():
		return fmt.Errorf("server %q: sandbox %s is not frozen: it is at its end", i.spec.Server, i.id)
	}
	can, err := i.group.freeze()
	if !can {
		err = i.b.act(func(ctx context.Context) error {
			_, err := i.b.api.ContainerPause(ctx, i.container, client.ContainerPauseOptions{})
			return err
		})
	}
	i.frozen = true
	if err != nil {
		err = errors.Join(fmt.Errorf("server %q: sandbox %s is not frozen: %w", i.spec.Server, i.id, err), i.resume())
	}
	return err
}

// Thaw lets a frozen instance go on; see [sandbox.Freezer].
func (i *instance) Thaw() error {
	i.turn <- struct{}{}
	defer func() { <-i.turn }()
	return i.resume()
}

// unfreezable keeps the instance from being frozen any more, and thaws it, so
// that it can end.
func (i *instance) unfreezable() {
	i.turn <- struct{}{}
	defer func() { <-i.turn }()
	i.closing = true
	_ = i.resume()
	i.frozen = false
}

// resume thaws. The caller has the turn.
func (i *instance) resume() error {
	if !i.frozen {
		return nil
	}
	can, err := i.group.thaw()
	if !can {
		err = i.b.act(func(ctx context.Context) error {
			_, err := i.b.api.ContainerUnpause(ctx, i.container, client.ContainerUnpauseOptions{})
			return err
		})
	}
	if err != nil && !i.over() {
		return fmt.Errorf("server %q: sandbox %s is not thawed: %w", i.spec.Server, i.id, err)
	}
	i.frozen = false
	return nil
}

// over reports whether the server has ended, or is lost.
func (i *instance) over() bool {
	select {
	case <-i.exited:
		return true
	default:
		return false
	}
}

// Close takes the instance down; see [sandbox.Instance].
func (i *instance) Close() error { return i.close() }

// stop is Close, once: EOF, TERM, KILL.
func (i *instance) stop() error {
	i.pipe.closeInput() // and whoever writes is let go
	i.unfreezable()
	if !i.ends(i.spec.StopGrace) {
		i.kill("SIGTERM")
		if !i.ends(i.spec.StopGrace) {
			i.mu.Lock()
			i.forced = true
			i.mu.Unlock()
			i.kill("SIGKILL")
			if !i.ends(patience) { // the engine does not do, or does not tell
				i.unwait()
			}
		}
	}
	<-i.gone // each step of run is bounded
	_ = i.lines.Close()
	_ = i.conn.Conn.SetReadDeadline(time.Now().Add(drainPatience))
	i.draining.Wait()
	i.conn.Close()
	i.log.end()
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.err
}

func (i *instance) kill(signal string) {
	_ = i.b.act(func(ctx context.Context) error {
		_, err := i.b.api.ContainerKill(ctx, i.container, client.ContainerKillOptions{Signal: signal})
		return err
	})
}

// ends reports whether the server ends within d.
func (i *instance) ends(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-i.exited:
		return true
	case <-t.C:
		return false
	}
}
