package main_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/specbox/specbox/wire"
)

const modernMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"sampling":{}}}`

// fails sends a request that must fail, and returns its error.
func (p *process) fails(t *testing.T, method, params string) *wire.Error {
	t.Helper()
	r, err := p.Call(t.Context(), method, []byte(params))
	if err != nil {
		t.Fatal(err)
	}
	var e *wire.Error
	if !errors.As(r.Err(), &e) {
		t.Fatalf("%s %s gave %s, want an error", method, params, r.Result)
	}
	return e
}

// modernCall calls a tool in the modern era, with more members in the params.
func (p *process) modernCall(t *testing.T, tool, args, more string) []byte {
	t.Helper()
	return p.result(t, "tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s,%s%s}`, tool, args, modernMeta, more))
}

func TestModernRequestsAreChecked(t *testing.T) {
	p := start(t, "-era", "modern")
	got := p.result(t, "server/discover", `{`+modernMeta+`}`)
	if wire.Str(got, "resultType") != "complete" || !strings.Contains(string(wire.Get(got, "supportedVersions")), "2026-07-28") {
		t.Errorf("discover: %s", got)
	}
	for _, tt := range []struct {
		method, params string
		code           int
	}{
		{"initialize", `{"protocolVersion":"2025-11-25","capabilities":{}}`, -32602},
		{"tools/list", `{}`, -32602},
		{"tools/list", `{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}`, -32602},
		{"tools/list", `{"_meta":{"io.modelcontextprotocol/protocolVersion":"2099-01-01"}}`, -32022},
		{"ping", `{` + modernMeta + `}`, -32601},
		{"resources/read", `{"uri":"nasty://none",` + modernMeta + `}`, -32602},
	} {
		if e := p.fails(t, tt.method, tt.params); e.Code != tt.code {
			t.Errorf("%s %s: %d %s, want %d", tt.method, tt.params, e.Code, e.Message, tt.code)
		}
	}
	if e := ready(t).fails(t, "server/discover", `{`+modernMeta+`}`); e.Code != -32601 {
		t.Errorf("a legacy server was discovered: %d", e.Code)
	}
	both := ready(t, "-era", "both")
	if list := both.result(t, "tools/list", `{}`); wire.Get(list, "resultType") != nil {
		t.Errorf("a legacy list has a resultType: %.200s", list)
	}
	list := both.result(t, "tools/list", `{`+modernMeta+`}`)
	if wire.Str(list, "cacheScope") != "private" || wire.Str(list, "resultType") != "complete" {
		t.Errorf("a modern list: %.200s", list)
	}
	if raw := both.modernCall(t, "raw", `{"result":{"n":1.0}}`, ""); string(raw) != `{"n":1.0}` {
		t.Errorf("raw: %s", raw)
	}
}

// answer answers each question of a result, and returns the members to send again.
func answer(t *testing.T, result []byte, with string) string {
	t.Helper()
	var r struct {
		ResultType    string
		InputRequests map[string]json.RawMessage
		RequestState  string
	}
	if err := json.Unmarshal(result, &r); err != nil || r.ResultType != "input_required" {
		t.Fatalf("got %s, %v, want input_required", result, err)
	}
	responses := map[string]json.RawMessage{}
	for key := range r.InputRequests {
		responses[key] = json.RawMessage(with)
	}
	b, err := json.Marshal(responses)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`,"inputResponses":%s,"requestState":%q`, b, r.RequestState)
}

func TestAsksByRoundTrips(t *testing.T) {
	p, other := start(t, "-era", "modern"), start(t, "-era", "modern")
	const args = `{"method":"roots/list"}`
	first := p.modernCall(t, "ask", args, "")
	again := answer(t, first, `{"roots":[]}`)
	if got := other.modernCall(t, "ask", args, again); !strings.Contains(string(got), `{\"roots\":[]}`) {
		t.Errorf("another instance answered %s", got)
	}
	forged := strings.Replace(again, "nasty.", "nicer.", 1)
	if e := p.fails(t, "tools/call", `{"name":"ask","arguments":`+args+`,`+modernMeta+forged+`}`); e.Code != -32602 {
		t.Errorf("a forged state: %d", e.Code)
	}
	more := ""
	for range 2 {
		more = answer(t, p.modernCall(t, "interview", `{"rounds":2,"each":3}`, more), `{"a":1}`)
	}
	want := `[{"q0":{"a":1},"q1":{"a":1},"q2":{"a":1}},{"q0":{"a":1},"q1":{"a":1},"q2":{"a":1}}]`
	if got := p.modernCall(t, "interview", `{"rounds":2,"each":3}`, more); !strings.Contains(string(got), string(wire.Quote(want))) {
		t.Errorf("interview: %s", got)
	}
	legacy := ready(t)
	roots := strings.ReplaceAll(want, `{"a":1}`, `{"roots":[{"uri":"file:///here"}]}`)
	if got := legacy.call(t, "interview", `{"rounds":2,"each":3}`); got != roots {
		t.Errorf("interview in the legacy era: %s", got)
	}
}

func TestListens(t *testing.T) {
	p := start(t, "-era", "modern")
	call, err := p.Start("subscriptions/listen", []byte(`{"notifications":{"toolsListChanged":true,"resourceSubscriptions":["nasty://text"]},`+modernMeta+`}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	p.until(t, "notifications/subscriptions/acknowledged")
	p.modernCall(t, "add-tool", `{"name":"new"}`, "")
	p.modernCall(t, "update", `{"uri":"nasty://text"}`, "")
	p.modernCall(t, "update", `{"uri":"nasty://blob"}`, "")
	p.until(t, "notifications/tools/list_changed")
	m := p.until(t, "notifications/resources/updated")
	if wire.Get(m.Params, "_meta", "io.modelcontextprotocol/subscriptionId") == nil {
		t.Errorf("no subscription in %s", m.Params)
	}
	p.modernCall(t, "end-listens", `{}`, "")
	within(t, 10*time.Second, call.Done(), "the end of listening")
	if r, err := call.Outcome(); err != nil || wire.Str(r.Result, "resultType") != "complete" {
		t.Errorf("listen ended with %s, %v", r.Result, err)
	}
}

// until waits for a notification: each call that the server answers is a turn.
func (p *process) until(t *testing.T, method string) wire.Message {
	t.Helper()
	for range 1000 {
		p.mu.Lock()
		for _, m := range p.notes {
			if m.Method == method {
				p.mu.Unlock()
				return m
			}
		}
		p.mu.Unlock()
		p.modernCall(t, "echo", "{}", "")
	}
	t.Fatalf("no %s", method)
	return wire.Message{}
}
