package e2e_test

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/specbox/specbox/replay/model"
	"github.com/specbox/specbox/servers"
	"github.com/specbox/specbox/tap"
)

// llmChecks are those that each SDK's program runs, in order.
var llmChecks = []string{
	"chat, whole", "chat, streaming", "responses, whole", "responses, streaming", "messages, whole", "messages, streaming",
	"chat, an error", "messages, an error", "chat, an error in the stream", "messages, an error in the stream",
	"no upstream has the model", "the upstream is not there", "models",
}

// The official SDKs talk to the replayed LLM through the proxy as they would
// without it, and what they say and hear is told, once.
func TestLLMClients(t *testing.T) {
	llm, err := model.New(model.Config{Rate: 2000, Scripts: []model.Script{
		{Key: "trip", Turns: []model.Turn{
			{Parts: []model.Part{{Text: "Two cities.", Reasoning: true}, {Text: "I will look up both cities."}}, Calls: []model.Call{
				{Name: "weather__now", Arguments: `{"city":"Oslo"}`}, {Name: "weather__now", Arguments: `{"city":"Rome"}`},
			}},
			{Parts: []model.Part{{Text: "It is warmer in Rome."}}},
		}},
		{Key: "busy", Turns: []model.Turn{{Fail: &model.Failure{Status: http.StatusTooManyRequests, Type: "rate_limit_error", Message: "slow down"}}}},
		{Key: "broken", Turns: []model.Turn{{Parts: []model.Part{{Text: "I begin, and then"}}, Fail: &model.Failure{After: 2, Message: "out of order"}}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range []struct {
		name string
		argv func(dir string) []string
	}{
		{"ts", func(dir string) []string { return []string{"node", filepath.Join(dir, "llm.mjs")} }},
	} {
		t.Run(program.name, func(t *testing.T) {
			x := newDoor(t, llm)
			dir, err := servers.Dir()
			if err != nil {
				t.Fatal(err)
			}
			name := "client-" + program.name
			if _, err := servers.InstallLocked(t.Context(), dir, name, os.DirFS(program.name)); err != nil {
				t.Fatal(err)
			}
			argv := append(program.argv(filepath.Join(dir, name)), x.url)
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			c := exec.CommandContext(ctx, argv[0], argv[1:]...)
			var errs bytes.Buffer
			c.Stderr = &errs
			out, err := c.Output()
			if err != nil {
				t.Errorf("%v\n%s", err, &errs)
			}
			var got []string
			lines(bytes.NewReader(out), func(line string) {
				var one check
				decode(t, line, &one)
				got = append(got, one.Check)
				if !one.OK {
					t.Errorf("%s: %s", one.Check, one.Detail)
				}
			})
			if !slices.Equal(got, llmChecks) {
				t.Errorf("checks\n%q, want\n%q", got, llmChecks)
			}
			x.toldTrips(t)
		})
	}
}

// A door is the model's door, and what it tells.
type door struct {
	url string

	mu    sync.Mutex
	turns []*llmTurn
}

// An llmTurn is what was told of one exchange.
type llmTurn struct {
	req   *tap.Request
	text  string
	calls []tap.Call
	ended chan struct{}
}

// newDoor opens a door to an LLM; behind it there is also an upstream that is not
// there.
func newDoor(t *testing.T, llm http.Handler) *door {
	t.Helper()
	up := httptest.NewServer(llm)
	t.Cleanup(up.Close)
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = nobody.Close() }()
	x := &door{}
	p, err := tap.New(tap.Config{Observer: x, Upstreams: []tap.Upstream{
		{Name: "openai", API: tap.OpenAI, URL: up.URL + "/v1", Models: []string{"replay/*"}},
		{Name: "anthropic", API: tap.Anthropic, URL: up.URL, Models: []string{"replay/*"}},
		{Name: "gone", API: tap.Anthropic, URL: "http://" + nobody.Addr().String(), Models: []string{"gone"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = p.Run(ctx) }()
	front := httptest.NewServer(p)
	t.Cleanup(func() { cancel(); <-done; front.Close() })
	x.url = front.URL
	return x
}

// Observe begins a turn.
func (x *door) Observe(r *tap.Request) tap.Watcher {
	turn := &llmTurn{req: r, ended: make(chan struct{})}
	x.mu.Lock()
	x.turns = append(x.turns, turn)
	x.mu.Unlock()
	return turn
}

// Delta notes what the model says.
func (l *llmTurn) Delta(d tap.Delta) {
	switch d.Kind {
	case tap.Text:
		l.text += string(d.Text)
	case tap.ToolName:
		l.calls = append(l.calls, tap.Call{ID: d.ID, Name: d.Name})
	case tap.Arguments:
		l.calls[d.Index].Arguments += string(d.Text)
	}
}

// End ends the turn.
func (l *llmTurn) End() { close(l.ended) }

// toldTrips checks what was told of the conversations in all APIs, whole and
// streaming: each is one, and of its second request the results alone are new.
func (x *door) toldTrips(t *testing.T) {
	t.Helper()
	x.mu.Lock()
	turns := slices.Clone(x.turns)
	x.mu.Unlock()
	turns = slices.DeleteFunc(turns, func(l *llmTurn) bool { return l.req.Model != "replay/trip" })
	if len(turns) != 12 {
		t.Fatalf("%d turns were told", len(turns))
	}
	for i := 0; i < len(turns); i += 2 {
		first, second := turns[i], turns[i+1]
		for _, l := range []*llmTurn{first, second} {
			select {
			case <-l.ended:
			case <-time.After(20 * time.Second):
				t.Fatalf("turn %d has no end", i)
			}
		}
		name := string(first.req.API)
		if first.text != "I will look up both cities." || len(first.calls) != 2 || strings.ReplaceAll(first.calls[1].Arguments, " ", "") != `{"city":"Rome"}` || first.calls[0].Name != "weather__now" {
			t.Errorf("%s: told %q, %+v", name, first.text, first.calls)
		}
		if len(first.req.Tools) != 1 || first.req.Tools[0].Name != "weather__now" {
			t.Errorf("%s: tools %+v", name, first.req.Tools)
		}
		again := i%4 > 0 // the same conversation once more, which goes its own way from the second turn on
		if second.text != "It is warmer in Rome." || second.req.Continued == again || again && second.req.Parent != first.req.Conversation || !again && second.req.Conversation != first.req.Conversation {
			t.Errorf("%s: the second turn is %q of %+v", name, second.text, second.req)
		}
		var results []string
		for _, m := range second.req.New {
			if m.Role != "assistant" { // the end of the answer may not be looked at yet when the next request comes
				results = append(results, m.Role+" "+m.CallID+" "+m.Text)
			}
		}
		if len(first.calls) == 2 && !slices.Equal(results, []string{"tool " + first.calls[0].ID + " 4", "tool " + first.calls[1].ID + " 15"}) {
			t.Errorf("%s: new in the second turn is %q", name, results)
		}
	}
}
