// Package control is the operator's door: an HTTP API on a Unix socket in the
// state folder, a client for it, metrics and the health check.
//
// It knows no rooms: behind the door stands a [Runtime], which the house
// fills. Its laws:
//
//   - One SpecBox a state folder. A living one is never pushed aside, and what
//     a dead one left never stands in the way.
//   - Only the user who started SpecBox can open the door, and no sandbox can.
//   - An answer that streams is complete only when its last line says so; a
//     client that leaves ends the work that was done for it.
//   - Every error says what to do, where that is known.
package control

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"
)

// A Runtime is what stands behind the door. Its functions are called
// concurrently and must respect their context; a nil one answers that it is
// not offered. They report through on, which may be called concurrently but
// not after they have returned; when on returns an error the asker is gone, and
// they return that error. They return an [*Error] where they know a hint or a
// status.
type Runtime struct {
	// Health describes the running SpecBox.
	Health func(ctx context.Context) (Health, error)
	// PS lists the sandboxes that are alive, of all tenants.
	PS func(ctx context.Context) ([]Sandbox, error)
	// Conversations lists the conversations with models that are remembered, those
	// with an answer under way first.
	Conversations func(ctx context.Context) ([]Conversation, error)
	// Activity tells what happened at each server lately; see [Recent].
	Activity func(ctx context.Context) (Activity, error)
	// Logs reports what the sandboxes of server printed, oldest first; with
	// follow it goes on until ctx ends. An empty tenant means all tenants.
	Logs func(ctx context.Context, tenant, server string, follow bool, on func(Line) error) error
	// Stop stops the sandboxes that s selects and returns, when they are gone,
	// how many they were.
	Stop func(ctx context.Context, s Selector) (int, error)
	// Tools lists the tools as tenant sees them on all servers.
	Tools func(ctx context.Context, tenant string) ([]Tool, error)
	// Call calls the tool that tenant sees as name and returns its result as
	// the server wrote it. A tool that answers with an error is no error.
	Call func(ctx context.Context, tenant, name string, arguments json.RawMessage, on func(Progress) error) (json.RawMessage, error)
	// Catalog tells what is stored of each server.
	Catalog func(ctx context.Context) ([]CatalogRow, error)
	// Refresh reads the lists of servers again, of all with none named. A
	// server that fails is reported by on and does not end it.
	Refresh func(ctx context.Context, servers []string, on func(Progress) error) error
	// Servers lists the configured servers.
	Servers func(ctx context.Context) ([]Server, error)
	// Update installs what is missing of servers, of all with none named, and
	// moves pinned versions on. A server that fails is reported by on.
	Update func(ctx context.Context, servers []string, on func(Progress) error) error
}

// Health describes a running SpecBox.
type Health struct {
	Version   string    `json:"version"`
	PID       int       `json:"pid"`
	Started   time.Time `json:"started"`
	URL       string    `json:"url"`    // of the agent's door, e.g. http://127.0.0.1:8484/mcp
	Tokens    bool      `json:"tokens"` // that door asks for bearer tokens
	Config    string    `json:"config"` // file that was loaded, absolute
	Servers   int       `json:"servers"`
	Sandboxes int       `json:"sandboxes"` // alive
	Sessions  int       `json:"sessions"`
	Memory    int64     `json:"memory_bytes"` // of all sandboxes
	Warnings  []string  `json:"warnings,omitempty"`
}

// A Sandbox is one row of `specbox ps`.
type Sandbox struct {
	ID               string  `json:"id"`
	Server           string  `json:"server"`
	Tenant           string  `json:"tenant"`
	Session          string  `json:"session"`           // "" where several may use it
	State            string  `json:"state"`             // waiting, queued, starting, ready, frozen, leased, draining
	Cause            string  `json:"cause"`             // why it was started
	P                float64 `json:"p,omitempty"`       // how sure the guess was that it was started on; 0 if it was none
	Lead             int64   `json:"lead_ms,omitempty"` // how long after its start was asked for the first call came; 0 if none has, or the call asked
	Unused           bool    `json:"unused,omitempty"`  // it was started ahead, and nobody has come for it yet
	Backend          string  `json:"backend"`
	PID              int     `json:"pid"` // 0 if there is none on this host
	Memory           int64   `json:"memory_bytes"`
	Age              int64   `json:"age_ms"`
	Idle             int64   `json:"idle_ms"` // unused this long; 0 while a call is under way
	Calls            int64   `json:"calls"`   // under way and done
	IsolationWarning string  `json:"isolation_warning,omitempty"`
}

// A Conversation is one that an agent leads with a model, through SpecBox.
type Conversation struct {
	Tenant   string   `json:"tenant"`
	Key      string   `json:"key,omitempty"`    // that its client named it by, or
	Hash     string   `json:"hash,omitempty"`   // what it began with
	Joined   string   `json:"joined,omitempty"` // by what it was joined to its sessions: "key", "arguments"; "" if it was not
	Sessions []string `json:"sessions"`         // that it was joined to
	Streams  int      `json:"streams"`          // answers of the model under way
	Steps    int      `json:"steps"`            // of it that called something
	Expects  []string `json:"expects"`          // servers that were warmed for it and not called yet
	Idle     int64    `json:"idle_ms"`          // since it was last heard of
}

