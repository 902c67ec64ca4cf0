package session

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/specbox/specbox/intent"
	"github.com/specbox/specbox/trace"
)

// An Exchange is a request to a model, as far as it helps to look ahead.
type Exchange struct {
	Tenant       string
	Key          string     // that the client named its conversation by; "" if it did not
	Conversation string     // stays the same while the conversation grows; "" if unknown
	Parent       string     // of a new conversation that branched off another: that one
	Prompt       string     // the user's words that are new in it
	Tools        []string   // names of the tools that the model may call; nil if unknown
	Past         [][]string // names of tools that earlier turns called, which the hall has not seen
	Results      []string   // ids of the calls whose results it brings
}

// A Turn follows one answer of a model. Its methods are called by one goroutine
// at a time, [Turn.End] last. They do not block for long, and fail nobody.
type Turn struct {
	h       *Hub
	c       *conversation
	o       *oracle
	watch   intent.Watch // nil: only the names of tools count
	step    intent.Step
	kept    int // bytes of text that are kept to learn from
	since   int // bytes of text since the last decision
	kind    intent.Kind
	fired   map[string]bool
	calls   map[int]*pendingCall
	intents []intent.Intent
	named   bool
}

// A pendingCall is a tool call of the model that is being written.
type pendingCall struct {
	server, tool string
	arguments    []byte
	long         bool
}

const (
	maxStepText  = 16 << 10 // bytes of a turn that are kept to learn from
	maxArguments = 64 << 10 // bytes of a call's arguments that are compared with what the session calls
)

// Follow begins to look ahead in one exchange with a model. It returns nil where
// nothing is to be started ahead.
func (h *Hub) Follow(x Exchange) *Turn {
	if h.cfg.Foresee == nil {
		return nil
	}
	o := h.oracle(x.Tenant)
	c := h.converse(x)
	t := &Turn{h: h, c: c, o: o, fired: map[string]bool{}, calls: map[int]*pendingCall{}}
	h.join(c, x)
	past := make([][]string, 0, len(x.Past))
	for _, tools := range x.Past {
		past = append(past, o.servers(tools))
	}
	f := h.foresight
	f.mu.Lock()
	over := c.settle()
	c.streams++
	c.used = append(c.used, past...)
	c.used = c.used[max(0, len(c.used)-maxUsed):]
	if p := strings.TrimSpace(x.Prompt); p != "" {
		c.prompt = p[:min(len(p), maxPrompt)]
	}
	t.step.History = intent.History{Prompt: c.prompt, Used: slices.Clone(c.used)}
	f.mu.Unlock()
	if x.Tools != nil {
		t.step.Tools = o.servers(x.Tools)
	}
	if o.policy == nil {
		return t
	}
	if over != nil {
		o.policy.Learn(*over)
	}
	t.watch = o.policy.Begin(t.step.History)
	t.decide(trace.Prompt)
	return t
}

// servers returns the servers whose tools a model knows by these names.
func (o *oracle) servers(tools []string) []string {
	var out []string
	for _, name := range tools {
		if server, _, ok := o.names.Server(name); ok && !slices.Contains(out, server) {
			out = append(out, server)
		}
	}
	return out
}

// settle ends the step that waited for its calls, and returns it. The caller
// holds the lock.
func (c *conversation) settle() *intent.Step {
	step := c.pending
	if step == nil {
		return nil
	}
	step.Called = slices.Compact(slices.Sorted(slices.Values(c.made)))
	c.pending, c.made = nil, nil
	c.used = append(c.used, step.Called)
	return step
}

// Text takes what the model writes.
func (t *Turn) Text(k intent.Kind, p []byte) {
	if t.watch == nil || len(p) == 0 {
		return
	}
	if k != t.kind && t.since > 0 {
		t.decide(trace.Intent)
	}
	t.kind = k
	t.watch.Text(k, p)
	t.keep(k, p)
	if t.since += len(p); t.since >= intent.Cadence {
		t.decide(trace.Intent)
	}
}

