package process_test

import (
	"context"
	"errors"
	"io"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/sandbox/process"
)

// While a demanded sandbox is set up guesses are halted, and none is begun; then
// they go on as they were.
func TestGuessesAreHaltedForDemand(t *testing.T) {
	needs(t, "cpu limit")
	b := newBackend(t, "")
	for _, isolation := range isolations {
		p := startBy(t, b.Speculate, spec(isolation))
		pid := p.inst.Usage().PID
		first := process.Demand(b)
		second := process.Demand(b)
		eventually(t, "the guess to be halted", func() string {
			before := activity(pid)
			<-time.After(20 * time.Millisecond)
			if activity(pid) != before {
				return "it runs"
			}
			return ""
		})
		answered := make(chan error, 1)
		go func() {
			_, _, err := p.try("uid", probeArgs{})
			answered <- err
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if _, err := b.Speculate(ctx, nextID(), spec(isolation), io.Discard); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: Speculate beside a demand: %v", isolation, err)
		}
		cancel()
		first()
		select {
		case err := <-answered:
			t.Errorf("%s: a guess answered beside a demand: %v", isolation, err)
		case <-time.After(20 * time.Millisecond):
		}
		second()
		if got := idle(t, pid); got != "cpu io" {
			t.Errorf("%s: after the demand idle is %q", isolation, got)
		}
		if err := p.inst.(sandbox.Promoter).Promote(); err != nil {
			t.Error(err)
		}
		if err := <-answered; err != nil {
			t.Errorf("%s: after the demand: %v", isolation, err)
		}
	}
}

// A guess that somebody comes for meanwhile is not halted any more.
func TestPromoteBesideADemand(t *testing.T) {
	needs(t, "cpu limit")
	b := newBackend(t, "")
	for _, isolation := range isolations {
		p := startBy(t, b.Speculate, spec(isolation))
		end := process.Demand(b)
		if err := p.inst.(sandbox.Promoter).Promote(); err != nil {
			t.Error(err)
		}
		p.must("uid", probeArgs{})
		end()
		if got := idle(t, p.inst.Usage().PID); got != "" {
			t.Errorf("%s: after the demand idle is %q", isolation, got)
		}
		p.must("uid", probeArgs{})
	}
}

// One that was frozen stays so, and one that is thawed is in the idle class.
func TestFreezeBesideADemand(t *testing.T) {
	needs(t, "cpu limit")
	b := newBackend(t, "")
	for _, isolation := range isolations {
		p, q := startBy(t, b.Speculate, spec(isolation)), startBy(t, b.Speculate, spec(isolation))
		end := process.Demand(b)
		if err := p.inst.(sandbox.Freezer).Freeze(); err != nil {
			t.Error(err)
		}
		if err := q.inst.(sandbox.Freezer).Thaw(); err != nil {
			t.Error(err)
		}
		end()
		pid := p.inst.Usage().PID
		before := activity(pid)
		<-time.After(30 * time.Millisecond)
		if activity(pid) != before {
			t.Errorf("%s: a frozen guess runs after the demand", isolation)
		}
		if got := idle(t, q.inst.Usage().PID); got != "cpu io" {
			t.Errorf("%s: a thawed guess: idle is %q", isolation, got)
		}
		for _, x := range []*peer{p, q} {
			if err := x.inst.(sandbox.Freezer).Thaw(); err != nil {
				t.Error(err)
			}
			if err := x.inst.(sandbox.Promoter).Promote(); err != nil {
				t.Error(err)
			}
			x.must("uid", probeArgs{})
		}
	}
}

// A guess that has no processor, because calls want all of them, can be frozen
// all the same, and is in the idle class when it goes on.
func TestFreezeInTheIdleClass(t *testing.T) {
	needs(t, "cpu limit")
	b := newBackend(t, "")
	for _, isolation := range isolations {
		guess, call := startBy(t, b.Speculate, spec(isolation)), start(t, b, spec(isolation))
		var burning sync.WaitGroup
		burning.Go(func() { guess.must("burn", probeArgs{N: 2 * runtime.NumCPU(), Ms: 1500}) })
		burning.Go(func() { call.must("burn", probeArgs{N: 2 * runtime.NumCPU(), Ms: 1500}) })
		pid := guess.inst.Usage().PID
		<-time.After(100 * time.Millisecond)
		for range 20 {
			if err := guess.inst.(sandbox.Freezer).Freeze(); err != nil {
				t.Error(err)
			}
			if err := guess.inst.(sandbox.Freezer).Thaw(); err != nil {
				t.Error(err)
			}
			if got := idle(t, pid); got != "cpu io" {
				t.Errorf("%s: thawed, its idle is %q", isolation, got)
			}
		}
		if err := guess.inst.(sandbox.Promoter).Promote(); err != nil {
			t.Error(err)
		}
		burning.Wait()
		if got := idle(t, pid); got != "" {
			t.Errorf("%s: promoted, its idle is %q", isolation, got)
		}
	}
}
