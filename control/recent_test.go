package control_test

import (
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/specbox/specbox/control"
	"github.com/specbox/specbox/trace"
)

func TestRecentSumsAndForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := control.NewRecent()
		rec := trace.Tee(r)
		call := func(server string, o trace.Outcome, wait time.Duration) {
			rec.Record(trace.Event{Kind: trace.CallEnd, Server: server, Outcome: o, Provision: wait, Saved: wait / 2})
		}
		call("a", trace.Cold, 2*time.Second)
		rec.Record(trace.Event{Kind: trace.Start, Server: "a", Cause: trace.Demand})
		time.Sleep(4 * time.Minute)
		call("a", trace.Warm, time.Millisecond)
		call("b", trace.Late, time.Second)
		rec.Record(trace.Event{Kind: trace.CallEnd, Server: "b", Err: "gone"})
		rec.Record(trace.Event{Kind: trace.Guess, Server: "b", Cause: trace.Intent})
		rec.Record(trace.Event{Kind: trace.Start, Server: "b", Cause: trace.Intent})
		rec.Record(trace.Event{Kind: trace.Stop, Server: "b", Cause: trace.Intent, Detail: trace.Unused + ": nobody came"})
		rec.Record(trace.Event{Kind: trace.Stop, Server: "b", Cause: trace.Demand, Detail: "idle"})
		rec.Record(trace.Event{Kind: trace.SessionOpen})
		b := control.ServerActivity{Server: "b", Late: 1, Failed: 1, Wait: 1000, Longest: 1000, Saved: 500, Guesses: 1,
			Starts: map[string]int{"intent": 1}, Wasted: map[string]int{"intent": 1}}
		want := control.Activity{Window: 300_000, Servers: []control.ServerActivity{
			{Server: "a", Warm: 1, Cold: 1, Wait: 2001, Longest: 2000, Saved: 1000.5, Starts: map[string]int{"demand": 1}}, b}}
		if got := r.Activity(); !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
		time.Sleep(time.Minute)
		want.Servers[0] = control.ServerActivity{Server: "a", Warm: 1, Wait: 1, Longest: 1, Saved: .5}
		if got := r.Activity(); !reflect.DeepEqual(got, want) {
			t.Errorf("after five minutes: got %+v, want %+v", got, want)
		}
		call("a", trace.Cold, time.Second) // where the oldest was
		if got := r.Activity(); got.Servers[0].Cold != 1 || got.Servers[0].Warm != 1 {
			t.Errorf("after one more: %+v", got)
		}
		time.Sleep(control.Window)
		if got := r.Activity(); len(got.Servers) != 0 {
			t.Errorf("nothing happened, but %+v", got)
		}
	})
}

func TestRecentIsConcurrent(t *testing.T) {
	r := control.NewRecent()
	rec := trace.Tee(r)
	var work sync.WaitGroup
	for range 4 {
		work.Go(func() {
			for range 1000 {
				rec.Record(trace.Event{Kind: trace.CallEnd, Server: "a", Outcome: trace.Warm})
				_ = r.Activity()
			}
		})
	}
	work.Wait()
	if got := r.Activity(); len(got.Servers) != 1 || got.Servers[0].Warm != 4000 {
		t.Errorf("got %+v", got)
	}
}

func BenchmarkRecent(b *testing.B) {
	r := control.NewRecent()
	e := trace.Event{Time: time.Now(), Kind: trace.CallEnd, Server: "a", Outcome: trace.Warm, Provision: time.Millisecond}
	b.ReportAllocs()
	for b.Loop() {
		r.Record(e)
	}
}
