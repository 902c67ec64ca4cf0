// Package sandbox keeps tool sandboxes: it starts them when they are needed, or
// a little earlier, lends them out, and takes them down.
//
// The package holds to these laws:
//
//   - One lease, one holder. A sandbox that a session has used never serves
//     another session, unless the scope of its server says so.
//   - Started once. However many calls wait for a sandbox, one start serves
//     them all, and a caller that leaves does not end it. Where that is asked
//     for, one that takes too long is raced by a second one, and one of the two
//     stays.
//   - A sandbox that sessions share serves as many calls at once as its server
//     says, and no more. When all are full another one is started; a call takes
//     the one with the least to do.
//   - Demand goes before speculation, always. What is started on a guess waits
//     behind every call, runs in the idle class until somebody comes for it,
//     leaves room for the next calls, and goes first when there is none. Its
//     start stands still while a call starts and more starts are under way than
//     go on side by side.
//   - A guess harms nobody. Warm has no error, takes away nothing that is in
//     demand or holds the state of a session, and a guess that fails keeps no
//     call from trying.
//   - Nothing is said to a sandbox that nobody has come for but the handshake,
//     and what its server says is kept for its holder.
//   - Budgets hold at every instant: what is started counts until it is gone.
//   - Nothing outlives Run. When [Manager.Run] returns, every sandbox is gone
//     and every goroutine of the manager has ended.
//   - Stopping is off the reply's path and bounded: EOF, TERM, KILL.
package sandbox

import (
	"context"
	"io"
	"time"

	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/wire"
)

// A Spec says how to run one server: a configuration with its launcher
// resolved. It is immutable.
type Spec struct {
	Server string
	Hash   string // names the configuration: equal hashes may share a catalogue entry

	Isolation config.Isolation // which backend
	Argv      []string
	Env       map[string]string // complete, but for HOME, PATH, TMPDIR where absent
	Dir       string            // working directory inside; "" means HOME
	Home      string            // host folder that is HOME, for kept state; "" means a private one
	Mounts    []config.Mount
	Network   config.Network
	Memory    int64
	Pids      int
	CPUs      float64
	Limit     int64 // bytes of one message; 0 means wire.DefaultLimit

	// Of a container. Argv are then the arguments of the image's own program, or
	// of Program.
	Image   string
	Program string // runs instead of the image's own; "" means that one
	User    string // "name", "uid" or "uid:gid"; "" leaves it to the backend
	Runtime string // of the engine: "runc", "runsc", "kata"; "" means its default

	// Hide holds texts that stand in no log, error and event, and what stands
	// there instead. Values of headers, and of variables that are called like
	// secrets, are hidden in any case.
	Hide map[string]string

	URL       string
	Transport string
	Headers   map[string]string

	Scope config.Scope
	// Concurrency is how many calls one sandbox serves at once where sessions
	// share it; beyond that there are more of them. 0 means no bound.
	Concurrency  int
	StartTimeout time.Duration
	IdleTimeout  time.Duration
	StopGrace    time.Duration
}

// MetaHeaders is the member of _meta by which a request tells the backend of a
// remote server which headers its arguments are to stand in: an object of name,
// without "Mcp-Param-", and value. It does not reach the server.
const MetaHeaders = "dev.specbox/headers"

// A Backend makes instances of servers. It knows nothing of MCP but how its
// messages are framed.
type Backend interface {
	// Create makes an instance and returns when its process runs, or its peer
	// is connected. id is unique, of the characters a-z, 0-9 and '-'. What the
	// server prints besides messages goes to stderr, line-wise or not. A
	// cancelled ctx abandons the attempt; Create then leaves nothing behind,
	// as with every other error. Create is called concurrently.
	Create(ctx context.Context, id string, spec *Spec, stderr io.Writer) (Instance, error)
}

// An Instance is one live server, not yet spoken to.
type Instance interface {
	// Transport returns the one connection to the server. It reads io.EOF when
	// the server is gone, for whatever reason, within a second.
	Transport() wire.Transport
	// Usage returns a snapshot of what the instance is using.
	Usage() Usage
	// Close takes the instance down (EOF, TERM, KILL, each after the spec's
	// StopGrace) and returns when its whole process tree, and every file and
	// cgroup of it, is gone, also if it was frozen. It may be called more than
	// once and concurrently.
	Close() error
}

// Usage is what an instance is using. Figures that a backend cannot tell are 0.
type Usage struct {
	PID    int    // on the host: the server, or the nearest ancestor that is known
	Memory int64  // bytes in use now, all processes
	Peak   int64  // bytes, the most so far
	Exit   string // how it ended, if it has: "exit status 1", "killed: out of memory (limit 64 MiB)"
}

// A Speculator is a [Backend] that can start an instance so that it takes only
// what nobody else wants: the idle class of the scheduler, or what comes next to
// it.
type Speculator interface {
	// Speculate is Create in the idle class. The instance is a [Promoter].
	Speculate(ctx context.Context, id string, spec *Spec, stderr io.Writer) (Instance, error)
}

// A Promoter is an [Instance] in the idle class that can leave it.
type Promoter interface {
	// Promote gives the whole process tree the ordinary class. It takes well
	// under a millisecond, and may be called more than once and while the
	// server starts.
	Promote() error
}

// A Freezer is an [Instance] that can be halted, so that it uses no CPU.
type Freezer interface {
	// Freeze halts the process tree. Memory stays, and may be reclaimed. An
	// error means that it may be halted in part.
	Freeze() error
	// Thaw lets it go on. An instance that is not frozen stays as it is.
	Thaw() error
}

// A Reclaimer is a [Freezer] of which the machine can take back memory while it
// is frozen: what can be read again from a file, or is swapped out. It is slower
// for a moment when it goes on.
type Reclaimer interface {
	// Reclaim takes back what the kernel allows. It may take long, and holds up
	// no other method; it does not go on for long once the instance is thawed.
	// It is [errors.ErrUnsupported] where the kernel has no means for it, and an
	// error of an instance that is not frozen.
	Reclaim() error
}
