package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// handle answers a request with the bytes of its result.
func (s *server) handle(ctx context.Context, m message) ([]byte, error) {
	if m.Method == s.m.listError {
		return nil, &failure{code: -32603, message: "nasty refuses " + m.Method}
	}
	modern, err := s.modernRequest(m)
	if err != nil {
		return nil, err
	}
	if !modern {
		return s.serveMethod(ctx, m, false)
	}
	var result []byte
	switch m.Method {
	case "server/discover":
		result = s.discover()
	case "subscriptions/listen":
		result, err = s.listen(ctx, m)
	default:
		result, err = s.serveMethod(ctx, m, true)
	}
	if err != nil {
		return nil, err
	}
	return s.complete(m, result), nil
}

// serveMethod serves the methods that both eras have, or the legacy one.
func (s *server) serveMethod(ctx context.Context, m message, modern bool) ([]byte, error) {
	switch m.Method {
	case "initialize":
		return s.initialize(ctx, m.Params)
	case "ping":
		return []byte("{}"), nil
	case "tools/list":
		return s.listTools(m.Params, modern)
	case "tools/call":
		return s.callTool(ctx, m, modern)
	case "prompts/list":
		return s.list(m.Params, "prompts", prompts)
	case "prompts/get":
		return getPrompt(m.Params)
	case "resources/list":
		return s.list(m.Params, "resources", resources)
	case "resources/templates/list":
		return s.list(m.Params, "resourceTemplates", templates)
	case "resources/read":
		return readResource(m.Params, modern)
	case "resources/subscribe", "resources/unsubscribe":
		uri := field(m.Params, "uri")
		s.mu.Lock()
		defer s.mu.Unlock()
		s.subscribed[uri] = m.Method == "resources/subscribe"
		return []byte("{}"), nil
	case "completion/complete":
		return complete(m.Params)
	case "logging/setLevel":
		s.mu.Lock()
		defer s.mu.Unlock()
		s.level = field(m.Params, "level")
		return []byte("{}"), nil
	}
	return nil, &failure{code: -32601, message: "nasty knows no method " + m.Method}
}

// field returns a string of an object, or "".
func field(object json.RawMessage, name string) string {
	var fields map[string]json.RawMessage
	var s string
	_ = json.Unmarshal(object, &fields)
	_ = json.Unmarshal(fields[name], &s)
	return s
}

