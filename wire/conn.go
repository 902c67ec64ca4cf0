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
// from the connection's read loop, in order, and must not block: not even by
// writing to the connection.
type Handler interface {
	// Notified takes a notification that belongs to no call.
	Notified(c *Conn, m Message)
	// Requested takes a request of the server; [Conn.Respond] answers it later.
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
	last    int64
	calls   map[int64]*Call
	err     error // why the connection ended
}

// maxEarly bounds what is kept for a handler that is not set yet.
const maxEarly = 256

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
	c.early = nil
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
		raw, err = c.t.Read()
		var long *TooLongError
		if errors.As(err, &long) {
			c.tooLong(long)
			continue
		}
		if err != nil {
			break
		}
		if raw[0] == '[' { // a batch, which revision 2025-03-26 allowed
			elems, _ := Elements(raw)
			for _, e := range elems {
				c.dispatch(e)
			}
			continue
		}
		c.dispatch(raw)
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("the server closed the connection")
	}
	c.end(err)
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

func (c *Conn) dispatch(raw []byte) {
	m, err := Parse(raw)
	if err != nil {
		return
	}
	switch {
	case m.IsResponse():
		id, err := strconv.ParseInt(string(bytes.Trim(m.ID, `"`)), 10, 64)
		if err != nil {
			return
		}
		if call := c.forget(id); call != nil {
			call.finish(Reply{Result: m.Result, Error: m.Error}, nil)
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
		c.respondLater(m.ID, Reply{Result: []byte("{}")})
	default:
		c.mu.Lock()
		h := c.handler
		if h == nil && len(c.early) < maxEarly {
			c.early = append(c.early, m)
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
		c.respondLater(m.ID, Fail(CodeMethodNotFound, "no client is there to answer %s", m.Method))
	}
}

// respondLater answers a request without holding up the read loop: a server
// that writes, and does not read meanwhile, would wait for us as we for it. The
// goroutine ends with the writing, or with the connection.
func (c *Conn) respondLater(id []byte, r Reply) {
	go func() { _ = c.Respond(id, r) }() // a dead connection says so elsewhere
}

// tooLong fails the call that an oversized response answers.
func (c *Conn) tooLong(e *TooLongError) {
	for _, part := range [][]byte{e.Head, e.Tail} {
		for _, id := range idCandidates(part) {
			if call := c.forget(id); call != nil {
				call.finish(Reply{}, e)
				return
			}
		}
	}
}

// idCandidates returns the numbers that stand behind an "id" key in a fragment.
func idCandidates(b []byte) []int64 {
	var out []int64
	for {
		i := bytes.Index(b, []byte(`"id"`))
		if i < 0 {
			return out
		}
		b = bytes.TrimLeft(b[i+4:], " \t")
		if !bytes.HasPrefix(b, []byte(":")) {
			continue
		}
		b = bytes.TrimLeft(b[1:], " \t")
		n := 0
		for n < len(b) && b[n] >= '0' && b[n] <= '9' {
			n++
		}
		if id, err := strconv.ParseInt(string(b[:n]), 10, 64); err == nil {
			out = append(out, id)
		}
	}
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
	_ = call.c.Notify("notifications/cancelled", append(params, '}'))
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

// Notify sends a notification.
func (c *Conn) Notify(method string, params []byte) error {
	return c.t.Write(NotificationParts(method, params)...)
}

// Respond answers a request of the server. The id is the server's own.
func (c *Conn) Respond(id []byte, r Reply) error { return c.t.Write(ReplyParts(id, r)...) }

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
