package sandbox_test

import (
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/sandbox/process"
	"github.com/specbox/specbox/sandbox/sandboxtest"
)

const (
	mannerVar = "SANDBOX_TEST_MANNER" // this program is to be a server
	workVar   = "SANDBOX_TEST_WORK"   // … that has so much to do before
)

func TestMain(m *testing.M) {
	process.Init()
	if manner := os.Getenv(mannerVar); manner != "" {
		steps, _ := strconv.Atoi(os.Getenv(workVar))
		work := make([]byte, 1<<20)
		for range steps { // what interpreters do before they listen
			sum := sha256.Sum256(work)
			copy(work, sum[:])
		}
		sandboxtest.Main(manner)
	}
	os.Exit(m.Run())
}

var storm = flag.Duration("storm", 3*time.Second, "how long the storm against real processes lasts")

// TestStorm does random things with real processes. make chaos makes it longer.
func TestStorm(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, isolation := range []config.Isolation{config.Process, config.None} {
		t.Run(string(isolation), func(t *testing.T) {
			root := filepath.Join(t.TempDir(), "run")
			b, err := process.New(process.Config{Run: root})
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			spec := func(manner string) *sandbox.Spec {
				s := &sandbox.Spec{
					Server: manner, Isolation: isolation, Argv: []string{self}, Memory: 512 << 20, Pids: 128,
					Env: map[string]string{mannerVar: manner, workVar: "10"},
				}
				if manner == sandboxtest.Missing {
					s.Argv = []string{"specbox-no-such-program"}
				}
				return s
			}
			if inst, err := b.Create(t.Context(), "first", spec(sandboxtest.Echo), io.Discard); err != nil { // its thread has begun
				t.Fatal(err)
			} else if err := inst.Close(); err != nil {
				t.Fatal(err)
			}
			sandboxtest.TestManager(t, sandboxtest.Suite{
				Backend: b, Spec: spec,
				Left: func() []string {
					left, _ := filepath.Glob(filepath.Join(root, "*", "*"))
					return slices.DeleteFunc(left, func(f string) bool { return filepath.Base(f) == "lock" })
				},
			}, *storm)
		})
	}
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
		return &sandbox.Spec{Server: server, Hash: "h", Isolation: config.None, Argv: []string{self}, Env: map[string]string{mannerVar: sandboxtest.Echo, workVar: "100"}, StopGrace: time.Second}
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
