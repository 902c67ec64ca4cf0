package process

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// An allow-list works without a word in the server's configuration: its sandbox
// has a network namespace with nothing but a loopback, on which each allowed
// host has an address of its own, given by /etc/hosts. SpecBox listens there and
// connects what comes to the real host, byte for byte, so that TLS is end to
// end. Whatever else the server tries meets a network without a way out.
//
// The namespace is made by our own executable, started anew (see [Init]): it
// opens the sockets, hands them over, and becomes bubblewrap.

// helperName is argv[0] of our executable when it is to make a network.
const helperName = "specbox-network"

// initialized tells that main calls Init. Without it, starting ourselves anew
// would run the whole program again.
var initialized atomic.Bool

// Init makes the calling program able to start itself as the helper that makes
// a sandbox's network. Call it first thing in main (or TestMain): in the helper
// it does not return.
func Init() {
	if os.Args[0] != helperName {
		initialized.Store(true)
		return
	}
	err := helper()
	fmt.Fprintln(os.Stderr, "specbox network helper:", err)
	os.Exit(1)
}

// An allowList is what a sandbox may reach.
type allowList struct {
	ways []way
	ips  []netip.Addr      // of the ways, besides loopback's own
	name map[string]string // host name -> its address inside
}

// A way leads from an address inside to one outside.
type way struct {
	Inside  string // "ip:port"
	Outside string // "host:port"
}

// defaultPorts are those of an entry without one.
var defaultPorts = []string{"80", "443"}

// newAllowList understands "host", "host:port", "ip", "ip:port" and "[ip6]:port".
func newAllowList(entries []string) (*allowList, error) {
	a := &allowList{name: map[string]string{}}
	for _, e := range entries {
		host, ports, err := splitEntry(e)
		if err != nil {
			return nil, err
		}
		inside := []string{host}
		if host == "localhost" {
			inside = []string{"127.0.0.1", "::1"}
		} else if ip, err := netip.ParseAddr(host); err != nil {
			inside = []string{a.address(host)}
		} else if !ip.IsLoopback() && !slices.Contains(a.ips, ip) {
			a.ips = append(a.ips, ip)
		}
		for _, in := range inside {
			for _, p := range ports {
				w := way{net.JoinHostPort(in, p), net.JoinHostPort(host, p)}
				if !slices.ContainsFunc(a.ways, func(o way) bool { return o.Inside == w.Inside }) {
					a.ways = append(a.ways, w)
				}
			}
		}
	}
	if len(a.ways) > maxWays {
		return nil, fmt.Errorf("network: %d allowed addresses are more than %d: allow less, or the whole network", len(a.ways), maxWays)
	}
	return a, nil
}

// maxWays is how many descriptors one message can carry.
const maxWays = 250

func splitEntry(e string) (host string, ports []string, err error) {
	bad := func(why string) (string, []string, error) {
		return "", nil, fmt.Errorf("network: allowed host %q: %s", e, why)
	}
	host, ports = strings.ToLower(strings.TrimSuffix(strings.TrimSpace(e), ".")), defaultPorts
	if ip, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		host = ip.String()
	} else if h, p, err := net.SplitHostPort(host); err == nil {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			return bad("the port is not a number from 1 to 65535")
		}
		host, ports = strings.TrimSuffix(h, "."), []string{strconv.FormatUint(n, 10)}
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		if ip.IsUnspecified() || ip.IsMulticast() || ip.Zone() != "" || ip.Is4In6() {
			return bad("this is not the address of one host")
		}
		return ip.String(), ports, nil
	}
	if strings.Contains(host, "*") {
		return bad("patterns cannot be allowed, since names are resolved by a list: name each host")
	}
	if host == "" || len(host) > 253 || strings.Trim(host, "abcdefghijklmnopqrstuvwxyz0123456789-._") != "" {
		return bad(`write "host", "host:port" or "ip:port"`)
	}
	return host, ports, nil
}

