// Package session is the hall of the house: every room opens onto it. A session
// is one conversation of an agent; the hall answers its lists from the
// catalogue, takes its calls to the right sandbox, and brings what servers say
// on their own accord back to it.
//
// Its laws:
//
//   - Nothing is started for a list. A sandbox is started by the first call
//     that needs it, and by the filling of the catalogue.
//   - What belongs to a session goes to that session alone. What a shared
//     server says without naming a call goes to nobody if it could be anyone's.
//   - A call ends once: with the server's reply as it came, or with an error
//     that names the server, the reason, and what to do.
//   - A session that is closed leaves nothing: no sandbox, no goroutine.
package session

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/specbox/specbox/catalog"
	"github.com/specbox/specbox/intent"
	"github.com/specbox/specbox/internal/alarm"
	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/trace"
	"github.com/specbox/specbox/wire"
)

// A Server is one configured server as the hall sees it. It is immutable.
type Server struct {
	Name         string
	Hash         string        // of its configuration
	Spec         *sandbox.Spec // nil while it cannot run
	Unready      string        // why it cannot run, and what to do
	Prefix       *string       // of its names at the combined endpoint; nil is the default
	Tools        []string      // allowed tools: see config.Policy
	Except       []string      // tools that are not allowed
	CallTimeout  time.Duration // without a reply or progress
	StopOnCancel bool
	NeedsSession bool     // it was said to keep state for each session, so that a client without sessions must name its conversation
	Keywords     []string // that speak for it: see intent.Server
	Templates    []string // utterances that need it
	// Home makes the folder that is the server's HOME on behalf of a tenant. It
	// is nil for a server whose HOME goes with its sandbox.
	Home func(tenant string) (string, error)
}

// Config names the rooms that a [Hub] opens onto.
type Config struct {
	Catalog   *catalog.Store
	Sandboxes *sandbox.Manager
	Recorder  trace.Recorder
	Log       *slog.Logger
	Version   string                           // of this SpecBox
	Allowed   func(tenant, server string) bool // may tenant use server; nil: it may
	Fills     int                              // catalogue fills under way at once; 0 means 1

	// Foresee makes the policy that guesses, for the servers that a tenant sees,
	// what a model is about to call; nil and no error: only the names of tools
	// that it calls count. It is called anew when the servers have changed.
	// Without Foresee nothing is started ahead.
	Foresee func(tenant string, servers []intent.Server) (intent.Policy, error)
	// Likely is the probability from which on a server is started ahead, where
	// the policy's are probabilities; 0: where the policy decides for it. What is
	// worth a start is another question than what is rather true than false.
	Likely float64
	Hold   time.Duration // how long a sandbox that was started ahead waits for a call; 0: the manager's default
}

// A Hub holds all sessions. It is safe for concurrent use.
type Hub struct {
	cfg  Config
	life context.Context // ends with Run; bounds fills and refetches
	end  context.CancelFunc
	work sync.WaitGroup
	slot chan struct{} // of fills

	clock alarm.Clock // of calls

	version atomic.Int64 // counts the changes of servers and catalogue

	mu       sync.Mutex
	servers  []*Server
	sessions map[*Session]struct{}
	fills    map[catalog.Key]*fill                // under way
	failed   map[catalog.Key]time.Time            // when the last one failed
	parks    map[string]*parked                   // state -> the call that it opens
	follows  map[*wire.Conn]chan struct{}         // closed when the server has taken notice
	refetch  map[*wire.Conn]map[string]func(bool) // under way; what is to be read for once more
	closed   bool

	foresight *foresight
}

// ErrClosed is returned when the hall is shutting down.
var ErrClosed = errors.New("SpecBox is shutting down")

