package wire

// ValidPieces reports whether the pieces are JSON together, as a long line is
// looked at while it is read.
func ValidPieces(pieces ...[]byte) bool {
	var c checker
	for _, p := range pieces {
		c.feed(p)
	}
	return c.valid()
}
