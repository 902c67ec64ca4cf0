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

	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/internal/alarm"
	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/trace"
	"github.com/specbox/specbox/wire"
)

// A target is where a request goes, with its names as the server knows them.
type target struct {
	server *Server
	own    string // the server's own name of the tool or prompt, or its URI
	params []byte
	schema []byte // of a tool's input
}

// route finds the server that a request belongs to.
func (s *Session) route(ctx context.Context, m wire.Message) (target, *wire.Reply) {
	t, fail := s.lookup(s.view(), m)
	if fail != nil && s.complete(ctx, s.view(), listWait) { // its server may just be read for the first time
		t, fail = s.lookup(s.view(), m)
	}
	return t, fail
}

func (s *Session) lookup(v view, m wire.Message) (target, *wire.Reply) {
	switch m.Method {
	case "tools/call":
		name := wire.Str(m.Params, "name")
		server, own, raw, ok := v.Tool(name)
		t, fail := s.target(server, own, m.Params, ok, []string{"name"}, wire.CodeInvalidParams, "tool", name)
		if ok && t.server != nil && t.server.remote() {
			t.schema = wire.Get(raw, "inputSchema")
		}
		return t, fail
	case "prompts/get":
		name := wire.Str(m.Params, "name")
		server, own, _, ok := v.Prompt(name)
		return s.target(server, own, m.Params, ok, []string{"name"}, wire.CodeInvalidParams, "prompt", name)
	case "resources/read", "resources/subscribe", "resources/unsubscribe":
		uri := wire.Str(m.Params, "uri")
		server, own, ok := v.Resource(uri)
		if !ok {
			server, ok = s.guess(v)
			own = uri
		}
		return s.target(server, own, m.Params, ok, []string{"uri"}, wire.CodeNotFound, "resource", uri)
	case "completion/complete":
		if wire.Str(m.Params, "ref", "type") == "ref/prompt" {
			name := wire.Str(m.Params, "ref", "name")
			server, own, _, ok := v.Prompt(name)
			return s.target(server, own, m.Params, ok, []string{"ref", "name"}, wire.CodeInvalidParams, "prompt", name)
		}
		uri := wire.Str(m.Params, "ref", "uri")
		server, own, _, ok := v.Template(uri)
		if !ok {
			server, own, ok = v.Resource(uri)
		}
		return s.target(server, own, m.Params, ok, []string{"ref", "uri"}, wire.CodeInvalidParams, "resource", uri)
	}
	if id := wire.Str(m.Params, "taskId"); id != "" && strings.HasPrefix(m.Method, "tasks/") && s.only == "" {
		s.mu.Lock()
		server, ok := s.tasks[id]
		s.mu.Unlock()
		if s.modern && (m.Method == "tasks/result" || m.Method == "tasks/list") { // the modern era has none
			ok, server = false, ""
			return s.target(server, "", m.Params, ok, nil, wire.CodeMethodNotFound, "method", m.Method)
		}
		return s.target(server, "", m.Params, ok, nil, wire.CodeInvalidParams, "task", id)
	}
	if s.only != "" { // a method that is not known to us may be known to the server
		return s.target(s.only, "", m.Params, true, nil, wire.CodeMethodNotFound, "method", m.Method)
	}
	r := wire.Fail(wire.CodeMethodNotFound, "method not found: %s", m.Method)
	return target{}, &r
}

// guess finds the server of a URI that leads nowhere: servers make URIs up in
// results. If the session has used one server alone that has resources, that
// one made it up.
func (s *Session) guess(v view) (server string, ok bool) {
	for _, p := range s.hub.cfg.Sandboxes.Live(s.tenant, s.id) {
		if e := v.Entry(p.Server); e == nil || wire.Get(e.Init, "capabilities", "resources") == nil {
			continue
		}
		if ok {
			return "", false
		}
		server, ok = p.Server, true
	}
	return server, ok
}

func (s *Session) target(server, own string, params []byte, ok bool, path []string, code int, what, name string) (target, *wire.Reply) {
	if !ok {
		r := wire.Fail(code, "unknown %s %q%s", what, name, s.unread())
		return target{}, &r
	}
	srv := s.hub.Server(s.tenant, server)
	if srv == nil {
		r := wire.Fail(code, "unknown %s %q: its server %q is no longer configured", what, name, server)
		return target{}, &r
	}
	if path != nil && own != name {
		params = wire.Replace(params, wire.Quote(own), path...)
	}
	return target{server: srv, own: own, params: params}, nil
}

