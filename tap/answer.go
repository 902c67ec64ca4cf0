package tap

import (
	"bytes"
	"strconv"

	"github.com/specbox/specbox/internal/sse"
	"github.com/specbox/specbox/wire"
)

// Bounds of one answer.
const (
	maxEvent = 1 << 20  // bytes of one event; a longer one is skipped
	maxWhole = 16 << 20 // bytes of an answer that is no stream; a longer one is skipped
	maxCalls = 1024     // tool calls; what comes beyond is skipped
)

// An answer turns the bytes of a response into deltas. It is used by one
// goroutine.
type answer struct {
	api      API
	tell     func(Delta)
	called   func(id string) // a tool call has begun
	answered func(id string) // the id of the answer is known

	buf      []byte // of the text that is told
	half     rune   // what the text before ended with: see appendUnquoted
	halfOf   Kind
	halfCall int

	calls    []*toolCall
	finished bool // nothing more is to come
	done     bool
	skipped  int64 // events that were not understood
}

// A toolCall is one that the answer holds.
type toolCall struct {
	n      int    // within the answer
	place  int    // of the choice, or 0
	key    string // what later deltas name it by
	id     string
	name   string
	filled bool // arguments have come
	closed bool
}

// event takes one event of a stream.
func (a *answer) event(e sse.Event) {
	if a.done {
		return
	}
	if e.Data == nil { // too long
		a.skipped++
		if e.Type == "response.completed" { // it repeats the whole answer
			a.complete()
		}
		return
	}
	data := bytes.TrimSpace(e.Data)
	switch {
	case len(data) == 0:
	case string(data) == "[DONE]":
		a.end()
	case data[0] != '{':
		a.skipped++
	case a.api == Chat:
		a.chat(data)
	case a.api == Responses:
		a.responses(data)
	case a.api == Messages:
		a.messages(data)
	}
}

// whole takes an answer that is no stream.
func (a *answer) whole(data []byte) {
	if !wire.Valid(data) {
		a.skipped++
		return
	}
	a.named(wire.Get(data, "id"))
	switch a.api {
	case Chat:
		a.chat(data)
	case Responses:
		each(wire.Get(data, "output"), a.outputItem)
		a.finished = string(wire.Get(data, "status")) != `"failed"` && wire.Get(data, "output") != nil
	case Messages:
		n := 0
		each(wire.Get(data, "content"), func(block []byte) {
			key := strconv.Itoa(n)
			n++
			a.blockBegins(key, block)
			if c := a.find(0, key); c != nil {
				a.close(c)
			}
		})
		a.finished = wire.Get(data, "content") != nil
	}
	a.closeAll(-1)
	a.end()
}

// complete takes the word that the answer is complete.
func (a *answer) complete() {
	a.closeAll(-1)
	a.finished = true
	a.end()
}

// end takes the end of a response that came to its end in good order.
func (a *answer) end() {
	if a.done || !a.finished {
		return
	}
	a.flush()
	a.done = true
	a.tell(Delta{Kind: Done})
}

func (a *answer) named(id []byte) {
	if len(id) > 2 && isString(id) {
		a.answered(text(id))
	}
}

// say tells a piece of text, given as a JSON string.
func (a *answer) say(kind Kind, raw []byte) {
	if len(raw) > 2 && isString(raw) {
		a.piece(kind, nil, raw)
	}
}

func (a *answer) piece(kind Kind, c *toolCall, raw []byte) {
	d := Delta{Kind: kind}
	if c != nil {
		d.Index, d.ID, d.Name = c.n, c.id, c.name
	}
	if a.half != 0 && (a.halfOf != kind || a.halfCall != d.Index) {
		a.flush()
	}
	a.buf, a.half = appendUnquoted(a.buf[:0], raw, a.half)
	a.halfOf, a.halfCall = kind, d.Index
	if d.Text = a.buf; len(d.Text) > 0 {
		a.tell(d)
	}
}

// flush tells the half of a character that nothing came after.
func (a *answer) flush() {
	if a.half == 0 {
		return
	}
	d := Delta{Kind: a.halfOf, Index: a.halfCall}
	if d.Kind == Arguments {
		d.ID, d.Name = a.calls[d.Index].id, a.calls[d.Index].name
	}
	a.buf, a.half = lone(a.buf[:0], a.half), 0
	d.Text = a.buf
	a.tell(d)
}

// begin tells that a call begins, and returns it; nil if there are too many.
func (a *answer) begin(place int, key string, id, name []byte) *toolCall {
	if len(a.calls) >= maxCalls {
		a.skipped++
		return nil
	}
	c := &toolCall{n: len(a.calls), place: place, key: key, id: text(id), name: text(name)}
	a.calls = append(a.calls, c)
	if c.id != "" {
		a.called(c.id)
	}
	a.flush()
	a.tell(Delta{Kind: ToolName, Index: c.n, ID: c.id, Name: c.name})
	return c
}

