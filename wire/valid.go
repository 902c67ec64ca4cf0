package wire

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// MaxDepth is how deep a message may be nested, so that hostile input cannot
// exhaust anything.
const MaxDepth = 1000

// Valid reports whether b is one JSON value, nested at most [MaxDepth] deep. It
// takes what the standard library takes, in one pass, but 32 bytes of a string at
// a time: clients send files in their arguments, and get them back. As there,
// strings may hold bytes that are not UTF-8; see [Check].
func Valid(b []byte) bool {
	var c checker
	c.feed(b)
	return c.valid()
}

// Check reports whether b is JSON, as [Valid] does, and whether it is UTF-8. It
// looks at b once where all of it is ASCII, and else twice.
func Check(b []byte) (valid, text bool) {
	var c checker
	c.feed(b)
	return c.verdict(b)
}

// A checker finds out whether a text is JSON, and takes it in pieces: a long
// message is looked at while it is read, when it is near. The zero value has seen
// nothing.
type checker struct {
	state   state
	key     bool                    // the string that is being read is a key
	digits  int8                    // of an escape that are to come
	rest    string                  // of a literal, that is to come
	depth   int                     // of the value that is being read
	objects [MaxDepth/64 + 1]uint64 // bit d: the value at depth d is an object
	seen    uint64                  // the bytes of all strings, by or, eight in a word

	// Of an object at the top, where its members stand; so that a long message need
	// not be walked over once more.
	before  int // bytes of the pieces before
	spans   [maxSpans]span
	members int // also those that have no span

	inResult bool // the member result of it is being read
	isError  int  // where the value of its member isError begins; 0 for nowhere
	unsure   bool // it may have one that was not noticed
}

// A span is where a member of an object stands: its key with the quotes, and its
// value with what space there is around it.
type span struct{ key, value, end int }

// maxSpans is enough for all members that a message should have.
const maxSpans = 6

// A state is what a checker waits for.
type state uint8

const (
	aValue    state = iota
	anElement       // of an array, or its end
	aMember         // of an object, or its end
	aKey
	aColon
	afterward // what follows a value
	inString
	anEscape  // behind a backslash
	inLiteral // the rest of it
	aDigit    // the first one of a number
	inZero    // what follows a zero at the beginning
	inWhole   // more digits of the whole part
	aDecimal  // the first digit behind the point
	inDecimal
	aSign // or a digit, of the exponent
	aPower
	inPower
	broken // nothing
)

// verdict is [Check] of b, which was seen.
func (c *checker) verdict(b []byte) (valid, text bool) {
	valid = c.valid()
	return valid, valid && c.seen&highs == 0 || utf8.Valid(b)
}

// feed looks at the next piece. A nil checker does not.
func (c *checker) feed(b []byte) {
	if c == nil {
		return
	}
	for i := 0; i < len(b) && c.state != broken; {
		switch {
		case c.state < inString:
			if b[i] > ' ' {
				i = c.structure(b, i)
			} else if i = skipSpace(b, i); i < len(b) {
				i = c.structure(b, i)
			}
		case c.state <= inLiteral:
			i = c.text(b, i)
		default:
			i = c.number(b, i)
		}
	}
	c.before += len(b)
}

// note keeps where a member of the object at the top stands, of which at is the
// beginning of the key, or of the value, or the end.
func (c *checker) note(at int) {
	if c.depth != 1 || c.members > maxSpans {
		return
	}
	at += c.before
	switch c.state {
	case aKey, aMember:
		if c.members++; c.members <= maxSpans {
			c.spans[c.members-1].key = at
		}
	case aColon:
		c.spans[c.members-1].value = at
	case afterward:
		c.spans[c.members-1].end = at
	}
}

// valid reports whether what was seen is whole, and JSON.
func (c *checker) valid() bool {
	switch c.state {
	case afterward, inZero, inWhole, inDecimal, inPower:
		return c.depth == 0
	}
	return false
}

// The methods below look at what stands at i, and return where to go on.

// structure takes what begins a value, or stands between values.
func (c *checker) structure(b []byte, i int) int {
	ch := b[i]
	switch c.state {
	case afterward:
		object := c.objects[c.depth/64]>>(c.depth%64)&1 == 1
		if object {
			c.note(i)
		}
		switch {
		case c.depth == 0:
			c.state = broken
		case ch == ',' && object:
			c.state = aKey
		case ch == ',':
			c.state = aValue
		case object && ch == '}', !object && ch == ']':
			c.depth--
		default:
			c.state = broken
		}
		return i + 1
	case aColon:
		c.note(i + 1)
		c.state = aValue
		if ch != ':' {
			c.state = broken
		}
		return i + 1
	case anElement, aMember:
		if ch == ']' && c.state == anElement || ch == '}' && c.state == aMember {
			c.depth--
			c.state = afterward
			return i + 1
		}
		if c.state == anElement {
			return c.value(b, i)
		}
	case aValue:
		return c.value(b, i)
	}
	if ch != '"' { // of aKey, or aMember
		c.state = broken
		return i
	}
	c.note(i)
	c.state, c.key = inString, true
	begin := i
	i = c.text(b, i+1)
	if c.depth <= 2 {
		c.noteKey(b[begin:i], i)
	}
	if i < len(b) && c.state == aColon && b[i] == ':' {
		c.note(i + 1)
		c.state = aValue
		i++
	}
	return i
}