// address returns the address inside of a host name: 127.83.0.1 and on, which
// no program chooses by chance.
func (a *allowList) address(host string) string {
	if _, ok := a.name[host]; !ok {
		n := len(a.name) + 1
		a.name[host] = fmt.Sprintf("127.83.%d.%d", n/250, n%250+1)
	}
	return a.name[host]
}

// hostsFile returns the lines of /etc/hosts.
func (a *allowList) hostsFile() string {
	var b strings.Builder
	for host, ip := range a.name {
		fmt.Fprintf(&b, "%s %s\n", ip, host)
	}
	return b.String()
}

// An order is what the helper is told, and does.
type order struct {
	Addresses []string // to add to the loopback
	Listen    []string // "ip:port"
	Path      string   // what to become
	Argv      []string
}

// helper makes the network of the namespace that it was started in, sends the
// sockets through descriptor 3, and becomes what it was told to.
func helper() error {
	const control = 3
	buf := make([]byte, 1<<20)
	n, err := unix.Read(control, buf)
	if err != nil {
		return fmt.Errorf("read the order: %w", err)
	}
	var o order
	if err := json.Unmarshal(buf[:n], &o); err != nil {
		return fmt.Errorf("read the order: %w", err)
	}
	if err := loopback(o.Addresses); err != nil {
		return err
	}
	// The kernel takes a moment until a new IPv6 address can be bound to.
	listen := net.ListenConfig{Control: func(network, _ string, c syscall.RawConn) error {
		level, option := unix.IPPROTO_IP, unix.IP_FREEBIND
		if network == "tcp6" {
			level, option = unix.IPPROTO_IPV6, unix.IPV6_FREEBIND
		}
		var err error
		return errors.Join(c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, 1) }), err)
	}}
	var fds []int
	opened := make([]byte, len(o.Listen)) // 1 or 0 for each
	for n, addr := range o.Listen {
		l, err := listen.Listen(context.Background(), "tcp", addr)
		if err != nil {
			if strings.HasPrefix(addr, "[::1]") { // a kernel without IPv6
				continue
			}
			return err
		}
		f, err := l.(*net.TCPListener).File()
		if err != nil {
			return err
		}
		opened[n] = 1
		fds = append(fds, int(f.Fd()))
	}
	if err := unix.Sendmsg(control, opened, unix.UnixRights(fds...), nil, 0); err != nil {
		return fmt.Errorf("hand the sockets over: %w", err)
	}
	unix.CloseOnExec(control)
	return fmt.Errorf("become %s: %w", o.Path, unix.Exec(o.Path, o.Argv, os.Environ()))
}

// loopback brings the loopback up, with addresses added.
func loopback(addresses []string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING | unix.IFF_LOOPBACK)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("bring the loopback up: %w", err)
	}
	for n, a := range addresses {
		ip, err := netip.ParseAddr(a)
		if err != nil {
			return err
		}
		if ip.Is6() {
			err = addAddress6(ip)
		} else {
			var alias *unix.Ifreq
			if alias, err = unix.NewIfreq("lo:" + strconv.Itoa(n)); err == nil {
				if err = alias.SetInet4Addr(ip.AsSlice()); err == nil {
					err = unix.IoctlIfreq(fd, unix.SIOCSIFADDR, alias)
				}
			}
		}
		if err != nil {
			return fmt.Errorf("add %s to the loopback: %w", a, err)
		}
	}
	return nil
}

// addAddress6 adds an IPv6 address to the loopback, which is interface 1 in
// every namespace.
func addAddress6(ip netip.Addr) error {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	req := struct { // struct in6_ifreq
		addr   [16]byte
		prefix uint32
		index  int32
	}{ip.As16(), 128, 1}
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCSIFADDR, uintptr(unsafe.Pointer(&req))); e != 0 {
		return e
	}
	return nil
}

