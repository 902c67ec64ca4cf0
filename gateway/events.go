package gateway

import (
	"bytes"
	"errors"
	"net/http"
	"time"
)

// events writes server-sent events.
type events struct {
	w     http.ResponseWriter
	rc    *http.ResponseController // nil if what is written is too small to block
	track int                      // names the stream in ids; 0 for no ids
	retry bool                     // the client was told when to come back
}

func eventsOn(w http.ResponseWriter) *events {
	return &events{w: w, rc: http.NewResponseController(w)}
}

// newEvents begins an event stream. Its headers go out at once; with sign, a
// comment too.
func newEvents(w http.ResponseWriter, sign bool) *events {
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

// prime tells a client the name of the stream before there is anything to say,
// by an event without data, and reports whether it could.
func (e *events) prime(track int) bool {
	b := appendEventID([]byte("id: "), track, 0)
	b = append(append(append(b, '\n'), retry...), "data: \n\n"...)
	e.extend()
	e.retry = e.raw(b) == nil && e.flush() == nil
	return e.retry
}

// pump writes what take returns each time that wake is ready, and signs of life
// in between, until take says that it was the last: then it returns true. If the
// client is gone, or stop is closed, it returns what it could not write and
// false.
func (e *events) pump(gone <-chan struct{}, rd *reader, take func() ([]item, bool)) (rest []item, ok bool) {
	tick := time.NewTicker(keepAlive)
	defer tick.Stop()
	for {
		var err error
		select {
		case <-gone:
			return nil, false
		case <-rd.stop:
			return nil, false
		case <-rd.wake:
		case <-tick.C:
			e.extend()
			err = e.raw([]byte(": keep-alive\n\n"))
		}
		items, last := take()
		for i := 0; i < len(items) && err == nil; i++ {
			if err = e.item(&items[i]); err != nil {
				items = items[i:]
			}
		}
		if err == nil {
			err = e.flush()
		}
		if err != nil {
			return items, false
		}
		if last {
			return nil, true
		}
	}
}

func (e *events) item(it *item) error {
	if it.kind == reply {
		parts := it.answer.parts()
		return e.event(it.seq, parts[:]...)
	}
	return e.event(it.seq, it.data)
}

var (
	eventHead = []byte("event: message\n")
	eventData = []byte("data: ")
	eventLine = []byte("\ndata: ")
	eventTail = []byte("\n\n")

	// retry is how long a client should wait before it comes back.
	retry = []byte("retry: 500\n")
)

// event writes one message. Line ends inside, which JSON allows between its
// tokens, begin new data lines.
func (e *events) event(seq int, parts ...[]byte) error {
	var room [128]byte
	head := append(room[:0], eventHead...)
	if e.track > 0 {
		head = append(appendEventID(append(head, "id: "...), e.track, seq), '\n')
		if !e.retry {
			head = append(head, retry...)
			e.retry = true
		}
	}
	e.extend()
	err := e.raw(append(head, eventData...))
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
func (e *events) raw(p []byte) error {
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

func (e *events) flush() error {
	e.extend()
	if err := e.rc.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// extend gives the client time to read. A writer without deadlines has no client
// that could stall. The HTTP server takes the deadline back after the response.
func (e *events) extend() {
	if e.rc != nil {
		_ = e.rc.SetWriteDeadline(time.Now().Add(stall))
	}
}
