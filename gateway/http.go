package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/specbox/specbox/wire"
)

const (
	sessionHeader = "Mcp-Session-Id"
	versionHeader = "Mcp-Protocol-Version"
	eventHeader   = "Last-Event-Id"
)

// codeNoSession is the error code for a session that is not there, as the
// official servers use it. The id of that error is null, for clients open a new
// session by the status, which some overlook if the error answers their request.
const codeNoSession = -32001

// ServeHTTP serves /mcp and /mcp/NAME, and both below /s/KEY, where KEY names a
// conversation. It is meant for an [http.Server] without
// WriteTimeout and ReadTimeout, which would cut event streams: bodies and
// clients that do not read have deadlines of their own.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p, text := placeOf(r.URL.Path)
	if text != "" {
		http.Error(w, text, http.StatusNotFound)
		return
	}
	if !g.admits(w, r) {
		return
	}
	if r.Method == http.MethodOptions {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	var deny func(http.ResponseWriter)
	if p.tenant, deny = g.tenant(r, p.server); deny != nil {
		deny(w)
		return
	}
	switch r.Method {
	case http.MethodPost:
		g.post(w, r, p)
	case http.MethodGet, http.MethodDelete:
		if isModern(r.Header.Get(versionHeader)) || r.Header.Get(sessionHeader) == "" {
			w.Header().Set("Allow", "POST")
			http.Error(w, r.Method+" needs a session, which "+sessionHeader+" names; revisions without sessions have only POST", http.StatusMethodNotAllowed)
			return
		}
		if r.Method == http.MethodGet {
			g.get(w, r, p)
		} else {
			g.delete(w, r, p)
		}
	default:
		w.Header().Set("Allow", "GET, POST, DELETE, OPTIONS")
		http.Error(w, r.Method+" is not part of MCP", http.StatusMethodNotAllowed)
	}
}

// placeOf splits a path. If it is none of ours, text says so.
func placeOf(path string) (p place, text string) {
	rest := path
	if s, ok := strings.CutPrefix(path, "/s/"); ok {
		p.conversation, rest, _ = strings.Cut(s, "/")
		if rest = "/" + rest; !isConversation(p.conversation) {
			return p, fmt.Sprintf("not found: KEY of /s/KEY/mcp names a conversation by 1 to %d letters, digits and characters of -._~:@+=", maxConversation)
		}
	}
	server, ok := strings.CutPrefix(rest, "/mcp")
	server, sub := strings.CutPrefix(server, "/")
	if !ok || (!sub && server != "") || strings.Contains(server, "/") {
		return p, "not found: the MCP endpoints are /mcp for all servers and /mcp/NAME for one, or /s/KEY/mcp and /s/KEY/mcp/NAME for the conversation KEY"
	}
	p.server = server
	return p, ""
}

// tenant tells who sent r, or how to turn it away.
func (g *Gateway) tenant(r *http.Request, server string) (tenant string, deny func(http.ResponseWriter)) {
	defer g.recovered("tell the tenant", func() {
		deny = func(w http.ResponseWriter) {
			g.refuse(w, faultf(http.StatusInternalServerError, nil, wire.CodeInternal, "telling who you are met a fault in SpecBox; its log says more"))
		}
	})
	tenant = DefaultTenant
	if g.cfg.Tenant != nil {
		var err error
		if tenant, err = g.cfg.Tenant(r); err != nil {
			return "", func(w http.ResponseWriter) {
				w.Header().Set("WWW-Authenticate", "Bearer")
				http.Error(w, err.Error(), http.StatusUnauthorized)
			}
		}
	}
	if server != "" && !g.cfg.Known(tenant, server) {
		text := "no server named " + server
		if names := g.cfg.Names(tenant); len(names) > 0 {
			text += "; there are " + strings.Join(names, ", ")
		}
		return "", func(w http.ResponseWriter) { http.Error(w, text, http.StatusNotFound) }
	}
	return tenant, nil
}

