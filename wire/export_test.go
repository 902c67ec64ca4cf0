package wire

import "bytes"

// ParsePieces is [Check] and [Parse] of the pieces together, as a long line is
// looked at while it is read. The reply is that of the message.
func ParsePieces(pieces ...[]byte) (m Message, r Reply, valid, text bool, err error) {
	var c checker
	for _, p := range pieces {
		c.feed(p)
	}
	raw := bytes.Join(pieces, nil)
	if valid, text = c.verdict(raw); valid {
		m, err = c.parsed(raw)
	}
	return m, Reply{Result: m.Result, Error: m.Error, failed: m.failed}, valid, text, err
}