// New returns a Hub without servers. Call [Hub.Run], and [Hub.SetServers].
func New(cfg Config) *Hub {
	if cfg.Recorder == nil {
		cfg.Recorder = trace.Discard
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Allowed == nil {
		cfg.Allowed = func(string, string) bool { return true }
	}
	h := &Hub{
		cfg:      cfg,
		slot:     make(chan struct{}, max(1, cfg.Fills)),
		sessions: map[*Session]struct{}{},
		fills:    map[catalog.Key]*fill{},
		failed:   map[catalog.Key]time.Time{},
		parks:    map[string]*parked{},
		follows:  map[*wire.Conn]chan struct{}{},
		refetch:  map[*wire.Conn]map[string]func(bool){},

		foresight: newForesight(),
	}
	h.life, h.end = context.WithCancel(context.Background())
	return h
}

// Run holds the hall open until ctx ends. When it returns every session is
// closed and no goroutine of the hall is alive.
func (h *Hub) Run(ctx context.Context) error {
	unwatch := h.cfg.Catalog.Watch(func(c catalog.Change) { h.changed(c.Key.Tenant, c.Key.Server) })
	<-ctx.Done()
	unwatch()
	h.mu.Lock()
	h.closed = true
	open := make([]*Session, 0, len(h.sessions))
	for s := range h.sessions {
		open = append(open, s)
	}
	h.mu.Unlock()
	h.end()
	for _, s := range open {
		s.Close()
	}
	h.work.Wait()
	return nil
}

// spawn runs f in a goroutine that Run waits for, unless the hall is closing.
func (h *Hub) spawn(f func()) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	h.work.Go(f)
	return true
}

// SetServers replaces the servers. Sessions see the change at their next
// request, and are told that their lists have changed.
func (h *Hub) SetServers(servers []*Server) {
	h.mu.Lock()
	h.servers = slices.Clone(servers)
	h.mu.Unlock()
	h.changed("", "")
}

// changed tells the sessions that see a server, and whose lists are others now,
// so. An empty tenant or server stands for all.
func (h *Hub) changed(tenant, server string) {
	h.version.Add(1)
	for _, s := range h.each(func(s *Session) bool {
		return (tenant == "" || tenant == s.tenant) && (server == "" || s.only == "" || s.only == server)
	}) {
		s.listsChanged()
	}
}

// Sessions returns the number of open sessions by tenant.
func (h *Hub) Sessions() map[string]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := map[string]int{}
	for s := range h.sessions {
		n[s.tenant]++
	}
	return n
}

// NewID returns an id for a session.
func NewID() string { return rand.Text() }

// Servers returns the servers in the order of the configuration.
func (h *Hub) Servers() []*Server {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.servers)
}

// Server returns the server of that name which tenant may use, or nil.
func (h *Hub) Server(tenant, name string) *Server {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.servers {
		if s.Name == name && h.cfg.Allowed(tenant, name) {
			return s
		}
	}
	return nil
}

// visible returns the servers that a session sees.
func (h *Hub) visible(tenant, only string) []*Server {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []*Server
	for _, s := range h.servers {
		if (only == "" || only == s.Name) && h.cfg.Allowed(tenant, s.Name) {
			out = append(out, s)
		}
	}
	return out
}

// Opening says who opens a session: see gateway.Opening.
type Opening struct {
	Tenant, Session string
	Server          string // the only server it sees; "" for all
	Params          []byte // of its initialize request
	Modern          bool   // its client speaks the modern era
	Conversation    string // as a modern client named it
}

// Open opens a session. What belongs to none of its requests goes to
// background, whose Send must not block.
func (h *Hub) Open(o Opening, background wire.Sender) (*Session, error) {
	if o.Server != "" && h.Server(o.Tenant, o.Server) == nil {
		return nil, fmt.Errorf("there is no server %q; there are: %s", o.Server, cmp.Or(strings.Join(h.Names(o.Tenant), ", "), "none"))
	}
	s := newSession(h, o, background)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, ErrClosed
	}
	h.sessions[s] = struct{}{}
	if h.cfg.Foresee != nil { // what its model says first is not to wait for the policy
		h.work.Go(func() { h.oracle(s.tenant) })
	}
	h.cfg.Recorder.Record(trace.Event{Kind: trace.SessionOpen, Tenant: s.tenant, Session: s.id, Server: o.Server})
	return s, nil
}

// Names returns the names of the servers that a tenant may use.
func (h *Hub) Names(tenant string) []string {
	var names []string
	for _, s := range h.visible(tenant, "") {
		names = append(names, s.Name)
	}
	return names
}

func (h *Hub) forget(s *Session) {
	h.mu.Lock()
	delete(h.sessions, s)
	for state, p := range h.parks {
		if p.s == s {
			p.timer.Stop()
			delete(h.parks, state)
		}
	}
	h.mu.Unlock()
	h.foresight.left(s)
	h.cfg.Sandboxes.EndSession(s.tenant, s.id)
	h.cfg.Recorder.Record(trace.Event{Kind: trace.SessionClose, Tenant: s.tenant, Session: s.id})
}

// each returns the open sessions that f picks.
func (h *Hub) each(f func(*Session) bool) []*Session {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []*Session
	for s := range h.sessions {
		if f(s) {
			out = append(out, s)
		}
	}
	return out
}
