package gateway_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/specbox/specbox/gateway"
	"github.com/specbox/specbox/wire"
)

// resume is a GET that goes on behind the event of that id; without one it opens
// a new stream.
func (c *client) resume(ctx context.Context, w http.ResponseWriter, id string) {
	r := c.request(ctx, http.MethodGet, "")
	if id != "" {
		r.Header.Set("Last-Event-ID", id)
	}
	c.g.ServeHTTP(w, r)
}

// resumed returns what a GET brought until it ended, or within a second.
func (c *client) resumed(id string) *httptest.ResponseRecorder {
	ctx, leave := context.WithTimeout(c.t.Context(), time.Second)
	defer leave()
	w := httptest.NewRecorder()
	c.resume(ctx, w, id)
	return w
}

// begin posts a call and returns when the client has left, after d.
func (c *client) begin(d time.Duration, body string) *httptest.ResponseRecorder {
	ctx, leave := context.WithTimeout(c.t.Context(), d)
	w := &parting{ResponseRecorder: httptest.NewRecorder(), ctx: ctx}
	go func() {
		defer leave()
		c.g.ServeHTTP(w, c.request(ctx, http.MethodPost, body))
	}()
	<-ctx.Done()
	synctest.Wait()
	return w.ResponseRecorder
}

// A parting is a connection that takes nothing after its client left.
type parting struct {
	*httptest.ResponseRecorder
	ctx context.Context
}

func (p *parting) Write(b []byte) (int, error) {
	if err := p.ctx.Err(); err != nil {
		return 0, err
	}
	return p.ResponseRecorder.Write(b)
}

// A stream is a response that may be read while it grows.
type stream struct {
	mu sync.Mutex
	w  *httptest.ResponseRecorder
}

func newStream() *stream { return &stream{w: httptest.NewRecorder()} }

func (s *stream) Header() http.Header  { return s.w.Header() }
func (s *stream) WriteHeader(code int) { s.w.WriteHeader(code) }
func (s *stream) Flush()               {}

func (s *stream) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(b)
}

func (s *stream) messages() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return messages(s.w.Body.Bytes())
}

func TestAnAnswerThatItsClientMissedIsResumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := newGateway(t, &server{}, nil)
		c := newClient(t, g).initialize("2025-11-25")
		w := c.begin(2*time.Second, call("7", "wait", `{"n":5000}`))
		if got := w.Body.String(); got != "id: 1-0\nretry: 500\ndata: \n\n" {
			t.Fatalf("the client heard %q", got)
		}
		if got := c.resumed("1-0"); got.Code != 200 || len(messages(got.Body.Bytes())) != 0 {
			t.Errorf("before there is an answer: %d %q", got.Code, got.Body)
		}
		time.Sleep(5 * time.Second)
		const reply = `{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":"waited"}]}}`
		start := time.Now()
		for range 2 { // its connection may break again
			got := messages(c.resumed("1-0").Body.Bytes())
			if len(got) != 1 || got[0] != reply {
				t.Errorf("resumed: %q", got)
			}
		}
		if got := c.resumed("1-1"); got.Code != 200 || len(messages(got.Body.Bytes())) != 0 {
			t.Errorf("behind the answer: %d %q", got.Code, got.Body)
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("a stream with its answer stays open for %v", d)
		}
		time.Sleep(2*time.Minute + 1)
		if got := c.resumed("1-0"); got.Code != 400 {
			t.Errorf("long afterwards: %d %q", got.Code, got.Body)
		}
	})
}

func TestACallOutlivesTheTimeForResumption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := newGateway(t, &server{}, nil)
		c := newClient(t, g).initialize("2025-11-25")
		c.begin(2*time.Second, call("7", "wait", `{"n":600000}`))
		time.Sleep(10*time.Minute + 10*time.Second)
		if got := messages(c.resumed("1-0").Body.Bytes()); len(got) != 1 || !strings.Contains(got[0], "waited") {
			t.Errorf("resumed: %q", got)
		}
	})
}

func TestIDsThatCannotBeResumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := newGateway(t, &server{}, nil)
		c := newClient(t, g).initialize("2025-11-25")
		other := newClient(t, g).initialize("2025-11-25")
		c.begin(2*time.Second, call("7", "wait", `{"n":1500}`))
		for _, id := range []string{"1", "-", "1-", "-1", "1-2", "2-0", "0-0", "1--1", "1-0-0", "a-b", "99999999999999999999-1", strings.Repeat("9", 1000), "é"} {
			w := c.resumed(id)
			if _, e := errorOf(t, w.Body.Bytes()); w.Code != 400 || e.Code != -32600 {
				t.Errorf("%q: %d %s", id, w.Code, w.Body)
			}
		}
		if w := other.resumed("1-0"); w.Code != 400 {
			t.Errorf("another session resumed the stream: %d %q", w.Code, w.Body)
		}
		c.accept = "application/json"
		c.begin(2*time.Second, call("8", "wait", `{"n":1500}`))
		c.accept = "text/event-stream"
		if w := c.resumed("2-0"); w.Code != 400 {
			t.Errorf("something is kept for a client that takes JSON alone: %d %q", w.Code, w.Body)
		}
	})
}

func TestWhatNobodyCameBackForGoesElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &server{}
		g, _ := newGateway(t, srv, nil)
		c := newClient(t, g).initialize("2025-11-25")
		listening := newStream()
		go c.resume(t.Context(), listening, "")
		synctest.Wait()
		body := strings.Replace(call("7", "late", `{}`), `"arguments"`, `"_meta":{"progressToken":"p"},"arguments"`, 1)
		c.begin(2*time.Second, body)
		time.Sleep(3 * time.Second) // the request was made
		synctest.Wait()
		if got := listening.messages(); len(got) != 0 {
			t.Errorf("what may be resumed went elsewhere: %q", got)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		got := listening.messages()
		if len(got) != 1 || !strings.Contains(got[0], "roots/list") {
			t.Fatalf("the other stream got %q", got)
		}
		c.post(`{"jsonrpc":"2.0","id":` + string(wire.Get([]byte(got[0]), "id")) + `,"result":{"roots":[]}}`)
		synctest.Wait()
		if got := messages(c.resumed("2-0").Body.Bytes()); len(got) != 1 || !strings.Contains(got[0], `"id":7`) {
			t.Errorf("resumed: %q", got)
		}
		c.do(t.Context(), http.MethodDelete, "")
	})
}

func TestAStreamHasOneReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &server{}
		g, _ := newGateway(t, srv, nil)
		c := newClient(t, g).initialize("2025-11-25")
		send := func(n int) {
			_ = srv.last(t).background.Send(fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"n%d"}`, n))
			synctest.Wait()
		}
		first, second := newStream(), newStream()
		over := make(chan struct{})
		go func() { defer close(over); c.resume(t.Context(), first, "") }()
		synctest.Wait()
		send(1)
		send(2)
		go c.resume(t.Context(), second, "1-1") // the connection of the first is dead, and nobody noticed
		<-over
		synctest.Wait()
		send(3)
		if got := fmt.Sprint(first.messages()); strings.Contains(got, "n3") || !strings.Contains(got, "n2") {
			t.Errorf("the first: %s", got)
		}
		if got := second.messages(); len(got) != 2 || !strings.Contains(got[0], "n2") || !strings.Contains(got[1], "n3") {
			t.Errorf("the second: %q", got)
		}
		if n := g.Stats().Streams; n != 1 {
			t.Errorf("%d streams", n)
		}
		c.do(t.Context(), http.MethodDelete, "")
	})
}

func TestWhatIsKeptIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &server{}
		g, _ := newGateway(t, srv, func(c *gateway.Config) { c.Limits.Replay = 10_000; c.Limits.Body = 100_000 })
		c := newClient(t, g).initialize("2025-11-25")
		body := strings.Replace(call("1", "progress", `{"n":400}`), `"arguments"`, `"_meta":{"progressToken":"p"},"arguments"`, 1)
		c.post(body)
		if w := c.resumed("1-1"); w.Code != 400 {
			t.Errorf("an event over the limit is kept: %d", w.Code)
		}
		if got := messages(c.resumed("1-390").Body.Bytes()); len(got) != 11 {
			t.Errorf("behind the event 390 of 401: %d", len(got))
		}
		ctx, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		go c.resume(ctx, httptest.NewRecorder(), "") // track 2
		for range 30 {
			synctest.Wait()
			_ = srv.last(t).background.Send(fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"n","params":{"x":"%01000d"}}`, 0))
		}
		<-ctx.Done()
		synctest.Wait()
		if w := c.resumed("2-1"); w.Code != 400 {
			t.Errorf("more events are kept than the limit allows: %d", w.Code)
		}
		if got := messages(c.resumed("2-25").Body.Bytes()); len(got) != 5 {
			t.Errorf("behind the event 25 of 30: %d", len(got))
		}
		c.begin(2*time.Second, call("2", "later", `{"n":60000}`)) // track 3, over both limits
		c.begin(2*time.Second, call("3", "later", `{"n":60000}`))
		time.Sleep(10 * time.Second)
		if w := c.resumed("3-0"); w.Code != 400 {
			t.Errorf("more answers are kept than the limit allows: %d", w.Code)
		}
		if w := c.resumed("4-0"); w.Body.Len() < 60_000 {
			t.Errorf("a large answer that its client missed: %d %.200q", w.Code, w.Body)
		}
		for i := range 80 { // streams that nobody reads
			c.begin(1100*time.Millisecond, call("4", "wait", fmt.Sprintf(`{"n":%d}`, 2000+i)))
		}
		if w := c.resumed("4-1"); w.Code != 400 {
			t.Errorf("one of too many streams: %d", w.Code)
		}
	})
}

