package intent

import "math"

// A recall is what a memory says to one step of a model. It sees the steps that
// there were when it began, but those of the group to be left out.
type recall struct {
	m       *Memory
	g       *generation
	n       int     // steps that it sees
	without int32   // group that it does not see; 0: it sees all
	place   []int32 // of a server of the memory: its index in the catalogue; -1: it is not there
	amount  int     // steps that it sees, without the group

	popular  []float32 // by server: share of the sessions that use it
	beside   []float32 // how often it is used where the most telling of the used servers is
	follows  []float32 // how often it is new after the server that was used last
	all      counted   // steps that called a server, a repeated use counting less
	fresh    counted   // steps that used it for the first time
	prompt   bayes
	text     bayes
	fore     bayes // of text, by first uses alone
	tail     bayes // of the current piece of text
	dot      []float32
	square   float64
	seen     map[term]bool // words of the text
	seenTail map[term]bool
	count    []float32 // by server, all zero between uses
	countNew []float32
	touched  []int32
}

// A counted says how many steps there are of each server, and in all.
type counted struct {
	of  []float64
	all float64
}

// again is what a step counts that calls a server which its session has used.
const again = 0.3

// recall begins a step in which used servers were used, by their index in the
// catalogue of places, the last one last.
func (m *Memory) recall(places map[string]int, servers int, used []int32, prompt []term, without int32) *recall {
	m.mu.RLock()
	defer m.mu.RUnlock()
	g := m.g
	r := &recall{
		m: m, g: g, n: len(g.steps), without: without, place: make([]int32, len(g.servers)),
		popular: make([]float32, servers), beside: make([]float32, servers), follows: make([]float32, servers),
		all: counted{of: make([]float64, servers)}, fresh: counted{of: make([]float64, servers)},
		prompt: newBayes(servers), text: newBayes(servers), fore: newBayes(servers), tail: newBayes(servers),
		dot: make([]float32, len(g.steps)), seen: map[term]bool{}, seenTail: map[term]bool{},
		count: make([]float32, servers), countNew: make([]float32, servers),
	}
	for i, name := range g.servers {
		r.place[i] = -1
		if p, ok := places[name]; ok {
			r.place[i] = int32(p)
		}
	}
	r.sum(used)
	for _, t := range prompt {
		r.read(g.prompts[t], func(count, fresh []float32, touched []int32) { r.prompt.add(fresh, touched, &r.fresh) })
	}
	return r
}

// sum counts what was called after what.
func (r *recall) sum(used []int32) {
	current := make(map[int32]bool, len(used))
	for _, u := range used {
		current[u] = true
	}
	last := int32(-1)
	if len(used) > 0 {
		last = used[len(used)-1]
	}
	sessions, afterLast := 0.0, 0.0
	together := make(map[[2]int32]float64) // used, other
	for i := range r.g.steps[:r.n] {
		s := &r.g.steps[i]
		if r.hidden(s) {
			continue
		}
		r.amount++
		if len(s.used) == 0 {
			sessions++
		}
		was := int32(-1)
		if s.last >= 0 {
			was = r.place[s.last]
		}
		same := (s.last < 0) == (last < 0) && was == last
		if same {
			afterLast++
		}
		for j, c := range s.called {
			p := r.place[c]
			if p < 0 {
				continue
			}
			if !s.fresh[j] {
				r.all.of[p] += again
				r.all.all += again
				continue
			}
			r.all.of[p]++
			r.all.all++
			r.fresh.of[p]++
			r.fresh.all++
			if same {
				r.follows[p]++
			}
			for _, u := range s.used {
				if q := r.place[u]; q >= 0 {
					if current[q] {
						together[[2]int32{q, p}]++
					}
					if current[p] {
						together[[2]int32{p, q}]++
					}
				}
			}
		}
	}
	for i := range r.popular {
		prior := (r.fresh.of[i] + 0.1) / (sessions + 1)
		r.popular[i] = float32(math.Log((r.fresh.of[i] + 0.3) / (sessions + 1)))
		r.follows[i] = float32(math.Log((float64(r.follows[i])+0.3*prior)/(afterLast+1) + 0.003))
		most := 0.02 // where nothing is used yet
		for j, u := range used {
			share := (together[[2]int32{u, int32(i)}] + 0.5*prior) / (r.fresh.of[u] + 0.5)
			if j == 0 || share > most {
				most = share
			}
		}
		r.beside[i] = float32(math.Log(most + 0.005))
	}
}

func (r *recall) hidden(s *remembrance) bool { return r.without != 0 && s.group == r.without }

