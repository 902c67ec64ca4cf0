package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/specbox/specbox/intent/encoder"
	"github.com/specbox/specbox/intent/fasttext"
	"github.com/specbox/specbox/intent/keyword"
	"github.com/specbox/specbox/intent/retrieval"
)

// RouterOptions say how to measure the routers.
type RouterOptions struct {
	Encoder  string        // folder with the encoder's model; "": weights are made up, which costs the same
	Install  bool          // fetch the model into that folder first, unless it is there
	Rounds   int           // 0 means 5
	For      time.Duration // that each cell is measured in a round; 0 means 200 ms
	Progress func(string)  // is told what is measured; may be nil
}

// A RouterReport is what a run of [Router] found. Its fields are those that
// scripts rely on; each is the median of the rounds.
type RouterReport struct {
	Keyword32       float64 `json:"keyword_ns_per_token_32"` // with so many servers
	Keyword1000     float64 `json:"keyword_ns_per_token_1000"`
	KeywordAllocs   float64 `json:"keyword_allocs_per_token"` // the greater of both
	Retrieval640    float64 `json:"retrieval_us_per_token_640"`
	Retrieval20000  float64 `json:"retrieval_us_per_token_20000"`
	RetrievalAllocs float64 `json:"retrieval_allocs_per_token"`
	Decision640     float64 `json:"retrieval_us_per_decision_640"` // to ask for the scores of all servers
	Decision20000   float64 `json:"retrieval_us_per_decision_20000"`
	EncoderMS       float64 `json:"encoder_ms"`  // 64 tokens
	FasttextMS      float64 `json:"fasttext_ms"` // 64 tokens

	Weights string        `json:"encoder_weights"` // "made up", or the model's folder
	CPUs    int           `json:"cpus"`
	Rounds  int           `json:"rounds"`
	Seconds float64       `json:"seconds"`
	Cells   []*RouterCell `json:"cells"`
}

// A RouterCell is one thing that was measured.
type RouterCell struct {
	Name   string  `json:"name"`
	Unit   string  `json:"unit"` // what a time is of
	Median float64 `json:"median_ns"`
	Low    float64 `json:"low_ns"` // the fastest round
	High   float64 `json:"high_ns"`
	Allocs float64 `json:"allocs"` // of a unit
	MB     float64 `json:"mb"`     // of tables that are read; 0 where it was not asked

	run    func() // does so many units:
	units  int
	rounds []float64
}

// A text of the benchmark is of so many tokens of four bytes.
const (
	tokenBytes = 4
	textTokens = 300
	lineTokens = 64 // of what is encoded or classified at once
)

