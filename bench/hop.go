package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Options say how to measure.
type Options struct {
	// Program is the specbox to measure; it is also the echo server.
	Program string
	// Echo are the arguments with which Program is the echo server.
	Echo []string
	// Serve are the arguments with which Program serves, but for --state, -f
	// and --listen.
	Serve []string
	// Rounds is how often each cell is measured; 0 means 5.
	Rounds int
	// For is how long a cell is measured in a round; 0 means 300 ms. At least a
	// call of each caller is made.
	For time.Duration
	// Progress is told what is measured; it may be nil.
	Progress func(string)
}

// A lane is one way to call, ready to be measured.
type lane struct {
	way     string
	callers []caller
	release func() error // after a cell
}

// Hop measures, and returns what it found. All that it started has ended when it
// returns.
func Hop(ctx context.Context, o Options) (*Report, error) {
	if o.Rounds <= 0 {
		o.Rounds = 5
	}
	if o.For <= 0 {
		o.For = 300 * time.Millisecond
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	began := time.Now()
	dir, err := os.MkdirTemp("", "specbox-bench")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	b, err := startBox(ctx, o, dir)
	if err != nil {
		return nil, err
	}
	defer b.stop()
	pipe, err := startPipe(o.Program, o.Echo)
	if err != nil {
		return nil, err
	}
	defer func() { _ = pipe.close() }()
	d, err := open(ctx, b.url)
	if err != nil {
		return nil, err
	}
	h := &hop{o: o, box: b, pipe: pipe, door: d, report: &Report{CPUs: runtime.NumCPU(), Rounds: o.Rounds}}
	h.report.IdleMB = memory(b.pid(), "VmRSS")
	if err := h.check(); err != nil {
		return nil, err
	}
	for round := range o.Rounds {
		for _, n := range callers {
			for _, size := range sizes {
				if err := ctx.Err(); err != nil {
					return nil, err
				}
				o.Progress(fmt.Sprintf("round %d of %d: %d bytes, %d callers", round+1, o.Rounds, size, n))
				if err := h.cells(size, n); err != nil {
					return nil, err
				}
			}
		}
	}
	h.report.sum()
	h.report.Seconds = time.Since(began).Seconds()
	return h.report, nil
}

// A hop is a measurement under way.
type hop struct {
	o      Options
	box    *box
	pipe   *pipeClient
	door   *door
	eras   []string
	report *Report
}

// check looks at the first answers byte for byte.
func (h *hop) check() error {
	for _, way := range []string{Direct, Legacy, Modern} {
		l, err := h.lane(way, 1)
		if err != nil {
			return err
		}
		for _, size := range sizes {
			want := result(size)
			r := l.callers[0].(reader)
			if _, err := r.call(size); err != nil {
				return errors.Join(fmt.Errorf("%s: %w", way, err), l.release())
			}
			if got := r.answer(); !bytes.Equal(got.Result, want) {
				return errors.Join(fmt.Errorf("%s: the result of %d bytes came as another: %.200s", way, size, got.Raw), l.release())
			}
		}
		if err := l.release(); err != nil {
			return err
		}
		if way != Direct {
			h.eras = append(h.eras, way)
		}
	}
	return nil
}

// lane makes callers ready.
func (h *hop) lane(way string, n int) (*lane, error) {
	l := &lane{way: way, release: func() error { return nil }}
	if way == Direct && n == 1 {
		l.callers = []caller{&single{p: h.pipe}}
		return l, nil
	}
	if way == Direct {
		l.callers = h.pipe.share(n)
		l.release = h.pipe.unshare
		return l, nil
	}
	var conns []*httpCaller
	l.release = func() error {
		var errs []error
		for _, c := range conns {
			errs = append(errs, c.conn.Close())
		}
		return errors.Join(errs...)
	}
	for range n {
		c, err := h.door.dial(way == Modern)
		if err != nil {
			return nil, errors.Join(err, l.release())
		}
		conns = append(conns, c)
		l.callers = append(l.callers, c)
	}
	return l, nil
}

// cells measures all ways of one size and number of callers, once.
func (h *hop) cells(size, n int) error {
	for _, way := range append([]string{Direct}, h.eras...) {
		c := h.report.Cell(way, size, n)
		if c == nil {
			c = &Cell{Way: way, Bytes: size, Callers: n, payload: size * n}
			h.report.Cells = append(h.report.Cells, c)
		}
		l, err := h.lane(way, n)
		if err != nil {
			return err
		}
		err = h.measure(c, l)
		if err := errors.Join(err, l.release()); err != nil {
			return fmt.Errorf("%s, %d bytes, %d callers: %w", way, size, n, err)
		}
	}
	return nil
}

// measure lets all callers of a lane call for a while.
func (h *hop) measure(c *Cell, l *lane) error {
	want := len(result(c.Bytes))
	var (
		work sync.WaitGroup
		mu   sync.Mutex // guards what follows
		errs []error
		all  []time.Duration
	)
	pid := h.box.pid()
	resetPeak(pid)
	cpu, began := cpuTime(pid), time.Now()
	until := began.Add(h.o.For)
	for _, caller := range l.callers {
		work.Go(func() {
			var times []time.Duration
			for {
				start := time.Now()
				got, err := caller.call(c.Bytes)
				took := time.Since(start)
				if err == nil && got != want {
					err = fmt.Errorf("a result of %d bytes came with %d", want, got)
				}
				if err != nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
					break
				}
				times = append(times, took)
				if !time.Now().Before(until) {
					break
				}
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, times...)
		})
	}
	work.Wait()
	c.rates = append(c.rates, float64(len(all))/time.Since(began).Seconds())
	c.times = append(c.times, all...)
	if c.Way != Direct {
		c.cpu += cpuTime(pid) - cpu
		if c.PeakMB == 0 { // later rounds find what larger cells left
			c.PeakMB = memory(pid, "VmHWM")
			c.OverMB = c.PeakMB - float64(c.payload)/1e6
		}
	}
	return errors.Join(errs...)
}