// read counts, for each server, the steps of a list that called it, and hands
// them on; count and fresh are as in all and fresh of a recall. The memory is
// locked.
func (r *recall) read(ids []int32, use func(count, fresh []float32, touched []int32)) {
	r.touched = r.touched[:0]
	for _, id := range ids {
		if int(id) >= r.n {
			break
		}
		s := &r.g.steps[id]
		if r.hidden(s) {
			continue
		}
		for j, c := range s.called {
			p := r.place[c]
			if p < 0 {
				continue
			}
			if r.count[p] == 0 {
				r.touched = append(r.touched, p)
			}
			if s.fresh[j] {
				r.count[p]++
				r.countNew[p]++
			} else {
				r.count[p] += again
			}
		}
	}
	if len(r.touched) > 0 {
		use(r.count, r.countNew, r.touched)
	}
	for _, p := range r.touched {
		r.count[p], r.countNew[p] = 0, 0
	}
}

// word reads the next word of the text.
func (r *recall) word(t term) {
	known, knownTail := r.seen[t], r.seenTail[t]
	if known && knownTail || len(r.seen) >= most {
		return
	}
	r.seen[t], r.seenTail[t] = true, true
	r.m.mu.RLock()
	defer r.m.mu.RUnlock()
	ids := r.g.texts[t]
	r.read(ids, func(count, fresh []float32, touched []int32) {
		if !known {
			r.text.add(count, touched, &r.all)
			r.fore.add(fresh, touched, &r.fresh)
		}
		if !knownTail {
			r.tail.add(count, touched, &r.all)
		}
	})
	if known || len(ids) == 0 {
		return
	}
	w := r.g.rarity(t)
	r.square += w * w
	for _, id := range ids {
		if int(id) >= r.n {
			break
		}
		r.dot[id] += float32(w * w)
	}
}

// turn begins another piece of text.
func (r *recall) turn() {
	clear(r.seenTail)
	r.tail.reset()
}

// neighbours is how many of the most similar steps are summed.
const neighbours = 10

// similar fills best with the greatest likeness of the text to a step that used
// a server for the first time, and sum with that of the nearest steps of all
// servers.
func (r *recall) similar(best, sum []float32) {
	clear(best)
	clear(sum)
	if r.square == 0 {
		return
	}
	r.m.mu.RLock()
	defer r.m.mu.RUnlock()
	var near [neighbours]struct {
		id    int
		alike float32
	}
	full := 0
	scale := float32(1 / math.Sqrt(r.square))
	for id, dot := range r.dot {
		s := &r.g.steps[id]
		if dot == 0 || r.hidden(s) || !s.novelty() {
			continue
		}
		alike := dot * scale / r.g.norms[id]
		for j, c := range s.called {
			if p := r.place[c]; p >= 0 && s.fresh[j] {
				best[p] = max(best[p], alike)
			}
		}
		if full == neighbours && alike <= near[full-1].alike {
			continue
		}
		if full < neighbours {
			full++
		}
		i := full - 1
		for ; i > 0 && near[i-1].alike < alike; i-- {
			near[i] = near[i-1]
		}
		near[i].id, near[i].alike = id, alike
	}
	for _, n := range near[:full] {
		s := &r.g.steps[n.id]
		for j, c := range s.called {
			if p := r.place[c]; p >= 0 && s.fresh[j] {
				sum[p] += n.alike
			}
		}
	}
}

// A bayes says how much the words of a text tell of each server, by what came
// before calls of it.
type bayes struct {
	score []float32 // of words that came before a call of the server, beyond what they say of others
	words int
}

func newBayes(servers int) bayes { return bayes{score: make([]float32, servers)} }

// add reads a word that stood in so many steps of each server.
func (b *bayes) add(count []float32, touched []int32, c *counted) {
	sum := 0.0
	for _, p := range touched {
		sum += float64(count[p])
	}
	if sum == 0 {
		return
	}
	usual := (sum + 0.5) / (c.all + 5)
	for _, p := range touched {
		b.score[p] += float32(math.Log1p(float64(count[p]) / usual))
	}
	b.words++
}

// read fills dst with the score of each server.
func (b *bayes) read(c *counted, dst []float32) {
	if b.words == 0 {
		clear(dst)
		return
	}
	root := math.Sqrt(float64(b.words))
	for i := range dst {
		dst[i] = float32((float64(b.score[i]) - float64(b.words)*math.Log1p(c.of[i])) / root)
	}
}

func (b *bayes) reset() {
	clear(b.score)
	b.words = 0
}
