package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	house "github.com/specbox/specbox"
	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/wire"
)

// A home is a whole house in this process, over a nasty server, with two clients
// that behave, one of each era.
type home struct {
	*house.Runtime
	legacy     *client
	modern     *modernClient
	goroutines int // with nobody there but the two
	calls      atomic.Int64
}

// inhabit starts a house. It ends with the test, and must then leave nothing.
func inhabit(t testing.TB) *home {
	t.Helper()
	before := runtime.NumGoroutine()
	yaml := fmt.Sprintf("servers:\n  nasty:\n    command: %s\n    prefix: \"\"\n    isolation: none\nlimits:\n  request: 1MiB\n", nasty)
	cfg, faults := config.Parse("fuzz.yaml", []byte(yaml), func(string) (string, bool) { return "", false })
	if fatal := config.Fatal(faults); len(fatal) > 0 {
		t.Fatal(fatal)
	}
	cfg.Listen = "127.0.0.1:0"
	r, err := house.New(house.Options{Config: cfg, State: t.TempDir(), Offline: true, Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	h := &home{Runtime: r}
	t.Cleanup(func() {
		if h.legacy != nil {
			h.legacy.http.CloseIdleConnections()
			h.modern.http.CloseIdleConnections()
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the house ended: %v", err)
		}
		h.settle(t, before)
	})
	<-r.Ready()
	<-r.Prepared()
	idle := func() *http.Client { return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}} }
	h.legacy = &client{url: r.URL(), http: idle()}
	h.modern = &modernClient{url: r.URL(), conversation: "well-behaved", capabilities: "{}", http: idle()}
	if _, err := h.legacy.request(ctx, "initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"good","version":"1"}}`); err != nil {
		t.Fatal(err)
	}
	h.behave(t)
	h.goroutines = runtime.NumGoroutine()
	return h
}

// slack is how many goroutines come and go with connections that are closing.
const slack = 30

// settle waits until no more goroutines are there than were, give or take a few.
func (h *home) settle(t testing.TB, before int) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	late := time.After(20 * time.Second)
	for runtime.NumGoroutine() > before+slack {
		select {
		case <-tick.C:
		case <-late:
			buf := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, and %d before:\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
		}
	}
}

// behave lets both good clients call at once, and looks whether each gets what
// is its own.
func (h *home) behave(t testing.TB) {
	t.Helper()
	n := h.calls.Add(1)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var work sync.WaitGroup
	for era, request := range map[string]func(context.Context, string, string) ([]byte, error){"legacy": h.legacy.request, "modern": h.modern.request} {
		work.Go(func() {
			args := fmt.Sprintf(`{"of":%q,"n":%d}`, era, n)
			got, err := request(ctx, "tools/call", callParams("echo", args))
			if err != nil || !bytes.Contains(got, []byte(`"arguments":`+args)) {
				t.Errorf("the good client of the %s era sent %s and got %s, %v", era, args, got, err)
			}
		})
	}
	work.Wait()
}

// pieces cuts b where seed says, so that every split of it comes about.
func pieces(b []byte, seed uint64) [][]byte {
	r := rand.New(rand.NewPCG(seed, 0))
	var out [][]byte
	for len(b) > 0 {
		n := min(len(b), 1+r.IntN(1+len(b)/(1+int(seed%16))))
		out, b = append(out, b[:n]), b[n:]
	}
	return out
}

// patience is how long a request may go unanswered before it counts as one that
// is not whole.
const patience = 30 * time.Millisecond

// raw sends bytes to the agents' door in pieces and returns what came back. It
// ends its half of the connection when there is an answer, or none in a while:
// one that ends it before has cancelled its request.
func (h *home) raw(t testing.TB, b []byte, seed uint64) []byte {
	t.Helper()
	c, err := net.Dial("tcp", h.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	sent, answered := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(sent)
		for _, p := range pieces(b, seed) {
			if _, err := c.Write(p); err != nil {
				break // it was turned away
			}
		}
		select {
		case <-answered:
		case <-time.After(patience):
		}
		_ = c.(*net.TCPConn).CloseWrite()
	}()
	got := make([]byte, 4096)
	n, err := c.Read(got)
	close(answered)
	got = got[:n]
	if err == nil {
		var rest []byte
		rest, err = io.ReadAll(c)
		got = append(got, rest...)
	}
	if e, ok := err.(net.Error); ok && e.Timeout() {
		t.Errorf("no end of the answer to %.300q, but %.300q", b, got)
	}
	c.Close()
	<-sent
	return got
}

