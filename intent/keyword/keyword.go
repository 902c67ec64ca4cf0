// Package keyword finds the keywords of tool servers in a text that arrives in
// pieces.
//
// An [Automaton] holds the keywords of all servers; a [Stream] reads one text
// with it, and a [Counter] sums up for each server what was found. The package
// keeps to these laws:
//
//   - How a text is split into pieces, be it inside a character, changes nothing.
//   - A keyword is found as whole words, whatever their case. The words of a
//     phrase may be joined by any run of spaces, hyphens and underscores; where a
//     phrase has a dot, slash or colon between two words, the text must have it.
//   - Scripts that are written without spaces, such as Chinese, have a word
//     boundary on both sides of each character.
//   - Apostrophes are not there: "don't" is the word "dont".
//   - A keyword that the words before it negate is found, and marked as negated.
//   - Reading a text allocates nothing, except for hits beyond the room that the
//     caller gave.
package keyword

import (
	"cmp"
	"slices"
	"strings"
)

// A Profile is what tells one server.
type Profile struct {
	Server   string
	Patterns []Pattern
}

// A Pattern is a keyword or a phrase of a server.
type Pattern struct {
	Text   string
	Also   []string // other ways to write it, such as the plural; they count as the same keyword
	Weight float64  // how much it says, in (0, 1]
}

// An Automaton finds the keywords of many servers at once. It is immutable and
// safe for concurrent use.
type Automaton struct {
	class [256]uint8 // of a folded byte; 0: in no keyword
	nodes []node
	outs  []int32 // lists, each after its length: ids of words, and of cues as ^id
	words []word
	refs  []ref

	servers []server
	keys    int // keywords of all servers
}

// A node is a state: a slot of a double array. Its child by the class c, if it
// has one, is the slot base+c, whose check says whose child it is.
type node struct {
	base, check int32
	fail        int32 // the longest other state that ends like this one
	out         int32 // index into outs of what ends here; 0: nothing
}

// States that every automaton has, and classes.
const (
	dead = 0 // in a word that no keyword goes on with
	root = 1 // before a word

	joint = 1 // class of a run of spaces, hyphens and underscores
)

// A word is one way to write keywords.
type word struct {
	text string
	len  int   // in words
	refs int32 // its refs are from here to those of the next
}

// A ref says that a word is a keyword of a server.
type ref struct {
	server, key int32
	weight      float64
}

type server struct {
	name string
	size int // keywords
}

// New returns an automaton for the profiles, whose indices are those of the
// servers in what a [Counter] says. Patterns without a letter or digit are left
// out, and so is a pattern that the profile has already.
func New(profiles []Profile) *Automaton {
	a := &Automaton{}
	t := newTrie()
	var refs [][]ref // by word
	add := func(text string, r ref) {
		syms, n := spell(text)
		if n == 0 {
			return
		}
		id, fresh := t.insert(syms, int32(len(a.words)))
		if fresh {
			a.words = append(a.words, word{text: text, len: n})
			refs = append(refs, nil)
		}
		if !slices.ContainsFunc(refs[id], func(o ref) bool { return o.server == r.server && o.key == r.key }) {
			refs[id] = append(refs[id], r)
		}
	}
	for i, p := range profiles {
		seen := map[string]bool{}
		for _, pat := range p.Patterns {
			syms, n := spell(pat.Text)
			if n == 0 || seen[string(syms)] {
				continue
			}
			seen[string(syms)] = true
			r := ref{int32(i), int32(a.keys), pat.Weight}
			a.keys++
			add(pat.Text, r)
			for _, also := range pat.Also {
				add(also, r)
			}
		}
		a.servers = append(a.servers, server{p.Server, len(seen)})
	}
	for id, c := range cues {
		syms, _ := spell(c.text)
		t.cue(syms, int32(id))
	}
	for id := range a.words {
		a.words[id].refs = int32(len(a.refs))
		a.refs = append(a.refs, refs[id]...)
	}
	a.words = append(a.words, word{refs: int32(len(a.refs))})
	t.compile(a)
	return a
}

