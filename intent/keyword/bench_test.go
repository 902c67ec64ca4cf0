package keyword_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/specbox/specbox/intent/keyword"
)

// vocabulary returns made-up words.
func vocabulary(r *rand.Rand, n int) []string {
	syllables := strings.Fields("ba con der es fi gra hol in jo kel lu men nor op pra qui res sta tion un ver wes xi yo zan ter al ing")
	words := make([]string, n)
	for i := range words {
		for range 2 + r.IntN(3) {
			words[i] += syllables[r.IntN(len(syllables))]
		}
	}
	return words
}

// workload returns an automaton of servers with 30 keywords each, and the tokens
// of a text that speaks of them.
func workload(servers int) (*keyword.Automaton, [][]byte) {
	r := rand.New(rand.NewPCG(1, uint64(servers)))
	words := vocabulary(r, 20*servers)
	var profiles []keyword.Profile
	for i := range servers {
		var texts []string
		for k := range 30 {
			w := words[r.IntN(len(words))]
			if k%3 == 0 {
				w += " " + words[r.IntN(len(words))]
			}
			texts = append(texts, w)
		}
		profiles = append(profiles, profile(fmt.Sprint(i), texts...))
	}
	plain := vocabulary(r, 2000)
	var tokens [][]byte
	for range 5000 {
		w := " " + plain[r.IntN(len(plain))]
		if r.IntN(8) == 0 {
			w = " " + words[r.IntN(len(words))]
		}
		for ; len(w) > 4; w = w[4:] {
			tokens = append(tokens, []byte(w[:4]))
		}
		tokens = append(tokens, []byte(w))
	}
	return keyword.New(profiles), tokens
}

func BenchmarkStream(b *testing.B) {
	for _, servers := range []int{32, 1000} {
		b.Run(fmt.Sprint(servers), func(b *testing.B) {
			a, tokens := workload(servers)
			s, c := a.Stream(), a.Counter()
			hits := make([]keyword.Hit, 0, 64)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if i%1000 == 0 {
					s.Reset()
					c.Reset()
				}
				hits = s.Write(tokens[i%len(tokens)], hits[:0])
				c.Add(hits)
			}
			b.ReportMetric(float64(a.Bytes())/1e6, "MB")
		})
	}
}

func BenchmarkNew(b *testing.B) {
	for _, servers := range []int{32, 1000} {
		b.Run(fmt.Sprint(servers), func(b *testing.B) {
			for b.Loop() {
				workload(servers)
			}
		})
	}
}

func TestReadingAllocatesNothing(t *testing.T) {
	a, tokens := workload(32)
	s, c := a.Stream(), a.Counter()
	hits := make([]keyword.Hit, 0, 64)
	if n := testing.AllocsPerRun(10, func() {
		s.Reset()
		c.Reset()
		for _, token := range tokens {
			hits = s.Write(token, hits[:0])
			c.Add(hits)
		}
	}); n != 0 {
		t.Errorf("%v allocations a text", n)
	}
}
