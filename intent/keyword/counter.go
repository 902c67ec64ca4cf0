package keyword

import "slices"

// A Counter sums up what was found, for each server. A keyword counts once,
// however often and in whatever way it was written, and not at all where it is
// negated. It is used by one goroutine at a time.
type Counter struct {
	a       *Automaton
	seen    []uint64 // a bit for each keyword
	sums    []sum
	touched []int32
}

type sum struct {
	distinct int32
	weight   float64
	best     float64
}

// Counter returns a counter that has seen nothing.
func (a *Automaton) Counter() *Counter {
	return &Counter{a: a, seen: make([]uint64, (a.keys+63)/64), sums: make([]sum, len(a.servers)), touched: make([]int32, 0, len(a.servers))}
}

// Reset forgets what was counted.
func (c *Counter) Reset() {
	clear(c.seen)
	for _, s := range c.touched {
		c.sums[s] = sum{}
	}
	c.touched = c.touched[:0]
}

// Add counts hits of a stream of the same automaton.
func (c *Counter) Add(hits []Hit) {
	a := c.a
	for _, h := range hits {
		if h.Negated {
			continue
		}
		for _, r := range a.refs[a.words[h.Word].refs:a.words[h.Word+1].refs] {
			if c.seen[r.key/64]&(1<<(r.key%64)) != 0 {
				continue
			}
			c.seen[r.key/64] |= 1 << (r.key % 64)
			t := &c.sums[r.server]
			if t.distinct == 0 {
				c.touched = append(c.touched, r.server)
			}
			t.distinct++
			t.weight += r.weight
			t.best = max(t.best, r.weight)
		}
	}
}

// Touched returns the servers of which something was counted, in the order of
// their first keyword. It is the counter's.
func (c *Counter) Touched() []int32 { return c.touched }

// Distinct returns how many different keywords of a server were counted.
func (c *Counter) Distinct(server int) int { return int(c.sums[server].distinct) }

// Weight returns the sum of their weights.
func (c *Counter) Weight(server int) float64 { return c.sums[server].weight }

// Best returns the greatest of their weights.
func (c *Counter) Best(server int) float64 { return c.sums[server].best }

// Share returns which part of a server's keywords was counted.
func (c *Counter) Share(server int) float64 {
	if n := c.a.servers[server].size; n > 0 {
		return float64(c.sums[server].distinct) / float64(n)
	}
	return 0
}

// Keywords returns the different keywords among the hits that count for a
// server, in their order.
func (a *Automaton) Keywords(server int, hits []Hit) []string {
	var keys []int32
	var out []string
	for _, h := range hits {
		if h.Negated {
			continue
		}
		for _, r := range a.refs[a.words[h.Word].refs:a.words[h.Word+1].refs] {
			if int(r.server) == server && !slices.Contains(keys, r.key) {
				keys = append(keys, r.key)
				out = append(out, a.words[h.Word].text)
			}
		}
	}
	return out
}
