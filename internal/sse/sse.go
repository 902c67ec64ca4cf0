// Package sse reads event streams (text/event-stream).
//
// Its laws: a stream means the same however it is split; lines end with CR, LF
// or both; what an event may hold is bounded, and of a longer one both ends are
// kept; no input makes it fail.
package sse

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"time"
)

// An Event is one event of a stream.
type Event struct {
	Type string // "" means "message"
	Data []byte // the lines of data, joined by \n; owned by the receiver

	// Of an event over the limit Size is the size of its data, Data is nil,
	// and Head and Tail are its first and last bytes.
	Size       int64
	Head, Tail []byte
}

// A Parser takes a stream in pieces. Its zero value is ready and has no limit.
// It is not safe for concurrent use.
type Parser struct {
	Limit int64 // bytes of data of one event; 0 means no limit. Set it before the first Feed.

	begun  bool   // the place of a byte order mark has passed
	cr     bool   // the last byte was a CR: an LF that follows belongs to it
	line   []byte // the beginning of a line that has not ended
	inData bool   // the line is one of data, and what came of it stands in data

	typ   string
	data  gatherer
	any   bool // the event has data, be it empty
	id    string
	last  string
	retry time.Duration
}

const (
	ends    = 4 << 10  // of a long event that are kept, enough to find an id
	maxLine = 64 << 10 // of a line that is no data; the rest of it is ignored
)

// LastID returns the id of the last event that had one.
func (p *Parser) LastID() string { return p.last }

// Retry returns how long the server wants clients to wait before they
// reconnect, or 0.
func (p *Parser) Retry() time.Duration { return p.retry }

var mark = []byte("\uFEFF")

// Feed takes the next bytes, which it does not keep, and calls emit with each
// event that they end.
func (p *Parser) Feed(b []byte, emit func(Event)) {
	if !p.begun {
		p.line = append(p.line, b...)
		if len(p.line) < len(mark) && bytes.HasPrefix(mark, p.line) {
			return
		}
		p.begun = true
		b = bytes.TrimPrefix(p.line, mark)
		p.line = nil
	}
	for len(b) > 0 {
		if p.cr {
			p.cr = false
			if b[0] == '\n' {
				b = b[1:]
				continue
			}
		}
		end := bytes.IndexByte(b, '\n')
		if end < 0 {
			end = len(b)
		}
		if i := bytes.IndexByte(b[:end], '\r'); i >= 0 {
			end = i
		}
		if end == len(b) {
			p.more(b)
			return
		}
		p.cr = b[end] == '\r'
		p.endLine(b[:end], emit)
		b = b[end+1:]
	}
}

// End takes the end of the stream. An event whose end is missing is emitted:
// servers leave out the last newline.
func (p *Parser) End(emit func(Event)) {
	if !p.begun {
		p.begun = true
		line := p.line
		p.line = nil
		p.more(line)
	}
	if len(p.line) > 0 || p.inData {
		p.endLine(nil, emit)
	}
	if p.any && (len(p.data.buf) > 0 || p.data.size > 0) {
		p.endLine(nil, emit)
	}
}

// more takes a part of a line that is not its end.
func (p *Parser) more(b []byte) {
	const field = "data: " // the space may be missing
	if n := min(len(b), len(field)-len(p.line)); !p.inData && n > 0 {
		p.line = append(p.line, b[:n]...)
		b = b[n:]
		if value, ok := bytes.CutPrefix(p.line, []byte(field[:5])); ok && len(value) > 0 {
			p.beginData(bytes.TrimPrefix(value, []byte(" ")))
			p.line = p.line[:0]
			p.inData = true
		}
	}
	if p.inData {
		p.data.add(b, p.Limit)
		return
	}
	p.line = append(p.line, b[:min(len(b), max(0, maxLine-len(p.line)))]...)
}

func (p *Parser) beginData(value []byte) {
	if p.any {
		p.data.add([]byte("\n"), p.Limit)
	}
	p.any = true
	p.data.add(value, p.Limit)
}

// endLine takes a line whose last part is b.
func (p *Parser) endLine(b []byte, emit func(Event)) {
	if p.inData || len(p.line) > 0 {
		p.more(b)
		b = p.line
		p.line = p.line[:0]
		if p.inData {
			p.inData = false
			return
		}
	}
	if len(b) == 0 {
		p.dispatch(emit)
		return
	}
	name, value, _ := bytes.Cut(b, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(name) {
	case "data":
		p.beginData(value)
	case "event":
		p.typ = string(value)
	case "id":
		if bytes.IndexByte(value, 0) < 0 {
			p.id = string(value)
		}
	case "retry":
		const most = 1 << 31 // ms
		if n, err := strconv.ParseUint(string(value), 10, 64); err == nil && n < most {
			p.retry = time.Duration(n) * time.Millisecond
		}
	}
}

func (p *Parser) dispatch(emit func(Event)) {
	p.last = p.id
	e := Event{Type: p.typ}
	had := p.any
	p.data.take(&e)
	p.typ, p.any = "", false
	if had {
		emit(e)
	}
}

// A gatherer gathers data up to a limit, and beyond it keeps both ends.
type gatherer struct {
	buf  []byte // all of it, or the head
	tail []byte
	size int64 // of data over the limit; 0 if it is not
}

func (g *gatherer) add(b []byte, limit int64) {
	switch {
	case g.size > 0:
		g.size += int64(len(b))
	case limit > 0 && int64(len(g.buf)+len(b)) > limit:
		g.size = int64(len(g.buf) + len(b))
		g.tail = bytes.Clone(g.buf[max(0, len(g.buf)-ends):])
		head := bytes.Clone(g.buf[:min(len(g.buf), ends)]) // the rest may be large
		g.buf = append(head, b[:min(len(b), ends-len(head))]...)
	default:
		g.buf = append(g.buf, b...)
		return
	}
	g.tail = append(g.tail, b[max(0, len(b)-ends):]...)
	g.tail = append(g.tail[:0], g.tail[max(0, len(g.tail)-ends):]...)
}

func (g *gatherer) take(e *Event) {
	if g.size > 0 {
		e.Size, e.Head, e.Tail = g.size, g.buf, g.tail
	} else {
		e.Data = g.buf
	}
	*g = gatherer{}
}

// A Reader reads the events of a stream. It is not safe for concurrent use.
type Reader struct {
	Parser
	r     io.Reader
	buf   []byte
	queue []Event
	err   error
}

// NewReader returns a Reader of r; see [Parser] for the limit.
func NewReader(r io.Reader, limit int64) *Reader {
	return &Reader{Parser: Parser{Limit: limit}, r: r, buf: make([]byte, 32<<10)}
}

// Next returns the next event. After the last it returns the error of the
// underlying reader: io.EOF for an end in good order.
func (r *Reader) Next() (Event, error) {
	emit := func(e Event) { r.queue = append(r.queue, e) }
	for len(r.queue) == 0 {
		if r.err != nil {
			return Event{}, r.err
		}
		var n int
		n, r.err = r.r.Read(r.buf)
		r.Feed(r.buf[:n], emit)
		if errors.Is(r.err, io.EOF) {
			r.End(emit)
		}
	}
	e := r.queue[0]
	r.queue = r.queue[1:]
	return e, nil
}
