package intent

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/specbox/specbox/intent/encoder"
	"github.com/specbox/specbox/intent/fasttext"
	"github.com/specbox/specbox/intent/keyword"
	"github.com/specbox/specbox/intent/retrieval"
)

// keywords fires for the servers of which gamma different keywords were read.
type keywords struct {
	automaton *keyword.Automaton
	gamma     int
}

func newKeywords(servers []Server, gamma int) *keywords {
	var ks []keyword.Server
	for _, s := range servers {
		k := keyword.Server{Name: s.Name, Description: s.Description, Keywords: s.Keywords}
		for _, t := range s.Tools {
			kt := keyword.Tool{Name: t.Name, Description: t.Description}
			for _, p := range t.Params {
				kt.Params = append(kt.Params, keyword.Param{Name: p.Name, Description: p.Description})
			}
			k.Tools = append(k.Tools, kt)
		}
		ks = append(ks, k)
	}
	return &keywords{keyword.New(keyword.Derive(ks)), gamma}
}

func (k *keywords) source() string { return "keyword" }
func (k *keywords) learn(Step)     {}
func (k *keywords) begin() reader {
	return &keywordReader{k: k, stream: k.automaton.Stream(), counter: k.automaton.Counter()}
}

type keywordReader struct {
	k       *keywords
	stream  *keyword.Stream
	counter *keyword.Counter
	hits    []keyword.Hit
	all     []keyword.Hit // what counted first, for who asks why
}

// told is how many hits are kept to be told of.
const told = 256

func (r *keywordReader) text(p []byte) { r.count(r.stream.Write(p, r.hits[:0])) }
func (r *keywordReader) turn()         { r.count(r.stream.End(r.hits[:0])) }

func (r *keywordReader) count(hits []keyword.Hit) {
	r.hits = hits
	r.counter.Add(hits)
	r.all = append(r.all, hits[:min(len(hits), told-len(r.all))]...)
}

func (r *keywordReader) read(dst []opinion) {
	clear(dst)
	for _, s := range r.counter.Touched() {
		w := r.counter.Weight(int(s))
		dst[s] = opinion{score: w / (1 + w), part: r.counter.Share(int(s)), fired: r.counter.Distinct(int(s)) >= r.k.gamma}
	}
}

func (r *keywordReader) why(server int) string {
	words := r.k.automaton.Keywords(server, r.all)
	if len(words) == 0 {
		return ""
	}
	return "keywords " + strings.Join(words, ", ")
}

// exemplars are the texts of servers that say what they are for.
func exemplars(servers []Server) []retrieval.Exemplar {
	var all []retrieval.Exemplar
	for i, s := range servers {
		all = append(all, retrieval.Exemplar{Server: i, Text: s.Name + " " + s.Description})
		for _, t := range s.Tools {
			all = append(all, retrieval.Exemplar{Server: i, Text: s.Name + " " + t.Name + " " + t.Description})
		}
		for _, u := range s.Templates {
			all = append(all, retrieval.Exemplar{Server: i, Text: u})
		}
	}
	return all
}

// lessonText is what of a step teaches a router about its calls.
func lessonText(s *Step) string {
	var b strings.Builder
	for _, seg := range s.Text {
		b.WriteString(seg.Text)
		b.WriteByte('\n')
	}
	return strings.TrimSpace(b.String())
}

// retriever fires for servers of which a text is known that is like this one.
type retriever struct {
	places    map[string]int
	exemplars []retrieval.Exemplar
	index     *retrieval.Index
	threshold float64
}

func newRetriever(servers []Server, threshold float64) *retriever {
	ex := exemplars(servers)
	return &retriever{
		places: placesOf(servers), exemplars: ex, threshold: threshold,
		index: retrieval.New(len(servers), ex).Index(retrieval.Options{}),
	}
}

func placesOf(servers []Server) map[string]int {
	m := make(map[string]int, len(servers))
	for i, s := range servers {
		m[s.Name] = i
	}
	return m
}

func (r *retriever) source() string { return "retrieval" }

func (r *retriever) learn(s Step) {
	text := lessonText(&s)
	if text == "" {
		return
	}
	for _, name := range s.Called {
		if i, ok := r.places[name]; ok {
			r.index.Add(retrieval.Exemplar{Server: i, Text: text})
		}
	}
}

func (r *retriever) begin() reader { return &retrievalReader{r: r, stream: r.index.Stream()} }

type retrievalReader struct {
	r      *retriever
	stream *retrieval.Stream
	scores []retrieval.Score
}

func (r *retrievalReader) text(p []byte) { r.stream.Write(p) }
func (r *retrievalReader) turn()         { r.stream.End() }

func (r *retrievalReader) read(dst []opinion) {
	r.scores = r.stream.Scores(r.scores)
	for i, s := range r.scores {
		dst[i] = opinion{score: s.Best, part: s.Best, fired: s.Best >= r.r.threshold}
	}
}

func (r *retrievalReader) why(server int) string {
	s := r.scores[server]
	if s.Best == 0 {
		return ""
	}
	if s.Nearest < 0 {
		return fmt.Sprintf("%.2f like what came before an earlier call", s.Best)
	}
	return fmt.Sprintf("%.2f like %q", s.Best, brief(r.r.exemplars[s.Nearest].Text))
}

// brief cuts a text to what fits into a line.
func brief(s string) string {
	const most = 80
	runes := []rune(strings.Join(strings.Fields(s), " "))
	if len(runes) <= most {
		return string(runes)
	}
	return string(runes[:most-1]) + "…"
}

