package session

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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
	modern           bool   // the client speaks the modern era
	conversation     string // as a modern client named it
	version          string // negotiated protocol version
	caps, info       []byte // of the client, raw
	fingerprint      string
	background       wire.Sender
	life             context.Context // ends with Close
	end              context.CancelFunc
	kept             atomic.Pointer[keptView]
	opened           time.Time

	mu      sync.Mutex
	closed  bool
	level   []byte              // of logging/setLevel, raw
	calls   []*call             // under way, oldest first
	asks    map[string]*ask     // our id -> the server's request that the client is to answer
	nasks   int64               // makes ids of asks
	subs    map[string][]string // server -> its own URIs that the client subscribed to
	used    map[string]bool     // servers that had a sandbox of this session
	steps   int
	seen    map[string]*catalog.View // list method -> what the client saw last
	tasks   map[string]string        // id of a task -> its server
	listens []*listen                // of a modern client
	watches map[watchKey]*wire.Call  // of a legacy client, on modern servers
}

// A watchKey names a resource of a server.
type watchKey struct{ server, uri string }

// An ask is a request of a server that waits for the client's answer.
type ask struct {
	conn   *wire.Conn
	server string
	at     time.Time // when the client was asked
	n      int64     // asks of the session before it
	id     []byte    // the server's, if it has one
	token  []byte    // the server's progress token, or nil
	answer func(wire.Reply)

	method string // what is asked
	params []byte
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
		watches:    map[watchKey]*wire.Call{},
		tasks:      map[string]string{},
		modern:     o.Modern, conversation: o.Conversation,
	}
	s.life, s.end = context.WithCancel(h.life)
	s.negotiate(o.Params)
	if s.modern {
		s.version, s.background = wire.Modern, listeners{s}
	}
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
	if s.modern {
		return s.requestModern(ctx, m, stream)
	}
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
	return s.forward(ctx, t, m, stream, nil)
}

// requestModern answers a request of the modern era.
func (s *Session) requestModern(ctx context.Context, m wire.Message, stream wire.Sender) wire.Reply {
	switch m.Method {
	case "initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe":
		return wire.Fail(wire.CodeMethodNotFound, "method not found: %s (it is not part of revision %s)", m.Method, wire.Modern)
	case "server/discover":
		return s.discover()
	case "tools/list", "prompts/list", "resources/list", "resources/templates/list":
		r := s.list(ctx, m)
		if r.Error == nil {
			r.Result = s.cacheable(r.Result)
		}
		return r
	case "subscriptions/listen":
		return s.listen(ctx, m, stream)
	}
	if parkedState(m.Params) {
		return s.resume(ctx, m, stream)
	}
	t, fail := s.route(ctx, m)
	if fail != nil {
		return completed(m.Method, *fail)
	}
	eras := s.view().eras(t.server.Name)
	if err := s.affinity(t.server, eras); err != nil {
		return wire.Fail(wire.CodeInvalidParams, "%v", err)
	}
	if eras == catalog.Legacy {
		return s.park(ctx, t, m, stream)
	}
	return s.forward(ctx, t, m, stream, nil)
}

// discover says what initialize says in the legacy era.
func (s *Session) discover() wire.Reply {
	v := s.view()
	b := fmt.Appendf(nil, `{"supportedVersions":[%q`, wire.Modern)
	for _, r := range revisions {
		b = fmt.Appendf(b, `,%q`, r)
	}
	b = append(append(b, `],"capabilities":`...), v.capabilities()...)
	if text := v.Instructions(); text != "" {
		b = append(append(b, `,"instructions":`...), wire.Quote(text)...)
	}
	return wire.Reply{Result: s.cacheable(append(b, '}'))}
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

// forwardChange passes on that a server announced a change of its lists, to a client
// that would not hear of it otherwise: changed says whether the lists that are
// stored are others now, which who has seen them was told.
func (s *Session) forwardChange(method string, changed, saw bool) {
	if changed && saw {
		return
	}
	if err := s.background.Send(wire.NotificationParts(method, nil)...); err != nil {
		s.hub.cfg.Log.Debug("notification not delivered", "session", s.id, "method", method, "err", err)
	}
}

// saw reports whether the client has read a list that method tells a change of.
func (s *Session) saw(method string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for list := range s.seen {
		if changes[list] == method {
			return true
		}
	}
	return false
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
			if s.modern { // who listens hears of every change
				s.seen[method] = v.View
			}
		}
	}
	s.mu.Unlock()
	for method := range notes {
		if err := s.background.Send(wire.NotificationParts(method, nil)...); err != nil {
			s.hub.cfg.Log.Debug("notification not delivered", "session", s.id, "method", method, "err", err)
		}
	}
}

// levels are those of log messages.
var levels = []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

func isLevel(raw []byte) bool {
	return len(raw) > 2 && raw[0] == '"' && slices.Contains(levels, string(raw[1:len(raw)-1]))
}

