package model

// A chat speaks OpenAI Chat Completions.
type chat struct{ a *answer }

func newChat(a *answer) voice { return &chat{a} }

func (c *chat) chunk(choices []object, usage any) event {
	data := object{
		"id": c.a.id("chatcmpl", 0), "object": "chat.completion.chunk", "created": c.a.created,
		"model": c.a.model, "system_fingerprint": "replay", "choices": choices,
	}
	if c.a.usage {
		data["usage"] = usage
	}
	return event{data: data}
}

func (c *chat) choice(delta object, finish any) []event {
	return []event{c.chunk([]object{{"index": 0, "delta": delta, "logprobs": nil, "finish_reason": finish}}, nil)}
}

func (c *chat) begin() []event {
	return c.choice(object{"role": "assistant", "content": "", "refusal": nil}, nil)
}

func (c *chat) open(block int) []event {
	i := block - len(c.a.turn.Parts)
	if i < 0 {
		return nil
	}
	return c.choice(object{"tool_calls": []object{{
		"index": i, "id": c.a.id("call", i), "type": "function",
		"function": object{"name": c.a.turn.Calls[i].Name, "arguments": ""},
	}}}, nil)
}

func (c *chat) delta(block int, text string) []event {
	if i := block - len(c.a.turn.Parts); i >= 0 {
		return c.choice(object{"tool_calls": []object{{"index": i, "function": object{"arguments": text}}}}, nil)
	}
	if c.a.turn.Parts[block].Reasoning {
		return c.choice(object{"reasoning_content": text}, nil)
	}
	return c.choice(object{"content": text}, nil)
}

func (c *chat) shut(int) []event { return nil }

func (c *chat) finish() string {
	if len(c.a.turn.Calls) > 0 {
		return "tool_calls"
	}
	return "stop"
}

func (c *chat) end() []event {
	all := c.choice(object{}, c.finish())
	if c.a.usage {
		all = append(all, c.chunk([]object{}, c.used()))
	}
	return append(all, event{data: "[DONE]"})
}

func (c *chat) fail(f *Failure) []event {
	return []event{{data: failOpenAI(f.status(), f.kind(), f.Message)}}
}

func (c *chat) used() object {
	all, reasoning := c.a.count()
	return object{
		"prompt_tokens": c.a.input, "completion_tokens": all, "total_tokens": c.a.input + all,
		"completion_tokens_details": object{"reasoning_tokens": reasoning},
	}
}

func (c *chat) whole() any {
	m := object{"role": "assistant", "content": c.a.said(false), "refusal": nil}
	if thought := c.a.said(true); thought != "" {
		m["reasoning_content"] = thought
	}
	if len(c.a.turn.Calls) > 0 {
		var calls []object
		for i, call := range c.a.turn.Calls {
			calls = append(calls, object{
				"id": c.a.id("call", i), "type": "function",
				"function": object{"name": call.Name, "arguments": arguments(call)},
			})
		}
		m["tool_calls"] = calls
		if m["content"] == "" {
			m["content"] = nil
		}
	}
	return object{
		"id": c.a.id("chatcmpl", 0), "object": "chat.completion", "created": c.a.created, "model": c.a.model,
		"system_fingerprint": "replay", "usage": c.used(),
		"choices": []object{{"index": 0, "message": m, "logprobs": nil, "finish_reason": c.finish()}},
	}
}
