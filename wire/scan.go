package wire

import (
	"bytes"
	"encoding/json"
	"errors"
)

// errSyntax is returned by the scanner for text that is not JSON. It is a
// scanner, not a validator: see [Valid] for input from untrusted peers.
var errSyntax = errors.New("wire: not JSON")

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\n' || b[i] == '\r') {
		i++
	}
	return i
}

// skipString returns the index after the string that starts at b[i].
func skipString(b []byte, i int) (int, error) {
	i++
	for {
		j := bytes.IndexByte(b[i:], '"')
		if j < 0 {
			return 0, errSyntax
		}
		end, slashes := i+j, 0
		for p := end - 1; p >= i && b[p] == '\\'; p-- {
			slashes++
		}
		i = end + 1
		if slashes%2 == 0 {
			return i, nil
		}
	}
}

// skipValue returns the index after the value that starts at or after b[i].
func skipValue(b []byte, i int) (int, error) {
	i = skipSpace(b, i)
	if i >= len(b) {
		return 0, errSyntax
	}
	switch b[i] {
	case '"':
		return skipString(b, i)
	case '{', '[':
		depth := 0
		for i < len(b) {
			switch b[i] {
			case '"':
				end, err := skipString(b, i)
				if err != nil {
					return 0, err
				}
				i = end
				continue
			case '{', '[':
				if depth++; depth > MaxDepth {
					return 0, errSyntax
				}
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1, nil
				}
			}
			i++
		}
		return 0, errSyntax
	case ',', ':', '}', ']':
		return 0, errSyntax
	}
	for i < len(b) && !bytes.ContainsRune([]byte(",}] \t\n\r"), rune(b[i])) {
		i++
	}
	return i, nil
}

// members calls f with the key and the span of the value of each member of the
// object b, until f returns false.
func members(b []byte, f func(key []byte, start, end int) bool) error {
	i := skipSpace(b, 0)
	if i >= len(b) || b[i] != '{' {
		return errSyntax
	}
	i = skipSpace(b, i+1)
	if i < len(b) && b[i] == '}' {
		return nil
	}
	for {
		i = skipSpace(b, i)
		if i >= len(b) || b[i] != '"' {
			return errSyntax
		}
		keyEnd, err := skipString(b, i)
		if err != nil {
			return err
		}
		key := unescape(b[i:keyEnd])
		i = skipSpace(b, keyEnd)
		if i >= len(b) || b[i] != ':' {
			return errSyntax
		}
		start := skipSpace(b, i+1)
		end, err := skipValue(b, start)
		if err != nil {
			return err
		}
		if !f(key, start, end) {
			return nil
		}
		i = skipSpace(b, end)
		if i >= len(b) {
			return errSyntax
		}
		switch b[i] {
		case ',':
			i++
		case '}':
			return nil
		default:
			return errSyntax
		}
	}
}

// unescape returns the text of a JSON string: a slice of it where nothing is
// escaped.
func unescape(q []byte) []byte {
	inner := q[1 : len(q)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return inner
	}
	var s string
	if json.Unmarshal(q, &s) != nil {
		return inner
	}
	return []byte(s)
}

func find(b []byte, path []string) (start, end int, ok bool) {
	cur := b
	for _, p := range path {
		found := false
		var s, e int
		err := members(cur, func(key []byte, start, end int) bool {
			if string(key) == p {
				s, e, found = start, end, true
			}
			return !found
		})
		if err != nil || !found {
			return 0, 0, false
		}
		start += s
		cur = cur[s:e]
	}
	return start, start + len(cur), true
}

// Get returns the raw value at a path of object keys in b, or nil. The result
// is a slice of b.
func Get(b []byte, path ...string) []byte {
	s, e, ok := find(b, path)
	if !ok {
		return nil
	}
	return b[s:e:e]
}

// Str returns the string at a path of object keys in b, or "" if there is none.
func Str(b []byte, path ...string) string {
	v := Get(b, path...)
	if len(v) < 2 || v[0] != '"' {
		return ""
	}
	return string(unescape(v))
}

// Replace returns a copy of b with the value at path replaced by value; all
// other bytes are kept. It returns b itself if nothing is at path.
func Replace(b, value []byte, path ...string) []byte {
	s, e, ok := find(b, path)
	if !ok {
		return b
	}
	out := make([]byte, 0, len(b)-(e-s)+len(value))
	out = append(out, b[:s]...)
	out = append(out, value...)
	return append(out, b[e:]...)
}

// Set returns a copy of the object b in which the member key has the value
// value: replaced in place where it exists, added as the last member where not.
func Set(b, value []byte, key string) []byte {
	if _, _, ok := find(b, []string{key}); ok {
		return Replace(b, value, key)
	}
	end := bytes.LastIndexByte(b, '}')
	if end < 0 {
		return b
	}
	out := make([]byte, 0, len(b)+len(key)+len(value)+4)
	out = append(out, b[:end]...)
	if !bytes.Equal(bytes.TrimSpace(b[:end]), []byte("{")) {
		out = append(out, ',')
	}
	out = append(out, Quote(key)...)
	out = append(out, ':')
	out = append(out, value...)
	return append(out, b[end:]...)
}

// Members calls f with each member of the object b in order, until f returns
// false. The values are slices of b. It returns an error if b is no object.
func Members(b []byte, f func(key string, value []byte) bool) error {
	return members(b, func(key []byte, s, e int) bool { return f(string(key), b[s:e:e]) })
}

// Each calls f with each element of the array b in order, until f returns
// false. The elements are slices of b. It returns an error if b is no array;
// f has then seen the elements before the fault.
func Each(b []byte, f func(elem []byte) bool) error {
	i := skipSpace(b, 0)
	if i >= len(b) || b[i] != '[' {
		return errSyntax
	}
	i = skipSpace(b, i+1)
	if i < len(b) && b[i] == ']' {
		return nil
	}
	for {
		s := skipSpace(b, i)
		e, err := skipValue(b, s)
		if err != nil {
			return err
		}
		if !f(b[s:e:e]) {
			return nil
		}
		i = skipSpace(b, e)
		if i >= len(b) {
			return errSyntax
		}
		switch b[i] {
		case ',':
			i++
		case ']':
			return nil
		default:
			return errSyntax
		}
	}
}

// Elements returns the raw elements of the array b as slices of b, and an error
// if b is no array.
func Elements(b []byte) ([][]byte, error) {
	var out [][]byte
	if err := Each(b, func(elem []byte) bool { out = append(out, elem); return true }); err != nil {
		return nil, err
	}
	return out, nil
}

// Quote returns s as a JSON string.
func Quote(s string) []byte {
	if isPlain(s) {
		out := make([]byte, 0, len(s)+2)
		return append(append(append(out, '"'), s...), '"')
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a string always encodes
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n"))
}

// isPlain reports whether s stands in JSON as it is, as most names do.
func isPlain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}
