package tap_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/specbox/specbox/tap"
)

// talker is an LLM whose answer is what the header X-Answer says, as a stream of
// one delta, or, for X-Call, a call of that id.
func talker(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "text/event-stream")
	switch {
	case strings.HasSuffix(r.URL.Path, "/responses"):
		_, _ = fmt.Fprintf(w, "data: {\"type\":\"response.created\",\"response\":{\"id\":%q}}\n\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"yes\"}\n\n", r.Header.Get("X-Answer"))
	case r.Header.Get("X-Call") != "":
		_, _ = fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":%q,\"function\":{\"name\":\"look\",\"arguments\":\"{}\"}}]}}]}\n\n", r.Header.Get("X-Call"))
	default:
		_, _ = fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":%q}}]}\n\n", r.Header.Get("X-Answer"))
	}
}

// A said is one request of a test, and what must be new in it.
type turn struct {
	messages string // space-separated: s:words, u:words, a:words, c:id (a call), r:id (its result)
	header   []string
	new      string // likewise
	same     int    // the earlier turn whose conversation it is, from 1; 0 for a new one
	parent   int    // the earlier turn whose conversation it branched off
}

// chatBody writes a request of Chat Completions.
func chatBody(messages string) string {
	var parts []string
	for m := range strings.FieldsSeq(messages) {
		kind, words, _ := strings.Cut(m, ":")
		switch kind {
		case "s":
			parts = append(parts, fmt.Sprintf(`{"role":"system","content":%q}`, words))
		case "u":
			parts = append(parts, fmt.Sprintf(`{"role":"user","content":%q}`, words))
		case "U": // the same in another way
			parts = append(parts, fmt.Sprintf(`{ "content": [{"type":"text","text":%q,"cache_control":{"type":"ephemeral"}}], "role":"user"}`, words))
		case "a":
			parts = append(parts, fmt.Sprintf(`{"role":"assistant","content":%q}`, words))
		case "c":
			parts = append(parts, fmt.Sprintf(`{"role":"assistant","content":null,"tool_calls":[{"id":%q,"type":"function","function":{"name":"look","arguments":"{}"}}]}`, words))
		case "r":
			parts = append(parts, fmt.Sprintf(`{"role":"tool","tool_call_id":%q,"content":"ok"}`, words))
		}
	}
	return `{"model":"m","messages":[` + strings.Join(parts, ",") + `]}`
}

func short(ms []tap.Message) string {
	var out []string
	for _, m := range ms {
		switch {
		case m.CallID != "":
			out = append(out, "r:"+m.CallID)
		case len(m.Calls) > 0:
			out = append(out, "c:"+m.Calls[0].ID)
		default:
			out = append(out, m.Role[:1]+":"+m.Text)
		}
	}
	return strings.Join(out, " ")
}

