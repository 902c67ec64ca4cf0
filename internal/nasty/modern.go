package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// modernVersion is the revision without sessions that the server speaks.
const modernVersion = "2026-07-28"

// Members of _meta that stand in every request of the modern era.
const (
	metaVersion      = "io.modelcontextprotocol/protocolVersion"
	metaCapabilities = "io.modelcontextprotocol/clientCapabilities"
	metaLogLevel     = "io.modelcontextprotocol/logLevel"
	metaSubscription = "io.modelcontextprotocol/subscriptionId"
)

// removed are the methods that the modern era does not have.
var removed = []string{"initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"}

// meta returns the _meta of params.
func meta(params json.RawMessage) map[string]json.RawMessage {
	var p struct {
		Meta map[string]json.RawMessage `json:"_meta"`
	}
	_ = json.Unmarshal(params, &p)
	return p.Meta
}

// modernRequest reports whether a request is of the modern era. Its error says
// what is wrong with one that should be.
func (s *server) modernRequest(m message) (bool, error) {
	var version string
	of := meta(m.Params)
	if raw := of[metaVersion]; raw == nil {
		if s.m.era == "modern" {
			return true, &failure{code: -32602, message: m.Method + " has no " + metaVersion + " in its _meta"}
		}
		return false, nil
	} else if json.Unmarshal(raw, &version) != nil {
		return true, &failure{code: -32602, message: metaVersion + " is no string"}
	}
	switch {
	case s.m.era == "legacy":
		return false, nil // as every server of that era, which never heard of it
	case version != modernVersion:
		return true, &failure{code: -32022, message: "unsupported protocol version",
			data: join(`{"supported":["`, modernVersion, `"],"requested":`, quote(version), `}`)}
	case !strings.HasPrefix(string(of[metaCapabilities]), "{"):
		return true, &failure{code: -32602, message: m.Method + " has no " + metaCapabilities + " in its _meta"}
	case slices.Contains(removed, m.Method):
		return true, &failure{code: -32601, message: m.Method + " is not part of " + modernVersion}
	}
	return true, nil
}

// discover is what the modern era has in place of initialize.
func (s *server) discover() []byte {
	versions := []string{modernVersion}
	if s.m.era == "both" {
		versions = append(versions, "2025-11-25", "2025-06-18")
	}
	b, err := json.Marshal(versions)
	if err != nil {
		panic(err) // strings
	}
	capabilities := `{"tools":{"listChanged":true},"prompts":{},"resources":{"subscribe":true,"listChanged":true},"logging":{},"completions":{}}`
	if s.m.undeclared {
		capabilities = "{}"
	}
	instructions := []byte{}
	if s.m.instructions != "" {
		instructions = join(`,"instructions":`, quote(s.m.instructions))
	}
	return join(`{"supportedVersions":`, b, `,"capabilities":`, capabilities, instructions,
		`,"_meta":{"io.modelcontextprotocol/serverInfo":{"name":`, quote(s.m.name), `,"version":"1.0.0"}}}`)
}

// cacheable are the methods whose results say how long they hold.
var cacheable = []string{"server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read"}

