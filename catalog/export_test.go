package catalog

// Encode, Decode and DecodeBody are exported to be fuzzed: a file that gets
// past the checksum is rare.
var (
	Encode     = encode
	Decode     = decode
	DecodeBody = decodeBody
)

// Match returns what the expressions of a template stand for in a URI, and the
// URI that results when they are put back.
func Match(text, uri string) (captures []string, again string, ok bool) {
	t := parseTemplate(text)
	if t == nil {
		return nil, "", false
	}
	captures, ok = t.match(uri)
	if ok {
		again, ok = t.fill(captures)
	}
	return captures, again, ok
}
