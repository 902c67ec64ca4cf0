package session

import (
	"crypto/rand"
	"encoding/hex"
	"strings"

	"github.com/specbox/specbox/trace"
	"github.com/specbox/specbox/wire"
)

// continueTrace makes the call a span of the trace that its client names in
// _meta (W3C Trace Context): the server is told that its parent is this call,
// and the event holds what joins the three. Params without a trace, or with one
// that is not understood, pass as they are.
func continueTrace(params []byte, e *trace.Event) []byte {
	parent := wire.Str(params, "_meta", "traceparent")
	if parent == "" {
		return params
	}
	parts := strings.Split(parent, "-")
	if len(parts) < 4 || parts[0] != "00" || !isID(parts[1], 32) || !isID(parts[2], 16) || len(parts[3]) != 2 {
		return params
	}
	var id [8]byte
	_, _ = rand.Read(id[:]) // it never fails
	span := hex.EncodeToString(id[:])
	e.TraceID, e.ParentID, e.SpanID = parts[1], parts[2], span
	return wire.Replace(params, wire.Quote("00-"+parts[1]+"-"+span+"-"+parts[3]), "_meta", "traceparent")
}

// isID reports whether s is so many lower-case hex digits, and not all zero.
func isID(s string, n int) bool {
	return len(s) == n && strings.Trim(s, "0123456789abcdef") == "" && strings.Trim(s, "0") != ""
}
