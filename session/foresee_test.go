package session_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/specbox/specbox/intent"
	"github.com/specbox/specbox/session"
	"github.com/specbox/specbox/trace"
)

// A words policy fires for a server when its name was written, and remembers
// what it was taught.
type words struct {
	mu      sync.Mutex
	servers []intent.Server
	begun   []intent.History
	learned []intent.Step
}

func (w *words) Begin(h intent.History) intent.Watch {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun = append(w.begun, h)
	return &wordsWatch{w: w, text: h.Prompt + " "}
}

func (w *words) Learn(s intent.Step) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.learned = append(w.learned, s)
}

type wordsWatch struct {
	w    *words
	text string
}

func (w *wordsWatch) Text(_ intent.Kind, p []byte) { w.text += string(p) }
func (w *wordsWatch) Candidates([]string)          {}
func (w *wordsWatch) Intents(dst []intent.Intent, _ bool) []intent.Intent {
	for _, s := range w.w.servers {
		dst = append(dst, intent.Intent{Server: s.Name, P: 0.8, Fired: strings.Contains(w.text, s.Name), Source: "words"})
	}
	return dst
}

// foreseeing opens a hall that guesses with a words policy; starts take 10 s.
func foreseeing(t *testing.T, names ...string) (*hall, *words) {
	t.Helper()
	w := &words{}
	h := openWith(t, names, seconds(10), nil, func(c *session.Config) {
		c.Hold = time.Minute
		c.Foresee = func(_ string, servers []intent.Server) (intent.Policy, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.servers = servers
			return w, nil
		}
	})
	h.fill()
	return h, w
}

// last returns the last event of a kind.
func (h *hall) last(k trace.Kind) trace.Event {
	h.t.Helper()
	events := h.log.Events()
	for i := len(events) - 1; i >= 0; i-- {
		if events[i].Kind == k {
			return events[i]
		}
	}
	h.t.Fatalf("there was no event %s", k)
	return trace.Event{}
}

func TestTheNameOfAToolStartsItsSandbox(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h, _ := foreseeing(t, "git", "web")
		defer h.stop()
		c := h.client("ann", "", allCaps)
		turn := h.hub.Follow(session.Exchange{Tenant: "ann", Conversation: "x"})
		turn.Call(0, "id", "mcp__specbox__git__echo")
		turn.End()
		time.Sleep(4 * time.Second)
		c.call("git__echo", `{"text":"late"}`)
		if e := h.last(trace.CallEnd); e.Outcome != trace.Late || e.Cause != trace.ToolName || e.Lead != 4*time.Second || e.Provision != 6*time.Second {
			t.Errorf("outcome %s, cause %s, lead %v, provision %v", e.Outcome, e.Cause, e.Lead, e.Provision)
		}
		turn = h.hub.Follow(session.Exchange{Tenant: "ann", Conversation: "x"})
		turn.Call(0, "id2", "web__echo")
		turn.Call(1, "id3", "a_tool_of_the_agents_own")
		time.Sleep(20 * time.Second)
		c.call("web__echo", `{"text":"warm"}`)
		if e := h.last(trace.CallEnd); e.Outcome != trace.Warm || e.Lead != 20*time.Second || e.Saved <= 0 {
			t.Errorf("outcome %s, lead %v, saved %v", e.Outcome, e.Lead, e.Saved)
		}
		turn.End()
	})
}

func TestWhatAModelWritesStartsSandboxes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h, w := foreseeing(t, "git", "web")
		defer h.stop()
		c := h.client("ann", "", allCaps)
		turn := h.hub.Follow(session.Exchange{Tenant: "ann", Conversation: "x", Prompt: "look at the git log", Tools: []string{"git__echo", "web__echo"}})
		time.Sleep(11 * time.Second)
		c.call("git__echo", `{"text":"a"}`)
		if e := h.last(trace.CallEnd); e.Outcome != trace.Warm || e.Cause != trace.Prompt {
			t.Errorf("the prompt: outcome %s, cause %s", e.Outcome, e.Cause)
		}
		for _, r := range strings.Repeat("I will look it up on the web. ", 4) {
			turn.Text(intent.Content, []byte(string(r)))
		}
		time.Sleep(11 * time.Second)
		turn.Call(0, "1", "web__echo")
		turn.End()
		c.call("web__echo", `{"text":"a"}`)
		if e := h.last(trace.CallEnd); e.Outcome != trace.Warm || e.Cause != trace.Intent {
			t.Errorf("the text: outcome %s, cause %s", e.Outcome, e.Cause)
		}
		if got := fmt.Sprint(w.begun[0].Tools); got != "[git web]" {
			t.Errorf("the request's tools are those of %s", got)
		}
		want := "[web]"
		if got := w.learned[len(w.learned)-1]; fmt.Sprint(got.Called) != want || !strings.HasPrefix(got.Text[0].Text, "I will look") || got.Prompt != "look at the git log" {
			t.Errorf("learned %+v", got)
		}
		turn = h.hub.Follow(session.Exchange{Tenant: "ann", Conversation: "x"})
		turn.End()
		if got := fmt.Sprint(w.begun[1].Used, w.begun[1].Prompt); got != "[[web]]look at the git log" {
			t.Errorf("the second turn knows %s", got)
		}
	})
}

func TestNothingUsedIsKeptForNobody(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h, _ := foreseeing(t, "git")
		defer h.stop()
		h.client("ann", "", allCaps)
		h.hub.Follow(session.Exchange{Tenant: "ann", Prompt: "git"}).End()
		time.Sleep(30 * time.Second)
		if n := len(h.sim.Live()); n != 1 {
			t.Fatalf("%d sandboxes are alive", n)
		}
		time.Sleep(60 * time.Second)
		if left := h.sim.Live(); len(left) != 0 {
			t.Errorf("alive after the hold time: %v", left)
		}
		if e := h.last(trace.Stop); e.Cause != trace.Prompt {
			t.Errorf("the stop of what nobody used names the cause %q", e.Cause)
		}
	})
}

