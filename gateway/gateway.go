// Package gateway is the door to the agent: MCP over Streamable HTTP and over
// standard input and output, for clients of both eras at one address. Those of the
// legacy era have sessions. Those of the modern era have none: each request says
// who asks, and requests that belong together share what stands behind the door.
//
// It owns what belongs to a transport: HTTP, event streams, session ids, the
// envelope, limits, Host and Origin, tokens. It knows nothing of servers and
// sandboxes: behind the door stands a [Session], which the house provides. Its
// laws:
//
//   - A message passes as the bytes it came in.
//   - Every request is answered, exactly once: with a reply, or with an error
//     that says what was wrong. A limit never ends a connection silently. Only a
//     request that its client cancelled gets no answer.
//   - A client that leaves leaves nothing behind. One of the legacy era may have
//     lost a connection only: its calls run to their end, what it missed is kept
//     for it within limits, and its session expires. One of the modern era gives a
//     request up by closing its response.
//   - Whoever comes back to an event stream hears every event once, in order.
//   - A slow client slows nobody: what is said to it waits in a bounded queue,
//     out of which the oldest progress and log messages fall first, and never a
//     request.
package gateway

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/specbox/specbox/internal/alarm"
	"github.com/specbox/specbox/trace"
	"github.com/specbox/specbox/wire"
)

// An Opening says who opens a session.
type Opening struct {
	Tenant  string
	Session string // unique, unguessable
	Server  string // of /mcp/NAME; "" for all servers
	Version string // protocol version that was asked for
	Params  []byte // of initialize: capabilities, clientInfo

	// Modern says that the client speaks the era without sessions. Its requests
	// that belong together by [Opening.Conversation], and by who sent them, share
	// this one; Params then holds what their _meta says, as initialize would.
	Modern bool
	// Conversation is what the client named it: by the path /s/KEY/mcp, the
	// header Specbox-Session, or dev.specbox/session in _meta; "" if it did not. A
	// modern client on standard input that names none has one that is nobody
	// else's. A client of the legacy era names it, if at all, with its initialize.
	Conversation string
}

// A Session is the far side of one conversation. The bytes of the messages that
// it is given belong to it from then on.
type Session interface {
	// Request answers one request. What belongs to it (progress, log messages,
	// requests to the client) goes to stream before Request returns. A
	// cancelled ctx means that nobody waits for the reply any more: its cause
	// is a [wire.Cancelled] if the client gave the request up, and [ErrEnded]
	// if the session ended. It is called concurrently.
	Request(ctx context.Context, m wire.Message, stream wire.Sender) wire.Reply
	// Post takes a notification, or a response to a request of the server. It
	// must not block for long.
	Post(m wire.Message)
	// Close ends the session; it returns at once.
	Close()
}

// An OpenFunc opens a session. What belongs to no request goes to background.
// An error is told to the client as it is; a [*wire.Error] keeps its code. The
// ctx ends with the session.
//
// Senders given to the far side never wait for the client. They return an error
// when the session has ended, or when the client has left so many requests
// unread that no other can be kept for it.
type OpenFunc func(ctx context.Context, o Opening, background wire.Sender) (Session, error)

// ErrEnded is the cause of the context of a request whose session ended.
var ErrEnded = errors.New("the session has ended")

// DefaultTenant is the tenant of all clients of a gateway without
// [Config.Tenant].
const DefaultTenant = "default"

// Config says what stands behind the door, and who may pass it.
type Config struct {
	// Open opens the far side of a session. It is required.
	Open OpenFunc
	// Tenant tells who sent r, by its token. Its error is the text of a 401.
	// Nil lets everybody in as [DefaultTenant].
	Tenant func(r *http.Request) (tenant string, err error)
	// Known reports whether /mcp/NAME exists for a tenant. Nil knows none.
	Known func(tenant, server string) bool
	// Names lists the servers that exist for a tenant, for the message of a
	// 404. It may be nil.
	Names func(tenant string) []string

	// Loopback says that the gateway listens on a loopback address: then only
	// loopback names and Hosts are answered, so that a web page cannot reach
	// it under a name of its own. If it does not, Hosts, where given, are the
	// only names that are answered beside those of the loopback.
	Loopback bool
	// Hosts are the host names, with or without a port, that clients may use.
	Hosts []string
	// Origins are the web origins, such as "https://app.example.com", whose
	// pages may use the gateway. Pages of the loopback always may.
	Origins []string

	Limits   Limits
	Log      *slog.Logger   // nil logs nothing
	Recorder trace.Recorder // takes session_open and session_close; nil forgets them
	Version  string         // of the program; "" if unknown
}

// Limits bound what clients may use. A zero field means its default.
type Limits struct {
	Body       int64         // bytes of one message of a client: 64 MiB
	Sessions   int           // of one tenant: 1000. Beyond it the one idle longest goes, if nobody is connected to it
	Idle       time.Duration // how long a session lives with no client connected: 1 h
	Calls      int           // requests under way in one session: 1024
	Streams    int           // event streams (GET) of one session: 8. Beyond it the oldest is closed
	QueueCount int           // messages that wait for one client: 1024
	QueueBytes int           // bytes of messages that wait for one client: 1 MiB. One larger message may wait alone
	Replay     int           // bytes of events of one session that are kept for a client that lost a connection: 1 MiB. An answer that it missed may be larger
	ReplayAge  time.Duration // how long they are kept, from when the connection was lost: 2 min
}

