package tap

import (
	"hash/maphash"

	"github.com/specbox/specbox/wire"
)

// Bounds of one request.
const (
	maxItems   = 1 << 14 // messages; a request with more is not understood
	maxTools   = 1 << 12 // tools; what comes beyond is skipped
	headOfText = 16 << 10
	tailOfText = 8 << 10
	deep       = 8 // levels of JSON that are compared member by member
)

// A body is what was found in a request.
type body struct {
	api          API
	model        string
	key          string // that it names the session by
	previous     string // id of the answer that it goes on from
	conversation string // id that the API gave it
	items        []item
	tools        []byte
}

// An item is a message, as the API has it.
type item struct {
	role   string // of [Message]
	raw    []byte // an object, or, of a prompt that stands alone, a string
	digest uint64 // the same when the message comes back
	calls  []string
}

// read returns what it understands of a request, and false if that is nothing.
// What it returns shares memory with raw; its digests are of this memory alone.
func (m *memory) read(api API, raw []byte) (body, bool) {
	if !wire.Valid(raw) {
		return body{}, false
	}
	b := body{api: api, model: text(wire.Get(raw, "model")), key: text(wire.Get(raw, "metadata", sessionKey)), tools: wire.Get(raw, "tools")}
	if b.tools == nil {
		b.tools = wire.Get(raw, "functions")
	}
	ok := true
	add := func(role string, v []byte) {
		switch {
		case len(b.items) >= maxItems:
			ok = false
		case role != "" && (isObject(v) || isString(v) && len(v) > 2 || isArray(v)):
			b.items = append(b.items, item{role: role, raw: v, digest: m.digest(role, v), calls: callIDs(v)})
		}
	}
	switch api {
	case Chat:
		each(wire.Get(raw, "messages"), func(v []byte) { add(chatRole(v), v) })
	case Responses:
		b.previous = text(wire.Get(raw, "previous_response_id"))
		if b.conversation = text(wire.Get(raw, "conversation")); b.conversation == "" {
			b.conversation = text(wire.Get(raw, "conversation", "id"))
		}
		add("system", wire.Get(raw, "instructions"))
		input := wire.Get(raw, "input")
		if isString(input) {
			add("user", input)
		}
		each(input, func(v []byte) { add(itemRole(v), v) })
	case Messages:
		add("system", wire.Get(raw, "system"))
		each(wire.Get(raw, "messages"), func(v []byte) { add(messageRole(v), v) })
	}
	return b, ok
}

func chatRole(m []byte) string {
	switch role := text(wire.Get(m, "role")); role {
	case "developer":
		return "system"
	case "function":
		return "tool"
	default:
		return role
	}
}

// messageRole returns "tool" for a message of the user that holds nothing but
// results.
func messageRole(m []byte) string {
	role := text(wire.Get(m, "role"))
	results, others := 0, 0
	each(wire.Get(m, "content"), func(block []byte) {
		if isResult(block) {
			results++
		} else {
			others++
		}
	})
	if role == "user" && results > 0 && others == 0 {
		return "tool"
	}
	return role
}

func isResult(block []byte) bool {
	kind := string(wire.Get(block, "type"))
	return kind == `"tool_result"` || kind == `"mcp_tool_result"`
}

// itemRole returns "" for items that say nothing.
func itemRole(m []byte) string {
	switch string(wire.Get(m, "type")) {
	case `"function_call"`, `"custom_tool_call"`, `"mcp_call"`:
		return "assistant"
	case `"function_call_output"`, `"custom_tool_call_output"`:
		return "tool"
	case "", `"message"`:
		return chatRole(m)
	}
	return ""
}

// callIDs returns the ids of the calls that a message of an assistant makes.
func callIDs(m []byte) (ids []string) {
	note := func(id []byte) {
		if s := text(id); s != "" {
			ids = append(ids, s)
		}
	}
	each(wire.Get(m, "tool_calls"), func(c []byte) { note(wire.Get(c, "id")) })
	each(wire.Get(m, "content"), func(c []byte) {
		if kind := string(wire.Get(c, "type")); kind == `"tool_use"` || isResult(c) {
			note(wire.Get(c, "id"))
			note(wire.Get(c, "tool_use_id"))
		}
	})
	note(wire.Get(m, "tool_call_id"))
	note(wire.Get(m, "call_id"))
	return ids
}

// digest is the same for a message that comes back, though the client may have
// written it in another way: as a string or as a list of parts, with other marks
// for the cache, without the thoughts.
func (m *memory) digest(role string, message []byte) uint64 {
	var h maphash.Hash
	h.SetSeed(m.seed)
	part(&h, []byte(role))
	switch {
	case !isObject(message):
		content(&h, message)
	case role == "assistant":
		content(&h, wire.Get(message, "content"))
		each(wire.Get(message, "tool_calls"), func(c []byte) { value(&h, c, 0) })
		for _, name := range []string{"function_call", "refusal", "name", "call_id", "arguments", "input"} {
			value(&h, wire.Get(message, name), 0)
		}
	default:
		_ = wire.Members(message, func(key string, v []byte) bool { // it is valid
			switch key {
			case "role", "type", "id", "status", "cache_control":
			case "content", "output":
				content(&h, v)
			default:
				part(&h, []byte(key))
				value(&h, v, 0)
			}
			return true
		})
	}
	return h.Sum64()
}

// part adds bytes such that two parts are not one longer one. Writes to a hash
// cannot fail.
func part(h *maphash.Hash, b []byte) {
	maphash.WriteComparable(h, len(b))
	_, _ = h.Write(b)
}

