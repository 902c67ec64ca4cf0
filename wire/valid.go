package wire

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// MaxDepth is how deep a message may be nested, so that hostile input cannot
// exhaust anything.
const MaxDepth = 1000

// Valid reports whether b is one JSON value, nested at most [MaxDepth] deep. It
// takes what the standard library takes, in one pass, but eight bytes of a
// string at a time: clients send files in their arguments, and get them back.
// As there, strings may hold bytes that are not UTF-8; see [Check].
func Valid(b []byte) bool {
	_, ok := scan(b)
	return ok
}

// Check reports whether b is JSON, as [Valid] does, and whether it is UTF-8. It
// looks at b once where all of it is ASCII, and else twice.
func Check(b []byte) (valid, text bool) {
	seen, valid := scan(b)
	return valid, valid && seen&highs == 0 || utf8.Valid(b)
}

const (
	ones  = 0x0101010101010101
	highs = 0x80 * ones
)

// scan is Valid. It also returns the bytes of all strings, by or, eight in a
// word.
func scan(b []byte) (seen uint64, valid bool) {
	var objects [MaxDepth/64 + 1]uint64 // bit d: the value at depth d is an object
	depth := 0
	i := skipSpace(b, 0)
	for {
		// A value begins at i.
		if i >= len(b) {
			return seen, false
		}
		ok := true
		switch c := b[i]; c {
		case '{', '[':
			if depth++; depth > MaxDepth {
				return seen, false
			}
			bit := uint64(1) << (depth % 64)
			objects[depth/64] &^= bit
			if c == '{' {
				objects[depth/64] |= bit
			}
			i = skipSpace(b, i+1)
			if i < len(b) && b[i] == c+2 { // '}' and ']' stand two behind
				depth--
				i++
				break
			}
			if c == '{' {
				if i, ok = member(b, i, &seen); !ok {
					return seen, false
				}
			}
			continue
		case '"':
			i, ok = str(b, i, &seen)
		case 't':
			i, ok = literal(b, i, "true")
		case 'f':
			i, ok = literal(b, i, "false")
		case 'n':
			i, ok = literal(b, i, "null")
		default:
			i, ok = number(b, i)
		}
		if !ok {
			return seen, false
		}
		// A value ended before i: so may those that hold it.
		for i = skipSpace(b, i); ; i = skipSpace(b, i+1) {
			if depth == 0 {
				return seen, i == len(b)
			}
			if i >= len(b) {
				return seen, false
			}
			object := objects[depth/64]>>(depth%64)&1 == 1
			if b[i] == ',' {
				i = skipSpace(b, i+1)
				if object {
					if i, ok = member(b, i, &seen); !ok {
						return seen, false
					}
				}
				break
			}
			if object && b[i] != '}' || !object && b[i] != ']' {
				return seen, false
			}
			depth--
		}
	}
}

// The functions below return the index behind what begins at i, and whether it
// is there. To seen they add the bytes of strings.

// member reads up to the value of a member of an object.
func member(b []byte, i int, seen *uint64) (int, bool) {
	if i >= len(b) || b[i] != '"' {
		return i, false
	}
	i, ok := str(b, i, seen)
	if i = skipSpace(b, i); !ok || i >= len(b) || b[i] != ':' {
		return i, false
	}
	return skipSpace(b, i+1), true
}

func literal(b []byte, i int, word string) (int, bool) {
	end := i + len(word)
	return end, end <= len(b) && string(b[i:end]) == word
}

func str(b []byte, i int, seen *uint64) (int, bool) {
	for i++; ; {
		i = plain(b, i, seen)
		switch {
		case i >= len(b) || b[i] < ' ':
			return i, false
		case b[i] == '"':
			return i + 1, true
		}
		if i+1 >= len(b) { // b[i] is a backslash
			return i, false
		}
		switch b[i+1] {
		case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			i += 2
		case 'u':
			if i+6 > len(b) {
				return i, false
			}
			for _, c := range b[i+2 : i+6] {
				if !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F') {
					return i, false
				}
			}
			i += 6
		default:
			return i, false
		}
	}
}

// plain returns the index of the next quote, backslash or control character.
func plain(b []byte, i int, seen *uint64) int {
	var all uint64
	for ; len(b)-i >= 32; i += 32 { // four words at once: what is looked for is rare in large strings
		p := b[i : i+32 : i+32]
		v, w := binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:])
		x, y := binary.LittleEndian.Uint64(p[16:]), binary.LittleEndian.Uint64(p[24:])
		if (special(v)|special(w)|special(x)|special(y))&highs != 0 {
			break
		}
		all |= v | w | x | y
	}
	for ; len(b)-i >= 8; i += 8 {
		w := binary.LittleEndian.Uint64(b[i:])
		if hit := special(w) & highs; hit != 0 {
			n := bits.TrailingZeros64(hit) / 8
			*seen |= all | w&(1<<(8*n)-1)
			return i + n
		}
		all |= w
	}
	for i < len(b) && b[i] != '"' && b[i] != '\\' && b[i] >= ' ' {
		all |= uint64(b[i])
		i++
	}
	*seen |= all
	return i
}

// special sets the high bit of each byte of w that is a quote, a backslash or a
// control character. Bits above the lowest of them may be wrong.
func special(w uint64) uint64 {
	return ((w - ' '*ones) | ((w ^ '"'*ones) - ones) | ((w ^ '\\'*ones) - ones)) & ^w
}

func number(b []byte, i int) (int, bool) {
	digits := func() bool {
		begin := i
		for i < len(b) && b[i] >= '0' && b[i] <= '9' {
			i++
		}
		return i > begin
	}
	if b[i] == '-' {
		i++
	}
	if i < len(b) && b[i] == '0' {
		i++
	} else if !digits() {
		return i, false
	}
	if i < len(b) && b[i] == '.' {
		if i++; !digits() {
			return i, false
		}
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		if i++; i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		if !digits() {
			return i, false
		}
	}
	return i, true
}
