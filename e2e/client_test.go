package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/specbox/specbox/internal/sse"
	"github.com/specbox/specbox/wire"
)

// A client is a bare MCP client over HTTP, which sees and sends bytes.
type client struct {
	url     string
	session string
	token   string
	ids     atomic.Int64
	http    *http.Client

	mu    sync.Mutex
	notes []wire.Message
}

// full are the capabilities of a client that can everything.
const full = `{"sampling":{},"elicitation":{"form":{}},"roots":{"listChanged":true}}`

// connect opens a session with capabilities.
func connect(t *testing.T, url, capabilities string) *client {
	t.Helper()
	c := &client{url: url, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	t.Cleanup(c.http.CloseIdleConnections)
	c.open(t, capabilities)
	return c
}

func (c *client) open(t *testing.T, capabilities string) []byte {
	t.Helper()
	result := c.must(t, "initialize", `{"protocolVersion":"2025-11-25","capabilities":`+capabilities+`,"clientInfo":{"name":"e2e","version":"1"}}`)
	c.notify(t, "notifications/initialized", "{}")
	return result
}

// post posts a body and returns the response, whose body the caller closes.
func (c *client) post(ctx context.Context, body string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	if c.session != "" {
		r.Header.Set("Mcp-Session-Id", c.session)
		r.Header.Set("MCP-Protocol-Version", "2025-11-25")
	}
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	return c.http.Do(r)
}

// request sends a request and returns the result, byte for byte.
func (c *client) request(ctx context.Context, method, params string) ([]byte, error) {
	return c.withID(ctx, fmt.Sprint(c.ids.Add(1)), method, params)
}

func (c *client) withID(ctx context.Context, id, method, params string) ([]byte, error) {
	resp, err := c.post(ctx, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":%s}`, id, method, params))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if s := resp.Header.Get("Mcp-Session-Id"); s != "" && c.session == "" {
		c.session = s
	}
	var reply wire.Message
	take := func(raw []byte) error {
		m, err := wire.Parse(raw)
		switch {
		case err != nil:
			return fmt.Errorf("%w: %d %.500s", err, resp.StatusCode, raw)
		case m.IsResponse() && string(m.ID) == id:
			reply = m
		case m.IsResponse() && m.ID == nil:
			reply = m // an error before the id was read
		case m.IsRequest():
			return c.respond(ctx, m)
		default:
			c.mu.Lock()
			defer c.mu.Unlock()
			c.notes = append(c.notes, m)
		}
		return nil
	}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if kind == "text/event-stream" {
		for events := sse.NewReader(resp.Body, 0); ; {
			e, err := events.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, err
			}
			if len(e.Data) > 0 {
				if err := take(e.Data); err != nil {
					return nil, err
				}
			}
		}
	} else {
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			return nil, err
		}
		if kind != "application/json" {
			return nil, fmt.Errorf("%d: %s", resp.StatusCode, body)
		}
		if err := take(body); err != nil {
			return nil, err
		}
	}
	if err := (wire.Reply{Error: reply.Error}).Err(); err != nil {
		return nil, err
	}
	if reply.Result == nil {
		return nil, fmt.Errorf("%s ended without an answer (status %d)", method, resp.StatusCode)
	}
	return reply.Result, nil
}

// respond answers a request of a server.
func (c *client) respond(ctx context.Context, m wire.Message) error {
	result := `{}`
	switch m.Method {
	case "roots/list":
		result = `{"roots":[{"uri":"file:///srv/root"}]}`
	case "elicitation/create":
		result = `{"action":"decline"}`
	case "sampling/createMessage":
		result = `{"model":"none","role":"assistant","content":{"type":"text","text":"sampled"}}`
	}
	resp, err := c.post(ctx, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result))
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// must is request for what has to work, within a minute.
func (c *client) must(t *testing.T, method, params string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	result, err := c.request(ctx, method, params)
	if err != nil {
		t.Fatalf("%s %.300s: %v", method, params, err)
	}
	return result
}

func (c *client) notify(t *testing.T, method, params string) {
	t.Helper()
	resp, err := c.post(t.Context(), fmt.Sprintf(`{"jsonrpc":"2.0","method":%q,"params":%s}`, method, params))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusAccepted {
		t.Fatalf("%s: status %d", method, resp.StatusCode)
	}
}

// call calls a tool that has to work, and returns the text of its result.
func (c *client) call(t *testing.T, tool, args string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	got, err := c.try(ctx, tool, args)
	if err != nil {
		t.Fatalf("%s %.300s: %v", tool, args, err)
	}
	return got
}

// try calls a tool. A result that says isError is an error.
func (c *client) try(ctx context.Context, tool, args string) (string, error) {
	result, err := c.request(ctx, "tools/call", callParams(tool, args))
	if err != nil {
		return "", err
	}
	var r struct {
		Content []struct{ Text string }
		IsError bool
	}
	if err := json.Unmarshal(result, &r); err != nil {
		return "", err
	}
	var text strings.Builder
	for _, block := range r.Content {
		text.WriteString(block.Text)
	}
	if r.IsError {
		return "", &toolError{text.String()}
	}
	return text.String(), nil
}

// A toolError is a result with isError.
type toolError struct{ text string }

func (e *toolError) Error() string { return "isError: " + e.text }

func callParams(tool, args string) string {
	return fmt.Sprintf(`{"name":%q,"arguments":%s}`, tool, args)
}

// tools returns the names of the tools that are listed.
func (c *client) tools(t *testing.T) []string {
	t.Helper()
	var names []string
	for cursor := ""; ; {
		params := "{}"
		if cursor != "" {
			params = fmt.Sprintf(`{"cursor":%q}`, cursor)
		}
		var r struct {
			Tools      []struct{ Name string }
			NextCursor string
		}
		decode(t, string(c.must(t, "tools/list", params)), &r)
		for _, tool := range r.Tools {
			names = append(names, tool.Name)
		}
		if cursor = r.NextCursor; cursor == "" {
			return names
		}
	}
}

// listen opens the stream of what belongs to no request and keeps what comes.
func (c *client) listen(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "text/event-stream")
	r.Header.Set("Mcp-Session-Id", c.session)
	r.Header.Set("MCP-Protocol-Version", "2025-11-25")
	resp, err := c.http.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("GET: status %d", resp.StatusCode)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for events := sse.NewReader(resp.Body, 0); ; {
			e, err := events.Next()
			if err != nil {
				return
			}
			m, err := wire.Parse(e.Data)
			switch {
			case err != nil:
			case m.IsRequest():
				_ = c.respond(ctx, m)
			default:
				c.mu.Lock()
				c.notes = append(c.notes, m)
				c.mu.Unlock()
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		resp.Body.Close()
		<-done
	})
}

// noted waits for a notification.
func (c *client) noted(t *testing.T, method string, part string) {
	t.Helper()
	eventually(t, 20*time.Second, "notification "+method, func() string {
		c.mu.Lock()
		defer c.mu.Unlock()
		var seen []string
		for _, m := range slices.Backward(c.notes) {
			if m.Method == method && bytes.Contains(m.Params, []byte(part)) {
				return ""
			}
			seen = append(seen, m.Method)
		}
		return fmt.Sprintf("got %q", seen)
	})
}

// end ends the session as a good client does.
func (c *client) end(t *testing.T) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, c.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Mcp-Session-Id", c.session)
	resp, err := c.http.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		t.Errorf("DELETE: status %d", resp.StatusCode)
	}
}
