package intent

import (
	"math"
	"strings"

	"github.com/specbox/specbox/intent/keyword"
)

// ground is what all steps of a calibrated policy share: it is made of the
// catalogue alone, and immutable.
type ground struct {
	servers []Server
	places  map[string]int // of a server's name
	lexicon *lexicon
	names   *keyword.Automaton // names of server s are in profile 2s, those of its tools in the next
}

func newGround(servers []Server, c *common) *ground {
	g := &ground{servers: servers, places: make(map[string]int, len(servers)), lexicon: newLexicon(servers, c)}
	for i, s := range servers {
		g.places[s.Name] = i
	}
	g.names = keyword.New(g.profiles())
	return g
}

// profiles are the names of servers and tools. A name that other servers use as
// a plain word says little.
func (g *ground) profiles() []keyword.Profile {
	var all []keyword.Profile
	for _, s := range g.servers {
		own := keyword.Profile{Server: s.Name}
		words := keyword.Words(s.Name)
		telling := words[:0:0]
		for _, w := range words {
			if w != "mcp" && w != "server" {
				telling = append(telling, w)
			}
		}
		own.Patterns = append(own.Patterns, pattern(words, g.weight(words)))
		if len(telling) > 0 && len(telling) < len(words) {
			own.Patterns = append(own.Patterns, pattern(telling, g.weight(telling)))
		}
		tools := keyword.Profile{Server: s.Name}
		for _, t := range s.Tools {
			if words := keyword.Words(t.Name); len(words) > 1 {
				tools.Patterns = append(tools.Patterns, pattern(words, 1))
			}
		}
		all = append(all, own, tools)
	}
	return all
}

func pattern(words []string, weight float64) keyword.Pattern {
	p := keyword.Pattern{Text: strings.Join(words, " "), Weight: weight}
	if len(words) > 1 {
		p.Also = []string{strings.Join(words, "")}
	}
	return p
}

// weight says how much it tells that a text has the words of a name.
func (g *ground) weight(words []string) float64 {
	if len(words) != 1 {
		return 1
	}
	t, telling := termOf([]byte(words[0]))
	id, known := g.lexicon.terms[t]
	if !telling || !known {
		return 0.1
	}
	// A word that one server alone has is as rare as can be.
	rarest := math.Log(1 + float64(len(g.servers)))
	return max(0.1, float64(g.lexicon.idf[id])/rarest)
}

// find is what searches for tools say of a server.
type find struct {
	times, firstRank     int
	lastSearch, lastRank int
}

// A standing says what a server is to a step.
type standing uint8

const (
	unused standing = iota // by the session so far
	used
	barred // not among the tools that the model was offered
)

// A watch reads one step. It sees the text as words, and keeps sums.
type watch struct {
	p      *ground
	memory *recall
	scores [channels][]float32

	used     []int32 // each once, the last one last
	standing []standing
	steps    int
	same     int // steps in a row, the last ones, that called the last used server

	text, query  likeness
	recent       fading
	split        splitter
	onWord       func([]byte)
	onMark       func(rune)
	stream       *keyword.Stream
	hits         []keyword.Hit
	negation     negation
	names        *keyword.Counter
	namesTail    *keyword.Counter
	promptNames  []float32
	namedServers int // whose own name the text has

	kind                       Kind
	between                    bool // a piece of text has ended
	queries                    int
	bytes                      int
	visible                    int // bytes that are no blanks
	tailBytes                  int
	lines                      int
	ending                     rune // the last visible character
	closings, backs, regretful int
	seekings, lookings         int

	searched       int // searches that returned something
	found          []find
	foundServers   int // unused servers that were found in this step
	offeredAt      []int
	offeredServers int

	fired []bool // in this step, by whoever decides
	pick  []bool
	at    []int32
}

