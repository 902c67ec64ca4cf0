// Command probe is an MCP server that tries what a sandbox must not let it do.
// Its tools say what they found; they judge nothing.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

type args struct {
	Path, Data, Name, Addr, Network string
	N, Ms                           int
}

func main() {
	if len(os.Args) > 1 {
		role(os.Args[1])
	}
	if os.Getenv("PROBE_IGNORE") != "" {
		signal.Ignore(syscall.SIGTERM)
	}
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			if os.Getenv("PROBE_IGNORE") != "" || os.Getenv("PROBE_NOEOF") != "" {
				for {
					time.Sleep(time.Hour)
				}
			}
			return
		}
		var m struct {
			ID     json.RawMessage
			Method string
			Params struct {
				ProtocolVersion string
				Name            string
				Arguments       args
			}
		}
		if json.Unmarshal(line, &m) != nil || m.ID == nil {
			continue
		}
		switch m.Method {
		case "initialize":
			reply(m.ID, map[string]any{
				"protocolVersion": m.Params.ProtocolVersion, "capabilities": map[string]any{"tools": map[string]any{}},
				"serverInfo": map[string]string{"name": "probe", "version": "1"},
			})
		case "tools/list":
			var list []map[string]any
			for name := range tools {
				list = append(list, map[string]any{"name": name, "inputSchema": map[string]string{"type": "object"}})
			}
			reply(m.ID, map[string]any{"tools": list})
		case "tools/call":
			text, isError := call(m.Params.Name, m.Params.Arguments)
			reply(m.ID, map[string]any{"content": []map[string]string{{"type": "text", "text": text}}, "isError": isError})
		default:
			reply(m.ID, map[string]any{})
		}
	}
}

// role is what a process does that the probe starts of itself.
func role(what string) {
	switch what {
	case "sleep", "holder": // holder keeps the standard streams open
		signal.Ignore(syscall.SIGTERM, syscall.SIGHUP)
		for {
			time.Sleep(time.Hour)
		}
	case "none":
		os.Exit(0)
	}
}

func reply(id json.RawMessage, result any) {
	b, _ := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "result": result})
	os.Stdout.Write(append(b, '\n'))
}

func call(name string, a args) (text string, isError bool) {
	f, ok := tools[name]
	if !ok {
		return "no such tool", true
	}
	text, err := f(a)
	if err != nil {
		return err.Error(), true
	}
	return text, false
}

