package gateway_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/specbox/specbox/gateway"
	"github.com/specbox/specbox/trace"
	"github.com/specbox/specbox/wire"
)

const triple = `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"raw","version":"1"}`

// ask is the body of a modern request. The members are those of params, behind
// _meta.
func ask(id, method, members string) string {
	if members != "" {
		members = "," + members
	}
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `","params":{"_meta":{` + triple + `}` + members + `}}`
}

func use(id, tool, args string) string {
	return ask(id, "tools/call", `"name":"`+tool+`","arguments":`+args)
}

// modern returns the request that carries body, with the headers that it needs.
func (c *client) modern(ctx context.Context, body string) *http.Request {
	r := c.request(ctx, http.MethodPost, body)
	r.Header.Set("Mcp-Protocol-Version", wire.Modern)
	m, _ := wire.Parse([]byte(body))
	r.Header.Set("Mcp-Method", m.Method)
	for _, name := range []string{wire.Str(m.Params, "name"), wire.Str(m.Params, "uri")} {
		if name != "" {
			r.Header.Set("Mcp-Name", name)
		}
	}
	return r
}

func (c *client) ask(body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	c.g.ServeHTTP(w, c.modern(c.t.Context(), body))
	return w
}

func TestModernRequestsNeedNoSession(t *testing.T) {
	srv := &server{}
	g, events := newGateway(t, srv, nil)
	c := newClient(t, g)
	for i := range 3 {
		w := c.ask(use("1", "echo", `{"a":9007199254740993}`))
		if got, want := w.Body.String(), `{"jsonrpc":"2.0","id":1,"result":{"a":9007199254740993}}`; w.Code != 200 || got != want || w.Header().Get("Mcp-Session-Id") != "" || w.Header().Get("Content-Type") != "application/json" {
			t.Fatalf("request %d: %d %v %s", i, w.Code, w.Header(), got)
		}
	}
	if n := len(srv.all()); n != 1 {
		t.Fatalf("%d sessions were opened", n)
	}
	o := srv.last(t).o
	if want := `{"protocolVersion":"2026-07-28","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}`; !o.Modern || o.Version != wire.Modern || string(o.Params) != want || o.Conversation != "" || o.Session == "" {
		t.Errorf("opened with %+v %s", o, o.Params)
	}
	if info := g.Sessions(); len(info) != 1 || info[0].Client != "raw 1" || info[0].Version != wire.Modern || info[0].Calls != 0 || info[0].Connected {
		t.Errorf("sessions: %+v", info)
	}
	if e := events.Events(); len(e) != 1 || e[0].Kind != trace.SessionOpen {
		t.Errorf("events: %v", e)
	}
	if n := g.CloseSessions(func(gateway.SessionInfo) bool { return true }); n != 1 {
		t.Errorf("closed %d", n)
	}
	if w := c.ask(use("1", "echo", `{}`)); w.Code != 200 || len(srv.all()) != 2 {
		t.Errorf("after its session ended a client gets %d %s", w.Code, w.Body)
	}
}

