package retrieval

import "math"

// A Score says how much a text is like the exemplars of a server.
type Score struct {
	Best    float64 // the greatest similarity, in [0, 1]
	Share   float64 // of the similarity of the nearest exemplars of all servers
	Margin  float64 // Best less the best of the other servers
	Nearest int     // the exemplar that is most like it: an index into those of the base; -1: one that was learned, or none
}

// neighbours is how many exemplars share a text among their servers.
const neighbours = 10

// mostFeatures is how many different features of a text are looked at.
const mostFeatures = 1 << 15

// A Stream scores one text as it arrives. It is used by one goroutine at a time.
type Stream struct {
	x     *Index
	gen   uint64
	read  reader
	buf   []uint64
	base  []float32 // dot product with each exemplar of the base
	more  []float32 // and with each learned one
	norm  float64   // square of the length of the text's vector
	known []known   // a table of features that the text has
	used  int
	near  []near
}

// known is a feature that a text has.
type known struct {
	feature uint64 // 0: free
	weight  float32
	n       uint32
	id      int32 // in the base; -1: not there
}

// Stream returns a stream at the beginning of a text.
func (x *Index) Stream() *Stream {
	s := &Stream{x: x, base: make([]float32, len(x.base.labels)), known: make([]known, 1024)}
	s.begin()
	return s
}

func (s *Stream) begin() {
	s.x.mu.RLock()
	s.gen = s.x.gen
	n := len(s.x.slots)
	s.x.mu.RUnlock()
	if cap(s.more) < n {
		s.more = make([]float32, n)
	}
	s.more = s.more[:n]
}

// Reset goes back to the beginning of a text, and sees what was learned since.
func (s *Stream) Reset() {
	clear(s.base)
	clear(s.more)
	clear(s.known)
	s.read, s.norm, s.used = reader{}, 0, 0
	s.begin()
}

// Write reads the next piece of the text.
func (s *Stream) Write(p []byte) {
	s.buf = s.read.read(p, s.buf[:0])
	s.take()
}

// End says that the text is over: its last word has ended. Whoever then goes on
// writing begins a new sentence.
func (s *Stream) End() {
	s.buf = s.read.end(s.buf[:0])
	s.take()
}

// take scores the features in buf.
func (s *Stream) take() {
	if len(s.buf) == 0 {
		return
	}
	x := s.x
	x.mu.RLock()
	defer x.mu.RUnlock()
	b := x.base
	learning := len(x.order) > 0
	for _, f := range s.buf {
		k := s.find(f)
		if k == nil {
			continue
		}
		if k.n == 0 {
			k.weight, k.id = x.look(f)
		}
		k.n++
		if k.weight == 0 {
			continue
		}
		before, now := damp(k.n-1), damp(k.n)
		s.norm += float64(k.weight) * float64(k.weight) * float64(now*now-before*before)
		gain := k.weight * (now - before)
		if k.id >= 0 {
			scores := s.base
			for _, p := range b.posts[b.feats[k.id].posts:b.feats[k.id+1].posts] {
				scores[p.doc] += gain * p.weight
			}
		}
		if !learning {
			continue
		}
		if l := x.feats[f]; l != nil {
			for _, p := range l.posts {
				if x.slots[p.doc].born <= s.gen {
					s.more[p.doc] += gain * p.weight
				}
			}
		}
	}
}

// find returns what is known of a feature, which may be new; nil if the text
// has too many.
func (s *Stream) find(f uint64) *known {
	mask := uint64(len(s.known) - 1)
	i := f & mask
	for s.known[i].feature != 0 {
		if s.known[i].feature == f {
			return &s.known[i]
		}
		i = (i + 1) & mask
	}
	if s.used == mostFeatures {
		return nil
	}
	if s.used++; 2*s.used > len(s.known) {
		old := s.known
		s.known = make([]known, 2*len(old))
		mask = uint64(len(s.known) - 1)
		for _, k := range old {
			if k.feature != 0 {
				j := k.feature & mask
				for s.known[j].feature != 0 {
					j = (j + 1) & mask
				}
				s.known[j] = k
			}
		}
		for i = f & mask; s.known[i].feature != 0; {
			i = (i + 1) & mask
		}
	}
	s.known[i].feature = f
	return &s.known[i]
}

// near is an exemplar that is near.
type near struct {
	similarity float32
	server     int32
}

// Scores fills dst with the score of each server as of now, and returns it.
// Likeness to what was learned is the less the older that is, if the index says
// so.
func (s *Stream) Scores(dst []Score) []Score {
	b := s.x.base
	dst = dst[:0]
	for range b.servers {
		dst = append(dst, Score{Nearest: -1})
	}
	if s.norm == 0 {
		return dst
	}
	inverse := float32(1 / math.Sqrt(s.norm))
	s.near = s.near[:0]
	for i, v := range s.base {
		if v > 0 {
			s.meet(dst, b.labels[i], v*inverse, i)
		}
	}
	s.scoreLearned(dst, inverse)
	total := 0.0
	for _, n := range s.near {
		total += float64(n.similarity)
	}
	for _, n := range s.near {
		dst[n.server].Share += float64(n.similarity) / total
	}
	first, second := -1, 0.0 // the best server, and what the others reach
	for i := range dst {
		switch v := dst[i].Best; {
		case first < 0 || v > dst[first].Best:
			if first >= 0 {
				second = dst[first].Best
			}
			first = i
		case v > second:
			second = v
		}
	}
	for i := range dst {
		if i == first {
			dst[i].Margin = dst[i].Best - second
		} else {
			dst[i].Margin = dst[i].Best - dst[first].Best
		}
	}
	return dst
}

// scoreLearned takes the learned exemplars into account.
func (s *Stream) scoreLearned(dst []Score, inverse float32) {
	x := s.x
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, id := range x.order {
		o := &x.slots[id]
		if o.born > s.gen || s.more[id] <= 0 {
			continue
		}
		v := s.more[id] * inverse
		if h := x.opt.HalfLife; h > 0 {
			v *= float32(math.Exp2(-float64(x.gen-o.born) / float64(h)))
		}
		s.meet(dst, o.server, v, -1)
	}
}

// meet takes an exemplar of a server into account.
func (s *Stream) meet(dst []Score, server int32, similarity float32, exemplar int) {
	v := min(float64(similarity), 1)
	if d := &dst[server]; v > d.Best {
		d.Best, d.Nearest = v, exemplar
	}
	n := len(s.near)
	if n == neighbours {
		if similarity <= s.near[n-1].similarity {
			return
		}
		n--
	} else {
		s.near = append(s.near, near{})
	}
	for ; n > 0 && s.near[n-1].similarity < similarity; n-- {
		s.near[n] = s.near[n-1]
	}
	s.near[n] = near{similarity, server}
}

// Score returns the scores of a whole text.
func (x *Index) Score(text string) []Score {
	s := x.Stream()
	s.Write([]byte(text))
	s.End()
	return s.Scores(nil)
}