// noteKey looks for what [Reply.ToolFailed] is asked for, in a key that may go on
// behind the piece. What follows behind it begins at end, with a colon.
func (c *checker) noteKey(key []byte, end int) {
	whole := c.state == aColon
	switch {
	case c.depth == 1:
		c.inResult = whole && string(key) == `"result"`
		c.unsure = c.unsure || !whole || c.inResult && c.isError != 0
	case c.inResult && !whole:
		c.unsure = true
	case c.inResult && c.isError == 0 && string(key) == `"isError"`:
		c.isError = c.before + end
	}
}

// failed reports what [Reply.ToolFailed] is asked for of a message that was seen.
func (c *checker) failed(raw []byte) verdict {
	switch {
	case c.unsure:
		return unknown
	case c.isError == 0:
		return no
	}
	value := bytes.TrimLeft(raw[c.isError:], " \t\r\n:")
	if bytes.HasPrefix(value, []byte("true")) {
		return yes
	}
	return no
}

// value takes the first byte of a value.
func (c *checker) value(b []byte, i int) int {
	switch ch := b[i]; ch {
	case '"':
		c.state, c.key = inString, false
		return c.text(b, i+1)
	case '{', '[':
		if c.depth++; c.depth > MaxDepth {
			c.state = broken
			break
		}
		bit := uint64(1) << (c.depth % 64)
		if c.state = aMember; ch == '{' {
			c.objects[c.depth/64] |= bit
		} else {
			c.objects[c.depth/64] &^= bit
			c.state = anElement
		}
	case '1', '2', '3', '4', '5', '6', '7', '8', '9':
		c.state = inWhole
		return c.number(b, i)
	case 't':
		c.state, c.rest = inLiteral, "rue"
	case 'f':
		c.state, c.rest = inLiteral, "alse"
	case 'n':
		c.state, c.rest = inLiteral, "ull"
	case '-':
		c.state = aDigit
	default:
		c.state = aDigit
		return i
	}
	return i + 1
}

// text takes what is inside of a string or a literal.
func (c *checker) text(b []byte, i int) int {
	if c.state == inString {
		i = plain(b, i, &c.seen)
	}
	switch {
	case i == len(b):
		return i
	case c.state == inString:
		switch b[i] {
		case '"':
			if c.state = afterward; c.key {
				c.state = aColon
			}
		case '\\':
			c.state = anEscape
		default:
			c.state = broken
		}
	case c.state == inLiteral:
		if b[i] != c.rest[0] {
			c.state = broken
		} else if c.rest = c.rest[1:]; c.rest == "" {
			c.state = afterward
		}
	case c.digits > 0:
		if !isHex(b[i]) {
			c.state = broken
		} else if c.digits--; c.digits == 0 {
			c.state = inString
		}
	default:
		switch b[i] {
		case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			c.state = inString
		case 'u':
			c.digits = 4
		default:
			c.state = broken
		}
	}
	return i + 1
}

func isHex(ch byte) bool {
	return ch >= '0' && ch <= '9' || ch >= 'a' && ch <= 'f' || ch >= 'A' && ch <= 'F'
}

// number takes digits, and what may stand between them.
func (c *checker) number(b []byte, i int) int {
	ch := b[i]
	digit := ch >= '0' && ch <= '9'
	switch c.state {
	case aDigit, aDecimal, aSign, aPower:
		switch {
		case digit && c.state == aDigit && ch == '0':
			c.state = inZero
		case digit && c.state == aDigit:
			c.state = inWhole
		case digit && c.state == aDecimal:
			c.state = inDecimal
		case digit:
			c.state = inPower
		case c.state == aSign && (ch == '+' || ch == '-'):
			c.state = aPower
		default:
			c.state = broken
		}
		return i + 1
	case inWhole, inDecimal, inPower:
		for ; digit; digit = b[i] >= '0' && b[i] <= '9' {
			if i++; i == len(b) {
				return i
			}
		}
		ch = b[i]
	}
	switch {
	case ch == '.' && (c.state == inZero || c.state == inWhole):
		c.state = aDecimal
	case (ch == 'e' || ch == 'E') && c.state != inPower:
		c.state = aSign
	default: // it ended before i
		c.state = afterward
		return i
	}
	return i + 1
}

const (
	ones  = 0x0101010101010101
	highs = 0x80 * ones
)

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
