package tenant

import (
	"errors"
	"net/http"
)

// Header carries the token of a request to a model, whose Authorization belongs
// to whom it is passed on to.
const Header = "X-Specbox-Token"

// ErrNoModelToken is why a request to a model is refused that brings no token.
var ErrNoModelToken = errors.New("no token of SpecBox: send the header " + Header + ": TOKEN, or, where SpecBox has the credentials of the upstream, use TOKEN as the API key")

// TakeToken returns the tenant of a request to a model, and takes the token out
// of it, so that no upstream ever sees one. The token stands in [Header]; or it
// is the API key itself, of clients that leave the upstream's credentials to
// SpecBox. The errors are those of Authenticate, and [ErrNoModelToken].
func (t *Tenants) TakeToken(r *http.Request) (name string, err error) {
	own := r.Header.Values(Header)
	r.Header.Del(Header)
	if t.Open() {
		return Default, nil
	}
	switch {
	case len(own) > 1:
		return "", ErrMalformed
	case len(own) == 1:
		return t.lookup(own[0])
	}
	if token, err := bearer(r.Header); err == nil {
		if name, err := t.lookup(token); err == nil {
			r.Header.Del("Authorization")
			return name, nil
		}
	}
	if name, err := t.lookup(r.Header.Get("X-Api-Key")); err == nil {
		r.Header.Del("X-Api-Key")
		return name, nil
	}
	return "", ErrNoModelToken
}