func (s *Session) setLevel(m wire.Message) wire.Reply {
	level := wire.Get(m.Params, "level")
	if !isLevel(level) {
		return wire.Fail(wire.CodeInvalidParams, "logging/setLevel has no level; the levels are %s", strings.Join(levels, ", "))
	}
	s.mu.Lock()
	s.level = bytes.Clone(level)
	s.mu.Unlock()
	for _, l := range s.hub.cfg.Sandboxes.Live(s.tenant, s.id) {
		if !l.Modern { // a modern server is told with each request
			s.hub.setLevel(s.life, l.Conn, level)
		}
	}
	return wire.Reply{Result: []byte("{}")}
}

// setLevel passes a log level on without waiting for the server.
func (h *Hub) setLevel(ctx context.Context, c *wire.Conn, level []byte) {
	h.background(ctx, c, "logging/setLevel", levelParams(level))
}

func levelParams(level []byte) []byte { return append(append([]byte(`{"level":`), level...), '}') }

// levelPatience is how long a call waits for its server to take a log level: it
// may never answer.
const levelPatience = 2 * time.Second

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
			if l.Modern != s.modern { // the other era knows no such notification
				continue
			}
			if err := l.Conn.Post(m.Method, m.Params); err != nil {
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
	a.answer(wire.Reply{Result: m.Result, Error: m.Error})
}

func (s *Session) clientProgress(m wire.Message) {
	id := unquoteID(wire.Get(m.Params, "progressToken"))
	s.mu.Lock()
	a := s.asks[id]
	s.mu.Unlock()
	if a == nil || a.token == nil {
		return
	}
	_ = a.conn.Post(m.Method, wire.Replace(m.Params, a.token, "progressToken")) // progress is a courtesy
}

func unquoteID(id []byte) string { return string(bytes.Trim(id, `"`)) }

// What waits for one client.
const (
	maxAsks   = 1000 // requests of all servers
	maxAsksOf = 100  // of one sandbox: beyond it the oldest, which it may have forgotten, goes
)

// ask passes a request of a legacy server on to the client.
func (s *Session) ask(c *wire.Conn, server string, m wire.Message) {
	id := bytes.Clone(m.ID)
	s.put(&ask{conn: c, server: server, id: id, answer: func(r wire.Reply) {
		if err := c.Respond(id, r); err != nil {
			s.hub.cfg.Log.Debug("answer not delivered", "server", server, "err", err)
		}
	}}, m.Method, m.Params)
}

// needs names the capability of a client that a request wants.
var needs = map[string]string{
	"sampling/createMessage": "sampling",
	"elicitation/create":     "elicitation",
	"roots/list":             "roots",
}

// put puts a question to the client: on the stream of the newest call to its
// server, which most likely caused it, or else in the background. The legacy era
// has nothing that tells for sure. What cannot be put is answered with an error.
func (s *Session) put(a *ask, method string, params []byte) {
	a.method, a.params = method, params
	var err error
	switch need := needs[method]; {
	case need != "" && wire.Get(s.caps, need) == nil:
		err = wire.Errorf(wire.CodeMethodNotFound, "the client cannot answer %s: it declares no %s", method, need)
	case s.modern:
		err = s.putModern(a)
	default:
		err = s.putLegacy(a)
	}
	if err != nil {
		refusal, ok := err.(*wire.Error)
		if !ok {
			refusal = wire.Errorf(wire.CodeInternal, "the client cannot be asked: %v", err)
		}
		a.answer(wire.Reply{Error: refusal.JSON()})
	}
}

func (s *Session) putLegacy(a *ask) error {
	s.mu.Lock()
	forgotten := s.makeRoom(a.conn)
	if s.closed || len(s.asks) >= maxAsks {
		s.mu.Unlock()
		return fmt.Errorf("its session is closed, or %d requests wait for it", maxAsks)
	}
	s.nasks++
	id := "specbox-" + strconv.FormatInt(s.nasks, 10)
	a.at, a.n = time.Now(), s.nasks
	s.asks[id] = a
	params := a.params
	if token := wire.Get(params, "_meta", "progressToken"); token != nil && a.id != nil {
		a.token = bytes.Clone(token)
		params = wire.Replace(params, wire.Quote(id), "_meta", "progressToken")
	}
	s.mu.Unlock()
	if forgotten != nil {
		forgotten.answer(wire.Fail(wire.CodeInternal, "the client did not answer, and %d requests of this server came after this one", maxAsksOf))
	}
	err := s.tell(a.server, wire.RequestParts(wire.Quote(id), a.method, params))
	if err != nil {
		s.mu.Lock()
		delete(s.asks, id)
		s.mu.Unlock()
	}
	return err
}

// makeRoom forgets what dead sandboxes asked, and returns the oldest question of
// a connection that has too many, which is forgotten too. The caller holds the
// lock.
func (s *Session) makeRoom(c *wire.Conn) (forgotten *ask) {
	n, oldest := 0, ""
	for id, a := range s.asks {
		switch {
		case a.conn.Err() != nil:
			delete(s.asks, id)
		case a.conn == c:
			if n++; oldest == "" || a.n < s.asks[oldest].n {
				oldest = id
			}
		}
	}
	if n >= maxAsksOf {
		forgotten = s.asks[oldest]
		delete(s.asks, oldest)
	}
	return forgotten
}

