package wire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
)

// A Handler takes what a server sends on its own accord. Its methods are called
// from the connection's read loop, in order, and must not block: of what writes
// to the connection they may call [Conn.Respond] and [Conn.Post] alone.
type Handler interface {
	// Notified takes a notification that belongs to no call.
	Notified(c *Conn, m Message)
	// Requested takes a request of the server; [Conn.Respond] answers it, now or
	// later.
	Requested(c *Conn, m Message)
}

// A Conn is the client's end of a connection to one MCP server. It is safe for
// concurrent use.
type Conn struct {
	t    Transport
	done chan struct{}

	mu      sync.Mutex
	handler Handler
	early   []Message // what came before there was a handler, bounded
	earlier int       // bytes of early
	last    int64
	calls   map[int64]*Call
	err     error // why the connection ended

	posts   []post // what is to be written, oldest first
	waiting int    // bytes of posts
	posting bool   // a goroutine writes them
}

// What is kept for a handler that is not set yet.
const (
	maxEarly      = 256     // messages
	maxEarlyBytes = 4 << 20 // of all of them
)

// ErrClosed is the error of a connection that was closed by its owner.
var ErrClosed = errors.New("connection closed")

// NewConn returns a Conn on t and starts to read. The reading ends when t does;
// [Conn.Close] makes that happen.
func NewConn(t Transport) *Conn {
	c := &Conn{t: t, done: make(chan struct{}), calls: map[int64]*Call{}}
	go c.read()
	return c
}

// Handle sets the handler and gives it what came before, in order. Until there
// is a handler, and if h is nil, pings are answered and all else is kept or, at
// last, refused.
func (c *Conn) Handle(h Handler) {
	c.mu.Lock()
	early := c.early
	c.early, c.earlier = nil, 0
	c.handler = h
	c.mu.Unlock()
	for _, m := range early {
		c.deliver(h, m)
	}
}

func (c *Conn) read() {
	var err error
	for {
		var raw []byte
		var seen checker
		raw, err = receive(c.t, &seen)
		var long *TooLongError
		if errors.As(err, &long) {
			c.unusable(long.Head, long.Tail, long)
			continue
		}
		if err != nil {
			break
		}
		valid, text := seen.verdict(raw)
		if !text { // some readers would give up on it, and most do this
			raw = bytes.ToValidUTF8(raw, []byte("\uFFFD"))
			seen = checker{}
			seen.feed(raw)
		}
		switch {
		case !valid:
			c.invalid(raw)
		case raw[0] == '[': // a batch, which revision 2025-03-26 allowed
			_ = Each(raw, func(elem []byte) bool {
				if m, err := Parse(elem); err == nil {
					c.dispatch(m)
				}
				return true
			})
		default:
			if m, err := seen.parsed(raw); err == nil {
				c.dispatch(m)
			}
		}
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("the server closed the connection")
	}
	c.end(err)
}

// receive reads a message, and shows it to seen.
func receive(t Transport, seen *checker) ([]byte, error) {
	if l, ok := t.(*Lines); ok {
		return l.receive(seen)
	}
	raw, err := t.Read()
	seen.feed(raw)
	return raw, err
}

func (c *Conn) end(err error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = err
	calls := c.calls
	c.calls = nil
	c.mu.Unlock()
	for _, call := range calls {
		call.finish(Reply{}, err)
	}
	close(c.done)
}