// What is warmed belongs to the tenant whose model wrote, and to nobody else.
func TestForesightStaysWithItsTenant(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h, _ := foreseeing(t, "git")
		defer h.stop()
		h.client("ann", "", allCaps)
		bob := h.client("bob", "", allCaps)
		h.hub.Follow(session.Exchange{Tenant: "ann", Prompt: "git"}).End()
		time.Sleep(20 * time.Second)
		bob.call("git__echo", `{"text":"a"}`)
		if e := h.last(trace.CallEnd); e.Outcome != trace.Cold {
			t.Errorf("another tenant's call was %s", e.Outcome)
		}
	})
}

func TestConversationsAtOnceAddUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h, _ := foreseeing(t, "git")
		defer h.stop()
		a, b := h.client("ann", "", allCaps), h.client("ann", "", allCaps)
		h.hub.Follow(session.Exchange{Tenant: "ann", Conversation: "1", Prompt: "git"}).End()
		h.hub.Follow(session.Exchange{Tenant: "ann", Conversation: "2", Prompt: "git"}).End()
		h.hub.Follow(session.Exchange{Tenant: "ann", Conversation: "2", Prompt: "git again"}).End()
		time.Sleep(30 * time.Second)
		if n := len(h.sim.Live()); n != 2 {
			t.Errorf("%d sandboxes are alive for two conversations", n)
		}
		for _, c := range []*client{a, b} {
			c.call("git__echo", `{"text":"a"}`)
			if e := h.last(trace.CallEnd); e.Outcome != trace.Warm {
				t.Errorf("a call was %s", e.Outcome)
			}
		}
	})
}

// What a session holds is no wish, also where others wish for the same.
func TestWhatASessionHoldsIsNotWishedFor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h, _ := foreseeing(t, "git")
		defer h.stop()
		a := h.keyed("ann", "", allCaps, "a")
		h.keyed("ann", "", allCaps, "b")
		a.call("git__echo", `{"text":"cold"}`)
		for _, key := range []string{"a", "b"} {
			turn := h.hub.Follow(session.Exchange{Tenant: "ann", Key: key})
			turn.Call(0, "", "git__echo")
			turn.End()
		}
		time.Sleep(30 * time.Second)
		if n := len(h.sim.Live()); n != 2 {
			t.Errorf("%d sandboxes are alive: one is in use and one is wished for", n)
		}
	})
}

func TestRungsOfTheLadder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h, w := foreseeing(t, "git", "web")
		defer h.stop()
		c := h.keyed("ann", "", allCaps, "k1")
		other := h.client("ann", "", allCaps)
		// By key: what the session calls is what the text was about.
		turn := h.hub.Follow(session.Exchange{Tenant: "ann", Key: "k1"})
		turn.Text(intent.Content, []byte("let me see"))
		turn.End()
		c.call("web__echo", `{"text":"a"}`)
		other.call("git__echo", `{"text":"a"}`)
		h.hub.Follow(session.Exchange{Tenant: "ann", Key: "k1"}).End()
		if got := w.learned[0]; fmt.Sprint(got.Called) != "[web]" || got.Text[0].Text != "let me see" {
			t.Errorf("by key: learned %+v", got)
		}
		// By arguments, however they are written.
		turn = h.hub.Follow(session.Exchange{Tenant: "ann", Conversation: "y"})
		turn.Call(0, "call-7", "git__echo")
		turn.Arguments(0, []byte(`{"n":1.0, "te`))
		turn.Arguments(0, []byte(`xt":"b"}`))
		turn.Called(0)
		turn.End()
		other.call("git__echo", `{"text":"b","n":1.0}`)
		// By the id of a call whose result comes back, though the conversation was rewritten.
		h.hub.Follow(session.Exchange{Tenant: "ann", Conversation: "z", Results: []string{"call-7"}}).End()
		got := map[string]string{}
		for _, c := range h.hub.Conversations() {
			got[c.Key+c.Hash] = fmt.Sprint(c.Rung, len(c.Sessions))
		}
		if fmt.Sprint(got) != "map[k1:key1 z:arguments1]" {
			t.Errorf("conversations: %v", got)
		}
		other.Close()
		for _, c := range h.hub.Conversations() {
			if c.Hash == "z" && len(c.Sessions) != 0 {
				t.Error("a session that has ended is still joined")
			}
		}
	})
}

func TestABranchKnowsWhatItBranchedOff(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h, w := foreseeing(t, "git")
		defer h.stop()
		h.client("ann", "", allCaps)
		turn := h.hub.Follow(session.Exchange{Tenant: "ann", Conversation: "1", Prompt: "look"})
		turn.Call(0, "", "git__echo")
		turn.End()
		h.hub.Follow(session.Exchange{Tenant: "ann", Conversation: "2", Parent: "1"}).End()
		h.hub.Follow(session.Exchange{Tenant: "bob", Conversation: "3", Parent: "1"}).End()
		if got := fmt.Sprint(w.begun[1].Used, w.begun[1].Prompt, w.begun[2].Used, w.begun[2].Prompt); got != "[[git]]look[]" {
			t.Errorf("the branches of ann and bob know %s", got)
		}
	})
}

func TestAHallThatForeseesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := open(t, []string{"git"}, seconds(1), nil)
		defer h.stop()
		if h.hub.Follow(session.Exchange{Tenant: "ann", Prompt: "git"}) != nil {
			t.Error("it follows a conversation")
		}
	})
}
