package gateway

import (
	"bytes"
	"errors"
	"net/http"
	"time"
)

// events writes server-sent events.
type events struct {
	w  http.ResponseWriter
	rc *http.ResponseController // nil if what is written is too small to block
}

func eventsOn(w http.ResponseWriter) events { return events{w, http.NewResponseController(w)} }

// newEvents begins an event stream. Its headers go out at once; with sign, a
// comment too.
func newEvents(w http.ResponseWriter, sign bool) events {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	e := eventsOn(w)
	e.extend()
	if sign {
		_ = e.raw([]byte(": working\n\n")) // an error shows again with the next write
	}
	_ = e.flush()
	return e
}

// pump writes what take returns each time that wake is ready, and signs of life
// in between, until stop is closed: then it writes the last and returns true. If
// the client is gone it returns what it could not write and false.
func (e events) pump(gone, stop, wake <-chan struct{}, take func() []item) (rest []item, ok bool) {
	tick := time.NewTicker(keepAlive)
	defer tick.Stop()
	for last := false; !last; {
		var err error
		select {
		case <-gone:
			return nil, false
		case <-stop:
			last = true
		case <-wake:
		case <-tick.C:
			e.extend()
			err = e.raw([]byte(": keep-alive\n\n"))
		}
		items := take()
		for i := 0; i < len(items) && err == nil; i++ {
			if err = e.event(items[i].data); err != nil {
				items = items[i:]
			}
		}
		if err == nil {
			err = e.flush()
		}
		if err != nil {
			return items, false
		}
	}
	return nil, true
}

var (
	eventHead = []byte("event: message\ndata: ")
	eventLine = []byte("\ndata: ")
	eventTail = []byte("\n\n")
)

// event writes one message. Line ends inside, which JSON allows between its
// tokens, begin new data lines.
func (e events) event(parts ...[]byte) error {
	e.extend()
	err := e.raw(eventHead)
	for _, p := range parts {
		feed, ret := bytes.IndexByte(p, '\n'), bytes.IndexByte(p, '\r')
		for err == nil && (feed >= 0 || ret >= 0) {
			n := feed
			if n < 0 || (ret >= 0 && ret < n) {
				n = ret
			}
			err = errors.Join(e.raw(p[:n]), e.raw(eventLine))
			p = p[n+1:]
			feed, ret = following(p, feed-n-1, '\n'), following(p, ret-n-1, '\r')
		}
		if err == nil {
			err = e.raw(p)
		}
	}
	if err != nil {
		return err
	}
	return e.raw(eventTail)
}

// following keeps the index i of c in p, or finds the next one where i was
// passed. It is -1, or less, once there is none.
func following(p []byte, i int, c byte) int {
	if i == -1 {
		return bytes.IndexByte(p, c)
	}
	return i
}

// raw writes p, and gives up on a client that does not read.
func (e events) raw(p []byte) error {
	for len(p) > chunk {
		e.extend()
		if _, err := e.w.Write(p[:chunk]); err != nil {
			return err
		}
		p = p[chunk:]
		e.extend()
	}
	_, err := e.w.Write(p)
	return err
}

func (e events) flush() error {
	e.extend()
	if err := e.rc.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// extend gives the client time to read. A writer without deadlines has no client
// that could stall. The HTTP server takes the deadline back after the response.
func (e events) extend() {
	if e.rc != nil {
		_ = e.rc.SetWriteDeadline(time.Now().Add(stall))
	}
}
