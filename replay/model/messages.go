package model

import "encoding/json"

// A messages speaks Anthropic Messages.
type messages struct{ a *answer }

func newMessages(a *answer) voice { return &messages{a} }

func (m *messages) head() object {
	return object{
		"id": m.a.id("msg", 0), "type": "message", "role": "assistant", "model": m.a.model, "content": []object{},
		"stop_reason": nil, "stop_sequence": nil, "usage": object{"input_tokens": m.a.input, "output_tokens": 1},
	}
}

func typed(name string, data object) event {
	data["type"] = name
	return event{name, data}
}

func (m *messages) begin() []event {
	return []event{typed("message_start", object{"message": m.head()}), typed("ping", object{})}
}

// block returns a block of the content, as it begins or as it is when done.
func (m *messages) block(block int, done bool) object {
	if i := block - len(m.a.turn.Parts); i >= 0 {
		input := json.RawMessage("{}")
		if done {
			input = json.RawMessage(arguments(m.a.turn.Calls[i]))
		}
		return object{"type": "tool_use", "id": m.a.id("toolu", i), "name": m.a.turn.Calls[i].Name, "input": input}
	}
	p, text := m.a.turn.Parts[block], ""
	if done {
		text = p.Text
	}
	if p.Reasoning {
		o := object{"type": "thinking", "thinking": text, "signature": ""}
		if done {
			o["signature"] = m.a.id("sig", block)
		}
		return o
	}
	return object{"type": "text", "text": text}
}

func (m *messages) open(block int) []event {
	return []event{typed("content_block_start", object{"index": block, "content_block": m.block(block, false)})}
}

func (m *messages) delta(block int, text string) []event {
	d := object{"type": "text_delta", "text": text}
	switch {
	case block >= len(m.a.turn.Parts):
		d = object{"type": "input_json_delta", "partial_json": text}
	case m.a.turn.Parts[block].Reasoning:
		d = object{"type": "thinking_delta", "thinking": text}
	}
	return []event{typed("content_block_delta", object{"index": block, "delta": d})}
}

func (m *messages) shut(block int) []event {
	var all []event
	if block < len(m.a.turn.Parts) && m.a.turn.Parts[block].Reasoning {
		all = append(all, typed("content_block_delta", object{"index": block, "delta": object{"type": "signature_delta", "signature": m.a.id("sig", block)}}))
	}
	return append(all, typed("content_block_stop", object{"index": block}))
}

func (m *messages) stop() string {
	if len(m.a.turn.Calls) > 0 {
		return "tool_use"
	}
	return "end_turn"
}

func (m *messages) end() []event {
	all, _ := m.a.count()
	return []event{
		typed("message_delta", object{"delta": object{"stop_reason": m.stop(), "stop_sequence": nil}, "usage": object{"output_tokens": all}}),
		typed("message_stop", object{}),
	}
}

func (m *messages) fail(f *Failure) []event {
	return []event{typed("error", object{"error": object{"type": f.kind(), "message": f.Message}})}
}

func (m *messages) whole() any {
	o := m.head()
	content := []object{}
	for i := range len(m.a.turn.Parts) + len(m.a.turn.Calls) {
		content = append(content, m.block(i, true))
	}
	all, _ := m.a.count()
	o["content"], o["stop_reason"] = content, m.stop()
	o["usage"] = object{"input_tokens": m.a.input, "output_tokens": all}
	return o
}
