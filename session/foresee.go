package session

import (
	"slices"
	"sync"
	"time"

	"github.com/specbox/specbox/catalog"
	"github.com/specbox/specbox/intent"
	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/trace"
	"github.com/specbox/specbox/wire"
)

// This file and turn.go are where the hall looks ahead: what a model writes is
// read as it comes, and the sandboxes that its calls will need are wished for.
// It takes no part in a call: what it gets wrong costs a start, never an answer.

// Bounds of what is remembered to look ahead.
const (
	maxConversations = 4096
	maxCallIDs       = 16384 // of all conversations
	maxUsed          = 64    // steps of one conversation
	maxPrompt        = 16 << 10
)

// foresight is what the hall knows of the conversations of models. What stands
// in it is changed under its lock, which is held over nothing that waits.
type foresight struct {
	mu            sync.Mutex
	oracles       map[string]*oracle // by tenant
	conversations map[talkKey]*conversation
	bySession     map[*Session]*conversation // the one that each was joined to
	calls         map[callID]*conversation
	callOrder     []callID
	expected      map[expectation]*conversation // calls that a model has made and no session yet
	wishes        map[wishKey]map[*conversation]time.Time
}

// A talkKey names a conversation: by the key that its client gave it, or by
// what it began with.
type talkKey struct{ tenant, key, hash string }

type callID struct{ tenant, id string }

// An expectation is a call that a model has made, with a digest of its
// arguments.
type expectation struct {
	tenant, server, tool string
	arguments            [32]byte
}

type wishKey struct{ tenant, server string }

// A conversation is one that an agent leads with a model. Its fields are
// changed under the lock of foresight.
type conversation struct {
	id       talkKey
	rung     string     // how it was joined to its sessions; "" if it was not
	sessions []*Session // that it was joined to
	prompt   string
	used     [][]string   // servers that each step called
	pending  *intent.Step // over, but for the calls that the session is still to make
	made     []string     // calls of its sessions since the turn ended
	streams  int          // answers under way
	touched  time.Time
}

// An oracle is the policy of a tenant, for the servers that it sees.
type oracle struct {
	version  int64 // of the hall's world that it was made for
	building bool
	policy   intent.Policy // nil: only the names of tools count
	names    *intent.Names
}

func newForesight() *foresight {
	return &foresight{
		oracles:       map[string]*oracle{},
		conversations: map[talkKey]*conversation{},
		bySession:     map[*Session]*conversation{},
		calls:         map[callID]*conversation{},
		expected:      map[expectation]*conversation{},
		wishes:        map[wishKey]map[*conversation]time.Time{},
	}
}

// oracle returns the policy of a tenant. The first time it is made at once;
// when the tenant's servers change, a new one is made in the background, and
// the old one serves until then.
func (h *Hub) oracle(tenant string) *oracle {
	version := h.version.Load()
	f := h.foresight
	f.mu.Lock()
	o := f.oracles[tenant]
	stale := o != nil && o.version != version && !o.building
	if stale {
		o.building = true
	}
	f.mu.Unlock()
	switch {
	case o == nil:
		return h.foresee(tenant, nil, version)
	case stale:
		h.spawn(func() { h.foresee(tenant, o, version) })
	}
	return o
}

// foresee makes the policy of a tenant anew.
func (h *Hub) foresee(tenant string, before *oracle, version int64) *oracle {
	servers, names := h.profiles(tenant)
	policy, err := h.cfg.Foresee(tenant, servers)
	if err != nil {
		h.cfg.Log.Warn("nothing is guessed from what models write, but for the names of tools", "tenant", tenant, "err", err)
	}
	o := &oracle{version: version, policy: policy, names: names}
	f := h.foresight
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := f.oracles[tenant]; now != nil && now != before {
		return now // somebody was quicker
	}
	f.oracles[tenant] = o
	return o
}

// profiles says what routers may know of the servers that a tenant sees, and
// by which names models know their tools.
func (h *Hub) profiles(tenant string) ([]intent.Server, *intent.Names) {
	v := h.view(tenant, "", catalog.Fingerprint(nil))
	known := map[string]*intent.Server{}
	var order []*intent.Server
	for _, srv := range h.visible(tenant, "") {
		p := &intent.Server{Name: srv.Name, Keywords: srv.Keywords, Templates: srv.Templates}
		if e := v.Entry(srv.Name); e != nil {
			p.Description = describe(e.Init)
		}
		known[srv.Name] = p
		order = append(order, p)
	}
	names := intent.NewNames()
	for _, row := range v.Tools() {
		names.Add(row.Name, row.Server, row.Tool)
		_, _, raw, _ := v.Tool(row.Name)
		if p := known[row.Server]; p != nil {
			p.Tools = append(p.Tools, profile(row.Tool, raw))
		}
	}
	servers := make([]intent.Server, len(order))
	for i, p := range order {
		servers[i] = *p
	}
	return servers, names
}

// describe returns what a server says of itself.
func describe(init []byte) string {
	text := wire.Str(init, "instructions")
	for _, field := range []string{"description", "title"} {
		if s := wire.Str(init, "serverInfo", field); s != "" {
			text = s + "\n" + text
		}
	}
	return text
}