func TestWhatModernRequestsShare(t *testing.T) {
	srv := &server{}
	g, _ := newGateway(t, srv, func(c *gateway.Config) {
		c.Tenant = func(r *http.Request) (string, error) { return r.Header.Get("X-Tenant"), nil }
	})
	body := use("1", "echo", "{}")
	seen := map[string]string{}
	for _, test := range []struct {
		name, path, header, meta, tenant, caps, client string
		want                                           string // conversation
	}{
		{name: "plain"},
		{name: "path", path: "/s/a/mcp", want: "a"},
		{name: "header", header: "b", want: "b"},
		{name: "meta", meta: `"c"`, want: "c"},
		{name: "path over header and meta", path: "/s/d/mcp", header: "b", meta: `"c"`, want: "d"},
		{name: "header over meta", header: "e", meta: `"c"`, want: "e"},
		{name: "one server", path: "/mcp/one"},
		{name: "one server of a path", path: "/s/a/mcp/one", want: "a"},
		{name: "tenant", tenant: "other"},
		{name: "capabilities", caps: `{"sampling":{}}`},
		{name: "client", client: "other"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newClient(t, g)
			if test.path != "" {
				c.path = test.path
			}
			b := body
			if test.meta != "" {
				b = strings.Replace(b, `"_meta":{`, `"_meta":{"dev.specbox/session":`+test.meta+`,`, 1)
			}
			if test.caps != "" {
				b = strings.Replace(b, `clientCapabilities":{}`, `clientCapabilities":`+test.caps, 1)
			}
			if test.client != "" {
				b = strings.Replace(b, `"raw"`, `"`+test.client+`"`, 1)
			}
			for range 2 {
				r := c.modern(t.Context(), b)
				r.Header.Set("X-Tenant", test.tenant)
				if test.header != "" {
					r.Header.Set("Specbox-Session", test.header)
				}
				w := httptest.NewRecorder()
				g.ServeHTTP(w, r)
				if w.Code != 200 {
					t.Fatalf("%d %s", w.Code, w.Body)
				}
			}
			o := srv.last(t).o
			if other := seen[o.Session]; other != "" {
				t.Errorf("shares a session with %q", other)
			}
			seen[o.Session] = test.name
			if o.Conversation != test.want || o.Tenant != test.tenant {
				t.Errorf("opened with %+v", o)
			}
		})
	}
	if len(srv.all()) != len(seen) {
		t.Errorf("%d sessions for %d", len(srv.all()), len(seen))
	}
}