// complete adds to a result what the modern era wants to stand there. What the
// result of a tool call says itself is left alone.
func (s *server) complete(m message, result []byte) []byte {
	if m.Method == "tools/call" && (field(m.Params, "name") == "raw" || field(m.Params, "name") == "size") {
		return result
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(result, &fields) != nil || fields["resultType"] != nil {
		return result
	}
	more := []byte(`"resultType":"complete"`)
	if slices.Contains(cacheable, m.Method) {
		more = join(more, `,"ttlMs":`, strconv.Itoa(s.m.ttl), `,"cacheScope":`, quote(s.m.cacheScope))
	}
	if len(fields) > 0 {
		more = append(more, ',')
	}
	return join(`{`, more, result[1:])
}

// A listener is a subscriptions/listen under way.
type listener struct {
	id     json.RawMessage
	kinds  map[string]bool // notification method -> wanted
	uris   []string
	ending chan struct{} // closed to end it with a result
}

// listen serves subscriptions/listen until it is cancelled, or told to end.
func (s *server) listen(ctx context.Context, m message) ([]byte, error) {
	var p struct {
		Notifications *struct {
			Tools     bool     `json:"toolsListChanged"`
			Prompts   bool     `json:"promptsListChanged"`
			Resources bool     `json:"resourcesListChanged"`
			URIs      []string `json:"resourceSubscriptions"`
		}
	}
	if err := json.Unmarshal(m.Params, &p); err != nil || p.Notifications == nil {
		return nil, &failure{code: -32602, message: "subscriptions/listen has no notifications"}
	}
	n := p.Notifications
	l := &listener{id: m.ID, uris: n.URIs, ending: make(chan struct{}), kinds: map[string]bool{
		"notifications/tools/list_changed": n.Tools, "notifications/resources/list_changed": n.Resources,
	}}
	if !s.m.noAck {
		agreed, err := json.Marshal(map[string]any{"toolsListChanged": n.Tools, "resourcesListChanged": n.Resources, "resourceSubscriptions": append([]string{}, n.URIs...)})
		if err != nil {
			return nil, err
		}
		s.notify("notifications/subscriptions/acknowledged", join(`{"_meta":{"`, metaSubscription, `":`, m.ID, `},"notifications":`, agreed, `}`))
	}
	s.mu.Lock()
	s.listeners = append(s.listeners, l)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.listeners = slices.DeleteFunc(s.listeners, func(o *listener) bool { return o == l })
	}()
	if s.m.listChanged {
		s.changed("notifications/tools/list_changed")
	}
	select {
	case <-l.ending:
		return join(`{"_meta":{"`, metaSubscription, `":`, m.ID, `}}`), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// changed says that a list changed: to those who listen, and where initialize
// was seen to the client at large.
func (s *server) changed(method string) {
	s.mu.Lock()
	inits := s.inits
	listeners := slices.Clone(s.listeners)
	s.mu.Unlock()
	if inits > 0 {
		s.notify(method, nil)
	}
	for _, l := range listeners {
		if l.kinds[method] {
			s.notify(method, join(`{"_meta":{"`, metaSubscription, `":`, l.id, `}}`))
		}
	}
}

// heard tells those who listen to a resource that it was updated, and whether
// there are any.
func (s *server) heard(uri string) bool {
	s.mu.Lock()
	listeners := slices.Clone(s.listeners)
	s.mu.Unlock()
	any := false
	for _, l := range listeners {
		if slices.Contains(l.uris, uri) {
			any = true
			s.notify("notifications/resources/updated", join(`{"_meta":{"`, metaSubscription, `":`, l.id, `},"uri":`, quote(uri), `}`))
		}
	}
	return any
}

func endListens(_ context.Context, c invocation) ([]byte, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	for _, l := range c.s.listeners {
		close(l.ending)
	}
	n := len(c.s.listeners)
	c.s.listeners = nil
	return value(n)
}

// A retry is what a client sends again with its answers.
type retry struct {
	Responses map[string]json.RawMessage `json:"inputResponses"`
	State     string                     `json:"requestState"`
}

// inputRequired is the result that asks the client for something, in the modern
// era. The state is what the server wants to see again.
func inputRequired(requests map[string][]byte, state any) ([]byte, error) {
	b, err := json.Marshal(state)
	if err != nil {
		return nil, err
	}
	var members [][]byte
	for _, key := range sortedKeys(requests) {
		members = append(members, join(quote(key), `:`, requests[key]))
	}
	inner := []byte{}
	for i, m := range members {
		if i > 0 {
			inner = append(inner, ',')
		}
		inner = append(inner, m...)
	}
	return join(`{"resultType":"input_required","inputRequests":{`, inner, `},"requestState":`,
		quote("nasty."+base64.RawURLEncoding.EncodeToString(b)), `}`), nil
}

func sortedKeys(m map[string][]byte) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// recall decodes the state of a retry. It tells whether there was one.
func (r retry) recall(state any) (bool, error) {
	if r.State == "" {
		return false, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(r.State, "nasty."))
	if err == nil {
		err = json.Unmarshal(b, state)
	}
	if err != nil || !strings.HasPrefix(r.State, "nasty.") {
		return false, &failure{code: -32602, message: fmt.Sprintf("requestState is not mine: %.100s", r.State)}
	}
	return true, nil
}

// askModern is the tool ask in the modern era: one question, one retry. The
// manners are ways to do it wrong.
func askModern(c invocation, method string, params json.RawMessage, manner string) ([]byte, error) {
	if params == nil {
		params = []byte("{}")
	}
	question := join(`{"method":`, quote(method), `,"params":`, params, `}`)
	var asked struct{ Question string }
	again, err := c.retry.recall(&asked)
	if err != nil {
		return nil, err
	}
	switch manner {
	case "endless":
		return inputRequired(map[string][]byte{"q": question}, asked)
	case "request": // as the legacy era did, which this one must not
		c.s.write(`{"jsonrpc":"2.0","id":"wrong-1","method":`, quote(method), `,"params":`, params, `}`)
	case "no-state":
		if c.retry.Responses == nil {
			return join(`{"resultType":"input_required","inputRequests":{"q":`, question, `}}`), nil
		}
		again = true
	case "nothing":
		if !again {
			return []byte(`{"resultType":"input_required"}`), nil
		}
	}
	if !again {
		asked.Question = string(question)
		return inputRequired(map[string][]byte{"q": question}, asked)
	}
	if asked.Question != string(question) && manner != "no-state" {
		return nil, &failure{code: -32602, message: "requestState belongs to another question"}
	}
	answer, ok := c.retry.Responses["q"]
	if !ok {
		return inputRequired(map[string][]byte{"q": question}, asked)
	}
	return text(string(answer)), nil
}

// interview asks the client rounds times, each time so many questions at once.
// It tells all the answers, round by round, by the key of the question.
func interview(ctx context.Context, c invocation) ([]byte, error) {
	a, err := args[struct {
		Rounds, Each int
		Method       string
		Params       json.RawMessage
	}](c)
	if err != nil {
		return nil, err
	}
	if a.Method == "" {
		a.Method = "roots/list"
	}
	if a.Params == nil {
		a.Params = []byte("{}")
	}
	var got []map[string]json.RawMessage
	if !c.modern {
		for range a.Rounds {
			round, err := c.s.askAll(ctx, a.Each, a.Method, a.Params)
			if err != nil {
				return nil, err
			}
			got = append(got, round)
		}
		return value(got)
	}
	again, err := c.retry.recall(&got)
	if err != nil {
		return nil, err
	}
	if again {
		got = append(got, c.retry.Responses)
	}
	if len(got) >= a.Rounds {
		return value(got)
	}
	questions := map[string][]byte{}
	for i := range a.Each {
		questions[fmt.Sprintf("q%d", i)] = join(`{"method":`, quote(a.Method), `,"params":`, a.Params, `}`)
	}
	return inputRequired(questions, got)
}

// askAll asks the same n times at once, in the way of the legacy era.
func (s *server) askAll(ctx context.Context, n int, method string, params []byte) (map[string]json.RawMessage, error) {
	type answer struct {
		key   string
		reply json.RawMessage
		err   error
	}
	answers := make(chan answer)
	for i := range n {
		s.work.Go(func() {
			reply, err := s.ask(ctx, method, params)
			answers <- answer{fmt.Sprintf("q%d", i), reply, err}
		})
	}
	round := map[string]json.RawMessage{}
	var failed error
	for range n {
		got := <-answers
		if got.err != nil {
			failed = got.err
		}
		round[got.key] = got.reply
	}
	return round, failed
}

// shed answers times times that the client should come again, as a server under
// load may.
func shed(_ context.Context, c invocation) ([]byte, error) {
	a, err := args[struct{ Times int }](c)
	if err != nil {
		return nil, err
	}
	n := 0
	if _, err := c.retry.recall(&n); err != nil {
		return nil, err
	}
	if c.modern && n < a.Times {
		return inputRequired(nil, n+1)
	}
	return text(fmt.Sprintf("came %d times", n+1)), nil
}

// metaSeen tells the _meta of its own call.
func metaSeen(_ context.Context, c invocation) ([]byte, error) {
	if c.meta == nil {
		return text("null"), nil
	}
	return text(string(c.meta)), nil
}
