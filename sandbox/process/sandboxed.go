package process

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/specbox/specbox/sandbox"
	"golang.org/x/sys/unix"
)

// createSandbox makes an instance in bubblewrap. The processes are
//
//	SpecBox
//	└ bwrap, the monitor; before that, for an allow-list, the network helper
//	  └ bwrap, process 1 of the sandbox: it waits until it is in its cgroup
//	    └ the server, process 2
//
// Each dies when the one above does, and process 1 takes all of the sandbox
// with it.
func (b *Backend) createSandbox(ctx context.Context, id string, spec *sandbox.Spec, stderr io.Writer, idle bool) (_ *instance, err error) {
	born := false
	defer func() {
		if !born {
			b.forget(id)
		}
	}()
	path, sized, err := b.bwrap.find(ctx)
	if err != nil {
		return nil, err
	}
	if spec.Home != "" {
		if st, err := os.Stat(spec.Home); err != nil || !st.IsDir() {
			return nil, fmt.Errorf("the folder %s for its state is missing: create it", spec.Home)
		}
	}
	show, prog, err := binds(spec, b.hidden)
	if err != nil {
		return nil, err
	}
	var allow *allowList
	if len(spec.Network.Hosts) > 0 && !spec.Network.All {
		if !initialized.Load() {
			return nil, errors.New("an allow-list of hosts needs a program that calls process.Init in main")
		}
		if allow, err = newAllowList(spec.Network.Hosts); err != nil {
			return nil, err
		}
	}
	i, err := b.reserve(id, spec, stderr, idle)
	if err != nil {
		return nil, err
	}
	s := setup{i: i, allow: allow, path: path}
	defer s.close()
	if err := s.prepare(show, prog, sized); err != nil {
		return nil, errors.Join(err, i.release())
	}
	p, err := s.start()
	if err != nil {
		return nil, errors.Join(err, i.release())
	}
	born = true // run forgets it
	stop := context.AfterFunc(ctx, func() { _ = p.Kill() })
	if err = s.finish(p); err == nil && idle {
		s.body.awaitSession()
		err = i.demote()
	}
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		i.abandon(p)
		return nil, fmt.Errorf("bubblewrap could not set the sandbox up (%w)%s", err, i.log.first())
	}
	return i, nil
}

// A setup is a sandbox on its way.
type setup struct {
	i     *instance
	allow *allowList
	path  string // bubblewrap
	argv  []string

	theirs  files
	control *os.File // our end to the network helper
	block   *os.File // our end: a byte lets process 1 go on
	status  *os.File // our end, until the body has it
	body    *sandboxed
}

func (s *setup) close() {
	s.theirs.close()
	for _, f := range []*os.File{s.control, s.block} {
		f.Close()
	}
	if s.body == nil {
		s.status.Close()
	}
}

// prepare makes all that bubblewrap is given.
func (s *setup) prepare(show []bind, prog program, sized bool) error {
	if s.allow != nil { // first: the helper looks for it at 3
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("socket of the network helper: %w", err)
		}
		s.theirs.add(os.NewFile(uintptr(pair[1]), "control"))
		if err := unix.SetNonblock(pair[0], true); err != nil {
			return errors.Join(err, unix.Close(pair[0]))
		}
		s.control = os.NewFile(uintptr(pair[0]), "control")
	}
	status, statusW, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("pipes: %w", err)
	}
	s.status = status
	l := layout{files: &s.theirs, sized: sized, covers: s.i.b.bwrap.covers()}
	l.arg("--json-status-fd", s.theirs.add(statusW))
	blockR, block, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("pipes: %w", err)
	}
	s.block = block
	l.arg("--block-fd", s.theirs.add(blockR))
	rules, err := s.theirs.data(filter())
	if err != nil {
		return err
	}
	l.arg("--seccomp", rules)
	l.write(s.i.spec, show, prog, s.allow)
	if l.err != nil {
		return l.err
	}
	args, err := s.theirs.data(l.Bytes())
	if err != nil {
		return err
	}
	s.argv = slices.Concat([]string{"bwrap", "--args", args, "--", prog.path}, s.i.spec.Argv[1:])
	return nil
}

