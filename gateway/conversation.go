package gateway

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/specbox/specbox/trace"
	"github.com/specbox/specbox/wire"
)

// A conversation is an open session, seen from the door.
type conversation struct {
	g      *Gateway
	o      Opening
	key    string // what opens it
	opened time.Time
	client string
	life   context.Context // ends with the session
	end    context.CancelCauseFunc
	ready  chan struct{} // closed when it is open, or could not be opened

	mu        sync.Mutex
	far       Session // nil until it is open
	version   string  // that was agreed on
	agreed    bool    // initialize was answered
	closed    bool
	connected int       // exchanges and streams at which a client waits
	seen      time.Time // when the last of them ended
	newest    *flight   // requests under way, newest first
	calls     int
	backlog   queue     // what belongs to no request, on HTTP
	streams   []*reader // that belong to no request; oldest first

	primes atomic.Bool // the client understands events without data
	replay replay
}

// A flight is a request under way.
type flight struct {
	id           []byte
	cancel       context.CancelCauseFunc // nil if it may not be cancelled
	newer, older *flight
}

// converse opens a session of the legacy era and registers it. The name of a
// session stands in events and logs; what opens it is a key that also holds a
// secret. A nil background stands for the session's own streams.
func (g *Gateway) converse(o Opening, background wire.Sender) (*conversation, error) {
	c := g.conversation(o, "")
	if background == nil {
		background = c
	}
	if _, err := g.admit(c); err != nil {
		c.end(ErrEnded)
		return nil, err
	}
	if err := c.open(background); err != nil {
		return nil, err
	}
	return c, nil
}

// conversation returns a session that is not open yet. Without a key it gets one
// that nobody can guess.
func (g *Gateway) conversation(o Opening, key string) *conversation {
	text := rand.Text()
	o.Session = strings.ToLower(text[:13]) // 65 bits tell sessions apart
	if key == "" {
		key = o.Session + "-" + text[13:] + rand.Text()
	}
	c := &conversation{g: g, o: o, key: key, opened: time.Now(), seen: time.Now(), client: clientName(o.Params), ready: make(chan struct{})}
	c.backlog = queue{limits: &g.cfg.Limits, dropped: &g.dropped}
	c.replay.limits, c.replay.all = &g.cfg.Limits, &g.held
	c.replay.fall = func(data []byte) { _ = c.send(data) } // it is bounded, and the session may have ended
	c.life, c.end = context.WithCancelCause(g.life)
	return c
}

// open opens the far side of a session that was admitted. If it cannot, the
// session is closed.
func (c *conversation) open(background wire.Sender) error {
	defer close(c.ready)
	far, err := c.openFar(background)
	if err != nil {
		c.close("could not be opened")
		return err
	}
	c.mu.Lock()
	c.far = far
	closed := c.closed
	c.mu.Unlock()
	if closed { // it ended meanwhile, and nobody knew far
		far.Close()
		return ErrEnded
	}
	return nil
}

func (c *conversation) openFar(background wire.Sender) (far Session, err error) {
	defer c.g.recovered("open a session", func() {
		err = wire.Errorf(wire.CodeInternal, "opening the session met a fault in SpecBox; its log says more")
	})
	far, err = c.g.cfg.Open(c.life, c.o, background)
	if err == nil && far == nil {
		return nil, wire.Errorf(wire.CodeInternal, "no session was opened")
	}
	return far, err
}

// recovered, deferred, turns a panic into a log entry and calls then.
func (g *Gateway) recovered(doing string, then func()) {
	if r := recover(); r != nil {
		g.cfg.Log.Error("panic", "doing", doing, "panic", r, "stack", string(debug.Stack()))
		then()
	}
}

// clientName is what a client calls itself, in events and logs. It is cut, for a
// client can say anything.
func clientName(params []byte) string {
	const most = 100 // bytes
	name := strings.TrimSpace(wire.Str(params, "clientInfo", "name") + " " + wire.Str(params, "clientInfo", "version"))
	if len(name) > most {
		name = strings.ToValidUTF8(name[:most], "") + "…"
	}
	return name
}

