package gateway

import (
	"bytes"
	"cmp"
	"context"
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
	wake  chan struct{}

	c       *conversation // of the reading goroutine alone
	opening chan struct{} // closed when the initialize under way is answered; nil if there is none
	held    []wire.Message

	mu    sync.Mutex
	queue queue
	ended bool // nothing is written any more
}

// ServeStdio serves one client that writes newline-delimited messages to r and
// reads them from w, until r ends or ctx does. When r ends, requests under way
// may be answered within ten seconds. It returns nil if r ended in order,
// otherwise why it could not go on. Of o, Tenant and Server count.
//
// When ctx ends, requests under way are answered with an error, and r is closed
// if it is an [io.Closer]. A Read of r that does not end by that, and a Write to
// w that takes longer than a second, are left behind.
func (g *Gateway) ServeStdio(ctx context.Context, r io.Reader, w io.Writer, o Opening) error {
	s := &stdio{g: g, o: o, wake: make(chan struct{}, 1)}
	s.o.Tenant = cmp.Or(o.Tenant, DefaultTenant)
	s.queue = queue{limits: &g.cfg.Limits, dropped: &g.dropped}
	s.life, s.end = context.WithCancelCause(ctx)
	defer s.end(nil)
	closeInput := func() error {
		if c, ok := r.(io.Closer); ok {
			return c.Close()
		}
		return nil
	}
	s.lines = wire.NewLines(r, w, closeInput, g.cfg.Limits.Body, func([]byte) {
		s.answer(faultf(0, nil, wire.CodeParse, "a line is not a JSON-RPC message").answer())
	})
	writer := make(chan struct{})
	stopWriter := make(chan struct{})
	go func() { defer close(writer); s.write(stopWriter) }()
	err := s.read()
	s.drain(errors.Is(err, io.EOF))
	close(stopWriter)
	select {
	case <-writer:
	case <-s.lastWord(err):
	}
	if cause := context.Cause(s.life); cause != nil && !errors.Is(err, io.EOF) {
		err = cause
	}
	if errors.Is(err, io.EOF) || ctx.Err() != nil {
		return nil
	}
	return err
}

// lastWord is ready when a client that does not read has had its time. One that
// closed its output in order may take all it wants.
func (s *stdio) lastWord(err error) <-chan time.Time {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return time.After(time.Second)
}

type input struct {
	raw []byte
	err error
}

// read serves what comes in until the input ends.
func (s *stdio) read() error {
	in := make(chan input)
	go func() {
		for {
			raw, err := s.lines.Read()
			select {
			case in <- input{raw, err}:
			case <-s.life.Done():
				return
			}
			var long *wire.TooLongError
			if err != nil && !errors.As(err, &long) {
				return
			}
		}
	}()
	for {
		select {
		case <-s.life.Done():
			_ = s.lines.Close() // to end the Read
			return context.Cause(s.life)
		case <-s.opening:
			s.opened()
		case i := <-in:
			var long *wire.TooLongError
			switch {
			case errors.As(i.err, &long):
				s.answer(tooLarge(long.Size, long.Limit, lostID(long.Head, long.Tail)).answer())
			case i.err != nil:
				if s.opening != nil { // what it held is waited for too
					select {
					case <-s.opening:
						s.opened()
					case <-time.After(grace):
					case <-s.life.Done():
					}
				}
				return i.err
			default:
				s.take(i.raw)
			}
		}
	}
}

// drain ends the session, after a grace for what is under way.
func (s *stdio) drain(inOrder bool) {
	done := make(chan struct{})
	go func() { s.work.Wait(); close(done) }()
	if inOrder {
		select {
		case <-done:
		case <-time.After(grace):
		case <-s.life.Done():
		}
	}
	if s.c != nil {
		s.c.close("the client closed its output")
		s.leave()
	}
	<-done
}

// leave ends the stay of the client in its session.
func (s *stdio) leave() {
	s.c.left()
	s.g.work.Done()
	s.c = nil
}

// take serves one line.
func (s *stdio) take(raw []byte) {
	f := check(raw)
	switch {
	case f != nil:
		s.answer(f.answer())
	case raw[0] == '[':
		s.batch(raw)
	default:
		m, f := envelope(raw)
		if f == nil && eraOf("", m) == modern {
			f = s.g.refuseModern("", m)
		}
		if f != nil {
			s.answer(f.answer())
			return
		}
		s.serve(m)
	}
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
			if a, ok := c.call(m, s); ok {
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
	s.c, s.opening = c, make(chan struct{})
	opening := s.opening
	s.work.Go(func() {
		defer close(opening)
		a, _ := c.call(m, s)
		if c.agree(a.Reply); a.Error == nil {
			context.AfterFunc(c.life, func() { s.end(ErrEnded) }) // who ends the session ends its client's stay
		}
		s.answer(a)
	})
}

// opened goes on after an initialize was answered.
func (s *stdio) opened() {
	s.opening = nil
	if s.c.life.Err() != nil {
		s.leave()
	}
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

// answer sends an answer, after all that was said before, and returns when it
// was written.
func (s *stdio) answer(a answer) {
	it := item{kind: reply, answer: a, written: make(chan struct{})}
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return
	}
	s.queue.items = append(s.queue.items, it)
	s.mu.Unlock()
	wake(s.wake)
	select {
	case <-it.written:
	case <-s.life.Done():
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
				close(it.written)
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