var serves = regexp.MustCompile(`serves .* at (http://\S+/mcp)`)

// startBox starts a SpecBox and waits until it knows its server.
func startBox(ctx context.Context, o Options, dir string) (*box, error) {
	config, err := json.Marshal(map[string]any{"servers": map[string]any{
		"bench": map[string]any{"command": o.Program, "args": o.Echo, "prefix": "", "isolation": "none"},
	}})
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "specbox.json")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		return nil, err
	}
	args := append(append([]string{"--state", filepath.Join(dir, "state")}, o.Serve...), "-f", file, "--listen", "127.0.0.1:0")
	b := &box{cmd: exec.Command(o.Program, args...), ended: make(chan struct{})}
	r, w := io.Pipe()
	b.cmd.Stdout, b.cmd.Stderr = w, w
	b.cmd.WaitDelay = stopTimeout
	if err := b.cmd.Start(); err != nil {
		return nil, err
	}
	ready := make(chan error, 1)
	go func() { // ends with the output
		var said []string
		filled, told := false, false
		for lines := bufio.NewScanner(r); lines.Scan(); {
			said = append(said, lines.Text())
			if m := serves.FindStringSubmatch(lines.Text()); m != nil {
				b.url = m[1]
			}
			filled = filled || strings.Contains(lines.Text(), "catalog 1/1")
			if filled && b.url != "" && !told {
				told = true
				ready <- nil
			}
		}
		if !told {
			ready <- fmt.Errorf("specbox did not start: %s", strings.Join(said, "\n"))
		}
	}()
	go func() { // stop waits for it
		_ = b.cmd.Wait()
		_ = w.Close()
		close(b.ended)
	}()
	select {
	case err = <-ready:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		b.stop()
		return nil, err
	}
	return b, nil
}

// resetPeak makes the kernel forget the peak of a process's memory.
func resetPeak(pid int) {
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0) // without it the peak is that of the whole run
}

// memory returns a figure of a process's status in megabytes.
func memory(pid int, name string) float64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			kb, _ := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
			return kb * 1024 / 1e6
		}
	}
	return 0
}

// cpuTime returns the time of all cores that a process has used.
func cpuTime(pid int) time.Duration {
	const sched = 2 // CPUCLOCK_SCHED: of all threads, to the nanosecond
	var t unix.Timespec
	if unix.ClockGettime(int32(^pid<<3|sched), &t) != nil {
		return 0 // it has ended
	}
	return time.Duration(t.Nano())
}