// unread says which servers the name may belong to that could not be read.
func (s *Session) unread() string {
	var out strings.Builder
	v := s.view()
	for _, m := range v.Missing() {
		why := "it is being read for the first time"
		if srv := s.hub.Server(s.tenant, m.Server); srv != nil && srv.Spec == nil {
			why = srv.Unready
		} else if problem := v.Errors()[m.Server]; problem != "" {
			why = problem
		}
		fmt.Fprintf(&out, "; the tools of %q are not known: %s", m.Server, why)
	}
	return out.String()
}

func (srv *Server) remote() bool { return srv.Spec != nil && srv.Spec.Isolation == config.Remote }

// A call is a request under way.
type call struct {
	server string
	step   int
	stream wire.Sender
	parked *parked // of a modern client on a legacy server
	logs   bool    // a modern client wants to hear log messages
}

// forward takes a request to its server and returns the reply as it came.
func (s *Session) forward(ctx context.Context, t target, m wire.Message, stream wire.Sender, p *parked) wire.Reply {
	begin := time.Now()
	c := &call{server: t.server.Name, stream: stream, parked: p}
	if s.modern {
		c.logs = wire.Get(t.params, "_meta", wire.MetaLogLevel) != nil
	}
	if err := s.enter(c); err != nil {
		return wire.Fail(wire.CodeServer, "%v", err)
	}
	e := trace.Event{
		Kind: trace.CallEnd, Tenant: s.tenant, Session: s.id, Step: c.step, Server: t.server.Name,
		Method: m.Method, Tool: t.own, BytesIn: int64(len(m.Raw)),
	}
	if m.Method == "tools/call" || m.Method == "prompts/get" || m.Method == "resources/read" {
		t.params = continueTrace(t.params, &e)
	}
	if m.Method == "tools/call" {
		s.hub.committed(s, t.server.Name, t.own, t.params)
	}
	method := m.Method // m and t hold the whole message, which need not stay for as long as the call
	reply := s.run(ctx, t, method, c, &e)
	s.leave(c)
	e.Exec = time.Since(begin) - e.Provision
	e.BytesOut = int64(len(reply.Result) + len(reply.Error))
	e.IsError = reply.Error != nil || method == "tools/call" && reply.ToolFailed()
	s.hub.cfg.Recorder.Record(e)
	return reply
}

func (s *Session) run(ctx context.Context, t target, method string, c *call, e *trace.Event) wire.Reply {
	srv, own := t.server, t.own
	if srv.Spec == nil {
		e.Err = srv.Unready
		return wire.Fail(wire.CodeServer, "server %q cannot be started: %s", srv.Name, srv.Unready)
	}
	if method == "resources/subscribe" {
		if err := s.maySubscribe(t.own); err != nil {
			return wire.Fail(wire.CodeInvalidParams, "%v", err)
		}
	}
	lease, err := s.acquire(ctx, srv, t.params, c.stream)
	if err != nil {
		e.Err = srv.Spec.Redact(err.Error())
		return wire.Fail(wire.CodeServer, "%v", err)
	}
	defer lease.Release()
	e.Sandbox, e.Outcome, e.Provision = lease.ID(), lease.Outcome(), lease.Provision()
	if e.Cause = lease.Cause(); lease.Fresh() {
		s.hub.foresight.granted(s, srv.Name)
		if e.Cause.Speculative() {
			e.Lead, e.Saved = lease.Lead(), lease.Saved()
		}
	}
	if lease.Fresh() {
		if err := s.greet(ctx, srv, lease, c.stream); err != nil {
			e.Err = srv.Spec.Redact(err.Error())
			return wire.Fail(wire.CodeServer, "%v", lease.Explain(err))
		}
	}
	reply, err := s.exchange(ctx, t, lease, method, c)
	if err != nil {
		e.Err = srv.Spec.Redact(err.Error())
		return wire.Fail(wire.CodeServer, "%v", err)
	}
	if reply.Error == nil {
		s.subscribed(srv.Name, method, own)
		s.began(srv.Name, reply.Result)
	}
	return reply
}

const (
	maxTasks    = 10_000  // of one session
	maxTaskInfo = 4 << 10 // bytes of a result that does nothing but tell of a task
)

// began remembers whose a task is that a call has begun, so that the requests
// about it find its server.
func (s *Session) began(server string, result []byte) {
	if len(result) > maxTaskInfo || !bytes.Contains(result, []byte(`"taskId"`)) {
		return
	}
	id := cmp.Or(wire.Str(result, "task", "taskId"), wire.Str(result, "taskId"))
	s.mu.Lock()
	defer s.mu.Unlock()
	if id != "" && len(s.tasks) < maxTasks {
		s.tasks[id] = server
	}
}

