package tap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"

	"github.com/specbox/specbox/wire"
)

// refuse answers with an error, in the form that the API's clients read.
func refuse(w http.ResponseWriter, rt route, status int, message string) {
	kind := map[int]string{
		http.StatusBadRequest:         "invalid_request_error",
		http.StatusUnauthorized:       "authentication_error",
		http.StatusNotFound:           "not_found_error",
		http.StatusServiceUnavailable: "overloaded_error",
	}[status]
	if kind == "" {
		kind = "api_error"
	}
	text := wire.Quote(message)
	var b []byte
	if rt.family == Anthropic {
		b = fmt.Appendf(nil, `{"type":"error","error":{"type":%q,"message":%s}}`, kind, text)
	} else {
		b = fmt.Appendf(nil, `{"error":{"message":%s,"type":%q,"param":null,"code":null}}`, text, kind)
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	if status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer")
	}
	w.WriteHeader(status)
	_, _ = w.Write(b) // a client that has left does not read it
}

// unreachable answers a request that got no answer from its upstream.
func (p *Proxy) unreachable(w http.ResponseWriter, r *http.Request, up *upstream, err error) {
	s := sendingOf(r.Context())
	if r.Context().Err() != nil && p.life.Err() == nil {
		panic(http.ErrAbortHandler) // the client has left
	}
	p.failed.Add(1)
	status, advice := http.StatusBadGateway, "see whether it runs, and whether url of the upstream is right"
	var late net.Error
	switch {
	case p.life.Err() != nil:
		status, advice = http.StatusServiceUnavailable, "SpecBox is stopping: try again in a moment"
	case errors.As(err, &late) && late.Timeout() || errors.Is(err, context.DeadlineExceeded):
		status, advice = http.StatusGatewayTimeout, "try again, or give the upstream a longer timeout"
	}
	message := fmt.Sprintf("LLM upstream %q at %s gave no answer: %v: %s", up.Name, up.url.Host, err, advice)
	p.log.Warn("an LLM upstream gave no answer", "upstream", up.Name, "host", up.url.Host, "error", err)
	refuse(w, s.route, status, message)
}
