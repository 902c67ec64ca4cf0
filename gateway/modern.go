package gateway

import (
	"bytes"
	"context"
	"errors"
	"net/http"

	"github.com/specbox/specbox/wire"
)

// Schemas is a [Session] that knows the tools behind it. Schema returns the
// inputSchema of a tool, as JSON, or nil if there is no such tool. It says which
// arguments a modern client repeats in headers. It is called concurrently, for
// every tools/call over HTTP, and must not block.
type Schemas interface {
	Schema(tool string) []byte
}

// sessionless is the header by which a client without sessions says which of its
// requests belong together.
const sessionless = "Specbox-Session"

// A place is where a request was sent to, and by whom.
type place struct {
	tenant, server string
	conversation   string // of the path; "" if it names none
}

// opening returns the Opening of a session there, for a request of that id and
// _meta. A conversation is named by the path, a header, or _meta, from sure to
// weak.
func (p place) opening(h http.Header, id, meta []byte) (Opening, *fault) {
	o := Opening{Tenant: p.tenant, Server: p.server, Conversation: p.conversation}
	if v := h[sessionless]; o.Conversation == "" && len(v) > 0 {
		o.Conversation = v[0]
		if len(v) > 1 || !isConversation(o.Conversation) {
			return o, badConversation(id, "the header "+sessionless)
		}
	}
	if o.Conversation != "" {
		return o, nil
	}
	if v := wire.Get(meta, wire.MetaSession); v != nil {
		o.Conversation = wire.Str(v)
		if !isConversation(o.Conversation) {
			return o, badConversation(id, "_meta "+wire.MetaSession)
		}
	}
	return o, nil
}

// maxConversation bounds the name of a conversation, in bytes.
const maxConversation = 128

