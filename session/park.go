package session

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/specbox/specbox/wire"
)

// A modern client cannot be asked while its call runs: it is answered that input
// is required, and calls again with the answers. A legacy server asks in the
// middle of a call. So the call is parked: it goes on running in its sandbox
// while the client fetches the answers, and the client's next request takes it
// up again by the state that it was given.
//
// A state opens one parked call, once, for the tenant and the conversation that
// it was given to, with the same request. It says nothing and cannot be made up.

// parkPrefix tells our states from those of servers.
const parkPrefix = "specbox-"

// parkTTL is how long a client may take to answer: a human may have to.
const parkTTL = 10 * time.Minute

// maxParked bounds the calls that wait for clients.
const maxParked = 10_000

// A parked is a call of a modern client on a legacy server.
type parked struct {
	s      *Session
	digest func() [sha256.Size]byte // of the request
	relay  *relay
	asks   chan *ask // what the server asks, as it comes
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when reply is there
	reply  wire.Reply

	// Owned by the request that has the call: only one has.
	sum   [sha256.Size]byte // the digest, once it is parked
	open  map[string]*ask   // shown to the client
	count int
	timer *time.Timer
}

// maxQuestions bounds what a server may ask at once in one call.
const maxQuestions = 64

// park runs a call that may have to wait for its client.
func (s *Session) park(ctx context.Context, t target, m wire.Message, stream wire.Sender) wire.Reply {
	life, cancel := context.WithCancelCause(s.life)
	p := &parked{
		s: s, digest: digestOf(m), relay: &relay{to: stream}, cancel: cancel,
		asks: make(chan *ask, maxQuestions), done: make(chan struct{}), open: map[string]*ask{},
	}
	started := s.hub.spawn(func() {
		defer close(p.done)
		defer cancel(nil)
		p.reply = s.forward(life, t, m, p.relay, p)
	})
	if !started {
		cancel(nil)
		return wire.Fail(wire.CodeServer, "%v", ErrClosed)
	}
	return p.wait(ctx)
}

// wait returns the server's reply, or that input is required. A client that
// leaves cancels the call.
func (p *parked) wait(ctx context.Context) wire.Reply {
	select {
	case <-p.done:
		return p.reply
	case a := <-p.asks:
		p.show(a)
		return p.leave()
	case <-ctx.Done():
		p.cancel(context.Cause(ctx))
		<-p.done
		return p.reply
	}
}

func (p *parked) show(a *ask) {
	p.count++
	p.open["q"+strconv.Itoa(p.count)] = a
}

// take gives the call a question of its server. It does not block.
func (p *parked) take(a *ask) bool {
	select {
	case <-p.done:
		return false
	case p.asks <- a:
		return true
	default:
		return false
	}
}

// leave parks the call and tells the client what is asked.
func (p *parked) leave() wire.Reply {
	for more := true; more; {
		select {
		case a := <-p.asks:
			p.show(a)
		default:
			more = false
		}
	}
	requests := []byte("{}")
	for key, a := range p.open {
		params := a.params
		if params == nil {
			params = []byte("{}") // some clients fail on a request without any
		}
		r := append(append(append([]byte(`{"method":`), wire.Quote(a.method)...), `,"params":`...), params...)
		requests = wire.Set(requests, append(r, '}'), key)
	}
	p.relay.attach(nil, nil)
	p.sum = p.digest()
	state := parkPrefix + rand.Text()
	if err := p.s.hub.keep(state, p); err != nil {
		p.abandon(err)
		return wire.Fail(wire.CodeServer, "%v", err)
	}
	b := append([]byte(`{"resultType":"input_required","inputRequests":`), requests...)
	b = append(append(b, `,"requestState":`...), wire.Quote(state)...)
	return wire.Reply{Result: append(b, '}')}
}

// abandon ends a parked call that nobody will take up again.
func (p *parked) abandon(why error) {
	p.cancel(why)
	for _, a := range p.open {
		a.answer(wire.Fail(wire.CodeServer, "the client did not answer: %v", why))
	}
}

