package gateway_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/specbox/specbox/gateway"
)

// A network is a listener without a network, so that time can be virtual.
type network struct {
	conns chan net.Conn
	done  chan struct{}
	close func()
}

func newNetwork(t *testing.T, g *gateway.Gateway) *network {
	n := &network{conns: make(chan net.Conn), done: make(chan struct{})}
	n.close = sync.OnceFunc(func() { close(n.done) })
	h := &http.Server{Handler: g, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 10 * time.Minute, ConnContext: gateway.ConnContext}
	served := make(chan error)
	go func() { served <- h.Serve(gateway.Listener(n)) }()
	t.Cleanup(func() {
		_ = h.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return n
}

func (n *network) Accept() (net.Conn, error) {
	select {
	case c := <-n.conns:
		return c, nil
	case <-n.done:
		return nil, net.ErrClosed
	}
}

func (n *network) Close() error   { n.close(); return nil }
func (n *network) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

func (n *network) dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	n.conns <- far
	return near, nil
}

// A caller is a raw client on one connection.
type caller struct {
	t    *testing.T
	conn net.Conn
	r    *bufio.Reader
	key  string
}

func (n *network) call(t *testing.T) *caller {
	conn, _ := n.dial(t.Context(), "", "")
	return &caller{t: t, conn: conn, r: bufio.NewReader(conn)}
}

// begin sends the head of a request and a part of its body.
func (c *caller) begin(method string, length int, part string) {
	head := fmt.Sprintf("%s /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\nContent-Length: %d\r\n", method, length)
	if c.key != "" {
		head += "Mcp-Session-Id: " + c.key + "\r\n"
	}
	if _, err := io.WriteString(c.conn, head+"\r\n"+part); err != nil {
		c.t.Error(err)
	}
}

func (c *caller) post(body string) *http.Response {
	c.t.Helper()
	c.begin("POST", len(body), body)
	return c.response()
}

func (c *caller) response() *http.Response {
	c.t.Helper()
	r, err := http.ReadResponse(c.r, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	return r
}

func (c *caller) text(r *http.Response) string {
	c.t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		c.t.Error(err)
	}
	return string(b)
}

func (c *caller) initialize() {
	c.t.Helper()
	r := c.post(initializeBody)
	c.text(r)
	c.key = r.Header.Get("Mcp-Session-Id")
}

func TestAbruptDeathsLeaveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &server{}
		g, _ := newGateway(t, srv, func(c *gateway.Config) { c.Limits.Idle = time.Minute })
		n := newNetwork(t, g)
		const clients = 200
		for i := range clients {
			c := n.call(t)
			c.initialize()
			extra := &caller{t: t, key: c.key}
			switch i % 4 {
			case 0: // in the middle of a call
				c.begin("POST", 0, "")
				c.text(c.response())
				body := call("1", "wait", "{}")
				c.begin("POST", len(body), body)
			case 1: // in the middle of a body
				c.begin("POST", 1000, `{"jsonrpc":`)
			case 2: // while it listens
				c.begin("GET", 0, "")
				c.response()
			case 3: // in the middle of a stream, and while it listens
				extra.conn, _ = n.dial(t.Context(), "", "")
				extra.r = bufio.NewReader(extra.conn)
				extra.begin("GET", 0, "")
				extra.response()
				body := call("1", "size", `{"n":1000000}`)
				c.begin("POST", len(body), body)
				_, _ = c.r.ReadString('\n')
			}
			synctest.Wait()
			_ = c.conn.Close()
			if extra.conn != nil {
				_ = extra.conn.Close()
			}
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if st := g.Stats(); st != (gateway.Stats{}) {
			t.Errorf("left behind: %+v", st)
		}
		for _, f := range srv.all() {
			if _, _, closes := f.seen(); closes != 1 {
				t.Errorf("a session was closed %d times", closes)
			}
		}
	}) // the bubble fails if a goroutine is left
}

func TestSlowBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := newGateway(t, &server{}, nil)
		n := newNetwork(t, g)
		c := n.call(t)
		c.initialize()
		began := time.Now()
		c.begin("POST", 1000, `{"jsonrpc":`)
		r := c.response()
		text := c.text(r)
		_, e := errorOf(t, []byte(text))
		if r.StatusCode != http.StatusRequestTimeout || time.Since(began) != 30*time.Second || !strings.Contains(e.Message, "too slowly") {
			t.Errorf("after %v: %d %s", time.Since(began), r.StatusCode, text)
		}
		_ = c.conn.Close()
	})
}

func TestAClientThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := newGateway(t, &server{}, nil)
		n := newNetwork(t, g)
		for _, body := range []string{
			call("1", "size", `{"n":10000000}`),
			`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"progress","arguments":{"n":9},"_meta":{"progressToken":1}}}`,
		} {
			c := n.call(t)
			c.initialize()
			c.begin("POST", len(body), body)
			synctest.Wait()
			time.Sleep(59 * time.Second)
			if s := g.Sessions(); len(s) != 1 || !s[0].Connected {
				t.Errorf("before its time: %+v", s)
			}
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if s := g.Sessions(); len(s) != 1 || s[0].Connected {
				t.Errorf("a client that does not read counts as there: %+v", s)
			}
			g.CloseSessions(func(gateway.SessionInfo) bool { return true })
			_ = c.conn.Close()
		}
	})
}

// TestAConnectionServesForLong tries what deadlines of one request can do to the
// next one on its connection.
func TestAConnectionServesForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := newGateway(t, &server{}, func(c *gateway.Config) { c.Limits.Body = 100_000 })
		n := newNetwork(t, g)
		c := n.call(t)
		c.initialize()
		for range 2 {
			for _, body := range []string{
				call("1", "log", "{}"), call("1", "size", `{"n":5000}`), call("1", "size", `{"n":5000000}`),
				call("1", "wait", `{"n":200000}`), call("1", "echo", `{}`), call("1", "echo", `"`+strings.Repeat("x", 1_000_000)+`"`),
			} {
				var wg sync.WaitGroup
				wg.Go(func() { c.begin("POST", len(body), body) })
				r := c.response()
				if text := c.text(r); !strings.Contains(text, `"id":1`) {
					t.Errorf("%.60s: %d %.60s", body, r.StatusCode, text)
				}
				wg.Wait()
				time.Sleep(5 * time.Minute)
			}
		}
		_ = c.conn.Close()
	})
}

func TestStreamsStayAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &server{}
		g, _ := newGateway(t, srv, nil)
		n := newNetwork(t, g)
		c := n.call(t)
		c.initialize()
		c.begin("GET", 0, "")
		r := c.response()
		lines := bufio.NewReader(r.Body)
		began := time.Now()
		for _, want := range []string{": working", ": keep-alive", ": keep-alive"} {
			line, err := lines.ReadString('\n')
			for err == nil && !strings.HasPrefix(line, ":") { // what brings an id
				line, err = lines.ReadString('\n')
			}
			if err != nil || line != want+"\n" {
				t.Errorf("got %q %v, want %q", line, err, want)
			}
		}
		if d := time.Since(began); d != 30*time.Second {
			t.Errorf("two signs of life took %v", d)
		}
		time.Sleep(10 * time.Minute) // the client reads nothing, and the pipe holds nothing
		synctest.Wait()
		if s := g.Sessions(); s[0].Connected {
			t.Error("a listener that does not read counts as there")
		}
		_ = c.conn.Close()

		again := n.call(t)
		again.key = c.key
		again.begin("GET", 0, "")
		lines = bufio.NewReader(again.response().Body)
		go func() { _ = srv.last(t).background.Send([]byte(`{"jsonrpc":"2.0","method":"news"}`)) }()
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(line, "news") {
				break
			}
		}
		_ = again.conn.Close()
	})
}
