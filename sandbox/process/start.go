package process

import (
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// A starter starts all children from one thread. A child's death signal is tied
// to the thread that started it, so that thread must live as long as they do.
//
// Where SpecBox inherits orphans (as process 1 of a container, or as a
// subreaper), the same thread reaps those that plain servers leave behind.
type starter struct {
	calls chan func()
	begin sync.Once
	done  chan struct{}
	adopt bool // set before the first call

	mu     sync.Mutex
	direct map[int]bool // children that somebody waits for
}

func newStarter() *starter {
	return &starter{calls: make(chan func()), done: make(chan struct{}), direct: map[int]bool{}}
}

// start starts a process. Its caller calls reap with it.
func (s *starter) start(path string, argv []string, attr *os.ProcAttr) (*os.Process, error) {
	s.begin.Do(func() {
		s.adopt = adopts()
		go s.loop()
	})
	var p *os.Process
	var err error
	back := make(chan struct{})
	s.calls <- func() {
		defer close(back)
		if p, err = os.StartProcess(path, argv, attr); err == nil {
			s.mu.Lock()
			s.direct[p.Pid] = true
			s.mu.Unlock()
		}
	}
	<-back
	return p, err
}

// reap waits for p to end.
func (s *starter) reap(p *os.Process) (*os.ProcessState, error) {
	state, err := p.Wait()
	s.mu.Lock()
	delete(s.direct, p.Pid)
	s.mu.Unlock()
	return state, err
}

// sweep reaps the orphans that are dead now. It is called after a start.
func (s *starter) sweep() {
	if s.adopt {
		s.calls <- s.reapOrphans
	}
}

// close ends the thread. All children are gone, and start is not called again.
func (s *starter) close() {
	close(s.calls)
	s.begin.Do(func() { close(s.done) })
	<-s.done
}

func (s *starter) loop() {
	defer close(s.done)
	runtime.LockOSThread() // and never unlocked: the thread ends with this goroutine
	var died chan os.Signal
	if s.adopt {
		died = make(chan os.Signal, 1)
		signal.Notify(died, unix.SIGCHLD)
		defer signal.Stop(died)
	}
	for {
		select {
		case call, ok := <-s.calls:
			if !ok {
				return
			}
			call()
		case <-died:
			s.reapOrphans()
		}
	}
}

// adopts reports whether orphans become children of this process.
func adopts() bool {
	var sub int32
	err := unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, uintptrOf(&sub), 0, 0, 0)
	return os.Getpid() == 1 || err == nil && sub != 0
}

// reapOrphans reaps dead children that nobody waits for. Whatever other parts
// of the program start shares our session; plain servers have their own.
func (s *starter) reapOrphans() {
	own, err := unix.Getsid(0)
	if err != nil {
		return
	}
	for _, pid := range children(os.Getpid()) {
		s.mu.Lock()
		waited := s.direct[pid]
		s.mu.Unlock()
		if st, ok := readStat(strconv.Itoa(pid)); ok && !waited && st.state == 'Z' && st.session != own {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
	}
}
