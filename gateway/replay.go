package gateway

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Beside [Limits], these bound what is kept for clients that come back.
const (
	maxTracks = 64   // streams of one session that nobody reads
	maxSaid   = 1024 // events of one stream
	bodies    = 4    // answers of the largest size that wait in all sessions
)

// A replay keeps the event streams of a session, so that a client can go on with
// one where its connection broke. Every event has a number and is said once to
// whoever names the last one that it heard. A replay is safe for concurrent use.
type replay struct {
	limits *Limits
	all    *atomic.Int64     // bytes of answers that wait in all sessions; nil if none ever does here
	fall   func(data []byte) // takes what was to be said on a stream that nobody came back to

	mu     sync.Mutex
	last   int // number of the newest track
	tracks map[int]*track
	bytes  int         // of what was said on all of them
	held   int         // bytes of answers on those that nobody reads
	timer  *time.Timer // to prune; nil if nothing waits for that
	closed bool
}

// A track is one event stream, over all connections that carry it. The lock of
// its replay guards it.
type track struct {
	r      *replay
	n      int    // names it in event ids; 0 if it cannot be resumed
	get    bool   // it belongs to no request: what it says comes from elsewhere
	queue  queue  // what is to be said
	said   []item // oldest first
	seq    int    // of the newest that was said
	lost   int    // of the newest that was said and is not kept
	primed bool   // the client knows its name before anything was said
	done   bool   // nothing more is to come
	gone   bool   // nobody may come back
	held   int    // bytes of answers in the queue, while nobody reads
	unsent int    // how many of the last said could not be written
	reader *reader
	left   time.Time // when the last reader went
}

// A reader is a connection that carries a track.
type reader struct {
	wake chan struct{} // of size one
	stop chan struct{} // closed when another carries the track, or nothing more is to come
	once sync.Once
}

func newReader() *reader { return &reader{wake: make(chan struct{}, 1), stop: make(chan struct{})} }

func (rd *reader) end() { rd.once.Do(func() { close(rd.stop) }) }

// passing returns a track that nobody can come back to.
func passing(rd *reader, q queue) *track {
	return &track{r: new(replay), queue: q, reader: rd}
}

// begin adds a track that rd carries; get says that it belongs to no request. If
// the session has ended, nobody can come back to it.
func (r *replay) begin(rd *reader, q queue, get bool) *track {
	tr := &track{r: r, queue: q, reader: rd, get: get}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return tr
	}
	r.last++
	tr.n = r.last
	if r.tracks == nil {
		r.tracks = map[int]*track{}
	}
	r.tracks[tr.n] = tr
	return tr
}

// put queues what is to be said. It returns false if nobody will hear it.
func (tr *track) put(data []byte) (ok bool, err error) {
	tr.r.mu.Lock()
	if tr.gone || tr.done {
		tr.r.mu.Unlock()
		return false, nil
	}
	err = tr.queue.put(data)
	rd := tr.reader
	tr.r.mu.Unlock()
	if rd != nil {
		wake(rd.wake)
	}
	return true, err
}

// finish queues the answers, after which nothing is to come.
func (tr *track) finish(answers []answer) {
	tr.r.mu.Lock()
	tr.done = true
	if tr.gone {
		tr.r.mu.Unlock()
		return
	}
	size := 0
	for _, a := range answers {
		it := item{kind: reply, answer: a}
		size += it.size()
		tr.queue.items = append(tr.queue.items, it)
	}
	rd := tr.reader
	var unsaid []item
	if rd == nil {
		tr.left = time.Now()
		unsaid = tr.r.hold(tr, size)
	}
	tr.r.mu.Unlock()
	if rd != nil {
		wake(rd.wake)
	}
	tr.r.let(unsaid)
}

// hold notes that answers wait on tr for a client to come back. Others of the
// session give way to them, those that were left longest ago first. If other
// sessions have taken all the room there is, they wait no more. The caller holds
// the lock.
func (r *replay) hold(tr *track, size int) (unsaid []item) {
	full := func() bool {
		all := r.all.Load()
		return all > 0 && all+int64(size) > bodies*r.limits.Body
	}
	for r.held > 0 && (int64(r.held+size) > r.limits.Body || full()) {
		unsaid = append(unsaid, r.drop(r.oldest(func(other *track) bool { return other.held > 0 }))...)
	}
	if full() {
		return append(unsaid, r.drop(tr)...)
	}
	tr.held = size
	r.held += size
	r.all.Add(int64(size))
	return unsaid
}

