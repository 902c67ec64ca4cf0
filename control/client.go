package control

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
)

// A Client asks the SpecBox that runs on a state folder. It is safe for
// concurrent use. Where none runs, its methods return an error for which
// errors.Is(err, [ErrNotRunning]). Errors of the other side are an [*Error]
// with its hint.
type Client struct {
	http http.Client
}

// Dial returns a client for the state folder dir. It does not connect yet.
func Dial(dir string) *Client {
	return &Client{http.Client{Transport: &http.Transport{
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, dir) },
		DisableCompression: true,
		DisableKeepAlives:  true, // a command asks once; nothing is left open
	}}}
}

// Health describes the running SpecBox.
func (c *Client) Health(ctx context.Context) (h Health, err error) {
	return h, c.ask(ctx, http.MethodGet, "/v1/health", nil, &h)
}

// PS lists the sandboxes that are alive.
func (c *Client) PS(ctx context.Context) (rows []Sandbox, err error) {
	return rows, c.ask(ctx, http.MethodGet, "/v1/ps", nil, &rows)
}

// Conversations lists the conversations with models that are remembered.
func (c *Client) Conversations(ctx context.Context) (rows []Conversation, err error) {
	return rows, c.ask(ctx, http.MethodGet, "/v1/conversations", nil, &rows)
}

// Activity tells what happened at each server lately.
func (c *Client) Activity(ctx context.Context) (a Activity, err error) {
	return a, c.ask(ctx, http.MethodGet, "/v1/activity", nil, &a)
}

// Servers lists the configured servers.
func (c *Client) Servers(ctx context.Context) (rows []Server, err error) {
	return rows, c.ask(ctx, http.MethodGet, "/v1/servers", nil, &rows)
}

// Catalog tells what is stored of each server.
func (c *Client) Catalog(ctx context.Context) (rows []CatalogRow, err error) {
	return rows, c.ask(ctx, http.MethodGet, "/v1/catalog", nil, &rows)
}

// Tools lists the tools as tenant sees them; "" is the default tenant.
func (c *Client) Tools(ctx context.Context, tenant string) (rows []Tool, err error) {
	return rows, c.ask(ctx, http.MethodGet, "/v1/tools?"+url.Values{"tenant": {tenant}}.Encode(), nil, &rows)
}

// Stop stops the sandboxes that s selects and returns how many they were.
func (c *Client) Stop(ctx context.Context, s Selector) (int, error) {
	var n stopped
	err := c.ask(ctx, http.MethodPost, "/v1/stop", s, &n)
	return n.Stopped, err
}

// Logs calls on with what the sandboxes of server printed. With follow it goes
// on until ctx ends, or SpecBox does.
func (c *Client) Logs(ctx context.Context, tenant, server string, follow bool, on func(Line)) error {
	q := url.Values{"server": {server}, "tenant": {tenant}}
	if follow {
		q.Set("follow", "true")
	}
	_, err := c.stream(ctx, http.MethodGet, "/v1/logs?"+q.Encode(), nil, func(e event) {
		if e.Line != nil {
			on(*e.Line)
		}
	})
	return err
}

// Call calls a tool. arguments is a JSON object, or nil. on may be nil.
func (c *Client) Call(ctx context.Context, tenant, name string, arguments json.RawMessage, on func(Progress)) (Result, error) {
	raw, err := c.stream(ctx, http.MethodPost, "/v1/call", callRequest{tenant, name, arguments}, progress(on))
	if err != nil {
		return Result{}, err
	}
	var said struct {
		IsError bool `json:"isError"`
	}
	if err := json.Unmarshal(raw, &said); err != nil {
		return Result{}, fmt.Errorf("the result of %s is not what MCP calls a result: %w", name, err)
	}
	return Result{raw, said.IsError}, nil
}

// Refresh reads the lists of servers again, of all with none named.
func (c *Client) Refresh(ctx context.Context, servers []string, on func(Progress)) error {
	_, err := c.stream(ctx, http.MethodPost, "/v1/refresh", names{servers}, progress(on))
	return err
}

// Update installs what is missing of servers, of all with none named, and
// moves pinned versions on.
func (c *Client) Update(ctx context.Context, servers []string, on func(Progress)) error {
	_, err := c.stream(ctx, http.MethodPost, "/v1/update", names{servers}, progress(on))
	return err
}

func progress(on func(Progress)) func(event) {
	return func(e event) {
		if e.Progress != nil && on != nil {
			on(*e.Progress)
		}
	}
}

// send sends a request and returns the answer, whose status is 200.
func (c *Client) send(ctx context.Context, method, path string, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		b := new(bytes.Buffer)
		enc := json.NewEncoder(b)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(in); err != nil {
			return nil, fmt.Errorf("write the request: %w", err)
		}
		body = b
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://specbox"+path, body)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if e := new(url.Error); errors.As(err, &e) {
			err = e.Err // the made-up address would only confuse
		}
		return nil, err
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	e := &Error{Status: resp.StatusCode}
	if json.NewDecoder(resp.Body).Decode(e) != nil || e.Message == "" {
		e.Message = "the control socket answered " + resp.Status
	}
	return nil, e
}

// ask sends a request and decodes its answer.
func (c *Client) ask(ctx context.Context, method, path string, in, out any) error {
	resp, err := c.send(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return cut(err)
	}
	return nil
}

// stream sends a request, hands the lines of its answer to on, and returns its
// result, if it has one.
func (c *Client) stream(ctx context.Context, method, path string, in any, on func(event)) (json.RawMessage, error) {
	resp, err := c.send(ctx, method, path, in)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	r := bufio.NewReader(resp.Body)
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return nil, cut(err)
		}
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("read the answer of specbox: %w", err)
		}
		switch {
		case e.End:
			return nil, nil
		case e.Error != nil:
			return nil, e.Error
		case e.Result != nil:
			// Not made at the length that was told: memory is taken as it comes.
			var raw bytes.Buffer
			if _, err := io.CopyN(&raw, r, int64(*e.Result)); err != nil {
				return nil, cut(err)
			}
			return raw.Bytes(), nil
		default:
			on(e)
		}
	}
}

// cut explains an answer that ended too early.
func cut(err error) error {
	return &Error{Message: fmt.Sprintf("specbox ended in the middle of its answer (%v)", err), Hint: "see what it logged, and start it again", Cause: err}
}
