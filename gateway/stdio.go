package gateway

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/specbox/specbox/wire"
)

// grace is how long requests may still take after the end of the input: a pipe
// such as "echo REQUEST | specbox stdio" ends before a server has started.
const grace = 10 * time.Second

// stdio is a client on a pair of pipes.
type stdio struct {
	g     *Gateway
	o     Opening
	lines *wire.Lines
	life  context.Context // ends with the client, or with what it can be told
	end   context.CancelCauseFunc
	work  sync.WaitGroup // requests under way, and the writer
	in    chan input
	wake  chan struct{}
	name  string // unguessable

	listens  context.Context // ends when the client can ask no more
	unlisten context.CancelFunc

	stays   map[string]*conversation // of modern requests, by key; of the reading goroutine alone, as what follows
	c       *conversation
	unhook  func() bool // the gateway's end does not end s any more
	unlink  func() bool // c's end does not end s any more
	opening chan answer // brings the answer to the initialize under way; nil if there is none
	held    []wire.Message

	mu      sync.Mutex
	queue   queue
	answers int           // in the queue, or being written
	bytes   int64         // of them
	room    chan struct{} // ready when there are fewer
	ended   bool          // nothing is written any more
}

// ServeStdio serves one client that writes newline-delimited messages to r and
// reads them from w, until r ends or ctx does. When r ends, requests under way
// may be answered within ten seconds. It returns nil if r ended in order,
// otherwise why it could not go on. Of o, Tenant and Server count.
//
// When ctx ends, requests under way are answered with an error, and r is closed
// if it is an [io.Closer]. A Read of r that does not end by that, and a Write to
// w that takes longer than a second, are left behind.
//
// A client of either era may be there, and one of both: every message says which
// it belongs to.
func (g *Gateway) ServeStdio(ctx context.Context, r io.Reader, w io.Writer, o Opening) error {
	s := &stdio{g: g, o: o, in: make(chan input), wake: make(chan struct{}, 1), room: make(chan struct{}, 1)}
	s.o.Tenant = cmp.Or(o.Tenant, DefaultTenant)
	s.queue = queue{limits: &g.cfg.Limits, dropped: &g.dropped}
	s.life, s.end = context.WithCancelCause(ctx)
	defer s.end(nil)
	s.name = "stdio-" + rand.Text()
	s.listens, s.unlisten = context.WithCancel(s.life)
	defer s.unlisten()
	closeInput := func() error {
		if c, ok := r.(io.Closer); ok {
			return c.Close()
		}
		return nil
	}
	s.lines = wire.NewLines(r, w, closeInput, g.cfg.Limits.Body, func(line []byte) { s.bring(input{raw: line}) })
	writer := make(chan struct{})
	stopWriter := make(chan struct{})
	go func() { defer close(writer); s.write(stopWriter) }()
	err := s.read()
	s.drain(errors.Is(err, io.EOF))
	close(stopWriter)
	select {
	case <-writer:
	case <-s.life.Done():
		select {
		case <-writer:
		case <-time.After(time.Second):
		}
	}
	if cause := context.Cause(s.life); cause != nil && !errors.Is(err, io.EOF) {
		err = cause
	}
	if errors.Is(err, io.EOF) || ctx.Err() != nil {
		return nil
	}
	return err
}

type input struct {
	raw []byte
	err error
}

// bring hands a line to the reading goroutine. It returns false if that is gone.
func (s *stdio) bring(i input) bool {
	select {
	case s.in <- i:
		return true
	case <-s.life.Done():
		return false
	}
}

// read serves what comes in until the input ends.
func (s *stdio) read() error {
	go func() {
		for more := true; more; {
			raw, err := s.lines.Read()
			var long *wire.TooLongError
			more = s.bring(input{raw, err}) && (err == nil || errors.As(err, &long))
		}
	}()
	for {
		select {
		case <-s.life.Done():
			_ = s.lines.Close() // to end the Read
			return context.Cause(s.life)
		case a := <-s.opening:
			s.opened(a)
		case i := <-s.in:
			var long *wire.TooLongError
			switch {
			case errors.As(i.err, &long):
				s.answer(tooLarge(long.Size, long.Limit, lostID(long.Head, long.Tail)).answer())
			case i.err != nil:
				if s.opening != nil { // what it held is waited for too
					select {
					case a := <-s.opening:
						s.opened(a)
					case <-time.After(grace):
					case <-s.life.Done():
					}
				}
				return i.err
			default:
				s.take(i.raw)
			}
			s.await()
		}
	}
}

