// Package tenant tells whose request it is, by bearer token.
//
// Its laws:
//
//   - A token is known only by its digest; it appears in no error and no log.
//   - How long a refusal takes, and what it says, tells nothing of the tenants:
//     a presented token is compared with all of them, in constant time.
//   - With no tenants the door is open, and everybody is [Default].
package tenant

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/specbox/specbox/config"
)

// Default is the tenant of every request when no tenants are configured.
const Default = "default"

// The reasons of a refusal. None says whether a tenant or token exists.
var (
	ErrNoToken   = errors.New("no token: send the header Authorization: Bearer TOKEN")
	ErrMalformed = errors.New("malformed Authorization header: one header of the form Authorization: Bearer TOKEN is expected")
	ErrRefused   = errors.New("the token is not valid here: ask the operator for a new one (specbox token makes one)")
)

// prefix makes tokens recognisable, for people and for secret scanners.
const prefix = "sbx_"

const hashPrefix = "sha256:"

// Tenants authenticates requests. It is immutable, and safe for concurrent use.
type Tenants struct {
	keys    []key
	servers map[string]map[string]bool // tenant -> servers it may use; nil: all
}

// A key is one digest and whose it is.
type key struct {
	digest [sha256.Size]byte
	tenant string
}

// New checks tenants and returns what authenticates them. With none of them
// the door is open. Each must have a name and at least one token; no name and
// no token may occur twice.
func New(tenants []config.Tenant) (*Tenants, error) {
	t := &Tenants{servers: make(map[string]map[string]bool)}
	owner := make(map[[sha256.Size]byte]string)
	for i, c := range tenants {
		if c.Name == "" {
			return nil, fmt.Errorf("tenant %d of the configuration has no name: give it one", i+1)
		}
		if _, twice := t.servers[c.Name]; twice {
			return nil, fmt.Errorf("tenant %q is configured twice: join the two entries", c.Name)
		}
		if len(c.TokenHashes) == 0 {
			return nil, fmt.Errorf("tenant %q has no token: make one with specbox token and add its hash", c.Name)
		}
		for j, h := range c.TokenHashes {
			digest, err := parseHash(h)
			if err != nil {
				return nil, fmt.Errorf("token %d of tenant %q: %w", j+1, c.Name, err)
			}
			if other, twice := owner[digest]; twice {
				return nil, fmt.Errorf("token %d of tenant %q is also a token of %q: give each its own", j+1, c.Name, other)
			}
			owner[digest] = c.Name
			t.keys = append(t.keys, key{digest, c.Name})
		}
		var allowed map[string]bool
		if len(c.Servers) > 0 {
			allowed = make(map[string]bool, len(c.Servers))
			for _, s := range c.Servers {
				allowed[s] = true
			}
		}
		t.servers[c.Name] = allowed
	}
	return t, nil
}

// Open reports whether there are no tenants, so that everybody is let in.
func (t *Tenants) Open() bool { return len(t.keys) == 0 }

// Authenticate returns the tenant of r, or why it is refused: [ErrNoToken],
// [ErrMalformed] or [ErrRefused]. A door answers each of them with status 401
// and the header of [Challenge].
func (t *Tenants) Authenticate(r *http.Request) (name string, err error) {
	if t.Open() {
		return Default, nil
	}
	token, err := bearer(r.Header)
	if err != nil {
		return "", err
	}
	return t.lookup(token)
}

// lookup finds the owner of token. It looks at every key, whatever it finds.
func (t *Tenants) lookup(token string) (string, error) {
	digest := sha256.Sum256([]byte(token))
	found := -1
	for i := range t.keys {
		same := subtle.ConstantTimeCompare(t.keys[i].digest[:], digest[:])
		found = subtle.ConstantTimeSelect(same, i, found)
	}
	if found < 0 {
		return "", ErrRefused
	}
	return t.keys[found].tenant, nil
}

// Allows reports whether the tenant called name may use server.
func (t *Tenants) Allows(name, server string) bool {
	if t.Open() {
		return name == Default
	}
	allowed, known := t.servers[name]
	return known && (allowed == nil || allowed[server])
}

// Challenge returns the value of the WWW-Authenticate header that goes with a
// refusal for err.
func Challenge(err error) string {
	if errors.Is(err, ErrRefused) {
		return `Bearer realm="specbox", error="invalid_token"`
	}
	return `Bearer realm="specbox"`
}

// bearer takes the token from the headers of a request.
func bearer(h http.Header) (string, error) {
	values := h.Values("Authorization")
	if len(values) == 0 {
		return "", ErrNoToken
	}
	if len(values) > 1 {
		return "", ErrMalformed
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(scheme, "Bearer") || token == "" || strings.ContainsAny(token, " \t,") {
		return "", ErrMalformed
	}
	return token, nil
}

// NewToken returns a fresh random token, and the hash that the configuration
// keeps of it.
func NewToken() (token, hash string) {
	var b [32]byte
	rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	token = prefix + base64.RawURLEncoding.EncodeToString(b[:])
	return token, Hash(token)
}

// Hash returns what the configuration keeps of token: "sha256:" and its digest
// in hex.
func Hash(token string) string {
	digest := sha256.Sum256([]byte(token))
	return hashPrefix + hex.EncodeToString(digest[:])
}

// parseHash reads what Hash writes. Its errors do not repeat h, which may be a
// token by mistake.
func parseHash(h string) (digest [sha256.Size]byte, err error) {
	text, ok := strings.CutPrefix(h, hashPrefix)
	if !ok {
		return digest, fmt.Errorf("it is no hash: write %s and 64 hex digits, as specbox token prints them, not the token itself", hashPrefix)
	}
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != len(digest) {
		return digest, fmt.Errorf("its hash is damaged: %s is followed by exactly 64 hex digits", hashPrefix)
	}
	copy(digest[:], b)
	return digest, nil
}
