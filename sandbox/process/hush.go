package process

import (
	"context"
	"path/filepath"
	"sync"
	"time"
)

// What sets a demanded sandbox up waits for others in the kernel: moving to a
// cgroup waits for every thread that is being born, and taking mounts down for
// every processor to pass a quiet point. A guess in the idle class that lost its
// processor there holds both up, for as long as anybody else wants one. So guesses
// are halted, where a halt finds nobody in the kernel, for the milliseconds that a
// demanded one takes to be set up, and none is begun meanwhile.
type quiet struct {
	mu      sync.Mutex
	demands int           // being set up
	over    chan struct{} // closed when there is none any more; nil if there is none
}

// hushPatience bounds what a demanded start waits for guesses to be halted. It
// takes some hundred microseconds, unless they are starved already.
const hushPatience = 5 * time.Millisecond

// demand halts the guesses until the func that it returns is called.
func (b *Backend) demand() (end func()) {
	q := &b.quiet
	q.mu.Lock()
	q.demands++
	first := q.demands == 1
	if first {
		q.over = make(chan struct{})
	}
	q.mu.Unlock()
	if first {
		var halted []*instance
		for _, i := range b.guesses() {
			if i.hush() {
				halted = append(halted, i)
			}
		}
		deadline := time.Now().Add(hushPatience)
		for _, i := range halted {
			if i.group.v2 != "" {
				_ = awaitFrozen(filepath.Join(i.group.v2, "cgroup.events"), time.Until(deadline))
			}
		}
	}
	return func() {
		q.mu.Lock()
		q.demands--
		last := q.demands == 0
		if last {
			close(q.over)
			q.over = nil
		}
		q.mu.Unlock()
		if last {
			for _, i := range b.guesses() {
				i.unhush()
			}
		}
	}
}

// lull waits until no demanded sandbox is being set up.
func (b *Backend) lull(ctx context.Context) error {
	for {
		b.quiet.mu.Lock()
		over := b.quiet.over
		b.quiet.mu.Unlock()
		if over == nil {
			return nil
		}
		select {
		case <-over:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// guesses returns the instances that were started by Speculate.
func (b *Backend) guesses() []*instance {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []*instance
	for _, i := range b.live {
		if i != nil && i.speculative {
			out = append(out, i)
		}
	}
	return out
}

// hush begins to halt a guess that nobody has come for, and reports whether it
// did. In the idle class it would not even come to the point where it halts.
func (i *instance) hush() bool {
	select {
	case i.turn <- struct{}{}:
	default:
		return false // something else is done with it
	}
	defer func() { <-i.turn }()
	if !i.idle || i.frozen || i.hushed || i.closing || i.over() || i.group.v1["cpu"] == "" && !i.group.has2("cpu") {
		return false
	}
	i.hushed = true
	_, _ = i.group.setIdle(false)
	can, err := i.group.freeze()
	return can && err == nil
}

// unhush undoes hush.
func (i *instance) unhush() {
	i.turn <- struct{}{}
	defer func() { <-i.turn }()
	if i.hushed && !i.closing {
		i.unhushed()
		if !i.frozen {
			_, _ = i.group.thaw()
		}
	}
}

// unhushed gives a hushed guess its class back. The caller has the turn.
func (i *instance) unhushed() {
	if i.hushed && i.idle {
		_, _ = i.group.setIdle(true)
	}
	i.hushed = false
}