func TestWhatIsNew(t *testing.T) {
	answer := func(s string) []string { return []string{"X-Answer", s} }
	call := func(id string) []string { return []string{"X-Call", id} }
	key := func(k string) []string { return []string{"Specbox-Session", k, "X-Answer", "1"} }
	for name, turns := range map[string][]turn{
		"a conversation grows": {
			{messages: "s:be u:one", header: answer("1"), new: "s:be u:one"},
			{messages: "s:be u:one a:1 u:two", header: answer("2"), new: "u:two", same: 1},
			{messages: "s:be u:one a:1 u:two a:2 u:two", header: answer("2"), new: "u:two", same: 1},
		},
		"a request is tried again": {
			{messages: "s:be u:one", header: answer("1"), new: "s:be u:one"},
			{messages: "s:be u:one", header: answer("1"), new: "", same: 1},
			{messages: "s:be u:one a:1 u:two", header: answer("2"), new: "u:two", same: 1},
			{messages: "s:be u:one a:1 u:two", header: answer("2"), new: "", same: 1},
		},
		"an answer that nobody saw is new": {
			{messages: "s:be u:one", header: nil, new: "s:be u:one"},
			{messages: "s:be u:one a:1 u:two", header: answer("2"), new: "a:1 u:two", same: 1},
		},
		"conversations begin with the same words of the system": {
			{messages: "s:be u:one", header: answer("1"), new: "s:be u:one"},
			{messages: "s:be u:other", header: answer("1"), new: "s:be u:other"},
			{messages: "s:be u:one a:1 u:two", header: answer("2"), new: "u:two", same: 1},
			{messages: "s:be u:other a:1 u:two", header: answer("2"), new: "u:two", same: 2},
		},
		"the same task is tried several times at once": {
			{messages: "u:go", header: call("call_a"), new: "u:go"},
			{messages: "u:go", header: call("call_b"), new: "", same: 1},
			{messages: "u:go c:call_a r:call_a", header: call("call_c"), new: "r:call_a", same: 1},
			{messages: "u:go c:call_b r:call_b", header: call("call_d"), new: "r:call_b", parent: 1},
			{messages: "u:go c:call_a r:call_a c:call_c r:call_c", new: "r:call_c", same: 1},
			{messages: "u:go c:call_b r:call_b c:call_d r:call_d", new: "r:call_d", same: 4},
		},
		"the same task is tried once more later": {
			{messages: "u:go", header: call("call_a"), new: "u:go"},
			{messages: "u:go c:call_a r:call_a", header: call("call_c"), new: "r:call_a", same: 1},
			{messages: "u:go", header: call("call_b"), new: "", same: 1},
			{messages: "u:go c:call_b r:call_b", new: "r:call_b", parent: 1},
			{messages: "u:go c:call_a r:call_a c:call_c r:call_c", new: "r:call_c", same: 1},
		},
		"the user edits what they said": {
			{messages: "u:one", header: answer("1"), new: "u:one"},
			{messages: "u:one a:1 u:two", header: answer("2"), new: "u:two", same: 1},
			{messages: "u:one a:1 u:three", header: answer("3"), new: "u:three", parent: 1},
		},
		"an old result is cleared": {
			{messages: "u:one", header: call("call_a"), new: "u:one"},
			{messages: "u:one c:call_a r:call_a", header: call("call_b"), new: "r:call_a", same: 1},
			{messages: "u:one c:call_a r:call_a c:call_b r:call_b", header: answer("2"), new: "r:call_b", same: 1},
			{messages: "u:one c:call_a u:cleared c:call_b r:call_b a:2 u:more", header: answer("2"), new: "u:cleared a:2 u:more", same: 1},
		},
		"the history is compacted": {
			{messages: "s:be u:one", header: call("call_a"), new: "s:be u:one"},
			{messages: "s:be u:one c:call_a r:call_a", header: call("call_b"), new: "r:call_a", same: 1},
			{messages: "s:be u:summary c:call_b r:call_b", header: answer("2"), new: "u:summary r:call_b", same: 1},
			{messages: "s:be u:summary c:call_b r:call_b a:2 u:more", header: answer("2"), new: "u:more", same: 1},
		},
		"the same is written in another way": {
			{messages: "u:one", header: answer("1"), new: "u:one"},
			{messages: "U:one a:1 u:two", header: answer("2"), new: "u:two", same: 1},
		},
		"keys tell conversations apart": {
			{messages: "u:one", header: key("a"), new: "u:one"},
			{messages: "u:one", header: key("b"), new: "u:one"},
			{messages: "u:one a:1 u:two", header: key("a"), new: "u:two", same: 1},
			{messages: "u:one a:1 u:two", header: key("b"), new: "u:two", same: 2},
		},
		"an id that comes in several conversations joins none": {
			{messages: "u:one", header: call("c0"), new: "u:one"},
			{messages: "u:two", header: call("c0"), new: "u:two"},
			{messages: "s:summary c:c0 r:c0", new: "s:summary c:c0 r:c0"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := newRig(t, http.HandlerFunc(talker))
			var ids []string
			for i, turn := range turns {
				x.post("/v1/chat/completions", chatBody(turn.messages), turn.header...)
				r := x.diary.ended(t, i+1).req
				ids = append(ids, r.Conversation)
				if got := short(r.New); got != turn.new {
					t.Errorf("turn %d: new is %q, not %q", i+1, got, turn.new)
				}
				if r.Continued != (turn.same > 0) || turn.same > 0 && r.Conversation != ids[turn.same-1] {
					t.Errorf("turn %d: conversation %s, continued %v, of %v", i+1, r.Conversation, r.Continued, ids)
				}
				if want := turn.parent > 0; (r.Parent != "") != want || want && r.Parent != ids[turn.parent-1] {
					t.Errorf("turn %d: it branched off %q, of %v", i+1, r.Parent, ids)
				}
				for j, id := range ids[:i] {
					if turn.same == 0 && id == r.Conversation {
						t.Errorf("turn %d is of the conversation of turn %d", i+1, j+1)
					}
				}
			}
		})
	}
}

