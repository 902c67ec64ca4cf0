package gateway

import "net/http"

// Guard returns a handler that answers as h does, to those whose Host and Origin
// the gateway answers too: what stands beside it must not be read by the pages of
// a foreign site either.
func (g *Gateway) Guard(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.admits(w, r) {
			h.ServeHTTP(w, r)
		}
	})
}