// begin watches one step with what a memory knows; without is the group of steps
// that must not be seen.
func (g *ground) begin(h History, m *Memory, without int32) *watch {
	n := len(g.servers)
	w := &watch{
		p: g, standing: make([]standing, n), steps: len(h.Used),
		text: g.lexicon.likeness(), query: g.lexicon.likeness(), recent: g.lexicon.fading(),
		stream: g.names.Stream(), names: g.names.Counter(), namesTail: g.names.Counter(), promptNames: make([]float32, n),
		found: make([]find, n), offeredAt: make([]int, n), fired: make([]bool, n), pick: make([]bool, n), at: make([]int32, n),
	}
	w.onWord, w.onMark = w.word, w.mark
	store := make([]float32, int(channels)*n)
	for c := range w.scores {
		w.scores[c], store = store[:n:n], store[n:]
	}
	w.history(h.Used)
	w.bar(h.Tools)
	prompt := excerpt(h.Prompt)
	terms := termsOf(prompt)
	w.read(terms)
	w.memory = m.recall(g.places, n, w.used, distinct(terms), without)
	w.memory.prompt.read(&w.memory.fresh, w.scores[learnedPrompt])

	hits := w.stream.Write([]byte(prompt), nil)
	hits = w.stream.End(hits)
	w.names.Add(hits)
	for s := range n {
		if b := w.names.Best(2 * s); b > 0 || w.names.Distinct(2*s+1) > 0 {
			w.promptNames[s] = float32(max(b, 0.5))
		}
	}
	w.stream.Reset()
	w.names.Reset()

	for i, name := range h.Offered {
		if s, ok := g.places[name]; ok && w.offeredAt[s] == 0 {
			w.offeredAt[s] = i + 1
			if w.standing[s] == unused {
				w.offeredServers++
			}
		}
	}
	if len(h.Candidates) > 0 {
		w.Candidates(h.Candidates)
	}
	return w
}

// headFade is what a word of the prompt counts of the one before it, where the
// first ones count most.
const headFade = 0.93

// read reads the words of the prompt.
func (w *watch) read(terms []term) {
	x := w.p.lexicon
	all := x.likeness()
	var head, rest []weighed
	weight := 1.0
	seen := make(map[int32]bool)
	for _, t := range terms {
		weight *= headFade
		id, ok := x.terms[t]
		if !ok {
			continue
		}
		all.add(id)
		if weight > 0.01 {
			head = append(head, weighed{id, weight})
		}
		if !seen[id] {
			seen[id] = true
			rest = append(rest, weighed{id, 1 - x.covered(id, w.used)})
		}
	}
	all.read(w.scores[promptOwn], w.scores[promptTool])
	x.compare(head, w.scores[headOwn], w.scores[headTool])
	x.compare(rest, w.scores[restOwn], w.scores[restTool])
}

// history reads which servers earlier steps called.
func (w *watch) history(steps [][]string) {
	for _, step := range steps {
		for _, name := range step {
			s, ok := w.p.places[name]
			if !ok {
				continue
			}
			if w.standing[s] == used {
				for i, u := range w.used {
					if int(u) == s {
						w.used = append(w.used[:i], w.used[i+1:]...)
						break
					}
				}
			}
			w.standing[s] = used
			w.used = append(w.used, int32(s))
		}
	}
	if len(w.used) == 0 {
		return
	}
	last := w.p.servers[w.used[len(w.used)-1]].Name
count:
	for i := len(steps) - 1; i >= 0; i-- {
		for _, name := range steps[i] {
			if name == last {
				w.same++
				continue count
			}
		}
		break
	}
}

// bar leaves out the servers whose tools the model does not have. One that the
// session has used is never left out.
func (w *watch) bar(tools []string) {
	if tools == nil {
		return
	}
	for s := range w.standing {
		if w.standing[s] == unused {
			w.standing[s] = barred
		}
	}
	for _, name := range tools {
		if s, ok := w.p.places[name]; ok && w.standing[s] == barred {
			w.standing[s] = unused
		}
	}
}

// Text takes the next piece of what the model writes.
func (w *watch) Text(k Kind, p []byte) {
	if len(p) == 0 {
		return
	}
	if w.bytes == 0 || k != w.kind || w.between {
		w.turn(k)
	}
	w.bytes += len(p)
	w.tailBytes += len(p)
	w.split.write(p, w.onWord, w.onMark)
	w.hits = w.stream.Write(p, w.hits[:0])
	w.name()
}

