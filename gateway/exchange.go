package gateway

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/specbox/specbox/wire"
)

const (
	// keepAlive is the time between signs of life on a quiet event stream:
	// clients and proxies give up on what is quiet for 30 s or more.
	keepAlive = 15 * time.Second
	// stall is how long a client may take to read a chunk before it counts as
	// dead.
	stall = time.Minute
	chunk = 1 << 20
	// buffered is what net/http keeps before it begins to send, and counts.
	buffered = 2048
)

// An answer is a reply with the id of the request that it belongs to.
type answer struct {
	id []byte
	wire.Reply
}

var (
	headResult = []byte(`{"jsonrpc":"2.0","id":`)
	midResult  = []byte(`,"result":`)
	midError   = []byte(`,"error":`)
	tailResult = []byte(`}`)
	nullID     = []byte("null")
)

// parts returns the parts of the message. They are those of [wire.ReplyParts],
// which would take memory for them.
func (a answer) parts() [5][]byte {
	id, mid, value := a.id, midResult, a.Result
	if id == nil {
		id = nullID
	}
	if a.Error != nil {
		mid, value = midError, a.Error
	}
	return [5][]byte{headResult, id, mid, value, tailResult}
}

// An exchange is one POST under way. Its response is JSON if nothing precedes
// the reply, or an event stream.
type exchange struct {
	g         *Gateway
	c         *conversation
	w         http.ResponseWriter
	r         *http.Request
	json, sse bool // what the client accepts
	era       era

	mu      sync.Mutex
	phase   phase
	gone    bool  // the client left
	queue   queue // of the event stream
	wake    chan struct{}
	stop    chan struct{} // closed when the reply is there
	stopped chan struct{} // closed when the stream's goroutine is done with w
	timer   *time.Timer
}

type phase uint8

const (
	silent    phase = iota // nothing was sent
	streaming              // an event stream was begun, and a goroutine writes it
	over                   // the reply is there, and its writer owns w
)

// start begins to wait. Every start is followed by one finish. It returns false
// if the session has ended.
func (x *exchange) start() bool {
	if !x.c.enter() {
		return false
	}
	x.arm()
	return true
}

// arm begins to wait in a session that was entered.
func (x *exchange) arm() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.timer = time.AfterFunc(keepAlive, x.tick)
}

// tick is called while nothing was sent. It shows the client that its request
// is alive, and notices when the client is not.
func (x *exchange) tick() {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.phase != silent || x.gone:
	case x.r.Context().Err() != nil:
		x.gone = true
		x.c.left()
	case x.sse:
		x.stream(true)
	default: // a client that accepts only JSON has to wait in silence
		x.timer.Reset(keepAlive)
	}
}

// Send queues what belongs to the request: for its own stream or, where there is
// none, for those of the session, if it has any.
func (x *exchange) Send(parts ...[]byte) error {
	x.mu.Lock()
	if !x.sse || x.gone || x.phase == over {
		x.mu.Unlock()
		if x.era == modern {
			return errUnheard
		}
		return x.c.send(bytes.Join(parts, nil))
	}
	data := bytes.Join(parts, nil)
	if x.phase == silent {
		x.stream(false)
	}
	err := x.queue.put(data)
	x.mu.Unlock()
	wake(x.wake)
	return err
}

// stream begins the event stream. The caller holds the lock.
func (x *exchange) stream(sign bool) {
	x.phase = streaming
	x.queue = queue{limits: &x.g.cfg.Limits, dropped: &x.g.dropped}
	x.wake = make(chan struct{}, 1)
	x.stop = make(chan struct{})
	x.stopped = make(chan struct{})
	go func() {
		defer close(x.stopped)
		rest, ok := newEvents(x.w, sign).pump(x.r.Context().Done(), x.stop, x.wake, x.take)
		if !ok {
			x.leave(rest)
		}
	}()
}

func (x *exchange) take() []item {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.queue.take()
}

// leave notes that the client left. What it was not told is left for the streams
// of its session: it may have lost one connection only.
func (x *exchange) leave(rest []item) {
	x.mu.Lock()
	x.gone = true
	rest = append(rest, x.queue.take()...)
	x.mu.Unlock()
	x.c.left()
	if x.era == modern { // it gave the request up
		return
	}
	for _, it := range rest {
		_ = x.c.send(it.data) // it is bounded, and the session may have ended
	}
}

// finish sends the answers and ends the exchange. There are none if the client
// cancelled what it asked. As a batch they are sent as an array.
func (x *exchange) finish(batch bool, answers ...answer) {
	x.timer.Stop()
	x.mu.Lock()
	was := x.phase
	x.phase = over
	x.mu.Unlock()
	if was == streaming {
		close(x.stop)
		<-x.stopped
	}
	if !x.gone { // nothing changes it any more
		x.write(was == streaming, batch, answers)
		x.c.left()
	}
	x.g.work.Done()
}

func (x *exchange) write(streaming, batch bool, answers []answer) {
	status := http.StatusOK
	if x.era == modern && len(answers) == 1 && answers[0].Error != nil {
		status = statusOf(codeOf(answers[0].Error))
	}
	switch {
	case !streaming && status != http.StatusOK:
		writeJSON(x.w, status, batch, answers)
	case streaming || (x.sse && (!x.json || len(answers) == 0)):
		e := eventsOn(x.w)
		if !streaming {
			e = newEvents(x.w, false)
		}
		for _, a := range answers {
			parts := a.parts()
			if e.event(parts[:]...) != nil {
				return // the client left, which is its right
			}
		}
		_ = e.flush() // as above
	case len(answers) == 0:
		x.w.WriteHeader(http.StatusAccepted)
	default:
		writeJSON(x.w, status, batch, answers)
	}
}

var separators = [2]string{"[", ","}

var jsonType = []string{"application/json"}

// writeJSON sends answers without copying large ones.
func writeJSON(w http.ResponseWriter, status int, batch bool, answers []answer) {
	size := len(answers) + 1
	for _, a := range answers {
		for _, p := range a.parts() {
			size += len(p)
		}
	}
	h := w.Header()
	h["Content-Type"] = jsonType
	e := events{w: w}
	if size > buffered {
		if !batch {
			h["Content-Length"] = []string{strconv.Itoa(size - 2)}
		}
		e = eventsOn(w)
		e.extend()
	}
	w.WriteHeader(status)
	for i, a := range answers {
		if batch {
			_, _ = io.WriteString(w, separators[min(i, 1)])
		}
		for _, p := range a.parts() {
			if e.raw(p) != nil {
				return
			}
		}
	}
	if batch {
		_, _ = io.WriteString(w, "]")
	}
}