var tools = map[string]func(args) (string, error){
	"pids": func(args) (string, error) {
		all, _ := filepath.Glob("/proc/[0-9]*")
		return strings.Join(all, " "), nil
	},
	"read": func(a args) (string, error) {
		b, err := os.ReadFile(a.Path)
		return string(b[:min(len(b), 1<<20)]), err
	},
	"write": func(a args) (string, error) { return "", os.WriteFile(a.Path, []byte(a.Data), 0o600) },
	"openwrite": func(a args) (string, error) { // without writing: the file may be the host's
		f, err := os.OpenFile(a.Path, os.O_WRONLY, 0)
		if err == nil {
			f.Close()
		}
		return "", err
	},
	"fill": func(a args) (string, error) { // a.N MiB to a file
		f, err := os.Create(a.Path)
		if err != nil {
			return "", err
		}
		defer f.Close()
		for i := range a.N {
			if _, err := f.Write(make([]byte, 1<<20)); err != nil {
				return strconv.Itoa(i), err
			}
		}
		return strconv.Itoa(a.N), nil
	},
	"list": func(a args) (string, error) {
		entries, err := os.ReadDir(a.Path)
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return strings.Join(names, " "), err
	},
	"link": func(a args) (string, error) { return os.Readlink(a.Path) },
	"env":  func(args) (string, error) { return strings.Join(os.Environ(), "\n"), nil },
	"cwd":  func(args) (string, error) { return os.Getwd() },
	"uid":  func(args) (string, error) { return strconv.Itoa(os.Getuid()), nil },
	"connect": func(a args) (string, error) {
		c, err := net.DialTimeout(a.Network, a.Addr, 3*time.Second)
		if err != nil {
			return "", err
		}
		defer c.Close()
		if a.Data == "" {
			return "connected", nil
		}
		if _, err := io.WriteString(c, a.Data); err != nil {
			return "", err
		}
		_ = c.(interface{ CloseWrite() error }).CloseWrite()
		_ = c.SetReadDeadline(time.Now().Add(3 * time.Second))
		b, err := io.ReadAll(c)
		return string(b), err
	},
	"get": func(a args) (string, error) {
		r, err := (&http.Client{Timeout: 5 * time.Second}).Get(a.Addr)
		if err != nil {
			return "", err
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		return string(b), err
	},
	"resolve": func(a args) (string, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		begun := time.Now()
		ips, err := net.DefaultResolver.LookupHost(ctx, a.Name)
		if err != nil {
			return "", fmt.Errorf("after %d ms: %w", time.Since(begun).Milliseconds(), err)
		}
		return strings.Join(ips, " "), nil
	},
	"syscall": func(a args) (string, error) { return "", rawCall(a.Name) },
	"alloc":   alloc,
	"fork":    fork,
	"burn": func(a args) (string, error) { // a.N loops for a.Ms; returns the CPU time they got, in ms
		end := time.Now().Add(time.Duration(a.Ms) * time.Millisecond)
		done := make(chan struct{})
		for range a.N {
			go func() {
				for time.Now().Before(end) {
				}
				done <- struct{}{}
			}()
		}
		for range a.N {
			<-done
		}
		var u syscall.Rusage
		err := syscall.Getrusage(syscall.RUSAGE_SELF, &u)
		return strconv.FormatInt((u.Utime.Nano()+u.Stime.Nano())/1e6, 10), err
	},
	"daemon": func(a args) (string, error) { // a grandchild in a session of its own, that holds stdout
		c := exec.Command("/proc/self/exe", "holder")
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if a.Name != "quiet" {
			c.Stdout, c.Stderr = os.Stdout, os.Stderr
		}
		if a.Name == "bare" { // nor the marker
			c.Env = []string{"NOTHING=1"}
		}
		if err := c.Start(); err != nil {
			return "", err
		}
		return strconv.Itoa(c.Process.Pid), c.Process.Release()
	},
	"churn": func(a args) (string, error) { // children without end, each of several threads
		go func() {
			for {
				_ = exec.Command("/proc/self/exe", "none").Run()
			}
		}()
		return "", nil
	},
	"exit": func(a args) (string, error) {
		os.Exit(a.N)
		return "", nil
	},
	"signal": func(a args) (string, error) {
		signal.Reset()
		return "", syscall.Kill(os.Getpid(), syscall.Signal(a.N))
	},
	"say": func(a args) (string, error) {
		fmt.Fprint(os.Stderr, a.Data)
		fmt.Println(a.Name)
		return "", nil
	},
	"sleep": func(a args) (string, error) {
		time.Sleep(time.Duration(a.Ms) * time.Millisecond)
		return "", nil
	},
}

var kept [][]byte

// alloc touches a.N MiB.
func alloc(a args) (string, error) {
	for range a.N {
		b := make([]byte, 1<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		kept = append(kept, b)
	}
	return strconv.Itoa(len(kept)), nil
}

// fork starts up to a.N children and returns how many it got.
func fork(a args) (string, error) {
	for i := range a.N {
		c := exec.Command("/proc/self/exe", "sleep")
		if err := c.Start(); err != nil {
			return strconv.Itoa(i), nil
		}
	}
	return strconv.Itoa(a.N), nil
}

// rawCall makes a system call that would do harm, with arguments that make it
// fail where it is not denied.
func rawCall(name string) error {
	var e syscall.Errno
	str := func(s string) uintptr { b := append([]byte(s), 0); return uintptr(unsafe.Pointer(&b[0])) }
	switch name {
	case "unshare":
		_, _, e = syscall.RawSyscall(syscall.SYS_UNSHARE, syscall.CLONE_NEWUSER, 0, 0)
	case "clone":
		c := exec.Command("/proc/self/exe", "none")
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
		return c.Start()
	case "clone3":
		_, _, e = syscall.RawSyscall(435, 0, 0, 0)
	case "mount":
		_, _, e = syscall.RawSyscall6(syscall.SYS_MOUNT, str("x"), str("/tmp"), str("tmpfs"), 0, 0, 0)
	case "ptrace":
		_, _, e = syscall.RawSyscall(syscall.SYS_PTRACE, 16, 1, 0)
	case "keyctl":
		_, _, e = syscall.RawSyscall(syscall.SYS_KEYCTL, 0, ^uintptr(3), 0)
	case "bpf":
		_, _, e = syscall.RawSyscall(321, 0, 0, 0)
	case "userfaultfd":
		_, _, e = syscall.RawSyscall(323, 0, 0, 0)
	case "perf_event_open":
		_, _, e = syscall.RawSyscall(syscall.SYS_PERF_EVENT_OPEN, 0, 0, 0)
	case "io_uring_setup":
		_, _, e = syscall.RawSyscall(425, 1, 0, 0)
	case "vsock":
		_, e2 := syscall.Socket(40, syscall.SOCK_STREAM, 0)
		return e2
	case "unix":
		fd, e2 := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
		syscall.Close(fd)
		return e2
	case "tiocsti":
		_, _, e = syscall.RawSyscall(syscall.SYS_IOCTL, 0, syscall.TIOCSTI, str("x"))
	case "x32":
		_, _, e = syscall.RawSyscall(0x40000000|syscall.SYS_GETPID, 0, 0, 0)
	default:
		return fmt.Errorf("no system call %s here", name)
	}
	if e == 0 {
		return nil
	}
	return e
}