// Conversations that the API keeps: each request brings what is new.
func TestKeptConversations(t *testing.T) {
	x := newRig(t, http.HandlerFunc(talker))
	n := 0
	say := func(body, answer string) *tap.Request {
		t.Helper()
		x.post("/v1/responses", body, "X-Answer", answer)
		n++
		return x.diary.ended(t, n).req
	}
	check := func(r *tap.Request, new string, same *tap.Request) {
		t.Helper()
		if got := short(r.New); got != new {
			t.Errorf("new is %q, not %q", got, new)
		}
		if r.Continued != (same != nil) || same != nil && r.Conversation != same.Conversation {
			t.Errorf("conversation %s, continued %v", r.Conversation, r.Continued)
		}
	}
	a := say(`{"instructions":"be","input":"one"}`, "resp_1")
	check(a, "s:be u:one", nil)
	check(say(`{"instructions":"be","input":"two","previous_response_id":"resp_1"}`, "resp_2"), "u:two", a)
	check(say(`{"input":"two","previous_response_id":"resp_2"}`, "resp_3"), "u:two", a)
	check(say(`{"input":"two","previous_response_id":"resp_2"}`, "resp_4"), "", a)
	branch := say(`{"input":"other","previous_response_id":"resp_1"}`, "resp_5")
	check(branch, "u:other", nil)
	if branch.Parent != a.Conversation {
		t.Errorf("it branched off %q", branch.Parent)
	}
	check(say(`{"input":"more","previous_response_id":"resp_5"}`, "resp_6"), "u:more", branch)
	unknown := say(`{"input":"three","previous_response_id":"resp_x"}`, "resp_y")
	check(unknown, "u:three", nil)
	check(say(`{"input":"four","previous_response_id":"resp_y"}`, "resp_z"), "u:four", unknown)

	kept := say(`{"input":"five","conversation":"conv_1"}`, "resp_k1")
	check(kept, "u:five", nil)
	check(say(`{"input":[{"role":"user","content":"six"}],"conversation":{"id":"conv_1"}}`, "resp_k2"), "u:six", kept)
	check(say(`{"input":"five","conversation":"conv_2"}`, "resp_k3"), "u:five", nil)
}

// Tenants do not know each other's conversations.
func TestTenantsAreApart(t *testing.T) {
	x := newRig(t, http.HandlerFunc(talker), func(c *tap.Config) {
		c.Tenant = func(r *http.Request) (string, error) { return r.Header.Get("X-Tenant"), nil }
	})
	for i, tenant := range []string{"a", "b", "a"} {
		x.post("/v1/chat/completions", chatBody("u:one"), "X-Tenant", tenant)
		r := x.diary.ended(t, i+1).req
		if r.Tenant != tenant || r.Continued != (i == 2) {
			t.Errorf("request %d: tenant %s, continued %v", i+1, r.Tenant, r.Continued)
		}
	}
}