// Servers returns how many servers the automaton knows.
func (a *Automaton) Servers() int { return len(a.servers) }

// Server returns the name of a server.
func (a *Automaton) Server(i int) string { return a.servers[i].name }

// Size returns how many keywords a server has.
func (a *Automaton) Size(server int) int { return a.servers[server].size }

// Words returns how many ways to write keywords there are. They are what the
// hits of a [Stream] name, from 0 on.
func (a *Automaton) Words() int { return len(a.words) - 1 }

// Word returns what a hit has found, as its pattern has it.
func (a *Automaton) Word(id int) string { return a.words[id].text }

// Bytes returns how much memory the tables take that are read for every
// character.
func (a *Automaton) Bytes() int { return len(a.nodes)*16 + len(a.outs)*4 }

// spell returns the symbols of a pattern, and how many words it has: folded
// bytes, and ' ' between two words that are joined.
func spell(text string) (syms []byte, words int) {
	in := false      // within a word
	var between byte // what was seen since the last word; 0: nothing
	begin := func() {
		if in {
			return
		}
		if len(syms) > 0 {
			if between == 0 {
				between = ' '
			}
			syms = append(syms, between)
		}
		in, words, between = true, words+1, 0
	}
	for i, r := range text {
		switch kindOf(r) {
		case letter:
			begin()
			syms = appendFolded(syms, r)
		case character:
			in = false
			begin()
			syms = appendFolded(syms, r)
			in = false
		case ignored:
		case breaker, closer:
			// A mark binds two words only where it stands alone between them.
			between = ' '
			if in && r > ' ' && r < 0x7f && tight(text[i+1:]) {
				between = byte(r)
			}
			in = false
		default:
			in, between = false, ' '
		}
	}
	return syms, words
}

// tight reports whether text goes on with a letter or digit.
func tight(text string) bool {
	for _, r := range text {
		return kindOf(r) == letter
	}
	return false
}

// A trie is what an automaton is made from.
type trie struct {
	nodes []trieNode
}

type trieNode struct {
	sym          byte
	child, next  int32 // first child, next sibling; 0: none
	word         int32 // that ends here; -1: none
	cue          int32
	slot         int32
	fail, parent int32
}

func newTrie() *trie { return &trie{nodes: []trieNode{{word: -1, cue: -1}}} }

func (t *trie) walk(syms []byte) int32 {
	n := int32(0)
	for _, c := range syms {
		n = t.step(n, c)
	}
	return n
}

// step returns the child of n by c, which it makes if need be.
func (t *trie) step(n int32, c byte) int32 {
	if k := t.find(n, c); k > 0 {
		return k
	}
	k := int32(len(t.nodes))
	t.nodes = append(t.nodes, trieNode{sym: c, next: t.nodes[n].child, word: -1, cue: -1, parent: n})
	t.nodes[n].child = k
	return k
}

// find returns the child of n by c, or 0.
func (t *trie) find(n int32, c byte) int32 {
	k := t.nodes[n].child
	for k > 0 && t.nodes[k].sym != c {
		k = t.nodes[k].next
	}
	return k
}

// insert gives syms the id unless they have one, and returns what they have.
func (t *trie) insert(syms []byte, id int32) (got int32, fresh bool) {
	n := &t.nodes[t.walk(syms)]
	if n.word >= 0 {
		return n.word, false
	}
	n.word = id
	return id, true
}

func (t *trie) cue(syms []byte, id int32) { t.nodes[t.walk(syms)].cue = id }

// compile lays the trie out in a.
func (t *trie) compile(a *Automaton) {
	a.class[' '] = joint
	classes := joint + 1
	for _, n := range t.nodes[1:] {
		if a.class[n.sym] == 0 {
			a.class[n.sym] = uint8(classes)
			classes++
		}
	}
	t.place(a, classes)
	t.link(a)
}

