package keyword

import (
	"unicode"
	"unicode/utf8"
)

// Kinds of characters.
const (
	letter    = iota // of a word; digits and marks too
	joiner           // joins the words of a phrase
	line             // does that, and ends what a negation reaches
	breaker          // ends a word and a phrase
	closer           // does that, and ends what a negation reaches
	ignored          // is not there
	character        // a word of its own
	high             // not ASCII: see the rune
)

// kinds has the kind of each byte, and lower the folded ASCII letter.
var kinds, lower = func() (k, l [256]uint8) {
	for i := range 256 {
		c := byte(i)
		l[i] = c
		switch {
		case c >= 0x80:
			k[i] = high
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
			k[i] = letter
		case c >= 'A' && c <= 'Z':
			k[i], l[i] = letter, c+'a'-'A'
		case c == '\n' || c == '\r':
			k[i] = line
		case c == ' ' || c == '\t' || c == '\v' || c == '\f' || c == '-' || c == '_':
			k[i] = joiner
		case c == '.' || c == ',' || c == ';' || c == ':' || c == '!' || c == '?':
			k[i] = closer
		case c == '\'':
			k[i] = ignored
		default:
			k[i] = breaker
		}
	}
	return
}()

// unspaced are the scripts whose words have no spaces between them, or have
// particles stuck to them.
var unspaced = []*unicode.RangeTable{unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Hangul, unicode.Thai, unicode.Lao, unicode.Khmer, unicode.Myanmar}

// kindOf returns the kind of a character.
func kindOf(r rune) int {
	switch {
	case r < 0x80:
		return int(kinds[r])
	case r == '’' || r == '\u200d' || r == '\ufeff':
		return ignored
	case r >= 0x4e00 && r <= 0x9fff: // most of them, without a search
		return character
	case r >= '\u2010' && r <= '\u2015' || unicode.IsSpace(r):
		return joiner
	case r == '。' || r == '，' || r == '、' || r == '；' || r == '：' || r == '！' || r == '？' || r == '…':
		return closer
	case unicode.In(r, unspaced...):
		return character
	case unicode.IsLetter(r) || unicode.IsNumber(r) || unicode.IsMark(r):
		return letter
	}
	return breaker
}

// fold returns what stands for all cases of a character.
func fold(r rune) rune {
	if r < 0x80 {
		return rune(lower[r])
	}
	least := r
	for o := unicode.SimpleFold(r); o != r; o = unicode.SimpleFold(o) {
		least = min(least, o)
	}
	if least < 0x80 {
		return rune(lower[least])
	}
	return least
}

func appendFolded(dst []byte, r rune) []byte { return utf8.AppendRune(dst, fold(r)) }