// admits checks Host and Origin: a page of a foreign site must not use the
// gateway through the browser of somebody who may.
func (g *Gateway) admits(w http.ResponseWriter, r *http.Request) bool {
	if (g.cfg.Loopback || len(g.hosts) > 0) && !isLoopback(r.Host) && !g.hosts[strings.ToLower(r.Host)] && !g.hosts[hostOf(r.Host)] {
		http.Error(w, "this gateway is not to be reached as "+r.Host+"; use a loopback address, or add the name to the allowed hosts", http.StatusForbidden)
		return false
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	u, err := url.Parse(origin)
	if !g.origins[strings.ToLower(origin)] && (err != nil || !isLoopback(u.Host)) {
		http.Error(w, "pages of "+origin+" may not use this gateway; add the origin to the allowed origins", http.StatusForbidden)
		return false
	}
	h := w.Header()
	h.Add("Vary", "Origin")
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", sessionHeader+", WWW-Authenticate")
	if r.Method == http.MethodOptions {
		h.Set("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS")
		h.Set("Access-Control-Max-Age", "7200")
		if want := r.Header.Get("Access-Control-Request-Headers"); want != "" {
			h.Set("Access-Control-Allow-Headers", want) // the origin is trusted, so are its headers
		}
	}
	return true
}

// hostOf returns the lower-case host of a Host header without its port.
func hostOf(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
}

func isLoopback(host string) bool {
	h := hostOf(host)
	ip := net.ParseIP(h)
	return h == "localhost" || strings.HasSuffix(h, ".localhost") || (ip != nil && ip.IsLoopback())
}

// refuse answers a message that cannot be served.
func (g *Gateway) refuse(w http.ResponseWriter, f *fault) {
	writeJSON(w, f.status, false, []answer{f.answer()})
}

func noSession() *fault {
	return faultf(http.StatusNotFound, nil, codeNoSession, "this session does not exist, or has ended; begin a new one with initialize, without Mcp-Session-Id")
}

var shuttingDown = &fault{http.StatusServiceUnavailable, nil, errShutdown}

func (g *Gateway) post(w http.ResponseWriter, r *http.Request, p place) {
	if f := checkType(r.Header); f != nil {
		g.refuse(w, f)
		return
	}
	x := &exchange{g: g, w: w, r: r}
	x.json, x.sse = accepted(r.Header["Accept"])
	if !x.json && !x.sse {
		g.refuse(w, faultf(http.StatusNotAcceptable, nil, wire.CodeInvalidRequest, "answers are application/json or text/event-stream; name both in Accept"))
		return
	}
	body, f := g.body(w, r)
	if f == nil {
		f = check(body)
	}
	if f != nil {
		g.refuse(w, f)
		return
	}
	key := r.Header.Get(sessionHeader)
	if isArray(body) {
		x.c, f = g.entitled(r, key, p)
		if f == nil {
			f = x.batch(body)
		}
	} else {
		f = x.single(body, key, p)
	}
	if f != nil {
		g.refuse(w, f)
	}
}

// single serves one message.
func (x *exchange) single(body []byte, key string, p place) *fault {
	m, f := envelope(body)
	if f != nil {
		return f
	}
	if eraOf(x.r.Header.Get(versionHeader), key != "", m) == modern {
		return x.modern(m, p)
	}
	if m.Method == "initialize" && m.IsRequest() {
		return x.initialize(m, p)
	}
	if x.c, f = x.g.entitled(x.r, key, p); f != nil {
		if f.status != http.StatusNotFound && m.IsRequest() {
			f.id = m.ID
		}
		return f
	}
	if !x.start() {
		return noSession()
	}
	if !m.IsRequest() {
		x.c.post(m)
		x.accept()
		return nil
	}
	if a, ok := x.c.call(context.Background(), m, x); ok {
		x.finish(false, a)
	} else {
		x.finish(false)
	}
	return nil
}

// initialize opens a session. A session that the client had before is none of
// its concern: who initializes begins anew.
func (x *exchange) initialize(m wire.Message, p place) *fault {
	o, f := p.opening(x.r.Header, m.ID, wire.Get(m.Params, "_meta"))
	if f != nil {
		return f
	}
	o.Version, o.Params = wire.Str(m.Params, "protocolVersion"), m.Params
	c, err := x.g.converse(o, nil)
	if err != nil {
		return &fault{http.StatusOK, m.ID, asError(err)}
	}
	x.c = c
	if !x.start() {
		return shuttingDown
	}
	h := x.w.Header()
	h.Set(sessionHeader, c.key)
	a, _ := c.call(context.Background(), m, x)
	if c.agree(a.Reply); a.Error != nil {
		x.mu.Lock()
		if x.phase == silent {
			h.Del(sessionHeader)
		}
		x.mu.Unlock()
	}
	if x.r.Context().Err() != nil { // nobody will ever know its key
		c.close("the client left before it knew the session")
	}
	x.finish(false, a)
	return nil
}

func asError(err error) *wire.Error {
	var e *wire.Error
	if errors.As(err, &e) {
		return e
	}
	return wire.Errorf(wire.CodeServer, "%v", err)
}

// accept ends the exchange of a message that wants no answer.
func (x *exchange) accept() {
	x.g.clock.Stop(&x.alarm)
	x.mu.Lock()
	x.phase = over
	gone := x.gone
	x.mu.Unlock()
	if !gone {
		x.w.WriteHeader(http.StatusAccepted)
		x.c.left()
	}
	x.g.work.Done()
}

// maxBatch bounds the messages in one array.
const maxBatch = 1000

func isArray(b []byte) bool {
	for _, c := range b {
		switch c {
		case ' ', '\t', '\r', '\n':
		default:
			return c == '['
		}
	}
	return false
}

// batch serves an array of messages, its requests side by side.
func (x *exchange) batch(body []byte) *fault {
	if !x.c.allowsBatches() {
		return faultf(http.StatusBadRequest, nil, wire.CodeInvalidRequest, "send one message at a time: arrays are part of revision %s alone", batches)
	}
	elems, err := wire.Elements(body)
	if err != nil || len(elems) == 0 || len(elems) > maxBatch {
		return faultf(http.StatusBadRequest, nil, wire.CodeInvalidRequest, "an array must hold 1 to %d messages", maxBatch)
	}
	if !x.start() {
		return noSession()
	}
	answers := make([]*answer, len(elems))
	var calls sync.WaitGroup
	requests := false
	for i, e := range elems {
		m, f := envelope(e)
		if f == nil && m.Method == "initialize" {
			f = faultf(0, m.ID, wire.CodeInvalidRequest, "initialize must stand alone")
		}
		switch {
		case f != nil:
			a := f.answer()
			answers[i], requests = &a, true
		case m.IsRequest():
			requests = true
			calls.Go(func() {
				if a, ok := x.c.call(context.Background(), m, x); ok {
					answers[i] = &a
				}
			})
		default:
			x.c.post(m)
		}
	}
	calls.Wait()
	if !requests {
		x.accept()
		return nil
	}
	var given []answer
	for _, a := range answers {
		if a != nil {
			given = append(given, *a)
		}
	}
	x.finish(true, given...)
	return nil
}

// entitled returns the session that the request names.
func (g *Gateway) entitled(r *http.Request, key string, p place) (*conversation, *fault) {
	if key == "" {
		return nil, faultf(http.StatusBadRequest, nil, wire.CodeInvalidRequest, "the %s header is missing; begin with initialize, whose answer brings it", sessionHeader)
	}
	c := g.find(key, p.tenant, p.server)
	if c == nil {
		return nil, noSession()
	}
	if v := r.Header.Get(versionHeader); v != "" && !isServed(v) {
		return nil, faultf(http.StatusBadRequest, nil, wire.CodeInvalidRequest, "%s %q is not served; the revisions are %s", versionHeader, v, strings.Join(revisions, ", "))
	}
	return c, nil
}

func (g *Gateway) get(w http.ResponseWriter, r *http.Request, p place) {
	if _, sse := accepted(r.Header["Accept"]); !sse || r.Header["Accept"] == nil {
		http.Error(w, "GET opens an event stream: it needs Accept: text/event-stream", http.StatusNotAcceptable)
		return
	}
	c, f := g.entitled(r, r.Header.Get(sessionHeader), p)
	if f == nil && !c.enter() {
		f = noSession()
	}
	if f != nil {
		g.refuse(w, f)
		return
	}
	defer g.work.Done()
	defer c.left()
	c.serve(w, r)
}

// serve says on one connection what belongs to no request, or, where the client
// names the last event that it heard, goes on with the stream of that.
func (c *conversation) serve(w http.ResponseWriter, r *http.Request) {
	rd := newReader()
	var tr *track
	var again []item
	ids, resumed := r.Header[eventHeader]
	if resumed {
		var ok bool
		if tr, again, ok = c.replay.resume(ids[0], rd); !ok {
			c.g.refuse(w, faultf(http.StatusBadRequest, nil, wire.CodeInvalidRequest, "there is no event %.50q of this session, or what followed it is not kept any more; open a stream without %s", ids[0], eventHeader))
			return
		}
	} else {
		tr = c.replay.begin(rd, queue{}, true)
	}
	e := newEvents(w, true)
	e.track = tr.n
	if !resumed && tr.n > 0 && c.primes.Load() && e.prime(tr.n) {
		tr.prime()
	}
	take := func() ([]item, bool) { return tr.take(rd) }
	if tr.get {
		c.listen(rd, !resumed)
		take = func() ([]item, bool) { return c.take(rd, tr), false }
	}
	rest, _ := e.pump(r.Context().Done(), rd, func() ([]item, bool) {
		items, last := take()
		if again != nil {
			items, again = append(again, items...), nil
		}
		return items, last
	})
	if tr.get {
		c.unlisten(rd, tr, rest)
	} else {
		c.replay.let(tr.leave(rd, rest))
	}
}

func (g *Gateway) delete(w http.ResponseWriter, r *http.Request, p place) {
	c, f := g.entitled(r, r.Header.Get(sessionHeader), p)
	if f != nil {
		g.refuse(w, f)
		return
	}
	c.close("the client ended it")
	w.WriteHeader(http.StatusNoContent)
}

func checkType(h http.Header) *fault {
	ct, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	if !strings.EqualFold(strings.TrimSpace(ct), "application/json") {
		return faultf(http.StatusUnsupportedMediaType, nil, wire.CodeInvalidRequest, "Content-Type is %q; it must be application/json", ct)
	}
	if enc := h.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return faultf(http.StatusUnsupportedMediaType, nil, wire.CodeInvalidRequest, "Content-Encoding %s is not understood; send the message as it is", enc)
	}
	return nil
}

