package session

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/specbox/specbox/catalog"
	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/wire"
)

// This file is where the two eras of the protocol meet. A client and a server of
// one era understand each other as they are. A legacy client before a modern
// server: its requests get the _meta that the server wants, and what the server
// asks for by input_required is asked for by requests. A modern client before a
// legacy server: see park.go.

// eras returns in which eras a server can be met.
func (v view) eras(server string) catalog.Eras {
	if e := v.Entry(server); e != nil {
		return e.Eras
	}
	return catalog.Legacy
}

// handshake says as whom a sandbox of srv is to meet this session's client. A
// sandbox that sessions share is met in one revision, so that it stays one: what
// they share is its state, whatever their clients speak.
func (s *Session) handshake(srv *Server) sandbox.Client {
	c := sandbox.Client{Version: s.version, Capabilities: s.caps, Info: s.info}
	if srv.Spec.Scope != config.PerSession || s.modern && s.view().eras(srv.Name) == catalog.Legacy {
		c.Version = Latest
	}
	return c
}

// affinity refuses a call that would share state by accident: one without a
// session, to a server that was said to keep state for each.
func (s *Session) affinity(srv *Server, eras catalog.Eras) error {
	if !s.modern || s.conversation != "" || eras != catalog.Legacy || !srv.NeedsSession {
		return nil
	}
	return fmt.Errorf("server %q keeps state for each session (scope: session), and this request belongs to none: "+
		"send a key with all requests of one conversation, as header Specbox-Session, as %s in _meta, or in the URL /s/KEY/mcp; or give the server scope: tenant", srv.Name, wire.MetaSession)
}

// ttl is how long clients may keep a list. What changes is told to those that
// listen.
const ttl = time.Minute

// cacheable returns a list as the modern era wants it. It is never public: what
// a tenant sees is its own.
func (s *Session) cacheable(result []byte) []byte {
	return finish(result, fmt.Appendf(nil, `"resultType":"complete","ttlMs":%d,"cacheScope":"private","_meta":{%q:%s}`,
		ttl.Milliseconds(), wire.MetaServerInfo, s.view().serverInfo(s.hub.cfg.Version)))
}

// finish returns an object with more members at its end.
func finish(object, members []byte) []byte {
	end := bytes.LastIndexByte(object, '}')
	if end < 0 {
		return object
	}
	head := bytes.TrimRight(object[:end], " \t\r\n")
	out := make([]byte, 0, len(object)+len(members)+1)
	out = append(out, head...)
	if !bytes.HasSuffix(head, []byte("{")) {
		out = append(out, ',')
	}
	out = append(out, members...)
	return append(out, object[end:]...)
}

// completed returns a legacy server's reply as the modern era wants it.
func completed(method string, r wire.Reply) wire.Reply {
	if r.Error != nil {
		return wire.Reply{Error: recode(recode(r.Error, wire.CodeNotFound, wire.CodeInvalidParams), wire.CodeURLElicitation, wire.CodeServer)}
	}
	members := []byte(`"resultType":"complete"`)
	if method == "resources/read" {
		members = append(members, `,"ttlMs":0,"cacheScope":"private"`...)
	}
	if bytes.Contains(r.Result, []byte(`"resultType"`)) && wire.Get(r.Result, "resultType") != nil {
		return r
	}
	return wire.Reply{Result: finish(r.Result, members)}
}

// recode gives an error object another code.
func recode(e []byte, from, to int) []byte {
	if string(wire.Get(e, "code")) != strconv.Itoa(from) {
		return e
	}
	return wire.Replace(e, strconv.AppendInt(nil, int64(to), 10), "code")
}

// legacyError returns a modern server's error as a legacy client knows it.
func legacyError(method string, e []byte) []byte {
	if method == "resources/read" {
		return recode(e, wire.CodeInvalidParams, wire.CodeNotFound)
	}
	return e
}