// turn begins another piece of text.
func (w *watch) turn(k Kind) {
	if w.bytes > 0 {
		w.split.flush(w.onWord)
		w.negation = negation{}
		w.hits = w.stream.End(w.hits[:0])
		w.name()
	}
	w.between = false
	w.kind = k
	w.tailBytes = 0
	w.namesTail.Reset()
	w.backs, w.seekings, w.lookings = 0, 0, 0
	w.memory.turn()
	if k == Query {
		w.search() // the last one is whole now
		w.queries++
		w.query.reset()
	}
}

// name counts the names that were found.
func (w *watch) name() {
	if len(w.hits) == 0 {
		return
	}
	w.names.Add(w.hits)
	w.namesTail.Add(w.hits)
	w.namedServers = 0
	for _, i := range w.names.Touched() {
		if i%2 == 0 {
			w.namedServers++
		}
	}
}

// mark reads a character that is of no word.
func (w *watch) mark(r rune) {
	w.negation.mark(r)
	switch r {
	case '\n':
		w.lines++
	case ' ', '\t', '\r':
		return
	}
	w.visible++
	w.ending = r
}

// word reads a word.
func (w *watch) word(b []byte) {
	w.visible += len(b)
	w.ending = 'a'
	if w.negation.word(b) {
		return
	}
	switch {
	case closings[string(b)]:
		w.closings++
	case backs[string(b)]:
		w.backs++
	case seekings[string(b)]:
		w.seekings++
	case lookings[string(b)]:
		w.lookings++
	case regrets[string(b)]:
		w.regretful++
	}
	t, ok := termOf(b)
	if !ok {
		return
	}
	w.recent.step()
	if id, ok := w.p.lexicon.terms[t]; ok {
		w.text.add(id)
		w.recent.add(id)
		if w.kind == Query {
			w.query.add(id)
		}
	}
	w.memory.word(t)
}

// Words that say how a step goes on.
var (
	closings = setOf("successfully summary completed complete conclusion overall based findings")
	backs    = setOf("again another next also continue remaining same retry other different instead alternative")
	seekings = setOf("tool tools capability capabilities functionality appropriate suitable server servers")
	lookings = setOf("search searching find finding look looking discover explore")
	regrets  = setOf("unfortunately issue error failed unable sorry cannot blocked denied limitation limitations")
)

// Candidates says that a search for tools has returned servers.
func (w *watch) Candidates(servers []string) {
	w.between = true
	if len(servers) == 0 {
		return
	}
	w.searched++
	at := 0
	for _, name := range servers {
		s, ok := w.p.places[name]
		if !ok {
			continue
		}
		f := &w.found[s]
		if f.lastSearch == w.searched {
			continue
		}
		at++
		if f.times == 0 {
			f.firstRank = at
			if w.standing[s] == unused {
				w.foundServers++
			}
		}
		f.times++
		f.lastSearch, f.lastRank = w.searched, at
	}
}

// score reads the channels that the text moves.
func (w *watch) score() {
	w.text.read(w.scores[textOwn], w.scores[textTool])
	w.search()
	w.recent.read(w.scores[recentOwn], w.scores[recentTool])
	m := w.memory
	m.text.read(&m.all, w.scores[learnedText])
	m.fore.read(&m.fresh, w.scores[learnedFirst])
	m.tail.read(&m.all, w.scores[learnedTail])
	m.similar(w.scores[nearest], w.scores[nearSum])
	for s, kin := range w.p.lexicon.kin {
		near, first := w.scores[nearSum][s], w.scores[learnedFirst][s]
		for _, k := range kin {
			near += k.alike * w.scores[nearSum][k.server]
			first += k.alike * max(0, w.scores[learnedFirst][k.server])
		}
		w.scores[nearKin][s], w.scores[kinFirst][s] = near, first
	}
}

// search reads how much servers are like the search that is being written, and
// like any of the step.
func (w *watch) search() {
	if w.queries == 0 {
		return
	}
	w.query.read(w.scores[queryOwn], w.scores[queryTool])
	if w.queries == 1 {
		copy(w.scores[firstQueryOwn], w.scores[queryOwn])
		copy(w.scores[firstQueryTool], w.scores[queryTool])
	}
	best, now := w.scores[anyQueryTool], w.scores[queryTool]
	for s := range best {
		best[s] = max(best[s], now[s])
	}
}