// keep remembers the end of a turn's text, to learn from it.
func (t *Turn) keep(k intent.Kind, p []byte) {
	segs := t.step.Text
	if n := len(segs); n > 0 && segs[n-1].Kind == k {
		segs[n-1].Text += string(p)
	} else {
		segs = append(segs, intent.Segment{Kind: k, Text: string(p)})
	}
	t.kept += len(p)
	for t.kept > 2*maxStepText { // rarely, so that it costs little
		if over := t.kept - maxStepText; len(segs[0].Text) > over {
			segs[0].Text = strings.ToValidUTF8(segs[0].Text[over:], "")
			t.kept -= over
		} else {
			t.kept -= len(segs[0].Text)
			segs = segs[1:]
		}
	}
	t.step.Text = segs
}

// decide asks the policy, and wishes for what it decides.
func (t *Turn) decide(cause trace.Cause) {
	t.since = 0
	t.intents = t.watch.Intents(t.intents[:0], false)
	for _, in := range t.intents {
		likely := in.Fired || t.h.cfg.Likely > 0 && in.P >= t.h.cfg.Likely
		if !likely || t.fired[in.Server] {
			continue
		}
		t.fired[in.Server] = true
		if t.h.warm(t.c, in.Server, cause, in.P) {
			t.h.cfg.Recorder.Record(trace.Event{Kind: trace.Guess, Tenant: t.c.id.tenant, Server: in.Server, Cause: cause, P: in.P, Detail: in.Source})
		}
	}
}

// Call says that the model has begun to call a tool: the server is certain now.
func (t *Turn) Call(index int, id, name string) {
	server, tool, ok := t.o.names.Server(name)
	t.named = t.named || ok
	t.calls[index] = &pendingCall{server: server, tool: tool, long: !ok}
	t.h.foresight.remember(t.c, id)
	if !ok {
		return // a tool of the agent's own, or of somebody else
	}
	if !slices.Contains(t.step.Called, server) {
		t.step.Called = append(t.step.Called, server)
	}
	t.h.warm(t.c, server, trace.ToolName, 1)
}

// Arguments takes a piece of a call's arguments.
func (t *Turn) Arguments(index int, p []byte) {
	c := t.calls[index]
	if c == nil || c.long {
		return
	}
	if len(c.arguments)+len(p) > maxArguments {
		c.long, c.arguments = true, nil
		return
	}
	c.arguments = append(c.arguments, p...)
}

// Called says that the arguments of a call are complete.
func (t *Turn) Called(index int) {
	c := t.calls[index]
	if c == nil || c.long {
		return
	}
	delete(t.calls, index)
	if sum, ok := argumentsDigest(c.arguments); ok {
		t.h.foresight.expect(t.c, expectation{t.c.id.tenant, c.server, c.tool, sum})
	}
}

// End says that the answer is over.
func (t *Turn) End() {
	for index := range t.calls { // a stream need not say that a call is complete
		t.Called(index)
	}
	if t.watch != nil && t.since > 0 && !t.named {
		t.decide(trace.Intent)
	}
	f := t.h.foresight
	f.mu.Lock()
	t.c.touched = time.Now()
	t.c.streams--
	learn := t.named || len(t.c.sessions) == 0
	if learn {
		t.c.used = append(t.c.used, t.step.Called)
	} else {
		step := t.step
		t.c.pending, t.c.made = &step, nil
	}
	f.mu.Unlock()
	if learn && t.o.policy != nil {
		t.o.policy.Learn(t.step)
	}
}

// argumentsDigest identifies arguments, however they are written.
func argumentsDigest(arguments []byte) (sum [32]byte, ok bool) {
	if len(bytes.TrimSpace(arguments)) == 0 {
		arguments = []byte("{}")
	}
	dec := json.NewDecoder(bytes.NewReader(arguments))
	dec.UseNumber()
	var v any
	if dec.Decode(&v) != nil {
		return sum, false
	}
	b, err := json.Marshal(v) // keys come out sorted
	return sha256.Sum256(b), err == nil
}