// drain ends the session, after a grace for what is under way.
func (s *stdio) drain(inOrder bool) {
	s.unlisten()
	done := make(chan struct{})
	go func() { s.work.Wait(); close(done) }()
	if inOrder {
		select {
		case <-done:
		case <-time.After(grace):
		case <-s.life.Done():
		}
	}
	if s.unlink != nil {
		s.unlink() // what is written yet may take its time
	}
	if s.c != nil {
		s.c.close(leaving)
		s.leave()
	}
	if s.unhook != nil {
		s.unhook()
	}
	for _, c := range s.stays {
		c.close(leaving)
		s.depart(c)
	}
	<-done
}

const leaving = "the client closed its output"

// leave ends the stay of the client in its session.
func (s *stdio) leave() {
	s.depart(s.c)
	s.c = nil
}

// take serves one line.
func (s *stdio) take(raw []byte) {
	f := check(raw)
	switch {
	case f != nil:
		s.answer(f.answer())
	case isArray(raw):
		s.batch(raw)
	default:
		m, f := envelope(raw)
		if f != nil {
			s.answer(f.answer())
			return
		}
		switch {
		case m.Method == "notifications/cancelled" && s.cancel(m):
		case eraOf("", false, m) == modern:
			s.modern(m)
		default:
			s.serve(m)
		}
	}
}

// cancel gives up a modern request, and reports whether there is one.
func (s *stdio) cancel(m wire.Message) bool {
	for _, c := range s.stays {
		if c.cancel(wire.Get(m.Params, "requestId"), wire.Get(m.Params, "reason")) {
			return true
		}
	}
	return false
}

// modern serves one message of the era without sessions.
func (s *stdio) modern(m wire.Message) {
	if !m.IsRequest() { // there is no session that it could matter to
		return
	}
	meta := wire.Get(m.Params, "_meta")
	opening, f := place{tenant: s.o.Tenant, server: s.o.Server}.opening(nil, m.ID, meta)
	o := hello{Opening: opening, pipe: s.name}
	o.Conversation = cmp.Or(o.Conversation, s.name)
	if f == nil {
		f = o.read(m, meta)
	}
	if f == nil && isRemoved(m.Method) {
		f = removed(m)
	}
	var c *conversation
	if f == nil {
		var err error
		if c, err = s.stay(o); err != nil {
			f = &fault{id: m.ID, err: asError(err)}
		}
	}
	if f != nil {
		s.answer(f.answer())
		return
	}
	client := context.Background()
	if m.Method == "subscriptions/listen" {
		client = s.listens
	}
	s.work.Go(func() {
		if a, ok := c.call(client, m, s); ok {
			s.answer(a)
		}
	})
}

// stay returns the session for a modern request. The client stays in it: it is
// connected for as long as its pipe is.
func (s *stdio) stay(o hello) (*conversation, error) {
	key := string(o.key(nil))
	c := s.stays[key]
	if c != nil && c.life.Err() == nil {
		return c, nil
	}
	if c != nil {
		s.depart(c)
		delete(s.stays, key)
	}
	c, err := s.g.join(s.life, o)
	if err != nil {
		return nil, err
	}
	if s.stays == nil {
		s.stays = map[string]*conversation{}
		s.unhook = context.AfterFunc(s.g.life, func() { s.end(ErrEnded) }) // a gateway that ends waits for its clients
	}
	s.stays[key] = c
	return c, nil
}

// depart ends the stay of the client in a session.
func (s *stdio) depart(c *conversation) {
	c.left()
	s.g.work.Done()
}

// batch serves an array. Its requests are answered one by one, which those who
// send arrays have to understand as well.
func (s *stdio) batch(raw []byte) {
	elems, err := wire.Elements(raw)
	switch {
	case s.c == nil || !s.c.allowsBatches():
		s.answer(faultf(0, nil, wire.CodeInvalidRequest, "send one message at a time: arrays are part of revision %s alone", batches).answer())
	case err != nil || len(elems) == 0 || len(elems) > maxBatch:
		s.answer(faultf(0, nil, wire.CodeInvalidRequest, "an array must hold 1 to %d messages", maxBatch).answer())
	default:
		for _, e := range elems {
			s.take(e)
		}
	}
}