func (c *Conn) dispatch(m Message) {
	switch {
	case m.IsResponse():
		id, err := strconv.ParseInt(string(bytes.Trim(m.ID, `"`)), 10, 64)
		if err != nil {
			return
		}
		if call := c.forget(id); call != nil {
			call.finish(Reply{Result: m.Result, Error: m.Error, failed: m.failed}, nil)
		}
	case m.Method == "notifications/progress":
		token := Get(m.Params, "progressToken")
		id, err := strconv.ParseInt(string(bytes.Trim(token, `"`)), 10, 64)
		if err != nil {
			return
		}
		c.mu.Lock()
		call := c.calls[id]
		c.mu.Unlock()
		if call != nil && call.progress != nil {
			call.progress(Replace(m.Params, call.token, "progressToken"))
		}
	case m.Method == "ping" && m.IsRequest():
		_ = c.Respond(m.ID, Reply{Result: []byte("{}")}) // who does not read needs no answer
	default:
		c.mu.Lock()
		h := c.handler
		if h == nil && len(c.early) < maxEarly && c.earlier+len(m.Raw) <= maxEarlyBytes {
			c.early = append(c.early, m)
			c.earlier += len(m.Raw)
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		c.deliver(h, m)
	}
}

func (c *Conn) deliver(h Handler, m Message) {
	switch {
	case h != nil && m.IsRequest():
		h.Requested(c, m)
	case h != nil:
		h.Notified(c, m)
	case m.IsRequest():
		_ = c.Respond(m.ID, Fail(CodeMethodNotFound, "no client is there to answer %s", m.Method)) // as above
	}
}

// invalid takes what is no message, though it looked like one.
func (c *Conn) invalid(raw []byte) {
	if n, ok := c.t.(interface{ Noise([]byte) }); ok {
		n.Noise(raw)
	}
	head, tail := raw[:min(len(raw), peekSize)], raw[max(0, len(raw)-peekSize):]
	c.unusable(head, tail, &InvalidError{Text: bytes.Clone(head)})
}

// unusable fails the call that a response answers of which both ends are known.
func (c *Conn) unusable(head, tail []byte, err error) {
	text, isResponse := lostID(head, tail)
	id, numErr := strconv.ParseInt(string(bytes.Trim(text, `"`)), 10, 64)
	if !isResponse || numErr != nil {
		return
	}
	if call := c.forget(id); call != nil {
		call.finish(Reply{}, err)
	}
}

// lostID returns the id of a message of which only both ends are known, as far
// as they tell, and whether it is a response.
func lostID(head, tail []byte) (id []byte, isResponse bool) {
	isResponse = true // unless it has a member that no response has
	see := func(key []byte) {
		if k := string(key); k == "method" || k == "params" {
			isResponse = false
		}
	}
	read := 1 // behind the brace, or behind the last member that is whole
	err := members(head, func(key []byte, s, e int) bool {
		if see(key); string(key) == "id" {
			id = head[s:e:e]
		}
		read = e
		return true
	})
	if err == nil {
		return id, isResponse
	}
	// Where it is cut or broken there is a key still, and what looks like a
	// whole number may be half of one.
	if i := bytes.IndexByte(head[min(read, len(head)):], '"'); i >= 0 {
		if end, err := skipString(head, read+i); err == nil {
			see(head[read+i+1 : end-1])
		}
	}
	if id != nil && read < len(head) {
		return id, isResponse
	}
	for i := len(tail); i > 0; { // it ends with its id
		i = bytes.LastIndex(tail[:i], []byte(`"id"`))
		before := bytes.TrimRight(tail[:max(i, 0)], " \t\r\n")
		if i < 0 || len(before) == 0 || before[len(before)-1] != ',' {
			continue
		}
		rest := append([]byte{'{'}, tail[i:]...)
		if Valid(rest) { // else it stood inside of something
			return Get(rest, "id"), isResponse && Get(rest, "method") == nil
		}
	}
	return nil, false
}

func (c *Conn) forget(id int64) *Call {
	c.mu.Lock()
	defer c.mu.Unlock()
	call := c.calls[id]
	delete(c.calls, id)
	return call
}

// A Call is a request that was sent. Its outcome is ready when Done is closed.
type Call struct {
	c        *Conn
	id       int64
	token    []byte // the caller's progress token
	progress func(params []byte)

	done  chan struct{}
	reply Reply
	err   error
}

func (call *Call) finish(r Reply, err error) {
	call.reply, call.err = r, err
	close(call.done)
}

// Done is closed when there is an outcome.
func (call *Call) Done() <-chan struct{} { return call.done }

// Outcome returns the server's reply, or why there is none. It may be called
// once Done is closed.
func (call *Call) Outcome() (Reply, error) { return call.reply, call.err }

// Abandon gives the call up and tells the server so, under the id that the
// server knows. A call that has its outcome is left alone. The reason may be
// nil, or the JSON string to pass on.
func (call *Call) Abandon(reason []byte) {
	if call.c.forget(call.id) == nil {
		return
	}
	params := append([]byte(`{"requestId":`), strconv.FormatInt(call.id, 10)...)
	if reason != nil {
		params = append(append(params, `,"reason":`...), reason...)
	}
	_ = call.c.Post("notifications/cancelled", append(params, '}')) // who does not read is not to be told
}

// Start sends a request. If params hold a progress token it is made unique, and
// progress, which may be nil, is called from the read loop with the params of
// each progress notification, the caller's token put back. The outcome, or
// [Call.Abandon], ends the call.
func (c *Conn) Start(method string, params []byte, progress func([]byte)) (*Call, error) {
	call := &Call{c: c, progress: progress, done: make(chan struct{})}
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return nil, c.err
	}
	c.last++
	call.id = c.last
	c.calls[call.id] = call
	c.mu.Unlock()
	id := strconv.AppendInt(nil, call.id, 10)
	if token := Get(params, "_meta", "progressToken"); token != nil {
		call.token = bytes.Clone(token)
		params = Replace(params, id, "_meta", "progressToken")
	}
	if err := c.t.Write(RequestParts(id, method, params)...); err != nil {
		c.forget(call.id)
		return nil, fmt.Errorf("send %s: %w", method, err)
	}
	return call, nil
}

