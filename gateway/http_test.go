package gateway_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/specbox/specbox/gateway"
	"github.com/specbox/specbox/trace"
	"github.com/specbox/specbox/wire"
)

func TestSessionLifeOverHTTP(t *testing.T) {
	srv := &server{}
	g, events := newGateway(t, srv, nil)
	c := newClient(t, g).initialize("2025-06-18")
	if w := c.post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`); w.Code != 202 || w.Body.Len() != 0 {
		t.Errorf("a notification is answered with %d %q", w.Code, w.Body)
	}
	w := c.post(call("1", "echo", `{"a":1}`))
	if got, want := w.Body.String(), `{"jsonrpc":"2.0","id":1,"result":{"a":1}}`; w.Code != 200 || got != want || w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("got %d %s %s, want %s", w.Code, w.Header(), got, want)
	}
	f := srv.last(t)
	if f.o.Tenant != gateway.DefaultTenant || f.o.Version != "2025-06-18" || f.o.Server != "" || wire.Str(f.o.Params, "clientInfo", "name") != "raw" {
		t.Errorf("opened with %+v", f.o)
	}
	if strings.Contains(f.o.Session, c.key) || !strings.HasPrefix(c.key, f.o.Session) || len(c.key) < 40 {
		t.Errorf("the key %q must be the name %q and a secret", c.key, f.o.Session)
	}
	if info := g.Sessions(); len(info) != 1 || info[0].Client != "raw 1" || info[0].Version != "2025-06-18" {
		t.Errorf("sessions: %+v", info)
	}
	if w := c.do(t.Context(), http.MethodDelete, ""); w.Code != 204 {
		t.Errorf("DELETE: %d %s", w.Code, w.Body)
	}
	posted, _, closes := f.seen()
	if len(posted) != 1 || closes != 1 {
		t.Errorf("posted %q, closed %d times", posted, closes)
	}
	for _, method := range []string{"POST", "GET", "DELETE"} {
		if w := c.do(t.Context(), method, call("1", "echo", "{}")); w.Code != 404 {
			t.Errorf("%s on an ended session: %d %s", method, w.Code, w.Body)
		}
	}
	var kinds []trace.Kind
	for _, e := range events.Events() {
		kinds = append(kinds, e.Kind)
		if strings.Contains(fmt.Sprint(e), c.key) {
			t.Errorf("the key stands in an event: %v", e)
		}
	}
	if fmt.Sprint(kinds) != "[session_open session_close]" {
		t.Errorf("events: %v", kinds)
	}
}

func TestFailedInitializeLeavesNoSession(t *testing.T) {
	for name, srv := range map[string]*server{
		"refused by the session": {initErr: true},
		"not opened":             {openErr: errors.New("the house is on fire")},
		"not opened, with code":  {openErr: wire.Errorf(-32042, "the house is on fire")},
	} {
		t.Run(name, func(t *testing.T) {
			g, events := newGateway(t, srv, nil)
			w := newClient(t, g).post(initializeBody)
			id, e := errorOf(t, w.Body.Bytes())
			if id != `"i"` || w.Header().Get("Mcp-Session-Id") != "" || len(g.Sessions()) != 0 || len(events.Events()) != 0 {
				t.Errorf("%d %v %s, %d sessions, events %v", w.Code, w.Header(), w.Body, len(g.Sessions()), events.Events())
			}
			if srv.openErr != nil && e.Message != srv.openErr.Error() {
				t.Errorf("told %q", e.Message)
			}
			for _, f := range srv.all() {
				if _, _, closes := f.seen(); closes != 1 {
					t.Errorf("closed %d times", closes)
				}
			}
		})
	}
}

func TestWhatAClientGetsToHear(t *testing.T) {
	g, _ := newGateway(t, &server{}, func(c *gateway.Config) { c.Limits.Body = 1000 })
	live := newClient(t, g).initialize("2025-11-25")
	old := newClient(t, g).initialize("2025-03-26")
	deep := call("1", "echo", strings.Repeat("[", 400)+strings.Repeat("]", 400))
	for _, test := range []struct {
		name   string
		change func(*http.Request)
		client *client // live if nil
		body   string
		status int
		code   int
		id     string
	}{
		{name: "not JSON", body: `{"jsonrpc":`, status: 400, code: -32700, id: "null"},
		{name: "empty", body: ``, status: 400, code: -32700, id: "null"},
		{name: "NUL", body: "\x00", status: 400, code: -32700, id: "null"},
		{name: "invalid UTF-8", body: "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}", status: 400, code: -32700, id: "null"},
		{name: "trailing garbage", body: call("1", "echo", "{}") + "x", status: 400, code: -32700, id: "null"},
		{name: "no version", body: `{"id":7,"method":"ping"}`, status: 400, code: -32600, id: "7"},
		{name: "neither request nor response", body: `{"jsonrpc":"2.0","id":7}`, status: 400, code: -32600, id: "7"},
		{name: "a string", body: `"hello"`, status: 400, code: -32600, id: "null"},
		{name: "null id", body: `{"jsonrpc":"2.0","id":null,"method":"ping"}`, status: 400, code: -32600, id: "null"},
		{name: "object id", body: `{"jsonrpc":"2.0","id":{},"method":"ping"}`, status: 400, code: -32600, id: "null"},
		{name: "params no object", body: `{"jsonrpc":"2.0","id":7,"method":"ping","params":[1]}`, status: 400, code: -32602, id: "7"},
		{name: "null params", body: `{"jsonrpc":"2.0","id":7,"method":"ping","params":null}`, status: 200, id: "7"},
		{name: "nested", body: deep, status: 200, id: "1"},
		{name: "batch in a revision without", body: "[" + call("1", "echo", "{}") + "]", status: 400, code: -32600, id: "null"},
		{name: "empty batch", client: old, body: "[]", status: 400, code: -32600, id: "null"},
		{name: "over the limit, id first", body: call("99", "echo", `"`+strings.Repeat("x", 9000)+`"`), status: 413, code: -32600, id: "99"},
		{name: "over the limit, id last", body: `{"method":"tools/call","params":{"id":3,"x":"` + strings.Repeat("x", 9000) + `"},"jsonrpc":"2.0","id":"a,\"b"}`, status: 413, code: -32600, id: `"a,\"b"`},
		{name: "over the limit, id inside only", body: `{"method":"tools/call","params":{"x":"` + strings.Repeat("x", 9000) + `","id":3}}`, status: 413, code: -32600, id: "null"},
		{name: "over the limit, a response", body: `{"jsonrpc":"2.0","result":"` + strings.Repeat("x", 9000) + `","id":3}`, status: 413, code: -32600, id: "null"},
		{name: "over the limit, undeclared", change: func(r *http.Request) { r.ContentLength = -1 }, body: call("99", "echo", `"`+strings.Repeat("x", 9000)+`"`), status: 413, code: -32600, id: "99"},
		{name: "over the limit, expectant", change: func(r *http.Request) { r.Header.Set("Expect", "100-continue") }, body: strings.Repeat("x", 9000), status: 413, code: -32600, id: "null"},
		{name: "no session id", client: newClient(t, g), body: call("5", "echo", "{}"), status: 400, code: -32600, id: "5"},
		{name: "unknown session id", client: &client{t: t, g: g, path: "/mcp", key: "nobody"}, body: call("5", "echo", "{}"), status: 404, code: -32001, id: "null"},
		{name: "other path", client: &client{t: t, g: g, path: "/mcp/one", key: live.key}, body: call("5", "echo", "{}"), status: 404, code: -32001, id: "null"},
		{name: "unknown version", change: func(r *http.Request) { r.Header.Set("Mcp-Protocol-Version", "1.0") }, body: call("5", "echo", "{}"), status: 400, code: -32600, id: "5"},
		{name: "other known version", change: func(r *http.Request) { r.Header.Set("Mcp-Protocol-Version", "2025-03-26") }, body: call("5", "echo", "{}"), status: 200, id: "5"},
		{name: "no version header", change: func(r *http.Request) { r.Header.Del("Mcp-Protocol-Version") }, body: call("5", "echo", "{}"), status: 200, id: "5"},
		{name: "modern by header", change: func(r *http.Request) { r.Header.Set("Mcp-Protocol-Version", "2026-07-28") }, body: call("5", "echo", "{}"), status: 400, code: -32602, id: "5"},
		{name: "the meta key as a mere value", body: call("5", "echo", `{"x":"io.modelcontextprotocol/protocolVersion"}`), status: 200, id: "5"},
		{name: "wrong content type", change: func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") }, body: call("5", "echo", "{}"), status: 415, code: -32600, id: "null"},
		{name: "content type with charset", change: func(r *http.Request) { r.Header.Set("Content-Type", "Application/JSON; charset=utf-8") }, body: call("5", "echo", "{}"), status: 200, id: "5"},
		{name: "compressed", change: func(r *http.Request) { r.Header.Set("Content-Encoding", "gzip") }, body: call("5", "echo", "{}"), status: 415, code: -32600, id: "null"},
		{name: "accepts nothing of ours", change: func(r *http.Request) { r.Header.Set("Accept", "text/html") }, body: call("5", "echo", "{}"), status: 406, code: -32600, id: "null"},
		{name: "accepts all", change: func(r *http.Request) { r.Header.Set("Accept", "*/*") }, body: call("5", "echo", "{}"), status: 200, id: "5"},
		{name: "no Accept", change: func(r *http.Request) { r.Header.Del("Accept") }, body: call("5", "echo", "{}"), status: 200, id: "5"},
		{name: "unknown method", body: `{"jsonrpc":"2.0","id":-3,"method":"nope"}`, status: 200, code: -32601, id: "-3"},
		{name: "panic behind the door", body: call("5", "panic", "{}"), status: 200, code: -32603, id: "5"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := test.client
			if c == nil {
				c = live
			}
			r := c.request(t.Context(), http.MethodPost, test.body)
			if test.change != nil {
				test.change(r)
			}
			w := httptest.NewRecorder()
			g.ServeHTTP(w, r)
			if w.Code != test.status || !wire.Valid(w.Body.Bytes()) || string(wire.Get(w.Body.Bytes(), "id")) != test.id {
				t.Errorf("got %d %s", w.Code, w.Body)
			}
			if code := string(wire.Get(w.Body.Bytes(), "error", "code")); test.code != 0 && code != fmt.Sprint(test.code) || test.code == 0 && code != "" {
				t.Errorf("got %s, want code %d", w.Body, test.code)
			}
		})
	}
	if n := g.Stats().Calls; n != 0 {
		t.Errorf("%d calls are left", n)
	}
}

func TestAddressesAndOrigins(t *testing.T) {
	named := func(c *gateway.Config) {
		c.Hosts = []string{"Box.example.com", "other.example.com:8443"}
		c.Origins = []string{"https://App.example.com/"}
	}
	public := func(c *gateway.Config) { c.Loopback = false }
	for _, test := range []struct {
		change       func(*gateway.Config)
		host, origin string
		want         int
	}{
		{nil, "127.0.0.1:80", "", 200},
		{nil, "localhost", "", 200},
		{nil, "LOCALHOST:9", "http://localhost:6274", 200},
		{nil, "[::1]:80", "http://[::1]:3", 200},
		{nil, "evil.example.com", "", 403},
		{nil, "127.0.0.1.evil.example.com", "", 403},
		{nil, "localhost:1", "https://evil.example.com", 403},
		{nil, "localhost:1", "null", 403},
		{nil, "localhost:1", "http://localhost.evil.example.com", 403},
		{named, "box.example.com:99", "https://app.example.com", 200},
		{named, "other.example.com:8443", "", 200},
		{named, "other.example.com:1", "", 403},
		{named, "box.example.com", "http://app.example.com", 403},
		{public, "any.example.com", "", 200},
		{public, "any.example.com", "https://any.example.com", 403},
	} {
		g, _ := newGateway(t, &server{}, test.change)
		for _, method := range []string{"POST", "OPTIONS"} {
			r := newClient(t, g).request(t.Context(), method, initializeBody)
			r.Host = test.host
			if test.origin != "" {
				r.Header.Set("Origin", test.origin)
				r.Header.Set("Access-Control-Request-Headers", "x-mine, mcp-session-id")
			}
			w := httptest.NewRecorder()
			g.ServeHTTP(w, r)
			want := test.want
			if method == "OPTIONS" && want == 200 {
				want = 204
			}
			h := w.Header()
			if w.Code != want {
				t.Errorf("%s for host %s, origin %q: got %d %s, want %d", method, test.host, test.origin, w.Code, w.Body, want)
			}
			allowed := test.origin != "" && want < 300
			if got := h.Get("Access-Control-Allow-Origin"); allowed && (got != test.origin || !strings.Contains(h.Get("Access-Control-Expose-Headers"), "Mcp-Session-Id")) || !allowed && got != "" {
				t.Errorf("%s for host %s, origin %q allows %q: %v", method, test.host, test.origin, got, h)
			}
			if method == "OPTIONS" && allowed && h.Get("Access-Control-Allow-Headers") != "x-mine, mcp-session-id" {
				t.Errorf("preflight: %v", h)
			}
		}
	}
}

func TestTenantsDoNotMeet(t *testing.T) {
	srv := &server{}
	g, _ := newGateway(t, srv, func(c *gateway.Config) {
		c.Tenant = func(r *http.Request) (string, error) {
			if who, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
				return who, nil
			}
			return "", errors.New("a token is needed")
		}
		c.Known = func(tenant, name string) bool { return name == "of-"+tenant }
		c.Names = func(tenant string) []string { return []string{"of-" + tenant} }
	})
	ask := func(who, method, path, key string) *httptest.ResponseRecorder {
		c := newClient(t, g)
		c.path, c.key = path, key
		body := initializeBody
		if key != "" {
			body = call("1", "echo", "{}")
		}
		r := c.request(t.Context(), method, body)
		if who != "" {
			r.Header.Set("Authorization", "Bearer "+who)
		}
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)
		return w
	}
	if w := ask("", "POST", "/mcp", ""); w.Code != 401 || w.Header().Get("WWW-Authenticate") != "Bearer" || !strings.Contains(w.Body.String(), "a token is needed") {
		t.Errorf("without a token: %d %v %s", w.Code, w.Header(), w.Body)
	}
	w := ask("ann", "POST", "/mcp", "")
	key := w.Header().Get("Mcp-Session-Id")
	if key == "" || srv.last(t).o.Tenant != "ann" {
		t.Fatalf("ann: %d %s", w.Code, w.Body)
	}
	for _, method := range []string{"GET", "POST", "DELETE"} {
		if w := ask("bob", method, "/mcp", key); w.Code != 404 {
			t.Errorf("%s of bob on ann's session: %d %s", method, w.Code, w.Body)
		}
	}
	if w := ask("ann", "POST", "/mcp", key); w.Code != 200 {
		t.Errorf("ann herself: %d %s", w.Code, w.Body)
	}
	if w := ask("bob", "POST", "/mcp/of-ann", ""); w.Code != 404 || !strings.Contains(w.Body.String(), "of-bob") {
		t.Errorf("bob at ann's server: %d %s", w.Code, w.Body)
	}
	if w := ask("bob", "POST", "/mcp/of-bob", ""); w.Code != 200 || srv.last(t).o.Server != "of-bob" {
		t.Errorf("bob at his server: %d %s", w.Code, w.Body)
	}
	for _, name := range []string{"../one", "a b", "é"} {
		if w := ask("bob", "POST", (&url.URL{Path: "/mcp/" + name}).EscapedPath(), ""); w.Code != 404 {
			t.Errorf("%s: %d", name, w.Code)
		}
	}
	for _, path := range []string{"/", "/mcpx", "/mcp/a/b"} {
		if w := ask("ann", "POST", path, ""); w.Code != 404 {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}

// messages returns the data of the events in a stream.
func messages(body []byte) []string {
	var out []string
	for event := range strings.SplitSeq(strings.TrimSuffix(string(body), "\n\n"), "\n\n") {
		var data []string
		for line := range strings.SplitSeq(event, "\n") {
			if d, ok := strings.CutPrefix(line, "data: "); ok {
				data = append(data, d)
			}
		}
		if text := strings.Join(data, "\n"); text != "" { // what has no text only brings an id
			out = append(out, text)
		}
	}
	return out
}

func TestWhatPrecedesTheReplyMakesAStream(t *testing.T) {
	srv := &server{}
	g, _ := newGateway(t, srv, nil)
	c := newClient(t, g).initialize("2025-11-25")
	w := c.post(call("1", "log", "{}"))
	got := messages(w.Body.Bytes())
	h := w.Header()
	if h.Get("Content-Type") != "text/event-stream" || h.Get("X-Accel-Buffering") != "no" || h.Get("Cache-Control") != "no-cache, no-transform" {
		t.Errorf("headers: %v", h)
	}
	if len(got) != 2 || !strings.Contains(got[0], "hello") || !strings.HasPrefix(got[1], `{"jsonrpc":"2.0","id":1,"result":`) {
		t.Errorf("stream: %q", got)
	}

	c.accept = "text/event-stream"
	if got := messages(c.post(call("2", "echo", `{"x":1}`)).Body.Bytes()); len(got) != 1 || got[0] != `{"jsonrpc":"2.0","id":2,"result":{"x":1}}` {
		t.Errorf("a client that accepts only streams got %q", got)
	}

	c.accept = "application/json"
	if w := c.post(call("3", "log", "{}")); w.Header().Get("Content-Type") != "application/json" || string(wire.Get(w.Body.Bytes(), "id")) != "3" {
		t.Errorf("a client that accepts only JSON got %v %s", w.Header(), w.Body)
	}
	if st := g.Stats(); st.Queued != 1 {
		t.Errorf("the log message should wait for a stream: %+v", st)
	}
}

func TestLineEndsInsideAMessage(t *testing.T) {
	g, _ := newGateway(t, &server{}, nil)
	c := newClient(t, g).initialize("2025-11-25")
	got := messages(c.post(call("1", "lines", "{}")).Body.Bytes())
	if len(got) != 2 || wire.Str([]byte(got[0]), "params", "data") != "split" || !wire.Valid([]byte(got[1])) || string(wire.Get([]byte(got[1]), "result", "content")) != "[]" {
		t.Errorf("stream: %q", got)
	}
	if strings.Contains(strings.Join(got, ""), "\r") {
		t.Errorf("a bare CR ends a line: %q", got)
	}
}

func TestBatchesOfTheirRevision(t *testing.T) {
	srv := &server{}
	g, _ := newGateway(t, srv, nil)
	c := newClient(t, g).initialize("2025-03-26")
	w := c.post(` [` + call("1", "echo", `{"a":1}`) + `,{"jsonrpc":"2.0","method":"notifications/initialized"},7,` + call(`"1"`, "echo", `{"b":2}`) + "," + strings.Replace(initializeBody, `"i"`, "9", 1) + "]")
	elems, err := wire.Elements(w.Body.Bytes())
	if err != nil || len(elems) != 4 || !wire.Valid(w.Body.Bytes()) {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	for i, want := range []string{`{"jsonrpc":"2.0","id":1,"result":{"a":1}}`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600`, `{"jsonrpc":"2.0","id":"1","result":{"b":2}}`, `{"jsonrpc":"2.0","id":9,"error":{"code":-32600`} {
		if !strings.HasPrefix(string(elems[i]), want) {
			t.Errorf("element %d: got %s, want %s", i, elems[i], want)
		}
	}
	if w := c.post(`[{"jsonrpc":"2.0","method":"notifications/x"}]`); w.Code != 202 || w.Body.Len() != 0 {
		t.Errorf("a batch of notifications: %d %q", w.Code, w.Body)
	}
	got := messages(c.post("[" + call("1", "log", "{}") + "," + call("2", "echo", "{}") + "]").Body.Bytes())
	if len(got) != 3 {
		t.Errorf("a batch with a log message: %q", got)
	}
}

func TestKeepAliveWhileACallWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := newGateway(t, &server{}, nil)
		c := newClient(t, g).initialize("2025-11-25")
		w := c.post(call("1", "wait", `{"n":47000}`))
		const reply = "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"waited\"}]}}\n\n"
		want := "id: 1-0\nretry: 500\ndata: \n\n: keep-alive\n\n: keep-alive\n\n: keep-alive\n\nevent: message\nid: 1-1\n" + reply
		if w.Body.String() != want {
			t.Errorf("got %q, want %q", w.Body, want)
		}
		old := newClient(t, g).initialize("2025-06-18")
		want = ": working\n\n: keep-alive\n\n: keep-alive\n\nevent: message\nid: 1-1\nretry: 500\n" + reply
		if w := old.post(call("1", "wait", `{"n":47000}`)); w.Body.String() != want {
			t.Errorf("got %q, want %q", w.Body, want)
		}
		c.accept = "application/json"
		if w := c.post(call("1", "wait", `{"n":47000}`)); !wire.Valid(w.Body.Bytes()) {
			t.Errorf("a client of JSON got %q", w.Body)
		}
	})
}