// start starts bubblewrap, or the network helper that becomes it.
func (s *setup) start() (*os.Process, error) {
	sys := &syscall.SysProcAttr{Setsid: true, Pdeathsig: unix.SIGKILL}
	if os.Geteuid() == 0 { // without root's other groups
		sys.Credential = &syscall.Credential{Uid: 0, Gid: uint32(os.Getegid())}
	}
	path, argv := s.path, s.argv
	if s.allow != nil {
		path, argv = "/proc/self/exe", []string{helperName}
		sys.Cloneflags = unix.CLONE_NEWUSER | unix.CLONE_NEWNET
		sys.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		sys.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
		sys.GidMappingsEnableSetgroups = os.Geteuid() == 0
	}
	// Bubblewrap's environment can be seen in the sandbox, as that of process 1.
	attr := os.ProcAttr{Dir: "/", Env: []string{marker + "=" + s.i.b.run.mark(s.i.id)}, Sys: sys}
	p, err := s.i.start(path, argv, attr, s.theirs.list, func(p *os.Process) body {
		s.body = newSandboxed(s.i.b.run.mark(s.i.id), p, s.status)
		return s.body
	})
	s.theirs.close()
	return p, err
}

// setupPatience bounds how long bubblewrap may take to set a sandbox up.
const setupPatience = time.Minute

// finish sees the sandbox through until its server runs.
func (s *setup) finish(p *os.Process) error {
	if s.allow != nil {
		o := order{Path: s.path, Argv: s.argv}
		for _, ip := range s.allow.ips {
			o.Addresses = append(o.Addresses, ip.String())
		}
		for _, w := range s.allow.ways {
			o.Listen = append(o.Listen, w.Inside)
		}
		listeners, err := receive(s.control, o)
		if err != nil {
			return err
		}
		s.body.bridge(newBridge(listeners, s.allow.ways, s.i.log.say))
	}
	init, err := s.body.meet()
	if err != nil {
		return err
	}
	if err := s.i.group.add(init); err != nil {
		return err
	}
	if err := limitByRlimits(init, s.i.spec, s.i.group); err != nil {
		return err
	}
	if _, err := s.block.Write([]byte{'.'}); err != nil {
		return errors.New("it ended early")
	}
	// Process 1 closes the pipe when it has read the byte, which it does when
	// everything is set up, or when it ends.
	conn, err := s.block.SyscallConn()
	if err != nil {
		return err
	}
	open := true
	err = conn.Control(func(fd uintptr) { open = !poll(int(fd), 0, unix.POLLERR, setupPatience) })
	if st, ok := readStat(strconv.Itoa(init)); err != nil || open || !ok || st.exiting() {
		return errors.New("it ended early")
	}
	return nil
}

// sandboxed is the body of an instance in bubblewrap.
type sandboxed struct {
	mark    string
	monitor *os.Process
	status  *os.File // where bubblewrap tells the pid of process 1, and its exit code

	met  chan int      // gets process 1 when it is there, and is closed
	told chan struct{} // closed when bubblewrap has told all
	code *int          // the exit code that it told; read it after told

	mu      sync.Mutex
	closed  bool
	init    int // process 1 of the sandbox, as the host sees it; 0 until it is known
	pidfd   *os.File
	network *bridge
}

func newSandboxed(mark string, monitor *os.Process, status *os.File) *sandboxed {
	s := &sandboxed{mark: mark, monitor: monitor, status: status, met: make(chan int, 1), told: make(chan struct{})}
	go s.listen()
	return s
}

// listen takes what bubblewrap tells. It ends with bubblewrap.
func (s *sandboxed) listen() {
	defer close(s.told)
	defer close(s.met)
	for r := bufio.NewReader(s.status); ; {
		line, err := r.ReadBytes('\n')
		var told struct {
			PID  int  `json:"child-pid"`
			Code *int `json:"exit-code"`
		}
		if json.Unmarshal(line, &told) == nil {
			if told.PID > 0 {
				select {
				case s.met <- told.PID:
				default: // it tells that once
				}
			}
			s.code = cmp.Or(told.Code, s.code)
		}
		if err != nil {
			return
		}
	}
}

// bridge gives the body its bridge, which it closes.
func (s *sandboxed) bridge(b *bridge) {
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.network = b
	}
	s.mu.Unlock()
	if closed {
		b.close()
	}
}

// meet waits until process 1 of the sandbox exists, and returns its pid.
func (s *sandboxed) meet() (int, error) {
	early := errors.New("it ended early")
	pid, ok := <-s.met
	if !ok {
		return 0, early
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return 0, early
	}
	pidfd := os.NewFile(uintptr(fd), "pidfd")
	s.mu.Lock()
	// Its parent has it until it is reaped: if that fits, so does the pid.
	st, ok := readStat(strconv.Itoa(pid))
	ok = ok && st.parent == s.monitor.Pid && !s.closed
	if ok {
		s.init, s.pidfd = pid, pidfd
	}
	s.mu.Unlock()
	if !ok {
		pidfd.Close()
		return 0, early
	}
	return pid, nil
}