func (s *server) initialize(ctx context.Context, params json.RawMessage) ([]byte, error) {
	if s.m.inits != "" {
		f, err := os.OpenFile(s.m.inits, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(f, "%d %s\n", os.Getpid(), s.m.name)
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
	var p struct {
		Version      string          `json:"protocolVersion"`
		Capabilities json.RawMessage `json:"capabilities"`
	}
	if err := json.Unmarshal(params, &p); err != nil {
		return nil, &failure{code: -32602, message: err.Error()}
	}
	s.mu.Lock()
	s.inits++
	s.client = p.Capabilities
	s.mu.Unlock()
	select {
	case <-time.After(s.m.initDelay):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if s.m.version != "" {
		p.Version = s.m.version
	}
	capabilities := `{"tools":{"listChanged":true},"prompts":{},"resources":{"subscribe":true,"listChanged":true},"logging":{},"completions":{}}`
	if s.m.undeclared {
		capabilities = "{}"
	}
	instructions := []byte{}
	if s.m.instructions != "" {
		instructions = join(`,"instructions":`, quote(s.m.instructions))
	}
	return join(`{"protocolVersion":`, quote(p.Version), `,"capabilities":`, capabilities,
		`,"serverInfo":{"name":`, quote(s.m.name), `,"version":"1.0.0"}`, instructions, `}`), nil
}

// items returns the tools as they stand, for a client of those capabilities.
func (s *server) items(client json.RawMessage) [][]byte {
	s.mu.Lock()
	added := slices.Clone(s.added)
	s.mu.Unlock()
	var items [][]byte
	add := func(name string) {
		items = append(items, join(`{"name":`, quote(name), `,"description":`, quote(s.m.name+": "+name), `,"inputSchema":{"type":"object"}}`))
	}
	for _, t := range tools {
		items = append(items, t.item(s.m.name))
	}
	for i := range s.m.tools {
		add(fmt.Sprintf("tool-%03d", i+1))
	}
	if s.m.equalNames {
		add("twin")
		add("twin")
	}
	if s.m.longNames {
		add(strings.Repeat("x", 119) + "1")
		add(strings.Repeat("x", 119) + "2")
	}
	if s.m.bySampling && bytes.Contains(client, []byte(`"sampling"`)) {
		add("sampler")
	}
	for _, name := range added {
		add(name)
	}
	return items
}

// capabilities returns those of the client that sent a request.
func (s *server) capabilities(params json.RawMessage, modern bool) json.RawMessage {
	if modern {
		return meta(params)[metaCapabilities]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.client
}

func (s *server) listTools(params json.RawMessage, modern bool) ([]byte, error) {
	switch {
	case s.m.stuck:
		return []byte(`{"tools":[{"name":"again","inputSchema":{"type":"object"}}],"nextCursor":"again"}`), nil
	case s.m.endless:
		n, _ := strconv.Atoi(field(params, "cursor"))
		return fmt.Appendf(nil, `{"tools":[{"name":"endless-%d","inputSchema":{"type":"object"}}],"nextCursor":"%d"}`, n, n+1), nil
	}
	return s.list(params, "tools", s.items(s.capabilities(params, modern)))
}

// list returns a page of a list. A cursor is the index of the page's first item.
func (s *server) list(params json.RawMessage, key string, items [][]byte) ([]byte, error) {
	from := 0
	if cursor := field(params, "cursor"); cursor != "" {
		n, err := strconv.Atoi(cursor)
		if err != nil || n < 0 || n > len(items) {
			return nil, &failure{code: -32602, message: "bad cursor " + cursor}
		}
		from = n
	}
	to, next := len(items), []byte{}
	if s.m.page > 0 && from+s.m.page < len(items) {
		to = from + s.m.page
		next = fmt.Appendf(nil, `,"nextCursor":"%d"`, to)
	}
	return join(`{"`, key, `":[`, bytes.Join(items[from:to], []byte(",")), `]`, next, `}`), nil
}

var resources = [][]byte{
	[]byte(`{"uri":"nasty://text","name":"text","mimeType":"text/plain"}`),
	[]byte(`{"uri":"nasty://blob","name":"blob","mimeType":"application/octet-stream"}`),
}

var templates = [][]byte{
	[]byte(`{"uriTemplate":"nasty://item/{id}","name":"item","mimeType":"text/plain"}`),
}

func readResource(params json.RawMessage, modern bool) ([]byte, error) {
	uri := field(params, "uri")
	switch {
	case uri == "nasty://text":
		return join(`{"contents":[{"uri":`, quote(uri), `,"mimeType":"text/plain","text":"text of nasty"}]}`), nil
	case uri == "nasty://blob":
		return join(`{"contents":[{"uri":`, quote(uri), `,"mimeType":"application/octet-stream","blob":"AAEC/w=="}]}`), nil
	case strings.HasPrefix(uri, "nasty://item/"):
		return join(`{"contents":[{"uri":`, quote(uri), `,"text":`, quote("item "+strings.TrimPrefix(uri, "nasty://item/")), `}]}`), nil
	}
	if modern {
		return nil, &failure{code: -32602, message: "no resource " + uri}
	}
	return nil, &failure{code: -32002, message: "no resource " + uri}
}

var prompts = [][]byte{
	[]byte(`{"name":"greet","description":"Greets.","arguments":[{"name":"who","required":true}]}`),
}

func getPrompt(params json.RawMessage) ([]byte, error) {
	var p struct {
		Name      string
		Arguments map[string]string
	}
	if json.Unmarshal(params, &p) != nil || p.Name != "greet" {
		return nil, &failure{code: -32602, message: "no such prompt"}
	}
	return join(`{"messages":[{"role":"user","content":{"type":"text","text":`, quote("Greet "+p.Arguments["who"]+"."), `}}]}`), nil
}

// complete completes every argument to the names that begin with its value.
func complete(params json.RawMessage) ([]byte, error) {
	var p struct {
		Argument struct{ Value string }
	}
	if err := json.Unmarshal(params, &p); err != nil {
		return nil, &failure{code: -32602, message: err.Error()}
	}
	values := []string{}
	for _, name := range []string{"Ada", "Alan", "Barbara"} {
		if strings.HasPrefix(name, p.Argument.Value) {
			values = append(values, name)
		}
	}
	b, err := json.Marshal(values)
	return join(`{"completion":{"values":`, b, `,"hasMore":false}}`), err
}
