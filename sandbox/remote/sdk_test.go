package remote_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/wire"
)

// sdkServer is a server of the official SDK.
func sdkServer() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "official", Version: "1"}, nil)
	schema := json.RawMessage(`{"type":"object"}`)
	s.AddTool(&mcp.Tool{Name: "echo", InputSchema: schema}, func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: string(r.Params.Arguments)}}}, nil
	})
	s.AddTool(&mcp.Tool{Name: "progress", InputSchema: schema}, func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		for i := range 3 {
			if err := r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: float64(i)}); err != nil {
				return nil, err
			}
		}
		return &mcp.CallToolResult{Content: []mcp.Content{}}, nil
	})
	s.AddTool(&mcp.Tool{Name: "ask", InputSchema: schema}, func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		answer, err := r.Session.Elicit(ctx, &mcp.ElicitParams{Message: "who?", RequestedSchema: schema})
		if err != nil {
			return nil, err
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: answer.Action}}}, nil
	})
	s.AddTool(&mcp.Tool{Name: "grow", InputSchema: schema}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		s.AddTool(&mcp.Tool{Name: "grown", InputSchema: schema}, nil)
		return &mcp.CallToolResult{Content: []mcp.Content{}}, nil
	})
	return s
}

// A client declines what it is asked and hears notifications.
type client struct {
	mu    sync.Mutex
	heard []string
}

func (h *client) Notified(_ *wire.Conn, m wire.Message) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.heard = append(h.heard, m.Method)
}

func (h *client) Requested(c *wire.Conn, m wire.Message) {
	go func() { // a handler must not block, and a Respond waits for the server
		_ = c.Respond(m.ID, wire.Reply{Result: []byte(`{"action":"decline"}`)})
	}()
}

func (h *client) has(method string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Contains(strings.Join(h.heard, " "), method)
}

func TestOfficialSDK(t *testing.T) {
	getServer := func(s *mcp.Server) func(*http.Request) *mcp.Server {
		return func(*http.Request) *mcp.Server { return s }
	}
	for _, tt := range []struct {
		name      string
		transport string
		handler   func(s *mcp.Server) http.Handler
	}{
		{"streamable", "http", func(s *mcp.Server) http.Handler {
			return mcp.NewStreamableHTTPHandler(getServer(s), nil)
		}},
		{"streamable with stored events", "", func(s *mcp.Server) http.Handler {
			return mcp.NewStreamableHTTPHandler(getServer(s), &mcp.StreamableHTTPOptions{EventStore: mcp.NewMemoryEventStore(nil)})
		}},
		{"sse", "sse", func(s *mcp.Server) http.Handler { return mcp.NewSSEHandler(getServer(s), nil) }},
		{"sse, found out", "", func(s *mcp.Server) http.Handler { return mcp.NewSSEHandler(getServer(s), nil) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			server := sdkServer()
			s := httptest.NewServer(tt.handler(server))
			defer s.Close()
			defer s.CloseClientConnections()
			c, inst := connect(t, &sandbox.Spec{Server: "far", URL: s.URL, Transport: tt.transport}, io.Discard)
			h := &client{}
			c.Handle(h)
			if err := shake(t, c); err != nil {
				t.Fatal(err)
			}
			if got := call(t, c, "tools/list", "{}"); !strings.Contains(got, `"name":"echo"`) {
				t.Errorf("tools/list: %s", got)
			}
			if got := call(t, c, "tools/call", `{"name":"echo","arguments":{"n":9007199254740993}}`); !strings.Contains(got, "9007199254740993") {
				t.Errorf("echo: %s", got)
			}
			if got := call(t, c, "tools/call", `{"name":"ask","arguments":{}}`); !strings.Contains(got, "decline") {
				t.Errorf("ask: %s", got)
			}
			progress := make(chan string, 3)
			p, err := c.Start("tools/call", []byte(`{"name":"progress","arguments":{},"_meta":{"progressToken":"mine"}}`), func(params []byte) { progress <- string(params) })
			if err != nil {
				t.Fatal(err)
			}
			<-p.Done()
			if _, err := p.Outcome(); err != nil || len(progress) != 3 || !strings.Contains(<-progress, `"mine"`) {
				t.Errorf("progress: %v, %d notifications", err, len(progress))
			}
			call(t, c, "tools/call", `{"name":"grow","arguments":{}}`)
			eventually(t, "list_changed", func() bool { return h.has("notifications/tools/list_changed") })
			var calls sync.WaitGroup
			for i := range 20 {
				calls.Go(func() {
					want := fmt.Sprintf(`{\"i\":%d}`, i)
					r, err := c.Call(t.Context(), "tools/call", fmt.Appendf(nil, `{"name":"echo","arguments":{"i":%d}}`, i))
					if err != nil || !strings.Contains(string(r.Result), want) {
						t.Errorf("call %d: %s, %v", i, r.Result, err)
					}
				})
			}
			calls.Wait()
			if err := inst.Close(); err != nil {
				t.Error(err)
			}
			eventually(t, "the end of the server's session", func() bool {
				n := 0
				for range server.Sessions() {
					n++
				}
				return n == 0
			})
		})
	}
	t.Run("JSON answers, no session", func(t *testing.T) {
		s := httptest.NewServer(mcp.NewStreamableHTTPHandler(getServer(sdkServer()), &mcp.StreamableHTTPOptions{JSONResponse: true, Stateless: true}))
		defer s.Close()
		c, _ := connect(t, &sandbox.Spec{Server: "far", URL: s.URL}, io.Discard)
		if err := shake(t, c); err != nil {
			t.Fatal(err)
		}
		if got := call(t, c, "tools/call", `{"name":"echo","arguments":{"a":1}}`); !strings.Contains(got, `{\"a\":1}`) {
			t.Errorf("echo: %s", got)
		}
	})
}

// A server that was started anew does not know the session: the connection
// ends at once, so that the next call begins another.
func TestRestartedServerEndsTheSession(t *testing.T) {
	var mu sync.Mutex
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return sdkServer() }, nil)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		h := handler
		mu.Unlock()
		h.ServeHTTP(w, r)
	}))
	defer s.Close()
	defer s.CloseClientConnections()
	var stderr strings.Builder
	c, inst := connect(t, &sandbox.Spec{Server: "far", URL: s.URL}, &stderr)
	if err := shake(t, c); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	handler = mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return sdkServer() }, nil)
	mu.Unlock()
	if _, err := c.Call(t.Context(), "tools/list", nil); err == nil {
		t.Error("a call of a session that is gone has no error")
	}
	<-c.Done()
	if got := inst.Usage().Exit; !strings.Contains(got, "ended the session (404)") {
		t.Errorf("exit %q", got)
	}
	_ = inst.Close()
	if !strings.Contains(stderr.String(), "ended the session") {
		t.Errorf("stderr %q", stderr.String())
	}
}
