package session

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/specbox/specbox/catalog"
	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/trace"
	"github.com/specbox/specbox/wire"
)

// Latest is the newest revision of the legacy era. Clients that ask for one we
// do not know get this one.
const Latest = "2025-11-25"

var revisions = []string{Latest, "2025-06-18", "2025-03-26", "2024-11-05"}

// A Session is one conversation of an agent. Its methods are those that the
// gateway expects behind its door; they are safe for concurrent use.
type Session struct {
	hub              *Hub
	id, tenant, only string
	version          string // negotiated protocol version
	caps, info       []byte // of the client, raw
	fingerprint      string
	background       wire.Sender
	life             context.Context // ends with Close
	end              context.CancelFunc

	mu     sync.Mutex
	closed bool
	level  []byte              // of logging/setLevel, raw
	calls  []*call             // under way, oldest first
	asks   map[string]*ask     // our id -> the server's request that the client is to answer
	nasks  int64               // makes ids of asks
	subs   map[string][]string // server -> its own URIs that the client subscribed to
	used   map[string]bool     // servers that had a sandbox of this session
	steps  int
	seen   map[string]*catalog.View // list method -> what the client saw last
}

// An ask is a request of a server that waits for the client's answer.
type ask struct {
	conn   *wire.Conn
	server string
	id     []byte // the server's
	token  []byte // the server's progress token, or nil
}

func newSession(h *Hub, o Opening, background wire.Sender) *Session {
	s := &Session{
		hub: h, id: o.Session, tenant: o.Tenant, only: o.Server,
		version:    Latest,
		caps:       []byte("{}"),
		info:       []byte(`{"name":"unknown","version":"0"}`),
		background: background,
		asks:       map[string]*ask{},
		subs:       map[string][]string{},
		used:       map[string]bool{},
		seen:       map[string]*catalog.View{},
	}
	s.life, s.end = context.WithCancel(h.life)
	s.negotiate(o.Params)
	return s
}

func (s *Session) negotiate(params []byte) {
	asked := wire.Str(params, "protocolVersion")
	for _, r := range revisions {
		if r == asked {
			s.version = r
		}
	}
	if c := wire.Get(params, "capabilities"); len(c) > 0 && c[0] == '{' {
		s.caps = bytes.Clone(c)
	}
	if i := wire.Get(params, "clientInfo"); len(i) > 0 && i[0] == '{' {
		s.info = bytes.Clone(i)
	}
	s.fingerprint = catalog.Fingerprint(s.caps)
}

// Close ends the session at once; its sandboxes are stopped in the background.
func (s *Session) Close() {
	s.mu.Lock()
	was := s.closed
	s.closed = true
	s.mu.Unlock()
	s.end()
	if !was {
		s.hub.forget(s)
	}
}

// Request answers one request. What belongs to it goes to stream first.
func (s *Session) Request(ctx context.Context, m wire.Message, stream wire.Sender) wire.Reply {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(s.life, func() { cancel(errSessionEnded) })
	defer stop()
	switch m.Method {
	case "initialize":
		return s.initialize()
	case "ping":
		return wire.Reply{Result: []byte("{}")}
	case "tools/list", "prompts/list", "resources/list", "resources/templates/list":
		return s.list(ctx, m)
	case "logging/setLevel":
		return s.setLevel(m)
	}
	t, fail := s.route(ctx, m)
	if fail != nil {
		return *fail
	}
	return s.forward(ctx, t, m, stream)
}

var errSessionEnded = errors.New("the session ended")

func (s *Session) initialize() wire.Reply {
	v := s.view()
	b := append([]byte(`{"protocolVersion":`), wire.Quote(s.version)...)
	b = append(append(b, `,"capabilities":`...), v.capabilities()...)
	b = append(append(b, `,"serverInfo":`...), v.serverInfo(s.hub.cfg.Version)...)
	if text := v.Instructions(); text != "" {
		b = append(append(b, `,"instructions":`...), wire.Quote(text)...)
	}
	return wire.Reply{Result: append(b, '}')}
}

// listWait is how long a list waits for entries that are being read for the
// first time: many clients give a list up after 5 s.
const listWait = 4 * time.Second

func (s *Session) list(ctx context.Context, m wire.Message) wire.Reply {
	if c := wire.Get(m.Params, "cursor"); c != nil && string(c) != "null" && string(c) != `""` {
		return wire.Fail(wire.CodeInvalidParams, "unknown cursor: lists have one page")
	}
	v := s.view()
	if s.complete(ctx, v, listWait) {
		v = s.view()
	}
	s.mu.Lock()
	s.seen[m.Method] = v.View
	s.mu.Unlock()
	return wire.Reply{Result: v.List(m.Method)}
}

// changes names the notification of each list.
var changes = map[string]string{
	"tools/list":               "notifications/tools/list_changed",
	"prompts/list":             "notifications/prompts/list_changed",
	"resources/list":           "notifications/resources/list_changed",
	"resources/templates/list": "notifications/resources/list_changed",
}

