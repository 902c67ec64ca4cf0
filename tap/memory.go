package tap

import (
	"container/list"
	"fmt"
	"hash/maphash"
	"sync"
)

// A memory knows which conversations there were and what was said in them, by
// hashes: of the beginning of each conversation up to each of its messages, of
// single messages, and of the ids of answers and calls. It forgets what was not
// used for longest. It is safe for concurrent use.
type memory struct {
	seed maphash.Seed
	most int // hashes

	mu     sync.Mutex // guards what follows
	known  map[uint64]place
	recent *list.List // of *conversation, the latest first
	hashes int
}

// A place is what a hash stands for.
type place struct {
	in       *conversation // nil: of several, so that it tells nothing
	talk     bool          // more than the system's words
	answered bool          // what the model said there was reported
}

// A conversation is one that was seen. The lock of the memory guards it.
type conversation struct {
	id    string
	tips  [2]uint64 // the last request, and the answer to it
	kept  bool      // by the API: each request brings what is new
	known []uint64  // hashes that are known because of it
	seen  map[uint64]struct{}
	at    *list.Element
}

func newMemory(most int) *memory {
	return &memory{seed: maphash.MakeSeed(), most: most, known: map[uint64]place{}, recent: list.New()}
}

// A recognition is what memory makes of a request.
type recognition struct {
	tenant    string
	session   string
	in        *conversation
	id        string
	parent    string
	continued bool
	fresh     []int  // the items that were not seen before
	tip       uint64 // the hash of all of it
}

// hash returns a hash of strings that belong to a tenant.
func (m *memory) hash(s ...string) uint64 {
	var h maphash.Hash
	h.SetSeed(m.seed)
	for _, s := range s {
		part(&h, []byte(s))
	}
	return h.Sum64()
}

