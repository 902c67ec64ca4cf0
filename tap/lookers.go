package tap

import (
	"slices"
	"sync"
	"time"
)

const (
	// rest is how long what passed may wait to be looked at. To wake somebody
	// for each token costs more than to look at it; a start that a token causes
	// takes hundreds of times as long.
	rest = 2 * time.Millisecond
	// patience is how long the observer may take before somebody else goes on
	// with the other exchanges.
	patience = 10 * time.Millisecond
)

// lookers look at exchanges: one goroutine for all of them, and, where the
// observer takes its time over one exchange, another for the rest.
type lookers struct {
	wake chan struct{} // of size one: look again
	stop chan struct{} // closed when no exchange is left
	work sync.WaitGroup

	mu     sync.Mutex
	queue  []*exchange // to be looked at, from head on
	head   int
	charge int  // who is in charge, as lookers are counted
	awake  bool // that one is not resting
}

func newLookers() *lookers {
	return &lookers{wake: make(chan struct{}, 1), stop: make(chan struct{})}
}

// look has an exchange looked at, soon.
func (l *lookers) look(x *exchange) {
	l.mu.Lock()
	first := false
	switch {
	case x.busy:
		x.again = true
	case !x.queued:
		x.queued = true
		if l.head > len(l.queue)/2 { // half of it is behind
			l.queue, l.head = slices.Delete(l.queue, 0, l.head), 0
		}
		l.queue = append(l.queue, x)
		first = len(l.queue)-l.head == 1
	}
	l.mu.Unlock()
	if !first {
		return // it is known that there is something
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// next takes the next exchange out of the queue; nil if there is none, or if
// looker n is not in charge any more.
func (l *lookers) next(n int) *exchange {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n != l.charge {
		return nil
	}
	if l.awake = l.head < len(l.queue); !l.awake {
		l.queue, l.head = l.queue[:0], 0
		return nil
	}
	x := l.queue[l.head]
	l.queue[l.head] = nil
	l.head++
	x.queued, x.busy = false, true
	return x
}

// free ends that an exchange is looked at by the caller alone.
func (l *lookers) free(x *exchange) {
	l.mu.Lock()
	x.busy = false
	again := x.again
	x.again = false
	l.mu.Unlock()
	if again {
		l.look(x)
	}
}

// run looks at exchanges as looker n, until another is in charge or stop is
// closed.
func (l *lookers) run(n int) {
	pause := time.NewTimer(0)
	<-pause.C
	defer pause.Stop()
	for {
		relief := time.AfterFunc(patience, func() { l.relieve(n) })
		for x := l.next(n); x != nil; x = l.next(n) {
			x.drain()
			l.free(x)
		}
		relief.Stop()
		if !l.charged(n) {
			return
		}
		pause.Reset(rest) // since the last look
		select {
		case <-l.stop:
			return
		case <-l.wake:
		}
		select {
		case <-l.stop:
			return
		case <-pause.C:
		}
	}
}

// charged reports whether looker n is in charge.
func (l *lookers) charged(n int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return n == l.charge
}

// relieve puts another in the place of looker n, if it is still looking.
func (l *lookers) relieve(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n == l.charge && l.awake {
		l.charge++
		n = l.charge
		l.work.Go(func() { l.run(n) }) // n is at work, so that nobody has stopped waiting
	}
}
