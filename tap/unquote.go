package tap

import (
	"unicode/utf16"
	"unicode/utf8"
)

// appendUnquoted appends the text of a JSON string, given with its quotes, to
// dst. A sound string gives what the standard library gives; of another one
// that is taken which can be. If the text ends with the first half of a
// surrogate pair, that half is left out and returned as high: some streams are
// cut there. Before is the half that the string before ended with, or 0.
func appendUnquoted(dst, quoted []byte, before rune) (out []byte, high rune) {
	b := quoted
	if len(b) > 0 && b[0] == '"' {
		b = b[1:]
	}
	if len(b) > 0 && b[len(b)-1] == '"' {
		b = b[:len(b)-1]
	}
	high = before
	for len(b) > 0 {
		c := b[0]
		if c == '\\' && len(b) > 1 && b[1] == 'u' {
			r, n := hex4(b)
			b = b[n:]
			switch {
			case high != 0 && r >= 0xDC00 && r < 0xE000:
				dst = utf8.AppendRune(dst, utf16.DecodeRune(high, r))
				high = 0
			default:
				dst, high = lone(dst, high), 0
				if r >= 0xD800 && r < 0xDC00 {
					high = r
				} else {
					dst = utf8.AppendRune(dst, r) // a lone half becomes U+FFFD
				}
			}
			continue
		}
		dst, high = lone(dst, high), 0
		if c == '\\' {
			if len(b) == 1 {
				break
			}
			dst = append(dst, unescaped(b[1]))
			b = b[2:]
			continue
		}
		n := 0
		for n < len(b) && b[n] != '\\' && b[n] < utf8.RuneSelf {
			n++
		}
		if n > 0 {
			dst = append(dst, b[:n]...)
			b = b[n:]
			continue
		}
		r, size := utf8.DecodeRune(b)
		dst = utf8.AppendRune(dst, r)
		b = b[size:]
	}
	return dst, high
}

// lone appends what stands for a half that has no other.
func lone(dst []byte, half rune) []byte {
	if half == 0 {
		return dst
	}
	return utf8.AppendRune(dst, utf8.RuneError)
}

func unescaped(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return c
}

// hex4 reads an escape of the form \uXXXX, and tells how long it is.
func hex4(b []byte) (r rune, n int) {
	if len(b) < 6 {
		return utf8.RuneError, len(b)
	}
	for _, c := range b[2:6] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return utf8.RuneError, 2
		}
		r = r<<4 | rune(c)
	}
	return r, 6
}

// text returns the text of a JSON string, and "" for every other value.
func text(raw []byte) string {
	if !isString(raw) {
		return ""
	}
	b, high := appendUnquoted(nil, raw, 0)
	return string(lone(b, high))
}

func isString(raw []byte) bool { return len(raw) >= 2 && raw[0] == '"' }
func isArray(raw []byte) bool  { return len(raw) >= 2 && raw[0] == '[' }
func isObject(raw []byte) bool { return len(raw) >= 2 && raw[0] == '{' }
