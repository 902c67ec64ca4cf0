package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/trace"
)

// shared is a demand for a server of which a sandbox serves so many calls at once.
func shared(session, server string, concurrency int) sandbox.Demand {
	d := demand("t", session, server)
	d.Spec.Scope, d.Spec.Concurrency = config.Shared, concurrency
	return d
}

// A sandbox that sessions share serves as many calls at once as its server says.
func TestSharedSandboxServesItsConcurrency(t *testing.T) {
	for _, tt := range []struct {
		scope               config.Scope
		concurrency, starts int
	}{
		{config.Shared, 2, 3}, {config.PerTenant, 2, 3}, {config.Shared, 5, 1}, {config.Shared, 0, 1}, {config.PerTenant, 1, 5},
		{config.PerSession, 2, 1}, // it is one session
	} {
		bubble(t, lives(nil), sandbox.Config{Starts: 8}, func(t *testing.T, h *house) {
			var calls sync.WaitGroup
			var mu sync.Mutex
			serves := map[string]int{}
			for range 5 {
				calls.Go(func() {
					d := shared("s", "a", tt.concurrency)
					d.Spec.Scope = tt.scope
					l := h.acquire(d)
					h.want("provision", l.Provision(), cold+shake)
					mu.Lock()
					serves[l.ID()]++
					mu.Unlock()
					time.Sleep(time.Second)
					mu.Lock()
					defer mu.Unlock()
					if n := serves[l.ID()]; tt.scope != config.PerSession && tt.concurrency > 0 && n > tt.concurrency {
						t.Errorf("a sandbox serves %d calls at once, the bound is %d", n, tt.concurrency)
					}
					l.Release()
				})
			}
			calls.Wait()
			h.want(fmt.Sprint("starts of ", tt), h.sim.Count().Created, tt.starts)
		})
	}
}

func TestCallTakesTheLeastLoaded(t *testing.T) {
	bubble(t, lives(nil), sandbox.Config{}, func(t *testing.T, h *house) {
		var leases []*sandbox.Lease
		for i := range 5 { // one after the other: 3 and 2
			leases = append(leases, h.acquire(shared(fmt.Sprint(i), "a", 3)))
		}
		first, second := leases[0].ID(), leases[3].ID()
		h.want("starts", h.sim.Count().Created, 2)
		h.want("outcomes", fmt.Sprint(leases[2].Outcome(), leases[3].Outcome(), leases[4].Outcome()), "warmcoldwarm")
		leases[0].Release()
		leases[1].Release() // 1 and 2
		h.want("the next", h.acquire(shared("x", "a", 3)).ID(), first)
		leases[3].Release() // 2 and 1
		l := h.acquire(shared("y", "a", 3))
		h.want("the one after", l.ID(), second)
		h.want("its outcome", l.Outcome(), trace.Warm)
		l.Discard("done")
		h.acquire(shared("z", "a", 3)).Discard("done")
		h.want("starts", h.sim.Count().Created, 2)
	})
}

// Where there is no room for another sandbox, and while one starts, a call takes
// what gets free first.
func TestCallTakesWhatIsFreeFirst(t *testing.T) {
	for _, tt := range []struct {
		what      string
		sandboxes int
		held      time.Duration
		waits     time.Duration
		starts    int
		outcome   trace.Outcome
	}{
		{"no room for another", 1, 10 * time.Second, 10 * time.Second, 1, trace.Cold},
		{"free before the other is ready", 8, cold / 2, cold / 2, 2, trace.Cold},
		{"free later", 8, 10 * time.Second, cold + shake, 2, trace.Cold},
	} {
		bubble(t, lives(nil), sandbox.Config{Sandboxes: tt.sandboxes}, func(t *testing.T, h *house) {
			l := h.acquire(shared("1", "a", 1))
			time.AfterFunc(tt.held, l.Release)
			next := h.acquire(shared("2", "a", 1))
			h.want(tt.what+": provision", next.Provision(), tt.waits)
			h.want(tt.what+": outcome", next.Outcome(), tt.outcome)
			h.want(tt.what+": is it the first", next.ID() == l.ID(), tt.waits == tt.held)
			next.Release()
			time.Sleep(10 * time.Second)
			synctest.Wait()
			h.want(tt.what+": starts", h.sim.Count().Created, tt.starts)
			h.want(tt.what+": in use", h.Stats().Uses, 0)
		})
	}
}

// However many wait, all are served by what gets free, and none waits beside a
// free one.
func TestAllThatWaitAreServed(t *testing.T) {
	bubble(t, lives(nil), sandbox.Config{Sandboxes: 1}, func(t *testing.T, h *house) {
		var calls sync.WaitGroup
		begun := time.Now()
		for i := range 12 {
			calls.Go(func() {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if i%4 == 3 { // one in four leaves
					time.AfterFunc(2*time.Second+time.Duration(i)*time.Millisecond, cancel)
				}
				l, err := h.Acquire(ctx, shared(fmt.Sprint(i), "a", 2))
				if err != nil {
					if !errors.Is(err, context.Canceled) {
						t.Errorf("Acquire: %v", err)
					}
					return
				}
				time.Sleep(time.Second)
				l.Release()
			})
		}
		calls.Wait()
		if took := time.Since(begun); took > cold+shake+6*time.Second {
			t.Errorf("12 calls of a second, two at a time, took %v", took)
		}
		h.want("starts", h.sim.Count().Created, 1)
	})
}
