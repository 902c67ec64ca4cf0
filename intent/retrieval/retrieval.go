// Package retrieval says how much a text is like texts of which it is known what
// tool server they need.
//
// These texts are exemplars: descriptions, utterances of users, and what came
// before calls that were made. A text is taken apart into words, pairs of words
// and pieces of words of three to five characters; what few exemplars have weighs
// most (TF-IDF), and the likeness of two texts is the cosine of what they have.
// The package keeps to these laws:
//
//   - A text that arrives in pieces, split anywhere, is scored as if it had come
//     at once, and what was scored is not read again.
//   - A [Base] is shared and does not change. What one tenant teaches is in its
//     own [Index], is bounded, and is seen by nobody else.
//   - A stream does not see what is learned after it began; what is forgotten
//     meanwhile no longer counts for it.
//   - Of learned texts features are kept, not the words.
package retrieval

import (
	"math"
	"slices"
)

// An Exemplar is a text that needs a server.
type Exemplar struct {
	Server int
	Text   string
}

// What a feature is says how much it weighs.
const (
	ofWord = iota
	ofPair
	ofPiece
)

var share = [...]float32{ofWord: 1, ofPair: 1, ofPiece: 0.5}

const (
	// common is the part of all exemplars beyond which a feature tells nothing.
	// It bounds the work for a character, too.
	common = 0.1
	// few is how many exemplars may always have a feature.
	few = 64
	// many is the number of exemplars from which on a feature that only one of
	// them has is left out: there are millions of them.
	many = 5000
	// least is what a feature weighs that all exemplars have.
	least = 0.1
)

// A Base is an index of exemplars. It is immutable and safe for concurrent use.
type Base struct {
	servers int
	labels  []int32 // server of each exemplar
	dict    table   // feature -> index of feats; -1: too common
	feats   []feature
	posts   []posting
}

// A feature is what a base knows of one; its postings go on to the next one's.
type feature struct {
	posts  int32
	df     int32
	weight float32
}

// A posting is an exemplar that has a feature, and what a text that has it too
// gains for each unit of the feature's weight.
type posting struct {
	doc    int32
	weight float32
}

// New returns a base of exemplars, whose servers are from 0 to servers-1.
func New(servers int, exemplars []Exemplar) *Base {
	b := &Base{servers: servers, labels: make([]int32, len(exemplars))}
	docs := make([][]count, len(exemplars))
	df := map[uint64]int32{}
	for i, e := range exemplars {
		b.labels[i] = int32(e.Server)
		docs[i] = features(e.Text)
		for _, c := range docs[i] {
			df[c.feature]++
		}
	}
	n := len(exemplars)
	most := int32(max(few, int(common*float64(n))))
	fewest := int32(1)
	if n >= many {
		fewest = 2
	}
	b.number(docs, df, fewest, most)
	next := make([]int32, len(b.feats))
	total := int32(0)
	for i := range b.feats {
		b.feats[i].posts, next[i] = total, total
		total += b.feats[i].df
	}
	b.feats = append(b.feats, feature{posts: total})
	b.posts = make([]posting, total)
	for i, doc := range docs {
		inverse := inverseNorm(doc, func(f uint64) float32 {
			if id, ok := b.dict.get(f); ok && id >= 0 {
				return b.feats[id].weight
			}
			return 0
		})
		for _, c := range doc {
			if id, ok := b.dict.get(c.feature); ok && id >= 0 {
				b.posts[next[id]] = posting{int32(i), b.feats[id].weight * damp(c.n) * inverse}
				next[id]++
			}
		}
	}
	return b
}

// number gives the features that are kept their numbers, in the order of their
// first exemplar, so that an index is the same each time.
func (b *Base) number(docs [][]count, df map[uint64]int32, fewest, most int32) {
	kept := 0
	for _, n := range df {
		if n >= fewest {
			kept++
		}
	}
	b.dict = newTable(kept)
	for _, doc := range docs {
		for _, c := range doc {
			n := df[c.feature]
			if n < fewest {
				continue
			}
			if _, ok := b.dict.get(c.feature); ok {
				continue
			}
			if n > most {
				b.dict.put(c.feature, -1)
				continue
			}
			b.dict.put(c.feature, int32(len(b.feats)))
			b.feats = append(b.feats, feature{df: n, weight: weigh(c.feature, int(n), len(docs))})
		}
	}
}

// weigh returns the weight of a feature that df of n exemplars have.
func weigh(f uint64, df, n int) float32 {
	return share[kind(f)] * float32(math.Log(float64(1+n)/float64(1+df))+least)
}

// damp returns what it counts to have a feature n times.
func damp(n uint32) float32 {
	if n < uint32(len(damped)) {
		return damped[n]
	}
	return float32(1 + math.Log(float64(n)))
}

var damped = func() (d [256]float32) {
	for n := 1; n < len(d); n++ {
		d[n] = float32(1 + math.Log(float64(n)))
	}
	return
}()

// inverseNorm returns one over the length of a text's vector; 0 if it has none.
func inverseNorm(doc []count, weight func(uint64) float32) float32 {
	sum := 0.0
	for _, c := range doc {
		w := float64(weight(c.feature)) * float64(damp(c.n))
		sum += w * w
	}
	if sum == 0 {
		return 0
	}
	return float32(1 / math.Sqrt(sum))
}

// Exemplars returns how many exemplars a base has.
func (b *Base) Exemplars() int { return len(b.labels) }

// Bytes returns how much memory the index takes.
func (b *Base) Bytes() int { return len(b.posts)*8 + len(b.feats)*12 + len(b.dict.keys)*12 }

// A count is a feature of a text, and how often it has it.
type count struct {
	feature uint64
	n       uint32
}

// features returns the features of a whole text, each once, in order.
func features(text string) []count {
	all := make([]uint64, 0, 4*len(text))
	var r reader
	all = r.read([]byte(text), all)
	all = r.end(all)
	slices.Sort(all)
	var out []count
	for _, f := range all {
		if n := len(out); n > 0 && out[n-1].feature == f {
			out[n-1].n++
		} else {
			out = append(out, count{f, 1})
		}
	}
	return out
}

// A table maps features to numbers. It does not grow.
type table struct {
	keys []uint64 // 0: free
	vals []int32
	mask uint64
}

func newTable(n int) table {
	size := 16
	for size < 2*n {
		size *= 2
	}
	return table{make([]uint64, size), make([]int32, size), uint64(size - 1)}
}

func (t *table) get(f uint64) (int32, bool) {
	for i := f & t.mask; t.keys[i] != 0; i = (i + 1) & t.mask {
		if t.keys[i] == f {
			return t.vals[i], true
		}
	}
	return 0, false
}

func (t *table) put(f uint64, v int32) {
	i := f & t.mask
	for t.keys[i] != 0 {
		i = (i + 1) & t.mask
	}
	t.keys[i], t.vals[i] = f, v
}