// content adds what a message says.
func content(h *maphash.Hash, v []byte) {
	if !isArray(v) {
		part(h, v)
		return
	}
	each(v, func(p []byte) {
		switch kind := string(wire.Get(p, "type")); kind {
		case `"text"`, `"input_text"`, `"output_text"`:
			part(h, wire.Get(p, "text"))
		case `"thinking"`, `"redacted_thinking"`:
		default:
			value(h, p, 0)
		}
	})
}

// value adds a value, whatever the space in it.
func value(h *maphash.Hash, v []byte, depth int) {
	switch {
	case depth < deep && isObject(v):
		_ = wire.Members(v, func(key string, v []byte) bool {
			if key != "cache_control" {
				part(h, []byte(key))
				value(h, v, depth+1)
			}
			return true
		})
	case depth < deep && isArray(v):
		each(v, func(e []byte) { value(h, e, depth+1) })
	default:
		part(h, v)
	}
}

// toolList returns the tools that the model may call.
func toolList(raw []byte) []Tool {
	var tools []Tool
	each(raw, func(t []byte) {
		for _, nested := range []string{"function", "custom"} {
			if inner := wire.Get(t, nested); isObject(inner) {
				t = inner
				break
			}
		}
		if name := text(wire.Get(t, "name")); name != "" && len(tools) < maxTools {
			tools = append(tools, Tool{Name: name, Description: clip(text(wire.Get(t, "description")))})
		}
	})
	return tools
}

// messages returns what an item says. It is more than one message where the API
// holds results of tools and the user's words in one.
func (it item) messages(api API) []Message {
	m := it.raw
	if !isObject(m) {
		return []Message{{Role: it.role, Text: spoken(m)}}
	}
	switch api {
	case Responses:
		return []Message{it.responsesMessage()}
	case Messages:
		return it.blocks()
	}
	msg := Message{Role: it.role, Text: spoken(wire.Get(m, "content")), CallID: text(wire.Get(m, "tool_call_id"))}
	each(wire.Get(m, "tool_calls"), func(c []byte) {
		f, input := wire.Get(c, "function"), "arguments"
		if f == nil {
			f, input = wire.Get(c, "custom"), "input"
		}
		msg.Calls = append(msg.Calls, Call{ID: text(wire.Get(c, "id")), Name: text(wire.Get(f, "name")), Arguments: arguments(wire.Get(f, input))})
	})
	if f := wire.Get(m, "function_call"); isObject(f) {
		msg.Calls = append(msg.Calls, Call{Name: text(wire.Get(f, "name")), Arguments: arguments(wire.Get(f, "arguments"))})
	}
	return []Message{msg}
}

func (it item) responsesMessage() Message {
	m := it.raw
	msg := Message{Role: it.role}
	switch kind := string(wire.Get(m, "type")); kind {
	case `"function_call"`, `"custom_tool_call"`, `"mcp_call"`:
		c := Call{ID: text(wire.Get(m, "call_id")), Name: text(wire.Get(m, "name")), Arguments: arguments(wire.Get(m, "arguments"))}
		if kind == `"custom_tool_call"` {
			c.Arguments = arguments(wire.Get(m, "input"))
		}
		msg.Calls = []Call{c}
	case `"function_call_output"`, `"custom_tool_call_output"`:
		msg.CallID, msg.Text = text(wire.Get(m, "call_id")), spoken(wire.Get(m, "output"))
	default:
		msg.Text = spoken(wire.Get(m, "content"))
	}
	return msg
}

// blocks returns what a message of Anthropic's API says.
func (it item) blocks() []Message {
	content := wire.Get(it.raw, "content")
	said := Message{Role: it.role, Text: clip(string(appendSpoken(nil, content, false)))}
	var out []Message
	each(content, func(block []byte) {
		switch kind := string(wire.Get(block, "type")); {
		case isResult(block):
			out = append(out, Message{Role: "tool", CallID: text(wire.Get(block, "tool_use_id")), Text: spoken(wire.Get(block, "content"))})
		case kind == `"tool_use"` || kind == `"mcp_tool_use"` || kind == `"server_tool_use"`:
			said.Calls = append(said.Calls, Call{ID: text(wire.Get(block, "id")), Name: text(wire.Get(block, "name")), Arguments: arguments(wire.Get(block, "input"))})
		}
	})
	if it.role != "tool" && (said.Text != "" || len(said.Calls) > 0 || len(out) == 0) {
		out = append(out, said)
	}
	return out
}

// spoken returns the text of content, which is a string or a list of parts.
func spoken(content []byte) string { return clip(string(appendSpoken(nil, content, true))) }

// appendSpoken appends the text of content. Its parts may be messages where
// nested says so: instructions are such a list.
func appendSpoken(b, content []byte, nested bool) []byte {
	if isString(content) {
		if len(b) > 0 {
			b = append(b, '\n')
		}
		b, high := appendUnquoted(b, content, 0)
		return lone(b, high)
	}
	each(content, func(p []byte) {
		for _, name := range []string{"text", "refusal"} {
			if t := wire.Get(p, name); isString(t) {
				b = appendSpoken(b, t, false)
				return
			}
		}
		if inner := wire.Get(p, "content"); nested && inner != nil {
			b = appendSpoken(b, inner, false)
		}
	})
	return b
}

// arguments returns those of a call: a string that holds them, or the value
// itself.
func arguments(raw []byte) string {
	if isString(raw) {
		return clip(text(raw))
	}
	return clip(string(raw))
}

// clip leaves out the middle of what is very long.
func clip(s string) string {
	if len(s) <= headOfText+tailOfText {
		return s
	}
	return s[:headOfText] + " … " + s[len(s)-tailOfText:]
}
