package process

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// The filter leaves servers what programs need and takes away what only helps
// to get out of a sandbox: it is a list of what is denied, so that no ordinary
// program meets it. Node, Python, Go, and browsers run.

// denied system calls answer EPERM: namespaces and mounts, other processes'
// memory, keys that are not kept apart by namespaces, loading code into the
// kernel, and interfaces with a record of holes.
var denied = append([]uint32{
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT,
	unix.SYS_OPEN_TREE, unix.SYS_MOVE_MOUNT, unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK,
	unix.SYS_MOUNT_SETATTR, unix.SYS_UNSHARE, unix.SYS_SETNS,
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PIDFD_GETFD, unix.SYS_KCMP,
	unix.SYS_PROCESS_MADVISE,
	unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL,
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD,
	unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
	unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE,
	unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_REBOOT,
	unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_FANOTIFY_INIT, unix.SYS_LOOKUP_DCOOKIE,
	unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_ACCT, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD, unix.SYS_SYSLOG,
	unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_CLOCK_ADJTIME, unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME,
	unix.SYS_VHANGUP, unix.SYS_NFSSERVCTL,
}, deniedHere...)

// newNamespaces are the flags with which clone makes namespaces.
const newNamespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET |
	unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP

// families are the kinds of sockets that a network namespace keeps apart.
// Others, such as those to the machine's hypervisor, would pass it by.
var families = []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}

// filter returns the program in the form that bubblewrap reads: an array of
// struct sock_filter.
func filter() []byte {
	const (
		load = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		eq   = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		ge   = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
		set  = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
		ret  = unix.BPF_RET | unix.BPF_K

		// Offsets in struct seccomp_data, little endian.
		number, arch, arg0, arg1 = 0, 4, 16, 24
	)
	var p []unix.SockFilter
	add := func(code uint16, k uint32, yes, no uint8) {
		p = append(p, unix.SockFilter{Code: code, K: k, Jt: yes, Jf: no})
	}
	fail := func(e unix.Errno) { add(ret, unix.SECCOMP_RET_ERRNO|uint32(e), 0, 0) }
	allow := func() { add(ret, unix.SECCOMP_RET_ALLOW, 0, 0) }

	add(load, arch, 0, 0)
	add(eq, auditArch, 1, 0)
	fail(unix.ENOSYS) // the calls of another architecture have other numbers
	add(load, number, 0, 0)
	add(ge, foreign, 0, 1)
	fail(unix.ENOSYS)
	for _, nr := range denied {
		add(eq, nr, 0, 1)
		fail(unix.EPERM)
	}
	// Its flags are in memory, which a filter cannot see: C libraries fall
	// back to clone.
	add(eq, unix.SYS_CLONE3, 0, 1)
	fail(unix.ENOSYS)

	add(eq, unix.SYS_CLONE, 0, 4)
	add(load, arg0, 0, 0)
	add(set, newNamespaces, 0, 1)
	fail(unix.EPERM)
	allow()

	add(eq, unix.SYS_SOCKET, 0, uint8(len(families)*2+2))
	add(load, arg0, 0, 0)
	for _, f := range families {
		add(eq, f, 0, 1)
		allow()
	}
	fail(unix.EAFNOSUPPORT)

	// Typing into a terminal that somebody else reads.
	add(eq, unix.SYS_IOCTL, 0, 4)
	add(load, arg1, 0, 0)
	add(eq, unix.TIOCSTI, 1, 0)
	add(eq, tioclinux, 0, 1)
	fail(unix.EPERM)
	allow()

	var b bytes.Buffer
	_ = binary.Write(&b, binary.NativeEndian, p) // into memory, of fixed-size values
	return b.Bytes()
}

const tioclinux = 0x541C // TIOCLINUX, which x/sys does not name