// admit registers c within the limit of its tenant, and returns it, or the
// session that already has its key.
func (g *Gateway) admit(c *conversation) (*conversation, error) {
	for {
		g.mu.Lock()
		if g.closed {
			g.mu.Unlock()
			return nil, errShutdown
		}
		if other := g.sessions[c.key]; other != nil {
			g.mu.Unlock()
			return other, nil
		}
		if g.open[c.o.Tenant] < g.cfg.Limits.Sessions {
			g.open[c.o.Tenant]++
			g.sessions[c.key] = c
			g.mu.Unlock()
			return c, nil
		}
		g.mu.Unlock()
		if !g.evict(c.o.Tenant) {
			return nil, wire.Errorf(wire.CodeServer, "tenant %q has %d sessions open, which is its limit, and clients use all of them; end some (DELETE) or raise the limit", c.o.Tenant, g.cfg.Limits.Sessions)
		}
	}
}

// abandoned is how long nobody must have been connected to a session before it
// may give way to a new one.
const abandoned = time.Minute

// evict ends the session that was left longest ago: most clients never say that
// they are done with theirs. A client that comes back learns that it is gone
// and opens a new one.
func (g *Gateway) evict(tenant string) bool {
	all := g.all()
	slices.SortFunc(all, func(a, b *conversation) int { return a.lastSeen().Compare(b.lastSeen()) })
	for _, c := range all {
		if c.o.Tenant == tenant && c.closeIf("gave way to a new session", func() bool { return c.idle() >= abandoned }) {
			return true
		}
	}
	return false
}

func (c *conversation) lastSeen() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen
}

// find returns the session that key opens for this tenant at this address.
func (g *Gateway) find(key, tenant, server string) *conversation {
	g.mu.Lock()
	c := g.sessions[key]
	g.mu.Unlock()
	if c == nil || c.o.Modern || c.o.Tenant != tenant || c.o.Server != server {
		return nil
	}
	return c
}

// enter says that a client is connected, and reports whether the session lives.
// Whoever enters leaves, and ends a work of the gateway.
func (c *conversation) enter() bool {
	c.g.mu.Lock()
	if c.g.closed {
		c.g.mu.Unlock()
		return false
	}
	c.g.work.Add(1)
	c.g.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		c.g.work.Done()
		return false
	}
	c.connected++
	return true
}

// left says that a client is connected no more. What it entered for may go on;
// the gateway's work is done when that has ended too.
func (c *conversation) left() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.connected--
	c.seen = time.Now()
}

// idle returns for how long no client was connected. The caller holds the lock.
func (c *conversation) idle() time.Duration {
	if c.connected > 0 {
		return 0
	}
	return time.Since(c.seen)
}

// expire ends the session if it was idle for limit. If not, it returns after how
// long it may be.
func (c *conversation) expire(limit time.Duration) time.Duration {
	left := limit
	c.closeIf("idle", func() bool {
		left = limit - c.idle()
		return left <= 0
	})
	return left
}

// close ends the session, and reports whether it was this call that did.
func (c *conversation) close(why string) bool { return c.closeIf(why, func() bool { return true }) }

// closeIf ends the session if may, which is called under the lock, allows it.
func (c *conversation) closeIf(why string, may func() bool) bool {
	c.mu.Lock()
	if c.closed || !may() {
		c.mu.Unlock()
		return false
	}
	c.closed = true
	far, agreed, streams := c.far, c.agreed, c.streams
	c.backlog.take()
	c.streams = nil
	c.mu.Unlock()
	c.g.forget(c)
	c.end(ErrEnded)
	for _, s := range streams {
		s.end()
	}
	c.replay.close()
	if far != nil {
		far.Close()
	}
	if agreed {
		c.g.cfg.Recorder.Record(trace.Event{Time: time.Now(), Kind: trace.SessionClose, Tenant: c.o.Tenant, Session: c.o.Session, Server: c.o.Server, Detail: why})
		c.g.cfg.Log.Debug("session closed", "session", c.o.Session, "tenant", c.o.Tenant, "why", why)
	}
	return true
}