// putModern keeps a question for the answer of the newest call to its server,
// which will say that input is required.
func (s *Session) putModern(a *ask) error {
	s.mu.Lock()
	var to *parked
	for _, c := range s.calls {
		if c.server == a.server && c.parked != nil {
			to = c.parked
		}
	}
	s.mu.Unlock()
	if to == nil || !to.take(a) {
		return wire.Errorf(wire.CodeMethodNotFound, "no call of the client is under way that could be answered with %s", a.method)
	}
	return nil
}

// refuse answers a server's request with an error.
func (h *Hub) refuse(c *wire.Conn, id []byte, code int, format string, args ...any) {
	_ = c.Respond(id, wire.Fail(code, format, args...)) // a dead connection says so elsewhere
}

// withdraw passes on that a server gave up one of its requests.
func (s *Session) withdraw(c *wire.Conn, server string, m wire.Message) {
	want := wire.Get(m.Params, "requestId")
	s.mu.Lock()
	var id string
	for k, a := range s.asks {
		if a.conn == c && a.id != nil && bytes.Equal(a.id, want) {
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
		if c.server == server && (!s.modern || c.logs) {
			to = c
		}
	}
	s.mu.Unlock()
	if s.modern && to == nil { // nobody wants it
		return nil
	}
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

// thinking is how long a human may think about a question.
const thinking = time.Hour

// asking reports whether a server waits for an answer of this client to what it
// asked since then: a human may be thinking, so that the call's time does not
// run. What was asked before has nothing to do with the call, and what nobody
// will answer any more must not keep it alive.
func (s *Session) asking(c *wire.Conn, since time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.asks {
		if a.conn == c && !a.at.Before(since) && time.Since(a.at) < thinking {
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
		Client:  s.handshake(srv),
		Handler: &link{s: s, server: srv},
	}
	if srv.Spec.Scope != config.PerSession {
		d.Handler = &sharedLink{h: s.hub, server: srv, tenant: owner(srv, s.tenant)}
	}
	var err error
	d.Spec, err = srv.at(s.tenant)
	return d, err
}

// at returns the spec of srv with the HOME that it has on behalf of a tenant.
func (srv *Server) at(tenant string) (*sandbox.Spec, error) {
	if srv.Home == nil {
		return srv.Spec, nil
	}
	home, err := srv.Home(cmp.Or(owner(srv, tenant), ".shared"))
	if err != nil {
		return srv.Spec, fmt.Errorf("server %q: its kept state: %w", srv.Name, err)
	}
	spec := *srv.Spec
	spec.Home = home
	return &spec, nil
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
func (s *Session) greet(ctx context.Context, srv *Server, lease *sandbox.Lease, stream wire.Sender) error {
	c := lease.Conn()
	if lease.Modern() {
		s.hub.follow(ctx, c, sandbox.Client{Capabilities: s.caps, Info: s.info})
	}
	if srv.Spec.Scope != config.PerSession { // others use it too
		return nil
	}
	s.mu.Lock()
	level, again := s.level, s.used[srv.Name]
	uris := append([]string(nil), s.subs[srv.Name]...)
	s.used[srv.Name] = true
	s.mu.Unlock()
	if level != nil && !lease.Modern() { // before the call: its messages are to come at that level
		bounded, cancel := context.WithTimeout(ctx, levelPatience)
		defer cancel()
		_, err := c.Call(bounded, "logging/setLevel", levelParams(level))
		if err != nil && c.Err() != nil {
			return err
		}
	}
	for _, uri := range uris {
		t := target{server: srv, own: uri, params: append(append([]byte(`{"uri":`), wire.Quote(uri)...), '}')}
		var err error
		if lease.Modern() {
			err = s.rewatch(lease, t)
		} else {
			_, err = c.Call(ctx, "resources/subscribe", t.params)
		}
		if err != nil {
			return fmt.Errorf("subscribe to %s again: %w", uri, err)
		}
	}
	if again && !s.modern {
		text := fmt.Sprintf("the sandbox of %s was started anew: what the server kept in memory or in its private files is gone", srv.Name)
		_ = stream.Send(wire.NotificationParts("notifications/message",
			[]byte(`{"level":"warning","logger":"specbox","data":`+string(wire.Quote(text))+`}`))...) // as far as the client listens
	}
	return nil
}

// rewatch replaces the watch of a legacy client on a resource of a modern server.
func (s *Session) rewatch(lease *sandbox.Lease, t target) error {
	call, err := s.watchModern(lease, t)
	if err != nil {
		return err
	}
	s.unwatch(t.server.Name, t.own)
	s.mu.Lock()
	s.watches[watchKey{t.server.Name, t.own}] = call
	s.mu.Unlock()
	return nil
}

func (s *Session) unwatch(server, uri string) {
	key := watchKey{server, uri}
	s.mu.Lock()
	call := s.watches[key]
	delete(s.watches, key)
	s.mu.Unlock()
	if call != nil {
		call.Abandon(nil)
	}
}