const modernBody = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"a":1},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`

// bodies are messages of which something can be wrong.
var bodies = []string{
	callBody("1", "echo", `{"a":1}`), modernBody, "", "{", "[[[[", `{"jsonrpc":"2.0"`, "\xff\xfe", `{"jsonrpc":"2.0","id":1,"method":"\ud800"}`,
	strings.Repeat("[", 5000), strings.Repeat(`{"a":`, 5000), `{"jsonrpc":"2.0","id":1,"method":"ping","params":` + strings.Repeat("[", 900) + strings.Repeat("]", 900) + `}`,
	`[` + strings.Repeat(`{"jsonrpc":"2.0","id":1,"method":"ping"},`, 50) + `{}]`,
	`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"f","version":"1"}}}`,
	`{"jsonrpc":"2.0","id":"specbox-1","result":{}}`, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`,
	`{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{}}}`,
	`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{},"requestState":"forged","inputResponses":{"q1":{}}}}`,
}

func httpRequest(body string, headers ...string) string {
	return "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n" +
		strings.Join(append(headers, ""), "\r\n") + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body)
}

// FuzzHTTP sends anything to the agents' door, split anywhere. It must neither
// fall nor mind: the good clients get their own answers, and nothing is left.
func FuzzHTTP(f *testing.F) {
	for i, b := range bodies {
		f.Add([]byte(httpRequest(b)), uint64(i))
		f.Add([]byte(httpRequest(b, "MCP-Protocol-Version: 2026-07-28", "Mcp-Method: tools/call", "Mcp-Name: echo")), uint64(i))
	}
	for i, s := range []string{
		"GET /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\nMcp-Session-Id: x\r\nLast-Event-ID: 9-9\r\n\r\n",
		"DELETE /mcp HTTP/1.1\r\nHost: localhost\r\nMcp-Session-Id: \r\n\r\n",
		"POST /s/key/mcp HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"jso\r\nffffffffff\r\n",
		"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999999\r\n\r\n{", "POST /mcp HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
		"POST /mcp HTTP/1.1\r\n" + strings.Repeat("X: y\r\n", 5000), "\x00\x01\x02", "", "GET /mcp/%2e%2e HTTP/1.0\r\n\r\n",
		"POST /mcp HTTP/1.1\r\nHost: localhost\r\nMcp-Name: =?base64?!!?=\r\nContent-Length: 2\r\n\r\n{}" + httpRequest(bodies[0]),
	} {
		f.Add([]byte(s), uint64(i))
	}
	h := inhabit(f)
	whole := httpRequest(modernBody, "MCP-Protocol-Version: 2026-07-28", "Mcp-Method: tools/call", "Mcp-Name: echo")
	got := h.raw(f, []byte(whole), 3)
	for try := 0; try < 5 && !bytes.Contains(got, []byte("arguments")); try++ { // its server had to start
		got = h.raw(f, []byte(whole), 3)
	}
	if !bytes.Contains(got, []byte(`"arguments":{"a":1}`)) {
		f.Fatalf("what is right was answered with %s", got)
	}
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		got := h.raw(t, b, seed)
		if len(got) > 0 && !bytes.HasPrefix(got, []byte("HTTP/1.")) {
			t.Errorf("%.300q was answered with %.300q", b, got)
		}
		if bytes.Contains(got, []byte("HTTP/1.1 500")) {
			t.Errorf("%.300q met a fault: %.300q", b, got)
		}
		h.behave(t)
		h.settle(t, h.goroutines)
	})
}

