package control_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/specbox/specbox/control"
	"github.com/specbox/specbox/trace"
)

// scrape returns what /metrics shows.
func scrape(t *testing.T, stats func() control.Gauges, events ...trace.Event) string {
	t.Helper()
	rec, h, err := control.NewMetrics(stats)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		rec.Record(e)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

func none() control.Gauges { return control.Gauges{} }

func TestMetricsCountEvents(t *testing.T) {
	call := trace.Event{Kind: trace.CallEnd, Tenant: "ann", Server: "git", Tool: "log", Outcome: trace.Cold, Provision: 300 * time.Millisecond, Exec: 20 * time.Millisecond, BytesIn: 10, BytesOut: 1000}
	warm := call
	warm.Outcome, warm.Provision, warm.IsError = trace.Warm, 0, true
	lost := trace.Event{Kind: trace.CallEnd, Server: "git", Err: "git exited"}
	ahead := trace.Event{Kind: trace.CallEnd, Server: "web", Outcome: trace.Late, Cause: trace.Intent, Lead: 600 * time.Millisecond, Saved: 500 * time.Millisecond, Provision: time.Second}
	got := scrape(t, none,
		ahead,
		trace.Event{Kind: trace.Guess, Server: "web", Cause: trace.Intent},
		trace.Event{Kind: trace.Stop, Server: "web", Backend: "process", Cause: trace.Prompt, Detail: "unused: held for 30s"},
		trace.Event{Kind: trace.SessionOpen, Tenant: "ann"},
		trace.Event{Kind: trace.SessionClose, Tenant: "ann"},
		trace.Event{Kind: trace.StepBegin, Tenant: "ann"},
		trace.Event{Kind: trace.Start, Server: "git", Cause: trace.Demand, Backend: "process", Provision: 250 * time.Millisecond},
		trace.Event{Kind: trace.Start, Server: "git", Cause: trace.Demand, Backend: "process", Err: "no such file"},
		trace.Event{Kind: trace.Start, Server: "git", Cause: trace.Catalog, Backend: "process", Provision: time.Second},
		call, warm, warm, lost,
		trace.Event{Kind: trace.Stop, Server: "git", Backend: "process", Detail: "idle"},
		trace.Event{Kind: trace.CatalogFill, Server: "git"},
		trace.Event{Kind: trace.CatalogFill, Server: "slow", Err: "timeout"},
		trace.Event{Kind: trace.Noise, Server: "git", Detail: "hello"},
	)
	for _, want := range []string{
		`specbox_sessions_opened_total{tenant="ann"} 1`,
		`specbox_steps_total{tenant="ann"} 1`,
		`specbox_sandbox_starts_total{backend="process",cause="demand",result="ok",server="git"} 1`,
		`specbox_sandbox_starts_total{backend="process",cause="demand",result="error",server="git"} 1`,
		`specbox_sandbox_starts_total{backend="process",cause="catalog",result="ok",server="git"} 1`,
		`specbox_sandbox_start_duration_seconds_count{cause="demand",server="git"} 1`,
		`specbox_sandbox_start_duration_seconds_sum{cause="demand",server="git"} 0.25`,
		`specbox_provisioning_duration_seconds_bucket{outcome="cold",server="git",le="0.25"} 0`,
		`specbox_provisioning_duration_seconds_bucket{outcome="cold",server="git",le="0.5"} 1`,
		`specbox_provisioning_duration_seconds_bucket{outcome="warm",server="git",le="0.001"} 2`,
		`specbox_provisioning_duration_seconds_bucket{outcome="warm",server="git",le="60"} 2`,
		`specbox_call_duration_seconds_sum{outcome="cold",server="git"} 0.02`,
		`specbox_calls_total{outcome="cold",result="ok",server="git"} 1`,
		`specbox_calls_total{outcome="warm",result="tool_error",server="git"} 2`,
		`specbox_calls_total{outcome="none",result="error",server="git"} 1`,
		`specbox_call_bytes_total{direction="in",server="git"} 30`,
		`specbox_call_bytes_total{direction="out",server="git"} 3000`,
		`specbox_sandbox_stops_total{backend="process",server="git"} 1`,
		`specbox_catalog_fills_total{result="ok",server="git"} 1`,
		`specbox_catalog_fills_total{result="error",server="slow"} 1`,
		`specbox_server_noise_lines_total{server="git"} 1`,
		`specbox_guesses_total{cause="intent",server="web"} 1`,
		`specbox_sandbox_wasted_total{cause="prompt",server="web"} 1`,
		`specbox_lead_duration_seconds_sum{cause="intent",server="web"} 0.6`,
		`specbox_saved_duration_seconds_sum{cause="intent",server="web"} 0.5`,
		`process_resident_memory_bytes `,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("missing: %s", want)
		}
	}
	if t.Failed() {
		for line := range strings.Lines(got) {
			if strings.HasPrefix(line, "specbox_") {
				t.Log(strings.TrimSpace(line))
			}
		}
	}
	for _, private := range []string{`duration_seconds_count{outcome="none"`, `"log"`, "no such file", "hello", "git exited", "timeout"} {
		if strings.Contains(got, private) {
			t.Errorf("%q is shown", private)
		}
	}
}

