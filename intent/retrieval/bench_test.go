package retrieval_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/specbox/specbox/intent/retrieval"
)

// workload returns an index of so many exemplars of 12 words, and the tokens of
// a text of the same words, the common ones most often.
func workload(n, servers int) (*retrieval.Index, [][]byte) {
	r := rand.New(rand.NewPCG(1, uint64(n)))
	syllables := strings.Fields("ba con der es fi gra hol in jo kel lu men nor op pra qui res sta tion un ver wes xi yo zan ter al ing")
	words := make([]string, 5000)
	for i := range words {
		for range 1 + r.IntN(3) + i/2500 {
			words[i] += syllables[r.IntN(len(syllables))]
		}
	}
	zipf := rand.NewZipf(r, 1.1, 8, uint64(len(words)-1))
	text := func(n int) string {
		var b strings.Builder
		for range n {
			b.WriteString(words[zipf.Uint64()])
			b.WriteByte(' ')
		}
		return b.String()
	}
	exemplars := make([]retrieval.Exemplar, n)
	for i := range exemplars {
		exemplars[i] = retrieval.Exemplar{Server: i % servers, Text: text(12)}
	}
	var tokens [][]byte
	for t := []byte(text(4000)); len(t) > 4; t = t[4:] {
		tokens = append(tokens, t[:4])
	}
	return retrieval.New(servers, exemplars).Index(retrieval.Options{}), tokens
}

func BenchmarkWrite(b *testing.B) {
	for _, c := range []struct{ n, servers int }{{640, 32}, {20000, 32}} {
		b.Run(fmt.Sprint(c.n), func(b *testing.B) {
			x, tokens := workload(c.n, c.servers)
			s := x.Stream()
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if i%300 == 0 {
					s.Reset()
				}
				s.Write(tokens[i%len(tokens)])
			}
			b.ReportMetric(float64(x.Base().Bytes())/1e6, "MB")
		})
	}
}

func BenchmarkScores(b *testing.B) {
	for _, c := range []struct{ n, servers int }{{640, 32}, {20000, 32}, {20000, 1000}} {
		b.Run(fmt.Sprintf("%d-%d", c.n, c.servers), func(b *testing.B) {
			x, tokens := workload(c.n, c.servers)
			s := x.Stream()
			for _, t := range tokens[:300] {
				s.Write(t)
			}
			var dst []retrieval.Score
			b.ReportAllocs()
			for b.Loop() {
				dst = s.Scores(dst)
			}
		})
	}
}

func BenchmarkNew(b *testing.B) {
	for b.Loop() {
		workload(640, 32)
	}
}

func BenchmarkAdd(b *testing.B) {
	x, tokens := workload(640, 32)
	var text strings.Builder
	for _, t := range tokens[:300] {
		text.Write(t)
	}
	for i := 0; b.Loop(); i++ {
		x.Add(retrieval.Exemplar{Server: i % 32, Text: fmt.Sprint(text.String(), i)})
	}
}
