package intent

import (
	"math"
	"slices"
	"sync"
)

// remembered is how many steps a memory keeps when nothing else is said.
const remembered = 2000

// A Memory keeps what a tenant's steps have taught: which servers were called
// after which words, and after which others. Of texts it keeps hashes of words,
// not the words. It is bounded: of too many steps the oldest go. Servers are
// known by their names, so that it outlives a change of the catalogue. It is safe
// for concurrent use.
type Memory struct {
	limit int

	mu sync.RWMutex
	g  *generation
}

// A generation is the steps that a memory holds. Steps are only added to it; who
// reads it looks no further than the number of steps that there were when it
// began. When there are too many, another generation takes over.
type generation struct {
	names   map[string]int32
	servers []string
	steps   []remembrance
	texts   map[term][]int32 // steps with that word in their text, ascending
	prompts map[term][]int32 // the same of prompts, of steps that called something new
	novel   map[term]int32   // how many steps with that word in their text called something new
	norms   []float32        // of each step: length of its text's words, by how rare they were
	normed  int              // how many steps there were when norms were taken
}

// A remembrance is a step as it is kept.
type remembrance struct {
	called []int32 // servers
	fresh  []bool  // of each: not used before in the session
	used   []int32 // servers that the session had used, each once
	last   int32   // the server that was used last; -1: none
	text   []term  // each once, as prompt
	prompt []term
	group  int32 // steps of one group are not shown to those who leave it out; 0: of none
}

// novelty reports whether the step called something that was not used before.
func (r *remembrance) novelty() bool { return slices.Contains(r.fresh, true) }

// NewMemory returns an empty memory of so many steps; 0: as many as are good for
// a tenant.
func NewMemory(limit int) *Memory {
	if limit <= 0 {
		limit = remembered
	}
	return &Memory{limit: limit, g: newGeneration()}
}

func newGeneration() *generation {
	return &generation{names: map[string]int32{}, texts: map[term][]int32{}, prompts: map[term][]int32{}, novel: map[term]int32{}}
}

// Len returns how many steps the memory holds.
func (m *Memory) Len() int {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return min(len(m.g.steps), m.limit)
}

// Learn takes in a step that is over. A step that called nothing teaches nothing.
func (m *Memory) Learn(s Step) { m.learn(s, 0) }

// A lesson is a step before its servers have numbers.
type lesson struct {
	called, used []string // used: each once, the last one last
	text, prompt []term
	group        int32
}

// most is how many different words of a text are kept.
const most = 400

func (m *Memory) learn(s Step, group int32) {
	if len(s.Called) == 0 {
		return
	}
	l := lesson{called: s.Called, group: group, prompt: distinct(termsOf(excerpt(s.Prompt)))}
	for _, u := range s.Used {
		for _, name := range u {
			if i := slices.Index(l.used, name); i >= 0 {
				l.used = slices.Delete(l.used, i, i+1)
			}
			l.used = append(l.used, name)
		}
	}
	var text []term
	for _, seg := range s.Text {
		text = append(text, termsOf(seg.Text)...)
	}
	l.text = distinct(text)
	m.keep(l)
}

// distinct sorts terms and leaves each once.
func distinct(ts []term) []term {
	slices.Sort(ts)
	ts = slices.Compact(ts)
	return slices.Clip(ts[:min(len(ts), most)])
}

// excerpt is what is read of a long prompt: its beginning and its end.
func excerpt(s string) string {
	const part = 2000
	if len(s) <= 2*part {
		return s
	}
	return s[:part] + " " + s[len(s)-part:]
}

func (m *Memory) keep(l lesson) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.g.add(l)
	if len(m.g.steps) >= 2*m.limit {
		m.g = m.g.newest(m.limit)
	}
}

func (g *generation) number(name string) int32 {
	n, ok := g.names[name]
	if !ok {
		n = int32(len(g.servers))
		g.names[name] = n
		g.servers = append(g.servers, name)
	}
	return n
}

func (g *generation) add(l lesson) {
	r := remembrance{last: -1, text: l.text, prompt: l.prompt, group: l.group}
	for _, u := range l.used {
		r.last = g.number(u)
		r.used = append(r.used, r.last)
	}
	for _, c := range l.called {
		n := g.number(c)
		r.called = append(r.called, n)
		r.fresh = append(r.fresh, !slices.Contains(r.used, n))
	}
	id := int32(len(g.steps))
	g.steps = append(g.steps, r)
	novel := r.novelty()
	for _, t := range r.text {
		g.texts[t] = append(g.texts[t], id)
		if novel {
			g.novel[t]++
		}
	}
	if novel {
		for _, t := range r.prompt {
			g.prompts[t] = append(g.prompts[t], id)
		}
	}
	g.norms = append(g.norms, g.norm(&r))
	if len(g.steps) > g.normed+g.normed/8 {
		for i := range g.steps {
			g.norms[i] = g.norm(&g.steps[i])
		}
		g.normed = len(g.steps)
	}
}

// rarity is how much a word of a text says, by how many steps have it that
// called something new.
func (g *generation) rarity(t term) float64 {
	return max(0.1, math.Log((float64(len(g.steps))+1)/(float64(g.novel[t])+0.5)))
}

func (g *generation) norm(r *remembrance) float32 {
	sum := 0.0
	for _, t := range r.text {
		w := g.rarity(t)
		sum += w * w
	}
	return float32(math.Sqrt(max(sum, 1e-6)))
}

// newest returns a generation of the last n steps. The old one stays as it is.
func (g *generation) newest(n int) *generation {
	fresh := newGeneration()
	for _, l := range g.lessons(n) {
		fresh.add(l)
	}
	return fresh
}

// lessons returns the last n steps, oldest first.
func (g *generation) lessons(n int) []lesson {
	var all []lesson
	for _, r := range g.steps[max(0, len(g.steps)-n):] {
		l := lesson{text: r.text, prompt: r.prompt, group: r.group}
		for _, c := range r.called {
			l.called = append(l.called, g.servers[c])
		}
		for _, u := range r.used {
			l.used = append(l.used, g.servers[u])
		}
		all = append(all, l)
	}
	return all
}