// awaitSession waits until process 1 has its own session, which is the last that
// it does before it starts the server.
func (s *sandboxed) awaitSession() {
	init, _ := s.first()
	for range 1000 {
		if st, ok := readStat(strconv.Itoa(init)); !ok || st.exiting() || st.session == init {
			return
		}
		<-time.After(100 * time.Microsecond)
	}
}

func (s *sandboxed) first() (int, *os.File) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.init, s.pidfd
}

func (s *sandboxed) server() int {
	init, _ := s.first()
	if init == 0 {
		return s.monitor.Pid
	}
	for _, pid := range children(init) {
		status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
		if err == nil && innerPid(string(status)) == "2" {
			return pid
		}
	}
	return init
}

// innerPid returns the pid that a process has for itself.
func innerPid(status string) string {
	for line := range strings.Lines(status) {
		if v, ok := strings.CutPrefix(line, "NSpid:"); ok {
			if f := strings.Fields(v); len(f) > 0 {
				return f[len(f)-1]
			}
		}
	}
	return ""
}

func (s *sandboxed) terminate() {
	init, _ := s.first()
	pid := s.server()
	if pid == init || pid == s.monitor.Pid {
		return // process 1 takes no TERM, and what lives in the sandbox gets KILL
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if st, ok := readStat(strconv.Itoa(pid)); ok && st.parent == init {
		_ = unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0)
	}
}

func (s *sandboxed) kill() error {
	init, pidfd := s.first()
	if pidfd == nil { // an early death
		_ = s.monitor.Kill()
		find := func() []int {
			return slices.DeleteFunc(markedPids(func(v string) bool { return v == s.mark }), func(pid int) bool { return pid == s.monitor.Pid })
		}
		if _, left := killAll(find, killPatience); len(left) > 0 {
			return fmt.Errorf("processes %v do not die", left)
		}
		return nil
	}
	conn, err := pidfd.SyscallConn()
	if err != nil {
		return nil // closed: it is gone
	}
	dead := true
	_ = conn.Control(func(fd uintptr) {
		_ = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0)
		dead = awaitPidfd(int(fd), killPatience)
	})
	if !dead {
		return fmt.Errorf("process %d does not die", init)
	}
	return nil
}

func (s *sandboxed) pids() []int {
	init, _ := s.first()
	if init == 0 {
		return nil
	}
	return descendants(init)
}

func (s *sandboxed) exit(state *os.ProcessState) string {
	_ = s.status.SetReadDeadline(time.Now().Add(drainPatience)) // its writer is dead
	<-s.told
	if s.code != nil {
		return codeText(*s.code)
	}
	if w, ok := state.Sys().(syscall.WaitStatus); ok && w.Exited() { // it was killed, or process 1 was
		return codeText(w.ExitStatus())
	}
	return stateText(state)
}

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

// stateText says how a process ended.
func stateText(state *os.ProcessState) string {
	w, ok := state.Sys().(syscall.WaitStatus)
	switch {
	case !ok || !w.Signaled():
		return "exit status " + strconv.Itoa(state.ExitCode())
	case w.Signal() == unix.SIGKILL:
		return killedText
	default:
		return "killed by " + unix.SignalName(w.Signal())
	}
}

func (s *sandboxed) close() {
	s.mu.Lock()
	s.closed = true
	network, pidfd := s.network, s.pidfd
	s.mu.Unlock()
	if network != nil {
		network.close()
	}
	pidfd.Close()
	s.status.Close()
	<-s.told
}

// limitByRlimits sets what no cgroup holds. A limit of memory is then one for
// each process, and one of processes does not bind root.
func limitByRlimits(pid int, spec *sandbox.Spec, g *group) error {
	set := func(resource int, n uint64) error {
		if err := unix.Prlimit(pid, resource, &unix.Rlimit{Cur: n, Max: n}, nil); err != nil {
			return fmt.Errorf("set limits of process %d: %w", pid, err)
		}
		return nil
	}
	errs := []error{set(unix.RLIMIT_CORE, 0)}
	if spec.Memory > 0 && !g.holds("memory") {
		errs = append(errs, set(unix.RLIMIT_DATA, uint64(spec.Memory)))
	}
	if spec.Pids > 0 && !g.holds("pids") {
		errs = append(errs, set(unix.RLIMIT_NPROC, uint64(spec.Pids)))
	}
	return errors.Join(errs...)
}
