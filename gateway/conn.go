package gateway

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// Listener returns l with connections on which net/http costs less. It needs
// [ConnContext] in the [http.Server] that serves it.
//
// For each request net/http sets half a dozen deadlines, and begins to read behind
// it in a goroutine of its own, to learn whether the client leaves. With a request
// that is answered at once, nothing of that comes to pass, and yet it wakes threads,
// which costs more than all else. On these connections deadlines are kept in mind
// until one is to be waited for, and a client that leaves is noticed a moment
// ([watchAfter]) later. That it is noticed does not depend on how net/http works
// inside: at worst, it costs what it did.
func Listener(l net.Listener) net.Listener { return listener{l} }

type listener struct{ net.Listener }

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c}, nil
}

// ConnContext is the ConnContext of an [http.Server]: its contexts end when the
// client of a connection of [Listener] leaves.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	if c, ok := c.(*conn); ok {
		ctx, c.leave = context.WithCancel(ctx)
	}
	return ctx
}

// watchAfter is how long a request is under way before it is looked after whether
// its client leaves.
const watchAfter = 50 * time.Millisecond

// A conn is a connection of a client. One goroutine reads at a time, as with
// net/http; all else is safe for concurrent use.
type conn struct {
	net.Conn
	leave context.CancelFunc // ends the contexts of its requests; nil if nobody asked

	mu      sync.Mutex
	want    time.Time // the deadline of reading, as it was asked for
	set     time.Time // as the connection has it: not later, once a read waits
	written bool      // the connection has one of writing
	reading bool      // a read waits
	quiet   time.Time // since when a request is under way, and nobody reads; else zero
	timer   *time.Timer
	armed   bool          // timer runs
	watch   chan struct{} // closed when the watch has ended; nil without
	called  bool          // the watch is to end
	ahead   []byte        // what the watch has read
	err     error         // that it met
	closed  bool
}

// Read reads what comes next. The first read of a single byte without a deadline
// returns nothing, and at once: it is net/http that wants to know when the client
// leaves. If somebody else wants that byte, he will read once more.
func (c *conn) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(p) == 1 && c.want.IsZero() && c.quiet.IsZero() && c.leave != nil {
		c.rest()
		return 0, nil
	}
	c.quiet = time.Time{}
	if c.watch != nil {
		c.callBack()
	}
	if len(c.ahead) > 0 {
		n := copy(p, c.ahead)
		c.ahead = c.ahead[n:]
		return n, nil
	}
	if c.err != nil {
		return 0, c.err
	}
	for {
		if !c.want.IsZero() && (c.set.IsZero() || c.want.Before(c.set)) {
			c.setDeadline(c.want)
		}
		c.reading = true
		c.mu.Unlock()
		n, err := c.Conn.Read(p)
		c.mu.Lock()
		c.reading = false
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) || !c.want.IsZero() && !time.Now().Before(c.want) {
			return n, err
		}
		c.setDeadline(c.want) // it was an earlier one
	}
}

// setDeadline gives the connection a deadline of reading. The caller holds the
// lock.
func (c *conn) setDeadline(t time.Time) {
	c.set = t
	_ = c.Conn.SetReadDeadline(t) // if it is closed, reading says so
}

// rest notes that a request is under way. The caller holds the lock.
func (c *conn) rest() {
	c.quiet = time.Now()
	switch {
	case c.armed || c.closed:
		return
	case c.timer == nil:
		c.timer = time.AfterFunc(watchAfter, c.look)
	default:
		c.timer.Reset(watchAfter)
	}
	c.armed = true
}

// look begins to watch if the request that is under way has been so for long
// enough. The timer runs on from one request into the next.
func (c *conn) look() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = false
	if c.quiet.IsZero() || c.closed || c.watch != nil {
		return
	}
	if left := watchAfter - time.Since(c.quiet); left > 0 {
		c.timer.Reset(left)
		c.armed = true
		return
	}
	c.called = false
	c.watch = make(chan struct{})
	go c.read(c.watch) // ends with the next read, or the connection
}

// read waits for the client to leave, or to send the next request.
func (c *conn) read(done chan struct{}) {
	defer close(done)
	b := make([]byte, 1)
	for {
		n, err := c.Conn.Read(b)
		c.mu.Lock()
		late := errors.Is(err, os.ErrDeadlineExceeded)
		if n == 0 && late && !c.called {
			c.setDeadline(time.Time{}) // it was one of before
			c.mu.Unlock()
			continue
		}
		c.ahead = b[:n]
		if err != nil && !late {
			c.err = err
			c.leave()
		}
		c.mu.Unlock()
		return
	}
}

// aLongTimeAgo is a deadline that has passed.
var aLongTimeAgo = time.Unix(1, 0)

// callBack ends the watch and waits for that. The caller holds the lock, which is
// given up meanwhile.
func (c *conn) callBack() {
	c.called = true
	c.setDeadline(aLongTimeAgo)
	watch := c.watch
	c.mu.Unlock()
	<-watch
	c.mu.Lock()
	c.watch = nil
	c.setDeadline(c.want)
}

// SetReadDeadline sets the deadline of reading. The connection gets it when a read
// waits for which it matters.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.want = t
	if c.reading && !t.IsZero() && (c.set.IsZero() || t.Before(c.set)) {
		c.setDeadline(t)
	}
	return nil
}

// SetWriteDeadline sets the deadline of writing, but does not take one away that is
// not there.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.IsZero() && !c.written {
		return nil
	}
	c.written = !t.IsZero()
	return c.Conn.SetWriteDeadline(t)
}

// SetDeadline sets both deadlines.
func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// CloseWrite tells the client that nothing more comes, where the connection can.
func (c *conn) CloseWrite() error {
	if h, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return errors.ErrUnsupported
}

// Close closes the connection. When it returns, nothing of it is left.
func (c *conn) Close() error {
	c.mu.Lock()
	c.closed = true
	if c.timer != nil {
		c.timer.Stop()
	}
	watch := c.watch
	c.mu.Unlock()
	err := c.Conn.Close()
	if c.leave != nil {
		c.leave()
	}
	if watch != nil {
		<-watch
	}
	return err
}
