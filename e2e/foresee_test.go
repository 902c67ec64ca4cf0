package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/specbox/specbox/replay/model"
	"github.com/specbox/specbox/tenant"
	"github.com/specbox/specbox/trace"
)

// A thinker is a model that replays a script, as the upstream of a box.
func thinker(t *testing.T, scripts ...model.Script) string {
	t.Helper()
	m, err := model.New(model.Config{Scripts: scripts})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(m)
	t.Cleanup(s.Close)
	return s.URL + "/v1"
}

// think asks the model through the box, and returns its whole answer.
func (x *box) think(t *testing.T, path, token string, messages ...object) string {
	t.Helper()
	body, err := json.Marshal(object{"model": "replay/s", "stream": true, "messages": messages})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(x.url, "/mcp")+path+"/chat/completions", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("the model's answer: %d %s %v", resp.StatusCode, b, err)
	}
	return string(b)
}

// ahead waits until a sandbox of a server is there that no call has started.
func (x *box) ahead(t *testing.T, server string) {
	t.Helper()
	eventually(t, 30*time.Second, "a sandbox of "+server+" is ready ahead of its call", func() string {
		for _, r := range x.ps(t) {
			if r.Server == server && (r.State == "ready" || r.State == "frozen") {
				return ""
			}
		}
		return fmt.Sprintf("%+v", x.ps(t))
	})
}

func user(text string) object { return object{"role": "user", "content": text} }

// events returns what a trace file tells of a kind.
func events(t *testing.T, file string, k trace.Kind) []trace.Event {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out []trace.Event
	for e, err := range trace.Read(bytes.NewReader(b)) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind == k {
			out = append(out, e)
		}
	}
	return out
}

// The name of a tool in the model's stream has its sandbox ready before the
// call, and the conversation's repetition in later requests does not.
func TestTheModelsStreamStartsASandbox(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trace.jsonl")
	upstream := thinker(t, model.Script{Key: "s", Turns: []model.Turn{
		{Parts: []model.Part{{Text: "Let me try that."}}, Calls: []model.Call{{Name: "one__echo", Arguments: `{"text":"a"}`}}},
		{Parts: []model.Part{{Text: "Done."}}},
	}})
	x := serveFile(t, t.TempDir(), object{
		"servers":     object{"one": bad("-name", "one"), "two": bad("-name", "two")},
		"llm":         object{"upstreams": []object{{"name": "replay", "url": upstream}}},
		"speculation": object{"policy": "tool-name", "hold": "3s"},
	}, "--trace", file)
	x.filled(t, "one", "two")
	x.asleep(t)
	c := connect(t, strings.TrimSuffix(x.url, "/mcp")+"/s/k/mcp", full)
	if said := x.think(t, "/s/k/v1", "", user("Try it")); !strings.Contains(said, "one__echo") {
		t.Fatalf("the model said %s", said)
	}
	x.ahead(t, "one")
	c.must(t, "tools/call", `{"name":"one__echo","arguments":{"text":"a"}}`)
	c.end(t)
	x.asleep(t)
	x.think(t, "/s/k/v1", "", user("Try it"), object{"role": "assistant", "content": "Let me try that.", "tool_calls": []object{
		{"id": "1", "type": "function", "function": object{"name": "one__echo", "arguments": `{"text":"a"}`}}}},
		object{"role": "tool", "tool_call_id": "1", "content": "a"})
	x.stop(t)
	calls, starts := events(t, file, trace.CallEnd), events(t, file, trace.Start)
	if len(calls) != 1 || calls[0].Outcome != trace.Warm || calls[0].Cause != trace.ToolName || calls[0].Lead <= 0 {
		t.Errorf("calls: %+v", calls)
	}
	ahead := 0
	for _, s := range starts {
		if s.Cause.Speculative() {
			ahead++
		}
	}
	if ahead != 1 {
		t.Errorf("%d sandboxes were started ahead: %+v", ahead, starts)
	}
}

// A tenant's token opens the model's door, does not reach the upstream, and what
// is started ahead is the tenant's.
func TestTheModelsDoorKnowsTenants(t *testing.T) {
	ann, annHash := tenant.NewToken()
	bob, bobHash := tenant.NewToken()
	leaked := make(chan string, 10)
	m, err := model.New(model.Config{Scripts: []model.Script{{Key: "s", Turns: []model.Turn{
		{Calls: []model.Call{{Name: "one__echo", Arguments: `{"text":"a"}`}}},
	}}}})
	if err != nil {
		t.Fatal(err)
	}
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		leaked <- fmt.Sprint(r.Header)
		m.ServeHTTP(w, r)
	}))
	defer upstream.Close()
	file := filepath.Join(t.TempDir(), "trace.jsonl")
	x := serveFile(t, t.TempDir(), object{
		"servers":     object{"one": bad("-name", "one")},
		"tenants":     []object{{"name": "ann", "tokens": []string{annHash}}, {"name": "bob", "tokens": []string{bobHash}}},
		"llm":         object{"upstreams": []object{{"name": "replay", "url": upstream.URL + "/v1", "headers": object{"Authorization": "Bearer of-the-upstream"}}}},
		"speculation": object{"policy": "tool-name"},
	}, "--trace", file)
	x.filled(t, "one")
	x.asleep(t)
	clients := map[string]*client{}
	for _, token := range []string{ann, bob} {
		c := &client{url: x.url, token: token, http: &http.Client{Transport: &http.Transport{}}}
		t.Cleanup(c.http.CloseIdleConnections)
		c.open(t, full)
		clients[token] = c
	}
	x.think(t, "/v1", ann, user("Try it"))
	if h := <-leaked; strings.Contains(h, ann) || !strings.Contains(h, "of-the-upstream") {
		t.Errorf("the upstream saw %s", h)
	}
	x.ahead(t, "one")
	for _, token := range []string{bob, ann} {
		clients[token].must(t, "tools/call", `{"name":"one__echo","arguments":{"text":"a"}}`)
	}
	resp, err := http.Post(strings.TrimSuffix(x.url, "/mcp")+"/v1/chat/completions", "application/json", strings.NewReader(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a token: status %d", resp.StatusCode)
	}
	x.stop(t)
	calls := events(t, file, trace.CallEnd)
	if len(calls) != 2 || calls[0].Tenant != "bob" || calls[0].Outcome != trace.Cold || calls[1].Outcome != trace.Warm {
		t.Errorf("calls: %+v", calls)
	}
}
