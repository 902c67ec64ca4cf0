package retrieval

import (
	"cmp"
	"hash/maphash"
	"slices"
	"sync"
)

// Options bound what an [Index] learns. The zero value says what is good for a
// tenant.
type Options struct {
	Learned   int // exemplars; 0: 2,000
	PerServer int // of one server; 0: a tenth of them, and 64 at least
	// HalfLife is after how many further exemplars what was learned counts half;
	// 0: it counts as ever.
	HalfLife int
}

// longestText is how much of a learned text is looked at, in bytes: its end,
// which says what comes next.
const longestText = 4096

// An Index is a base and what was learned beyond it. It is safe for concurrent
// use.
type Index struct {
	base *Base
	opt  Options

	mu     sync.RWMutex // guards what follows; held for lookups only
	slots  []slot
	free   []int32
	order  []int32 // slots in use, the oldest first
	cursor int     // in order: what was weighed again last
	feats  map[uint64]*learned
	gen    uint64 // exemplars that were ever added
	seed   maphash.Seed
}

// A slot holds a learned exemplar.
type slot struct {
	server int32 // -1: free
	born   uint64
	sum    uint64 // of the text, to know it again
	doc    []count
}

// learned is what an index has learned of a feature.
type learned struct{ posts []posting }

// Index returns an index of the base that has learned nothing.
func (b *Base) Index(o Options) *Index {
	if o.Learned <= 0 {
		o.Learned = 2000
	}
	if o.PerServer <= 0 {
		o.PerServer = max(64, o.Learned/10)
	}
	return &Index{base: b, opt: o, feats: map[uint64]*learned{}, seed: maphash.MakeSeed()}
}

// Base returns what the index builds on.
func (x *Index) Base() *Base { return x.base }

// Add learns an exemplar. If there are too many of its server, or at all, the
// oldest of them goes. A text that is known for its server is made the newest
// again.
func (x *Index) Add(e Exemplar) {
	text := e.Text[max(0, len(e.Text)-longestText):]
	x.add(e.Server, features(text), maphash.String(x.seed, text))
}

// add learns an exemplar. sum tells whether it is known; 0: it is not.
func (x *Index) add(server int, doc []count, sum uint64) {
	if server < 0 || server >= x.base.servers || len(doc) == 0 {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	same, oldest := 0, -1
	for i, s := range x.order {
		o := &x.slots[s]
		if int(o.server) != server {
			continue
		}
		if sum != 0 && o.sum == sum {
			x.drop(i)
			same, oldest = 0, -1
			break
		}
		if same++; oldest < 0 {
			oldest = i
		}
	}
	switch {
	case same >= x.opt.PerServer:
		x.drop(oldest)
	case len(x.order) >= x.opt.Learned:
		x.drop(0)
	}
	x.gen++
	id := int32(len(x.slots))
	if n := len(x.free); n > 0 {
		id, x.free = x.free[n-1], x.free[:n-1]
	} else {
		x.slots = append(x.slots, slot{})
	}
	x.slots[id] = slot{int32(server), x.gen, sum, doc}
	x.order = append(x.order, id)
	for _, c := range doc {
		l := x.feats[c.feature]
		if l == nil {
			l = &learned{}
			x.feats[c.feature] = l
		}
		l.posts = append(l.posts, posting{doc: id})
	}
	x.weighAgain(id)
	// What is rare changes with what is learned: those before are weighed again
	// by and by, and soon while they are few.
	for range min(refreshed, len(x.order)-1) {
		x.cursor = (x.cursor + 1) % len(x.order)
		x.weighAgain(x.order[x.cursor])
	}
}

// refreshed is how many exemplars are weighed again when one is added.
const refreshed = 8

// weighAgain computes the vector of a learned exemplar, as weights are now.
func (x *Index) weighAgain(id int32) {
	doc := x.slots[id].doc
	inverse := inverseNorm(doc, x.weight)
	for _, c := range doc {
		posts := x.feats[c.feature].posts
		posts[x.find(posts, id)].weight = x.weight(c.feature) * damp(c.n) * inverse
	}
}

// find returns where an exemplar is among postings that it is among: they are in
// the order in which exemplars were added.
func (x *Index) find(posts []posting, id int32) int {
	i, _ := slices.BinarySearchFunc(posts, x.slots[id].born, func(p posting, born uint64) int {
		return cmp.Compare(x.slots[p.doc].born, born)
	})
	return i
}

// drop forgets the exemplar at a place of the order.
func (x *Index) drop(i int) {
	id := x.order[i]
	x.order = slices.Delete(x.order, i, i+1)
	for _, c := range x.slots[id].doc {
		l := x.feats[c.feature]
		i := x.find(l.posts, id)
		l.posts = slices.Delete(l.posts, i, i+1)
		if len(l.posts) == 0 {
			delete(x.feats, c.feature)
		}
	}
	x.slots[id] = slot{server: -1}
	x.free = append(x.free, id)
}

// weight returns what a feature weighs now: base and learned exemplars count
// alike. 0 is a feature that tells nothing.
func (x *Index) weight(f uint64) float32 {
	w, _ := x.look(f)
	return w
}

// look returns the weight of a feature, and its number in the base or -1.
func (x *Index) look(f uint64) (float32, int32) {
	b := x.base
	id, ok := b.dict.get(f)
	if ok && id < 0 {
		return 0, -1
	}
	df := 0
	if l := x.feats[f]; l != nil {
		df = len(l.posts)
	}
	switch {
	case ok && len(x.order) == 0:
		return b.feats[id].weight, id
	case ok:
		return weigh(f, df+int(b.feats[id].df), len(b.labels)+len(x.order)), id
	case df > 0:
		return weigh(f, df, len(b.labels)+len(x.order)), -1
	}
	return 0, -1
}

// Forget forgets what was learned of a server.
func (x *Index) Forget(server int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := len(x.order) - 1; i >= 0; i-- {
		if int(x.slots[x.order[i]].server) == server {
			x.drop(i)
		}
	}
}

// Learned is a learned exemplar as it can be stored: what its text has, not the
// text.
type Learned struct {
	Server   int      `json:"server"`
	Features []uint64 `json:"features"`
	Counts   []uint32 `json:"counts"` // of each feature
}

// Save returns what was learned, the oldest first.
func (x *Index) Save() []Learned {
	x.mu.RLock()
	defer x.mu.RUnlock()
	out := make([]Learned, 0, len(x.order))
	for _, id := range x.order {
		s := &x.slots[id]
		l := Learned{Server: int(s.server)}
		for _, c := range s.doc {
			l.Features, l.Counts = append(l.Features, c.feature), append(l.Counts, c.n)
		}
		out = append(out, l)
	}
	return out
}

// Restore learns what was saved, in its order. What makes no sense is left out.
func (x *Index) Restore(saved []Learned) {
	for _, l := range saved {
		if len(l.Features) != len(l.Counts) {
			continue
		}
		doc := make([]count, 0, len(l.Features))
		for i, f := range l.Features {
			if f&1 == 1 && kind(f) <= ofPiece && l.Counts[i] > 0 {
				doc = append(doc, count{f, l.Counts[i]})
			}
		}
		slices.SortFunc(doc, func(a, b count) int { return cmp.Compare(a.feature, b.feature) })
		doc = slices.CompactFunc(doc, func(a, b count) bool { return a.feature == b.feature })
		x.add(l.Server, doc, 0)
	}
}
