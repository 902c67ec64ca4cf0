package remote

import (
	"context"
	"errors"
	"io"
	"net/url"

	"github.com/specbox/specbox/internal/sse"
)

// openSSE opens the event stream of an HTTP with SSE server and waits for the
// event that tells where messages go. The stream then lives on; its end is
// that of the connection.
func (i *instance) openSSE(ctx context.Context) error {
	type opened struct {
		endpoint *url.URL
		err      error
	}
	result := make(chan opened, 1)
	life, cancel := context.WithCancel(i.ctx)
	ok := i.begin(func() {
		defer cancel()
		res, err := i.get(life, "")
		if err != nil {
			result <- opened{err: err}
			return
		}
		defer res.Body.Close()
		r := sse.NewReader(res.Body, i.limit)
		endpoint, err := i.endpointOf(r)
		result <- opened{endpoint, err}
		if err == nil {
			i.legacyEvents(r)
		}
	})
	if !ok {
		cancel()
		return i.errClosed()
	}
	select {
	case o := <-result:
		if o.err != nil {
			return o.err
		}
		i.mu.Lock()
		i.endpoint = o.endpoint
		i.mu.Unlock()
		return nil
	case <-ctx.Done():
		cancel()
		return context.Cause(ctx)
	}
}

// endpointOf reads up to the event that names the endpoint. It must be of the
// same scheme and host: messages and headers go there.
func (i *instance) endpointOf(r *sse.Reader) (*url.URL, error) {
	for {
		e, err := r.Next()
		if err != nil {
			return nil, i.fault(err)
		}
		if e.Type != "endpoint" {
			continue
		}
		u, err := i.url.Parse(string(e.Data))
		if err != nil || u.Scheme != i.url.Scheme || u.Host != i.url.Host {
			return nil, &fault{text: i.where + ": its event stream names an endpoint of another host, which is not used"}
		}
		return u, nil
	}
}

// legacyEvents delivers the messages of the stream until it ends.
func (i *instance) legacyEvents(r *sse.Reader) {
	for {
		e, err := r.Next()
		switch {
		case i.ctx.Err() != nil:
			return
		case errors.Is(err, io.EOF):
			i.gone("the server has closed the event stream")
			return
		case err != nil:
			i.gone("the event stream broke off: " + describe(err))
			return
		}
		i.event(e)
	}
}