// listsChanged tells the client, once, which of the lists that it has seen are
// others now.
func (s *Session) listsChanged() {
	v := s.view()
	notes := map[string]bool{}
	s.mu.Lock()
	for method, seen := range s.seen {
		if !bytes.Equal(seen.List(method), v.List(method)) {
			notes[changes[method]] = true
			delete(s.seen, method)
		}
	}
	s.mu.Unlock()
	for method := range notes {
		if err := s.background.Send(wire.NotificationParts(method, nil)...); err != nil {
			s.hub.cfg.Log.Debug("notification not delivered", "session", s.id, "method", method, "err", err)
		}
	}
}

func (s *Session) setLevel(m wire.Message) wire.Reply {
	level := wire.Get(m.Params, "level")
	if level == nil {
		return wire.Fail(wire.CodeInvalidParams, "logging/setLevel has no level")
	}
	s.mu.Lock()
	s.level = bytes.Clone(level)
	s.mu.Unlock()
	for _, l := range s.hub.cfg.Sandboxes.Live(s.tenant, s.id) {
		s.hub.setLevel(s.life, l.Conn, level)
	}
	return wire.Reply{Result: []byte("{}")}
}

// setLevel passes a log level on without waiting for the server.
func (h *Hub) setLevel(ctx context.Context, c *wire.Conn, level []byte) {
	params := append(append([]byte(`{"level":`), level...), '}')
	h.background(ctx, c, "logging/setLevel", params)
}

// background sends a request whose answer nobody waits for; it is bounded.
func (h *Hub) background(ctx context.Context, c *wire.Conn, method string, params []byte) {
	h.spawn(func() {
		ctx, cancel := context.WithTimeout(ctx, backgroundTimeout)
		defer cancel()
		if _, err := c.Call(ctx, method, params); err != nil {
			h.cfg.Log.Debug("a request in the background had no answer", "method", method, "err", err)
		}
	})
}

const backgroundTimeout = 10 * time.Second

// Post takes a notification of the client, or its answer to a server's request.
func (s *Session) Post(m wire.Message) {
	switch {
	case m.IsResponse():
		s.answer(m)
	case m.Method == "notifications/progress":
		s.clientProgress(m)
	case m.Method == "notifications/initialized", m.Method == "notifications/cancelled":
		// Sandboxes are initialised by us. A cancellation ends the context of
		// its request, and reaches the server from there.
	default: // roots/list_changed and what is not known to us
		for _, l := range s.hub.cfg.Sandboxes.Live(s.tenant, s.id) {
			if err := l.Conn.Notify(m.Method, m.Params); err != nil {
				s.hub.cfg.Log.Debug("notification not delivered", "server", l.Server, "method", m.Method, "err", err)
			}
		}
	}
}

func (s *Session) answer(m wire.Message) {
	s.mu.Lock()
	a := s.asks[unquoteID(m.ID)]
	delete(s.asks, unquoteID(m.ID))
	s.mu.Unlock()
	if a == nil {
		return
	}
	if err := a.conn.Respond(a.id, wire.Reply{Result: m.Result, Error: m.Error}); err != nil {
		s.hub.cfg.Log.Debug("answer not delivered", "server", a.server, "err", err)
	}
}

func (s *Session) clientProgress(m wire.Message) {
	id := unquoteID(wire.Get(m.Params, "progressToken"))
	s.mu.Lock()
	a := s.asks[id]
	s.mu.Unlock()
	if a == nil || a.token == nil {
		return
	}
	_ = a.conn.Notify(m.Method, wire.Replace(m.Params, a.token, "progressToken")) // progress is a courtesy
}

func unquoteID(id []byte) string { return string(bytes.Trim(id, `"`)) }

// maxAsks bounds the requests of servers that wait for one client.
const maxAsks = 1000

// ask passes a request of a server on to the client: on the stream of the
// newest call to that server, which most likely caused it, or else in the
// background. The legacy era has nothing that tells for sure.
func (s *Session) ask(c *wire.Conn, server string, m wire.Message) {
	a := &ask{conn: c, server: server, id: bytes.Clone(m.ID)}
	s.mu.Lock()
	if s.closed || len(s.asks) >= maxAsks {
		s.mu.Unlock()
		s.hub.refuse(c, m.ID, wire.CodeInternal, "the client cannot be asked: its session is closed, or %d requests wait for it", maxAsks)
		return
	}
	s.nasks++
	id := "specbox-" + strconv.FormatInt(s.nasks, 10)
	s.asks[id] = a
	params := m.Params
	if token := wire.Get(params, "_meta", "progressToken"); token != nil {
		a.token = bytes.Clone(token)
		params = wire.Replace(params, wire.Quote(id), "_meta", "progressToken")
	}
	s.mu.Unlock()
	if err := s.tell(server, wire.RequestParts(wire.Quote(id), m.Method, params)); err != nil {
		s.mu.Lock()
		delete(s.asks, id)
		s.mu.Unlock()
		s.hub.refuse(c, a.id, wire.CodeInternal, "the client cannot be asked: %v", err)
	}
}