// accepted tells which forms of an answer the Accept headers allow. None is
// taken for all.
func accepted(values []string) (json, sse bool) {
	if len(values) == 0 {
		return true, true
	}
	for _, v := range values {
		for v != "" {
			var one string
			one, v, _ = strings.Cut(v, ",")
			kind, params, _ := strings.Cut(one, ";")
			if q := strings.ReplaceAll(params, " ", ""); q == "q=0" || q == "q=0.0" {
				continue
			}
			switch strings.ToLower(strings.TrimSpace(kind)) {
			case "*/*":
				return true, true
			case "application/json", "application/*":
				json = true
			case "text/event-stream", "text/*":
				sse = true
			}
		}
	}
	return json, sse
}

const (
	// bodyStall is how long a client may take for the next bodyPart of a body.
	bodyStall = 30 * time.Second
	bodyPart  = 1 << 20
	// maxDrain is how much of a body over the limit is read and forgotten, so
	// that the client can read the answer before it meets a closed connection.
	maxDrain = 256 << 20
	// ends is how much of a message over the limit is kept from either end, to
	// find the id of the request.
	ends = 4 << 10
)

// body reads the message within limit and time.
func (g *Gateway) body(w http.ResponseWriter, r *http.Request) ([]byte, *fault) {
	limit := g.cfg.Limits.Body
	size := r.ContentLength
	if size > limit && r.Header.Get("Expect") != "" { // it waits to be told
		return nil, tooLarge(size, limit, nil)
	}
	rc := http.NewResponseController(w)
	more := func() { _ = rc.SetReadDeadline(time.Now().Add(bodyStall)) } // which the server takes back at the end of the body
	more()
	buf := make([]byte, 0, min(max(size+1, 512), bodyPart, limit+1))
	for part := 0; ; {
		if len(buf) == cap(buf) {
			buf = grow(buf, size, limit)
		}
		n, err := r.Body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if part += n; part >= bodyPart {
			part = 0
			more()
		}
		switch {
		case int64(len(buf)) > limit:
			return nil, drain(w, r.Body, buf, size, limit, more)
		case errors.Is(err, io.EOF):
			return buf, nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			w.Header().Set("Connection", "close")
			return nil, faultf(http.StatusRequestTimeout, nil, wire.CodeInvalidRequest, "the message came too slowly: %d bytes, and then nothing for %v", len(buf), bodyStall)
		case err != nil:
			return nil, faultf(http.StatusBadRequest, nil, wire.CodeParse, "the message broke off after %d bytes: %v", len(buf), err)
		}
	}
}

