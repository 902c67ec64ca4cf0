package model

// A responses speaks OpenAI Responses.
type responses struct {
	a    *answer
	next int // sequence number
}

func newResponses(a *answer) voice { return &responses{a: a} }

func (r *responses) event(name string, data object) event {
	data["type"], data["sequence_number"] = name, r.next
	r.next++
	return event{name, data}
}

// response returns the response with the items that are complete.
func (r *responses) response(status string, blocks int, failure any) object {
	output := []object{}
	for i := range blocks {
		output = append(output, r.item(i, true))
	}
	o := object{
		"id": responseID(r.a.script, r.a.number, r.a.serial), "object": "response", "created_at": r.a.created,
		"status": status, "model": r.a.model, "output": output, "error": failure, "incomplete_details": nil,
		"instructions": nil, "metadata": object{}, "parallel_tool_calls": true, "temperature": 1, "top_p": 1,
		"tool_choice": "auto", "tools": []object{}, "previous_response_id": nil, "usage": nil,
	}
	if status == "completed" {
		all, reasoning := r.a.count()
		o["usage"] = object{
			"input_tokens": r.a.input, "output_tokens": all, "total_tokens": r.a.input + all,
			"input_tokens_details": object{"cached_tokens": 0}, "output_tokens_details": object{"reasoning_tokens": reasoning},
		}
	}
	return o
}

func (r *responses) blocks() int { return len(r.a.turn.Parts) + len(r.a.turn.Calls) }

// item returns one item of the output, as it begins or as it is when done.
func (r *responses) item(block int, done bool) object {
	status := "in_progress"
	if done {
		status = "completed"
	}
	if i := block - len(r.a.turn.Parts); i >= 0 {
		call := r.a.turn.Calls[i]
		o := object{"type": "function_call", "id": r.a.id("fc", block), "call_id": r.a.id("call", i), "name": call.Name, "arguments": "", "status": status}
		if done {
			o["arguments"] = arguments(call)
		}
		return o
	}
	p := r.a.turn.Parts[block]
	content := []object{}
	if p.Reasoning {
		if done {
			content = append(content, object{"type": "summary_text", "text": p.Text})
		}
		return object{"type": "reasoning", "id": r.a.id("rs", block), "summary": content}
	}
	if done {
		content = append(content, object{"type": "output_text", "text": p.Text, "annotations": []object{}})
	}
	return object{"type": "message", "id": r.a.id("msg", block), "role": "assistant", "status": status, "content": content}
}

func (r *responses) begin() []event {
	return []event{
		r.event("response.created", object{"response": r.response("in_progress", 0, nil)}),
		r.event("response.in_progress", object{"response": r.response("in_progress", 0, nil)}),
	}
}

// at returns what events of a block have in common, with more beside it.
func (r *responses) at(block int, more object) object {
	o := object{"output_index": block}
	switch {
	case block >= len(r.a.turn.Parts):
		o["item_id"] = r.a.id("fc", block)
	case r.a.turn.Parts[block].Reasoning:
		o["item_id"], o["summary_index"] = r.a.id("rs", block), 0
	default:
		o["item_id"], o["content_index"] = r.a.id("msg", block), 0
	}
	for k, v := range more {
		o[k] = v
	}
	return o
}

func (r *responses) open(block int) []event {
	all := []event{r.event("response.output_item.added", object{"output_index": block, "item": r.item(block, false)})}
	if block >= len(r.a.turn.Parts) {
		return all
	}
	if r.a.turn.Parts[block].Reasoning {
		return append(all, r.event("response.reasoning_summary_part.added", r.at(block, object{"part": object{"type": "summary_text", "text": ""}})))
	}
	return append(all, r.event("response.content_part.added", r.at(block, object{"part": object{"type": "output_text", "text": "", "annotations": []object{}}})))
}

func (r *responses) delta(block int, text string) []event {
	switch {
	case block >= len(r.a.turn.Parts):
		return []event{r.event("response.function_call_arguments.delta", r.at(block, object{"delta": text}))}
	case r.a.turn.Parts[block].Reasoning:
		return []event{r.event("response.reasoning_summary_text.delta", r.at(block, object{"delta": text}))}
	}
	return []event{r.event("response.output_text.delta", r.at(block, object{"delta": text, "logprobs": []object{}}))}
}

func (r *responses) shut(block int) []event {
	var all []event
	switch i := block - len(r.a.turn.Parts); {
	case i >= 0:
		all = append(all, r.event("response.function_call_arguments.done", r.at(block, object{"name": r.a.turn.Calls[i].Name, "arguments": arguments(r.a.turn.Calls[i])})))
	case r.a.turn.Parts[block].Reasoning:
		text := r.a.turn.Parts[block].Text
		all = append(all,
			r.event("response.reasoning_summary_text.done", r.at(block, object{"text": text})),
			r.event("response.reasoning_summary_part.done", r.at(block, object{"part": object{"type": "summary_text", "text": text}})))
	default:
		text := r.a.turn.Parts[block].Text
		all = append(all,
			r.event("response.output_text.done", r.at(block, object{"text": text, "logprobs": []object{}})),
			r.event("response.content_part.done", r.at(block, object{"part": object{"type": "output_text", "text": text, "annotations": []object{}}})))
	}
	return append(all, r.event("response.output_item.done", object{"output_index": block, "item": r.item(block, true)}))
}

func (r *responses) end() []event {
	return []event{r.event("response.completed", object{"response": r.response("completed", r.blocks(), nil)})}
}

func (r *responses) fail(f *Failure) []event {
	return []event{
		r.event("error", object{"code": f.kind(), "message": f.Message, "param": nil}),
		r.event("response.failed", object{"response": r.response("failed", 0, object{"code": f.kind(), "message": f.Message})}),
	}
}

func (r *responses) whole() any { return r.response("completed", r.blocks(), nil) }