// oldest returns the track that was left longest ago, of those that match, or nil.
// The caller holds the lock.
func (r *replay) oldest(match func(*track) bool) (found *track) {
	for _, tr := range r.tracks {
		if tr.reader != nil || !match(tr) {
			continue
		}
		if found == nil || tr.left.Before(found.left) || tr.left.Equal(found.left) && tr.n < found.n {
			found = tr
		}
	}
	return found
}

// prime notes that the client knows the name of the track.
func (tr *track) prime() {
	tr.r.mu.Lock()
	defer tr.r.mu.Unlock()
	tr.primed = true
}

// take returns what rd is to write, and whether it is the last.
func (tr *track) take(rd *reader) (items []item, last bool) {
	tr.r.mu.Lock()
	defer tr.r.mu.Unlock()
	if tr.reader != rd {
		return nil, false
	}
	return tr.keep(tr.unqueue()), tr.done
}

// say keeps what rd is to write, which then has its numbers. It returns false if
// another carries the track.
func (tr *track) say(rd *reader, items []item) bool {
	tr.r.mu.Lock()
	defer tr.r.mu.Unlock()
	if tr.reader != rd {
		return false
	}
	tr.keep(items)
	return true
}

// keep numbers items and keeps them within the limits, the newest one always:
// it is being written. The caller holds the lock.
func (tr *track) keep(items []item) []item {
	if tr.n == 0 {
		return items
	}
	for i := range items {
		tr.seq++
		items[i].seq = tr.seq
		tr.r.bytes += items[i].size()
	}
	tr.said = append(tr.said, items...)
	for len(tr.said) > maxSaid {
		tr.forget()
	}
	for tr.r.bytes > tr.r.limits.Replay {
		other := tr.r.oldest(func(other *track) bool { return len(other.said) > 0 && other.arrived() })
		if other == nil {
			break
		}
		other.forget()
	}
	for len(tr.said) > 1 && tr.r.bytes > tr.r.limits.Replay {
		tr.forget()
	}
	return items
}

// arrived reports whether all that was to be said was written. The caller holds
// the lock.
func (tr *track) arrived() bool { return tr.unsent == 0 && len(tr.queue.items) == 0 }

// unqueue takes what is to be said. The caller holds the lock.
func (tr *track) unqueue() []item {
	if tr.held > 0 {
		tr.r.held -= tr.held
		tr.r.all.Add(-int64(tr.held))
		tr.held = 0
	}
	return tr.queue.take()
}

// forget drops the oldest event that is kept. The caller holds the lock.
func (tr *track) forget() {
	tr.lost = tr.said[0].seq
	tr.r.bytes -= tr.said[0].size()
	tr.said[0] = item{}
	tr.said = tr.said[1:]
}

// leave notes that rd carries the track no more, and could not write rest, the
// last of what was said. If nobody can come back, it returns what is still to be
// said.
func (tr *track) leave(rd *reader, rest []item) []item {
	r := tr.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if tr.reader != rd {
		return nil
	}
	tr.reader, tr.left = nil, time.Now()
	known := tr.primed || tr.seq > len(rest)
	if tr.n == 0 || r.closed || !known {
		unsaid := append(slices.Clone(rest), tr.unqueue()...)
		r.drop(tr)
		return unsaid
	}
	tr.unsent = len(rest)
	if tr.done && tr.arrived() { // as far as can be told
		for len(tr.said) > 0 && r.bytes > r.limits.Replay {
			tr.forget()
		}
	}
	if r.timer == nil {
		r.timer = time.AfterFunc(r.limits.ReplayAge, r.prune)
	}
	return r.crowd()
}

// crowd drops the track that was left longest ago if there are too many, and
// returns what was to be said on it. The caller holds the lock.
func (r *replay) crowd() []item {
	n := 0
	for _, tr := range r.tracks {
		if tr.reader == nil {
			n++
		}
	}
	if n <= maxTracks {
		return nil
	}
	return r.drop(r.oldest(func(*track) bool { return true }))
}