// keep remembers a parked call until it is taken up, or for too long.
func (h *Hub) keep(state string, p *parked) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return ErrClosed
	}
	if len(h.parks) >= maxParked {
		return fmt.Errorf("%d calls wait for their clients' answers, which is the limit", maxParked)
	}
	h.parks[state] = p
	p.timer = time.AfterFunc(parkTTL, func() {
		h.spawn(func() {
			if h.drop(state) {
				p.abandon(fmt.Errorf("no answer within %v", parkTTL))
			}
		})
	})
	return nil
}

func (h *Hub) drop(state string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, ok := h.parks[state]
	delete(h.parks, state)
	return ok
}

// claim gives a parked call to the one request that may take it up.
func (h *Hub) claim(state string, s *Session, digest [sha256.Size]byte) (*parked, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.parks[state]
	if p == nil || p.s.tenant != s.tenant || p.s.conversation != s.conversation || p.s.only != s.only {
		return nil, wire.Errorf(wire.CodeInvalidParams, "requestState is not known: it was used already, has expired, or was not given to you")
	}
	if p.sum != digest {
		return nil, wire.Errorf(wire.CodeInvalidParams, "requestState belongs to another request: send the same method, name and arguments again")
	}
	delete(h.parks, state)
	p.timer.Stop()
	return p, nil
}

// resume takes a parked call up again, with the client's answers.
func (s *Session) resume(ctx context.Context, m wire.Message, stream wire.Sender) wire.Reply {
	p, err := s.hub.claim(wire.Str(m.Params, "requestState"), s, digest(m))
	if err != nil {
		return wire.Reply{Error: err.(*wire.Error).JSON()}
	}
	p.relay.attach(stream, bytes.Clone(wire.Get(m.Params, "_meta", "progressToken")))
	answers := wire.Get(m.Params, "inputResponses")
	for key, a := range p.open {
		if r := wire.Get(answers, key); r != nil {
			delete(p.open, key)
			a.answer(wire.Reply{Result: bytes.Clone(r)})
		}
	}
	if len(p.open) > 0 {
		return p.leave()
	}
	return p.wait(ctx)
}

// parkedState reports whether a request wants to take up a parked call.
func parkedState(params []byte) bool {
	return bytes.Contains(params, []byte(parkPrefix)) && strings.HasPrefix(wire.Str(params, "requestState"), parkPrefix)
}

// maxKept bounds the messages that are kept while their calls are under way.
const maxKept = 64 << 10

// digestOf returns a func that returns the digest of m. Few calls are parked, so
// that it is left for then; but a large message is not kept for that.
func digestOf(m wire.Message) func() [sha256.Size]byte {
	if len(m.Raw) <= maxKept {
		return func() [sha256.Size]byte { return digest(m) }
	}
	sum := digest(m)
	return func() [sha256.Size]byte { return sum }
}

// digest names a request by what it asks for, however that is spelled.
func digest(m wire.Message) [sha256.Size]byte {
	var args any
	dec := json.NewDecoder(bytes.NewReader(wire.Get(m.Params, "arguments")))
	dec.UseNumber()
	_ = dec.Decode(&args) // none is fine
	b, err := json.Marshal([]any{m.Method, wire.Str(m.Params, "name"), wire.Str(m.Params, "uri"), args})
	if err != nil {
		b = m.Raw
	}
	return sha256.Sum256(b)
}

// A relay leads from a call to the request that has it at the moment.
type relay struct {
	mu    sync.Mutex
	to    wire.Sender // nil while nobody has it
	token []byte      // progress token of that request, if it is another one
}

func (r *relay) attach(to wire.Sender, token []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.to, r.token = to, token
}

// Send passes a message on. While the call is parked nobody hears it.
func (r *relay) Send(parts ...[]byte) error {
	r.mu.Lock()
	to, token := r.to, r.token
	r.mu.Unlock()
	if to == nil {
		return nil
	}
	if token == nil {
		return to.Send(parts...)
	}
	msg := bytes.Join(parts, nil)
	if m, err := wire.Parse(msg); err == nil && m.Method == "notifications/progress" {
		msg = wire.Replace(msg, token, "params", "progressToken")
	}
	return to.Send(msg)
}