// serve serves one message. What follows an initialize waits for its answer,
// save responses, which it may depend on.
func (s *stdio) serve(m wire.Message) {
	switch {
	case m.IsRequest() && m.Method == "initialize":
		s.initialize(m)
	case s.opening != nil && !m.IsResponse():
		if len(s.held) >= s.g.cfg.Limits.Calls {
			s.refuse(m, "initialize is not answered yet, and %d messages wait for it; wait for some of them", len(s.held))
			return
		}
		s.held = append(s.held, m)
	case s.c == nil && m.Method == "ping" && m.IsRequest():
		s.answer(answer{m.ID, wire.Reply{Result: []byte("{}")}})
	case s.c == nil:
		s.refuse(m, "there is no session; begin with initialize")
	case !m.IsRequest():
		s.c.post(m)
	default:
		c := s.c
		s.work.Go(func() {
			if a, ok := c.call(context.Background(), m, s); ok {
				s.answer(a)
			}
		})
	}
}

// refuse answers m with an error if it wants an answer.
func (s *stdio) refuse(m wire.Message, format string, args ...any) {
	if m.IsRequest() {
		s.answer(faultf(0, m.ID, wire.CodeInvalidRequest, format, args...).answer())
	}
}

func (s *stdio) initialize(m wire.Message) {
	if s.c != nil {
		s.refuse(m, "the session is initialized already")
		return
	}
	o := s.o
	o.Version, o.Params = wire.Str(m.Params, "protocolVersion"), m.Params
	c, err := s.g.converse(o, s)
	if err != nil {
		s.answer((&fault{id: m.ID, err: asError(err)}).answer())
		return
	}
	if !c.enter() {
		c.close("shutdown")
		s.refuse(m, "SpecBox is shutting down; connect again later")
		return
	}
	opening := make(chan answer, 1)
	s.c, s.opening = c, opening
	s.work.Go(func() {
		a, _ := c.call(context.Background(), m, s)
		opening <- a
	})
}

// opened goes on after an initialize.
func (s *stdio) opened(a answer) {
	s.opening = nil
	if s.c.agree(a.Reply); a.Error != nil {
		s.leave()
	} else {
		s.unlink = context.AfterFunc(s.c.life, func() { s.end(ErrEnded) }) // who ends the session ends its client's stay
	}
	s.answer(a)
	held := s.held
	s.held = nil
	for _, m := range held {
		s.serve(m)
	}
}

// Send queues what the client is told.
func (s *stdio) Send(parts ...[]byte) error {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return ErrEnded
	}
	err := s.queue.put(bytes.Join(parts, nil))
	s.mu.Unlock()
	wake(s.wake)
	return err
}

// answer queues an answer behind all that was said before.
func (s *stdio) answer(a answer) {
	s.mu.Lock()
	if !s.ended {
		s.queue.items = append(s.queue.items, item{kind: reply, answer: a})
		s.answers++
		s.bytes += int64(len(a.Result))
	}
	s.mu.Unlock()
	wake(s.wake)
}

// await waits while the client leaves too many answers unread to ask for more.
func (s *stdio) await() {
	for {
		s.mu.Lock()
		enough := s.answers < s.g.cfg.Limits.Calls && s.bytes < s.g.cfg.Limits.Body
		s.mu.Unlock()
		if enough {
			return
		}
		select {
		case <-s.room:
		case <-s.life.Done():
			return
		}
	}
}

// write writes what is queued until stop is closed, and then the rest. If that
// fails, the client is gone and its life ends.
func (s *stdio) write(stop <-chan struct{}) {
	for last := false; !last; {
		select {
		case <-s.wake:
		case <-stop:
			last = true
		}
		s.mu.Lock()
		items := s.queue.take()
		s.mu.Unlock()
		for _, it := range items {
			var err error
			if it.kind == reply {
				parts := it.answer.parts()
				err = s.lines.Write(parts[:]...)
				s.mu.Lock()
				s.answers--
				s.bytes -= int64(len(it.answer.Result))
				s.mu.Unlock()
				wake(s.room)
			} else {
				err = s.lines.Write(it.data)
			}
			if err != nil {
				s.mu.Lock()
				s.ended = true
				s.mu.Unlock()
				s.end(fmt.Errorf("write to the client: %w", err))
				return
			}
		}
	}
}
