package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"
)

// A played is all that a policy did with all sessions.
type played struct {
	sessions []Session
	starts   int
	wasted   int
	cpu      time.Duration
	events   []Event
}

// stagger keeps the sessions that begin together apart.
const stagger = 1500 * time.Millisecond

// play plays all sessions under a policy, with a SpecBox of its own.
func (s *setting) play(ctx context.Context, policy, dir, modelURL string) (*played, error) {
	b, err := s.serve(ctx, policy, dir, modelURL, false)
	if err != nil {
		return nil, err
	}
	p, err := s.playAt(ctx, b)
	if err == nil {
		p.cpu = cpuTime(b.pid())
	}
	b.stop()
	if err != nil {
		return nil, err
	}
	events, err := readEvents(filepath.Join(dir, "trace.jsonl"))
	if err != nil {
		return nil, err
	}
	p.read(events)
	return p, nil
}

func (w *world) playAt(ctx context.Context, b *box) (*played, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a := NewAgents(b.url)
	defer a.Close()
	p := &played{sessions: make([]Session, len(w.tasks))}
	errs := make([]error, len(w.tasks))
	next := make(chan int, len(w.tasks))
	for i := range w.tasks {
		next <- i
	}
	close(next)
	var work sync.WaitGroup
	for n := range min(w.o.Sessions, len(w.tasks)) {
		work.Go(func() {
			wait := time.NewTimer(time.Duration(n) * stagger)
			defer wait.Stop()
			select {
			case <-wait.C:
			case <-ctx.Done():
			}
			for i := range next {
				if ctx.Err() != nil {
					return
				}
				if p.sessions[i], errs[i] = a.Run(ctx, &w.tasks[i], i+1); errs[i] != nil {
					errs[i] = fmt.Errorf("session %s: %w", w.tasks[i].ID, errs[i])
					cancel()
				}
			}
		})
	}
	work.Wait()
	return p, errors.Join(errs...)
}