// exchange has the server answer, whichever eras it and the client are of.
func (s *Session) exchange(ctx context.Context, t target, lease *sandbox.Lease, method string, c *call) (wire.Reply, error) {
	switch {
	case lease.Modern() && s.modern:
		return s.await(ctx, t.server, lease, method, s.named(t, method, t.params), c.stream)
	case lease.Modern() && method == "resources/subscribe":
		return wire.Reply{Result: []byte("{}")}, s.rewatch(lease, t)
	case lease.Modern() && method == "resources/unsubscribe":
		s.unwatch(t.server.Name, t.own)
		return wire.Reply{Result: []byte("{}")}, nil
	case lease.Modern():
		return s.fulfil(ctx, t, lease, method, c.stream)
	case s.modern:
		if err := s.raiseLevel(ctx, lease.Conn(), t); err != nil {
			return wire.Reply{}, lease.Explain(err)
		}
		r, err := s.await(ctx, t.server, lease, method, withoutMeta(t.params), c.stream)
		if err != nil {
			return r, err
		}
		return completed(method, r), nil
	}
	return s.await(ctx, t.server, lease, method, t.params, c.stream)
}

// raiseLevel tells a legacy server the log level that a modern request names.
// It waits for the answer, so that the call's messages come at that level.
func (s *Session) raiseLevel(ctx context.Context, c *wire.Conn, t target) error {
	level := wire.Get(t.params, "_meta", wire.MetaLogLevel)
	if level == nil || t.server.Spec.Scope != config.PerSession {
		return nil
	}
	s.mu.Lock()
	same := bytes.Equal(s.level, level)
	s.level = bytes.Clone(level)
	s.mu.Unlock()
	if same {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, levelPatience)
	defer cancel()
	_, err := c.Call(bounded, "logging/setLevel", levelParams(level))
	if c.Err() == nil && ctx.Err() == nil {
		return nil // a refusal, or silence, is no error: the server logs nothing, then
	}
	return err
}

// What one session may subscribe to: it is remembered, for sandboxes to come.
const (
	maxSubscriptions = 4096
	maxURI           = 8 << 10 // bytes
)

func (s *Session) maySubscribe(uri string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, uris := range s.subs {
		n += len(uris)
	}
	switch {
	case len(uri) > maxURI:
		return fmt.Errorf("the URI has %d bytes, over the limit of %d", len(uri), maxURI)
	case n >= maxSubscriptions:
		return fmt.Errorf("this session has %d subscriptions, which is the limit; give some up", n)
	}
	return nil
}

func (s *Session) subscribed(server, method, uri string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch method {
	case "resources/subscribe":
		if !slices.Contains(s.subs[server], uri) {
			s.subs[server] = append(s.subs[server], uri)
		}
	case "resources/unsubscribe":
		s.subs[server] = slices.DeleteFunc(s.subs[server], func(u string) bool { return u == uri })
	}
}

// Clients give a call up after 30-60 s without progress; the first word comes
// soon enough for the impatient ones.
const (
	firstWord = time.Second
	nextWord  = 5 * time.Second
)

// acquire leases the sandbox, and tells a client that gave a progress token
// that it is being started.
func (s *Session) acquire(ctx context.Context, srv *Server, params []byte, stream wire.Sender) (*sandbox.Lease, error) {
	demand, err := s.demand(srv)
	if err != nil {
		return nil, err
	}
	token := wire.Get(params, "_meta", "progressToken")
	if token == nil {
		return s.hub.cfg.Sandboxes.Acquire(ctx, demand)
	}
	begin := time.Now()
	w := &words{clock: &s.hub.clock, say: func(n int) {
		// Progress must grow; the server's own begins at 0 or 1, so ours stays far
		// below.
		text := fmt.Sprintf("starting %s (%d s)", srv.Name, int(time.Since(begin).Seconds()))
		p := slices.Concat([]byte(`{"progressToken":`), token, []byte(`,"progress":`), strconv.AppendFloat(nil, float64(n)*1e-6, 'f', 6, 64),
			[]byte(`,"message":`), wire.Quote(text), []byte(`}`))
		_ = stream.Send(wire.NotificationParts("notifications/progress", p)...) // the client may be gone; the start goes on
	}}
	w.clock.Set(&w.alarm, firstWord, w.next)
	defer w.end()
	return s.hub.cfg.Sandboxes.Acquire(ctx, demand)
}

// words are what a client is told while it waits, one after another.
type words struct {
	clock *alarm.Clock
	alarm alarm.Alarm
	say   func(n int) // the n-th; it does not block

	mu     sync.Mutex
	n      int
	over   bool
	saying chan struct{} // closed when the last word was said
}

func (w *words) next() {
	w.mu.Lock()
	if w.over {
		w.mu.Unlock()
		return
	}
	w.n++
	n, said := w.n, make(chan struct{})
	w.saying = said
	w.mu.Unlock()
	w.say(n)
	close(said)
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.over {
		w.clock.Set(&w.alarm, nextWord, w.next)
	}
}