// recognize finds the conversation that a request belongs to, and remembers it.
// Session is the key that the client named, or "".
func (m *memory) recognize(tenant, session string, b body) recognition {
	base := m.hash(tenant, "start", string(b.api), session)
	switch {
	case b.conversation != "":
		base = m.hash(tenant, "conversation", b.conversation)
	case b.previous != "":
		base = m.hash(tenant, "answer", b.previous)
	}
	chain := make([]uint64, len(b.items)+1)
	chain[0] = base
	calls := make([]uint64, 0, 16)
	for i, it := range b.items {
		chain[i+1] = maphash.Comparable(m.seed, [2]uint64{chain[i], it.digest})
		for _, id := range it.calls {
			calls = append(calls, m.hash(tenant, "call", session, id))
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	at, where := m.longest(chain)
	c, rejoined := where.in, false
	for _, h := range calls {
		if c == nil {
			if c = m.known[h].in; c != nil {
				at, rejoined = 0, true
			}
		}
	}
	r := recognition{tenant: tenant, session: session, in: c, tip: chain[len(b.items)]}
	switch {
	case c == nil:
		r.in = m.begin(r.tip)
		r.fresh = all(0, len(b.items))
	case at == len(b.items):
		r.continued = true // the same request once more
	case !rejoined && (c.kept || chain[at] == c.tips[0] || chain[at] == c.tips[1]):
		r.continued = true
		r.fresh = c.without(b.items, at, func(it item) bool { return it.role == "system" })
	default:
		r.fresh = c.without(b.items, at, func(item) bool { return true })
		if rejoined || c.repeats(b.items[at:]) {
			r.continued = true // it was edited, or compacted
		} else {
			r.parent, r.in = c.id, m.begin(r.tip)
		}
	}
	if where.answered {
		r.fresh = afterAnswer(b.items, r.fresh, at)
	}
	r.fresh = m.withoutOwn(r, b.items, c)
	r.id = r.in.id
	r.in.kept = r.in.kept || b.conversation != ""
	if at < len(b.items) || c == nil { // the tip stays where it was for what is tried again
		r.in.tips = [2]uint64{r.tip}
	}
	m.remember(r.in, chain, b)
	return r
}

// session returns the conversation that a client hands over under a key.
func (m *memory) session(tenant, key string) recognition {
	h := m.hash(tenant, "session", key)
	m.mu.Lock()
	defer m.mu.Unlock()
	if p, ok := m.known[h]; ok {
		m.recent.MoveToFront(p.in.at)
		return recognition{in: p.in, id: p.in.id, continued: true, tip: h}
	}
	c := m.begin(h)
	m.note(c, h, place{in: c, talk: true})
	m.shrink()
	return recognition{in: c, id: c.id, tip: h}
}

// longest returns the longest beginning that is known and says more than the
// system's words, which conversations share that have nothing to do with each
// other.
func (m *memory) longest(chain []uint64) (at int, where place) {
	for i := len(chain) - 1; i >= 0; i-- {
		if p, ok := m.known[chain[i]]; ok {
			if !p.talk {
				break
			}
			return i, p
		}
	}
	return 0, place{}
}

func all(from, to int) []int {
	var out []int
	for i := from; i < to; i++ {
		out = append(out, i)
	}
	return out
}

// without returns the items from at on but for those that were seen already,
// where old says that it matters.
func (c *conversation) without(items []item, at int, old func(item) bool) []int {
	var out []int
	for i := at; i < len(items); i++ {
		if _, seen := c.seen[items[i].digest]; !seen || !old(items[i]) {
			out = append(out, i)
		}
	}
	return out
}

// repeats reports whether items say again what was said in the conversation.
func (c *conversation) repeats(items []item) bool {
	for _, it := range items {
		if _, seen := c.seen[it.digest]; seen && it.role != "system" {
			return true
		}
	}
	return false
}

// afterAnswer leaves out what the model said right behind at.
func afterAnswer(items []item, fresh []int, at int) []int {
	for len(fresh) > 0 && fresh[0] == at && items[at].role == "assistant" {
		fresh = fresh[1:]
		at++
	}
	return fresh
}

// withoutOwn leaves out what the model said where its calls tell that it was
// reported when it came, as part of c.
func (m *memory) withoutOwn(r recognition, items []item, c *conversation) []int {
	var out []int
	for _, i := range r.fresh {
		own := false
		if items[i].role == "assistant" {
			for _, id := range items[i].calls {
				p := m.known[m.hash(r.tenant, "call", r.session, id)]
				own = own || p.in != nil && p.in == c
			}
		}
		if !own {
			out = append(out, i)
		}
	}
	return out
}

func (m *memory) begin(h uint64) *conversation {
	c := &conversation{id: fmt.Sprintf("%016x", h), seen: map[uint64]struct{}{}}
	c.at = m.recent.PushFront(c)
	return c
}

// remember takes in the hashes of a request.
func (m *memory) remember(c *conversation, chain []uint64, b body) {
	talk := b.previous != "" || b.conversation != ""
	if talk {
		m.note(c, chain[0], place{in: c, talk: true})
	}
	for i, it := range b.items {
		talk = talk || it.role != "system"
		m.note(c, chain[i+1], place{in: c, talk: talk})
		if _, ok := c.seen[it.digest]; !ok {
			c.seen[it.digest] = struct{}{}
			m.hashes++
		}
	}
	m.recent.MoveToFront(c.at)
	m.shrink()
}

// shrink forgets what is too much.
func (m *memory) shrink() {
	for m.hashes > m.most && m.recent.Len() > 0 {
		m.forget(m.recent.Back().Value.(*conversation))
	}
}

// note makes a hash known, if it is not. The system's words belong to nobody.
func (m *memory) note(c *conversation, h uint64, p place) {
	if _, ok := m.known[h]; ok {
		return
	}
	m.known[h] = p
	c.known = append(c.known, h)
	m.hashes++
}

func (m *memory) forget(c *conversation) {
	for _, h := range c.known {
		delete(m.known, h)
	}
	m.hashes -= len(c.known) + len(c.seen)
	m.recent.Remove(c.at)
	c.known, c.seen, c.at = nil, nil, nil
}

// called remembers that the answer to a request makes a call. An id that comes in
// several tells nothing: some servers count.
func (m *memory) called(r recognition, id string) {
	c, h := r.in, m.hash(r.tenant, "call", r.session, id)
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.at == nil {
		return // forgotten meanwhile
	}
	if p, ok := m.known[h]; ok && p.in != c {
		m.known[h] = place{}
		return
	}
	m.note(c, h, place{in: c, talk: true})
}

// answered remembers that the answer to a request was reported, and its id if
// it has one.
func (m *memory) answered(r recognition, id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.in.at == nil {
		return // forgotten meanwhile
	}
	if p, ok := m.known[r.tip]; ok {
		p.answered = true
		m.known[r.tip] = p
	}
	if id != "" {
		h := m.hash(r.tenant, "answer", id)
		m.note(r.in, h, place{in: r.in, talk: true, answered: true})
		r.in.tips[1] = h
	}
}

// size returns how many conversations and hashes are kept.
func (m *memory) size() (conversations, hashes int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.recent.Len(), m.hashes
}
