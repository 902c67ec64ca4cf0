package retrieval

import (
	"math/bits"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A reader takes a text apart into features as it arrives.
type reader struct {
	ring [longest]rune // the last characters of the word, the newest last
	n    int           // how many of them there are
	word uint64        // hash of the word so far
	last uint64        // of the word before; 0: there is none, or it tells nothing
	wide rune          // the character before, if it is one of a script without spaces
	in   bool          // within a word

	part [utf8.UTFMax]byte // a character that is not complete
	have int
}

// Pieces of words have so many characters, the spaces around it among them.
const shortest, longest = 3, 5

// The top bits of a feature say what it is.
func featureOf(h uint64, kind uint64) uint64 { return h>>2 | kind<<62 | 1 }
func kind(f uint64) uint64                   { return f >> 62 }

// mix spreads h and k over all bits.
func mix(h, k uint64) uint64 {
	h = (h ^ k) * 0x9E3779B97F4A7C15
	return h ^ h>>32
}

// seed begins the hash of a word.
const seed = 0xCBF29CE484222325

// read appends the features that p brings to dst.
func (r *reader) read(p []byte, dst []uint64) []uint64 {
	for i := 0; i < len(p); {
		if c := p[i]; c < utf8.RuneSelf && r.have == 0 {
			i++
			if f := folded[c]; f != 0 {
				dst = r.letter(rune(f), dst)
			} else if c != '\'' {
				dst = r.gap(dst)
			}
			continue
		}
		r.part[r.have] = p[i]
		r.have++
		i++
		for r.have > 0 && utf8.FullRune(r.part[:r.have]) {
			c, size := utf8.DecodeRune(r.part[:r.have])
			dst = r.rune(c, dst)
			r.have = copy(r.part[:], r.part[size:r.have])
		}
	}
	return dst
}

// end says that the text is over.
func (r *reader) end(dst []uint64) []uint64 {
	r.have = 0
	dst = r.gap(dst)
	r.last = 0
	return dst
}

// folded has the lower case of ASCII's letters and digits; 0: none of them.
var folded = func() (f [utf8.RuneSelf]byte) {
	for c := range f {
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
			f[c] = byte(c)
		case c >= 'A' && c <= 'Z':
			f[c] = byte(c) + 'a' - 'A'
		}
	}
	return
}()

// rune takes any character.
func (r *reader) rune(c rune, dst []uint64) []uint64 {
	switch {
	case c < utf8.RuneSelf && folded[c] != 0:
		return r.letter(rune(folded[c]), dst)
	case c == '\'' || c == '’':
		return dst
	case c == utf8.RuneError || !unicode.IsLetter(c) && !unicode.IsNumber(c) && !unicode.IsMark(c):
		return r.gap(dst)
	}
	least := c
	for o := unicode.SimpleFold(c); o != c; o = unicode.SimpleFold(o) {
		least = min(least, o)
	}
	if least < utf8.RuneSelf {
		least = rune(folded[least])
	}
	if !unicode.In(c, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Hangul, unicode.Thai) {
		return r.letter(least, dst)
	}
	// Two characters are about what a word is elsewhere.
	if r.wide != 0 {
		dst = append(dst, featureOf(mix(mix(seed, uint64(r.wide)), uint64(c)), ofWord))
	}
	dst = r.letter(least, dst)
	r.wide = c
	return dst
}

// letter takes a folded character of a word.
func (r *reader) letter(c rune, dst []uint64) []uint64 {
	if !r.in {
		r.in, r.word, r.n = true, seed, 0
		dst = r.push(' ', dst)
	}
	r.wide = 0
	r.word = mix(r.word, uint64(c))
	return r.push(c, dst)
}

// push takes a character for the pieces of a word.
func (r *reader) push(c rune, dst []uint64) []uint64 {
	copy(r.ring[:], r.ring[1:])
	r.ring[longest-1] = c
	if r.n++; r.n < shortest {
		return dst
	}
	h := mix(mix(mix(shortest, uint64(c)), uint64(r.ring[longest-2])), uint64(r.ring[longest-3]))
	dst = append(dst, featureOf(h, ofPiece))
	for k := shortest; k < min(r.n, longest); k++ {
		h = mix(h, uint64(r.ring[longest-1-k]))
		dst = append(dst, featureOf(h, ofPiece))
	}
	return dst
}

// gap takes what is between two words.
func (r *reader) gap(dst []uint64) []uint64 {
	r.wide = 0
	if !r.in {
		return dst
	}
	r.in = false
	dst = r.push(' ', dst)
	dst = append(dst, featureOf(r.word, ofWord))
	if stops[r.word] {
		r.last = 0
		return dst
	}
	if r.last != 0 {
		dst = append(dst, featureOf(mix(bits.RotateLeft64(r.last, 31), r.word), ofPair))
	}
	r.last = r.word
	return dst
}

// stops has the hashes of words that make no telling pair with another.
var stops = func() map[uint64]bool {
	m := map[uint64]bool{}
	for _, w := range strings.Fields(`a about all also am an and any are as at be because been but by can could did do does for from get
had has have how i if ill im in into is it its just let lets like ll may me more my need no not now of on or our out please s she should so some
such than that the their them then there these they this to try up us use using ve want was we well were what when where which while who why will
with would you your`) {
		h := uint64(seed)
		for _, c := range w {
			h = mix(h, uint64(c))
		}
		m[h] = true
	}
	return m
}()