// What waits for clients to come back is bounded over all sessions too, and the
// room is given back.
func TestWhatAllSessionsKeepIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := newGateway(t, &server{}, func(c *gateway.Config) { c.Limits.Body = 100_000 })
		kept := func() (n int) {
			for range 10 {
				c := newClient(t, g).initialize("2025-11-25")
				c.begin(2*time.Second, call("2", "later", `{"n":80000}`))
				time.Sleep(5 * time.Second)
				if w := c.resumed("1-0"); w.Body.Len() > 80_000 {
					n++ // it was read, and need not wait any more
				}
				c.begin(2*time.Second, call("3", "later", `{"n":80000}`)) // it waits to the end
				time.Sleep(5 * time.Second)
			}
			return n
		}
		if n := kept(); n != 5 {
			t.Errorf("of ten sessions %d had room for an answer beside those that wait; want 5", n)
		}
		g.CloseSessions(func(gateway.SessionInfo) bool { return true })
		if n := kept(); n != 5 {
			t.Errorf("after all sessions have ended, %d had room; want 5", n)
		}
	})
}

// A cutter is a proxy that cuts connections after some bytes, for as long as it
// has cuts.
type cutter struct {
	net.Listener
	target string
	work   sync.WaitGroup

	mu     sync.Mutex
	rng    *rand.Rand
	cuts   int
	offset int // from which on it cuts the first
}

func newCutter(t *testing.T, target string, seed uint64, cuts, offset int) *cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{Listener: l, target: strings.TrimPrefix(target, "http://"), rng: rand.New(rand.NewPCG(seed, 0)), cuts: cuts, offset: offset}
	c.work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			c.work.Go(func() { c.carry(conn) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); c.work.Wait() })
	return c
}

func (c *cutter) after() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cuts == 0 {
		return 1 << 40
	}
	c.cuts--
	n := c.offset + c.rng.IntN(900)
	c.offset = 0
	return int64(n)
}

func (c *cutter) carry(conn net.Conn) {
	defer conn.Close()
	up, err := net.Dial("tcp", c.target)
	if err != nil {
		return
	}
	defer up.Close()
	c.work.Go(func() {
		_, _ = io.Copy(up, conn)
		_ = up.Close()
	})
	_, _ = io.CopyN(conn, up, c.after())
}

// An ear collects the events of one stream over many connections.
type ear struct {
	t      *testing.T
	client *http.Client
	url    string
	key    string
	last   string // id
	heard  []string
}

// hear sends a request and collects until its response ends or enough returns
// true. It reports whether the latter was so.
func (e *ear) hear(body string, enough func() bool) bool {
	method := http.MethodGet
	if body != "" {
		method = http.MethodPost
	}
	ctx, leave := context.WithTimeout(e.t.Context(), 10*time.Second)
	defer leave()
	r, err := http.NewRequestWithContext(ctx, method, e.url, strings.NewReader(body))
	if err != nil {
		e.t.Fatal(err)
	}
	r.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"text/event-stream"}, "Mcp-Session-Id": {e.key}}
	if body == "" && e.last != "" {
		r.Header.Set("Last-Event-ID", e.last)
	}
	w, err := e.client.Do(r)
	if err != nil {
		return false
	}
	defer w.Body.Close()
	if w.StatusCode != 200 {
		b, _ := io.ReadAll(w.Body)
		e.t.Fatalf("%s behind %q: %d %s", method, e.last, w.StatusCode, b)
	}
	var id, data string
	for lines := bufio.NewScanner(w.Body); lines.Scan(); {
		field, value, _ := strings.Cut(lines.Text(), ": ")
		switch field {
		case "id":
			id = value
		case "data":
			data = value
		case "":
			if id != "" {
				e.last = id
			}
			if data != "" {
				e.heard = append(e.heard, data)
			}
			id, data = "", ""
			if enough() {
				return true
			}
		}
	}
	return false
}

