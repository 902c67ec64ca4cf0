package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// Names of files in the state folder.
const (
	socketName = "control.sock"
	lockName   = "control.lock"
)

// ErrRunning means that a SpecBox runs on the state folder already.
var ErrRunning = errors.New("a specbox already runs on this state folder")

// ErrNotRunning means that no SpecBox runs on the state folder.
var ErrNotRunning = errors.New("no specbox runs on this state folder")

// A Listener is the socket of a state folder. While it is open no other can be
// opened there, by any process.
type Listener struct {
	net.Listener
	path string
	dir  *os.File // keeps the path of sockets below long folder names valid
	lock *os.File
	once sync.Once
}

// Listen opens the socket of the state folder dir, made by [MakeFolder]. What a dead process left there is replaced; a
// living one makes it return an error for which errors.Is(err, [ErrRunning]).
// The caller closes the listener.
func Listen(dir string) (_ *Listener, err error) {
	if err := MakeFolder(dir); err != nil {
		return nil, err
	}
	// The lock tells the living from the dead without a race: the system drops
	// it with the process.
	lock, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, &Error{Message: fmt.Sprintf("open the lock of the state folder: %v", err), Hint: "choose another folder with --state DIR", Cause: err}
	}
	defer func() {
		if err != nil {
			lock.Close()
		}
	}()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, occupied(dir, lock, err)
	}
	if err := writePID(lock); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, socketName)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("replace the control socket of a dead specbox: %w", err)
	}
	folder, short, err := shorten(dir)
	if err != nil {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
	if err != nil {
		folder.Close()
		return nil, fmt.Errorf("open the control socket %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false) // Close removes it, while the lock is held
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		folder.Close()
		return nil, fmt.Errorf("close the control socket %s to others: %w", path, err)
	}
	return &Listener{Listener: guarded{l}, path: path, dir: folder, lock: lock}, nil
}

// Close closes the socket, removes it, and lets go of the state folder. It may
// be called more than once.
func (l *Listener) Close() (err error) {
	l.once.Do(func() {
		err = l.Listener.Close()
		if errors.Is(err, net.ErrClosed) {
			err = nil // Serve closed it
		}
		if rerr := os.Remove(l.path); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
		err = errors.Join(err, l.dir.Close(), l.lock.Close())
	})
	return err
}

// Path returns where the socket is.
func (l *Listener) Path() string { return l.path }

// MakeFolder makes the state folder dir, if it does not exist, closed to other
// users. An empty folder that stands open is closed; one that holds something
// may be anybody's, such as /tmp, and is an error.
func MakeFolder(dir string) error {
	fault := func(cause error, format string, args ...any) error {
		return &Error{Message: fmt.Sprintf(format, args...), Hint: "choose another folder with --state DIR", Cause: cause}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fault(err, "make the state folder: %v", err)
	}
	fi, err := os.Stat(dir)
	if err != nil {
		return fault(err, "look at the state folder: %v", err)
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		return fault(nil, "the state folder %s belongs to another user (uid %d)", dir, st.Uid)
	}
	if fi.Mode().Perm()&0o077 == 0 {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fault(err, "look into the state folder: %v", err)
	}
	if len(entries) > 0 {
		e := &Error{Message: fmt.Sprintf("the state folder %s is open to other users (mode %04o)", dir, fi.Mode().Perm())}
		e.Hint = "close it with chmod 700 if it is SpecBox's own, or choose another with --state DIR"
		return e
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return fault(err, "close the state folder to other users: %v", err)
	}
	return nil
}

// occupied explains why the lock could not be had.
func occupied(dir string, lock *os.File, cause error) error {
	if !errors.Is(cause, syscall.EWOULDBLOCK) {
		return fmt.Errorf("lock the state folder %s: %w", dir, cause)
	}
	who, pid := "", make([]byte, 32)
	if n, _ := lock.ReadAt(pid, 0); n > 0 {
		who = " (process " + strings.TrimSpace(string(pid[:n])) + ")"
	}
	return &Error{
		Message: fmt.Sprintf("a specbox already runs on the state folder %s%s", dir, who),
		Hint:    "stop that one first, or choose another folder with --state DIR",
		Cause:   ErrRunning,
	}
}

// writePID says in the lock file who holds it. It is for people only.
func writePID(lock *os.File) error {
	if err := lock.Truncate(0); err != nil {
		return fmt.Errorf("write %s: %w", lock.Name(), err)
	}
	if _, err := lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return fmt.Errorf("write %s: %w", lock.Name(), err)
	}
	return nil
}

// shorten returns a path of the socket that fits into a socket address, which
// holds 108 bytes, however long dir is. The path is valid until the file is
// closed.
func shorten(dir string) (folder *os.File, path string, err error) {
	folder, err = os.Open(dir)
	if err != nil {
		return nil, "", fmt.Errorf("open the state folder: %w", err)
	}
	path = filepath.Join(dir, socketName)
	if len(path) > 100 {
		path = fmt.Sprintf("/proc/self/fd/%d/%s", folder.Fd(), socketName)
	}
	return folder, path, nil
}

// dial connects to the socket of dir.
func dial(ctx context.Context, dir string) (net.Conn, error) {
	folder, path, err := shorten(dir)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, notRunning(dir, err)
		}
		return nil, err
	}
	defer folder.Close()
	c, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)) {
		return nil, notRunning(dir, err)
	}
	return c, err
}

func notRunning(dir string, cause error) error {
	return &Error{
		Message: fmt.Sprintf("no specbox runs on the state folder %s", dir),
		Hint:    "start one with specbox serve -f FILE, or name its folder with --state DIR",
		Cause:   errors.Join(ErrNotRunning, cause),
	}
}
