package retrieval_test

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/specbox/specbox/intent/retrieval"
)

var exemplars = []retrieval.Exemplar{
	{0, "Forecast of the weather in a city, with temperature and rain"},
	{0, "current weather conditions"},
	{1, "Read PDF files and extract their text"},
	{1, "pages of a PDF document"},
	{2, "Search the web for pages about a topic"},
	{2, "搜索网页 web search"},
	{3, "Move, copy and delete files of a folder"},
}

// write scores a text that comes in pieces.
func write(x *retrieval.Index, pieces ...string) []retrieval.Score {
	s := x.Stream()
	for _, p := range pieces {
		s.Write([]byte(p))
	}
	s.End()
	return s.Scores(nil)
}

// best returns the server that a text is most like.
func best(scores []retrieval.Score) int {
	at := 0
	for i, s := range scores {
		if s.Best > scores[at].Best {
			at = i
		}
	}
	return at
}

func TestNearestServerIsTheOneThatIsSpokenOf(t *testing.T) {
	x := retrieval.New(4, exemplars).Index(retrieval.Options{})
	for text, want := range map[string]int{
		"What will the WEATHER be tomorrow? Let me get a forecast for the city.": 0,
		"I extract the text of this pdf":                                         1,
		"Let me search the web":                                                  2,
		"网页搜索":                                                                   2,
		"I will delete the folder":                                               3,
		"temperatures of rainy cities":                                           0, // no word in common, pieces of them
		"forecast-of_rain/in_the_city,please":                                    0,
	} {
		scores := x.Score(text)
		if got := best(scores); got != want {
			t.Errorf("%q is most like %d, want %d: %+v", text, got, want, scores)
		}
		share := 0.0
		for i, s := range scores {
			share += s.Share
			if s.Best < 0 || s.Best > 1 || i == want && s.Margin <= 0 || i != want && s.Margin > 0 {
				t.Errorf("%q: server %d scores %+v", text, i, s)
			}
		}
		if math.Abs(share-1) > 1e-6 {
			t.Errorf("%q: shares add up to %v", text, share)
		}
		if n := scores[want].Nearest; exemplars[n].Server != want {
			t.Errorf("%q: the nearest exemplar is %d", text, n)
		}
	}
	for _, s := range x.Score("") {
		if s.Best != 0 || s.Share != 0 || s.Nearest != -1 {
			t.Errorf("no text scores %+v", s)
		}
	}
	if s := x.Score(exemplars[2].Text)[1]; s.Best < 0.9999 {
		t.Errorf("an exemplar is like itself by %v", s.Best)
	}
}

// A plain computation of the same, as the definition has it.
func plain(exemplars []retrieval.Exemplar, text string) []float64 {
	n := float64(len(exemplars))
	features := func(text string) map[string]float64 {
		m := map[string]float64{}
		last := ""
		for _, w := range strings.Fields(strings.ToLower(text)) {
			m["w "+w]++
			if strings.Contains(" a of the in and with their for about ", " "+w+" ") {
				last = ""
			} else {
				if last != "" {
					m["p "+last+" "+w]++
				}
				last = w
			}
			padded := " " + w + " "
			for k := 3; k <= 5; k++ {
				for i := 0; i+k <= len(padded); i++ {
					m["c "+padded[i:i+k]]++
				}
			}
		}
		for f, k := range m {
			m[f] = 1 + math.Log(k)
		}
		return m
	}
	df := map[string]float64{}
	var docs []map[string]float64
	for _, e := range exemplars {
		docs = append(docs, features(e.Text))
		for f := range docs[len(docs)-1] {
			df[f]++
		}
	}
	vector := func(m map[string]float64) (map[string]float64, float64) {
		v, norm := map[string]float64{}, 0.0
		for f, k := range m {
			if df[f] == 0 {
				continue
			}
			w := k * (math.Log((1+n)/(1+df[f])) + 0.1)
			if f[0] == 'c' {
				w *= 0.5
			}
			v[f] = w
			norm += w * w
		}
		return v, math.Sqrt(norm)
	}
	q, qn := vector(features(text))
	out := make([]float64, 4)
	for i, doc := range docs {
		d, dn := vector(doc)
		dot := 0.0
		for f, w := range q {
			dot += w * d[f]
		}
		if qn > 0 {
			out[exemplars[i].Server] = max(out[exemplars[i].Server], dot/qn/dn)
		}
	}
	return out
}

