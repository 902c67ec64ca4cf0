package wire

import (
	"bytes"
	"strings"
	"unicode"
)

// Twice returns a key that stands more than once in the object b, in whatever
// letters, or "". Readers differ in which of them counts, and some in whether
// capital letters matter: who decides by one value must not pass on another.
func Twice(b []byte) (key string) {
	var few [8][]byte // keys; most objects have no more
	n := 0
	var many map[string]bool
	_ = members(b, func(k []byte, _, _ int) bool {
		again := false
		for _, other := range few[:n] {
			again = again || bytes.EqualFold(other, k)
		}
		switch {
		case again:
		case n < len(few):
			few[n] = k
			n++
		default:
			if many == nil {
				many = map[string]bool{}
			}
			f := fold(string(k))
			again = many[f]
			many[f] = true
		}
		if again {
			key = string(k)
		}
		return !again
	})
	return key
}

// fold maps what differs in case alone to one form, as encoding/json does.
func fold(s string) string {
	return strings.Map(func(r rune) rune {
		for {
			next := unicode.SimpleFold(r)
			if next <= r {
				return next
			}
			r = next
		}
	}, s)
}
