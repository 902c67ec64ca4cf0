package tap

import (
	"runtime/debug"
	"sync"
)

// A form is what an answer looks like.
type form int

const (
	unknown    form = iota // it has not begun
	events                 // a stream
	document               // one JSON value
	lines                  // of /sessions/KEY/stream
	plain                  // text of the same
	unreadable             // of no interest, or packed
)

// An exchange is one request and its answer, as they are looked at. What passes
// is handed to it by the one who serves the client, who never waits for it; a
// looker looks at it and tells the observer.
type exchange struct {
	p      *Proxy
	route  route
	tenant string

	mu      sync.Mutex
	form    form
	pending []byte // not looked at yet
	gap     bool   // something is missing behind pending
	over    bool   // nothing more will come
	deaf    bool   // nobody wants to know

	// Of the lookers, whose lock guards them.
	queued, busy, again bool

	// Of the looker that looks.
	reader   reader
	spare    []byte
	finished bool
}

// A reader makes something of what passes. It is used by one goroutine at a time.
type reader interface {
	// feed takes a piece.
	feed(f form, b []byte)
	// lose says that a piece is missing behind the last.
	lose(f form)
	// finish takes the end, and tells the observer of it.
	finish(f form)
}

// open makes an exchange and lets prepare make ready what reads it, without the
// client having to wait.
func (p *Proxy) open(rt route, tenant string, prepare func(*exchange) reader) *exchange {
	p.exchanges.Add(1)
	x := &exchange{p: p, route: rt, tenant: tenant, busy: true}
	p.mu.Lock()
	p.active++
	p.mu.Unlock()
	p.work.Add(1) // until it is finished
	p.work.Go(func() {
		x.guard(func() { x.reader = prepare(x) })
		if x.reader == nil {
			x.ignore()
		}
		p.lookers.free(x)
	})
	return x
}

// listen says what the answer looks like, before its first byte.
func (x *exchange) listen(f form) {
	x.mu.Lock()
	x.form = f
	x.mu.Unlock()
	if f == unreadable {
		x.p.unread.Add(1)
	}
}

// hold takes a copy of bytes that went to the client.
func (x *exchange) hold(b []byte) {
	x.mu.Lock()
	switch {
	case x.deaf || x.form == unknown || x.form == unreadable:
	case x.gap || len(x.pending)+len(b) > x.p.cfg.Limits.Pending:
		x.gap = true
		x.p.dropped.Add(int64(len(b)))
	default:
		x.pending = append(x.pending, b...)
	}
	x.mu.Unlock()
}

// end says that nothing more will come.
func (x *exchange) end() {
	x.mu.Lock()
	x.over = true
	x.mu.Unlock()
	x.p.lookers.look(x)
}

// ignore lets the rest pass unseen.
func (x *exchange) ignore() {
	x.mu.Lock()
	x.deaf, x.pending = true, nil
	x.mu.Unlock()
}

// drain looks at what was handed over.
func (x *exchange) drain() {
	x.mu.Lock()
	b, f, gap, over := x.pending, x.form, x.gap, x.over
	x.pending, x.gap = x.spare[:0], false
	x.mu.Unlock()
	const keep = 64 << 10 // of memory for what is to come
	if x.spare = b; cap(b) > keep {
		x.spare = nil
	}
	if x.reader != nil && (len(b) > 0 || gap) {
		x.guard(func() {
			x.reader.feed(f, b)
			if gap {
				x.reader.lose(f)
			}
		})
	}
	if !over || x.finished {
		return
	}
	x.finished = true
	if x.reader != nil {
		x.guard(func() { x.reader.finish(f) })
	}
	x.p.mu.Lock()
	x.p.active--
	x.p.mu.Unlock()
	x.p.work.Done()
}

// guard keeps a fault of what looks on from everything else.
func (x *exchange) guard(f func()) {
	defer func() {
		if fault := recover(); fault != nil {
			x.ignore()
			x.p.unread.Add(1)
			x.p.log.Error("looking at an LLM's stream met a fault; the stream goes on", "fault", fault, "stack", string(debug.Stack()))
		}
	}()
	f()
}