func (l *Limits) setDefaults() {
	l.Body = cmp.Or(l.Body, 64<<20)
	l.Sessions = cmp.Or(l.Sessions, 1000)
	l.Idle = cmp.Or(l.Idle, time.Hour)
	l.Calls = cmp.Or(l.Calls, 1024)
	l.Streams = cmp.Or(l.Streams, 8)
	l.QueueCount = cmp.Or(l.QueueCount, 1024)
	l.QueueBytes = cmp.Or(l.QueueBytes, 1<<20)
	l.Replay = cmp.Or(l.Replay, 1<<20)
	l.ReplayAge = cmp.Or(l.ReplayAge, 2*time.Minute)
}

func (l *Limits) check() error {
	if l.Body < 0 || l.Sessions < 0 || l.Idle < 0 || l.Calls < 0 || l.Streams < 0 || l.QueueCount < 0 || l.QueueBytes < 0 || l.Replay < 0 || l.ReplayAge < 0 {
		return errors.New("gateway: a limit is negative; give a positive number, or 0 for the default")
	}
	return nil
}

// A Gateway serves MCP clients. It is safe for concurrent use. [Gateway.Run]
// expires sessions and ends them at last.
type Gateway struct {
	cfg     Config
	hosts   map[string]bool
	origins map[string]bool
	life    context.Context // ends with Run
	end     context.CancelCauseFunc
	work    sync.WaitGroup // what uses a session
	clock   alarm.Clock    // of exchanges
	dropped atomic.Int64
	held    atomic.Int64 // bytes of answers that wait for clients to come back

	mu       sync.Mutex
	closed   bool
	sessions map[string]*conversation // by key
	open     map[string]int           // tenant -> sessions
}

// New returns a Gateway. It starts nothing.
func New(cfg Config) (*Gateway, error) {
	if cfg.Open == nil {
		return nil, errors.New("gateway: Config.Open is not set: there is nothing behind the door")
	}
	if err := cfg.Limits.check(); err != nil {
		return nil, err
	}
	cfg.Limits.setDefaults()
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Recorder == nil {
		cfg.Recorder = trace.Discard
	}
	if cfg.Known == nil {
		cfg.Known = func(string, string) bool { return false }
	}
	if cfg.Names == nil {
		cfg.Names = func(string) []string { return nil }
	}
	g := &Gateway{cfg: cfg, hosts: set(cfg.Hosts), origins: set(cfg.Origins), sessions: map[string]*conversation{}, open: map[string]int{}}
	g.life, g.end = context.WithCancelCause(context.Background())
	return g, nil
}

func set(names []string) map[string]bool {
	m := make(map[string]bool, len(names))
	for _, n := range names {
		m[strings.ToLower(strings.TrimSuffix(n, "/"))] = true
	}
	return m
}

// Run ends sessions that have been idle for too long, until ctx ends. Then it
// ends all sessions, refuses new ones, and returns when no request is left. A
// client that does not read can hold it up for a minute: close the HTTP server
// to end that sooner.
func (g *Gateway) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			timer.Reset(g.expire())
		case <-ctx.Done():
			g.mu.Lock()
			g.closed = true
			g.mu.Unlock()
			for _, c := range g.all() {
				c.close("shutdown")
			}
			g.end(ErrEnded)
			g.work.Wait()
			return nil
		}
	}
}

// expire ends idle sessions and returns after how long the next one may be due.
func (g *Gateway) expire() time.Duration {
	next := g.cfg.Limits.Idle
	for _, c := range g.all() {
		if left := c.expire(g.cfg.Limits.Idle); left > 0 {
			next = min(next, left)
		}
	}
	return next
}

func (g *Gateway) all() []*conversation {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make([]*conversation, 0, len(g.sessions))
	for _, c := range g.sessions {
		all = append(all, c)
	}
	return all
}

// Stats is a snapshot of a gateway.
type Stats struct {
	Sessions int   // that are open
	Calls    int   // requests under way
	Streams  int   // event streams (GET) that are open
	Queued   int   // messages that wait for a client to listen
	Dropped  int64 // progress and log messages that no client was quick enough for
}

// Stats returns a snapshot.
func (g *Gateway) Stats() Stats {
	st := Stats{Dropped: g.dropped.Load()}
	for _, c := range g.all() {
		info, streams, queued := c.info()
		st.Sessions++
		st.Calls += info.Calls
		st.Streams += streams
		st.Queued += queued
	}
	return st
}

// A SessionInfo describes an open session.
type SessionInfo struct {
	Session   string // its name in events; it opens no door
	Tenant    string
	Server    string // of /mcp/NAME; "" for all servers
	Version   string // protocol version that was agreed on; "" until then
	Client    string // name and version as the client gave them
	Opened    time.Time
	LastSeen  time.Time // when a client was last connected; now, if one is
	Connected bool      // a client waits for a reply or listens
	Calls     int       // requests under way
}

// Sessions returns the open sessions, oldest first.
func (g *Gateway) Sessions() []SessionInfo {
	var infos []SessionInfo
	for _, c := range g.all() {
		info, _, _ := c.info()
		infos = append(infos, info)
	}
	slices.SortFunc(infos, func(a, b SessionInfo) int {
		return cmp.Or(a.Opened.Compare(b.Opened), cmp.Compare(a.Session, b.Session))
	})
	return infos
}

// CloseSessions ends the sessions for which match returns true and returns how
// many they were. Their clients find them gone, and may open new ones.
func (g *Gateway) CloseSessions(match func(SessionInfo) bool) int {
	n := 0
	for _, c := range g.all() {
		if info, _, _ := c.info(); match(info) && c.close("closed by the operator") {
			n++
		}
	}
	return n
}