func (g *Gateway) forget(c *conversation) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.sessions, c.key)
	if g.open[c.o.Tenant]--; g.open[c.o.Tenant] == 0 {
		delete(g.open, c.o.Tenant)
	}
}

// agree notes the answer to initialize. If it is an error, no session remains.
func (c *conversation) agree(r wire.Reply) {
	if r.Error != nil {
		c.close("initialize was refused")
		return
	}
	c.announce(wire.Str(r.Result, "protocolVersion"))
}

// announce notes the version that was agreed on, and that the session is open.
func (c *conversation) announce(version string) {
	c.mu.Lock()
	c.version = version
	c.primes.Store(version == primed)
	c.agreed = !c.closed
	agreed := c.agreed
	c.mu.Unlock()
	if agreed {
		c.g.cfg.Recorder.Record(trace.Event{Time: time.Now(), Kind: trace.SessionOpen, Tenant: c.o.Tenant, Session: c.o.Session, Server: c.o.Server, Detail: c.client})
		c.g.cfg.Log.Debug("session opened", "session", c.o.Session, "tenant", c.o.Tenant, "server", c.o.Server, "client", c.client, "version", version)
	}
}

func (c *conversation) isAgreed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.agreed
}

// allowsBatches reports whether the client may send arrays.
func (c *conversation) allowsBatches() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.version == batches
}

func (c *conversation) info() (info SessionInfo, streams, queued int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	info = SessionInfo{Session: c.o.Session, Tenant: c.o.Tenant, Server: c.o.Server, Version: c.version, Client: c.client,
		Opened: c.opened, LastSeen: c.seen, Connected: c.connected > 0, Calls: c.calls}
	if info.Connected {
		info.LastSeen = time.Now()
	}
	return info, len(c.streams), len(c.backlog.items) + c.replay.waiting()
}

// call has the far side answer a request. It returns false if the client
// cancelled it, which the end of client does too: then there is nothing to say.
func (c *conversation) call(client context.Context, m wire.Message, to wire.Sender) (answer, bool) {
	ctx, cancel := context.WithCancelCause(c.life)
	defer cancel(nil)
	if client.Done() != nil {
		defer context.AfterFunc(client, func() { cancel(wire.Cancelled{}) })()
	}
	id, method := bytes.Clone(m.ID), m.Method // m holds the whole message, which need not stay for as long as the call
	f := flight{id: id, cancel: cancel}
	if method == "initialize" {
		f.cancel = nil
	}
	far, err := c.begin(&f)
	if err != nil {
		return answer{id, wire.Fail(wire.CodeServer, "%v", err)}, true
	}
	defer c.finish(&f)
	r := c.ask(ctx, far, m, to)
	if ctx.Err() != nil {
		var cancelled wire.Cancelled
		if errors.As(context.Cause(ctx), &cancelled) {
			return answer{}, false
		}
	}
	if r.Result == nil && r.Error == nil {
		r = wire.Fail(wire.CodeInternal, "%s was not answered", method)
		if ctx.Err() != nil {
			r = wire.Fail(wire.CodeServer, "%s was not answered: %v", method, context.Cause(ctx))
		}
	}
	return answer{id, r}, true
}

func (c *conversation) ask(ctx context.Context, far Session, m wire.Message, to wire.Sender) (r wire.Reply) {
	method := m.Method
	defer c.g.recovered(method, func() {
		r = wire.Fail(wire.CodeInternal, "%s met a fault in SpecBox; its log says more", method)
	})
	return far.Request(ctx, m, to)
}

func (c *conversation) begin(f *flight) (Session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrEnded
	}
	if limit := c.g.cfg.Limits.Calls; c.calls >= limit {
		return nil, wire.Errorf(wire.CodeServer, "%d requests of this session are under way, which is the limit; wait for some of them", limit)
	}
	c.calls++
	f.older = c.newest
	if f.older != nil {
		f.older.newer = f
	}
	c.newest = f
	return c.far, nil
}