// drop forgets a track and returns what was still to be said on it. The caller
// holds the lock.
func (r *replay) drop(tr *track) []item {
	unsaid := append(tr.retract(), tr.unqueue()...)
	for len(tr.said) > 0 {
		tr.forget()
	}
	tr.gone = true
	delete(r.tracks, tr.n)
	return unsaid
}

// retract takes back what was said and could not be written. The caller holds the
// lock.
func (tr *track) retract() []item {
	n := min(tr.unsent, len(tr.said))
	tr.unsent = 0
	unsaid := slices.Clone(tr.said[len(tr.said)-n:])
	tr.said = tr.said[:len(tr.said)-n]
	for i := range unsaid {
		tr.r.bytes -= unsaid[i].size()
		unsaid[i].seq = 0
	}
	return unsaid
}

// unsaid takes back what belongs to no request and could not be written, for a
// client that opens a new stream instead of coming back.
func (r *replay) unsaid() (items []item) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, tr := range r.tracks {
		if tr.get && tr.reader == nil {
			items = append(items, tr.retract()...)
		}
	}
	return items
}

// prune drops the tracks to which nobody came back in time. Those of requests
// under way stay, for the sake of the answer: what else they hold is handed on.
func (r *replay) prune() {
	r.mu.Lock()
	var unsaid []item
	next := time.Duration(-1)
	for _, tr := range r.tracks {
		if tr.reader != nil {
			continue
		}
		wait := r.limits.ReplayAge - time.Since(tr.left)
		if wait <= 0 {
			if tr.done || tr.get {
				unsaid = append(unsaid, r.drop(tr)...)
				continue
			}
			unsaid = append(unsaid, append(tr.retract(), tr.unqueue()...)...)
			tr.left, wait = time.Now(), r.limits.ReplayAge
		}
		if next < 0 || wait < next {
			next = wait
		}
	}
	if next >= 0 && !r.closed {
		r.timer.Reset(next)
	} else {
		r.timer = nil
	}
	r.mu.Unlock()
	r.let(unsaid)
}

// let hands on what was to be said on a stream that is no more, save answers:
// they have no other place.
func (r *replay) let(items []item) {
	for _, it := range items {
		if it.kind != reply {
			r.fall(it.data)
		}
	}
}

// resume has rd carry the track that id names, and returns what was said there
// behind the event of that id. It returns false if there is no such event, or if
// what followed is not kept.
func (r *replay) resume(id string, rd *reader) (tr *track, again []item, ok bool) {
	n, seq, ok := parseEventID(id)
	if !ok {
		return nil, nil, false
	}
	r.mu.Lock()
	tr = r.tracks[n]
	if tr == nil || seq > tr.seq || seq < tr.lost {
		r.mu.Unlock()
		return nil, nil, false
	}
	before := tr.reader
	tr.reader, tr.unsent = rd, 0
	for i := range tr.said {
		if tr.said[i].seq > seq {
			again = slices.Clone(tr.said[i:])
			break
		}
	}
	r.mu.Unlock()
	if before != nil {
		before.end()
	}
	wake(rd.wake)
	return tr, again, true
}

// close forgets everything. What carries a track yet says its last.
func (r *replay) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.timer != nil {
		r.timer.Stop()
	}
	for _, tr := range r.tracks {
		if tr.reader == nil {
			r.drop(tr)
		}
	}
}

// waiting returns how many messages wait for a client to come back.
func (r *replay) waiting() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, tr := range r.tracks {
		if tr.reader == nil {
			n += len(tr.queue.items) + tr.unsent
		}
	}
	return n
}

// The id of an event is the number of its track and its own in that.

func appendEventID(b []byte, track, seq int) []byte {
	b = strconv.AppendInt(b, int64(track), 10)
	return strconv.AppendInt(append(b, '-'), int64(seq), 10)
}

func parseEventID(id string) (track, seq int, ok bool) {
	a, b, ok := strings.Cut(id, "-")
	if !ok || len(id) > 40 {
		return 0, 0, false
	}
	track, errA := strconv.Atoi(a)
	seq, errB := strconv.Atoi(b)
	return track, seq, errA == nil && errB == nil && seq >= 0
}
