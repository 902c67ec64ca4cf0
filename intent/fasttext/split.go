package fasttext

import (
	"unicode"
	"unicode/utf8"
)

// Pieces of words have so many characters, the marks around the word among them.
const shortest, longest = 3, 5

// longestRun bounds what is kept of a text until a space comes, in bytes.
const longestRun = 256

// A splitter takes a text apart into features as it arrives.
type splitter struct {
	run  []byte // since the last space
	word []rune
	last uint64 // hash of the word before; 0: none
}

func (s *splitter) reset() { s.run, s.last = s.run[:0], 0 }

// split appends the features of the words that p has ended.
func (s *splitter) split(p []byte, dst []uint64) []uint64 {
	for _, c := range p {
		if c == ' ' || c == '\n' || c == '\t' || c == '\r' {
			dst = s.flush(dst)
			continue
		}
		s.run = append(s.run, c)
		if len(s.run) == longestRun {
			dst = s.flush(dst)
		}
	}
	return dst
}

// end says that the text is over.
func (s *splitter) end(dst []uint64) []uint64 {
	dst = s.flush(dst)
	s.last = 0
	return dst
}

// flush takes the words of the run.
func (s *splitter) flush(dst []uint64) []uint64 {
	s.word = s.word[:0]
	for p := s.run; len(p) > 0; {
		r, size := utf8.DecodeRune(p)
		p = p[size:]
		switch {
		case r == '\'' || r == '’':
		case unicode.IsLetter(r) || unicode.IsNumber(r) || unicode.IsMark(r):
			s.word = append(s.word, unicode.ToLower(r))
		default:
			dst = s.endWord(dst)
		}
	}
	s.run = s.run[:0]
	return s.endWord(dst)
}

// endWord appends the features of a word that has ended.
func (s *splitter) endWord(dst []uint64) []uint64 {
	if len(s.word) == 0 {
		return dst
	}
	h := uint64(1)
	for _, r := range s.word {
		h = mix(h, uint64(r))
	}
	dst = append(dst, h)
	if s.last != 0 {
		dst = append(dst, mix(mix(s.last, 2), h))
	}
	s.last = h
	at := func(i int) uint64 {
		switch i {
		case 0:
			return '<'
		case len(s.word) + 1:
			return '>'
		}
		return uint64(s.word[i-1])
	}
	for i := range len(s.word) + 2 {
		h := uint64(3)
		for n := 1; n <= longest && i+n <= len(s.word)+2; n++ {
			h = mix(h, at(i+n-1))
			if n >= shortest && n < len(s.word)+2 { // the whole word is there already
				dst = append(dst, h)
			}
		}
	}
	s.word = s.word[:0]
	return dst
}

// mix spreads h and k over all bits; their order matters.
func mix(h, k uint64) uint64 {
	h = (h*31 ^ k) * 0x9E3779B97F4A7C15
	return h ^ h>>32
}
