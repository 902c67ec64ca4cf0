package gateway

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/specbox/specbox/internal/alarm"
	"github.com/specbox/specbox/wire"
)

const (
	// keepAlive is the time between signs of life on a quiet event stream:
	// clients and proxies give up on what is quiet for 30 s or more.
	keepAlive = 15 * time.Second
	// prompt is after how long a client is told how to come back to a call: one
	// that takes longer is worth the event stream.
	prompt = time.Second
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
	gone    bool // the client left
	rd      *reader
	tr      *track        // of the event stream
	stopped chan struct{} // closed when the stream's goroutine is done with w
	alarm   alarm.Alarm
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
	wait := keepAlive
	if x.sse && x.primes() {
		wait = prompt
	}
	x.g.clock.Set(&x.alarm, wait, x.tick)
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
		x.stream(true, true)
	default: // a client that accepts only JSON has to wait in silence
		x.g.clock.Set(&x.alarm, keepAlive, x.tick)
	}
}

// primes reports whether the client understands an event without data.
func (x *exchange) primes() bool { return x.era == legacy && x.c.primes.Load() }

// Send queues what belongs to the request: for its own stream or, where there is
// none, for those of the session, if it has any.
func (x *exchange) Send(parts ...[]byte) error {
	data := bytes.Join(parts, nil)
	x.mu.Lock()
	if x.sse && !x.gone && x.phase == silent {
		x.stream(false, true)
	}
	tr := x.tr
	x.mu.Unlock()
	if tr != nil {
		if ok, err := tr.put(data); ok {
			return err
		}
	}
	if x.era == modern {
		return errUnheard
	}
	return x.c.send(data)
}

// stream begins the event stream; early says that the answer is still to come. The
// caller holds the lock.
func (x *exchange) stream(sign, early bool) {
	x.phase = streaming
	x.rd = newReader()
	q := queue{limits: &x.g.cfg.Limits, dropped: &x.g.dropped}
	if x.era == legacy && x.c.isAgreed() {
		x.tr = x.c.replay.begin(x.rd, q, false)
	} else {
		x.tr = passing(x.rd, q)
	}
	x.stopped = make(chan struct{})
	primes := early && x.tr.n > 0 && x.primes()
	go func() {
		defer close(x.stopped)
		e := newEvents(x.w, sign && !primes)
		e.track = x.tr.n
		if primes && e.prime(e.track) {
			x.tr.prime()
		}
		rest, ok := e.pump(x.r.Context().Done(), x.rd, func() ([]item, bool) { return x.tr.take(x.rd) })
		unsaid := x.tr.leave(x.rd, rest)
		if !ok {
			x.leave()
		}
		if x.era == legacy { // a modern client gave the request up
			x.c.replay.let(unsaid)
		}
	}()
}

// leave notes that the client left. It may have lost one connection only.
func (x *exchange) leave() {
	x.mu.Lock()
	x.gone = true
	x.mu.Unlock()
	x.c.left()
}

// finish sends the answers and ends the exchange. There are none if the client
// cancelled what it asked. As a batch they are sent as an array.
func (x *exchange) finish(batch bool, answers ...answer) {
	x.g.clock.Stop(&x.alarm)
	status := http.StatusOK
	if x.era == modern && len(answers) == 1 && answers[0].Error != nil {
		status = statusOf(codeOf(answers[0].Error))
	}
	x.mu.Lock()
	if x.phase == silent && !x.gone && status == http.StatusOK && x.sse && (!x.json || len(answers) == 0) {
		x.stream(false, false)
	}
	was := x.phase
	x.phase = over
	x.mu.Unlock()
	switch {
	case was == streaming:
		x.tr.finish(answers)
		<-x.stopped
	case x.gone: // nothing changes it any more, here and below
	case len(answers) == 0:
		x.w.WriteHeader(http.StatusAccepted)
	default:
		writeJSON(x.w, status, batch, answers)
	}
	if !x.gone {
		x.c.left()
	}
	x.g.work.Done()
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
	e := &events{w: w}
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