func TestIncrementalScoresAreThoseOfTheWholeText(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	words := strings.Fields("forecast of the weather rain city pdf files extract text pages web search topic move copy folder document")
	var known []retrieval.Exemplar
	for i := range 40 {
		var b strings.Builder
		for range 3 + r.IntN(8) {
			b.WriteString(words[r.IntN(len(words))] + " ")
		}
		known = append(known, retrieval.Exemplar{Server: i % 4, Text: b.String()})
	}
	x := retrieval.New(4, known).Index(retrieval.Options{})
	for range 50 {
		var text strings.Builder
		for range 1 + r.IntN(40) {
			text.WriteString(words[r.IntN(len(words))] + " ")
		}
		got := write(x, pieces(r, text.String())...)
		for i, want := range plain(known, text.String()) {
			if math.Abs(got[i].Best-want) > 1e-5 {
				t.Fatalf("%q: server %d scores %v, want %v", text.String(), i, got[i].Best, want)
			}
		}
	}
}

// pieces splits a text at random.
func pieces(r *rand.Rand, text string) []string {
	var out []string
	for len(text) > 0 {
		n := 1 + r.IntN(min(len(text), 7))
		out, text = append(out, text[:n]), text[n:]
	}
	return out
}

func FuzzSplits(f *testing.F) {
	x := retrieval.New(4, exemplars).Index(retrieval.Options{})
	x.Add(retrieval.Exemplar{Server: 3, Text: "déjà vu: don’t 搜 files"})
	f.Add("Search the web, don’t read the PDF—搜索 Déjà vu", uint64(1))
	f.Add("\xe6\x90 weather\xff \xf0\x9f\x98", uint64(2))
	f.Fuzz(func(t *testing.T, text string, seed uint64) {
		want := write(x, text)
		got := write(x, pieces(rand.New(rand.NewPCG(seed, 0)), text)...)
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("in pieces %+v, whole %+v", got[i], want[i])
			}
			if math.IsNaN(want[i].Best) || math.IsNaN(want[i].Share) {
				t.Fatalf("scores %+v", want[i])
			}
		}
	})
}

func TestLearnedExemplarsCountForLaterTexts(t *testing.T) {
	base := retrieval.New(4, exemplars)
	mine, other := base.Index(retrieval.Options{}), base.Index(retrieval.Options{})
	const text = "Let me consult the oracle of Delphi"
	before := mine.Stream()
	mine.Add(retrieval.Exemplar{Server: 3, Text: "consult the oracle of delphi now"})
	before.Write([]byte(text))
	before.End()
	if s := before.Scores(nil)[3]; s.Best > 0.2 {
		t.Errorf("a stream sees what was learned after it began: %+v", s)
	}
	if s := mine.Score(text); best(s) != 3 || s[3].Best < 0.5 || s[3].Nearest != -1 {
		t.Errorf("what was learned does not count: %+v", s)
	}
	if s := other.Score(text)[3]; s.Best > 0.2 {
		t.Errorf("another tenant sees it: %+v", s)
	}
	before.Reset()
	before.Write([]byte(text))
	before.End()
	if s := before.Scores(nil)[3]; s.Best < 0.5 {
		t.Errorf("a stream that begins anew does not see it: %+v", s)
	}
	mine.Forget(3)
	if s := before.Scores(nil)[3]; s.Best > 0.2 {
		t.Errorf("it is not forgotten: %+v", s)
	}
}

func TestWhatIsLearnedIsBoundedAndTheOldestGoes(t *testing.T) {
	x := retrieval.New(4, nil).Index(retrieval.Options{Learned: 5, PerServer: 3})
	for _, w := range strings.Fields("alpha bravo charlie delta") {
		x.Add(retrieval.Exemplar{Server: 0, Text: w})
	}
	knows := func(word string, server int) bool { return x.Score(word)[server].Best > 0.9 }
	if knows("alpha", 0) || !knows("bravo", 0) || !knows("delta", 0) {
		t.Error("of a server's exemplars the oldest does not go, or another does")
	}
	x.Add(retrieval.Exemplar{Server: 0, Text: "delta"}) // known: nothing has to go
	if !knows("bravo", 0) {
		t.Error("a text that was known pushed another out")
	}
	x.Add(retrieval.Exemplar{Server: 0, Text: "bravo"}) // is the newest again
	x.Add(retrieval.Exemplar{Server: 1, Text: "echo"})
	x.Add(retrieval.Exemplar{Server: 2, Text: "foxtrot"})
	x.Add(retrieval.Exemplar{Server: 3, Text: "golf"})
	if knows("charlie", 0) || !knows("bravo", 0) || !knows("golf", 3) {
		t.Error("of all exemplars the oldest does not go, or another does")
	}
	if n := len(x.Save()); n != 5 {
		t.Errorf("%d exemplars are kept, want 5", n)
	}
	x.Add(retrieval.Exemplar{Server: 9, Text: "hotel"})
	x.Add(retrieval.Exemplar{Server: 1, Text: " - "})
	if n := len(x.Save()); n != 5 || !knows("delta", 0) {
		t.Error("what cannot be learned pushed something out")
	}
}

