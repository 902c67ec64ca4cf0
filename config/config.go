// Package config reads what people write about their servers: mcpServers JSON
// as Claude Desktop, Claude Code, Cursor and Gemini write it, VS Code's
// servers form, and SpecBox's own YAML with policies.
//
// Its laws:
//
//   - Loading starts nothing and changes nothing.
//   - Every fault of a file is reported, each with its place and what to do.
//   - A value that came from a variable, and every value of env and headers,
//     is never printed: not in a fault, not by String, not as JSON.
//   - A server with a fault takes no other server with it.
//
// [Load] says which files are understood and how variables are written.
package config

import (
	"fmt"
	"time"
)

// A Config is one configuration, complete: defaults are filled in and
// variables expanded.
type Config struct {
	File    string
	Listen  string   // address of the agent's door; default 127.0.0.1:8484
	Hosts   []string // names that clients may reach it by, besides those of this machine
	Origins []string // web origins whose pages may use it, besides those of this machine
	Metrics string   // address that serves /metrics alone; "" means on Listen where there are no tenants
	Tenants []Tenant
	Limits  Limits
	Servers []*Server // in the order of the file

	Upstreams   []Upstream // of the model's door, in the order of the file; default: OpenAI's and Anthropic's
	Speculation Speculation
}

// Limits bound the whole runtime.
type Limits struct {
	Request   int64         // bytes of one message from a client; default 64 MiB
	Message   int64         // bytes of one message from a server; default 256 MiB
	Sandboxes int           // sandboxes alive at once, all tenants; default 64
	Starts    int           // starts under way at once; default the number of cores, at least 2
	Session   time.Duration // a session unused this long ends; default 1 h
}

// A Tenant owns sessions. See docs/words.md.
type Tenant struct {
	Name        string
	TokenHashes []string // "sha256:" and the hex digest of a bearer token
	Servers     []string // names it may use; empty means all
	Sandboxes   int      // alive at once; 0 means the limit of all
	Memory      int64    // bytes in use by its sandboxes; 0 means no limit
}

// A Scope says who shares a sandbox of a server.
type Scope string

const (
	PerSession Scope = "session" // each session has its own: the default
	PerTenant  Scope = "tenant"  // the sessions of a tenant share one
	Shared     Scope = "shared"  // all share one
)

// An Isolation names how a server is kept apart.
type Isolation string

const (
	Process Isolation = "process" // bubblewrap: the default of local servers
	None    Isolation = "none"    // a plain child process: must be asked for
	Remote  Isolation = "remote"  // it runs elsewhere, behind a URL
	Docker  Isolation = "docker"  // a container of an image
)

// A Server is one tool server as configured.
type Server struct {
	Name  string // of A-Z a-z 0-9 _ . and -, at most 40 of them, unique
	Label string // the name as the file has it
	Place Place  // where it stands in the file

	Command string // of a container: runs instead of the image's own program; or a docker run line
	Args    []string
	Env     map[string]string
	Dir     string // working directory; "" means its HOME in the sandbox

	URL       string            // of a remote server
	Transport string            // of a remote server: "http", "sse", or "" to find out
	Headers   map[string]string // sent to a remote server

	Disabled       bool
	Unready        string // why it cannot be started, for people; "" means that it can
	InstallScripts bool   // its package may run code of its own while it is installed
	Policy

	// What the file says where that differs from Command, Args, Dir and URL
	// because of variables, for printing.
	written *written

	variables map[string]string // what the variables held that it names
	fromFile  map[string]string // what its env file holds
}

// Policy says what a server may do and use. [Load] fills in the defaults.
type Policy struct {
	Isolation Isolation
	Image     string // of a container: what it is made of; "" where a docker run line names it
	Runtime   string // of a container: the engine's "runc", "runsc", "kata"; "" means the engine's default
	User      string // of a container: "name", "uid" or "uid:gid", not root; "" leaves it to the image
	Network   Network
	Mounts    []Mount
	Memory    int64   // bytes; default 2 GiB
	Pids      int     // processes and threads; default 512
	CPUs      float64 // cores; 0 means all
	Scope     Scope

	Concurrency int // calls at once in one sandbox that sessions share; 0 means no bound

	StartTimeout time.Duration // from start to answered handshake; default 60 s
	CallTimeout  time.Duration // without a reply or progress; default 10 min
	IdleTimeout  time.Duration // unused this long it is stopped; default 5 min
	StopGrace    time.Duration // for each of EOF and TERM before KILL; default 2 s

	Tools  []string // allowed tools: names, or patterns of path.Match; empty means all
	Except []string // tools that are not allowed, whatever Tools says; names or patterns
	Prefix *string  // of its names at /mcp; nil means the server's name and "__"

	Keywords  []string // words that speak for this server in a model's text; "-word" takes a derived one away
	Templates []string // utterances of users that need this server

	TrustAnnotations bool // believe the server's readOnlyHint and the like

	KeepState    bool // HOME survives the sandbox, one a tenant; else it is private and goes with the sandbox
	ScopeSet     bool // the file says the scope: a client without sessions must then name its conversation where that is session
	StateSet     bool // the file says whether state is kept, so that no default for the package counts
	StopOnCancel bool // stop the sandbox of a call that goes on after its cancellation
}

// A Network says what a server may reach.
type Network struct {
	All   bool     // everything, as the host
	Hosts []string // exactly these: "host" (ports 80 and 443), "host:port", "ip:port"
}

// A Mount is a host path that a sandbox sees, at the same path unless At is set.
type Mount struct {
	Path  string
	At    string
	Write bool
}

// A Place is a line of a configuration file.
type Place struct {
	File string
	Line int // from 1; 0 if unknown
}

func (p Place) String() string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d", p.File, p.Line)
}
