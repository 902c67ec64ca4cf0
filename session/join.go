package session

import (
	"slices"
	"time"

	"github.com/specbox/specbox/wire"
)

// How a conversation with a model was joined to its MCP session, from sure to
// weak. None is needed: what is not joined is warmed for its tenant.
const (
	RungKey       = "key"       // both were named by one key
	RungArguments = "arguments" // the session made a call that the model had written
)

// converse finds the conversation that an exchange goes on with: by its key, by
// what it began with, or by the results that it brings.
func (h *Hub) converse(x Exchange) *conversation {
	key := talkKey{tenant: x.Tenant, key: x.Key}
	if x.Key == "" {
		key.hash = x.Conversation
	}
	now := time.Now()
	f := h.foresight
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.conversations[key]
	for _, id := range x.Results {
		if c == nil {
			c = f.calls[callID{x.Tenant, id}]
		}
	}
	if c == nil {
		c = &conversation{}
		if p := f.conversations[talkKey{tenant: x.Tenant, hash: x.Parent}]; p != nil && x.Parent != "" {
			c.prompt, c.used = p.prompt, slices.Clone(p.used)
		}
	}
	if c.id != key {
		delete(f.conversations, c.id)
		c.id = key
	}
	c.touched = now
	if key.key == "" && key.hash == "" {
		return c
	}
	f.conversations[key] = c
	if len(f.conversations) > maxConversations {
		f.forgetOldest()
	}
	return c
}

// forgetOldest forgets the tenth of the conversations that were quiet longest.
// The caller holds the lock.
func (f *foresight) forgetOldest() {
	all := make([]*conversation, 0, len(f.conversations))
	for _, c := range f.conversations {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *conversation) int { return a.touched.Compare(b.touched) })
	for _, c := range all[:maxConversations/10] {
		delete(f.conversations, c.id)
	}
}

// join joins a conversation to the sessions that have its key.
func (h *Hub) join(c *conversation, x Exchange) {
	if x.Key == "" {
		return
	}
	sessions := h.each(func(s *Session) bool { return s.tenant == x.Tenant && s.conversation == x.Key })
	h.foresight.mu.Lock()
	defer h.foresight.mu.Unlock()
	for _, s := range sessions {
		h.foresight.joined(c, s, RungKey)
	}
}

// joined notes that a session belongs to a conversation, and to no other from
// now on. The caller holds the lock.
func (f *foresight) joined(c *conversation, s *Session, rung string) {
	before := f.bySession[s]
	if before == c {
		return
	}
	if before != nil {
		before.sessions = slices.DeleteFunc(before.sessions, func(o *Session) bool { return o == s })
	}
	f.bySession[s] = c
	c.sessions = append(c.sessions, s)
	if c.rung != RungKey {
		c.rung = rung
	}
}

// remember notes whose a tool call of a model is, so that the request that
// brings its result is known again.
func (f *foresight) remember(c *conversation, id string) {
	if id == "" {
		return
	}
	key := callID{c.id.tenant, id}
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.calls[key]; !ok {
		f.callOrder = append(f.callOrder, key)
		if len(f.callOrder) > maxCallIDs {
			delete(f.calls, f.callOrder[0])
			f.callOrder = f.callOrder[1:]
		}
	}
	f.calls[key] = c
}

// maxExpected bounds the calls that models have made and sessions have not.
const maxExpected = 1024

// expect notes that a call is about to come, by which its session will be known.
func (f *foresight) expect(c *conversation, e expectation) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.expected) >= maxExpected {
		clear(f.expected) // clients that make no calls here
	}
	f.expected[e] = c
}

// committed is told of every call of a session: a call that a model has written
// shows whose session it is, and a conversation that hears of no names in its
// stream learns from the calls what the text was about.
func (h *Hub) committed(s *Session, server, tool string, params []byte) {
	if h.cfg.Foresee == nil {
		return
	}
	f := h.foresight
	f.mu.Lock()
	if c := f.bySession[s]; c != nil && c.pending != nil && len(c.made) < maxUsed {
		c.made = append(c.made, server)
	}
	expecting := len(f.expected) > 0
	f.mu.Unlock()
	arguments := wire.Get(params, "arguments")
	if !expecting || len(arguments) > maxArguments {
		return
	}
	sum, ok := argumentsDigest(arguments)
	if !ok {
		return
	}
	e := expectation{s.tenant, server, tool, sum}
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.expected[e]; c != nil {
		delete(f.expected, e)
		f.joined(c, s, RungArguments)
	}
}

// left forgets a session that has ended.
func (f *foresight) left(s *Session) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.bySession[s]; c != nil {
		c.sessions = slices.DeleteFunc(c.sessions, func(o *Session) bool { return o == s })
		delete(f.bySession, s)
	}
}
