package tap

import "github.com/specbox/specbox/internal/sse"

// A reading tells an observer of an exchange that passed through the proxy.
type reading struct {
	x       *exchange
	who     recognition
	watcher Watcher
	answer  answer
	stream  sse.Parser
	whole   []byte
	emit    func(sse.Event)
	told    bool
}

// observe reads a request, nil if it cannot be looked at, and tells the observer
// of it. It returns nil if nobody wants to know of the answer.
func (x *exchange) observe(raw []byte) reader {
	p := x.p
	r := &reading{x: x}
	req := &Request{Tenant: x.tenant, Key: x.route.key, API: x.route.api}
	if b, ok := p.memory.read(x.route.api, raw); !ok {
		p.unread.Add(1)
	} else {
		if req.Key == "" && isKey(b.key) {
			req.Key = b.key
		}
		r.who = p.memory.recognize(x.tenant, req.Key, b)
		req.Conversation, req.Continued, req.Parent = r.who.id, r.who.continued, r.who.parent
		req.Model, req.Tools = b.model, toolList(b.tools)
		for _, i := range r.who.fresh {
			req.New = append(req.New, b.items[i].messages(x.route.api)...)
		}
	}
	if p.cfg.Observer != nil {
		r.watcher = p.cfg.Observer.Observe(req)
	}
	if r.watcher == nil {
		return nil
	}
	r.answer = answer{api: x.route.api, tell: r.tell, called: r.called, answered: r.answered}
	r.stream.Limit = maxEvent
	r.emit = r.answer.event
	return r
}

func (r *reading) feed(f form, b []byte) {
	switch f {
	case events:
		r.stream.Feed(b, r.emit)
	case document:
		if r.whole = append(r.whole, b...); len(r.whole) > maxWhole {
			r.lose(f)
		}
	}
}

// lose drops what the missing piece was a part of: an event, or all.
func (r *reading) lose(f form) {
	switch f {
	case events:
		r.stream.Feed([]byte("\n\n"), r.emit)
	case document:
		r.whole = nil
		r.x.ignore()
		r.x.p.unread.Add(1)
	}
}

func (r *reading) finish(f form) {
	defer r.watcher.End()
	switch {
	case f == events:
		r.stream.End(r.emit)
		r.answer.end()
	case f == document && r.whole != nil:
		r.answer.whole(r.whole)
	}
	r.x.p.skipped.Add(r.answer.skipped)
}

// tell passes a delta on.
func (r *reading) tell(d Delta) {
	if !r.told {
		r.told = true
		r.answered("")
	}
	r.watcher.Delta(d)
}

// answered notes that the answer is reported, and by what id it goes.
func (r *reading) answered(id string) {
	if r.who.in != nil {
		r.x.p.memory.answered(r.who, id)
	}
}

// called notes a call, by which the conversation is known when it comes back.
func (r *reading) called(id string) {
	if r.who.in != nil {
		r.x.p.memory.called(r.who, id)
	}
}