// end returns when no more is said.
func (w *words) end() {
	w.mu.Lock()
	w.over = true
	saying := w.saying
	w.mu.Unlock()
	w.clock.Stop(&w.alarm)
	if saying != nil {
		<-saying
	}
}

// errs of calls that the hall gives up.
var errNoReply = errors.New("no reply and no progress")

// await sends the request and waits for the reply, while it brings what the
// server says meanwhile to the stream.
func (s *Session) await(ctx context.Context, srv *Server, lease *sandbox.Lease, method string, params []byte, stream wire.Sender) (wire.Reply, error) {
	begun := time.Now()
	var heard atomic.Int64 // how long after begun it gave the last sign of life
	unstuck := s.unstick(ctx, srv, lease)
	sent, err := lease.Conn().Start(method, params, func(p []byte) {
		_ = stream.Send(wire.NotificationParts("notifications/progress", p)...) // a client that is gone still gets its call finished
		heard.Store(int64(time.Since(begun)))
	})
	unstuck()
	if err != nil {
		return wire.Reply{}, lease.Explain(err)
	}
	heard.CompareAndSwap(0, int64(time.Since(begun)))
	var timeout alarm.Alarm
	late := make(chan struct{}, 1)
	ring := func() { late <- struct{}{} }
	clock := &s.hub.clock
	clock.Set(&timeout, srv.CallTimeout, ring)
	defer clock.Stop(&timeout)
	for {
		select {
		case <-sent.Done():
			reply, err := sent.Outcome()
			if err != nil && lease.Conn().Err() != nil {
				s.dropAsks(lease.Conn())
			}
			return reply, explain(srv, lease.Explain(err))
		case <-ctx.Done():
			s.giveUp(ctx, srv, lease, sent)
			return wire.Reply{}, context.Cause(ctx)
		case <-late:
			quiet := time.Since(begun) - time.Duration(heard.Load())
			if quiet >= srv.CallTimeout && s.asking(lease.Conn(), begun) {
				quiet = 0
			}
			if quiet < srv.CallTimeout {
				clock.Set(&timeout, srv.CallTimeout-quiet, ring)
				continue
			}
			sent.Abandon(wire.Quote(errNoReply.Error()))
			return wire.Reply{}, fmt.Errorf("server %q: %w for %v; if it needs longer, raise its call_timeout", srv.Name, errNoReply, srv.CallTimeout)
		}
	}
}

// explain says whose answer could not be taken, and what to do.
func explain(srv *Server, err error) error {
	var long *wire.TooLongError
	var invalid *wire.InvalidError
	switch {
	case errors.As(err, &long):
		return fmt.Errorf("server %q: its answer is too large: %w; ask for less, or raise limits: {message: ...}", srv.Name, err)
	case errors.As(err, &invalid):
		return fmt.Errorf("server %q: its answer is %w", srv.Name, err)
	}
	return err
}

// giveUp tells the server that nobody waits any more.
func (s *Session) giveUp(ctx context.Context, srv *Server, lease *sandbox.Lease, sent *wire.Call) {
	var cancelled wire.Cancelled
	errors.As(context.Cause(ctx), &cancelled)
	sent.Abandon(cancelled.Reason)
	if srv.StopOnCancel {
		lease.Discard("a call was cancelled")
	}
}

const (
	// stuck is how long a server may leave its input unread once nobody waits for
	// the call any more.
	stuck = 10 * time.Second
	// slow is after how long a request that is being sent is worth a guard.
	slow = time.Second
)

// A guard looks after the sending of a request: a server that does not read would
// hold the caller for ever.
type guard struct {
	discard func()
	within  time.Duration // how long it may take, while somebody waits
	alarm   alarm.Alarm

	mu    sync.Mutex
	over  bool
	timer *time.Timer // to discard; nil while it is not slow
	stop  func() bool // ends the look at the context
}

// unstick guards the sending of a request. The returned func ends the guard.
func (s *Session) unstick(ctx context.Context, srv *Server, lease *sandbox.Lease) func() {
	g := &guard{discard: func() { lease.Discard("it does not read its input") }, within: srv.CallTimeout}
	s.hub.clock.Set(&g.alarm, min(slow, g.within), func() { g.watch(ctx) })
	return func() {
		s.hub.clock.Stop(&g.alarm)
		g.end()
	}
}

// watch begins in earnest.
func (g *guard) watch(ctx context.Context) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.over {
		return
	}
	g.timer = time.AfterFunc(g.within-min(slow, g.within), g.discard)
	g.stop = context.AfterFunc(ctx, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if !g.over {
			g.timer.Reset(min(stuck, g.within))
		}
	})
}

func (g *guard) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.over = true
	if g.timer != nil {
		g.stop()
		g.timer.Stop()
	}
}