// TestStreamsSurviveCuts holds that a client hears everything once, in order,
// wherever its connections break.
func TestStreamsSurviveCuts(t *testing.T) {
	srv := &server{}
	g, _ := newGateway(t, srv, nil)
	direct := listen(t, g)
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			key := open(t, direct+"/mcp")
			far := srv.last(t)
			const known = 500 // bytes after which the client knows how to come back
			e := &ear{t: t, url: "http://" + newCutter(t, direct, seed, 12, known).Addr().String() + "/mcp", key: key,
				client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
			const n = 40
			news := seed%2 == 0
			method := "notifications/progress"
			body := strings.Replace(call(`"x"`, "progress", fmt.Sprintf(`{"n":%d}`, n)), `"arguments"`, `"_meta":{"progressToken":"p"},"arguments"`, 1)
			want := n + 1
			if news { // what belongs to no request
				want, body = n, ""
				go func() {
					for i := range n {
						_ = far.background.Send(wire.NotificationParts(method, fmt.Appendf(nil, `{"progress":%d}`, i+1))...)
					}
				}()
			}
			enough := func() bool { return len(e.heard) >= want }
			for attempt := 0; !enough(); attempt++ {
				if attempt == 100 {
					t.Fatalf("after %d connections: %d of %d", attempt, len(e.heard), want)
				}
				if e.hear(body, enough); e.last == "" {
					t.Fatal("no event came through")
				}
				body = ""
			}
			for i, m := range e.heard {
				if i < n && string(wire.Get([]byte(m), "params", "progress")) != fmt.Sprint(i+1) || i == n && wire.Str([]byte(m), "id") != "x" {
					t.Fatalf("event %d is %s", i, m)
				}
			}
		})
	}
	g.CloseSessions(func(gateway.SessionInfo) bool { return true })
}

func TestTheOfficialClientResumes(t *testing.T) {
	srv := &server{}
	g, _ := newGateway(t, srv, nil)
	proxy := newCutter(t, listen(t, g), 1, 0, 0)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	c := connect(t, &mcp.StreamableClientTransport{Endpoint: "http://" + proxy.Addr().String() + "/mcp", HTTPClient: client})
	proxy.mu.Lock()
	proxy.cuts, proxy.offset = 1, 500 // which is among the first events
	proxy.mu.Unlock()
	p := &mcp.CallToolParams{Name: "progress", Arguments: map[string]any{"n": 30}}
	p.SetProgressToken("tok")
	r, err := c.CallTool(t.Context(), p)
	if err != nil || r.Content[0].(*mcp.TextContent).Text != "done" {
		t.Fatalf("got %v %v", r, err)
	}
	for i := range 30 {
		hear(t, c.progress, fmt.Sprint("tok ", i+1))
	}
	proxy.mu.Lock()
	defer proxy.mu.Unlock()
	if proxy.cuts != 0 {
		t.Error("nothing was cut")
	}
}

// FuzzLastEventID holds that no id breaks or holds up anything.
func FuzzLastEventID(f *testing.F) {
	for _, s := range []string{"", "1-0", "1-1", "1-2", "0-0", "-1-1", "1", "1-999999999999999999999", "9223372036854775807-9223372036854775807", "\x00", "1-0\n"} {
		f.Add(s)
	}
	g, _ := newGateway(f, &server{}, nil)
	c := newClient(f, g).initialize("2025-11-25")
	c.post(call("1", "log", "{}"))
	c.accept = "text/event-stream"
	f.Fuzz(func(t *testing.T, id string) {
		ctx, leave := context.WithTimeout(t.Context(), 10*time.Second)
		defer leave()
		r := c.request(ctx, http.MethodGet, "")
		r.Header["Last-Event-Id"] = []string{id}
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)
		if w.Code != 200 && w.Code != 400 || ctx.Err() != nil {
			t.Fatalf("%q: %d %q", id, w.Code, w.Body)
		}
	})
}
