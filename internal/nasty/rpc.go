package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
)

// A message is a JSON-RPC message of any kind.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
}

// A failure is a JSON-RPC error.
type failure struct {
	code    int
	message string
	data    []byte // JSON, or nil
}

func (f *failure) Error() string { return f.message }

// A server is one run of nasty.
type server struct {
	m    manners
	work sync.WaitGroup

	out  sync.Mutex // guards writes to w
	w    io.Writer
	deaf chan struct{} // closed to stop reading

	mu         sync.Mutex
	client     json.RawMessage // its capabilities
	inits      int
	running    map[string]call // request id -> the call under way
	cancelled  []cancellation
	pending    map[string]chan message // our request's id -> its answer
	asked      int
	added      []string // tools added at run time
	state      map[string]json.RawMessage
	subscribed map[string]bool
	listeners  []*listener
	level      string
	roots      json.RawMessage
	allocated  [][]byte
}

// A call is a request under way.
type call struct {
	name   string // its tool, or its method
	cancel context.CancelFunc
}

// A cancellation is one that came, and what it named.
type cancellation struct {
	RequestID json.RawMessage `json:"requestId"`
	Reason    json.RawMessage `json:"reason,omitempty"`
	Call      string          `json:"call"` // "" if no call under way had that id
}

func newServer(m manners, w io.Writer) *server {
	return &server{m: m, w: w, deaf: make(chan struct{}), running: map[string]call{}, pending: map[string]chan message{},
		state: map[string]json.RawMessage{}, subscribed: map[string]bool{}}
}

// serve reads messages to the end of r and waits for the calls under way,
// unless they were cancelled.
func (s *server) serve(r io.Reader) error {
	ctx, cancel := context.WithCancel(context.Background())
	in := bufio.NewReaderSize(r, 1<<20)
	for {
		select {
		case <-s.deaf:
			rest()
		default:
		}
		line, err := in.ReadBytes('\n')
		if line = bytes.TrimSpace(line); len(line) > 0 && !s.m.silent {
			s.take(ctx, line)
		}
		if err != nil {
			cancel()
			if errors.Is(err, io.EOF) {
				err = nil
			}
			s.work.Wait()
			return err
		}
	}
}

// take handles one message. Requests get a goroutine each.
func (s *server) take(ctx context.Context, line []byte) {
	var m message
	if err := json.Unmarshal(line, &m); err != nil {
		fmt.Fprintf(os.Stderr, "nasty: not a message: %v\n", err)
		return
	}
	switch {
	case m.Method == "":
		s.mu.Lock()
		answer := s.pending[string(m.ID)]
		delete(s.pending, string(m.ID))
		s.mu.Unlock()
		if answer != nil {
			answer <- m
		}
	case m.ID == nil:
		s.notified(ctx, m)
	default:
		if m.Method == s.m.crashAt {
			fmt.Fprintf(os.Stderr, "nasty: crash at %s\n", m.Method)
			os.Exit(3)
		}
		if m.Method == s.m.muteAt {
			return
		}
		callCtx, cancel := context.WithCancel(ctx)
		s.mu.Lock()
		s.running[string(m.ID)] = call{name: callName(m), cancel: cancel}
		s.mu.Unlock()
		s.work.Go(func() { s.answer(callCtx, m) })
	}
}

// callName names a request in what the tool cancelled tells.
func callName(m message) string {
	var p struct {
		Name string `json:"name"`
	}
	if m.Method == "tools/call" && json.Unmarshal(m.Params, &p) == nil {
		return p.Name
	}
	return m.Method
}

// answer handles a request. A cancelled one gets no reply.
func (s *server) answer(ctx context.Context, m message) {
	result, err := s.handle(ctx, m)
	s.mu.Lock()
	s.running[string(m.ID)].cancel()
	delete(s.running, string(m.ID))
	s.mu.Unlock()
	var f *failure
	switch {
	case errors.Is(err, context.Canceled):
	case errors.As(err, &f):
		data := []byte{}
		if f.data != nil {
			data = join(`,"data":`, f.data)
		}
		s.write(`{"jsonrpc":"2.0","id":`, m.ID, `,"error":{"code":`, strconv.Itoa(f.code), `,"message":`, quote(f.message), data, `}}`)
	case err != nil:
		s.write(`{"jsonrpc":"2.0","id":`, m.ID, `,"error":{"code":-32603,"message":`, quote(err.Error()), `}}`)
	default:
		s.write(`{"jsonrpc":"2.0","id":`, m.ID, `,"result":`, result, `}`)
	}
}

func (s *server) notified(ctx context.Context, m message) {
	switch m.Method {
	case "notifications/initialized":
		if s.m.listChanged {
			s.notify("notifications/tools/list_changed", nil)
		}
		if s.m.rootsAtStart {
			s.work.Go(func() {
				answer, err := s.ask(ctx, "roots/list", nil)
				if err != nil {
					return
				}
				s.mu.Lock()
				defer s.mu.Unlock()
				s.roots = answer
			})
		}
	case "notifications/cancelled":
		var c cancellation
		if json.Unmarshal(m.Params, &c) != nil {
			return
		}
		s.mu.Lock()
		running := s.running[string(c.RequestID)]
		c.Call = running.name
		s.cancelled = append(s.cancelled, c)
		s.mu.Unlock()
		if running.cancel != nil {
			running.cancel()
		}
	}
}

// ask sends a request to the client and returns its answer: the result, or the
// whole error under the key error.
func (s *server) ask(ctx context.Context, method string, params []byte) (json.RawMessage, error) {
	s.mu.Lock()
	s.asked++
	id := fmt.Sprintf(`"%s-%d"`, s.m.name, s.asked)
	answer := make(chan message, 1)
	s.pending[id] = answer
	s.mu.Unlock()
	if params == nil {
		params = []byte("{}")
	}
	s.write(`{"jsonrpc":"2.0","id":`, id, `,"method":`, quote(method), `,"params":`, params, `}`)
	select {
	case m := <-answer:
		if m.Error != nil {
			return join(`{"error":`, m.Error, `}`), nil
		}
		return m.Result, nil
	case <-ctx.Done():
		s.notify("notifications/cancelled", join(`{"requestId":`, id, `}`))
		return nil, ctx.Err()
	}
}

func (s *server) notify(method string, params []byte) {
	if params == nil {
		params = []byte("{}")
	}
	s.write(`{"jsonrpc":"2.0","method":`, quote(method), `,"params":`, params, `}`)
}

// write writes one message, with junk before it if that is the manner.
func (s *server) write(parts ...any) {
	line := append(join(parts...), '\n')
	s.out.Lock()
	defer s.out.Unlock()
	if s.m.junk {
		line = append([]byte(banners[len(line)%len(banners)]+"\n"), line...)
	}
	_, _ = s.w.Write(line)
}

// join joins strings and bytes as they are.
func join(parts ...any) []byte {
	var b []byte
	for _, p := range parts {
		switch p := p.(type) {
		case string:
			b = append(b, p...)
		case []byte:
			b = append(b, p...)
		case json.RawMessage:
			b = append(b, p...)
		default:
			panic(fmt.Sprintf("join: %T", p))
		}
	}
	return b
}

// quote returns s as a JSON string.
func quote(s string) []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string
	}
	return b
}
