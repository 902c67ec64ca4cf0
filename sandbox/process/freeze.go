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

// freezePatience bounds how long a halt may take: what waits for a disk cannot
// be halted before it has what it waits for.
const freezePatience = 2 * time.Second

// idlePatience is freezePatience of what is in the idle class and stays there.
const idlePatience = 100 * time.Millisecond

// Freeze halts the process tree, by its cgroup or else by SIGSTOP; see
// [sandbox.Freezer]. What is written to the server meanwhile waits in a pipe,
// which holds 64 KiB; the writer of more waits too. An instance that is gone, or
// that Close is about, is not frozen.
func (i *instance) Freeze() error {
	i.turn <- struct{}{}
	defer func() { <-i.turn }()
	switch {
	case i.frozen:
		return nil
	case i.closing || i.over():
		return fmt.Errorf("server %q: sandbox %s is not frozen: it is at its end", i.spec.Server, i.id)
	}
	i.frozen = true
	patience := freezePatience
	if i.idle && !i.hushed {
		// In the idle class it does not come to the point where it halts while
		// others want the processor, and whoever comes for it would wait for that.
		if lifted, _ := i.group.setIdle(false); lifted {
			defer func() { _, _ = i.group.setIdle(i.idle) }()
		} else {
			patience = idlePatience
		}
	}
	can, err := i.group.freeze()
	switch {
	case !can:
		err = stopAll(i.body.pids, patience)
	case err == nil:
		err = i.group.awaitFrozen(i.exited, patience)
	}
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
	_ = i.resume() // what stays halted is killed
	i.frozen = false
}

// resume thaws. The caller has the turn.
func (i *instance) resume() error {
	if !i.frozen && !i.hushed {
		return nil
	}
	i.unhushed()
	can, err := i.group.thaw()
	if !can {
		err = continueAll(i.body.pids, freezePatience)
	}
	if err != nil {
		return fmt.Errorf("server %q: sandbox %s is not thawed: %w", i.spec.Server, i.id, err)
	}
	i.frozen = false
	return nil
}

// freeze begins to halt all inside, where the kernel can do that.
func (g *group) freeze() (can bool, err error) {
	switch {
	case g.v2 != "":
		if err = write(g.v2, "cgroup.freeze", "1"); errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
			return false, nil // Linux before 5.2
		}
	case g.v1["freezer"] != "":
		err = write(g.v1["freezer"], "freezer.state", "FROZEN")
	default:
		return false, nil
	}
	if err != nil {
		return true, fmt.Errorf("freeze its cgroup: %w", err)
	}
	return true, nil
}

// awaitFrozen waits until all inside are halted, or stop is closed.
func (g *group) awaitFrozen(stop <-chan struct{}, patience time.Duration) (err error) {
	if g.v2 != "" {
		err = awaitFrozen(filepath.Join(g.v2, "cgroup.events"), patience)
	} else {
		err = freezeV1(g.v1["freezer"], stop, patience)
	}
	if err != nil {
		return fmt.Errorf("freeze its cgroup: %w", err)
	}
	return nil
}

// freezeV1 halts all in a version 1 cgroup. The kernel has to be asked until it
// is done, and is stuck at times with a process that makes another one: then all
// are let go for a moment.
func freezeV1(dir string, stop <-chan struct{}, patience time.Duration) error {
	for round, deadline := 1, time.Now().Add(patience); ; round++ {
		if err := write(dir, "freezer.state", "FROZEN"); err != nil {
			return err
		}
		if slices.Equal(words(filepath.Join(dir, "freezer.state")), []string{"FROZEN"}) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the kernel has not frozen it within %v", patience)
		}
		if round%20 == 0 {
			_ = write(dir, "freezer.state", "THAWED")
		}
		select {
		case <-time.After(min(time.Duration(round)*50*time.Microsecond, time.Millisecond)):
		case <-stop:
			return errors.New("it ends")
		}
	}
}

