package control

import (
	"fmt"
	"net"
	"os"
	"syscall"
)

// A guarded listener lets in who is outside of every sandbox. The folder of the
// socket is closed to other users, but a sandbox that was given a folder above it
// sees it, and runs as the same user.
type guarded struct{ *net.UnixListener }

// Accept returns the next connection of somebody who may connect.
func (g guarded) Accept() (net.Conn, error) {
	for {
		c, err := g.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if outside(c) {
			return c, nil
		}
		_ = c.Close()
	}
}

// outside reports whether the other end of c is in the user namespace of this
// process. Of one outside of its process namespace nothing is known, but a
// sandbox is never that.
func outside(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	var peer *syscall.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		peer, failed = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if err != nil || failed != nil {
		return false
	}
	if peer.Pid == 0 {
		return true
	}
	theirs, err := os.Stat(fmt.Sprintf("/proc/%d/ns/user", peer.Pid))
	if err != nil { // it is gone, or not ours to look at
		return false
	}
	ours, err := os.Stat("/proc/self/ns/user")
	return err == nil && os.SameFile(theirs, ours)
}
