package process

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// marker is the variable in the environment of the processes of a sandbox (of
// bubblewrap's own, not of the server in it) that tells whose they are.
const marker = "SPECBOX_SANDBOX"

func uintptrOf(p *int32) uintptr { return uintptr(unsafe.Pointer(p)) }

// A stat is what is used of /proc/PID/stat.
type stat struct {
	state   byte
	parent  int
	session int
	flags   uint64
	start   uint64 // clock ticks after boot
}

// dead reports whether nothing is left of the process but its exit status.
func (s stat) dead() bool { return s.state == 'Z' || s.state == 'X' }

// exiting reports whether the process is on its way there.
func (s stat) exiting() bool { return s.dead() || s.flags&0x4 != 0 } // PF_EXITING

func readStat(pid string) (stat, bool) {
	b, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return stat{}, false
	}
	// The command's name stands in parentheses and may hold anything.
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 20 {
		return stat{}, false
	}
	var s stat
	s.state = f[0][0]
	s.parent, _ = strconv.Atoi(f[1])
	s.session, _ = strconv.Atoi(f[3])
	s.flags, _ = strconv.ParseUint(f[6], 10, 64)
	s.start, _ = strconv.ParseUint(f[19], 10, 64)
	return s, true
}

// children returns the living and dead children of all threads of pid.
func children(pid int) []int {
	var out []int
	dir := "/proc/" + strconv.Itoa(pid) + "/task"
	tasks, _ := os.ReadDir(dir)
	for _, t := range tasks {
		b, err := os.ReadFile(dir + "/" + t.Name() + "/children")
		if err != nil {
			continue
		}
		for f := range strings.FieldsSeq(string(b)) {
			if n, err := strconv.Atoi(f); err == nil {
				out = append(out, n)
			}
		}
	}
	return out
}

// descendants returns pid and all below it. What is below 0, or below process 1
// of the host, is everybody: that is nobody's sandbox.
func descendants(pid int) []int {
	if pid <= 1 {
		return nil
	}
	out := []int{pid}
	for i := 0; i < len(out); i++ {
		out = append(out, children(out[i])...)
	}
	return out
}

// allPids returns the processes of this machine.
func allPids() []int {
	entries, _ := os.ReadDir("/proc")
	var out []int
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil {
			out = append(out, n)
		}
	}
	return out
}

// marked reports whether the environment that pid was started with has the
// marker, with a value that match likes.
func marked(pid int, match func(string) bool) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false
	}
	for v := range bytes.SplitSeq(b, []byte{0}) {
		if value, ok := bytes.CutPrefix(v, []byte(marker+"=")); ok && match(string(value)) {
			return true
		}
	}
	return false
}

// killAll kills what find finds, until all of it is dead or patience ends.
// Between looking and killing a pid is held by a descriptor and looked at again,
// so that no stranger with the same number is hit. It returns the number of
// processes that were killed, and those that would not die.
func killAll(find func() []int, patience time.Duration) (killed int, left []int) {
	deadline := time.Now().Add(patience)
	seen := map[int]bool{}
	for {
		fds := map[int]int{} // pid -> descriptor
		for _, pid := range find() {
			if st, ok := readStat(strconv.Itoa(pid)); pid <= 1 || pid == os.Getpid() || pid == os.Getppid() || !ok || st.dead() {
				continue
			}
			if fd, err := unix.PidfdOpen(pid, 0); err == nil {
				fds[pid] = fd
			}
		}
		if len(fds) == 0 {
			return len(seen), nil
		}
		left = left[:0]
		again := find()
		for pid, fd := range fds {
			if slices.Contains(again, pid) {
				_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
				seen[pid] = true
				left = append(left, pid)
			}
		}
		for pid, fd := range fds {
			if slices.Contains(left, pid) {
				awaitPidfd(fd, max(0, time.Until(deadline)))
			}
			_ = unix.Close(fd)
		}
		if time.Now().After(deadline) {
			return len(seen), left
		}
	}
}

// awaitPidfd waits for the process of a pidfd to be dead, and reaps it if it
// became our child. It reports whether the process is dead.
func awaitPidfd(fd int, patience time.Duration) bool {
	if !poll(fd, unix.POLLIN, unix.POLLIN, patience) {
		return false
	}
	_ = unix.Waitid(unix.P_PIDFD, fd, nil, unix.WEXITED|unix.WNOHANG, nil) // mostly somebody else's
	return true
}

// poll waits until fd has one of the events in want.
func poll(fd int, ask, want int16, patience time.Duration) bool {
	deadline := time.Now().Add(patience)
	for {
		p := []unix.PollFd{{Fd: int32(fd), Events: ask}}
		n, err := unix.Poll(p, max(0, int(time.Until(deadline).Milliseconds())))
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return false
		}
		return p[0].Revents&want != 0
	}
}

// residentMemory returns the memory that processes have in use, shared pages
// counted once where the kernel tells, and the sum of their peaks.
func residentMemory(pids []int) (now, peak int64) {
	for _, pid := range pids {
		dir := "/proc/" + strconv.Itoa(pid)
		status, err := os.ReadFile(dir + "/status")
		if err != nil {
			continue
		}
		peak += kilobytes(status, "VmHWM:")
		if smaps, err := os.ReadFile(dir + "/smaps_rollup"); err == nil {
			now += kilobytes(smaps, "Pss:")
		} else {
			now += kilobytes(status, "VmRSS:")
		}
	}
	return now, peak
}

// kilobytes returns the figure behind key in a file of "key: n kB" lines, in bytes.
func kilobytes(b []byte, key string) int64 {
	for line := range bytes.Lines(b) {
		if v, ok := bytes.CutPrefix(line, []byte(key)); ok {
			n, _ := strconv.ParseInt(string(bytes.TrimSuffix(bytes.TrimSpace(v), []byte(" kB"))), 10, 64)
			return n << 10
		}
	}
	return 0
}

// makeWritable lets the owner remove what is in dir.
func makeWritable(dir string) {
	_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			_ = os.Chmod(p, 0o700)
		}
		return nil
	})
}
