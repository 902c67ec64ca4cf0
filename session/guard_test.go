package session_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/sandbox/sim"
	"github.com/specbox/specbox/session"
	"github.com/specbox/specbox/wire"
)

// A choking is a backend whose servers take a while to read a request that says
// "choke", or never do.
type choking struct {
	sandbox.Backend
	takes time.Duration // 0 means for ever
}

func (b choking) Create(ctx context.Context, id string, spec *sandbox.Spec, stderr io.Writer) (sandbox.Instance, error) {
	inst, err := b.Backend.Create(ctx, id, spec, stderr)
	if err != nil {
		return nil, err
	}
	t := &choked{Transport: inst.Transport(), takes: b.takes, closed: make(chan struct{})}
	t.close = sync.OnceFunc(func() { close(t.closed) })
	return chokedInstance{inst, t}, nil
}

type chokedInstance struct {
	sandbox.Instance
	t *choked
}

func (i chokedInstance) Transport() wire.Transport { return i.t }
func (i chokedInstance) Close() error              { i.t.close(); return i.Instance.Close() }

type choked struct {
	wire.Transport
	takes  time.Duration
	closed chan struct{}
	close  func()
}

func (t *choked) Write(parts ...[]byte) error {
	if !bytes.Contains(slices.Concat(parts...), []byte("choke")) {
		return t.Transport.Write(parts...)
	}
	var over <-chan time.Time
	if t.takes > 0 {
		over = time.After(t.takes)
	}
	select {
	case <-over:
		return t.Transport.Write(parts...)
	case <-t.closed:
		return errors.New("closed")
	}
}

// A server that does not read what it is sent is stopped: when its time is over,
// or soon after nobody waits for it any more. One that is slow is not.
func TestAServerThatDoesNotRead(t *testing.T) {
	for name, tt := range map[string]struct {
		takes, leave time.Duration // of the server; of the client, who waits for ever if 0
		want         time.Duration
		says         string
	}{
		"for ever":                     {0, 0, time.Minute, "it does not read its input"},
		"for long":                     {40 * time.Second, 0, 40 * time.Second, "fine"},
		"and the client left at once":  {0, 500 * time.Millisecond, 11 * time.Second, "it does not read its input"},
		"and the client left":          {0, 5 * time.Second, 15 * time.Second, "it does not read its input"},
		"and the client left in time":  {40 * time.Second, 35 * time.Second, 40 * time.Second, ""},
		"a moment, and the client too": {500 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, ""},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := &sim.Backend{Life: func(*sandbox.Spec, int) sim.Life {
					return sim.Life{Serve: func(ctx context.Context, p *sim.Peer, m wire.Message) wire.Reply {
						if m.Method == "tools/call" {
							return sim.Text("fine")
						}
						return sim.Tools(ctx, p, m)
					}}
				}}
				m, err := sandbox.New(sandbox.Config{Backends: map[config.Isolation]sandbox.Backend{config.Process: choking{b, tt.takes}}})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(context.Background())
				var running sync.WaitGroup
				running.Go(func() { _ = m.Run(ctx) })
				h := openWith(t, []string{"a"}, func(*sandbox.Spec, int) sim.Life { return sim.Life{} },
					func(s *session.Server) { s.CallTimeout = time.Minute }, func(c *session.Config) { c.Sandboxes = m })
				defer running.Wait()
				defer cancel()
				defer h.stop()
				h.fill()
				c := h.client("t", "", "{}")
				patience := t.Context()
				if tt.leave > 0 {
					var end context.CancelFunc
					patience, end = context.WithTimeoutCause(patience, tt.leave, wire.Cancelled{})
					defer end()
				}
				begun := time.Now()
				r := c.Request(patience, wire.Message{ID: []byte("1"), Method: "tools/call", Params: []byte(`{"name":"a__echo","arguments":{"text":"choke"}}`)}, c)
				if took := time.Since(begun); took != tt.want || !strings.Contains(string(r.Result)+string(r.Error), tt.says) {
					t.Errorf("after %v: %s%s; want %q after %v", took, r.Result, r.Error, tt.says, tt.want)
				}
				time.Sleep(5 * time.Minute) // what was not given up would act now
			})
		})
	}
}