// classifier fires for servers to which fastText gives enough probability.
type classifier struct {
	model     *fasttext.Model
	threshold float64
}

func newClassifier(servers []Server, sessions []Session, threshold float64, seed uint64) *classifier {
	places := placesOf(servers)
	var all []fasttext.Example
	for _, e := range exemplars(servers) {
		all = append(all, fasttext.Example{Label: e.Server, Text: e.Text})
	}
	for _, se := range sessions {
		for i := range se.Steps {
			text := lessonText(&se.Steps[i])
			for _, name := range se.Steps[i].Called {
				if p, ok := places[name]; ok && text != "" {
					all = append(all, fasttext.Example{Label: p, Text: text})
				}
			}
		}
	}
	return &classifier{fasttext.Train(len(servers), all, fasttext.Options{Seed: seed}), threshold}
}

func (c *classifier) source() string { return "fasttext" }
func (c *classifier) learn(Step)     {}
func (c *classifier) begin() reader  { return &classifierReader{c: c, stream: c.model.Stream()} }

type classifierReader struct {
	c      *classifier
	stream *fasttext.Stream
	scores []float64
}

func (r *classifierReader) text(p []byte) { r.stream.Write(p) }
func (r *classifierReader) turn()         { r.stream.End() }

func (r *classifierReader) read(dst []opinion) {
	r.scores = r.stream.Scores(r.scores)
	known := r.stream.Known()
	for i, p := range r.scores {
		if known == 0 {
			p = 0 // shares among examples are no evidence
		}
		dst[i] = opinion{score: p, part: p, fired: p >= r.c.threshold}
	}
}

func (r *classifierReader) why(server int) string {
	return fmt.Sprintf("probability %.2f by its words", r.scores[server])
}

// meaning fires for servers of which a text is known that means the same.
type meaning struct {
	encoder   *encoder.Encoder
	places    map[string]int
	threshold float64

	mu      sync.RWMutex
	base    []vector
	learned []vector // the oldest first; bounded
}

type vector struct {
	server int
	v      []float32
}

// meanings is how many learned vectors are kept.
const meanings = 500

func newMeaning(servers []Server, e *encoder.Encoder, threshold float64) (*meaning, error) {
	m := &meaning{encoder: e, places: placesOf(servers), threshold: threshold}
	for i, s := range servers {
		var tools []string
		for _, t := range s.Tools {
			tools = append(tools, t.Name)
		}
		texts := append([]string{s.Name + ": " + s.Description + " " + strings.Join(tools, ", ")}, s.Templates...)
		for _, text := range texts {
			v, err := e.Encode(text)
			if err != nil {
				return nil, fmt.Errorf("encoder: server %q: %w", s.Name, err)
			}
			m.base = append(m.base, vector{i, v})
		}
	}
	return m, nil
}

func (m *meaning) source() string { return "encoder" }

func (m *meaning) learn(s Step) {
	text := lessonText(&s)
	if text == "" || len(s.Called) == 0 {
		return
	}
	v, err := m.encoder.EncodeEnd(text, looked)
	if err != nil {
		return // no router has errors: it just has not learned
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range s.Called {
		if i, ok := m.places[name]; ok {
			m.learned = append(m.learned, vector{i, v})
		}
	}
	if over := len(m.learned) - meanings; over > 0 {
		m.learned = slices.Delete(m.learned, 0, over)
	}
}

func (m *meaning) begin() reader { return &meaningReader{m: m} }

// A meaningReader encodes the text anew when enough has come in: that costs
// milliseconds.
type meaningReader struct {
	m       *meaning
	buf     []byte
	encoded int // bytes of buf when it was encoded last
	scores  []float64
}

const (
	tail   = 1000        // bytes of the text that are kept, the last ones
	looked = 64          // tokens of it that are encoded: what was written last
	renew  = 4 * Cadence // new bytes that are worth encoding anew
)

func (r *meaningReader) text(p []byte) {
	r.buf = append(r.buf, p...)
	if len(r.buf) > 2*tail {
		cut := len(r.buf) - tail
		r.buf = append(r.buf[:0], r.buf[cut:]...)
		r.encoded = max(0, r.encoded-cut)
	}
}

func (r *meaningReader) turn() { r.text([]byte{'\n'}); r.encoded = 0 }

func (r *meaningReader) read(dst []opinion) {
	clear(dst)
	if len(r.buf) > 0 && (r.scores == nil || r.encoded == 0 || len(r.buf)-r.encoded >= renew) {
		r.encode(len(dst))
	}
	for i, s := range r.scores {
		dst[i] = opinion{score: max(0, s), part: max(0, s), fired: s >= r.m.threshold}
	}
}

func (r *meaningReader) encode(servers int) {
	r.encoded = len(r.buf)
	text := strings.ToValidUTF8(string(r.buf[max(0, len(r.buf)-tail):]), "")
	v, err := r.m.encoder.EncodeEnd(text, looked)
	if err != nil {
		return
	}
	r.scores = make([]float64, servers)
	for i := range r.scores {
		r.scores[i] = -1
	}
	r.m.mu.RLock()
	defer r.m.mu.RUnlock()
	for _, list := range [][]vector{r.m.base, r.m.learned} {
		for _, b := range list {
			r.scores[b.server] = max(r.scores[b.server], encoder.Similarity(v, b.v))
		}
	}
}

func (r *meaningReader) why(server int) string {
	if r.scores == nil {
		return ""
	}
	return fmt.Sprintf("%.2f alike in meaning", r.scores[server])
}
