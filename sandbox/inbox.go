package sandbox

import (
	"sync"

	"github.com/specbox/specbox/wire"
)

const (
	maxHeld      = 256     // messages of one server that wait for a holder
	maxHeldBytes = 1 << 20 // of all of these
)

// An inbox is the handler of a sandbox that nobody holds yet: it keeps what the
// server says and asks, for the handler of the holder to come. Pings do not
// reach it: the connection answers them.
type inbox struct {
	over    func() (keep bool) // called when it is full; set before use
	drained chan struct{}      // closed when the holder's handler has all that was kept

	mu      sync.Mutex
	held    []heldMessage
	bytes   int
	handler wire.Handler
	full    bool
	shut    bool // the sandbox is discarded
}

type heldMessage struct {
	c *wire.Conn
	m wire.Message
}

func (h heldMessage) deliver(to wire.Handler) {
	if h.m.IsRequest() {
		to.Requested(h.c, h.m)
	} else {
		to.Notified(h.c, h.m)
	}
}

// Notified implements [wire.Handler].
func (i *inbox) Notified(c *wire.Conn, m wire.Message) { i.keep(heldMessage{c, m}) }

// Requested implements [wire.Handler].
func (i *inbox) Requested(c *wire.Conn, m wire.Message) { i.keep(heldMessage{c, m}) }

func (i *inbox) keep(h heldMessage) {
	i.mu.Lock()
	if to := i.handler; to != nil {
		i.mu.Unlock()
		<-i.drained // what came before is being delivered, which does not block
		h.deliver(to)
		return
	}
	overflows := false
	if !i.shut {
		i.held = append(i.held, h)
		i.bytes += len(h.m.Raw)
		overflows = !i.full && (len(i.held) > maxHeld || i.bytes > maxHeldBytes)
		i.full = i.full || overflows
	}
	i.mu.Unlock()
	if overflows && !i.over() {
		i.mu.Lock()
		i.shut, i.held = true, nil
		i.mu.Unlock()
	}
}

// open gives the handler all that was kept, in order, and from then on what
// comes. It is called once.
func (i *inbox) open(c *wire.Conn, to wire.Handler) {
	i.mu.Lock()
	held := i.held
	i.held, i.handler = nil, to
	i.mu.Unlock()
	for _, h := range held {
		h.deliver(to)
	}
	close(i.drained)
	c.Handle(to)
}