// Clients mark messages for the cache and leave out old thoughts: it is the same
// message.
func TestMessagesThatAreWrittenInAnotherWay(t *testing.T) {
	m := tap.NewMemory(1000)
	body := func(messages ...string) []byte { return []byte(`{"messages":[` + strings.Join(messages, ",") + `]}`) }
	const (
		asked    = `{"role":"user","content":[{"type":"text","text":"one"},{"type":"image","source":{"data":"AAAA"}}]}`
		marked   = `{"role":"user","content":[{"type":"text","text":"one"},{"type":"image","source":{"data":"AAAA"},"cache_control":{"type":"ephemeral"}}]}`
		thought  = `{"role":"assistant","content":[{"type":"thinking","thinking":"Hm","signature":"s"},{"type":"text","text":"I look."},{"type":"tool_use","id":"t1","name":"look","input":{"a":1}}]}`
		plain    = `{"content":[{"text":"I look.","type":"text"},{"type":"tool_use","id":"t1","name":"look","input": {"a": 1}}],"role":"assistant"}`
		result   = `{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"ok"}]}`
		cached   = `{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"ok","cache_control":{"type":"ephemeral"}}]}`
		more     = `{"role":"user","content":"more"}`
		otherImg = `{"role":"user","content":[{"type":"text","text":"one"},{"type":"image","source":{"data":"BBBB"}}]}`
	)
	id, _, _, _ := m.Read(tap.Messages, body(asked, thought, result))
	again, continued, messages, _ := m.Read(tap.Messages, body(marked, plain, cached, more))
	if again != id || !continued || short(messages) != "u:more" {
		t.Errorf("conversation %s, then %s, continued %v: new is %q", id, again, continued, short(messages))
	}
	if other, _, messages, _ := m.Read(tap.Messages, body(otherImg)); other == id || short(messages) != "u:one" {
		t.Errorf("another image is of conversation %s: new is %q", other, short(messages))
	}
}

// What is remembered is bounded; what was used last is kept.
func TestMemoryIsBounded(t *testing.T) {
	const most = 1000
	m := tap.NewMemory(most)
	kept := chatBody("u:kept")
	m.Read(tap.Chat, []byte(kept))
	for i := range 2000 {
		m.Read(tap.Chat, []byte(chatBody(fmt.Sprintf("s:be u:q%d a:1 u:two", i))))
		if _, continued, _, _ := m.Read(tap.Chat, []byte(kept)); !continued {
			t.Fatalf("forgotten after %d others", i+1)
		}
		if n, hashes := m.Size(); hashes > most || n > most {
			t.Fatalf("%d conversations and %d hashes are kept", n, hashes)
		}
	}
	if _, continued, _, _ := m.Read(tap.Chat, []byte(chatBody("s:be u:q0 a:1 u:two"))); continued {
		t.Error("nothing was forgotten")
	}
	if _, continued, _, _ := m.Read(tap.Chat, []byte(chatBody(strings.Repeat("u:more ", 3000)))); continued {
		t.Error("a long conversation was seen before")
	}
	if _, hashes := m.Size(); hashes > most {
		t.Errorf("%d hashes of a long conversation are kept", hashes)
	}
}

// The text of a message is bounded: its beginning and its end.
func TestLongMessages(t *testing.T) {
	m := tap.NewMemory(100)
	_, _, messages, _ := m.Read(tap.Chat, []byte(chatBody("u:BEGIN"+strings.Repeat("x", 1<<20)+"END")))
	text := messages[0].Text
	if len(text) != tap.MaxMessage || !strings.HasPrefix(text, "BEGIN") || !strings.HasSuffix(text, "END") {
		t.Errorf("%d bytes: %.10q", len(text), text)
	}
}
