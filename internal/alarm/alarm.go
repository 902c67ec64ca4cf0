// Package alarm calls functions late, as [time.AfterFunc] does, for those who set
// an alarm with every call and hardly ever let it ring.
//
// A timer of the runtime that is set anew for each call wakes threads, which
// costs more than the call. Here all alarms of one duration stand in a line, in
// the order in which they are due, and one timer waits for the first of them. Its
// laws:
//
//   - An alarm rings when it is due, neither earlier nor later than a timer.
//   - To set or to stop one is a matter of a lock, and of no timer, save for the
//     first of its line.
//   - A line without alarms is forgotten with its timer.
package alarm

import (
	"sync"
	"time"
)

// A Clock holds alarms. Its zero value has none. It is safe for concurrent use,
// and it is not to be copied.
type Clock struct {
	mu    sync.Mutex
	lines map[time.Duration]*line
}

// A line is the alarms of one duration: whoever comes later is due later.
type line struct {
	clock       *Clock
	after       time.Duration
	first, last *Alarm
	timer       *time.Timer
}

// An Alarm is a function to be called late. Its zero value is one that is not
// set. It belongs to one Clock at a time, and is not to be copied while it is set.
type Alarm struct {
	f          func()
	due        time.Time
	line       *line // nil if it is not set
	prev, next *Alarm
}

// Set has f called in a goroutine of its own, in which those wait that are due at
// the same time: it must not block. An alarm that is set already is set anew.
func (c *Clock) Set(a *Alarm, after time.Duration, f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a.unlink()
	l := c.lines[after]
	if l == nil {
		l = &line{clock: c, after: after}
		if c.lines == nil {
			c.lines = map[time.Duration]*line{}
		}
		c.lines[after] = l
		l.timer = time.AfterFunc(after, l.ring)
	}
	a.f, a.line, a.due = f, l, time.Now().Add(after)
	if a.prev = l.last; a.prev != nil {
		a.prev.next = a
	} else {
		l.first = a
	}
	l.last = a
}

// Stop keeps the alarm from ringing, and reports whether it does: if not, it rang,
// and its function may be running, or it was not set.
func (c *Clock) Stop(a *Alarm) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return a.unlink()
}

// unlink takes an alarm out of its line. The caller holds the lock.
func (a *Alarm) unlink() bool {
	l := a.line
	if l == nil {
		return false
	}
	if a.prev != nil {
		a.prev.next = a.next
	} else {
		l.first = a.next
	}
	if a.next != nil {
		a.next.prev = a.prev
	} else {
		l.last = a.prev
	}
	*a = Alarm{}
	return true
}

// ring calls those that are due, and waits for the next.
func (l *line) ring() {
	var due []func()
	l.clock.mu.Lock()
	now := time.Now()
	for l.first != nil && !l.first.due.After(now) {
		due = append(due, l.first.f)
		l.first.unlink()
	}
	if l.first != nil {
		l.timer.Reset(l.first.due.Sub(now))
	} else {
		delete(l.clock.lines, l.after)
	}
	l.clock.mu.Unlock()
	for _, f := range due {
		f()
	}
}
