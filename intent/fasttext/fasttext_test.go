package fasttext_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/specbox/specbox/intent/fasttext"
)

// topics are what the labels of the tests speak of.
var topics = []string{
	"weather forecast temperature rain sunshine wind storm",
	"stock price market share dividend earnings ticker",
	"browser page click navigate screenshot website link",
	"recipe cooking kitchen oven butter sugar flour",
}

// lines returns texts of words of one topic each, among words of none.
func lines(r *rand.Rand, n int) []fasttext.Example {
	noise := strings.Fields("the a of and to in for with on let me now please will then this that it is")
	out := make([]fasttext.Example, n)
	for i := range out {
		label := r.IntN(len(topics))
		words := strings.Fields(topics[label])
		var b strings.Builder
		for range 12 {
			if r.IntN(4) == 0 {
				b.WriteString(words[r.IntN(len(words))])
			} else {
				b.WriteString(noise[r.IntN(len(noise))])
			}
			b.WriteByte(' ')
		}
		out[i] = fasttext.Example{Label: label, Text: b.String()}
	}
	return out
}

// likeliest returns the label of the greatest probability.
func likeliest(p []float64) int { return slices.Index(p, slices.Max(p)) }

func TestLearnsWhatTellsLabelsApart(t *testing.T) {
	for seed := range uint64(3) {
		r := rand.New(rand.NewPCG(seed, 1))
		m := fasttext.Train(len(topics), lines(r, 200), fasttext.Options{Seed: seed})
		right := 0
		test := lines(r, 200)
		for _, e := range test {
			if likeliest(m.Predict(e.Text)) == e.Label {
				right++
			}
		}
		// A text of which no word is of a topic, 3 % of them, can only be guessed.
		if right < 185 {
			t.Errorf("seed %d: %d of 200 are right", seed, right)
		}
		for text, want := range map[string]int{
			"temperatures and storms": 0, // by pieces of words
			"WEBSITES, navigating":    2,
		} {
			if p := m.Predict(text); likeliest(p) != want {
				t.Errorf("seed %d: %q gets %v, want %d", seed, text, p, want)
			}
		}
	}
}

func TestTrainingIsDeterministic(t *testing.T) {
	train := lines(rand.New(rand.NewPCG(1, 1)), 50)
	o := fasttext.Options{Seed: 7, Epochs: 3}
	want := fasttext.Train(4, train, o).Predict("rain on the market")
	if got := fasttext.Train(4, train, o).Predict("rain on the market"); !slices.Equal(got, want) {
		t.Errorf("%v, then %v", want, got)
	}
	o.Seed++
	if got := fasttext.Train(4, train, o).Predict("rain on the market"); slices.Equal(got, want) {
		t.Error("another seed makes the same model")
	}
}

func TestUnknownTextGetsTheSharesOfLabels(t *testing.T) {
	m := fasttext.Train(3, []fasttext.Example{{0, "alpha"}, {0, "bravo"}, {2, "charlie"}, {2, "!"}}, fasttext.Options{})
	for _, text := range []string{"", "xyz", " ... "} {
		if got := m.Predict(text); !slices.Equal(got, []float64{0.5, 0, 0.5}) {
			t.Errorf("%q gets %v", text, got)
		}
	}
	s := m.Stream()
	s.Write([]byte("alpha bravo "))
	if known := s.Known(); known <= 0.8 || known >= 1 {
		t.Errorf("of a text that is known %v is", known)
	}
	s.Reset()
	s.Write([]byte("xyz "))
	if s.Known() != 0 {
		t.Errorf("of a text that is unknown %v is known", s.Known())
	}
}

func TestProbabilitiesAddUp(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 1))
	m := fasttext.Train(4, lines(r, 80), fasttext.Options{Dim: 8})
	for _, e := range lines(r, 20) {
		sum := 0.0
		for _, p := range m.Predict(e.Text) {
			if p < 0 || p > 1 {
				t.Errorf("%q: probability %v", e.Text, p)
			}
			sum += p
		}
		if math.Abs(sum-1) > 1e-9 {
			t.Errorf("%q: probabilities add up to %v", e.Text, sum)
		}
	}
}

func FuzzSplits(f *testing.F) {
	m := fasttext.Train(4, lines(rand.New(rand.NewPCG(1, 1)), 50), fasttext.Options{Epochs: 2})
	f.Add("The weather—don’t CLICK\nstock-price  sunshine", uint64(1))
	f.Add(strings.Repeat("rainé", 80)+"\xe6\x90 \xf0", uint64(2))
	f.Fuzz(func(t *testing.T, text string, seed uint64) {
		want := m.Predict(text)
		r := rand.New(rand.NewPCG(seed, 0))
		s := m.Stream()
		for p := []byte(text); len(p) > 0; {
			n := 1 + r.IntN(min(len(p), 7))
			s.Write(p[:n])
			p = p[n:]
		}
		s.End()
		got := s.Scores(nil)
		for i := range want {
			if got[i] != want[i] || math.IsNaN(got[i]) {
				t.Fatalf("in pieces %v, whole %v", got, want)
			}
		}
	})
}

func BenchmarkTrain(b *testing.B) {
	train := lines(rand.New(rand.NewPCG(1, 1)), 640)
	for b.Loop() {
		fasttext.Train(32, train, fasttext.Options{})
	}
}

func BenchmarkPredict(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	m := fasttext.Train(32, lines(r, 640), fasttext.Options{})
	line := []byte(fmt.Sprint(lines(r, 5)))
	s := m.Stream()
	var p []float64
	b.ReportAllocs()
	for b.Loop() {
		s.Reset()
		s.Write(line)
		s.End()
		p = s.Scores(p)
	}
}
