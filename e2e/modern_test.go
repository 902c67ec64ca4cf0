package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/specbox/specbox/internal/sse"
	"github.com/specbox/specbox/wire"
)

// A modernClient is a bare client of the era without sessions, over HTTP.
type modernClient struct {
	url          string
	conversation string // "" names none
	capabilities string
	token        string
	http         *http.Client
	ids          atomic.Int64

	mu    sync.Mutex
	notes []wire.Message
}

func modern(t *testing.T, url, capabilities string) *modernClient {
	t.Helper()
	c := &modernClient{url: url, conversation: "e2e-" + strings.ReplaceAll(t.Name(), "/", "-"), capabilities: capabilities,
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	t.Cleanup(c.http.CloseIdleConnections)
	return c
}

// meta returns params, which are an object, with the _meta of the era in them.
func (c *modernClient) meta(params string) string {
	meta := fmt.Sprintf(`{%q:%q,%q:%s,%q:{"name":"e2e","version":"1"}`, wire.MetaVersion, wire.Modern, wire.MetaCapabilities, c.capabilities, wire.MetaClientInfo)
	if own := wire.Get([]byte(params), "_meta"); own != nil {
		return string(wire.Set([]byte(params), []byte(meta+","+string(own[1:])), "_meta"))
	}
	return string(wire.Set([]byte(params), []byte(meta+"}"), "_meta"))
}

// post sends a request. The caller closes the body.
func (c *modernClient) post(ctx context.Context, id, method, params string) (*http.Response, error) {
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":%s}`, id, method, c.meta(params))
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	r.Header.Set("MCP-Protocol-Version", wire.Modern)
	r.Header.Set("Mcp-Method", method)
	for _, key := range []string{"name", "uri"} {
		if v := wire.Str([]byte(params), key); v != "" && (method == "tools/call" || method == "prompts/get" || method == "resources/read") {
			r.Header.Set("Mcp-Name", v)
		}
	}
	if c.conversation != "" {
		r.Header.Set("Specbox-Session", c.conversation)
	}
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	return c.http.Do(r)
}

// once sends a request and returns its result, byte for byte.
func (c *modernClient) once(ctx context.Context, method, params string) ([]byte, error) {
	id := fmt.Sprint(c.ids.Add(1))
	resp, err := c.post(ctx, id, method, params)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var reply wire.Message
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	switch kind {
	case "text/event-stream":
		for events := sse.NewReader(resp.Body, wire.DefaultLimit); reply.Raw == nil; {
			e, err := events.Next()
			if errors.Is(err, io.EOF) {
				return nil, fmt.Errorf("%s ended without an answer", method)
			}
			if err != nil {
				return nil, err
			}
			if len(e.Data) == 0 {
				continue
			}
			m, err := wire.Parse(e.Data)
			switch {
			case err != nil:
				return nil, fmt.Errorf("%w: %.300s", err, e.Data)
			case m.IsResponse():
				reply = m
			case m.IsRequest():
				return nil, fmt.Errorf("a request on a stream of the modern era: %s", m.Raw)
			default:
				c.mu.Lock()
				c.notes = append(c.notes, m)
				c.mu.Unlock()
			}
		}
	case "application/json":
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			return nil, err
		}
		if reply, err = wire.Parse(b); err != nil {
			return nil, fmt.Errorf("%w: %.300s", err, b)
		}
	default:
		b, _ := io.ReadAll(resp.Body)
		return nil, fmt.Errorf("%s: %s: %s", method, resp.Status, b)
	}
	if err := (wire.Reply{Error: reply.Error}).Err(); err != nil {
		return nil, err
	}
	if string(reply.ID) != id {
		return nil, fmt.Errorf("the answer to %s has the id %s", id, reply.ID)
	}
	return reply.Result, nil
}

// answers are what a client says to the questions of servers.
func answers(method string) string {
	switch method {
	case "roots/list":
		return `{"roots":[{"uri":"file:///srv/root"}]}`
	case "elicitation/create":
		return `{"action":"decline"}`
	case "sampling/createMessage":
		return `{"model":"none","role":"assistant","content":{"type":"text","text":"sampled"}}`
	}
	return `{}`
}

// maxRounds is how often a client comes again.
const maxRounds = 20

// request sends a request, answers what it is asked, and comes again, until
// there is a result.
func (c *modernClient) request(ctx context.Context, method, params string) ([]byte, error) {
	again := params
	for range maxRounds {
		result, err := c.once(ctx, method, again)
		if err != nil || wire.Str(result, "resultType") != "input_required" {
			return result, err
		}
		if again, err = c.retry(params, result); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%s still wants input after %d rounds", method, maxRounds)
}

// retry returns params with answers to what a result asked for.
func (c *modernClient) retry(params string, result []byte) (string, error) {
	var asked struct {
		InputRequests map[string]struct{ Method string }
		RequestState  json.RawMessage
	}
	if err := json.Unmarshal(result, &asked); err != nil {
		return "", err
	}
	responses := map[string]json.RawMessage{}
	for key, q := range asked.InputRequests {
		responses[key] = json.RawMessage(answers(q.Method))
	}
	b, err := json.Marshal(responses)
	if err != nil {
		return "", err
	}
	again := wire.Set([]byte(params), b, "inputResponses")
	if asked.RequestState != nil {
		again = wire.Set(again, asked.RequestState, "requestState")
	}
	return string(again), nil
}

// must is request for what has to work, within a minute.
func (c *modernClient) must(t *testing.T, method, params string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	result, err := c.request(ctx, method, params)
	if err != nil {
		t.Fatalf("%s %.300s: %v", method, params, err)
	}
	return result
}

// call calls a tool that has to work, and returns the text of its result.
func (c *modernClient) call(t *testing.T, tool, args string) string {
	t.Helper()
	return text(t, c.must(t, "tools/call", callParams(tool, args)))
}

// text returns the text of a result.
func text(t *testing.T, result []byte) string {
	t.Helper()
	var r struct {
		Content []struct{ Text string }
		IsError bool
	}
	decode(t, string(result), &r)
	if r.IsError || len(r.Content) == 0 {
		t.Fatalf("got %.300s", result)
	}
	return r.Content[0].Text
}
