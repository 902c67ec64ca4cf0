// Package fasttext is a linear classifier of texts: the mean of the vectors of
// all words, pairs of words and pieces of words of a text, and a softmax over
// labels on top (Joulin et al., Bag of Tricks for Efficient Text Classification).
//
// The package keeps to these laws:
//
//   - Training is deterministic: the same examples, options and seed make the
//     same model on processors of one kind.
//   - What training has not seen has no say; a text without anything known is
//     given the labels' shares among the examples.
//   - A text that arrives in pieces, split anywhere, is scored as if it had come
//     at once.
package fasttext

import (
	"math"
	"math/rand/v2"
)

// An Example is a text with its label.
type Example struct {
	Label int
	Text  string
}

// Options say how to train. The zero value of a field stands for its default.
type Options struct {
	Dim    int     // of vectors; 32
	Epochs int     // passes over the examples; 25
	Rate   float64 // of learning at the beginning, from where it falls to 0; 1
	Seed   uint64
}

// A Model is a trained classifier. It is immutable and safe for concurrent use.
type Model struct {
	dim    int
	labels int
	rows   map[uint64]int32 // feature -> its row of in
	in     []float32        // vectors of features
	out    []float32        // and of labels
	prior  []float64        // the labels' shares among the examples
}

// Train returns a model of examples, whose labels are from 0 to labels-1.
func Train(labels int, examples []Example, o Options) *Model {
	if o.Dim <= 0 {
		o.Dim = 32
	}
	if o.Epochs <= 0 {
		o.Epochs = 25
	}
	if o.Rate <= 0 {
		o.Rate = 1
	}
	m := &Model{dim: o.Dim, labels: labels, rows: map[uint64]int32{}, out: make([]float32, labels*o.Dim), prior: make([]float64, labels)}
	lines := make([][]int32, len(examples))
	for i, e := range examples {
		var s splitter
		for _, f := range s.end(s.split([]byte(e.Text), nil)) {
			row, ok := m.rows[f]
			if !ok {
				row = int32(len(m.rows))
				m.rows[f] = row
			}
			lines[i] = append(lines[i], row)
		}
		m.prior[e.Label] += 1 / float64(len(examples))
	}
	r := rand.New(rand.NewPCG(o.Seed, 0x5eed))
	m.in = make([]float32, len(m.rows)*o.Dim)
	for i := range m.in {
		m.in[i] = (2*r.Float32() - 1) / float32(o.Dim)
	}
	m.learn(examples, lines, o, r)
	return m
}

// learn descends the gradient, example by example.
func (m *Model) learn(examples []Example, lines [][]int32, o Options, r *rand.Rand) {
	hidden, gradient, p := make([]float32, m.dim), make([]float32, m.dim), make([]float64, m.labels)
	steps, done := o.Epochs*len(examples), 0
	for range o.Epochs {
		for _, i := range r.Perm(len(examples)) {
			rate := float32(o.Rate * (1 - float64(done)/float64(steps)))
			done++
			line := lines[i]
			if len(line) == 0 {
				continue
			}
			inverse := 1 / float32(len(line))
			clear(hidden)
			for _, row := range line {
				add(hidden, m.row(row), 1)
			}
			scale(hidden, inverse)
			m.softmax(hidden, p)
			clear(gradient)
			for label := range m.labels {
				err := float32(-p[label])
				if label == examples[i].Label {
					err++
				}
				out := m.out[label*m.dim : (label+1)*m.dim]
				add(gradient, out, rate*err)
				add(out, hidden, rate*err)
			}
			for _, row := range line {
				add(m.row(row), gradient, inverse)
			}
		}
	}
}

func (m *Model) row(i int32) []float32 { return m.in[int(i)*m.dim : int(i+1)*m.dim] }

// softmax fills p with the probability of each label for a mean of vectors.
func (m *Model) softmax(hidden []float32, p []float64) {
	most := math.Inf(-1)
	for label := range p {
		p[label] = float64(dot(hidden, m.out[label*m.dim:(label+1)*m.dim]))
		most = max(most, p[label])
	}
	sum := 0.0
	for label := range p {
		p[label] = math.Exp(p[label] - most)
		sum += p[label]
	}
	for label := range p {
		p[label] /= sum
	}
}

// Labels returns how many labels there are.
func (m *Model) Labels() int { return m.labels }

// Bytes returns how much memory the vectors take.
func (m *Model) Bytes() int { return 4 * (len(m.in) + len(m.out)) }

// Predict returns the probability of each label for a whole text.
func (m *Model) Predict(text string) []float64 {
	s := m.Stream()
	s.Write([]byte(text))
	s.End()
	return s.Scores(nil)
}

// A Stream classifies one text as it arrives. It is used by one goroutine at a
// time.
type Stream struct {
	m      *Model
	split  splitter
	buf    []uint64
	sum    []float32
	mean   []float32
	n      int // features that are known
	unseen int
}

// Stream returns a stream at the beginning of a text.
func (m *Model) Stream() *Stream {
	return &Stream{m: m, sum: make([]float32, m.dim), mean: make([]float32, m.dim)}
}

// Reset goes back to the beginning of a text.
func (s *Stream) Reset() {
	clear(s.sum)
	s.split.reset()
	s.n, s.unseen = 0, 0
}

// Write reads the next piece of the text. A word counts when a space has ended
// it.
func (s *Stream) Write(p []byte) {
	s.buf = s.split.split(p, s.buf[:0])
	s.take()
}

// End says that the text is over: its last word has ended.
func (s *Stream) End() {
	s.buf = s.split.end(s.buf[:0])
	s.take()
}

func (s *Stream) take() {
	for _, f := range s.buf {
		if row, ok := s.m.rows[f]; ok {
			add(s.sum, s.m.row(row), 1)
			s.n++
		} else {
			s.unseen++
		}
	}
}

// Known returns which part of what the text has so far was seen in training.
func (s *Stream) Known() float64 {
	if s.n == 0 {
		return 0
	}
	return float64(s.n) / float64(s.n+s.unseen)
}

// Scores fills dst with the probability of each label as of now, and returns it.
func (s *Stream) Scores(dst []float64) []float64 {
	dst = append(dst[:0], s.m.prior...)
	if s.n == 0 {
		return dst
	}
	copy(s.mean, s.sum)
	scale(s.mean, 1/float32(s.n))
	s.m.softmax(s.mean, dst)
	return dst
}

// add adds k times x to dst.
func add(dst, x []float32, k float32) {
	x = x[:len(dst)]
	for i := range dst {
		dst[i] += k * x[i]
	}
}

func scale(x []float32, k float32) {
	for i := range x {
		x[i] *= k
	}
}

func dot(x, y []float32) (sum float32) {
	y = y[:len(x)]
	for i := range x {
		sum += x[i] * y[i]
	}
	return sum
}