func TestWhatIsCommonBecomesLight(t *testing.T) {
	x := retrieval.New(1, nil).Index(retrieval.Options{})
	for _, w := range strings.Fields("alpha bravo charlie delta foxtrot golf hotel india") {
		x.Add(retrieval.Exemplar{Text: "everyone says " + w})
	}
	if s := x.Score("alpha")[0].Best; s < 0.85 {
		t.Errorf("the one telling word of the first exemplar makes it like by %v", s)
	}
}

func TestWhatIsLearnedFades(t *testing.T) {
	x := retrieval.New(2, nil).Index(retrieval.Options{HalfLife: 2})
	x.Add(retrieval.Exemplar{Server: 0, Text: "alpha"})
	fresh := x.Score("alpha")[0].Best
	x.Add(retrieval.Exemplar{Server: 1, Text: "bravo"})
	x.Add(retrieval.Exemplar{Server: 1, Text: "charlie"})
	if old := x.Score("alpha")[0].Best; math.Abs(old-fresh/2) > 1e-3 {
		t.Errorf("scores %v when fresh, %v after two more, want half", fresh, old)
	}
}

func TestSavedExemplarsAreTheSameAgain(t *testing.T) {
	base := retrieval.New(4, exemplars)
	x := base.Index(retrieval.Options{})
	x.Add(retrieval.Exemplar{Server: 3, Text: "consult the oracle, the oracle of delphi"})
	x.Add(retrieval.Exemplar{Server: 1, Text: "read the papyrus"})
	b, err := json.Marshal(x.Save())
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(b), "oracle") {
		t.Error("the words of a text were saved")
	}
	var saved []retrieval.Learned
	if err := json.Unmarshal(b, &saved); err != nil {
		t.Fatal(err)
	}
	again := base.Index(retrieval.Options{})
	again.Restore(append(saved, retrieval.Learned{Server: 1, Features: []uint64{3}}, retrieval.Learned{Server: -1, Features: []uint64{1}, Counts: []uint32{1}}))
	for _, text := range []string{"the oracle", "papyrus to read"} {
		want, got := x.Score(text), again.Score(text)
		for i := range want {
			if math.Abs(got[i].Best-want[i].Best) > 1e-6 {
				t.Errorf("%q: server %d scored %v, and %v when restored", text, i, want[i].Best, got[i].Best)
			}
		}
	}
}

func TestIndexIsSafeForConcurrentUse(t *testing.T) {
	x := retrieval.New(4, exemplars).Index(retrieval.Options{Learned: 8, PerServer: 4})
	var work sync.WaitGroup
	for g := range 4 {
		work.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 0))
			s := x.Stream()
			for i := range 100 {
				e := exemplars[r.IntN(len(exemplars))]
				switch r.IntN(6) {
				case 0:
					x.Add(retrieval.Exemplar{Server: e.Server, Text: e.Text + string(rune('a'+i%26))})
				case 1:
					x.Forget(r.IntN(4))
				case 2:
					x.Restore(x.Save())
				case 3:
					s.Reset()
				default:
					s.Write([]byte(e.Text))
					for _, sc := range s.Scores(nil) {
						if math.IsNaN(sc.Best) || sc.Best < 0 || sc.Best > 1 {
							t.Errorf("scores %+v", sc)
						}
					}
				}
			}
		})
	}
	work.Wait()
}

func TestLongTextsAreBounded(t *testing.T) {
	x := retrieval.New(4, exemplars).Index(retrieval.Options{})
	r := rand.New(rand.NewPCG(1, 1))
	s := x.Stream()
	var p []byte
	for range 60000 {
		p = utf8.AppendRune(p, rune('a'+r.IntN(20000)))
	}
	s.Write(p)
	s.Write([]byte(" weather forecast"))
	s.End()
	s.Scores(nil)
	s.Reset()
	s.Write([]byte("weather forecast"))
	if got := best(s.Scores(nil)); got != 0 {
		t.Errorf("after a long text the weather is like %d", got)
	}
}