// fill tells arguments: a JSON string that holds a piece of them, or, of some
// servers, the value itself.
func (a *answer) fill(c *toolCall, raw []byte) {
	if c == nil || c.closed || len(raw) == 0 || string(raw) == "null" || string(raw) == `""` {
		return
	}
	c.filled = true
	if isString(raw) {
		a.piece(Arguments, c, raw)
		return
	}
	a.flush()
	a.tell(Delta{Kind: Arguments, Index: c.n, ID: c.id, Name: c.name, Text: raw})
}

func (a *answer) close(c *toolCall) {
	if c == nil || c.closed {
		return
	}
	c.closed = true
	a.flush()
	a.tell(Delta{Kind: ToolDone, Index: c.n, ID: c.id, Name: c.name})
}

// closeAll closes the calls of a choice, or of every one if place is negative.
func (a *answer) closeAll(place int) {
	for _, c := range a.calls {
		if place < 0 || c.place == place {
			a.close(c)
		}
	}
}

// find returns the call that was begun last under a name.
func (a *answer) find(place int, key string) *toolCall {
	for i := len(a.calls) - 1; i >= 0; i-- {
		if c := a.calls[i]; c.place == place && c.key == key {
			return c
		}
	}
	return nil
}

// Chat Completions: a chunk of a stream, or an answer.

func (a *answer) chat(data []byte) {
	choices := wire.Get(data, "choices")
	if choices == nil {
		if wire.Get(data, "error") == nil {
			a.skipped++
		}
		return
	}
	each(choices, a.choice)
}

func (a *answer) choice(choice []byte) {
	place, _ := strconv.Atoi(string(wire.Get(choice, "index")))
	delta := wire.Get(choice, "delta")
	if delta == nil {
		delta = wire.Get(choice, "message")
	}
	if isObject(delta) {
		a.chatDelta(place, delta)
	}
	if reason := wire.Get(choice, "finish_reason"); len(reason) > 2 && isString(reason) {
		a.closeAll(place)
		a.finished = true
	}
}

func (a *answer) chatDelta(place int, delta []byte) {
	if content := wire.Get(delta, "content"); isString(content) {
		a.say(Text, content)
	} else {
		a.parts(content)
	}
	a.say(Text, wire.Get(delta, "refusal"))
	a.chatReasoning(delta)
	each(wire.Get(delta, "tool_calls"), func(call []byte) { a.chatCall(place, call) })
	if f := wire.Get(delta, "function_call"); isObject(f) { // before there were several
		c := a.find(place, "function")
		if name := wire.Get(f, "name"); c == nil && len(name) > 2 {
			c = a.begin(place, "function", nil, name)
		}
		a.fill(c, wire.Get(f, "arguments"))
	}
}

// chatReasoning tells thoughts, once where a server gives them twice.
func (a *answer) chatReasoning(delta []byte) {
	for _, name := range []string{"reasoning_content", "reasoning"} {
		if r := wire.Get(delta, name); isString(r) {
			a.say(Reasoning, r)
			return
		}
	}
	each(wire.Get(delta, "reasoning_details"), func(detail []byte) {
		a.say(Reasoning, wire.Get(detail, "text"))
		a.say(Reasoning, wire.Get(detail, "summary"))
	})
}

// parts tells content that is a list of parts.
func (a *answer) parts(content []byte) {
	each(content, func(part []byte) {
		if isString(part) {
			a.say(Text, part)
			return
		}
		a.say(Text, wire.Get(part, "text"))
		a.say(Text, wire.Get(part, "refusal"))
		thinking := wire.Get(part, "thinking")
		a.say(Reasoning, thinking)
		each(thinking, func(t []byte) { a.say(Reasoning, wire.Get(t, "text")) })
	})
}

func (a *answer) chatCall(place int, call []byte) {
	body, input := wire.Get(call, "function"), "arguments"
	if body == nil {
		body, input = wire.Get(call, "custom"), "input"
	}
	key, id, name := string(wire.Get(call, "index")), wire.Get(call, "id"), wire.Get(body, "name")
	c := a.find(place, key)
	if key == "" && len(id) <= 2 && len(a.calls) > 0 { // neither is given: the last one
		c = a.calls[len(a.calls)-1]
	}
	// Some servers give every call the same index, and some repeat name and id in
	// every delta.
	if len(name) > 2 && isString(name) && (c == nil || len(id) > 2 && isString(id) && text(id) != c.id) {
		if c != nil {
			a.close(c)
		} else if n := len(a.calls); n > 0 && a.calls[n-1].place == place {
			a.close(a.calls[n-1])
		}
		c = a.begin(place, key, id, name)
	}
	a.fill(c, wire.Get(body, input))
}

// Responses: an event of a stream.