// awaitFrozen waits until a version 2 cgroup says that all in it are halted. The
// kernel notifies those that poll the file.
func awaitFrozen(events string, patience time.Duration) error {
	f, err := os.Open(events)
	if err != nil {
		return err
	}
	defer f.Close()
	buf := make([]byte, 256)
	for deadline := time.Now().Add(patience); ; {
		n, err := f.ReadAt(buf, 0)
		if n == 0 && err != nil {
			return err
		}
		if strings.Contains(string(buf[:n]), "frozen 1") {
			return nil
		}
		if !poll(int(f.Fd()), unix.POLLPRI, unix.POLLPRI, time.Until(deadline)) && time.Now().After(deadline) {
			return fmt.Errorf("the kernel has not frozen it within %v", patience)
		}
	}
}

// thaw undoes freeze.
func (g *group) thaw() (can bool, err error) {
	switch {
	case g.v2 != "":
		if err = write(g.v2, "cgroup.freeze", "0"); errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
			return false, nil
		}
	case g.v1["freezer"] != "":
		err = write(g.v1["freezer"], "freezer.state", "THAWED")
	default:
		return false, nil
	}
	if err != nil {
		return true, fmt.Errorf("thaw its cgroup: %w", err)
	}
	return true, nil
}

// thawGroups lets all go on in version 1 cgroups: there what is frozen does not
// even die.
func thawGroups(dirs []string) {
	for _, d := range dirs {
		if exists(filepath.Join(d, "freezer.state")) {
			_ = write(d, "freezer.state", "THAWED")
		}
	}
}

// stopAll halts what find finds with SIGSTOP, until all of it is halted. A child
// that was born meanwhile is found in the next round.
func stopAll(find func() []int, patience time.Duration) error {
	return signalAll(find, unix.SIGSTOP, patience, func(pid int, sent bool) bool {
		_, waiting, others := states(pid)
		// What waits in the kernel stops before it comes back: a parent, say,
		// whose child was halted on its way to another program.
		return others == 0 && (waiting == 0 || sent)
	})
}

// continueAll lets what find finds go on, children first, so that no parent sees
// a child that is halted.
func continueAll(find func() []int, patience time.Duration) error {
	below := func() []int {
		pids := find()
		slices.Reverse(pids)
		return pids
	}
	return signalAll(below, unix.SIGCONT, patience, func(pid int, _ bool) bool {
		stopped, _, _ := states(pid)
		return stopped == 0
	})
}

// signalAll sends sig to what find finds until all of it is done. Between looking
// and sending a pid is held by a descriptor and looked at again, so that no
// stranger with the same number is hit.
func signalAll(find func() []int, sig unix.Signal, patience time.Duration, done func(pid int, sent bool) bool) error {
	sent := map[int]bool{}
	for deadline := time.Now().Add(patience); ; {
		pids, fds := find(), map[int]int{}
		for _, pid := range pids {
			if pid <= 1 || pid == os.Getpid() || pid == os.Getppid() || done(pid, sent[pid]) {
				continue
			}
			if fd, err := unix.PidfdOpen(pid, 0); err == nil {
				fds[pid] = fd
			}
		}
		if len(fds) == 0 {
			return nil
		}
		again := find()
		for _, pid := range pids {
			if fd, ok := fds[pid]; ok && slices.Contains(again, pid) {
				sent[pid] = unix.PidfdSendSignal(fd, sig, nil, 0) == nil
			}
		}
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("after %v not all of its processes have done what %s asks for", patience, unix.SignalName(sig))
		}
		<-time.After(100 * time.Microsecond) // a thread that runs sees a signal when it is interrupted
	}
}

// states counts the threads of a process that are stopped, those that wait for
// the kernel and cannot be interrupted, and the others that live.
func states(pid int) (stopped, waiting, others int) {
	for _, tid := range threadsOf([]int{pid}) {
		switch st, ok := readStat(strconv.Itoa(pid) + "/task/" + strconv.Itoa(tid)); {
		case !ok || st.exiting():
		case st.state == 'T':
			stopped++
		case st.state == 'D':
			waiting++
		default:
			others++
		}
	}
	return stopped, waiting, others
}