// FuzzServerOutput lets a server print anything between its messages.
func FuzzServerOutput(f *testing.F) {
	for _, b := range bodies {
		f.Add(b)
	}
	for _, s := range []string{
		"\n\n\r\n", "{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"ping\"}", `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1}}`,
		`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`, "{" + strings.Repeat("x", 100_000), strings.Repeat("noise ", 20_000),
		`{"jsonrpc":"2.0","id":99,"result":{}}` + "\n" + `{"jsonrpc":"2.0","id":1,"error":{"code":0,"message":""}}`,
		`{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{}}`, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":{}}}`,
	} {
		f.Add(s)
	}
	h := inhabit(f)
	victim := 0
	f.Fuzz(func(t *testing.T, text string) {
		victim++
		c := &modernClient{url: h.URL(), conversation: fmt.Sprintf("victim-%d", victim%8), capabilities: "{}", http: h.modern.http}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		// What such a server makes of its own calls is its affair.
		_, _ = c.once(ctx, "tools/call", callParams("print", `{"text":`+string(wire.Quote(text))+`}`))
		if ctx.Err() != nil {
			t.Errorf("no answer after the server printed %.300q", text)
		}
		h.behave(t)
	})
}

// FuzzStdin sends anything to a house that serves standard input, split
// anywhere, and then a request that has to be answered.
func FuzzStdin(f *testing.F) {
	for i, b := range bodies {
		f.Add([]byte(b+"\n"), uint64(i))
		f.Add([]byte(b), uint64(i))
	}
	yaml := fmt.Sprintf("servers:\n  nasty:\n    command: %s\n    prefix: \"\"\n    isolation: none\nlimits:\n  request: 1MiB\n", nasty)
	cfg, faults := config.Parse("fuzz.yaml", []byte(yaml), func(string) (string, bool) { return "", false })
	if fatal := config.Fatal(faults); len(fatal) > 0 {
		f.Fatal(fatal)
	}
	state := f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		r, err := house.New(house.Options{Config: cfg, State: state, Offline: true, Version: "test"})
		if err != nil {
			t.Fatal(err)
		}
		in, write := io.Pipe()
		var out bytes.Buffer
		done := make(chan error, 1)
		go func() { done <- r.ServeStdio(t.Context(), in, &out) }()
		last := []byte("\n" + `{"jsonrpc":"2.0","id":"the last one","method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}` + "\n")
		for _, p := range append(pieces(b, seed), last) {
			if _, err := write.Write(p); err != nil {
				t.Fatalf("%.300q was not read to its end: %v", b, err)
			}
		}
		_ = write.Close()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("after %.300q: %v", b, err)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("it does not end after %.300q", b)
		}
		if n := bytes.Count(out.Bytes(), []byte(`"id":"the last one"`)); n != 1 {
			t.Errorf("after %.300q the last request has %d answers: %.500q", b, n, out.Bytes())
		}
		for line := range bytes.Lines(out.Bytes()) {
			if !wire.Valid(bytes.TrimSpace(line)) {
				t.Errorf("after %.300q it wrote %.300q", b, line)
			}
		}
	})
}

// Clients that dawdle, and those that never end what they began, hold up nobody.
func TestDawdlersHoldUpNobody(t *testing.T) {
	h := inhabit(t)
	var work sync.WaitGroup
	stop := make(chan struct{})
	var dawdled atomic.Int64 // bytes
	const dawdlers = 200
	for i := range dawdlers {
		c, err := net.Dial("tcp", h.Addr())
		if err != nil {
			t.Fatal(err)
		}
		work.Go(func() {
			defer c.Close()
			text := []string{
				"POST /mcp HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
				"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n{",
				"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
				"",
			}[i%4]
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for n := 0; ; n++ {
				b := byte('x')
				if n < len(text) {
					b = text[n]
				}
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
				dawdled.Add(1)
				select {
				case <-tick.C:
				case <-stop:
					return
				}
			}
		})
	}
	for dawdled.Load() < 100*dawdlers {
		began := time.Now()
		h.behave(t)
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("a call took %v", took)
		}
	}
	close(stop)
	work.Wait()
	h.settle(t, h.goroutines)
}
