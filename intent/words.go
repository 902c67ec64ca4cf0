package intent

import (
	"unicode"
	"unicode/utf8"
)

// longest is the length in bytes of what is still taken for a word; more is a
// key, a hash or an image.
const longest = 40

// A splitter takes a text apart into words as it arrives. Names in camelCase
// and snake_case are taken apart as well. Of scripts without spaces each pair of
// neighbours is a word. Apostrophes are not there.
type splitter struct {
	word    [longest + utf8.UTFMax]byte // folded
	n       int                         // bytes of it; more than longest: too long, and not kept
	last    class
	capital int // where the last letter of a run of capitals begins in word
	run     int // letters in that run
	part    [utf8.UTFMax]byte
	parts   int  // bytes of an unfinished character in part
	before  rune // the last character, of a script without spaces
}

type class uint8

const (
	other class = iota
	lower
	upper
	digit
	sign // of a script without spaces
)

// write reads the next piece of the text and calls emit with each word that it
// ends, folded, and with each byte that ends words. The word is overwritten
// afterwards.
func (s *splitter) write(p []byte, word func([]byte), end func(rune)) {
	for len(p) > 0 {
		var r rune
		switch {
		case s.parts > 0:
			s.part[s.parts] = p[0]
			s.parts++
			p = p[1:]
			if !utf8.FullRune(s.part[:s.parts]) {
				continue
			}
			var size int
			r, size = utf8.DecodeRune(s.part[:s.parts])
			rest := s.part
			n := s.parts
			s.parts = 0
			s.take(r, word, end)
			if size < n { // what was taken for a continuation is none
				s.write(rest[size:n], word, end)
			}
			continue
		case p[0] < utf8.RuneSelf:
			r = rune(p[0])
			p = p[1:]
		case !utf8.FullRune(p):
			s.parts = copy(s.part[:], p)
			return
		default:
			var size int
			r, size = utf8.DecodeRune(p)
			p = p[size:]
		}
		s.take(r, word, end)
	}
}

// take reads one character.
func (s *splitter) take(r rune, word func([]byte), end func(rune)) {
	c := classOf(r)
	switch c {
	case other:
		if r == '\'' || r == '’' {
			return
		}
		s.flush(word)
		end(r)
		return
	case sign:
		if s.last != sign {
			s.flush(word)
		} else {
			s.n = utf8.EncodeRune(s.word[:], s.before)
			s.n += utf8.EncodeRune(s.word[s.n:], r)
			s.emit(word)
		}
		s.before, s.last = r, sign
		return
	case lower:
		if s.last == upper && s.run > 1 && s.n <= longest {
			// The last of several capitals begins a word: HTMLPage.
			var head [utf8.UTFMax]byte
			n := copy(head[:], s.word[s.capital:s.n])
			s.n = s.capital
			s.emit(word)
			s.n = copy(s.word[:], head[:n])
		} else if s.last != lower && s.last != upper {
			s.flush(word)
		}
	case upper:
		if s.last != upper {
			s.flush(word)
			s.run = 0
		}
		s.run++
		s.capital = s.n
	case digit:
		if s.last != digit {
			s.flush(word)
		}
	}
	s.last = c
	if s.n <= longest {
		s.n += utf8.EncodeRune(s.word[s.n:], unicode.ToLower(r))
	}
}

// flush ends the word that is being read.
func (s *splitter) flush(word func([]byte)) {
	if s.last != sign {
		s.emit(word)
	}
	s.n, s.last = 0, other
}

func (s *splitter) emit(word func([]byte)) {
	if s.n > 0 && s.n <= longest {
		word(s.word[:s.n])
	}
	s.n = 0
}

func classOf(r rune) class {
	switch {
	case 'a' <= r && r <= 'z':
		return lower
	case 'A' <= r && r <= 'Z':
		return upper
	case '0' <= r && r <= '9':
		return digit
	case r < utf8.RuneSelf:
		return other
	case unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai):
		return sign
	case unicode.IsUpper(r):
		return upper
	case unicode.IsLetter(r):
		return lower
	case unicode.IsDigit(r):
		return digit
	}
	return other
}

// stem takes common English endings off a word, in place.
func stem(w []byte) []byte {
	n := len(w)
	ends := func(s string) bool { return n >= len(s) && string(w[n-len(s):]) == s }
	switch {
	case n > 4 && ends("ies"):
		w[n-3] = 'y'
		return w[:n-2]
	case n > 5 && ends("ation"):
		return w[:n-3]
	case n > 5 && (ends("ing") || ends("ion")):
		w = w[:n-3]
	case n > 4 && (ends("ed") || ends("es")):
		w = w[:n-2]
	case n > 3 && ends("s") && !ends("ss"):
		w = w[:n-1]
	}
	if n = len(w); n > 4 && w[n-1] == 'e' {
		w = w[:n-1]
	}
	return w
}

// A term is the hash of a stemmed word. Two words may share one; that is so rare
// that it does not matter.
type term uint32

// termOf returns the term of a folded word, and whether the word tells anything.
func termOf(w []byte) (term, bool) {
	if len(w) < 2 || silent[string(w)] {
		return 0, false
	}
	h := uint32(2166136261)
	for _, b := range stem(w) {
		h = (h ^ uint32(b)) * 16777619
	}
	return term(h), true
}

// termsOf returns the terms of a whole text, in their order, repeated as there,
// without what is negated.
func termsOf(text string) []term {
	var all []term
	var s splitter
	var n negation
	word := func(w []byte) {
		if n.word(w) {
			return
		}
		if t, ok := termOf(w); ok {
			all = append(all, t)
		}
	}
	s.write([]byte(text), word, n.mark)
	s.flush(word)
	return all
}

// silent words tell nothing of what is going to be called.
var silent = setOf(`a about after again all also am an and another any are as at
	be been being but by can could did do does dont for from further first following
	get gets getting given go going good great had has have help here how i id if ill im in
	into is it its ive just let lets like may me might more most my need needs no nor not now
	of off on once one only or other our out over perfect please provide provided
	re same see server servers should so some such than that thats the their them then there these
	they this those through to too tool tools try trying under up us use used uses using very
	want was we well were what when where whether which while who why will with would you your
	mcp`)