func TestLegacySessionsCarryAConversation(t *testing.T) {
	srv := &server{}
	g, _ := newGateway(t, srv, nil)
	c := newClient(t, g)
	c.path = "/s/my-key.1/mcp/two"
	c.initialize("2025-11-25")
	if o := srv.last(t).o; o.Conversation != "my-key.1" || o.Server != "two" || o.Modern {
		t.Errorf("opened with %+v", o)
	}
	if w := c.post(call("1", "echo", "{}")); w.Code != 200 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestBadConversationsAreRefused(t *testing.T) {
	g, _ := newGateway(t, &server{}, nil)
	long := strings.Repeat("x", 129)
	for _, path := range []string{"/s/a%20b/mcp", "/s//mcp", "/s/" + long + "/mcp", "/s/a", "/s/a/", "/s/a/mcpx", "/s/a/mcp/one/x", "/s/a/s/b/mcp", "/s/%C3%A9/mcp"} {
		c := newClient(t, g)
		c.path = path
		if w := c.ask(use("1", "echo", "{}")); w.Code != 404 || !strings.Contains(w.Body.String(), "not found: ") {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	for _, header := range []string{"", "a b", "é", long, "a/b", "a,b"} {
		r := newClient(t, g).modern(t.Context(), use("1", "echo", "{}"))
		r.Header["Specbox-Session"] = []string{header}
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)
		if id, e := errorOf(t, w.Body.Bytes()); w.Code != 400 || e.Code != -32602 || id != "1" {
			t.Errorf("%q: %d %s", header, w.Code, w.Body)
		}
	}
	for _, meta := range []string{`""`, `7`, `null`, `{}`, `"a b"`, `"` + long + `"`} {
		for _, b := range []string{use("1", "echo", "{}"), strings.Replace(initializeBody, `"params":{`, `"params":{"_meta":{},`, 1)} {
			b = strings.Replace(b, `"_meta":{`, `"_meta":{"dev.specbox/session":`+meta+`,`, 1)
			b = strings.Replace(b, ",}", "}", 1)
			w := newClient(t, g).ask(b)
			if _, e := errorOf(t, w.Body.Bytes()); w.Code != 400 || e.Code != -32602 {
				t.Errorf("%s: %d %s", b, w.Code, w.Body)
			}
		}
	}
	if n := len(g.Sessions()); n != 0 {
		t.Errorf("%d sessions", n)
	}
}

func TestFaultsOfModernRequests(t *testing.T) {
	g, _ := newGateway(t, &server{}, nil)
	set := func(name string, values ...string) func(*http.Request) {
		return func(r *http.Request) { r.Header[name] = values }
	}
	del := func(name string) func(*http.Request) { return func(r *http.Request) { r.Header.Del(name) } }
	base64 := func(s string) string { return "=?base64?" + base64.StdEncoding.EncodeToString([]byte(s)) + "?=" }
	without := func(member string) string { return strings.Replace(use("5", "echo", "{}"), member, "", 1) }
	echo := use("5", "echo", "{}")
	const head = `"io.modelcontextprotocol/`
	for _, test := range []struct {
		name   string
		body   string // echo if empty
		change func(*http.Request)
		status int
		code   int
	}{
		{name: "fine", status: 200},
		{name: "no version header", change: del("Mcp-Protocol-Version"), status: 400, code: -32020},
		{name: "two version headers", change: set("Mcp-Protocol-Version", wire.Modern, wire.Modern), status: 400, code: -32020},
		{name: "other version in the header", change: set("Mcp-Protocol-Version", "2026-01-01"), status: 400, code: -32020},
		{name: "legacy version in the header", change: set("Mcp-Protocol-Version", "2025-11-25"), status: 400, code: -32020},
		{name: "other version in the body", body: strings.Replace(echo, wire.Modern, "2025-11-25", 1), status: 400, code: -32020},
		{name: "no version in the body", body: without(head + `protocolVersion":"2026-07-28",`), status: 400, code: -32602},
		{name: "version in the body no string", body: strings.Replace(echo, `"2026-07-28"`, `7`, 1), status: 400, code: -32602},
		{name: "no meta", body: call("5", "echo", "{}"), status: 400, code: -32602},
		{name: "meta no object", body: `{"jsonrpc":"2.0","id":5,"method":"tools/list","params":{"_meta":7}}`, status: 400, code: -32602},
		{name: "no params", body: `{"jsonrpc":"2.0","id":5,"method":"server/discover"}`, status: 400, code: -32602},
		{name: "later version", body: strings.Replace(echo, wire.Modern, "2099-01-01", 1), change: set("Mcp-Protocol-Version", "2099-01-01"), status: 400, code: -32022},
		{name: "odd version", body: strings.Replace(echo, wire.Modern, "DRAFT", 1), change: set("Mcp-Protocol-Version", "DRAFT"), status: 400, code: -32022},
		{name: "no capabilities", body: without(`,` + head + `clientCapabilities":{}`), status: 400, code: -32602},
		{name: "capabilities no object", body: strings.Replace(echo, `Capabilities":{}`, `Capabilities":[]`, 1), status: 400, code: -32602},
		{name: "no client info", body: without(`,` + head + `clientInfo":{"name":"raw","version":"1"}`), status: 200},
		{name: "client info no object", body: strings.Replace(echo, `{"name":"raw","version":"1"}`, `"raw"`, 1), status: 400, code: -32602},
		{name: "large capabilities", body: strings.Replace(echo, `Capabilities":{}`, `Capabilities":{"x":"`+strings.Repeat("x", 70_000)+`"}`, 1), status: 400, code: -32602},
		{name: "no method header", change: del("Mcp-Method"), status: 400, code: -32020},
		{name: "other method header", change: set("Mcp-Method", "tools/list"), status: 400, code: -32020},
		{name: "method header of other case", change: set("Mcp-Method", "Tools/Call"), status: 400, code: -32020},
		{name: "two method headers", change: set("Mcp-Method", "tools/call", "tools/list"), status: 400, code: -32020},
		{name: "no name header", change: del("Mcp-Name"), status: 400, code: -32020},
		{name: "other name header", change: set("Mcp-Name", "rm"), status: 400, code: -32020},
		{name: "two name headers", change: set("Mcp-Name", "echo", "rm"), status: 400, code: -32020},
		{name: "encoded name", change: set("Mcp-Name", base64("echo")), status: 200},
		{name: "other encoded name", change: set("Mcp-Name", base64("rm")), status: 400, code: -32020},
		{name: "name in bad base64", change: set("Mcp-Name", "=?base64?ZWNo*?="), status: 400, code: -32020},
		{name: "name beyond ASCII", body: use("5", "é", "{}"), change: set("Mcp-Name", "é!"), status: 400, code: -32020},
		{name: "the same name beyond ASCII", body: use("5", "é", "{}"), change: set("Mcp-Name", "é"), status: 400, code: -32602},
		{name: "encoded name beyond ASCII", body: use("5", "é", "{}"), change: set("Mcp-Name", base64("é")), status: 400, code: -32602},
		{name: "prompts/get without name", body: ask("5", "prompts/get", `"name":"p"`), change: del("Mcp-Name"), status: 400, code: -32020},
		{name: "prompts/get", body: ask("5", "prompts/get", `"name":"p"`), status: 404, code: -32601},
		{name: "resources/read without name", body: ask("5", "resources/read", `"uri":"a:b"`), change: del("Mcp-Name"), status: 400, code: -32020},
		{name: "resources/read of another", body: ask("5", "resources/read", `"uri":"a:b"`), change: set("Mcp-Name", "a:c"), status: 400, code: -32020},
		{name: "resources/read", body: ask("5", "resources/read", `"uri":"a:b"`), status: 404, code: -32601},
		{name: "tools/list needs no name", body: ask("5", "tools/list", ""), status: 200},
		{name: "initialize", body: ask("5", "initialize", `"protocolVersion":"2026-07-28"`), status: 404, code: -32601},
		{name: "ping", body: ask("5", "ping", ""), status: 404, code: -32601},
		{name: "logging/setLevel", body: ask("5", "logging/setLevel", ""), status: 404, code: -32601},
		{name: "resources/subscribe", body: ask("5", "resources/subscribe", ""), status: 404, code: -32601},
		{name: "resources/unsubscribe", body: ask("5", "resources/unsubscribe", ""), status: 404, code: -32601},
		{name: "unknown method", body: ask("5", "nope", ""), status: 404, code: -32601},
		{name: "a capability is missing", body: use("5", "fail", `{"n":-32021}`), status: 400, code: -32021},
		{name: "a server's own error", body: use("5", "fail", `{"n":-32000}`), status: 200, code: -32000},
		{name: "an error, accepting events alone", body: use("5", "fail", `{"n":-32602}`), change: set("Accept", "text/event-stream"), status: 400, code: -32602},
		{name: "a fault behind the door", body: use("5", "panic", `{}`), status: 200, code: -32603},
		{name: "a fault at the schema", body: use("5", "panic at schema", `{}`), status: 200, code: -32603},
		{name: "listening without events", body: ask("5", "subscriptions/listen", ""), change: set("Accept", "application/json"), status: 406, code: -32600},
		{name: "a stale session id", change: set("Mcp-Session-Id", "nobody"), status: 200},
		{name: "in an array", body: "[" + echo + "]", status: 400, code: -32600},
		{name: "no header for an argument", body: use("5", "headed", `{"region":"eu"}`), status: 400, code: -32020},
		{name: "a header for an argument", body: use("5", "headed", `{"region":"eu"}`), change: set("Mcp-Param-Region", "eu"), status: 200},
		{name: "an encoded header for an argument", body: use("5", "headed", `{"region":"é"}`), change: set("Mcp-Param-Region", base64("é")), status: 200},
		{name: "an encoded header in bad base64", body: use("5", "headed", `{"region":"é"}`), change: set("Mcp-Param-Region", "=?base64?*?="), status: 400, code: -32020},
		{name: "other header for an argument", body: use("5", "headed", `{"region":"eu"}`), change: set("Mcp-Param-Region", "us"), status: 400, code: -32020},
		{name: "two headers for an argument", body: use("5", "headed", `{"region":"eu"}`), change: set("Mcp-Param-Region", "eu", "us"), status: 400, code: -32020},
		{name: "a header for no argument", body: use("5", "headed", `{}`), change: set("Mcp-Param-Region", "eu"), status: 400, code: -32020},
		{name: "a header for a null argument", body: use("5", "headed", `{"region":null}`), change: set("Mcp-Param-Region", "eu"), status: 400, code: -32020},
		{name: "none for a null argument", body: use("5", "headed", `{"region":null}`), status: 200},
		{name: "an empty argument", body: use("5", "headed", `{"region":""}`), change: set("Mcp-Param-Region", ""), status: 200},
		{name: "a number", body: use("5", "headed", `{"n":42}`), change: set("Mcp-Param-N", "42"), status: 200},
		{name: "a number of other form", body: use("5", "headed", `{"n":42.0}`), change: set("Mcp-Param-N", "42"), status: 200},
		{name: "a large number", body: use("5", "headed", `{"n":9007199254740993}`), change: set("Mcp-Param-N", "9007199254740993"), status: 200},
		{name: "other large number", body: use("5", "headed", `{"n":9007199254740993}`), change: set("Mcp-Param-N", "9007199254740992"), status: 400, code: -32020},
		{name: "other number", body: use("5", "headed", `{"n":42}`), change: set("Mcp-Param-N", "43"), status: 400, code: -32020},
		{name: "a boolean", body: use("5", "headed", `{"dry":true}`), change: set("Mcp-Param-Dry", "true"), status: 200},
		{name: "other boolean", body: use("5", "headed", `{"dry":true}`), change: set("Mcp-Param-Dry", "false"), status: 400, code: -32020},
		{name: "an object for a string", body: use("5", "headed", `{"region":{}}`), change: set("Mcp-Param-Region", "{}"), status: 400, code: -32020},
		{name: "a nested argument", body: use("5", "headed", `{"in":{"zone":"a"}}`), change: set("Mcp-Param-Zone", "a"), status: 200},
		{name: "no header for a nested argument", body: use("5", "headed", `{"in":{"zone":"a"}}`), status: 400, code: -32020},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newClient(t, g)
			if test.body == "" {
				test.body = echo
			}
			r := c.modern(t.Context(), test.body)
			if test.change != nil {
				test.change(r)
			}
			w := httptest.NewRecorder()
			g.ServeHTTP(w, r)
			code := string(wire.Get(w.Body.Bytes(), "error", "code"))
			id := string(wire.Get(w.Body.Bytes(), "id"))
			if w.Code != test.status || (test.code != 0 || code != "") && code != fmt.Sprint(test.code) || id != "5" && test.body[0] != '[' {
				t.Errorf("got %d %s", w.Code, w.Body)
			}
			if data := string(wire.Get(w.Body.Bytes(), "error", "data")); test.code == -32022 && data != `{"requested":"`+r.Header.Get("Mcp-Protocol-Version")+`","supported":["2026-07-28","2025-11-25","2025-06-18","2025-03-26","2024-11-05"]}` {
				t.Errorf("a client cannot choose by %s", data)
			}
			if w.Code != 200 && w.Header().Get("Content-Type") != "application/json" {
				t.Errorf("an error as %s", w.Header().Get("Content-Type"))
			}
		})
	}
	if st := g.Stats(); st.Calls != 0 {
		t.Errorf("%d calls are left", st.Calls)
	}
}