func TestCancelledRequests(t *testing.T) {
	for _, test := range []struct {
		name, accept, id, cancel string
		hit                      bool
	}{
		{"a stream ends", "application/json, text/event-stream", "1", "1", true},
		{"accepted, for JSON", "application/json", "1", "1", true},
		{"strings are not numbers", "*/*", "1", `"1"`, false},
		{"numbers are not strings", "*/*", `"1"`, "1", false},
		{"equal numbers", "*/*", "1", "1.0", true},
		{"equal strings", "*/*", `"a"`, `"\u0061"`, true},
		{"large numbers differ", "*/*", "9007199254740993", "9007199254740992", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := &server{}
				g, _ := newGateway(t, srv, nil)
				c := newClient(t, g).initialize("2025-11-25")
				c.accept = test.accept
				done := make(chan *httptest.ResponseRecorder)
				go func() { done <- c.post(call(test.id, "wait", `{"n":5000}`)) }()
				synctest.Wait()
				c.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + test.cancel + `,"reason":"bo\u0072ed"}}`)
				w := <-done
				_, causes, _ := srv.last(t).seen()
				if !test.hit {
					if len(causes) != 0 || !strings.Contains(w.Body.String(), "waited") {
						t.Errorf("hit: %v, %s", causes, w.Body)
					}
					return
				}
				var cancelled wire.Cancelled
				if len(causes) != 1 || !errors.As(causes[0], &cancelled) || string(cancelled.Reason) != `"bo\u0072ed"` {
					t.Errorf("causes: %v", causes)
				}
				if len(messages(w.Body.Bytes())) != 0 || test.accept == "application/json" && w.Code != 202 || strings.Contains(test.accept, "event") && w.Header().Get("Content-Type") != "text/event-stream" {
					t.Errorf("answered %d %v %q", w.Code, w.Header(), w.Body)
				}
			})
		})
	}
}

func TestOneIDForEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &server{}
		g, _ := newGateway(t, srv, nil)
		a, b := newClient(t, g).initialize("2025-11-25"), newClient(t, g).initialize("2025-06-18")
		type got struct{ want, body string }
		results := make(chan got)
		n := 0
		for i := range 10 {
			for _, c := range []*client{a, b} {
				n++
				text := fmt.Sprintf("%s-%d", c.version, i)
				go func() {
					w := c.post(call("1", "progress", `{"n":`+fmt.Sprint(i)+`}`))
					results <- got{fmt.Sprint(i), fmt.Sprint(strings.Count(w.Body.String(), "notifications/progress"))}
					w = c.post(call("1", "echo", `{"t":"`+text+`"}`))
					results <- got{text, wire.Str(w.Body.Bytes(), "result", "t")}
				}()
			}
		}
		for range 2 * n {
			if r := <-results; r.want != r.body {
				t.Errorf("got %q, want %q", r.body, r.want)
			}
		}

		// A cancellation means the newest.
		bodies := [2]chan string{make(chan string), make(chan string)}
		for _, body := range bodies {
			go func() { body <- a.post(call("1", "wait", `{"n":999}`)).Body.String() }()
			synctest.Wait()
		}
		a.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
		if second := <-bodies[1]; second != "" {
			t.Errorf("the newest got %q", second)
		}
		if first := <-bodies[0]; !strings.Contains(first, "waited") {
			t.Errorf("the oldest got %q", first)
		}
	})
}

