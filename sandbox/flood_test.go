package sandbox_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/sandbox/sim"
	"github.com/specbox/specbox/trace"
)

// A stream that names every tool of 70 servers, again and again, starts nothing
// beyond the budgets and does not delay a call: neither of a server that it
// names nor of another.
func TestStreamThatNamesEverything(t *testing.T) {
	const (
		servers   = 70
		sandboxes = 16
		guesses   = 6
		mib       = 1 << 20
	)
	b := lives(func(_ *sandbox.Spec, _ int, l *sim.Life) {
		l.Create, l.Handshake, l.Close = 800*time.Millisecond, 200*time.Millisecond, time.Second
		l.Memory = func(time.Duration, int) int64 { return 50 * mib }
	})
	b.Cores = 2
	cfg := sandbox.Config{Sandboxes: sandboxes, Starts: 2, Speculation: sandbox.Speculation{Sandboxes: guesses, Starts: 2, Memory: 250 * mib}}
	bubble(t, b, cfg, func(t *testing.T, h *house) {
		var acting sync.WaitGroup
		acting.Go(func() {
			for round := range 600 { // every 50 ms, for 30 s
				for i := range servers {
					h.Warm(likely("flood", fmt.Sprint("named", i), float64((i*7+round)%100)/100))
				}
				st := h.Stats()
				if err := h.Audit(); err != nil || st.Unclaimed > guesses || st.Live > sandboxes || st.States[sandbox.Starting] > 4 {
					t.Errorf("%d unclaimed, %v, %v", st.Unclaimed, st.States, err)
				}
				time.Sleep(50 * time.Millisecond)
			}
		})
		for i := range 14 {
			acting.Go(func() {
				time.Sleep(time.Duration(i) * 2100 * time.Millisecond)
				tenant, session, server := "flood", fmt.Sprint(i), fmt.Sprint("named", i*5)
				if i%2 == 0 {
					server = fmt.Sprint("other", i)
				}
				if i%3 == 0 {
					tenant = "victim"
				}
				l := h.acquire(demand(tenant, session, server))
				if l.Provision() > 1150*time.Millisecond {
					t.Errorf("%s of %s was %s and took %v, 1 s alone", server, tenant, l.Outcome(), l.Provision())
				}
				l.Release()
				h.EndSession(tenant, session)
			})
		}
		acting.Wait()
		if c := h.sim.Count(); c.MaxLive > sandboxes || c.Guessed < guesses {
			t.Errorf("most alive %d, guesses %d", c.MaxLive, c.Guessed)
		}
		if n := len(h.events(trace.Start)); n > 200 {
			t.Errorf("%d starts in 30 s: guesses displace one another", n)
		}
	})
}