func TestTheEraOfAMessage(t *testing.T) {
	srv := &server{}
	g, _ := newGateway(t, srv, nil)
	old := newClient(t, g).initialize("2025-11-25")
	for _, test := range []struct {
		name, body, header string
		session            bool
		modern             bool
		status             int
	}{
		{"legacy request", call("1", "echo", "{}"), "2025-11-25", true, false, 200},
		{"the triple in a legacy session", use("1", "echo", "{}"), "2025-11-25", true, false, 200},
		{"a modern header in a session", use("1", "echo", "{}"), wire.Modern, true, true, 200},
		{"legacy initialize under a modern header", initializeBody, wire.Modern, false, false, 200},
		{"notification", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, wire.Modern, false, true, 202},
		{"response", `{"jsonrpc":"2.0","id":1,"result":{}}`, wire.Modern, false, false, 400},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newClient(t, g)
			if test.session {
				c.key = old.key
			}
			before := len(srv.all())
			r := c.modern(t.Context(), test.body)
			r.Header.Set("Mcp-Protocol-Version", test.header)
			w := httptest.NewRecorder()
			g.ServeHTTP(w, r)
			if w.Code != test.status {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			if all := srv.all(); len(all) > before && all[len(all)-1].o.Modern != test.modern {
				t.Errorf("opened with %+v", all[len(all)-1].o)
			}
		})
	}
	for _, method := range []string{"GET", "DELETE"} {
		if w := newClient(t, g).do(t.Context(), method, ""); w.Code != 405 || w.Header().Get("Allow") != "POST" {
			t.Errorf("%s without a session: %d %v", method, w.Code, w.Header())
		}
	}
}