// Router measures what the routers cost, one after another in each round, in time
// of the processor and on this goroutine alone. Texts, keywords and exemplars are made up, the same each time.
func Router(ctx context.Context, o RouterOptions) (*RouterReport, error) {
	if o.Rounds <= 0 {
		o.Rounds = 5
	}
	if o.For <= 0 {
		o.For = 200 * time.Millisecond
	}
	began := time.Now()
	r := &RouterReport{CPUs: runtime.NumCPU(), Rounds: o.Rounds, Weights: "made up"}
	enc, err := openEncoder(ctx, o)
	if err != nil {
		return nil, err
	}
	if o.Encoder != "" {
		r.Weights = o.Encoder
	}
	defer enc.Close()
	var failure error
	encode := func() {
		if _, err := enc.EncodeTokens(slices.Repeat([]int32{2003}, lineTokens)); err != nil {
			failure = err
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	runtime.LockOSThread() // whose time is measured
	defer runtime.UnlockOSThread()
	kw32, kw1000 := keywordCell(32), keywordCell(1000)
	rt640, ask640 := retrievalCells(640)
	rt20000, ask20000 := retrievalCells(20000)
	ft := fasttextCell()
	en := &RouterCell{Name: "encoder", Unit: "text of 64 tokens", run: encode, units: 1}
	r.Cells = []*RouterCell{kw32, kw1000, rt640, ask640, rt20000, ask20000, ft, en}
	for round := range o.Rounds {
		for _, c := range r.Cells {
			if o.Progress != nil {
				o.Progress(fmt.Sprintf("round %d of %d: %s", round+1, o.Rounds, c.Name))
			}
			if err := errors.Join(c.measure(o.For), failure, ctx.Err()); err != nil {
				return nil, err
			}
		}
	}
	for _, c := range r.Cells {
		c.Median, c.Low, c.High = median(c.rounds), slices.Min(c.rounds), slices.Max(c.rounds)
	}
	r.Keyword32, r.Keyword1000, r.KeywordAllocs = kw32.Median, kw1000.Median, max(kw32.Allocs, kw1000.Allocs)
	r.Retrieval640, r.Retrieval20000, r.RetrievalAllocs = rt640.Median/1e3, rt20000.Median/1e3, max(rt640.Allocs, rt20000.Allocs)
	r.Decision640, r.Decision20000 = ask640.Median/1e3, ask20000.Median/1e3
	r.EncoderMS, r.FasttextMS = en.Median/1e6, ft.Median/1e6
	r.Seconds = time.Since(began).Seconds()
	return r, nil
}

// openEncoder opens the model, or makes up one that costs the same.
func openEncoder(ctx context.Context, o RouterOptions) (*encoder.Encoder, error) {
	if o.Encoder == "" {
		return encoder.Random(1), nil
	}
	if o.Install {
		if o.Progress != nil {
			o.Progress("fetching the encoder's model, unless it is there")
		}
		if err := encoder.Install(ctx, o.Encoder); err != nil {
			return nil, err
		}
	}
	return encoder.Open(o.Encoder)
}

// measure runs a cell for a while, and counts its allocations.
func (c *RouterCell) measure(span time.Duration) error {
	c.run() // so that memory is there, and caches are as they will be
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	c.run()
	runtime.ReadMemStats(&after)
	c.Allocs = float64(after.Mallocs-before.Mallocs) / float64(c.units)
	began, err := threadTime()
	if err != nil {
		return err
	}
	for n := 1; ; n++ {
		c.run()
		now, err := threadTime()
		if err != nil {
			return err
		}
		if took := now - began; took >= span {
			c.rounds = append(c.rounds, float64(took.Nanoseconds())/float64(n*c.units))
			return nil
		}
	}
}

// threadTime returns the time that this thread has had a processor. What else
// the machine does is not in it, except for the caches that it takes.
func threadTime() (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		return 0, fmt.Errorf("read the time of a thread: %w", err)
	}
	return time.Duration(t.Nano()), nil
}

// vocabulary makes up n words.
func vocabulary(r *rand.Rand, n int) []string {
	syllables := strings.Fields("ba con der es fi gra hol in jo kel lu men nor op pra qui res sta tion un ver wes xi yo zan ter al ing")
	words := make([]string, n)
	for i := range words {
		for range 1 + r.IntN(3) + i/(n/2+1) {
			words[i] += syllables[r.IntN(len(syllables))]
		}
	}
	return words
}

// speech is a source of text: few words are frequent, most are rare.
type speech struct {
	words []string
	zipf  *rand.Zipf
}

func newSpeech(seed uint64) *speech {
	r := rand.New(rand.NewPCG(seed, 1))
	words := vocabulary(r, 5000)
	return &speech{words, rand.NewZipf(r, 1.1, 8, uint64(len(words)-1))}
}

// text returns n words.
func (s *speech) text(n int) string {
	var b strings.Builder
	for range n {
		b.WriteString(s.words[s.zipf.Uint64()])
		b.WriteByte(' ')
	}
	return b.String()
}

// tokens returns so many tokens of text.
func (s *speech) tokens(n int) [][]byte {
	text := []byte(s.text(4 * n))
	var out [][]byte
	for ; len(out) < n; text = text[tokenBytes:] {
		out = append(out, text[:tokenBytes:tokenBytes])
	}
	return out
}

// keywordCell reads texts with so many servers of 30 keywords, each third of
// them a phrase. A third of the keywords are words that the texts have.
func keywordCell(servers int) *RouterCell {
	s := newSpeech(1)
	r := rand.New(rand.NewPCG(1, uint64(servers)))
	rare := vocabulary(r, 20*servers)
	profiles := make([]keyword.Profile, servers)
	for i := range profiles {
		profiles[i].Server = fmt.Sprint(i)
		for k := range 30 {
			text := rare[r.IntN(len(rare))]
			switch k % 3 {
			case 0:
				text = s.words[100+r.IntN(len(s.words)-100)]
			case 1:
				text += " " + rare[r.IntN(len(rare))]
			}
			profiles[i].Patterns = append(profiles[i].Patterns, keyword.Pattern{Text: text, Weight: 1})
		}
	}
	a := keyword.New(profiles)
	tokens := s.tokens(textTokens * 20)
	stream, counter, hits := a.Stream(), a.Counter(), make([]keyword.Hit, 0, 256)
	return &RouterCell{
		Name: fmt.Sprintf("keyword, %d servers", servers), Unit: "token", units: len(tokens), MB: float64(a.Bytes()) / 1e6,
		run: func() {
			for i, t := range tokens {
				if i%textTokens == 0 {
					stream.Reset()
					counter.Reset()
				}
				hits = stream.Write(t, hits[:0])
				counter.Add(hits)
			}
		},
	}
}

// retrievalCells score texts as they arrive against so many exemplars of 32
// servers, and ask for the scores.
func retrievalCells(exemplars int) (write, ask *RouterCell) {
	s := newSpeech(2)
	known := make([]retrieval.Exemplar, exemplars)
	for i := range known {
		known[i] = retrieval.Exemplar{Server: i % 32, Text: s.text(12)}
	}
	x := retrieval.New(32, known).Index(retrieval.Options{})
	tokens := s.tokens(textTokens * 4)
	stream := x.Stream()
	var scores []retrieval.Score
	write = &RouterCell{
		Name: fmt.Sprintf("retrieval, %d exemplars", exemplars), Unit: "token", units: len(tokens), MB: float64(x.Base().Bytes()) / 1e6,
		run: func() {
			for i, t := range tokens {
				if i%textTokens == 0 {
					stream.Reset()
				}
				stream.Write(t)
			}
		},
	}
	ask = &RouterCell{
		Name: fmt.Sprintf("retrieval, %d exemplars", exemplars), Unit: "decision", units: 1,
		run: func() { scores = stream.Scores(scores) },
	}
	return write, ask
}

// fasttextCell classifies a text among 32 servers, with a model that was trained
// with 20 texts of each.
func fasttextCell() *RouterCell {
	s := newSpeech(3)
	examples := make([]fasttext.Example, 640)
	for i := range examples {
		examples[i] = fasttext.Example{Label: i % 32, Text: s.text(12)}
	}
	m := fasttext.Train(32, examples, fasttext.Options{Epochs: 3})
	line := slices.Concat(s.tokens(lineTokens)...)
	stream := m.Stream()
	var scores []float64
	return &RouterCell{
		Name: "fasttext, 32 servers", Unit: "text of 64 tokens", units: 1, MB: float64(m.Bytes()) / 1e6,
		run: func() {
			stream.Reset()
			stream.Write(line)
			stream.End()
			scores = stream.Scores(scores)
		},
	}
}