// isConversation reports whether a client may name a conversation so.
func isConversation(key string) bool {
	for i := range len(key) {
		c := key[i]
		if (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && bytes.IndexByte([]byte("-._~:@+="), c) < 0 {
			return false
		}
	}
	return key != "" && len(key) <= maxConversation
}

func badConversation(id []byte, where string) *fault {
	return faultf(http.StatusBadRequest, id, wire.CodeInvalidParams, "%s does not name a conversation: give 1 to %d letters, digits and characters of -._~:@+=", where, maxConversation)
}

// maxAbout bounds what a modern client says about itself with every request.
const maxAbout = 64 << 10

// A hello is what every modern request says, as the initialize of a session did.
type hello struct {
	Opening
	caps, info []byte // of the client; info may be nil
	pipe       string // the client on standard input; "" on HTTP
}

// read completes o with what the _meta of the modern request m says.
func (o *hello) read(m wire.Message, meta []byte) *fault {
	version := wire.Get(meta, wire.MetaVersion)
	if len(version) < 3 || version[0] != '"' {
		return faultf(http.StatusBadRequest, m.ID, wire.CodeInvalidParams, "params._meta must hold %q, a string", wire.MetaVersion)
	}
	if !says(version, wire.Modern) {
		return unserved(m.ID, wire.Str(version))
	}
	o.Version = wire.Modern
	caps, info := wire.Get(meta, wire.MetaCapabilities), wire.Get(meta, wire.MetaClientInfo)
	switch {
	case len(caps) == 0 || caps[0] != '{':
		return faultf(http.StatusBadRequest, m.ID, wire.CodeInvalidParams, "params._meta must hold %q, an object", wire.MetaCapabilities)
	case info != nil && info[0] != '{':
		return faultf(http.StatusBadRequest, m.ID, wire.CodeInvalidParams, "%q in params._meta must be an object", wire.MetaClientInfo)
	case len(caps)+len(info) > maxAbout:
		return faultf(http.StatusBadRequest, m.ID, wire.CodeInvalidParams, "what params._meta says about the client has %d bytes, over the limit of %d", len(caps)+len(info), maxAbout)
	}
	o.Modern, o.caps, o.info = true, caps, info
	return nil
}

// key appends what modern requests that share a session have in common. It is
// not to be mistaken for the key of a legacy session, which comes in a header.
func (o *hello) key(b []byte) []byte {
	for _, s := range [...]string{"", o.Tenant, o.Server, o.Conversation, o.pipe, o.Version} {
		b = append(append(b, s...), 0)
	}
	b = append(append(b, wire.Get(o.info, "name")...), 0)
	return append(b, o.caps...)
}

// params returns what initialize would have said.
func (o *hello) params() []byte {
	parts := [][]byte{[]byte(`{"protocolVersion":`), wire.Quote(o.Version), []byte(`,"capabilities":`), o.caps}
	if o.info != nil {
		parts = append(parts, []byte(`,"clientInfo":`), o.info)
	}
	return bytes.Join(append(parts, []byte("}")), nil)
}

var errShutdown = wire.Errorf(wire.CodeServer, "SpecBox is shutting down; connect again later")

// join returns the session that serves a modern request, and opens it if it is
// the first. The caller has entered it.
func (g *Gateway) join(ctx context.Context, o hello) (*conversation, error) {
	var room [512]byte
	key := o.key(room[:0])
	for {
		g.mu.Lock()
		c, closed := g.sessions[string(key)], g.closed
		g.mu.Unlock()
		if closed {
			return nil, errShutdown
		}
		if c == nil {
			var err error
			if c, err = g.openModern(o, string(key)); err != nil {
				return nil, err
			}
		}
		select {
		case <-c.ready:
		case <-ctx.Done():
			return nil, wire.Cancelled{}
		}
		if c.enter() {
			return c, nil
		}
		// It ended meanwhile. Its client knows of no session: it gets a new one.
	}
}

// openModern opens the session of key, or returns the one that another request
// is opening.
func (g *Gateway) openModern(o hello, key string) (*conversation, error) {
	o.Params = o.params()
	mine := g.conversation(o.Opening, key)
	c, err := g.admit(mine)
	if err != nil || c != mine {
		mine.end(ErrEnded)
		return c, err
	}
	if err := c.open(unheard{}); err != nil {
		return nil, err
	}
	c.announce(o.Version)
	return c, nil
}

// unheard takes what belongs to no request of a modern client: such a client
// hears only what it listens for.
type unheard struct{}

var errUnheard = errors.New("this client has no session; it hears what its requests bring, and what it subscribed to")

func (unheard) Send(...[]byte) error { return errUnheard }

// modern serves one message of the era without sessions.
func (x *exchange) modern(m wire.Message, p place) *fault {
	if !m.IsRequest() { // there is no session that it could matter to
		x.w.WriteHeader(http.StatusAccepted)
		return nil
	}
	var o hello
	meta := wire.Get(m.Params, "_meta")
	f := checkVersion(x.r.Header, m.ID, meta)
	if f == nil {
		o.Opening, f = p.opening(x.r.Header, m.ID, meta)
	}
	if f == nil {
		f = o.read(m, meta)
	}
	if f == nil {
		f = checkMethod(x.r.Header, m)
	}
	switch {
	case f != nil:
		return f
	case isRemoved(m.Method):
		return removed(m)
	case m.Method == "subscriptions/listen" && !x.sse:
		return faultf(http.StatusNotAcceptable, m.ID, wire.CodeInvalidRequest, "subscriptions/listen is answered with an event stream: it needs Accept: text/event-stream")
	}
	c, err := x.g.join(x.r.Context(), o)
	if err != nil {
		e := asError(err)
		return &fault{statusOf(e.Code), m.ID, e}
	}
	x.c, x.era = c, modern
	x.arm()
	if m.Method == "tools/call" {
		if f := c.checkParams(x.r.Header, m); f != nil {
			x.finish(false, f.answer())
			return nil
		}
	}
	if a, ok := c.call(x.r.Context(), m, x); ok {
		x.finish(false, a)
	} else {
		x.finish(false)
	}
	return nil
}
