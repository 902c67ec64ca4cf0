package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/specbox/specbox/sandbox"
	"golang.org/x/sys/unix"
)

// The idle class is what speculation runs in. Where a sandbox has a cgroup with
// the cpu controller the class is one of the whole group, so that one write ends
// it; a class of threads would not do there, since groups share a processor by
// their weight, whatever runs in them. Elsewhere each thread is in SCHED_IDLE,
// and the kernel's group of each session ("autogroup") has the least weight. The
// io class is one of threads in any case.

// Speculate is [Backend.Create] in the idle class; see [sandbox.Speculator].
// Bubblewrap's own few milliseconds are in the ordinary class, so that a sandbox
// that is demanded at once does not wait for an idle one to be set up. Where this
// user may not take processes out of the idle class again, as [Check] says, they
// are not put into it.
func (b *Backend) Speculate(ctx context.Context, id string, spec *sandbox.Spec, stderr io.Writer) (sandbox.Instance, error) {
	return b.begin(ctx, id, spec, stderr, true)
}

// Promote gives the process tree the ordinary class; see [sandbox.Promoter]. An
// instance that was not started by Speculate, or is gone, stays as it is.
func (i *instance) Promote() error {
	i.turn <- struct{}{}
	defer func() { <-i.turn }()
	if !i.idle || i.over() {
		return nil
	}
	if i.hushed {
		i.hushed = false
		if !i.frozen {
			_, _ = i.group.thaw()
		}
	}
	i.idle = false
	if err := i.classify(false); err != nil {
		i.idle = true
		return fmt.Errorf("server %q: sandbox %s stays in the idle class: %w", i.spec.Server, i.id, err)
	}
	return nil
}

// over reports whether the process that we started has ended.
func (i *instance) over() bool {
	select {
	case <-i.exited:
		return true
	default:
		return false
	}
}

// demote puts an instance that Speculate starts into the idle class.
func (i *instance) demote() error {
	i.turn <- struct{}{}
	defer func() { <-i.turn }()
	if !i.idle {
		return nil
	}
	if err := i.classify(true); err != nil {
		return fmt.Errorf("put it into the idle class: %w", err)
	}
	return nil
}

// classify moves the instance into the idle class, or out of it. The caller has
// the turn.
func (i *instance) classify(idle bool) error {
	grouped, err := i.setAll(idle)
	if err != nil || grouped || !i.b.idles || i.closing {
		return err
	}
	// A thread that was being born has the class that its maker had before, and
	// may be seen only later.
	i.later.Go(func() {
		for _, delay := range []time.Duration{5 * time.Millisecond, 50 * time.Millisecond, 500 * time.Millisecond} {
			select {
			case <-i.exited:
				return
			case <-time.After(delay):
			}
			i.turn <- struct{}{}
			same := i.idle == idle && !i.closing
			if same {
				_, _ = i.setAll(idle) // it ends, if that is an error
			}
			<-i.turn
			if !same {
				return
			}
		}
	})
	return nil
}

// setAll gives the instance a class, or all its threads one that can be found. It
// reports whether the class is one of its group.
func (i *instance) setAll(idle bool) (grouped bool, err error) {
	grouped, err = i.group.setIdle(idle)
	if err != nil {
		return grouped, err
	}
	if !grouped && !i.b.idles {
		return false, nil
	}
	if !grouped {
		weighSessions(i.body.pids(), idle)
	}
	threads := i.group.threads
	if len(i.group.dirs) == 0 {
		threads = func() []int { return threadsOf(i.body.pids()) }
	}
	return grouped, setClass(threads, idle, !grouped)
}

// weighSessions gives the sessions of processes the least weight, or the usual
// one, where the kernel makes a group of each. It is no error where it does not,
// or where the limit of others than root, some ten changes in a second, is met.
func weighSessions(pids []int, idle bool) {
	nice := "0"
	if idle {
		nice = "19"
	}
	done := map[int]bool{}
	for _, pid := range pids {
		dir := "/proc/" + strconv.Itoa(pid)
		st, ok := readStat(strconv.Itoa(pid))
		if !ok || done[st.session] || !exists(dir+"/autogroup") {
			continue
		}
		done[st.session] = true
		for range 20 {
			if err := write(dir, "autogroup", nice); idle || !errors.Is(err, unix.EAGAIN) {
				break
			}
			<-time.After(10 * time.Millisecond)
		}
	}
}

// maxRounds bounds how often threads are looked for. Each round is preceded by
// one in which a thread had just been born.
const maxRounds = 1000

// setClass gives all threads that find finds the idle class or the ordinary one,
// of input and output, and of the scheduler too if sched is set. A thread that
// is born meanwhile has the class of the thread that made it, and is found in
// the next round.
func setClass(find func() []int, idle, sched bool) error {
	policy, class := unix.SCHED_NORMAL, ioNone
	if idle {
		policy, class = unix.SCHED_IDLE, ioIdle
	}
	for range maxRounds {
		changed := false
		for _, tid := range find() {
			if now, err := ioClass(tid); err == nil && now != class {
				changed = setIOClass(tid, class) == nil || changed
			}
			if !sched {
				continue
			}
			attr, err := unix.SchedGetAttr(tid, 0)
			if err == nil && attr.Policy != uint32(policy) {
				attr.Policy, attr.Flags, attr.Runtime = uint32(policy), 0, 0
				err = unix.SchedSetAttr(tid, attr, 0)
				changed = changed || err == nil
			}
			if err != nil && err != unix.ESRCH {
				return fmt.Errorf("set the scheduling class of thread %d: %w", tid, err)
			}
		}
		if !changed {
			return nil
		}
	}
	return errors.New("it makes threads faster than they can be found")
}

// Classes of input and output; see ioprio_set(2). A thread of no class has the
// ordinary one.
const (
	ioNone       = 0
	ioIdle       = 3
	ioShift      = 13
	ioWhoProcess = 1
)

func ioClass(tid int) (int, error) {
	prio, _, e := unix.Syscall(unix.SYS_IOPRIO_GET, ioWhoProcess, uintptr(tid), 0)
	if e != 0 {
		return 0, e
	}
	if class := int(prio) >> ioShift; class == ioIdle {
		return ioIdle, nil
	}
	return ioNone, nil
}

func setIOClass(tid, class int) error {
	if _, _, e := unix.Syscall(unix.SYS_IOPRIO_SET, ioWhoProcess, uintptr(tid), uintptr(class)<<ioShift); e != 0 {
		return e
	}
	return nil
}

// threadsOf returns the threads of processes.
func threadsOf(pids []int) []int {
	var out []int
	for _, pid := range pids {
		tasks, _ := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "task"))
		for _, t := range tasks {
			if tid, err := strconv.Atoi(t.Name()); err == nil {
				out = append(out, tid)
			}
		}
	}
	return out
}

// canIdle finds out whether this user may take threads out of SCHED_IDLE again:
// root may, and others whom RLIMIT_NICE lets. It raises that limit as far as it
// may be.
func canIdle() bool {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NICE, &l) == nil && l.Cur < l.Max {
		l.Cur = l.Max
		_ = unix.Setrlimit(unix.RLIMIT_NICE, &l)
	}
	can := make(chan bool)
	go func() {
		runtime.LockOSThread() // and never unlocked: a thread that stays idle ends here
		idle := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}
		ordinary := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL}
		can <- unix.SchedSetAttr(0, &idle, 0) == nil && unix.SchedSetAttr(0, &ordinary, 0) == nil
	}()
	return <-can
}