func profile(name string, raw []byte) intent.Tool {
	t := intent.Tool{Name: name, Description: wire.Str(raw, "description")}
	_ = wire.Members(wire.Get(raw, "inputSchema", "properties"), func(param string, schema []byte) bool {
		t.Params = append(t.Params, intent.Param{Name: param, Description: wire.Str(schema, "description")})
		return true
	})
	return t
}

// warm wishes for a sandbox of a server on behalf of a conversation. It reports
// whether there was something to wish for.
func (h *Hub) warm(c *conversation, server string, cause trace.Cause, p float64) bool {
	srv := h.Server(c.id.tenant, server)
	if srv == nil || srv.Spec == nil {
		return false
	}
	s, joined := h.holder(c, server)
	if s == nil { // no client is known, and a sandbox is met on behalf of one
		return false
	}
	if joined && h.holds(s, server) || !joined && h.foresight.used(c, server) {
		return false
	}
	d, err := s.demand(srv)
	if err != nil {
		h.cfg.Log.Debug("nothing is started ahead", "server", server, "err", err)
		return false
	}
	hint := sandbox.Hint{
		Tenant: d.Tenant, Spec: d.Spec, Client: d.Client, Cause: cause, P: p,
		Hold: h.cfg.Hold, Want: h.foresight.wish(c, server, h.cfg.Hold),
	}
	if joined {
		hint.Session = d.Session
	}
	h.cfg.Sandboxes.Warm(hint)
	return true
}

// holds reports whether a session has a sandbox of a server already.
func (h *Hub) holds(s *Session, server string) bool {
	return slices.ContainsFunc(h.cfg.Sandboxes.Live(s.tenant, s.id), func(p sandbox.Peer) bool { return p.Server == server })
}

// used reports whether a conversation has called a server before: whatever its
// session is, it has a sandbox then.
func (f *foresight) used(c *conversation, server string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(c.used, func(step []string) bool { return slices.Contains(step, server) })
}

// Conversations returns the conversations with models that are remembered.
func (h *Hub) Conversations() []Conversation {
	now := time.Now()
	f := h.foresight
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []Conversation
	for _, c := range f.conversations {
		o := Conversation{Tenant: c.id.tenant, Key: c.id.key, Hash: c.id.hash, Rung: c.rung, Streams: c.streams, Steps: len(c.used), Touched: c.touched}
		for key, w := range f.wishes {
			if until, ok := w[c]; ok && until.After(now) {
				o.Expects = append(o.Expects, key.server)
			}
		}
		slices.Sort(o.Expects)
		for _, s := range c.sessions {
			o.Sessions = append(o.Sessions, s.id)
		}
		out = append(out, o)
	}
	slices.SortFunc(out, func(a, b Conversation) int { return a.Touched.Compare(b.Touched) })
	return out
}

// A Conversation is one that an agent leads with a model, as the hall knows it.
type Conversation struct {
	Tenant   string
	Key      string   // that its client named it by, or
	Hash     string   // what it began with
	Rung     string   // how it was joined to its sessions: see RungKey; "" if it was not
	Sessions []string // that it was joined to
	Streams  int      // answers of the model under way
	Steps    int      // turns that are over
	Expects  []string // servers that were wished for, and that no call has come for yet
	Touched  time.Time
}

// holder returns the session on whose behalf a conversation may have a server
// warmed: one that it was joined to, or else the tenant's newest that sees it.
func (h *Hub) holder(c *conversation, server string) (s *Session, joined bool) {
	h.foresight.mu.Lock()
	sessions := slices.Clone(c.sessions)
	h.foresight.mu.Unlock()
	sees := func(s *Session) bool { return s.only == "" || s.only == server }
	for _, s := range sessions {
		if sees(s) {
			return s, true
		}
	}
	var newest *Session
	for _, s := range h.each(func(s *Session) bool { return s.tenant == c.id.tenant && sees(s) }) {
		if newest == nil || s.opened.After(newest.opened) {
			newest = s
		}
	}
	return newest, false
}

// wish notes that a conversation will need a sandbox, and returns how many
// conversations of the tenant do: forecasts of sessions at once add up.
func (f *foresight) wish(c *conversation, server string, hold time.Duration) int {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	key := wishKey{c.id.tenant, server}
	w := f.wishes[key]
	if w == nil {
		w = map[*conversation]time.Time{}
		f.wishes[key] = w
	}
	w[c] = now.Add(hold)
	for o, until := range w {
		if until.Before(now) {
			delete(w, o)
		}
	}
	return len(w)
}

// granted ends the wish that a call has come for: that of the session's own
// conversation, or else the oldest.
func (f *foresight) granted(s *Session, server string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := wishKey{s.tenant, server}
	w := f.wishes[key]
	var oldest *conversation
	for c, until := range w {
		if slices.Contains(c.sessions, s) {
			oldest = c
			break
		}
		if oldest == nil || until.Before(w[oldest]) {
			oldest = c
		}
	}
	delete(w, oldest)
	if len(w) == 0 {
		delete(f.wishes, key)
	}
}