func TestClosingTheStreamCancels(t *testing.T) {
	for _, accept := range []string{"application/json", "text/event-stream", "application/json, text/event-stream"} {
		synctest.Test(t, func(t *testing.T) {
			srv := &server{}
			g, err := gateway.New(gateway.Config{Open: srv.open})
			if err != nil {
				t.Fatal(err)
			}
			c := newClient(t, g)
			c.accept = accept
			ctx, leave := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				g.ServeHTTP(httptest.NewRecorder(), c.modern(ctx, use("1", "wait", "{}")))
			}()
			synctest.Wait()
			other := make(chan string, 1)
			go func() { other <- c.ask(use("1", "wait", `{"n":1000}`)).Body.String() }()
			synctest.Wait()
			start := time.Now()
			leave()
			<-done
			var cancelled wire.Cancelled
			if cause := <-srv.last(t).ended; !errors.As(cause, &cancelled) || time.Since(start) != 0 {
				t.Errorf("the call ended after %v because %v", time.Since(start), cause)
			}
			if got := <-other; !strings.Contains(got, "waited") {
				t.Errorf("the other request of that id got %q", got)
			}
			if info := g.Sessions(); len(info) != 1 || info[0].Connected || info[0].Calls != 0 {
				t.Errorf("sessions: %+v", info)
			}
			g.CloseSessions(func(gateway.SessionInfo) bool { return true })
		})
	}
}

