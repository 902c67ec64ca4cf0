package alarm_test

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/specbox/specbox/internal/alarm"
)

// Each alarm rings at its time, once, and a stopped one never.
func TestAlarmsRingInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c alarm.Clock
		var mu sync.Mutex
		rang := map[int][]time.Duration{}
		began := time.Now()
		alarms := make([]alarm.Alarm, 6)
		set := func(i int, after time.Duration) {
			c.Set(&alarms[i], after, func() {
				mu.Lock()
				defer mu.Unlock()
				rang[i] = append(rang[i], time.Since(began))
			})
		}
		set(0, time.Second)
		set(1, time.Second)
		set(2, 15*time.Second)
		time.Sleep(300 * time.Millisecond)
		set(3, time.Second)
		set(4, time.Second)
		if !c.Stop(&alarms[0]) || c.Stop(&alarms[0]) || c.Stop(&alarms[5]) {
			t.Error("an alarm that is set is stopped, once, and no other")
		}
		set(4, time.Second/2) // anew
		time.Sleep(5 * time.Second)
		set(5, time.Second)
		if c.Stop(&alarms[1]) {
			t.Error("an alarm that rang was stopped")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		want := map[int][]time.Duration{1: {time.Second}, 2: {15 * time.Second}, 3: {1300 * time.Millisecond}, 4: {800 * time.Millisecond}, 5: {6300 * time.Millisecond}}
		for i := range alarms {
			if !slices.Equal(rang[i], want[i]) {
				t.Errorf("alarm %d rang at %v, want %v", i, rang[i], want[i])
			}
		}
	})
}

// An alarm may be set by the function of another, and by its own.
func TestAlarmsSetAlarms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c alarm.Clock
		var a alarm.Alarm
		var n atomic.Int32
		var f func()
		f = func() {
			if n.Add(1) < 5 {
				c.Set(&a, time.Second, f)
			}
		}
		c.Set(&a, time.Second, f)
		time.Sleep(4500 * time.Millisecond)
		synctest.Wait()
		if n := n.Load(); n != 4 {
			t.Errorf("it rang %d times in 4.5 s, want 4", n)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := n.Load(); n != 5 {
			t.Errorf("it rang %d times, want 5", n)
		}
	})
}

// Whatever many goroutines set and stop, what is not stopped rings, once.
func TestAlarmsOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c alarm.Clock
		var work sync.WaitGroup
		for g := range uint64(20) {
			work.Go(func() {
				r := rand.New(rand.NewPCG(g, 1))
				for range 200 {
					var a alarm.Alarm
					rang := make(chan time.Time, 2)
					after := time.Duration(1+r.IntN(3)) * time.Second
					due := time.Now().Add(after)
					c.Set(&a, after, func() { rang <- time.Now() })
					time.Sleep(time.Duration(r.IntN(4000)) * time.Millisecond)
					stopped := c.Stop(&a)
					synced := time.Now()
					time.Sleep(time.Millisecond)
					select {
					case at := <-rang:
						if stopped || !at.Equal(due) {
							t.Errorf("it rang at %v, was due at %v, and was stopped: %v", at, due, stopped)
						}
					default:
						if !stopped {
							t.Errorf("it was due at %v, and did not ring until %v", due, synced)
						}
					}
				}
			})
		}
		work.Wait()
	})
}

func BenchmarkSetAndStop(b *testing.B) {
	var c alarm.Clock
	f := func() {}
	b.RunParallel(func(pb *testing.PB) {
		var a alarm.Alarm
		for pb.Next() {
			c.Set(&a, time.Minute, f)
			c.Stop(&a)
		}
	})
}
