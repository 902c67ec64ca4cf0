package sandbox_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/sandbox/process"
	"github.com/specbox/specbox/sandbox/sandboxtest"
)

// asServer tells this program that it is run as a server.
const asServer = "SANDBOX_TEST_SERVER"

func TestMain(m *testing.M) {
	if os.Getenv(asServer) != "" {
		work := make([]byte, 1<<20)
		for range 100 { // what interpreters do before they listen
			sum := sha256.Sum256(work)
			copy(work, sum[:])
		}
		sandboxtest.Main(sandboxtest.Echo)
	}
	os.Exit(m.Run())
}

// BenchmarkFlood measures demanded starts of real processes, alone and beside a
// stream that names 70 servers again and again, by turns. It reports the ratio
// of the medians.
func BenchmarkFlood(b *testing.B) {
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	processes, err := process.New(process.Config{Run: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer processes.Close()
	m, err := sandbox.New(sandbox.Config{Backends: map[config.Isolation]sandbox.Backend{config.None: processes}, Speculation: sandbox.Speculation{Hold: time.Second}})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = m.Run(ctx) })
	defer running.Wait()
	defer cancel()
	real := func(server string) *sandbox.Spec {
		return &sandbox.Spec{Server: server, Hash: "h", Isolation: config.None, Argv: []string{self}, Env: map[string]string{asServer: "1"}, StopGrace: time.Second}
	}
	round := func(n int, flood bool) time.Duration {
		stop := make(chan struct{})
		var flooding sync.WaitGroup
		if flood {
			flooding.Go(func() {
				tick := time.NewTicker(20 * time.Millisecond)
				defer tick.Stop()
				for {
					for i := range 70 {
						m.Warm(sandbox.Hint{Tenant: "flood", Spec: real(fmt.Sprint("named", i)), P: rand.Float64()})
					}
					select {
					case <-tick.C:
					case <-stop:
						return
					}
				}
			})
			for m.Stats().Unclaimed == 0 {
				<-time.After(time.Millisecond)
			}
			<-time.After(time.Duration(rand.IntN(300)) * time.Millisecond)
		}
		begun := time.Now()
		l, err := m.Acquire(ctx, sandbox.Demand{Tenant: "call", Session: fmt.Sprint(n, flood), Spec: real("called")})
		took := time.Since(begun)
		if err != nil {
			b.Fatal(err)
		}
		l.Release()
		close(stop)
		flooding.Wait()
		if _, err := m.Stop(ctx, func(sandbox.Status) bool { return true }); err != nil {
			b.Fatal(err)
		}
		return took
	}
	var alone, beside []time.Duration
	for n := 0; b.Loop(); n++ {
		alone = append(alone, round(n, false))
		beside = append(beside, round(n, true))
	}
	slices.Sort(alone)
	slices.Sort(beside)
	b.ReportMetric(float64(alone[len(alone)/2].Milliseconds()), "alone-ms")
	b.ReportMetric(float64(beside[len(beside)/2])/float64(alone[len(alone)/2]), "ratio")
}