func (a *answer) responses(data []byte) {
	switch string(wire.Get(data, "type")) {
	case `"response.output_text.delta"`, `"response.refusal.delta"`:
		a.say(Text, wire.Get(data, "delta"))
	case `"response.reasoning_text.delta"`, `"response.reasoning_summary_text.delta"`:
		a.say(Reasoning, wire.Get(data, "delta"))
	case `"response.output_item.added"`:
		a.outputCall(outputKey(data), wire.Get(data, "item"), false)
	case `"response.output_item.done"`:
		a.outputCall(outputKey(data), wire.Get(data, "item"), true)
	case `"response.function_call_arguments.delta"`, `"response.custom_tool_call_input.delta"`, `"response.mcp_call_arguments.delta"`:
		a.fill(a.find(0, outputKey(data)), wire.Get(data, "delta"))
	case `"response.function_call_arguments.done"`, `"response.mcp_call_arguments.done"`:
		a.argumentsDone(data, "arguments")
	case `"response.custom_tool_call_input.done"`:
		a.argumentsDone(data, "input")
	case `"response.created"`:
		a.named(wire.Get(data, "response", "id"))
	case `"response.completed"`, `"response.incomplete"`:
		a.complete()
	case "":
		if wire.Get(data, "error") == nil {
			a.skipped++
		}
	}
}

// outputKey returns what the events of one item have in common.
func outputKey(data []byte) string { return string(wire.Get(data, "output_index")) }

func (a *answer) argumentsDone(data []byte, field string) {
	c := a.find(0, outputKey(data))
	if c != nil && !c.filled {
		a.fill(c, wire.Get(data, field))
	}
	a.close(c)
}

// outputCall takes an item, if it is a call, at its beginning or its end. Some
// servers tell the end alone.
func (a *answer) outputCall(key string, item []byte, whole bool) {
	id, input := wire.Get(item, "call_id"), "arguments"
	switch string(wire.Get(item, "type")) {
	case `"function_call"`:
	case `"custom_tool_call"`:
		input = "input"
	case `"mcp_call"`, `"mcp_approval_request"`:
		id = wire.Get(item, "id")
	default:
		return
	}
	c := a.find(0, key)
	if c == nil || !whole && c.closed {
		c = a.begin(0, key, id, wire.Get(item, "name"))
	}
	if c != nil && !c.filled {
		a.fill(c, wire.Get(item, input))
	}
	if whole {
		a.close(c)
	}
}

// outputItem takes an item of an answer that is no stream.
func (a *answer) outputItem(item []byte) {
	switch string(wire.Get(item, "type")) {
	case `"reasoning"`:
		each(wire.Get(item, "summary"), func(part []byte) { a.say(Reasoning, wire.Get(part, "text")) })
		each(wire.Get(item, "content"), func(part []byte) { a.say(Reasoning, wire.Get(part, "text")) })
	case `"message"`:
		a.parts(wire.Get(item, "content"))
	default:
		a.outputCall("item "+strconv.Itoa(len(a.calls)), item, true)
	}
}

// Messages: an event of a stream.

func (a *answer) messages(data []byte) {
	switch string(wire.Get(data, "type")) {
	case `"content_block_delta"`:
		delta := wire.Get(data, "delta")
		switch string(wire.Get(delta, "type")) {
		case `"text_delta"`:
			a.say(Text, wire.Get(delta, "text"))
		case `"thinking_delta"`:
			a.say(Reasoning, wire.Get(delta, "thinking"))
		case `"input_json_delta"`:
			a.fill(a.find(0, string(wire.Get(data, "index"))), wire.Get(delta, "partial_json"))
		}
	case `"content_block_start"`:
		a.blockBegins(string(wire.Get(data, "index")), wire.Get(data, "content_block"))
	case `"content_block_stop"`:
		a.close(a.find(0, string(wire.Get(data, "index"))))
	case `"message_start"`:
		a.named(wire.Get(data, "message", "id"))
	case `"message_delta"`:
		a.finished = a.finished || isString(wire.Get(data, "delta", "stop_reason"))
	case `"message_stop"`:
		a.complete()
	case "":
		a.skipped++
	}
}

// blockBegins takes the beginning of a block, which may be all of it.
func (a *answer) blockBegins(key string, block []byte) {
	switch string(wire.Get(block, "type")) {
	case `"text"`:
		a.say(Text, wire.Get(block, "text"))
	case `"thinking"`:
		a.say(Reasoning, wire.Get(block, "thinking"))
	case `"tool_use"`, `"mcp_tool_use"`, `"server_tool_use"`:
		c := a.begin(0, key, wire.Get(block, "id"), wire.Get(block, "name"))
		if input := wire.Get(block, "input"); string(bytes.TrimSpace(input)) != "{}" {
			a.fill(c, input)
		}
	}
}

// each calls f with each element of an array; other values have none.
func each(raw []byte, f func(elem []byte)) {
	if isArray(raw) {
		_ = wire.Each(raw, func(elem []byte) bool { f(elem); return true }) // what is broken off is not there
	}
}
