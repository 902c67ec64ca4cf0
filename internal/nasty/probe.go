package main

import (
	"bufio"
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// The tools of this file find out what a sandbox lets through. What the system
// refuses is a result with isError, and the system's words.

func read(_ context.Context, c invocation) ([]byte, error) {
	a, err := args[struct{ Path string }](c)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(a.Path)
	if err != nil {
		return wrong(err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 1<<20))
	if err != nil {
		return wrong(err)
	}
	return text(string(b)), nil
}

func write(_ context.Context, c invocation) ([]byte, error) {
	a, err := args[struct{ Path, Text string }](c)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(a.Path, []byte(a.Text), 0o644); err != nil {
		return wrong(err)
	}
	return text("written"), nil
}

func dir(_ context.Context, c invocation) ([]byte, error) {
	a, err := args[struct{ Path string }](c)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(a.Path)
	if err != nil {
		return wrong(err)
	}
	names := []string{}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return value(names)
}

func dial(ctx context.Context, c invocation) ([]byte, error) {
	a, err := args[struct{ Network, Address string }](c)
	if err != nil {
		return nil, err
	}
	if a.Network == "" {
		a.Network = "tcp"
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, a.Network, a.Address)
	if err != nil {
		return wrong(err)
	}
	defer conn.Close()
	if err := conn.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		return wrong(err)
	}
	b := make([]byte, 1024)
	n, _ := conn.Read(b) // silence is an answer too
	return text("connected: " + string(b[:n])), nil
}

func lookup(ctx context.Context, c invocation) ([]byte, error) {
	a, err := args[struct{ Host string }](c)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	addrs, err := net.DefaultResolver.LookupHost(ctx, a.Host)
	ms := time.Since(began).Milliseconds()
	if err != nil {
		return wrong(err)
	}
	return value(map[string]any{"addresses": addrs, "ms": ms})
}

// processes lists the numbered folders of /proc with their command lines.
func processes(context.Context, invocation) ([]byte, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return wrong(err)
	}
	out := map[string]string{} // pid -> command line
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if err == nil {
			out[e.Name()] = strings.TrimRight(strings.ReplaceAll(string(b), "\x00", " "), " ")
		}
	}
	return value(out)
}

func status(context.Context, invocation) ([]byte, error) {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return wrong(err)
	}
	defer f.Close()
	out := map[string]string{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		key, v, _ := strings.Cut(lines.Text(), ":")
		if strings.HasPrefix(key, "Cap") || key == "NoNewPrivs" || key == "Seccomp" || key == "Uid" {
			out[key] = strings.TrimSpace(v)
		}
	}
	return value(out)
}

func alloc(_ context.Context, c invocation) ([]byte, error) {
	a, err := args[struct{ Bytes int }](c)
	if err != nil {
		return nil, err
	}
	const block = 1 << 20
	for n := 0; n < a.Bytes; n += block {
		b := make([]byte, block)
		for i := 0; i < block; i += 4096 {
			b[i] = 1
		}
		c.s.mu.Lock()
		c.s.allocated = append(c.s.allocated, b)
		c.s.mu.Unlock()
	}
	return text("allocated"), nil
}

func fork(ctx context.Context, c invocation) ([]byte, error) {
	a, err := args[struct{ N int }](c)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var started []*exec.Cmd
	defer func() {
		cancel()
		for _, cmd := range started {
			_ = cmd.Wait()
		}
	}()
	for len(started) < a.N {
		cmd := exec.CommandContext(ctx, self(), "-sleeper", "1m")
		if cmd.Start() != nil {
			break
		}
		started = append(started, cmd)
	}
	return value(len(started))
}

func burn(_ context.Context, c invocation) ([]byte, error) {
	a, err := args[struct{ MS int }](c)
	if err != nil {
		return nil, err
	}
	until := time.Now().Add(time.Duration(a.MS) * time.Millisecond)
	before := cpuTime()
	var work sync.WaitGroup
	for range runtime.NumCPU() {
		work.Go(func() {
			for x := 1; time.Now().Before(until); x++ {
				_ = x * x
			}
		})
	}
	work.Wait()
	return value((cpuTime() - before).Milliseconds())
}

// cpuTime returns the time of all cores that the process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
