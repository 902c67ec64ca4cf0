package intent

import (
	"cmp"
	"maps"
	"math"
	"slices"
)

// A lexicon knows the words of what servers and their tools say of themselves.
// It is immutable. Its documents are the servers, by their index, and after them
// the tools.
type lexicon struct {
	servers int
	owner   []int32 // server of each document
	terms   map[term]int32
	idf     []float32 // how few servers have a term
	tell    []float32 // idf, less what is common everywhere: for the words of texts
	from    []int32   // of each term: its postings go on to those of the next
	posts   []posting
	kin     [][]kinship // of each server: those that are most like it
}

// A kinship says how much a server is like another.
type kinship struct {
	server int32
	alike  float32
}

// kindred is how many servers are looked at that are like one.
const kindred = 5

// A posting says how much a term is of a document, whose length is one.
type posting struct {
	doc    int32
	weight float32
}

// What a word of a server's or a tool's own counts, by where it stands.
const (
	inName   = 2
	inOwner  = 1 // of the name of the tool's server
	inParam  = 0.5
	inServer = 3   // of the server's own name
	ofTools  = 0.5 // for the server, of its tools' words
)

// describing is how much of a description is read. What follows are examples
// and warnings.
const describing = 600

// newLexicon reads what servers say of themselves.
func newLexicon(servers []Server, c *common) *lexicon {
	x := &lexicon{servers: len(servers), terms: make(map[term]int32)}
	type bag = map[term]float64
	put := func(b bag, text string, weight float64) {
		for _, t := range termsOf(text) {
			b[t] += weight
		}
	}
	var own, tools []bag
	for i, s := range servers {
		b := bag{}
		put(b, s.Name, inServer)
		put(b, s.Description, 1)
		for _, u := range s.Templates {
			put(b, u, ofTools)
		}
		for _, t := range s.Tools {
			tb := bag{}
			put(tb, t.Name, inName)
			put(tb, t.Description[:min(len(t.Description), describing)], 1)
			for _, p := range t.Params {
				put(tb, p.Name, inParam)
			}
			put(tb, s.Name, inOwner)
			for t, w := range tb {
				b[t] += ofTools * w
			}
			tools = append(tools, tb)
			x.owner = append(x.owner, int32(i))
		}
		own = append(own, b)
	}
	for i := range servers {
		x.owner = slices.Insert(x.owner, i, int32(i))
	}
	docs := slices.Concat(own, tools)

	var order []term
	df := map[term]int{}
	for _, b := range own {
		for t := range b {
			if df[t]++; df[t] == 1 {
				order = append(order, t)
			}
		}
	}
	slices.Sort(order)
	for i, t := range order {
		x.terms[t] = int32(i)
		x.idf = append(x.idf, float32(math.Log(1+float64(len(servers))/float64(df[t]))))
		x.tell = append(x.tell, x.idf[i]*c.telling(t))
	}
	lists := make([][]posting, len(order))
	for d, b := range docs {
		var sum float64
		for _, t := range slices.Sorted(maps.Keys(b)) { // sums in one order are equal every time
			w := b[t]
			if w >= 1 {
				w = 1 + math.Log(w)
			}
			w *= float64(x.idf[x.terms[t]])
			b[t] = w
			sum += w * w
		}
		for t, w := range b {
			id := x.terms[t]
			lists[id] = append(lists[id], posting{int32(d), float32(w / math.Sqrt(sum))})
		}
	}
	for _, l := range lists {
		slices.SortFunc(l, func(a, b posting) int { return cmp.Compare(a.doc, b.doc) })
		x.from = append(x.from, int32(len(x.posts)))
		x.posts = append(x.posts, l...)
	}
	x.from = append(x.from, int32(len(x.posts)))
	x.relate(own)
	return x
}

// relate finds which servers are like each other.
func (x *lexicon) relate(own []map[term]float64) {
	alike := make([]float32, x.servers)
	for i, bag := range own {
		clear(alike)
		square := 0.0
		for _, t := range slices.Sorted(maps.Keys(bag)) {
			w := bag[t]
			square += w * w
			id := x.terms[t]
			for _, p := range x.posts[x.from[id]:x.from[id+1]] {
				if int(p.doc) >= x.servers {
					break
				}
				alike[p.doc] += float32(w) * p.weight
			}
		}
		var all []kinship
		for j, a := range alike {
			if j != i && a > 0 {
				all = append(all, kinship{int32(j), a / float32(math.Sqrt(square))})
			}
		}
		slices.SortStableFunc(all, func(a, b kinship) int { return cmp.Compare(b.alike, a.alike) })
		x.kin = append(x.kin, slices.Clip(all[:min(len(all), kindred)]))
	}
}