// place gives every node of the trie its slot. The nodes of a branch lie side by
// side, for the cache.
func (t *trie) place(a *Automaton, classes int) {
	free := node{check: -1}
	grow := func(n int) {
		for len(a.nodes) < n {
			a.nodes = append(a.nodes, free)
		}
	}
	grow(2 + classes)
	a.nodes[dead].check, a.nodes[root].check = -2, -2
	t.nodes[0].slot = root
	first := 2 // no slot below it is free
	const tries = 64
	var kids []int32
	stack := []int32{0}
	for len(stack) > 0 {
		n := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		kids = kids[:0]
		for k := t.nodes[n].child; k > 0; k = t.nodes[k].next {
			kids = append(kids, k)
		}
		if len(kids) == 0 {
			continue
		}
		class := func(k int32) int { return int(a.class[t.nodes[k].sym]) }
		slices.SortFunc(kids, func(x, y int32) int { return cmp.Compare(class(x), class(y)) })
		for first < len(a.nodes) && a.nodes[first].check != -1 {
			first++
		}
		base := max(first-class(kids[0]), 1)
		for try := 0; ; try++ {
			if try == tries { // the rest is dense here: go where nothing is
				base = max(base, len(a.nodes))
			}
			grow(base + classes + 1)
			if !slices.ContainsFunc(kids, func(k int32) bool { return a.nodes[base+class(k)].check != -1 }) {
				break
			}
			base++
		}
		slot := t.nodes[n].slot
		a.nodes[slot].base = int32(base)
		for _, k := range kids {
			s := int32(base + class(k))
			a.nodes[s].check = slot
			t.nodes[k].slot = s
		}
		stack = append(stack, kids...)
	}
	a.nodes = slices.Clip(a.nodes)
}

// link computes what a state falls back to, and what ends in it.
func (t *trie) link(a *Automaton) {
	a.outs = []int32{0}
	queue := []int32{0}
	var list []int32
	for len(queue) > 0 {
		n := queue[0]
		queue = queue[1:]
		tn := &t.nodes[n]
		for k := tn.child; k > 0; k = t.nodes[k].next {
			queue = append(queue, k)
		}
		me := &a.nodes[tn.slot]
		if n == 0 {
			me.fail = dead
			continue
		}
		fail := t.suffix(tn.parent, tn.sym)
		tn.fail = fail
		switch {
		case fail > 0:
			me.fail = t.nodes[fail].slot
		case ends(tn.sym):
			me.fail = root
		default:
			me.fail = dead
		}
		list = list[:0]
		if tn.word >= 0 {
			list = append(list, tn.word)
		}
		if o := a.nodes[me.fail].out; fail > 0 && o > 0 {
			list = append(list, a.outs[o+1:o+1+a.outs[o]]...)
		}
		if tn.cue >= 0 {
			list = append(list, ^tn.cue)
		}
		// What is found comes before what it means for the words behind it, and
		// of two cues the longer has the last word.
		if len(list) > 0 {
			slices.SortStableFunc(list, byLength)
			me.out = int32(len(a.outs))
			a.outs = append(a.outs, int32(len(list)))
			a.outs = append(a.outs, list...)
		}
	}
}

// byLength orders words before cues, and shorter cues before longer ones.
func byLength(x, y int32) int {
	switch {
	case x >= 0 && y >= 0:
		return 0
	case x >= 0:
		return -1
	case y >= 0:
		return 1
	}
	return cmp.Compare(strings.Count(cues[^x].text, " "), strings.Count(cues[^y].text, " "))
}

// suffix returns the longest node that ends like the child of parent by sym, or
// 0. A suffix begins with a whole word.
func (t *trie) suffix(parent int32, sym byte) int32 {
	for p := parent; p != 0; {
		f := t.nodes[p].fail
		if f == 0 && !ends(t.nodes[p].sym) {
			return 0 // within the first word
		}
		if k := t.find(f, sym); k > 0 {
			return k
		}
		p = f
	}
	return 0
}

// ends reports whether a symbol stands between words.
func ends(sym byte) bool { return sym < 0x80 && kinds[sym] != letter }
