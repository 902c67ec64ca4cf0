package keyword

import "unicode/utf8"

// A Hit is a keyword that was found.
type Hit struct {
	Word    int32 // the way it was written: see [Automaton.Word]
	Negated bool  // by the words before it
	End     int64 // offset in the text of what ended the word
}

// A Stream reads one text with an automaton. It is used by one goroutine at a
// time.
type Stream struct {
	a     *Automaton
	state int32
	in    bool // within a word
	bound bool // at a mark that may bind two words

	words int // ended so far
	reach int // the last word that a negation reaches
	off   int64

	part [utf8.UTFMax]byte // a character that is not complete
	n    int
}

// Stream returns a stream at the beginning of a text.
func (a *Automaton) Stream() *Stream { return &Stream{a: a, state: root} }

// Reset goes back to the beginning of a text.
func (s *Stream) Reset() { *s = Stream{a: s.a, state: root} }

// Write reads the next piece of the text, appends what it finds to hits and
// returns that. A word is found when it has ended: see [Stream.End].
func (s *Stream) Write(p []byte, hits []Hit) []Hit {
	i, hits := s.complete(p, hits)
	a := s.a
	nodes := a.nodes
	state, in, bound := s.state, s.in, s.bound
	for ; i < len(p); i++ {
		c := p[i]
		switch kinds[c] {
		case letter:
			in, bound = true, false
			if state == dead {
				continue
			}
			state = next(nodes, state, int32(a.class[lower[c]]))
		case ignored:
		case high:
			s.state, s.in, s.bound = state, in, bound
			if !utf8.FullRune(p[i:]) {
				s.n = copy(s.part[:], p[i:])
				s.off += int64(len(p))
				return hits
			}
			r, size := utf8.DecodeRune(p[i:])
			hits = s.rune(r, size, s.off+int64(i), hits)
			state, in, bound = s.state, s.in, s.bound
			i += size - 1
		case joiner:
			if in {
				s.words++
				if nodes[state].out != 0 {
					hits = s.found(state, s.off+int64(i), hits)
				}
				state, in = after(nodes, state, joint), false
			} else if bound {
				state, bound = root, false
			}
		default:
			s.state, s.in, s.bound = state, in, bound
			hits = s.gap(int(kinds[c]), c, s.off+int64(i), hits)
			state, in, bound = s.state, s.in, s.bound
		}
	}
	s.state, s.in, s.bound = state, in, bound
	s.off += int64(len(p))
	return hits
}

// End says that the text is over: its last word has ended. Whoever then goes on
// writing begins a new sentence.
func (s *Stream) End(hits []Hit) []Hit {
	if s.n > 0 {
		hits = s.gap(breaker, 0, s.off-int64(s.n), hits)
		s.n = 0
	}
	return s.gap(closer, 0, s.off, hits)
}

// complete takes the character that an earlier piece has begun, and returns how
// much of p that took.
func (s *Stream) complete(p []byte, hits []Hit) (int, []Hit) {
	i := 0
	for s.n > 0 {
		if !utf8.FullRune(s.part[:s.n]) {
			if i == len(p) {
				break
			}
			s.part[s.n] = p[i]
			s.n++
			i++
			continue
		}
		r, size := utf8.DecodeRune(s.part[:s.n])
		hits = s.rune(r, size, s.off+int64(i-s.n), hits)
		s.n = copy(s.part[:], s.part[size:s.n])
	}
	return i, hits
}

// rune takes a character that begins at off.
func (s *Stream) rune(r rune, size int, off int64, hits []Hit) []Hit {
	kind := breaker
	if r != utf8.RuneError || size > 1 {
		kind = kindOf(r)
	}
	switch kind {
	case letter:
		s.spell(r)
	case character:
		hits = s.gap(joiner, 0, off, hits)
		s.spell(r)
		hits = s.gap(joiner, 0, off+int64(size), hits)
	case ignored:
	default:
		hits = s.gap(kind, byte(min(r, 0x7f)), off, hits)
	}
	return hits
}

// spell goes on by one character of a word.
func (s *Stream) spell(r rune) {
	s.in, s.bound = true, false
	var b [utf8.UTFMax]byte
	for _, c := range b[:utf8.EncodeRune(b[:], fold(r))] {
		s.state = next(s.a.nodes, s.state, int32(s.a.class[c]))
	}
}

// gap takes what is between words, of a kind, at off. c is the mark, if it is
// one of ASCII.
func (s *Stream) gap(kind int, c byte, off int64, hits []Hit) []Hit {
	joins := kind == joiner || kind == line
	switch {
	case s.in:
		s.words++
		if s.a.nodes[s.state].out != 0 {
			hits = s.found(s.state, off, hits)
		}
		class := int32(joint)
		if !joins {
			class = int32(s.a.class[c])
		}
		s.state, s.in = after(s.a.nodes, s.state, class), false
		s.bound = !joins && s.state != root
	case s.bound || !joins:
		s.state, s.bound = root, false
	}
	if kind == line || kind == closer {
		s.reach = 0
	}
	return hits
}

// found reports what ends in a state.
func (s *Stream) found(state int32, off int64, hits []Hit) []Hit {
	a := s.a
	o := a.nodes[state].out
	for _, id := range a.outs[o+1 : o+1+a.outs[o]] {
		if id >= 0 {
			first := s.words - a.words[id].len + 1
			hits = append(hits, Hit{Word: id, Negated: first <= s.reach, End: off})
			continue
		}
		s.cue(cues[^id])
	}
	return hits
}

// next is the state after a character of a word.
func next(nodes []node, state, class int32) int32 {
	for state != dead {
		if t := nodes[state].base + class; nodes[t].check == state {
			return t
		}
		state = nodes[state].fail
	}
	return dead
}

// after is the state after what ends a word.
func after(nodes []node, state, class int32) int32 {
	if state = next(nodes, state, class); state == dead {
		return root
	}
	return state
}