// grow makes room for more of a body that claims to have size bytes. It does not
// believe that before half of them came.
func grow(buf []byte, size, limit int64) []byte {
	room := 2 * int64(cap(buf))
	if size > int64(len(buf)) {
		room = min(room, size+1) // one more, to meet the end without growing
	}
	bigger := make([]byte, len(buf), max(min(room, limit+1), int64(len(buf))+1))
	copy(bigger, buf)
	return bigger
}

// drain reads on over the limit, forgetting all but the ends.
func drain(w http.ResponseWriter, body io.Reader, buf []byte, size, limit int64, more func()) *fault {
	head := append([]byte(nil), buf[:min(len(buf), ends)]...)
	tail := append([]byte(nil), buf[max(0, len(buf)-ends):]...)
	total := int64(len(buf))
	buf = buf[:cap(buf)]
	for part := 0; total < limit+maxDrain; {
		n, err := body.Read(buf)
		total += int64(n)
		tail = append(tail, buf[max(0, n-ends):n]...)
		tail = append(tail[:0], tail[max(0, len(tail)-ends):]...)
		if part += n; part >= bodyPart {
			part = 0
			more()
		}
		if errors.Is(err, io.EOF) {
			return tooLarge(total, limit, lostID(head, tail))
		}
		if err != nil {
			break
		}
	}
	w.Header().Set("Connection", "close")
	return tooLarge(max(size, total), limit, nil)
}

func tooLarge(size, limit int64, id []byte) *fault {
	return faultf(http.StatusRequestEntityTooLarge, id, wire.CodeInvalidRequest, "the message has %d bytes, over the limit of %d; raise the limit of the gateway, or send less", size, limit)
}
