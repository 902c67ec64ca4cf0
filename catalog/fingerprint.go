package catalog

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
)

// The capability sets that a first fill uses. A server whose lists are equal
// under both does not look at capabilities: any client is then served exactly.
const (
	NoCapabilities   = `{}`
	FullCapabilities = `{"sampling":{},"elicitation":{"form":{},"url":{}},"roots":{"listChanged":true}}`
)

// none is the fingerprint of no capabilities.
const none = "none"

var full = Fingerprint([]byte(FullCapabilities))

// Fingerprint returns a digest of a client's capabilities that does not depend
// on the order and spacing of members. Unknown and experimental members count,
// since a server may look at them; a member that is null counts as absent. No
// capabilities at all, in whatever form, are "none".
func Fingerprint(capabilities []byte) string {
	dec := json.NewDecoder(bytes.NewReader(capabilities))
	dec.UseNumber() // 1 and 1.0 and 2^53+1 stay what they are
	var v any
	if err := dec.Decode(&v); err != nil {
		if len(bytes.TrimSpace(capabilities)) == 0 {
			return none
		}
		return digest(capabilities)
	}
	if _, err := dec.Token(); err != io.EOF {
		return digest(capabilities)
	}
	m, ok := v.(map[string]any)
	switch {
	case v == nil:
		return none
	case !ok:
		return digest(capabilities)
	}
	for k := range m {
		if m[k] == nil {
			delete(m, k)
		}
	}
	if len(m) == 0 {
		return none
	}
	canonical, err := json.Marshal(m) // sorts the keys of every object
	if err != nil {
		return digest(capabilities)
	}
	return digest(canonical)
}

// digest is 128 bits: a client must not be able to meet another's fingerprint.
func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}