// Call sends a request and waits for its outcome. If ctx ends first the call is
// abandoned, save an initialize, which may not be cancelled.
func (c *Conn) Call(ctx context.Context, method string, params []byte) (Reply, error) {
	call, err := c.Start(method, params, nil)
	if err != nil {
		return Reply{}, err
	}
	select {
	case <-call.Done():
		return call.Outcome()
	case <-ctx.Done():
		if method == "initialize" {
			c.forget(call.id)
		} else {
			call.Abandon(nil)
		}
		return Reply{}, context.Cause(ctx)
	}
}

// Notify sends a notification and returns when it was sent, which a server that
// does not read can hold up until the connection is closed.
func (c *Conn) Notify(method string, params []byte) error {
	return c.t.Write(NotificationParts(method, params)...)
}

// Post is like Notify, but does not wait: what is posted is sent in order, soon.
// It returns why the connection has ended, or [ErrUnread].
func (c *Conn) Post(method string, params []byte) error {
	return c.post(NotificationParts(method, params))
}

// Respond answers a request of the server, whose id is the server's own. Like
// Post it does not wait.
func (c *Conn) Respond(id []byte, r Reply) error { return c.post(ReplyParts(id, r)) }

// ErrUnread says that a server leaves so much unread that nothing more is kept
// for it.
var ErrUnread = errors.New("the server does not read what it is sent")

// What waits for a server to read, before no more is kept.
const (
	maxPosts     = 1000     // messages
	maxPostBytes = 16 << 20 // of all of them; one larger message may wait alone
)

// A post is a message that is to be written.
type post struct {
	parts [][]byte
	size  int
}

func (c *Conn) post(parts [][]byte) error {
	p := post{parts: parts}
	for _, part := range parts {
		p.size += len(part)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.err != nil:
		return c.err
	case len(c.posts) >= maxPosts, len(c.posts) > 0 && c.waiting+p.size > maxPostBytes:
		return ErrUnread
	}
	c.posts = append(c.posts, p)
	c.waiting += p.size
	if !c.posting {
		c.posting = true
		go c.writePosts() // ends when all is written, or with the connection
	}
	return nil
}

func (c *Conn) writePosts() {
	for {
		c.mu.Lock()
		if len(c.posts) == 0 || c.err != nil {
			c.posts, c.waiting, c.posting = nil, 0, false
			c.mu.Unlock()
			return
		}
		p := c.posts[0]
		c.posts = c.posts[1:]
		c.mu.Unlock()
		err := c.t.Write(p.parts...)
		c.mu.Lock()
		c.waiting -= p.size
		if err != nil { // one that cannot be written to says so elsewhere
			c.posts, c.waiting = nil, 0
		}
		c.mu.Unlock()
	}
}

// Done is closed when the connection has ended; Err then says why.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err returns why the connection ended, or nil while it lives.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the connection and fails what is under way with [ErrClosed].
func (c *Conn) Close() error {
	c.end(ErrClosed)
	return c.t.Close()
}
