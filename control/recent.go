package control

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/specbox/specbox/trace"
)

// Window is how far back a [Recent] remembers.
const Window = 5 * time.Minute

// slot is the stretch of time that is remembered and forgotten as one.
const slot = 10 * time.Second

const slots = int(Window / slot)

// Recent is a [trace.Recorder] that remembers what happened at each server within
// the last [Window], and no more than sums of it. Its methods may be called
// concurrently.
type Recent struct {
	begin time.Time

	mu   sync.Mutex
	ring [slots]happened
}

// happened is what happened within one slot.
type happened struct {
	number  int // of the slot, counted from begin
	servers map[string]*ServerActivity
}

// NewRecent returns a Recent that has seen nothing.
func NewRecent() *Recent { return &Recent{begin: time.Now()} }

// Record takes in e. What its time says is older than the window is forgotten.
func (r *Recent) Record(e trace.Event) {
	if e.Server == "" {
		return
	}
	switch e.Kind {
	case trace.CallEnd, trace.Start, trace.Stop, trace.Guess:
	default:
		return
	}
	number := r.number(e.Time)
	r.mu.Lock()
	defer r.mu.Unlock()
	h := &r.ring[number%slots]
	switch {
	case h.number > number:
		return // too late
	case h.servers == nil || h.number < number:
		*h = happened{number, map[string]*ServerActivity{}}
	}
	s := h.servers[e.Server]
	if s == nil {
		s = &ServerActivity{Server: e.Server}
		h.servers[e.Server] = s
	}
	s.count(&e)
}

// number returns the number of the slot that t is in; one from before the begin
// counts as the first.
func (r *Recent) number(t time.Time) int { return max(0, int(t.Sub(r.begin)/slot)) }

// count adds an event.
func (s *ServerActivity) count(e *trace.Event) {
	switch e.Kind {
	case trace.CallEnd:
		s.call(e)
	case trace.Start:
		if s.Starts == nil {
			s.Starts = map[string]int{}
		}
		s.Starts[string(e.Cause)]++
	case trace.Guess:
		s.Guesses++
	case trace.Stop:
		if !strings.HasPrefix(e.Detail, trace.Unused) {
			return
		}
		if s.Wasted == nil {
			s.Wasted = map[string]int{}
		}
		s.Wasted[string(e.Cause)]++
	}
}

func (s *ServerActivity) call(e *trace.Event) {
	switch e.Outcome {
	case trace.Warm:
		s.Warm++
	case trace.Late:
		s.Late++
	case trace.Cold:
		s.Cold++
	case trace.Cached:
		s.Cached++
	}
	if e.Err != "" {
		s.Failed++
	}
	wait := milliseconds(e.Provision)
	s.Wait += wait
	s.Longest = max(s.Longest, wait)
	s.Saved += milliseconds(e.Saved)
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// Activity returns what happened within the last [Window].
func (r *Recent) Activity() Activity {
	now := r.number(time.Now())
	a := Activity{Window: Window.Milliseconds(), Servers: []ServerActivity{}}
	sums := map[string]*ServerActivity{}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.ring {
		h := &r.ring[i]
		if h.servers == nil || h.number <= now-slots {
			continue
		}
		for name, s := range h.servers {
			if sums[name] == nil {
				sums[name] = &ServerActivity{Server: name}
			}
			sums[name].Add(s)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		a.Servers = append(a.Servers, *sums[name])
	}
	return a
}

// Add adds what happened at another server, or at another time.
func (s *ServerActivity) Add(o *ServerActivity) {
	s.Warm += o.Warm
	s.Late += o.Late
	s.Cold += o.Cold
	s.Cached += o.Cached
	s.Failed += o.Failed
	s.Wait += o.Wait
	s.Longest = max(s.Longest, o.Longest)
	s.Saved += o.Saved
	s.Guesses += o.Guesses
	s.Starts = addCounts(s.Starts, o.Starts)
	s.Wasted = addCounts(s.Wasted, o.Wasted)
}

func addCounts(to, from map[string]int) map[string]int {
	if to == nil && from != nil {
		to = map[string]int{}
	}
	for k, n := range from {
		to[k] += n
	}
	return to
}
