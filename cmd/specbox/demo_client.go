package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
)

// An mcpClient speaks MCP over Streamable HTTP, no more than the protocol
// asks of one: it can be asked for nothing. Its requests may be concurrent.
type mcpClient struct {
	url     string
	http    *http.Client
	session session
	lastID  atomic.Int64
}

func newMCPClient(url string) *mcpClient {
	return &mcpClient{url: url, http: &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone()}}
}

// initialize opens a session.
func (c *mcpClient) initialize(ctx context.Context) error {
	_, err := c.request(ctx, "initialize", json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"specbox-demo","version":"1"}}`))
	if err != nil {
		return err
	}
	resp, err := c.send(ctx, []byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`))
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// send posts one message, and makes an error of an answer that is one.
func (c *mcpClient) send(ctx context.Context, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("Content-Type", "application/json")
	if c.session.id != "" {
		req.Header.Set("Mcp-Session-Id", c.session.id)
		req.Header.Set("Mcp-Protocol-Version", c.session.version)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= http.StatusMultipleChoices {
		defer resp.Body.Close()
		said, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<16)) // what can be read of it explains
		return nil, fmt.Errorf("%s: %s", resp.Status, short(string(said), 300))
	}
	return resp, nil
}

// request sends a request and returns its result.
func (c *mcpClient) request(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	id := c.lastID.Add(1)
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "method": method, "params": params})
	if err != nil {
		return nil, err
	}
	resp, err := c.send(ctx, body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", method, err)
	}
	defer resp.Body.Close()
	var reply struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
		Result json.RawMessage `json:"result"`
		Error  *struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	found := false
	take := func(m []byte) {
		if found {
			return
		}
		next := reply
		if json.Unmarshal(m, &next) == nil && next.Method == "" && string(next.ID) == fmt.Sprint(id) {
			reply, found = next, true
		}
	}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		_, err = readEvents(resp.Body, take)
	} else if body, err = io.ReadAll(resp.Body); err == nil {
		take(body)
	}
	switch {
	case !found && err != nil:
		return nil, fmt.Errorf("%s: %w", method, err)
	case !found:
		return nil, fmt.Errorf("%s: the answer is missing", method)
	case reply.Error != nil:
		return nil, fmt.Errorf("%s: %s", method, reply.Error.Message)
	}
	if method == "initialize" {
		var r struct {
			Version string `json:"protocolVersion"`
		}
		if err := json.Unmarshal(reply.Result, &r); err != nil {
			return nil, fmt.Errorf("%s: %w", method, err)
		}
		c.session = session{resp.Header.Get("Mcp-Session-Id"), r.Version}
	}
	return reply.Result, nil
}

// list asks for a list, all its pages, and returns how long it is.
func (c *mcpClient) list(ctx context.Context, method, member string) (int, error) {
	n, params := 0, json.RawMessage(`{}`)
	for {
		raw, err := c.request(ctx, method, params)
		if err != nil {
			return n, err
		}
		var page map[string]json.RawMessage
		var items []json.RawMessage
		var cursor string
		if err := json.Unmarshal(raw, &page); err != nil {
			return n, fmt.Errorf("%s: %w", method, err)
		}
		if err := json.Unmarshal(page[member], &items); err != nil {
			return n, fmt.Errorf("%s: %w", method, err)
		}
		n += len(items)
		if page["nextCursor"] == nil {
			return n, nil
		}
		if err := json.Unmarshal(page["nextCursor"], &cursor); err != nil {
			return n, fmt.Errorf("%s: %w", method, err)
		}
		if params, err = json.Marshal(map[string]string{"cursor": cursor}); err != nil {
			return n, err
		}
	}
}

// call calls a tool and returns the text of its answer. An answer that says
// that the tool failed is an error.
func (c *mcpClient) call(ctx context.Context, name, args string) (string, error) {
	params, err := json.Marshal(map[string]any{"name": name, "arguments": json.RawMessage(args)})
	if err != nil {
		return "", err
	}
	raw, err := c.request(ctx, "tools/call", params)
	if err != nil {
		return "", err
	}
	var result struct {
		Content []struct {
			Text string `json:"text"`
		} `json:"content"`
		IsError bool `json:"isError"`
	}
	if err := json.Unmarshal(raw, &result); err != nil {
		return "", fmt.Errorf("tools/call: %w", err)
	}
	var text []string
	for _, c := range result.Content {
		text = append(text, c.Text)
	}
	said := strings.Join(text, "\n")
	if result.IsError {
		return "", fmt.Errorf("%s says that it failed: %s", name, short(said, 200))
	}
	return said, nil
}