// withMeta returns params with what the modern era wants to know of a client.
func (s *Session) withMeta(params []byte) []byte {
	if params == nil {
		params = []byte("{}")
	}
	client := sandbox.Client{Capabilities: s.caps, Info: s.info}
	meta := wire.Get(params, "_meta")
	if len(meta) == 0 || meta[0] != '{' {
		meta = []byte("{}")
	}
	_ = wire.Members(client.Meta(), func(key string, value []byte) bool {
		meta = wire.Set(meta, value, key)
		return true
	})
	s.mu.Lock()
	level := s.level
	s.mu.Unlock()
	if level != nil {
		meta = wire.Set(meta, level, wire.MetaLogLevel)
	}
	return wire.Set(params, meta, "_meta")
}

// withoutMeta returns params without what the modern era says of a client: a
// server that was met in the legacy era may take it for a wish to change it.
func withoutMeta(params []byte) []byte {
	meta := wire.Get(params, "_meta")
	if !bytes.Contains(meta, []byte("io.modelcontextprotocol/")) {
		return params
	}
	left := []byte("{}")
	_ = wire.Members(meta, func(key string, value []byte) bool {
		switch key {
		case wire.MetaVersion, wire.MetaClientInfo, wire.MetaCapabilities, wire.MetaLogLevel:
		default:
			left = finish(left, append(append(wire.Quote(key), ':'), value...))
		}
		return true
	})
	return wire.Replace(params, left, "_meta")
}

// rounds bounds how often a server may ask for more input in one call.
const rounds = 10

// fulfil runs a call of a legacy client on a modern server: what the server
// wants by input_required is asked for by requests, and the call goes on with
// the answers.
func (s *Session) fulfil(ctx context.Context, t target, lease *sandbox.Lease, method string, stream wire.Sender) (wire.Reply, error) {
	srv := t.server
	params := s.named(t, method, s.withMeta(t.params))
	next := params
	for range rounds {
		reply, err := s.await(ctx, srv, lease, method, next, stream)
		if err != nil || reply.Error != nil || wire.Str(reply.Result, "resultType") != "input_required" {
			if reply.Error != nil {
				reply.Error = legacyError(method, reply.Error)
			}
			return reply, err
		}
		answers, err := s.gather(ctx, lease.Conn(), srv.Name, wire.Get(reply.Result, "inputRequests"))
		if err != nil {
			return wire.Reply{}, err
		}
		next = wire.Set(params, answers, "inputResponses")
		if state := wire.Get(reply.Result, "requestState"); state != nil {
			next = wire.Set(next, state, "requestState")
		}
	}
	return wire.Reply{}, fmt.Errorf("server %q asked for input %d times in one call", srv.Name, rounds)
}

// gather asks the client all that a server wants to know, at once, and returns
// the answers under the same keys.
func (s *Session) gather(ctx context.Context, c *wire.Conn, server string, requests []byte) ([]byte, error) {
	type answered struct {
		key   string
		reply wire.Reply
	}
	replies := make(chan answered, maxAsks)
	n := 0
	err := wire.Members(requests, func(key string, r []byte) bool {
		n++
		s.put(&ask{conn: c, server: server, answer: func(r wire.Reply) { replies <- answered{key, r} }},
			wire.Str(r, "method"), wire.Get(r, "params"))
		return n < maxAsks
	})
	if err != nil || n == 0 {
		return nil, fmt.Errorf("server %q is not ready to go on, and asks for nothing; try again later", server)
	}
	out := []byte("{}")
	for range n {
		select {
		case a := <-replies:
			if a.reply.Error != nil {
				return nil, fmt.Errorf("server %q asked the client, which answered: %w", server, a.reply.Err())
			}
			out = wire.Set(out, a.reply.Result, a.key)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-c.Done():
			return nil, c.Err()
		}
	}
	return out, nil
}

// followPatience is how long a first call waits for its server to take notice
// that somebody listens.
const followPatience = time.Second