// refuse answers a server's request with an error, off the read loop that it
// came by.
func (h *Hub) refuse(c *wire.Conn, id []byte, code int, format string, args ...any) {
	r := wire.Fail(code, format, args...)
	h.spawn(func() { _ = c.Respond(id, r) }) // a dead connection says so elsewhere
}

// withdraw passes on that a server gave up one of its requests.
func (s *Session) withdraw(c *wire.Conn, server string, m wire.Message) {
	want := wire.Get(m.Params, "requestId")
	s.mu.Lock()
	var id string
	for k, a := range s.asks {
		if a.conn == c && bytes.Equal(a.id, want) {
			id = k
		}
	}
	delete(s.asks, id)
	s.mu.Unlock()
	if id != "" {
		_ = s.tell(server, wire.NotificationParts(m.Method, wire.Replace(m.Params, wire.Quote(id), "requestId"))) // a client that is gone asks nobody
	}
}

// tell brings a message of a server to the client: on the stream of the newest
// call to it, or in the background. It does not wait for the client.
func (s *Session) tell(server string, parts [][]byte) error {
	s.mu.Lock()
	var to *call
	for _, c := range s.calls {
		if c.server == server {
			to = c
		}
	}
	s.mu.Unlock()
	if to != nil && to.stream.Send(parts...) == nil {
		return nil
	}
	return s.background.Send(parts...) // the call has just ended
}

// dropAsks forgets what the servers behind a dead connection asked.
func (s *Session) dropAsks(c *wire.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, a := range s.asks {
		if a.conn == c {
			delete(s.asks, id)
		}
	}
}

// asking reports whether a server waits for an answer of this client: a human
// may be thinking, so that the call's time does not run.
func (s *Session) asking(c *wire.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.asks {
		if a.conn == c {
			return true
		}
	}
	return false
}

// enter adds a call and returns its step: one step is a turn of the agent, so
// that calls which overlap belong to one.
func (s *Session) enter(c *call) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errSessionEnded
	}
	if len(s.calls) == 0 {
		s.steps++
		s.hub.cfg.Recorder.Record(trace.Event{Kind: trace.StepBegin, Tenant: s.tenant, Session: s.id, Step: s.steps})
	}
	c.step = s.steps
	s.calls = append(s.calls, c)
	return nil
}

func (s *Session) leave(c *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, o := range s.calls {
		if o == c {
			s.calls = append(s.calls[:i], s.calls[i+1:]...)
			return
		}
	}
}

// demand says which sandbox a call of this session needs.
func (s *Session) demand(srv *Server) (sandbox.Demand, error) {
	d := sandbox.Demand{
		Tenant: s.tenant, Session: s.id, Spec: srv.Spec, Cause: trace.Demand,
		Client:  sandbox.Client{Version: s.version, Capabilities: s.caps, Info: s.info},
		Handler: &link{s: s, server: srv},
	}
	if srv.Spec.Scope != config.PerSession {
		d.Handler = &sharedLink{h: s.hub, server: srv, tenant: owner(srv, s.tenant)}
	}
	if srv.Home != nil {
		home, err := srv.Home(cmp.Or(owner(srv, s.tenant), ".shared"))
		if err != nil {
			return d, fmt.Errorf("server %q: its kept state: %w", srv.Name, err)
		}
		spec := *srv.Spec
		spec.Home = home
		d.Spec = &spec
	}
	return d, nil
}

// owner returns the tenant that a sandbox of srv belongs to, "" for all.
func owner(srv *Server, tenant string) string {
	if srv.Spec.Scope == config.Shared {
		return ""
	}
	return tenant
}

// greet brings a fresh sandbox to the state that the client believes it to be
// in, and says what cannot be brought back.
func (s *Session) greet(ctx context.Context, srv *Server, c *wire.Conn, stream wire.Sender) error {
	if srv.Spec.Scope != config.PerSession { // others use it too
		return nil
	}
	s.mu.Lock()
	level, again := s.level, s.used[srv.Name]
	uris := append([]string(nil), s.subs[srv.Name]...)
	s.used[srv.Name] = true
	s.mu.Unlock()
	if level != nil {
		s.hub.setLevel(s.life, c, level)
	}
	for _, uri := range uris {
		params := append(append([]byte(`{"uri":`), wire.Quote(uri)...), '}')
		if _, err := c.Call(ctx, "resources/subscribe", params); err != nil {
			return fmt.Errorf("subscribe to %s again: %w", uri, err)
		}
	}
	if again {
		text := fmt.Sprintf("the sandbox of %s was started anew: what the server kept in memory or in its private files is gone", srv.Name)
		_ = stream.Send(wire.NotificationParts("notifications/message",
			[]byte(`{"level":"warning","logger":"specbox","data":`+string(wire.Quote(text))+`}`))...) // as far as the client listens
	}
	return nil
}
