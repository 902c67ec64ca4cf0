package trace_test

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/specbox/specbox/trace"
)

func TestWriteAndRead(t *testing.T) {
	var buf bytes.Buffer
	w := trace.NewWriter(&buf)
	want := []trace.Event{
		{Time: time.Unix(1, 5).UTC(), Kind: trace.Start, Server: "memory", Provision: 3 * time.Millisecond, Cause: trace.Demand},
		{Time: time.Unix(2, 0).UTC(), Kind: trace.CallEnd, Tool: "échо<>", Outcome: trace.Cold, BytesOut: 1 << 60},
	}
	for _, e := range want {
		w.Record(e)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(buf.String(), "\n"); n != 2 {
		t.Errorf("%d lines, want one an event: %s", n, buf.String())
	}
	var got []trace.Event
	for e, err := range trace.Read(&buf) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v, want %+v", got, want)
	}
}

func TestReadTellsOfGarbage(t *testing.T) {
	var errs int
	for _, err := range trace.Read(strings.NewReader("{\"kind\":\"call\"}\n{oops\n")) {
		if err != nil {
			errs++
		}
	}
	if errs != 1 {
		t.Errorf("%d errors, want 1", errs)
	}
}

// A writer that cannot keep up drops events and counts them; Record never waits.
func TestRecordDoesNotBlock(t *testing.T) {
	r, pipe := io.Pipe()
	w := trace.NewWriter(pipe)
	for range 10_000 {
		w.Record(trace.Event{Kind: trace.CallEnd})
	}
	if w.Dropped() == 0 {
		t.Error("nothing was dropped although nobody reads")
	}
	boom := errors.New("disk full")
	r.CloseWithError(boom)
	if err := w.Close(); !errors.Is(err, boom) {
		t.Errorf("Close: %v, want %v", err, boom)
	}
	w.Record(trace.Event{}) // after Close: ignored
}

func TestTeeSetsTheTimeOnce(t *testing.T) {
	var a, b trace.Log
	rec := trace.Tee(&a, &b)
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() { rec.Record(trace.Event{Kind: trace.Stop}) })
	}
	wg.Wait()
	if len(a.Events()) != 10 || len(b.Events()) != 10 {
		t.Fatalf("%d and %d events, want 10 each", len(a.Events()), len(b.Events()))
	}
	for _, e := range a.Events() {
		if e.Time.IsZero() {
			t.Error("an event has no time")
		}
	}
}