func TestADepartureIsNoCancellation(t *testing.T) {
	for _, accept := range []string{"application/json, text/event-stream", "application/json"} {
		synctest.Test(t, func(t *testing.T) {
			srv := &server{}
			g, events := newGateway(t, srv, func(c *gateway.Config) { c.Limits.Idle = 10 * time.Minute })
			c := newClient(t, g).initialize("2025-11-25")
			c.accept = accept
			ctx, leave := context.WithCancel(t.Context())
			finished := make(chan struct{}, 2)
			go func() { c.do(ctx, "POST", call("1", "wait", `{"n":60000}`)); finished <- struct{}{} }()
			go func() { c.do(ctx, "POST", call("2", "wait", `{}`)); finished <- struct{}{} }()
			synctest.Wait()
			leave()
			<-finished // the call that ends
			if _, causes, _ := srv.last(t).seen(); len(causes) != 0 {
				t.Errorf("a call was cancelled: %v", causes)
			}
			<-finished // the call that does not, ended with its session
			synctest.Wait()
			if _, causes, closes := srv.last(t).seen(); len(causes) != 1 || !errors.Is(causes[0], gateway.ErrEnded) || closes != 1 {
				t.Errorf("causes %v, closed %d times", causes, closes)
			}
			if st := g.Stats(); st != (gateway.Stats{}) {
				t.Errorf("left behind: %+v", st)
			}
			if e := events.Events(); len(e) != 2 || e[1].Detail != "idle" {
				t.Errorf("events: %v", e)
			}
		})
	}
}

func TestIdleSessionsExpireInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &server{}
		g, _ := newGateway(t, srv, func(c *gateway.Config) { c.Limits.Idle = time.Minute })
		time.Sleep(50 * time.Second)
		a := newClient(t, g).initialize("2025-11-25")
		time.Sleep(30 * time.Second)
		a.post(call("1", "echo", "{}"))
		listener := newClient(t, g).initialize("2025-11-25")
		ctx, leave := context.WithCancel(t.Context())
		go listener.do(ctx, http.MethodGet, "")
		time.Sleep(time.Minute - time.Nanosecond)
		synctest.Wait()
		if n := len(g.Sessions()); n != 2 {
			t.Fatalf("%d sessions a moment before", n)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if all := g.Sessions(); len(all) != 1 || !all[0].Connected {
			t.Fatalf("sessions: %+v", all)
		}
		time.Sleep(time.Hour)
		leave()
		synctest.Wait()
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := len(g.Sessions()); n != 0 {
			t.Errorf("%d sessions are left", n)
		}
	})
}

func TestSessionLimitOfATenant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &server{}
		g, _ := newGateway(t, srv, func(c *gateway.Config) { c.Limits.Sessions = 2 })
		first := newClient(t, g).initialize("2025-11-25")
		time.Sleep(time.Second)
		second := newClient(t, g).initialize("2025-11-25")
		_, e := errorOf(t, newClient(t, g).post(initializeBody).Body.Bytes())
		if !strings.Contains(e.Message, "2 sessions") {
			t.Errorf("refused with %q", e.Message)
		}
		time.Sleep(time.Minute)
		second.post(call("1", "echo", "{}"))
		newClient(t, g).initialize("2025-11-25")
		if w := first.post(call("1", "echo", "{}")); w.Code != 404 {
			t.Errorf("the one left longest ago: %d", w.Code)
		}
		if w := second.post(call("1", "echo", "{}")); w.Code != 200 {
			t.Errorf("the other one: %d", w.Code)
		}
	})
}

func TestCallLimitOfASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := newGateway(t, &server{}, func(c *gateway.Config) { c.Limits.Calls = 2 })
		c := newClient(t, g).initialize("2025-11-25")
		for range 2 {
			go c.post(call("1", "wait", `{"n":1000}`))
		}
		synctest.Wait()
		id, e := errorOf(t, c.post(call("7", "echo", "{}")).Body.Bytes())
		if id != "7" || !strings.Contains(e.Message, "2 requests") {
			t.Errorf("got %s: %q", id, e.Message)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if w := c.post(call("7", "echo", "{}")); !bytes.Contains(w.Body.Bytes(), []byte("result")) {
			t.Errorf("afterwards: %s", w.Body)
		}
	})
}

func TestBackgroundMessagesWaitForAStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &server{}
		g, _ := newGateway(t, srv, func(c *gateway.Config) { c.Limits.QueueCount = 4; c.Limits.Streams = 2 })
		c := newClient(t, g).initialize("2025-11-25")
		back := srv.last(t).background
		send := func(method, n string) error {
			return back.Send(wire.NotificationParts(method, []byte(`{"n":`+n+`}`))...)
		}
		_ = send("notifications/progress", "1")
		_ = send("notifications/tools/list_changed", "2")
		_ = send("notifications/message", "3")
		_ = back.Send(wire.RequestParts([]byte("4"), "roots/list", []byte(`{"n":4}`))...)
		_ = send("notifications/resources/updated", "5") // 1 falls
		_ = send("notifications/resources/updated", "6") // 3 falls
		if err := send("notifications/message", "7"); err != nil {
			t.Errorf("a log message that falls is no error: %v", err)
		}
		if err := back.Send(wire.RequestParts([]byte("8"), "roots/list", nil)...); err == nil {
			t.Error("a request fell and its sender was not told")
		}
		if st := g.Stats(); st.Dropped != 3 || st.Queued != 4 {
			t.Errorf("stats: %+v", st)
		}
		listen := func() (*httptest.ResponseRecorder, func()) {
			ctx, leave := context.WithCancel(t.Context())
			w := httptest.NewRecorder()
			done := make(chan struct{})
			go func() { defer close(done); g.ServeHTTP(w, c.request(ctx, http.MethodGet, "")) }()
			synctest.Wait()
			return w, func() { leave(); <-done }
		}
		order := func(w *httptest.ResponseRecorder) string {
			var ns string
			for _, m := range messages(w.Body.Bytes()) {
				ns += string(wire.Get([]byte(m), "params", "n"))
			}
			return ns
		}
		old, leaveOld := listen()
		_ = send("x", "9")
		synctest.Wait()
		newer, leaveNew := listen()
		_ = send("x", "1")
		synctest.Wait()
		leaveNew()
		_ = send("x", "2")
		synctest.Wait()
		leaveOld()
		_ = send("x", "3")
		if got := order(old); got != "245692" {
			t.Errorf("the first stream got %s", got)
		}
		if got := order(newer); got != "1" {
			t.Errorf("the newer stream got %s", got)
		}
		last, leave := listen()
		defer leave()
		if got := order(last); got != "3" {
			t.Errorf("the last stream got %s", got)
		}
		_, leave2 := listen()
		defer leave2()
		third, leave3 := listen() // the first of these three is closed
		defer leave3()
		if n := g.Stats().Streams; n != 2 {
			t.Errorf("%d streams", n)
		}
		c.do(t.Context(), http.MethodDelete, "")
		synctest.Wait()
		if err := send("x", "4"); !errors.Is(err, gateway.ErrEnded) {
			t.Errorf("after the end: %v", err)
		}
		if st := g.Stats(); st.Streams != 0 || third.Code != 200 {
			t.Errorf("streams outlive their session: %+v", st)
		}
	})
}

