package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/specbox/specbox/bench"
)

// demoFigures are what `specbox demo --json` prints: measured, all of them.
type demoFigures struct {
	OK       bool     `json:"ok"`
	Problems []string `json:"problems"` // what did not work
	Version  string   `json:"version"`
	State    string   `json:"state"`
	Config   string   `json:"config"`
	Cores    int      `json:"cores"`
	Took     float64  `json:"ms"` // all of it

	Install struct {
		Servers []string `json:"servers"` // whose package was missing
		Took    float64  `json:"ms"`      // until these were installed, and what they offer was read
		Bytes   int64    `json:"bytes"`   // all packages
	} `json:"install"`
	Open    float64    `json:"open_ms"` // from the new SpecBox to its open door
	Lists   []demoList `json:"lists"`
	Servers []demoRow  `json:"servers"`
	AtOnce  float64    `json:"at_once_ms"` // a call of each server, all at the same time
	Memory  struct {   // of the sandboxes, as ps tells it
		Before  int64 `json:"before_bytes"` // when the lists were answered
		All     int64 `json:"all_bytes"`    // when all servers were alive
		After   int64 `json:"after_bytes"`  // when all were idle
		SpecBox int64 `json:"specbox_bytes,omitempty"`
	} `json:"memory"`
	Idle struct {
		Timeout float64 `json:"timeout_ms"`
		Stopped int     `json:"stopped"`
		Last    float64 `json:"last_ms"` // from the last call to the last of these stops
		Alive   int     `json:"alive"`
		Left    int     `json:"processes_left"`
	} `json:"idle"`
	Again struct { // one more call, after all were stopped
		Server  string  `json:"server"`
		Outcome string  `json:"outcome"`
		Took    float64 `json:"ms"`
	} `json:"again"`
	Shutdown struct {
		Alive int     `json:"alive_before"`
		Took  float64 `json:"ms"`
		Left  int     `json:"processes_left"`
		Files int     `json:"files_left"` // of sandboxes
	} `json:"shutdown"`
	Foresight demoForesight `json:"foresight"`
}

// A demoList is a request that is answered with no sandbox alive.
type demoList struct {
	Method string  `json:"method"`
	Items  int     `json:"items"`
	Took   float64 `json:"ms"`
}

// A demoRow is what was measured of one server.
type demoRow struct {
	Server   string    `json:"server"`
	Language string    `json:"language"`
	Runs     string    `json:"runs"`
	Version  string    `json:"version,omitempty"`
	Answer   string    `json:"answer,omitempty"`
	Outcome  string    `json:"outcome,omitempty"` // of the first call, as the trace has it
	First    float64   `json:"first_ms"`          // that call, as the client sees it
	Start    float64   `json:"start_ms"`          // of it, the start of the sandbox
	Further  int       `json:"further_calls"`     // one after the other
	Warm     int       `json:"further_warm"`      // of them, those that found the sandbox ready
	Median   float64   `json:"median_ms"`         // of the further calls, as the client sees them
	PID      int       `json:"pid,omitempty"`
	Memory   int64     `json:"memory_bytes,omitempty"`
	Backend  string    `json:"backend,omitempty"`
	Kept     *demoKept `json:"isolation,omitempty"` // nil where this user may not look
	Error    string    `json:"error,omitempty"`
}

// ms is d in milliseconds, to the microsecond.
func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// msText tells milliseconds to people.
func msText(f float64) string {
	if f < 10 {
		return fmt.Sprintf("%.1f ms", f)
	}
	return fmt.Sprintf("%.0f ms", f)
}

// median returns the middle of ds, which it sorts.
func median(ds []time.Duration) time.Duration {
	if len(ds) == 0 {
		return 0
	}
	slices.Sort(ds)
	return (ds[(len(ds)-1)/2] + ds[len(ds)/2]) / 2
}

// demoKept is what Linux says of how a process is kept apart.
type demoKept struct {
	Namespaces   []string `json:"namespaces"`    // that are not SpecBox's own
	Capabilities bool     `json:"capabilities"`  // it has some
	NewPrivilege bool     `json:"new_privilege"` // it can gain some
	AnyCall      bool     `json:"any_call"`      // its system calls are not filtered
}

var namespaces = []string{"user", "mnt", "pid", "ipc", "uts", "net"}

// keptApart looks at the process pid.
func keptApart(pid int) (*demoKept, error) {
	k := &demoKept{Namespaces: []string{}}
	for _, ns := range namespaces {
		its, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, ns))
		if err != nil {
			return nil, err
		}
		ours, err := os.Readlink("/proc/self/ns/" + ns)
		if err != nil {
			return nil, err
		}
		if its != ours {
			k.Namespaces = append(k.Namespaces, ns)
		}
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return nil, err
	}
	k.Capabilities = strings.Trim(statusField(status, "CapEff"), "0") != ""
	k.NewPrivilege = statusField(status, "NoNewPrivs") != "1"
	k.AnyCall = statusField(status, "Seccomp") != "2"
	return k, nil
}

// lacks tells what of its isolation is missing.
func (k *demoKept) lacks() []string {
	var out []string
	for _, ns := range namespaces {
		if !slices.Contains(k.Namespaces, ns) {
			out = append(out, "shares the "+ns+" namespace")
		}
	}
	if k.Capabilities {
		out = append(out, "has capabilities")
	}
	if k.NewPrivilege {
		out = append(out, "can gain privileges")
	}
	if k.AnyCall {
		out = append(out, "may make any system call")
	}
	return out
}

// statusField returns the value behind "name:" in a file of such lines.
func statusField(b []byte, name string) string {
	for l := range bytes.Lines(b) {
		if v, ok := bytes.CutPrefix(l, []byte(name+":")); ok {
			return string(bytes.TrimSpace(v))
		}
	}
	return ""
}

// processesLeft counts those of pids that are still there.
func processesLeft(pids []int) int {
	n := 0
	for _, pid := range pids {
		if syscall.Kill(pid, 0) == nil {
			n++
		}
	}
	return n
}

// A demoEvent is what the demo reads of one line of the trace.
type demoEvent = bench.Event

// demoTrace takes the trace of a SpecBox, as a file would. One goroutine may
// await what others write.
type demoTrace struct {
	more chan struct{} // look again

	mu     sync.Mutex
	rest   []byte // of a line that is not complete
	events []demoEvent
}

func newDemoTrace() *demoTrace { return &demoTrace{more: make(chan struct{}, 1)} }

// Write takes lines of JSON.
func (t *demoTrace) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rest = append(t.rest, b...)
	for {
		line, rest, found := bytes.Cut(t.rest, []byte("\n"))
		if !found {
			break
		}
		var e demoEvent
		if err := json.Unmarshal(line, &e); err != nil {
			return 0, fmt.Errorf("the trace: %w", err)
		}
		t.events = append(t.events, e)
		t.rest = rest
	}
	select {
	case t.more <- struct{}{}:
	default:
	}
	return len(b), nil
}

// of returns the events that pick wants, so far.
func (t *demoTrace) of(pick func(demoEvent) bool) []demoEvent {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []demoEvent
	for _, e := range t.events {
		if pick(e) {
			out = append(out, e)
		}
	}
	return out
}

// await returns the events that pick wants when there are n of them, or those
// that there are when ctx ends.
func (t *demoTrace) await(ctx context.Context, n int, pick func(demoEvent) bool) []demoEvent {
	for {
		if got := t.of(pick); len(got) >= n {
			return got
		}
		select {
		case <-t.more:
		case <-ctx.Done():
			return t.of(pick)
		}
	}
}