// Activity is what happened at each server within a window of time that ends now.
type Activity struct {
	Window  int64            `json:"window_ms"`
	Servers []ServerActivity `json:"servers"` // by name; those where nothing happened are left out
}

// ServerActivity is what happened at one server.
type ServerActivity struct {
	Server  string         `json:"server"`
	Warm    int            `json:"warm"` // calls, by what they found
	Late    int            `json:"late"`
	Cold    int            `json:"cold"`
	Cached  int            `json:"cached"`
	Failed  int            `json:"failed"`           // calls without an answer
	Wait    float64        `json:"wait_ms"`          // of all calls for their sandboxes
	Longest float64        `json:"longest_wait_ms"`  // of one call
	Saved   float64        `json:"saved_ms"`         // how much longer they would have waited with nothing started ahead, estimated
	Guesses int            `json:"guesses"`          // it became likely to be called
	Starts  map[string]int `json:"starts,omitempty"` // by cause
	Wasted  map[string]int `json:"wasted,omitempty"` // sandboxes started ahead and stopped without a call, by cause
}

// A Selector says which sandboxes to stop.
type Selector struct {
	All    bool   `json:"all,omitempty"`
	Target string `json:"target,omitempty"` // id of a sandbox, name of a server, or id of a session
	Tenant string `json:"tenant,omitempty"` // only of this tenant; "" means all
}

// Match reports whether s selects b.
func (s Selector) Match(b Sandbox) bool {
	if s.Tenant != "" && s.Tenant != b.Tenant {
		return false
	}
	return s.All || s.Target != "" && slices.Contains([]string{b.ID, b.Server, b.Session}, s.Target)
}

// A Line is one line that a server printed besides its messages.
type Line struct {
	Time    time.Time `json:"time"`
	Server  string    `json:"server"`
	Tenant  string    `json:"tenant"`
	Sandbox string    `json:"sandbox"`
	Text    string    `json:"text"`
}

// A Tool is one row of `specbox tools ls`.
type Tool struct {
	Name        string          `json:"name"` // as the tenant sees it
	Server      string          `json:"server"`
	Tool        string          `json:"tool"` // the server's own name of it
	Description string          `json:"description,omitempty"`
	Annotations json.RawMessage `json:"annotations,omitempty"`
	InputSchema json.RawMessage `json:"input_schema,omitempty"`
}

// Progress is a report of work under way: of a call, a refresh, an update. In
// work on servers, Done counts those that are through with Phase, and a report
// that raises it says that Server is one of them.
type Progress struct {
	Server  string  `json:"server,omitempty"`
	Phase   string  `json:"phase,omitempty"` // "install", "catalog", "call"
	Done    float64 `json:"done"`
	Total   float64 `json:"total,omitempty"`   // 0: not known
	Message string  `json:"message,omitempty"` // for people
	Error   string  `json:"error,omitempty"`   // Server failed; the others go on
}

// A CatalogRow tells what the catalogue holds of one server.
type CatalogRow struct {
	Server      string    `json:"server"`
	Tenant      string    `json:"tenant,omitempty"`
	Fingerprint string    `json:"fingerprint"` // of the capabilities of the client that it was read for
	Tools       int       `json:"tools"`
	Prompts     int       `json:"prompts"`
	Resources   int       `json:"resources"`
	Templates   int       `json:"templates"`
	Filled      time.Time `json:"filled_at,omitzero"` // zero: never
	Truncated   []string  `json:"truncated,omitempty"`
	Error       string    `json:"error,omitempty"`
}

// A Server is one row of `specbox servers ls`.
type Server struct {
	Name      string   `json:"name"`
	Runs      string   `json:"runs"` // what runs, in one line, without secrets
	Isolation string   `json:"isolation"`
	Network   string   `json:"network"` // "none", "all", or the allowed hosts
	Scope     string   `json:"scope"`
	Package   string   `json:"package,omitempty"` // that a launcher installed
	Version   string   `json:"version,omitempty"` // it is pinned to; "" if not installed
	Disabled  bool     `json:"disabled,omitempty"`
	Warnings  []string `json:"warnings,omitempty"`
	Notes     []string `json:"notes,omitempty"` // what was decided for it, and how to decide otherwise
}

// A Result is the answer of a call.
type Result struct {
	Raw     json.RawMessage // as the server wrote it
	IsError bool            // the tool says that it failed
}

// An Error is an error that knows what to do about it.
type Error struct {
	Message string `json:"error"`
	Hint    string `json:"hint,omitempty"`
	Status  int    `json:"-"` // HTTP status; 0 means 500
	Cause   error  `json:"-"` // what it wraps; may be nil
}

func (e *Error) Error() string { return e.Message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// NotFound returns an error for something that does not exist.
func NotFound(message, hint string) *Error {
	return &Error{Message: message, Hint: hint, Status: http.StatusNotFound}
}

// asError turns any error into one that can be sent.
func asError(err error) *Error {
	var e *Error
	switch {
	case errors.As(err, &e):
		sent := *e
		sent.Message = err.Error() // with what was added around it
		if sent.Status == 0 {
			sent.Status = http.StatusInternalServerError
		}
		return &sent
	case errors.Is(err, context.DeadlineExceeded):
		return &Error{Message: err.Error(), Hint: "it took too long: see specbox logs, or give it more time", Status: http.StatusGatewayTimeout}
	default:
		return &Error{Message: err.Error(), Status: http.StatusInternalServerError}
	}
}