// follow has a modern server tell when its lists change, as legacy ones do by
// themselves, and waits until it will. The request ends with the connection.
func (h *Hub) follow(ctx context.Context, c *wire.Conn, client sandbox.Client) {
	params := append(append([]byte(`{"_meta":`), client.Meta()...),
		`,"notifications":{"toolsListChanged":true,"promptsListChanged":true,"resourcesListChanged":true}}`...)
	heard := make(chan struct{})
	h.mu.Lock()
	h.follows[c] = heard
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		delete(h.follows, c)
		h.mu.Unlock()
	}()
	call, err := c.Start("subscriptions/listen", params, nil)
	if err != nil {
		return // the call finds out
	}
	timer := time.NewTimer(followPatience)
	defer timer.Stop()
	select {
	case <-heard:
	case <-call.Done(): // it does not offer that
	case <-timer.C:
	case <-ctx.Done():
	}
}

// acknowledged notes that a server has taken notice of who listens.
func (h *Hub) acknowledged(c *wire.Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if heard := h.follows[c]; heard != nil {
		close(heard)
		delete(h.follows, c)
	}
}

// named returns params with the headers that a remote server of the modern era
// wants for arguments (x-mcp-header in the tool's schema), under
// [sandbox.MetaHeaders].
func (s *Session) named(t target, method string, params []byte) []byte {
	if method != "tools/call" || t.server.Spec.Isolation != config.Remote || !bytes.Contains(t.schema, []byte("x-mcp-header")) {
		return params
	}
	headers := []byte("{}")
	argumentHeaders(t.schema, wire.Get(params, "arguments"), maxSchemaDepth, func(name string, value []byte) {
		headers = wire.Set(headers, value, name)
	})
	return wire.Set(params, wire.Set(wire.Get(params, "_meta"), headers, sandbox.MetaHeaders), "_meta")
}

// maxSchemaDepth bounds how deep in a schema headers are looked for.
const maxSchemaDepth = 16

// argumentHeaders calls f with the header and the value of each argument that a
// schema wants in a header.
func argumentHeaders(schema, args []byte, depth int, f func(name string, value []byte)) {
	if depth == 0 || len(args) == 0 || args[0] != '{' {
		return
	}
	_ = wire.Members(wire.Get(schema, "properties"), func(key string, property []byte) bool {
		value := wire.Get(args, key)
		if name := wire.Str(property, "x-mcp-header"); name != "" && value != nil && string(value) != "null" {
			f(name, value)
		}
		argumentHeaders(property, value, depth-1, f)
		return true
	})
}

// A metaCaller speaks to a modern server on nobody's behalf.
type metaCaller struct {
	c      *wire.Conn
	client sandbox.Client
}

// Call sends a request with the _meta that it needs.
func (m metaCaller) Call(ctx context.Context, method string, params []byte) (wire.Reply, error) {
	if params == nil {
		params = []byte("{}")
	}
	return m.c.Call(ctx, method, wire.Set(params, m.client.Meta(), "_meta"))
}

// probePatience is how long a server may think about whether it is modern too.
const probePatience = 3 * time.Second

// speaksModern asks a server that was met in the legacy era whether it can be
// met in the modern one. Some say so and then refuse all requests, so one is
// tried.
func speaksModern(ctx context.Context, c *wire.Conn, client sandbox.Client) bool {
	ctx, cancel := context.WithTimeout(ctx, probePatience)
	defer cancel()
	call := metaCaller{c, client}.Call
	r, err := call(ctx, "server/discover", nil)
	if err != nil {
		return false
	}
	found := false
	_ = wire.Each(wire.Get(r.Result, "supportedVersions"), func(v []byte) bool {
		found = found || string(v) == `"`+wire.Modern+`"`
		return !found
	})
	for capability, list := range map[string]string{"tools": "tools/list", "prompts": "prompts/list", "resources": "resources/list"} {
		if found && wire.Get(r.Result, "capabilities", capability) != nil {
			tried, err := call(ctx, list, nil)
			return err == nil && tried.Error == nil
		}
	}
	return found
}
