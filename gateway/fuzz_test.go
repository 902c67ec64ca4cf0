package gateway_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/specbox/specbox/gateway"
	"github.com/specbox/specbox/wire"
)

// seeds are bodies of which something can be wrong.
var seeds = []string{
	"", " ", "\x00", "{", "[", "[]", "{}", "null", `"`, "7", "-", "1.", "01", "1e", "tru", "\xff",
	`{"jsonrpc":"2.0"}`, `{"jsonrpc":"2.0","id":1}`, `{"jsonrpc":"2.0","id":null,"method":"ping"}`,
	`{"jsonrpc":"2.0","id":[1],"method":"ping"}`, `{"jsonrpc":"2.0","id":true,"method":"ping"}`,
	`{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}`, `{"jsonrpc":"2.0","id":1,"method":7}`,
	`{"jsonrpc":"2.0","id":-0.0e+7,"method":"ping"}`, `{"jsonrpc":"2.0","id":"\ud800","method":"\u0070ing"}`,
	`{"jsonrpc":"2.0","id":1,"id":2,"method":"ping","method":"x"}`,
	`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1e999}}`,
	`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":{}}}`,
	`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":""}}`,
	`{"jsonrpc":"2.0","method":"notifications/cancelled"}`,
	`{"jsonrpc":"2.0","id":"x","result":{}}`, `{"jsonrpc":"2.0","id":null,"error":{}}`,
	`{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}`,
	`[{"jsonrpc":"2.0","id":1,"method":"ping"},[],{},1]`, initializeBody,
	call("1", "echo", `{"a":[1,-2.5e-7,"\\\"\u00e9",true,false,null,{}]}`), call("2", "lines", "{}"), call("3", "panic", "{}"),
	strings.Repeat("[", 999) + strings.Repeat("]", 999), strings.Repeat("[", 1001) + strings.Repeat("]", 1001),
	strings.Repeat(`{"a":`, 1900), strings.Repeat("[", 4500) + strings.Repeat("]", 4500),
	"\"a\nb\"", "\"\x1f\"", "\"abcdefghijk\x01mnop\"", `"abcdefgh\u12g4"`, `"abcdefgh\`, `"\x"`, "\"\x7f\u0080abcdefgh\u00ff\"",
}

// FuzzBody holds that every body gets an answer, and a request its own.
func FuzzBody(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	g, _ := newGateway(f, &server{}, func(c *gateway.Config) { c.Limits.Body = 10_000; c.Limits.Sessions = 1 << 30 })
	old, now := newClient(f, g).initialize("2025-03-26"), newClient(f, g).initialize("2025-11-25")
	f.Fuzz(func(t *testing.T, b []byte) {
		if strings.Contains(string(b), `wait`) || strings.Contains(string(b), "createMessage") || strings.Contains(string(b), "elicit") || strings.Contains(string(b), "roots") || strings.Contains(string(b), "size") {
			return // tools that wait for somebody
		}
		m, err := wire.Parse(b)
		proper := err == nil && json.Valid(b) && utf8.Valid(b) && m.IsRequest() && (m.ID[0] == '"' || m.ID[0] == '-' || m.ID[0] >= '0' && m.ID[0] <= '9')
		for _, c := range []*client{old, now, newClient(t, g)} {
			w := c.post(string(b))
			if w.Code == 202 {
				if w.Body.Len() > 0 || proper {
					t.Fatalf("202 %q", w.Body)
				}
				continue
			}
			body := w.Body.Bytes()
			if w.Header().Get("Content-Type") == "text/event-stream" {
				all := messages(body)
				body = []byte(all[len(all)-1])
			}
			if !json.Valid(body) {
				t.Fatalf("%d, no JSON: %q", w.Code, body)
			}
			if proper && len(b) < 10_000 && string(wire.Get(body, "id")) != string(m.ID) {
				t.Fatalf("%s was answered with %s", b, body)
			}
			if c.key == "" {
				g.CloseSessions(func(i gateway.SessionInfo) bool { return i.Version != "2025-03-26" && i.Version != "2025-11-25" })
			}
		}
		if st := g.Stats(); st.Calls != 0 {
			t.Fatalf("%d calls are left", st.Calls)
		}
	})
}

// FuzzLine holds that no line ends a session on stdio, and that requests are
// answered.
func FuzzLine(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	g, _ := newGateway(f, &server{}, func(c *gateway.Config) { c.Limits.Body = 10_000 })
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, tool := range []string{"wait", "createMessage", "elicit", "roots", "size"} {
			if strings.Contains(string(b), tool) {
				return // it waits for somebody
			}
		}
		p := newPipe(t, g)
		p.initialize("2025-03-26")
		go func() {
			_, _ = io.WriteString(p.in, strings.ReplaceAll(string(b), "last", "")+"\n"+`{"jsonrpc":"2.0","id":"last","method":"ping"}`+"\n")
		}()
		for {
			line := p.hear()
			if !json.Valid([]byte(line)) {
				t.Fatalf("no JSON: %q", line)
			}
			if line == `{"jsonrpc":"2.0","id":"last","result":{}}` {
				break
			}
		}
		_ = p.in.Close()
		_, _ = io.Copy(io.Discard, p.out)
		if err := <-p.done; err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzWellFormed compares what is taken for JSON with the standard library.
func FuzzWellFormed(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	g, _ := newGateway(f, &server{}, nil)
	c := newClient(f, g).initialize("2025-11-25")
	f.Fuzz(func(t *testing.T, b []byte) {
		depth, deepest := 0, 0
		for _, c := range b {
			switch c {
			case '[', '{':
				depth++
				deepest = max(deepest, depth)
			case ']', '}':
				depth--
			}
		}
		if deepest > 900 || !utf8.Valid(b) {
			return
		}
		body := `{"jsonrpc":"2.0","id":1,"method":"raw","params":{"value":` + string(b) + `}}`
		w := httptest.NewRecorder()
		g.ServeHTTP(w, c.request(t.Context(), http.MethodPost, body))
		if got, want := w.Code != 400 || !strings.Contains(w.Body.String(), "-32700"), json.Valid([]byte(body)); got != want {
			t.Fatalf("%q: taken for JSON: %v, the standard library: %v; %s", b, got, want, w.Body)
		}
	})
}

// FuzzModern holds that whatever the headers, the path and the _meta of a modern
// request say, it gets one answer, and reaches the server only if they agree.
func FuzzModern(f *testing.F) {
	for _, s := range []string{"echo", "é", "=?base64?ZWNobw==?=", "=?base64?*?=", "=?base64?", "=?base64?=", "?=", "a\tb", "\x00", "\xff", "", "-._~:@+="} {
		f.Add(s, "/mcp", wire.Modern, `"`+s+`"`)
		f.Add("echo", "/s/"+s+"/mcp", s, "{}")
	}
	f.Add("x", "/s//s/x/mcp/one/", "2025-11-25", "null")
	srv := &server{}
	g, _ := newGateway(f, srv, func(c *gateway.Config) { c.Limits.Sessions = 1 << 30 })
	f.Fuzz(func(t *testing.T, header, path, version, member string) {
		if !json.Valid([]byte(member)) || !utf8.ValidString(member) {
			return
		}
		c := newClient(t, g)
		body := strings.Replace(use("1", "echo", `{"said":true}`), `"_meta":{`, `"_meta":{"dev.specbox/session":`+member+`,`, 1)
		r := c.modern(t.Context(), body)
		r.URL.Path = path
		r.Header["Mcp-Name"] = []string{header}
		r.Header["Mcp-Protocol-Version"] = []string{version}
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)
		reached := strings.Contains(w.Body.String(), `"said":true`)
		plain := header == "echo" || strings.HasPrefix(header, "=?base64?")
		if reached && (w.Code != 200 || !plain || version != wire.Modern) {
			t.Fatalf("%q %q %q %s: %d %s", header, path, version, member, w.Code, w.Body)
		}
		if !reached && w.Code == 200 || w.Code == 500 {
			t.Fatalf("%q %q %q %s: %d %s", header, path, version, member, w.Code, w.Body)
		}
		g.CloseSessions(func(gateway.SessionInfo) bool { return true })
	})
}
