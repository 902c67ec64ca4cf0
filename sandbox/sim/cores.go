package sim

import (
	"context"
	"math"
	"sync"
	"time"
)

// cores share the processor among the starts under way. Those in the ordinary
// class share it evenly; what they leave, those in the idle class share. It is
// safe for concurrent use.
type cores struct {
	mu   sync.Mutex
	n    int // 0 means one for each start in the ordinary class
	jobs map[*job]struct{}
	last time.Time // until then the work that is left is known
}

// A job is a start that is under way.
type job struct {
	left float64 // ns of work at full speed
	idle bool
	wake chan struct{} // its speed has changed
}

func newJob(idle bool) *job { return &job{idle: idle, wake: make(chan struct{}, 1)} }

// run returns when d of work is done, or ctx ends. If demanded is closed
// meanwhile, the job leaves the idle class.
func (c *cores) run(ctx context.Context, j *job, d time.Duration, demanded <-chan struct{}) error {
	if ctx.Err() != nil || d <= 0 {
		return context.Cause(ctx)
	}
	c.change(func() {
		j.left = float64(d)
		c.jobs[j] = struct{}{}
	})
	defer c.change(func() { delete(c.jobs, j) })
	done := time.NewTimer(0)
	defer done.Stop()
	for {
		left, speed := c.look(j)
		if left <= 0 {
			return nil
		}
		if done.Stop(); speed > 0 {
			done.Reset(time.Duration(math.Ceil(left / speed)))
		}
		select {
		case <-done.C:
		case <-j.wake:
		case <-demanded:
			demanded = nil
			c.promote(j)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// promote takes a job out of the idle class.
func (c *cores) promote(j *job) { c.change(func() { j.idle = false }) }

func (c *cores) isIdle(j *job) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return j.idle
}

// look returns the work that is left of a job, and how fast it goes on.
func (c *cores) look(j *job) (left, speed float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance()
	ordinary, idle := c.speeds()
	if j.idle {
		return j.left, idle
	}
	return j.left, ordinary
}

// change changes the jobs, and has each look at its speed again.
func (c *cores) change(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.jobs == nil {
		c.jobs = map[*job]struct{}{}
	}
	c.advance()
	f()
	for j := range c.jobs {
		select {
		case j.wake <- struct{}{}:
		default:
		}
	}
}

// advance does the work of the time that has passed.
func (c *cores) advance() {
	now := time.Now()
	passed := float64(now.Sub(c.last))
	c.last = now
	ordinary, idle := c.speeds()
	for j := range c.jobs {
		speed := ordinary
		if j.idle {
			speed = idle
		}
		j.left -= passed * speed
		if j.left < 0.5 { // no duration is shorter
			j.left = 0
		}
	}
}

// speeds returns how fast the jobs of each class go on; 1 is full speed.
func (c *cores) speeds() (ordinary, idle float64) {
	var busy, lowly float64
	for j := range c.jobs {
		if j.idle {
			lowly++
		} else {
			busy++
		}
	}
	if c.n == 0 {
		if busy > 0 {
			return 1, 0
		}
		return 1, 1
	}
	n := float64(c.n)
	return min(1, n/max(busy, 1)), min(1, max(0, n-busy)/max(lowly, 1))
}
