package gateway_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/specbox/specbox/gateway"
	"github.com/specbox/specbox/wire"
)

// modernHead is a modern request for the connection of a raw client.
func modernHead(body string) string {
	return fmt.Sprintf("POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"+
		"Mcp-Protocol-Version: %s\r\nMcp-Method: tools/call\r\nMcp-Name: wait\r\nContent-Length: %d\r\n\r\n%s", wire.Modern, len(body), body)
}

// A client that leaves gives its request up, whenever it leaves.
func TestAClientThatLeavesIsNoticed(t *testing.T) {
	const noticed = 50 * time.Millisecond
	for after, want := range map[time.Duration]time.Duration{
		0: noticed, 10 * time.Millisecond: noticed, noticed - 1: noticed, noticed + 1: noticed + 1, 70 * time.Second: 70 * time.Second, 20 * time.Minute: 20 * time.Minute,
	} {
		synctest.Test(t, func(t *testing.T) {
			srv := &server{}
			g, _ := newGateway(t, srv, nil)
			c := newNetwork(t, g).call(t)
			for range 3 { // the connection has served before
				c.initialize()
				time.Sleep(2 * time.Millisecond)
			}
			began := time.Now()
			if _, err := io.WriteString(c.conn, modernHead(use("1", "wait", "{}"))); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			f := srv.last(t)
			<-f.waiting
			time.Sleep(after)
			_ = c.conn.Close()
			if cause := <-f.ended; !errors.As(cause, new(wire.Cancelled)) {
				t.Errorf("left after %v: its call ended with %v", after, cause)
			}
			if took := time.Since(began); took != want {
				t.Errorf("left after %v: noticed after %v, want %v", after, took, want)
			}
		})
	}
}

// Requests that a client sends before it has its answers are served in order,
// whether they come before the client is watched, or after.
func TestPipelinedRequests(t *testing.T) {
	for _, pause := range []time.Duration{0, 10 * time.Millisecond, 200 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			g, _ := newGateway(t, &server{}, nil)
			c := newNetwork(t, g).call(t)
			c.initialize()
			go func() {
				for id := range 4 {
					body := call(fmt.Sprint(id), "wait", `{"n":300}`)
					c.begin("POST", len(body), body)
					time.Sleep(pause)
				}
			}()
			for id := range 4 {
				if text := c.text(c.response()); !strings.Contains(text, fmt.Sprintf(`"id":%d`, id)) {
					t.Errorf("pause %v: answer %d is %s", pause, id, text)
				}
			}
			_ = c.conn.Close()
		})
	}
}

// What net/http promises of time holds: clients that send half a head, or nothing
// any more, are hung up on in time.
func TestTimeoutsOfConnections(t *testing.T) {
	for name, tt := range map[string]struct {
		before int // requests
		send   string
		want   time.Duration
	}{
		"a head that does not end":         {0, "POST /mcp HTTP/1.1\r\nHost:", 10 * time.Second},
		"a head that does not end, later":  {3, "POST /mcp HTTP/1.1\r\nHost:", 10 * time.Second},
		"nothing more after some requests": {3, "", 10 * time.Minute},
	} {
		synctest.Test(t, func(t *testing.T) {
			g, _ := newGateway(t, &server{}, nil)
			c := newNetwork(t, g).call(t)
			for range tt.before {
				c.initialize()
				time.Sleep(time.Minute)
			}
			began := time.Now()
			if tt.before > 0 && tt.send == "" {
				began = began.Add(-time.Minute)
			}
			_, _ = io.WriteString(c.conn, tt.send)
			_, err := io.ReadAll(c.r)
			if took := time.Since(began); took != tt.want || err != nil {
				t.Errorf("%s: hung up on after %v, %v; want %v", name, took, err, tt.want)
			}
			_ = c.conn.Close()
		})
	}
}

// A head that fills the buffer of net/http up to a byte is read on.
func TestHeadsOfAnySize(t *testing.T) {
	g, _ := newGateway(t, &server{}, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &http.Server{Handler: g, ConnContext: gateway.ConnContext}
	served := make(chan error, 1)
	go func() { served <- h.Serve(gateway.Listener(l)) }()
	defer func() { _ = h.Close(); <-served }()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	r := bufio.NewReader(conn)
	for size := 4000; size < 4200; size++ {
		head := "GET /none HTTP/1.1\r\nHost: localhost\r\nX: "
		head += strings.Repeat("x", size-len(head))
		cut := min(4095, len(head))
		for _, part := range []string{head[:cut], head[cut:] + "\r\n\r\n"} {
			if _, err := io.WriteString(conn, part); err != nil {
				t.Fatal(err)
			}
		}
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatalf("size %d: %v", size, err)
		}
		if _, _ = io.Copy(io.Discard, res.Body); res.StatusCode != http.StatusNotFound {
			t.Errorf("size %d: %d", size, res.StatusCode)
		}
	}
}