func TestMetricsShowTheSnapshotOfTheMoment(t *testing.T) {
	now := control.Gauges{
		Version:  "1.2.3",
		Sessions: map[string]int{"ann": 3},
		Sandboxes: []control.Live{
			{Server: "git", Tenant: "ann", State: "ready", Sandboxes: 2, Memory: 50 << 20},
			{Server: "git", Tenant: "ann", State: "starting", Sandboxes: 1},
		},
	}
	rec, h, err := control.NewMetrics(func() control.Gauges { return now })
	if err != nil || rec == nil {
		t.Fatal(err)
	}
	get := func() string {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		return w.Body.String()
	}
	first := get()
	for _, want := range []string{
		`specbox_sandboxes{server="git",state="ready",tenant="ann"} 2`,
		`specbox_sandboxes{server="git",state="starting",tenant="ann"} 1`,
		`specbox_sandbox_memory_bytes{server="git",state="ready",tenant="ann"} 5.24288e+07`,
		`specbox_sessions{tenant="ann"} 3`,
		`version="1.2.3"`,
	} {
		if !strings.Contains(first, want) {
			t.Errorf("missing: %s", want)
		}
	}
	now.Sandboxes = nil
	if second := get(); strings.Contains(second, "specbox_sandboxes{") {
		t.Error("sandboxes that are gone are still shown")
	}
}

func TestMetricsMayBeRecordedFromManyGoroutines(t *testing.T) {
	rec, h, err := control.NewMetrics(none)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for range 200 {
				rec.Record(trace.Event{Kind: trace.CallEnd, Server: fmt.Sprintf("s%d", g%2), Outcome: trace.Warm})
			}
		})
		wg.Go(func() { h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/metrics", nil)) })
	}
	wg.Wait()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if want := `specbox_calls_total{outcome="warm",result="ok",server="s0"} 800`; !strings.Contains(w.Body.String(), want) {
		t.Errorf("missing: %s", want)
	}
}

func TestHealthzSaysHowItIs(t *testing.T) {
	for _, c := range []struct {
		check  func(context.Context) error
		status int
		body   string
	}{
		{nil, 200, `{"status":"ok"}`},
		{func(context.Context) error { return nil }, 200, `{"status":"ok"}`},
		{func(context.Context) error { return errors.New("shutting down") }, 503, `{"error":"shutting down","status":"failing"}`},
	} {
		w := httptest.NewRecorder()
		control.Healthz(c.check).ServeHTTP(w, httptest.NewRequest("GET", "/healthz", nil))
		if w.Code != c.status || strings.TrimSpace(w.Body.String()) != c.body {
			t.Errorf("got %d %s, want %d %s", w.Code, w.Body, c.status, c.body)
		}
	}
}

func BenchmarkRecordCall(b *testing.B) {
	rec, _, err := control.NewMetrics(none)
	if err != nil {
		b.Fatal(err)
	}
	e := trace.Event{Kind: trace.CallEnd, Server: "git", Outcome: trace.Warm, Exec: time.Millisecond, BytesIn: 10, BytesOut: 10}
	b.ReportAllocs()
	for b.Loop() {
		rec.Record(e)
	}
}

// Counts stay right when servers come and go, and when many events come at once.
func TestMetricsOfManyServers(t *testing.T) {
	rec, h, err := control.NewMetrics(none)
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	for range 2 {
		work.Go(func() {
			for i := range 5000 {
				rec.Record(trace.Event{Kind: trace.CallEnd, Server: fmt.Sprint("s", i%900), Outcome: trace.Warm, BytesIn: 1})
				rec.Record(trace.Event{Kind: trace.Noise, Server: fmt.Sprint("s", i%900)})
			}
		})
	}
	work.Wait()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{
		`specbox_calls_total{outcome="warm",result="ok",server="s7"} 12`, `specbox_calls_total{outcome="warm",result="ok",server="s899"} 10`,
		`specbox_call_bytes_total{direction="in",server="s899"} 10`, `specbox_server_noise_lines_total{server="s7"} 12`,
	} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("missing: %s", want)
		}
	}
}
