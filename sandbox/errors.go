package sandbox

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

var (
	// ErrClosed is returned by Acquire once the manager has begun to shut down.
	ErrClosed = errors.New("SpecBox is shutting down: no sandbox is started any more")
	// ErrSessionEnded is returned by Acquire for a session that has ended.
	ErrSessionEnded = errors.New("the session has ended: no sandbox is started for it any more")
)

// A StartError says why a server could not be started.
type StartError struct {
	Server string
	Err    error     // what went wrong
	Exit   string    // how the server ended, if it did
	Stderr []string  // its last lines
	Tries  int       // starts that went wrong in a row
	Retry  time.Time // until then Acquire fails at once, with this error
	now    time.Time // when the error was returned
}

func (e *StartError) Error() string {
	var b strings.Builder
	why := strings.TrimPrefix(e.Err.Error(), fmt.Sprintf("server %q: ", e.Server)) // backends name it as well
	fmt.Fprintf(&b, "server %q could not be started: %s", e.Server, why)
	describe(&b, e.Exit, e.Stderr)
	if wait := e.Retry.Sub(e.now); wait > 0 {
		fmt.Fprintf(&b, "; %s: it is tried again in %v at the earliest", attempts(e.Tries), wait.Round(100*time.Millisecond))
	}
	fmt.Fprintf(&b, "; `specbox logs %s` shows more", e.Server)
	return b.String()
}

// Unwrap returns what went wrong.
func (e *StartError) Unwrap() error { return e.Err }

func attempts(n int) string {
	if n == 1 {
		return "this was one attempt"
	}
	return fmt.Sprintf("%d attempts in a row went wrong", n)
}

func describe(b *strings.Builder, exit string, stderr []string) {
	if exit != "" {
		fmt.Fprintf(b, "; it ended: %s", exit)
	}
	if len(stderr) > 0 {
		fmt.Fprintf(b, "; its last words: %s", strings.Join(stderr, " | "))
	}
}

// A LostError says how a sandbox was lost in mid-call.
type LostError struct {
	Server  string
	Sandbox string
	Reason  string // ReasonCrash, or why it was stopped
	Exit    string // how the server ended, where known
	Stderr  []string
	Err     error // of the connection
}

func (e *LostError) Error() string {
	var b strings.Builder
	if e.Reason == ReasonCrash {
		fmt.Fprintf(&b, "server %q died during the call", e.Server)
		describe(&b, e.Exit, e.Stderr)
		b.WriteString("; the next call starts it anew")
		return b.String()
	}
	fmt.Fprintf(&b, "the sandbox of server %q was stopped during the call (%s)", e.Server, e.Reason)
	return b.String()
}

// Unwrap returns the error of the connection.
func (e *LostError) Unwrap() error { return e.Err }

// A QuotaError says that there was no room for a sandbox, and who has it.
type QuotaError struct {
	Server string
	Tenant string
	Limit  string // what is exhausted, and how to have more of it
	Waited time.Duration
	Held   map[string]int // server -> sandboxes of the asking tenant, shared ones included
	Others int            // sandboxes of other tenants
}

func (e *QuotaError) Error() string {
	var held []string
	for server, n := range e.Held {
		held = append(held, fmt.Sprintf("%s %d", server, n))
	}
	slices.Sort(held)
	if e.Others > 0 {
		held = append(held, fmt.Sprintf("other tenants %d", e.Others))
	}
	return fmt.Sprintf("server %q found no room for its sandbox within %v: %s; in use: %s; let calls end, or stop some with `specbox stop`",
		e.Server, e.Waited, e.Limit, cmp.Or(strings.Join(held, ", "), "none"))
}