func TestProgressStaysOnItsRequest(t *testing.T) {
	g, _ := newGateway(t, &server{}, nil)
	c := newClient(t, g)
	body := strings.Replace(use("1", "progress", `{"n":2}`), `"_meta":{`, `"_meta":{"progressToken":"p",`, 1)
	w := c.ask(body)
	if got := messages(w.Body.Bytes()); len(got) != 3 || !strings.Contains(got[0], `"progress":1`) || !strings.Contains(got[2], "done") || strings.Contains(w.Body.String(), "\nid:") {
		t.Errorf("%s", w.Body)
	}
	c.accept = "application/json"
	if w := c.ask(body); w.Code != 200 || !strings.HasPrefix(w.Body.String(), `{"jsonrpc":"2.0","id":1,"result"`) {
		t.Errorf("%s", w.Body)
	}
	if w := c.ask(use("1", "news", "{}")); w.Code != 200 || g.Stats().Queued != 0 {
		t.Errorf("%s, %d queued for a client that cannot listen", w.Body, g.Stats().Queued)
	}
}

// TestListening is long quiet on purpose: the stream must say that it lives more
// often than a proxy gives up.
func TestListening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &server{}
		g, err := gateway.New(gateway.Config{Open: srv.open})
		if err != nil {
			t.Fatal(err)
		}
		ctx, leave := context.WithCancel(t.Context())
		w := newIdle(leave)
		done := make(chan struct{})
		go func() {
			defer close(done)
			g.ServeHTTP(w, newClient(t, g).modern(ctx, ask(`"s"`, "subscriptions/listen", `"notifications":{"toolsListChanged":true}`)))
		}()
		time.Sleep(10 * time.Minute)
		if ctx.Err() != nil {
			t.Fatal("the proxy cut the stream")
		}
		leave()
		<-done
		if got := messages(w.Body.Bytes()); len(got) != 2 || !strings.Contains(got[0], "acknowledged") || !strings.Contains(got[1], `"io.modelcontextprotocol/subscriptionId":"s"`) {
			t.Errorf("%q", got)
		}
		var cancelled wire.Cancelled
		if cause := <-srv.last(t).unheard; !errors.As(cause, &cancelled) {
			t.Errorf("ended because %v", cause)
		}
		g.CloseSessions(func(gateway.SessionInfo) bool { return true })
	})
}

// An idle is a connection through a proxy that cuts it when nothing passed for 30
// seconds.
type idle struct {
	*httptest.ResponseRecorder
	cut *time.Timer
}

func newIdle(cut func()) *idle {
	return &idle{httptest.NewRecorder(), time.AfterFunc(30*time.Second, cut)}
}

