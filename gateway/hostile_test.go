package gateway_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/specbox/specbox/gateway"
	"github.com/specbox/specbox/trace"
)

// A request that different readers understand differently is refused: a server
// would do what was not checked.
func TestAmbiguousRequestsAreRefused(t *testing.T) {
	s := &server{}
	g, _ := newGateway(t, s, nil)
	c := newClient(t, g).initialize("2025-11-25")
	for _, params := range []string{
		`{"name":"echo","name":"other","arguments":{}}`, `{"name":"echo","Name":"other"}`, `{"name":"echo","n\u0061me":"other"}`,
		`{"name":"echo","_meta":{},"_meta":{"progressToken":1}}`, `{"name":"echo","_meta":{"progressToken":1,"progresstoken":2}}`,
		`{"name":"echo","ref":{"name":"a","NAME":"b"}}`, `{"name":"echo","arguments":{},"arguments":{"x":1}}`,
	} {
		w := c.post(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":` + params + `}`)
		if id, e := errorOf(t, w.Body.Bytes()); w.Code != http.StatusBadRequest || id != "7" || e.Code != -32602 || !strings.Contains(e.Message, "twice") {
			t.Errorf("%s: %d %s", params, w.Code, w.Body)
		}
	}
	w := c.post(call("8", "echo", `{"a":1,"a":2,"A":3}`)) // what a tool does with its arguments is its own affair
	if w.Code != http.StatusOK || strings.Contains(w.Body.String(), "error") {
		t.Errorf("arguments: %d %s", w.Code, w.Body)
	}
}

// What a session remembers of its client is bounded, as is what events tell.
func TestWhatAClientSaysOfItselfIsBounded(t *testing.T) {
	g, log := newGateway(t, &server{}, nil)
	c := newClient(t, g)
	hello := func(name, caps string) *httptest.ResponseRecorder {
		return c.post(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"experimental":{"x":"` + caps + `"}},"clientInfo":{"name":"` + name + `","version":"1"}}}`)
	}
	w := hello("n", strings.Repeat("x", 1<<20))
	if _, e := errorOf(t, w.Body.Bytes()); w.Code != http.StatusBadRequest || !strings.Contains(e.Message, "over the limit") {
		t.Errorf("a megabyte of capabilities: %d %.200s", w.Code, w.Body)
	}
	if w := hello(strings.Repeat("é", 20_000), "x"); w.Code != http.StatusOK {
		t.Errorf("a long name: %d %.200s", w.Code, w.Body)
	}
	for _, e := range log.Events() {
		if e.Kind == trace.SessionOpen && len(e.Detail) > 200 {
			t.Errorf("an event tells of a client in %d bytes", len(e.Detail))
		}
	}
	if n := g.Stats().Sessions; n != 1 {
		t.Errorf("%d sessions are open", n)
	}
}

// Pages of foreign sites reach nothing that stands beside the gateway.
func TestGuard(t *testing.T) {
	g, _ := newGateway(t, &server{}, func(c *gateway.Config) { c.Loopback = true })
	h := g.Guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	for _, tt := range []struct {
		host, origin string
		want         int
	}{
		{"127.0.0.1:8484", "", 204}, {"localhost", "http://localhost:3000", 204}, {"evil.example", "", 403}, {"127.0.0.1", "http://evil.example", 403}, {"127.0.0.1", "null", 403},
	} {
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		r.Host = tt.host
		if tt.origin != "" {
			r.Header.Set("Origin", tt.origin)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != tt.want {
			t.Errorf("Host %s, Origin %q: %d, want %d", tt.host, tt.origin, w.Code, tt.want)
		}
	}
}