// A likeness says how much a text that arrives is like each document: the cosine
// of the words that it shares with the lexicon.
type likeness struct {
	x      *lexicon
	dot    []float32 // by document
	count  map[int32]int32
	square float64 // of the text's length
}

func (x *lexicon) likeness() likeness {
	return likeness{x: x, dot: make([]float32, len(x.owner)), count: make(map[int32]int32)}
}

// add reads the next word, by its index in the lexicon.
func (l *likeness) add(id int32) {
	n := l.count[id]
	l.count[id] = n + 1
	before, after := 0.0, 1.0
	if n > 0 {
		before, after = 1+math.Log(float64(n)), 1+math.Log(float64(n+1))
	}
	idf := l.x.tell[id]
	l.square += (after*after - before*before) * float64(idf) * float64(idf)
	more := float32(after-before) * idf
	for _, p := range l.x.posts[l.x.from[id]:l.x.from[id+1]] {
		l.dot[p.doc] += more * p.weight
	}
}

// reset forgets what was read.
func (l *likeness) reset() {
	clear(l.dot)
	clear(l.count)
	l.square = 0
}

// read fills own with the likeness of each server's document, and best with the
// greatest of its tools'.
func (l *likeness) read(own, best []float32) {
	read(l.x, l.dot, l.square, own, best)
}

func read(x *lexicon, dot []float32, square float64, own, best []float32) {
	scale := float32(0)
	if square > 0 {
		scale = float32(1 / math.Sqrt(square))
	}
	for i := range own {
		own[i] = dot[i] * scale
		best[i] = 0
	}
	for d := x.servers; d < len(dot); d++ {
		if v := dot[d] * scale; v > best[x.owner[d]] {
			best[x.owner[d]] = v
		}
	}
}

// weighed is how much words of a text count, by their index in the lexicon.
type weighed struct {
	id     int32
	weight float64
}

// compare fills own and best as a [likeness] does that has read words which
// count differently.
func (x *lexicon) compare(words []weighed, own, best []float32) {
	dot := make([]float32, len(x.owner))
	square := 0.0
	for _, w := range words {
		v := w.weight * float64(x.tell[w.id])
		square += v * v
		for _, p := range x.posts[x.from[w.id]:x.from[w.id+1]] {
			dot[p.doc] += float32(v) * p.weight
		}
	}
	read(x, dot, square, own, best)
}

// covered returns how much some servers are about a word, in [0, 1]: 1 if no
// server is more about it.
func (x *lexicon) covered(id int32, servers []int32) float64 {
	most, theirs := float32(0), float32(0)
	for _, p := range x.posts[x.from[id]:x.from[id+1]] {
		if int(p.doc) >= x.servers {
			break
		}
		most = max(most, p.weight)
		for _, s := range servers {
			if p.doc == s {
				theirs = max(theirs, p.weight)
			}
		}
	}
	if most == 0 {
		return 0
	}
	return float64(theirs / most)
}

// A fading is a likeness in which a word counts the less the longer ago it was
// read.
type fading struct {
	x      *lexicon
	dot    []float32
	square float64
	scale  float64 // of the next word; older ones stay as they were
}

// fade is what a word counts of the one after it.
const fade = 0.95

func (x *lexicon) fading() fading {
	return fading{x: x, dot: make([]float32, len(x.owner)), scale: 1}
}

// add reads the next word, by its index in the lexicon.
func (l *fading) add(id int32) {
	w := l.scale * float64(l.x.tell[id])
	l.square += w * w
	for _, p := range l.x.posts[l.x.from[id]:l.x.from[id+1]] {
		l.dot[p.doc] += float32(w) * p.weight
	}
}

// step lets what was read fade, by one word of the text.
func (l *fading) step() {
	l.scale /= fade
	if l.scale > 1e12 { // far from what a float32 cannot hold
		for i := range l.dot {
			l.dot[i] *= 1e-12
		}
		l.square *= 1e-24
		l.scale *= 1e-12
	}
}

// read is that of a [likeness].
func (l *fading) read(own, best []float32) { read(l.x, l.dot, l.square, own, best) }