func (c *conversation) finish(f *flight) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls--
	if f.newer != nil {
		f.newer.older = f.older
	} else {
		c.newest = f.older
	}
	if f.older != nil {
		f.older.newer = f.newer
	}
}

// post takes a notification or a response.
func (c *conversation) post(m wire.Message) {
	switch {
	case m.Method == "notifications/cancelled":
		c.cancel(wire.Get(m.Params, "requestId"), wire.Get(m.Params, "reason"))
	case m.IsResponse() && m.ID == nil: // it says that something was wrong, not what
	default:
		c.mu.Lock()
		far, closed := c.far, c.closed
		c.mu.Unlock()
		if !closed {
			defer c.g.recovered("post "+m.Method, func() {})
			far.Post(m)
		}
	}
}

// cancel gives up the newest request of that id, and reports whether there is
// one: some clients use one id for all, and what they cancel is what they asked
// last.
func (c *conversation) cancel(id, reason []byte) bool {
	if len(id) == 0 {
		return false
	}
	c.mu.Lock()
	f := c.newest
	for f != nil && (f.cancel == nil || !sameID(f.id, id)) {
		f = f.older
	}
	var cancel context.CancelCauseFunc
	if f != nil {
		cancel = f.cancel
	}
	c.mu.Unlock()
	if cancel != nil {
		cancel(wire.Cancelled{Reason: reason})
	}
	return cancel != nil
}

// Send queues what belongs to no request for the newest stream: it is the one
// that the client has opened last, so an older one may be a connection that died
// unnoticed.
func (c *conversation) Send(parts ...[]byte) error { return c.send(bytes.Join(parts, nil)) }

func (c *conversation) send(data []byte) error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return ErrEnded
	}
	err := c.backlog.put(data)
	s := c.listener()
	c.mu.Unlock()
	if s != nil {
		wake(s.wake)
	}
	return err
}

// listener returns the newest stream, or nil. The caller holds the lock.
func (c *conversation) listener() *reader {
	if len(c.streams) == 0 {
		return nil
	}
	return c.streams[len(c.streams)-1]
}

// listen adds a stream. If it is a new one, what others could not deliver is for
// it.
func (c *conversation) listen(s *reader, fresh bool) {
	var undelivered []item
	if fresh {
		undelivered = c.replay.unsaid()
	}
	c.mu.Lock()
	var oldest *reader
	switch {
	case c.closed:
		oldest = s
	default:
		c.backlog.unget(undelivered)
		c.streams = append(c.streams, s)
		if len(c.streams) > c.g.cfg.Limits.Streams {
			oldest = c.streams[0]
			c.streams = c.streams[1:]
		}
	}
	c.mu.Unlock()
	if oldest != nil {
		oldest.end()
	}
	wake(s.wake)
}

// unlisten removes a stream. What it could not deliver waits for its client to
// come back, or goes to another stream.
func (c *conversation) unlisten(s *reader, tr *track, rest []item) {
	c.mu.Lock()
	if i := slices.Index(c.streams, s); i >= 0 {
		c.streams = slices.Delete(c.streams, i, i+1)
	}
	next := c.listener()
	c.mu.Unlock()
	undelivered := tr.leave(s, rest)
	if next != nil {
		undelivered = append(c.replay.unsaid(), undelivered...)
	}
	undelivered = slices.DeleteFunc(undelivered, func(it item) bool { return it.kind == reply })
	c.mu.Lock()
	if !c.closed {
		c.backlog.unget(undelivered)
	}
	c.mu.Unlock()
	if next != nil {
		wake(next.wake)
	}
}

// take returns what waits for the stream s, which carries tr.
func (c *conversation) take(s *reader, tr *track) []item {
	c.mu.Lock()
	if c.listener() != s {
		c.mu.Unlock()
		return nil
	}
	items := c.backlog.take()
	c.mu.Unlock()
	if len(items) > 0 && !tr.say(s, items) { // its client came back elsewhere
		c.mu.Lock()
		c.backlog.unget(items)
		c.mu.Unlock()
		return nil
	}
	return items
}