func (i *idle) Write(p []byte) (int, error) {
	i.cut.Reset(30 * time.Second)
	return i.ResponseRecorder.Write(p)
}

// TestQuietStreamsSurviveProxies is that of the legacy era.
func TestQuietStreamsSurviveProxies(t *testing.T) {
	for _, version := range []string{"2025-11-25", "2025-06-18"} {
		synctest.Test(t, func(t *testing.T) {
			g, err := gateway.New(gateway.Config{Open: (&server{}).open})
			if err != nil {
				t.Fatal(err)
			}
			c := newClient(t, g).initialize(version)
			ctx, leave := context.WithCancel(t.Context())
			call := c.request(ctx, http.MethodPost, call("1", "wait", `{"n":600000}`))
			get := c.request(ctx, http.MethodGet, "")
			posted, got := newIdle(leave), newIdle(leave)
			over := make(chan struct{})
			go func() { defer close(over); g.ServeHTTP(got, get) }()
			if g.ServeHTTP(posted, call); ctx.Err() != nil {
				t.Fatal("the proxy cut a stream")
			}
			if all := messages(posted.Body.Bytes()); len(all) != 1 || !strings.Contains(all[0], "waited") {
				t.Errorf("%q", all)
			}
			leave()
			<-over
			g.CloseSessions(func(gateway.SessionInfo) bool { return true })
		})
	}
}

func TestThoseWhoComeWhileASessionOpensShareIt(t *testing.T) {
	for _, openErr := range []error{nil, errors.New("the house is on fire")} {
		synctest.Test(t, func(t *testing.T) {
			srv := &server{openWait: time.Minute, openErr: openErr}
			g, err := gateway.New(gateway.Config{Open: srv.open})
			if err != nil {
				t.Fatal(err)
			}
			c := newClient(t, g)
			answers := make(chan string)
			for range 3 {
				go func() { answers <- c.ask(use("1", "echo", "{}")).Body.String() }()
			}
			ctx, leave := context.WithCancel(t.Context())
			left := make(chan struct{})
			go func() {
				defer close(left)
				g.ServeHTTP(httptest.NewRecorder(), c.modern(ctx, use("1", "echo", "{}")))
			}()
			synctest.Wait()
			leave()
			for range 3 {
				a := <-answers
				if openErr == nil && a != `{"jsonrpc":"2.0","id":1,"result":{}}` || openErr != nil && !strings.Contains(a, openErr.Error()) {
					t.Errorf("got %s", a)
				}
			}
			<-left
			if n := len(srv.all()); openErr == nil && n != 1 {
				t.Errorf("%d sessions", n)
			}
			if n := g.CloseSessions(func(gateway.SessionInfo) bool { return true }); openErr == nil && n != 1 || openErr != nil && n != 0 {
				t.Errorf("%d sessions are open", n)
			}
		})
	}
}

func TestOneSessionForManyAtOnce(t *testing.T) {
	srv := &server{}
	g, _ := newGateway(t, srv, nil)
	url := listen(t, g) + "/mcp"
	codes := make(chan string, 32)
	for i := range cap(codes) {
		go func() {
			body := use(`"same"`, "echo", fmt.Sprintf(`{"i":%d}`, i))
			r, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
			if err != nil {
				codes <- err.Error()
				return
			}
			r.Header = newClient(t, g).modern(t.Context(), body).Header
			w, err := http.DefaultClient.Do(r)
			if err != nil {
				codes <- err.Error()
				return
			}
			defer w.Body.Close()
			var b strings.Builder
			_, _ = fmt.Fprint(&b, w.StatusCode)
			buf := make([]byte, 100)
			n, _ := w.Body.Read(buf)
			b.Write(buf[:n])
			if b.String() != fmt.Sprintf(`200{"jsonrpc":"2.0","id":"same","result":{"i":%d}}`, i) {
				codes <- b.String()
				return
			}
			codes <- ""
		}()
	}
	for range cap(codes) {
		if e := <-codes; e != "" {
			t.Error(e)
		}
	}
	if n := len(srv.all()); n != 1 {
		t.Errorf("%d sessions", n)
	}
}