// A deafWriter is that of a client whose connection breaks unnoticed.
type deafWriter struct {
	*httptest.ResponseRecorder
	deaf bool
}

func (w *deafWriter) Write(p []byte) (int, error) {
	if w.deaf {
		return 0, errors.New("connection reset")
	}
	return w.ResponseRecorder.Write(p)
}

func TestWhatAStreamCannotDeliverGoesToAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &server{}
		g, _ := newGateway(t, srv, nil)
		c := newClient(t, g).initialize("2025-11-25")
		ctx, leave := context.WithCancel(t.Context())
		older := httptest.NewRecorder()
		go g.ServeHTTP(older, c.request(ctx, http.MethodGet, ""))
		synctest.Wait()
		newer := &deafWriter{ResponseRecorder: httptest.NewRecorder()}
		go g.ServeHTTP(newer, c.request(ctx, http.MethodGet, ""))
		synctest.Wait()
		newer.deaf = true
		_ = srv.last(t).background.Send([]byte(`{"jsonrpc":"2.0","method":"one"}`), nil)
		synctest.Wait()
		if got := messages(older.Body.Bytes()); len(got) != 1 {
			t.Errorf("the older stream got %q", got)
		}
		posting := &deafWriter{ResponseRecorder: httptest.NewRecorder(), deaf: true}
		g.ServeHTTP(posting, c.request(ctx, http.MethodPost, call("1", "log", "{}")))
		synctest.Wait()
		leave()
		synctest.Wait()
		if got := messages(older.Body.Bytes()); len(got) != 2 || !strings.Contains(got[0], "one") || !strings.Contains(got[1], "hello") {
			t.Errorf("the older stream got %q", got)
		}
		if st := g.Stats(); st.Streams != 0 || st.Calls != 0 || g.Sessions()[0].Connected {
			t.Errorf("left: %+v", st)
		}
	})
}

func TestQueuesAreBoundedInBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &server{}
		g, _ := newGateway(t, srv, func(c *gateway.Config) { c.Limits.QueueBytes = 1000 })
		c := newClient(t, g).initialize("2025-11-25")
		send := func(method string, n int) error {
			return srv.last(t).background.Send(wire.NotificationParts(method, []byte(`{"x":"`+strings.Repeat("x", n)+`"}`))...)
		}
		for range 100 {
			if err := send("notifications/message", 100); err != nil {
				t.Fatal(err)
			}
		}
		if st := g.Stats(); st.Queued < 4 || st.Queued > 8 || st.Dropped != int64(100-st.Queued) {
			t.Errorf("stats: %+v", st)
		}
		if err := send("notifications/resources/updated", 5000); err != nil || g.Stats().Queued != 1 {
			t.Errorf("a large message alone: %v, %+v", err, g.Stats())
		}
		if err := send("x", 1); err == nil {
			t.Error("there was room beside a message over the limit")
		}
		ctx, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		if got := messages(c.do(ctx, http.MethodGet, "").Body.Bytes()); len(got) != 1 {
			t.Errorf("the stream got %d messages", len(got))
		}
		for range 5 {
			if err := send("x", 100); err != nil {
				t.Fatalf("the room of what was taken is not given back: %v", err)
			}
		}
	})
}

