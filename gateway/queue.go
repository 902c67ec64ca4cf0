package gateway

import (
	"errors"
	"slices"
	"sync/atomic"

	"github.com/specbox/specbox/wire"
)

// errFull tells a sender that its request or response cannot be kept.
var errFull = errors.New("the client leaves too many requests unread; answer the server without it")

// A queue keeps messages for a client that does not read yet. It is bounded:
// progress and log messages give way, oldest first. Its owner's lock guards it.
type queue struct {
	limits  *Limits
	dropped *atomic.Int64
	items   []item
	bytes   int
}

type item struct {
	kind   itemKind
	data   []byte
	answer answer // instead of data, of a reply
	seq    int    // of the event that carried it; 0 if none did
}

func (it *item) size() int {
	if it.kind == reply {
		return len(it.answer.Result) + len(it.answer.Error)
	}
	return len(it.data)
}

type itemKind uint8

const (
	unknown   itemKind = iota // nobody asked yet
	kept                      // must not be dropped
	droppable                 // progress or log
	reply                     // its sender bounds how many there are
)

func kindOf(data []byte) itemKind {
	m, err := wire.Parse(data)
	if err == nil && (m.Method == "notifications/progress" || m.Method == "notifications/message") {
		return droppable
	}
	return kept
}

// put adds a message, which then belongs to the queue.
func (q *queue) put(data []byte) error {
	for len(q.items) > 0 && (len(q.items) >= q.limits.QueueCount || q.bytes+len(data) > q.limits.QueueBytes) {
		if q.drop() {
			continue
		}
		if kindOf(data) == droppable {
			q.dropped.Add(1)
			return nil
		}
		return errFull
	}
	q.items = append(q.items, item{data: data})
	q.bytes += len(data)
	return nil
}

// drop removes the oldest message that may be dropped.
func (q *queue) drop() bool {
	for i := range q.items {
		it := &q.items[i]
		if it.kind == unknown {
			it.kind = kindOf(it.data)
		}
		if it.kind == droppable {
			q.bytes -= len(it.data)
			q.items = slices.Delete(q.items, i, i+1)
			q.dropped.Add(1)
			return true
		}
	}
	return false
}

// take empties the queue.
func (q *queue) take() []item {
	items := q.items
	q.items, q.bytes = nil, 0
	return items
}

// unget puts items back in front.
func (q *queue) unget(items []item) {
	q.items = slices.Concat(items, q.items)
	for _, it := range items {
		q.bytes += len(it.data)
	}
}

// wake makes a channel of size one ready.
func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
