package wire

import (
	"strings"
	"unicode"
)

// Twice returns a key that stands more than once in the object b, in whatever
// letters, or "". Readers differ in which of them counts, and some in whether
// capital letters matter: who decides by one value must not pass on another.
func Twice(b []byte) (key string) {
	var few [8]string // folded keys; most objects have no more
	n := 0
	var many map[string]bool
	_ = members(b, func(k []byte, _, _ int) bool {
		f := fold(string(k))
		again := many[f]
		for _, other := range few[:n] {
			again = again || other == f
		}
		switch {
		case again:
			key = string(k)
		case n < len(few):
			few[n] = f
			n++
		case many == nil:
			many = map[string]bool{f: true}
		default:
			many[f] = true
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