// receive tells the helper at the other end of control what to do, and returns
// the listeners that it opened, nil for an address that the kernel lacks.
func receive(control *os.File, o order) ([]net.Listener, error) {
	b, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	if _, err := control.Write(b); err != nil {
		return nil, fmt.Errorf("instruct the network helper: %w", err)
	}
	conn, err := control.SyscallConn()
	if err != nil {
		return nil, err
	}
	oob := make([]byte, unix.CmsgSpace(4*maxWays))
	opened := make([]byte, len(o.Listen))
	var n, oobn int
	var rerr error
	err = conn.Read(func(fd uintptr) bool {
		n, oobn, _, _, rerr = unix.Recvmsg(int(fd), opened, oob, unix.MSG_CMSG_CLOEXEC)
		return rerr != unix.EAGAIN && rerr != unix.EINTR
	})
	if err = errors.Join(err, rerr); err != nil {
		return nil, fmt.Errorf("sockets of the network helper: %w", err)
	}
	if n < len(opened) {
		return nil, errors.New("the network helper ended early")
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return nil, fmt.Errorf("sockets of the network helper: %w", err)
	}
	var out []net.Listener
	var errs []error
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		errs = append(errs, err)
		for _, fd := range fds {
			f := os.NewFile(uintptr(fd), "listener")
			l, err := net.FileListener(f) // a copy
			f.Close()
			if err != nil {
				errs = append(errs, err)
				continue
			}
			out = append(out, l)
		}
	}
	if err := errors.Join(errs...); err != nil || len(out) != bytes.Count(opened, []byte{1}) {
		for _, l := range out {
			l.Close()
		}
		return nil, fmt.Errorf("sockets of the network helper: %d came: %w", len(out), err)
	}
	for n, is := range opened {
		if is == 0 {
			out = slices.Insert(out, n, nil)
		}
	}
	return out, nil
}

// A bridge connects what comes to the listeners of a sandbox with the real
// hosts, until it is closed.
type bridge struct {
	life  context.Context
	end   context.CancelFunc
	work  sync.WaitGroup
	slots chan struct{}
	say   func(string) // tells the server's log
}

// maxConns bounds the connections of one sandbox, so that a server cannot use
// up SpecBox's descriptors.
const maxConns = 256

// dialTimeout bounds a connection attempt to a real host.
const dialTimeout = 15 * time.Second

func newBridge(listeners []net.Listener, ways []way, say func(string)) *bridge {
	b := &bridge{slots: make(chan struct{}, maxConns), say: say}
	b.life, b.end = context.WithCancel(context.Background())
	for n, l := range listeners {
		if l == nil {
			continue
		}
		b.work.Go(func() {
			defer context.AfterFunc(b.life, func() { l.Close() })()
			defer l.Close()
			b.serve(l, ways[n].Outside)
		})
	}
	return b
}

// close ends all connections and waits for them.
func (b *bridge) close() {
	b.end()
	b.work.Wait()
}

func (b *bridge) serve(l net.Listener, to string) {
	for {
		c, err := l.Accept()
		if err != nil {
			if b.life.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			select { // out of descriptors, most likely
			case <-time.After(100 * time.Millisecond):
				continue
			case <-b.life.Done():
				return
			}
		}
		select {
		case b.slots <- struct{}{}:
			b.work.Go(func() {
				defer func() { <-b.slots }()
				b.connect(c, to)
			})
		default:
			b.say(fmt.Sprintf("network: a connection to %s is refused: %d are open", to, maxConns))
			c.Close()
		}
	}
}

func (b *bridge) connect(in net.Conn, to string) {
	defer in.Close()
	d := net.Dialer{Timeout: dialTimeout}
	out, err := d.DialContext(b.life, "tcp", to)
	if err != nil {
		if b.life.Err() == nil {
			b.say(fmt.Sprintf("network: %s cannot be reached: %v", to, err))
		}
		_ = in.(*net.TCPConn).SetLinger(0) // a reset: refused, not answered with nothing
		return
	}
	defer out.Close()
	defer context.AfterFunc(b.life, func() { in.Close(); out.Close() })()
	var both sync.WaitGroup
	pass := func(dst, src net.Conn) {
		if _, err := io.Copy(dst, src); err != nil {
			in.Close()
			out.Close()
			return
		}
		_ = dst.(*net.TCPConn).CloseWrite()
	}
	both.Go(func() { pass(out, in) })
	both.Go(func() { pass(in, out) })
	both.Wait()
}
