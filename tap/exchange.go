package tap

import (
	"runtime/debug"
	"sync"

	"github.com/specbox/specbox/internal/sse"
)

// A form is what an answer looks like.
type form int

const (
	unknown    form = iota // it has not begun
	events                 // a stream
	document               // one JSON value
	lines                  // of /sessions/KEY/stream
	unreadable             // of no interest, or packed
)

// An exchange is one request and its answer, as they are looked at. What passes
// is handed to it by the one who serves the client, who never waits for it; its
// own goroutine looks at it and tells the observer.
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

	wake chan struct{} // of size one: look again

	// What follows is the goroutine's.
	spare       []byte
	who         recognition
	watcher     Watcher
	answer      answer
	stream      sse.Parser
	whole       []byte
	emit        func(sse.Event)
	named, told bool
}

// begin looks at a request, and at what its answer will be. Body is nil if it
// cannot be looked at.
func (p *Proxy) begin(rt route, tenant string, body []byte) *exchange {
	x := p.exchange(rt, tenant)
	p.work.Go(func() {
		defer p.done()
		defer x.recovered()
		x.observe(body)
		x.follow()
	})
	return x
}

// exchange makes one that is counted as active.
func (p *Proxy) exchange(rt route, tenant string) *exchange {
	p.exchanges.Add(1)
	p.mu.Lock()
	p.active++
	p.mu.Unlock()
	return &exchange{p: p, route: rt, tenant: tenant, wake: make(chan struct{}, 1)}
}

func (p *Proxy) done() {
	p.mu.Lock()
	p.active--
	p.mu.Unlock()
}

// recovered keeps a fault of what looks on from everything else.
func (x *exchange) recovered() {
	fault := recover()
	if fault == nil {
		return
	}
	x.ignore()
	x.p.unread.Add(1)
	x.p.log.Error("looking at an LLM's stream met a fault; the stream goes on", "fault", fault, "stack", string(debug.Stack()))
}

// ignore lets the rest pass unseen.
func (x *exchange) ignore() {
	x.mu.Lock()
	x.deaf, x.pending = true, nil
	x.mu.Unlock()
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

// look lets the goroutine look at what it holds.
func (x *exchange) look() {
	select {
	case x.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// end says that nothing more will come.
func (x *exchange) end() {
	x.mu.Lock()
	x.over = true
	x.mu.Unlock()
	x.look()
}

// observe reads the request and tells the observer of it.
func (x *exchange) observe(raw []byte) {
	p := x.p
	req := &Request{Tenant: x.tenant, Key: x.route.key, API: x.route.api}
	if b, ok := p.reader.read(x.route.api, raw); !ok {
		p.unread.Add(1)
	} else {
		if req.Key == "" && isKey(b.key) {
			req.Key = b.key
		}
		x.who = p.memory.recognize(x.tenant, req.Key, b)
		req.Conversation, req.Continued, req.Parent = x.who.id, x.who.continued, x.who.parent
		req.Model, req.Tools = b.model, toolList(b.tools)
		for _, i := range x.who.fresh {
			req.New = append(req.New, b.items[i].messages(x.route.api)...)
		}
	}
	if p.cfg.Observer != nil {
		x.watcher = p.cfg.Observer.Observe(req)
	}
	if x.watcher == nil {
		x.ignore()
	}
}

// follow looks at the answer until it is over.
func (x *exchange) follow() {
	if x.watcher == nil {
		return
	}
	defer x.watcher.End()
	x.answer = answer{api: x.route.api, tell: x.tell, called: x.called, answered: x.answered}
	x.stream.Limit = maxEvent
	x.emit = x.answer.event
	for {
		<-x.wake
		x.mu.Lock()
		b, f, gap, over := x.pending, x.form, x.gap, x.over
		x.pending, x.gap = x.spare[:0], false
		x.mu.Unlock()
		x.feed(f, b)
		if gap {
			x.lose(f)
		}
		const keep = 64 << 10 // of memory for what is to come
		if x.spare = b; cap(b) > keep {
			x.spare = nil
		}
		if over {
			x.finish(f)
			return
		}
	}
}

// feed looks at a piece of the answer.
func (x *exchange) feed(f form, b []byte) {
	switch f {
	case events:
		x.stream.Feed(b, x.emit)
	case document:
		x.whole = append(x.whole, b...)
		if len(x.whole) > maxWhole {
			x.lose(f)
		}
	}
}

// lose says that a piece is missing. Of a stream the event that it was in goes
// with it.
func (x *exchange) lose(f form) {
	switch f {
	case events:
		x.stream.Feed([]byte("\n\n"), x.emit)
	case document:
		x.whole = nil
		x.ignore()
		x.p.unread.Add(1)
	}
}

// finish takes the end of the answer.
func (x *exchange) finish(f form) {
	switch {
	case f == events:
		x.stream.End(x.emit)
		x.answer.end()
	case f == document && x.whole != nil:
		x.answer.whole(x.whole)
	}
	x.p.skipped.Add(x.answer.skipped)
}

// tell passes a delta on.
func (x *exchange) tell(d Delta) {
	if !x.told {
		x.told = true
		x.answered("")
	}
	x.watcher.Delta(d)
}

// answered notes that the answer is reported, and by what id it goes.
func (x *exchange) answered(id string) {
	if x.who.in != nil {
		x.p.memory.answered(x.who, x.tenant, id)
	}
}

// called notes a call, by which the conversation is known when it comes back.
func (x *exchange) called(id string) {
	if x.who.in != nil {
		x.p.memory.called(x.who.in, x.tenant, id)
	}
}