func TestAClientThatLeavesBeforeItKnowsItsSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &server{initWait: time.Second}
		g, _ := newGateway(t, srv, nil)
		ctx, leave := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, leave)
		newClient(t, g).do(ctx, http.MethodPost, initializeBody)
		if _, causes, closes := srv.last(t).seen(); closes != 1 || len(causes) != 0 || len(g.Sessions()) != 0 {
			t.Errorf("closed %d times, %d sessions left", closes, len(g.Sessions()))
		}
	})
}

func TestRunWaitsForWhatIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &server{}
		g, err := gateway.New(gateway.Config{Open: srv.open})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		c := newClient(t, g).initialize("2025-11-25")
		go c.post(call("1", "stubborn", `{"n":5000}`))
		synctest.Wait()
		stop()
		began := time.Now()
		if err := g.Run(ctx); err != nil || time.Since(began) != 5*time.Second {
			t.Errorf("Run returned %v after %v", err, time.Since(began))
		}
	})
}

func TestAPanicInTheHouseIsAnswered(t *testing.T) {
	g, _ := newGateway(t, &server{}, func(c *gateway.Config) {
		c.Known = func(string, string) bool { panic("the house's own fault") }
	})
	c := newClient(t, g)
	c.path = "/mcp/one"
	if w := c.post(initializeBody); w.Code != 500 || !strings.Contains(w.Body.String(), "-32603") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	c.path = "/mcp"
	c.initialize("2025-11-25")
}

func TestGetWantsStreams(t *testing.T) {
	g, _ := newGateway(t, &server{}, nil)
	c := newClient(t, g).initialize("2025-11-25")
	for accept, want := range map[string]int{"": 406, "application/json": 406} {
		c.accept = accept
		if w := c.do(t.Context(), http.MethodGet, ""); w.Code != want {
			t.Errorf("Accept %q: %d", accept, w.Code)
		}
	}
	c.accept = "text/event-stream"
	c.version = "2026-07-28"
	for _, m := range []string{"GET", "DELETE"} {
		if w := c.do(t.Context(), m, ""); w.Code != 405 {
			t.Errorf("%s of the modern era: %d", m, w.Code)
		}
	}
	if w := c.do(t.Context(), "PUT", ""); w.Code != 405 || w.Header().Get("Allow") == "" {
		t.Errorf("PUT: %d %v", w.Code, w.Header())
	}
}

func TestRunEndsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &server{}
		g, err := gateway.New(gateway.Config{Open: srv.open})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- g.Run(ctx) }()
		c := newClient(t, g).initialize("2025-11-25")
		answer := make(chan string, 1)
		go func() { answer <- c.post(call("1", "wait", "{}")).Body.String() }()
		go c.do(t.Context(), http.MethodGet, "")
		synctest.Wait()
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if a := <-answer; !strings.Contains(a, "session has ended") {
			t.Errorf("the call got %q", a)
		}
		if _, _, closes := srv.last(t).seen(); closes != 1 || len(g.Sessions()) != 0 {
			t.Errorf("closed %d times, %d sessions left", closes, len(g.Sessions()))
		}
		if _, e := errorOf(t, c.post(initializeBody).Body.Bytes()); !strings.Contains(e.Message, "shutting down") {
			t.Errorf("a newcomer hears %q", e.Message)
		}
	})
}

func TestCloseSessions(t *testing.T) {
	g, events := newGateway(t, &server{}, nil)
	a, b := newClient(t, g).initialize("2025-11-25"), newClient(t, g)
	b.path = "/mcp/two"
	b.initialize("2025-11-25")
	if n := g.CloseSessions(func(i gateway.SessionInfo) bool { return i.Server == "two" }); n != 1 {
		t.Errorf("%d were closed", n)
	}
	if w := a.post(call("1", "echo", "{}")); w.Code != 200 {
		t.Errorf("the other one: %d", w.Code)
	}
	if w := b.post(call("1", "echo", "{}")); w.Code != 404 {
		t.Errorf("the closed one: %d", w.Code)
	}
	if e := events.Events(); len(e) != 3 || e[2].Server != "two" {
		t.Errorf("events: %v", e)
	}
}

func TestBadConfig(t *testing.T) {
	if _, err := gateway.New(gateway.Config{}); err == nil {
		t.Error("no Open, no error")
	}
	if _, err := gateway.New(gateway.Config{Open: (&server{}).open, Limits: gateway.Limits{Calls: -1}}); err == nil {
		t.Error("a negative limit, no error")
	}
}

func TestNestingIsBounded(t *testing.T) {
	g, _ := newGateway(t, &server{}, nil)
	c := newClient(t, g).initialize("2025-11-25")
	for depth, want := range map[int]int{900: 200, 1100: 400, 1_000_000: 400} {
		for _, kind := range []string{"[]", "{}"} {
			nest := strings.Repeat("[", depth) + strings.Repeat("]", depth)
			if kind == "{}" {
				nest = strings.Repeat(`{"a":`, depth) + "1" + strings.Repeat("}", depth)
			}
			w := c.post(call("1", "echo", nest))
			if w.Code != want || want == 400 && !strings.Contains(w.Body.String(), "nested") {
				t.Errorf("%s nested %d deep: %d %.200s", kind, depth, w.Code, w.Body)
			}
		}
	}
}
