package control

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/attribute"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdk "go.opentelemetry.io/otel/sdk/metric"

	"github.com/specbox/specbox/trace"
)

// Gauges is a snapshot of figures that are states, not events.
type Gauges struct {
	Version   string
	Sessions  map[string]int // tenant -> open sessions
	Sandboxes []Live         // those that are alive, at most one entry a key
}

// Live sums up the live sandboxes of one server, tenant and state.
type Live struct {
	Server, Tenant, State string // the key
	Sandboxes             int
	Memory                int64 // bytes in use
}

// seconds are the upper bounds of the histograms of time: from a warm call to
// the longest start that is waited for.
var seconds = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}

// A meter turns events into metrics. Names of servers and tenants are labels:
// they are those of the configuration, so they are few. Names of tools, ids
// and texts of errors are not.
type meter struct {
	starts, stops, calls, bytes, fills, noise, sessions, steps, guesses, wasted metric.Int64Counter
	startTime, provision, execution, lead, saved                                metric.Float64Histogram

	mu   sync.RWMutex
	sets map[labelling]*set
}

// A labelling is the names and values of labels, by turns.
type labelling [8]string

// A set is a set of labels as the instruments want it. To make one takes longer
// than to count, so that those in use are kept.
type set struct {
	add    []metric.AddOption
	record []metric.RecordOption
}

// maxSets bounds the sets that are kept: servers may come and go.
const maxSets = 4096

// labels returns the set of labels of name, value, name, value and so on.
func (m *meter) labels(kv ...string) *set {
	var key labelling
	copy(key[:], kv)
	m.mu.RLock()
	s := m.sets[key]
	m.mu.RUnlock()
	if s != nil {
		return s
	}
	of := labels(key[:len(kv)]...)
	s = &set{[]metric.AddOption{of}, []metric.RecordOption{of}}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.sets) >= maxSets {
		clear(m.sets)
	}
	m.sets[key] = s
	return s
}

// NewMetrics returns a recorder that counts events, and a handler that shows
// the counts and the snapshot of stats in the formats of Prometheus. stats is
// called once a scrape; it must be safe for concurrent use and not block.
func NewMetrics(stats func() Gauges) (trace.Recorder, http.Handler, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	exp, err := exporter.New(
		exporter.WithRegisterer(registry),
		exporter.WithoutScopeInfo(),
		exporter.WithoutTargetInfo(),
	)
	if err != nil {
		return nil, nil, fmt.Errorf("make the exporter of metrics: %w", err)
	}
	m := sdk.NewMeterProvider(sdk.WithReader(exp)).Meter("specbox")
	b := &builder{m: m}
	rec := &meter{
		sets:      map[labelling]*set{},
		starts:    b.counter("specbox.sandbox.starts", "Starts of sandboxes, by what caused them."),
		stops:     b.counter("specbox.sandbox.stops", "Sandboxes that are gone, for whatever reason."),
		calls:     b.counter("specbox.calls", "Calls that returned, by what they found: a sandbox that was ready (warm), being started (late), or absent (cold)."),
		bytes:     b.counter("specbox.call.bytes", "Bytes of arguments (in) and results (out) of calls.", metric.WithUnit("By")),
		fills:     b.counter("specbox.catalog.fills", "Readings of the lists of a server."),
		noise:     b.counter("specbox.server.noise.lines", "Lines on a server's standard output that are no MCP message."),
		sessions:  b.counter("specbox.sessions.opened", "Sessions opened by clients."),
		steps:     b.counter("specbox.steps", "Steps of sessions: turns that committed at least one call."),
		startTime: b.histogram("specbox.sandbox.start.duration", "From the begin of a start to the answered handshake."),
		provision: b.histogram("specbox.provisioning.duration", "From the commit of a call to its sandbox being ready for it."),
		guesses:   b.counter("specbox.guesses", "Servers that became likely to be called, by what made them so."),
		wasted:    b.counter("specbox.sandbox.wasted", "Sandboxes that were started ahead and stopped without a call, by what caused their start."),
		lead:      b.histogram("specbox.lead.duration", "How long before the first call of a sandbox its start ahead was asked for."),
		saved:     b.histogram("specbox.saved.duration", "How much longer the first call of a sandbox would have waited without its start ahead, by what starts of its server take."),
		execution: b.histogram("specbox.call.duration", "From the sandbox being ready to the reply."),
	}
	b.gauges(stats)
	if b.err != nil {
		return nil, nil, fmt.Errorf("make the metrics: %w", b.err)
	}
	return rec, promhttp.HandlerFor(registry, promhttp.HandlerOpts{Registry: registry}), nil
}

// A builder makes instruments and keeps the first error.
type builder struct {
	m   metric.Meter
	err error
}

func (b *builder) keep(err error) {
	if b.err == nil {
		b.err = err
	}
}

func (b *builder) counter(name, help string, opts ...metric.Int64CounterOption) metric.Int64Counter {
	c, err := b.m.Int64Counter(name, append(opts, metric.WithDescription(help))...)
	b.keep(err)
	return c
}

func (b *builder) histogram(name, help string) metric.Float64Histogram {
	h, err := b.m.Float64Histogram(name, metric.WithDescription(help), metric.WithUnit("s"), metric.WithExplicitBucketBoundaries(seconds...))
	b.keep(err)
	return h
}

func (b *builder) gauge(name, help, unit string) metric.Int64ObservableGauge {
	g, err := b.m.Int64ObservableGauge(name, metric.WithDescription(help), metric.WithUnit(unit))
	b.keep(err)
	return g
}

// gauges shows what stats returns.
func (b *builder) gauges(stats func() Gauges) {
	live := b.gauge("specbox.sandboxes", "Sandboxes that are alive.", "")
	memory := b.gauge("specbox.sandbox.memory", "Memory in use by sandboxes that are alive.", "By")
	open := b.gauge("specbox.sessions", "Sessions that are open.", "")
	info := b.gauge("specbox.build.info", "Version of what runs; the value is always 1.", "")
	_, err := b.m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		now := stats()
		for _, l := range now.Sandboxes {
			of := labels("server", l.Server, "tenant", l.Tenant, "state", l.State)
			o.ObserveInt64(live, int64(l.Sandboxes), of)
			o.ObserveInt64(memory, l.Memory, of)
		}
		for tenant, n := range now.Sessions {
			o.ObserveInt64(open, int64(n), labels("tenant", tenant))
		}
		o.ObserveInt64(info, 1, labels("version", now.Version, "go", runtime.Version()))
		return nil
	}, live, memory, open, info)
	b.keep(err)
}

// labels makes a set of labels of name, value, name, value and so on.
func labels(kv ...string) metric.MeasurementOption {
	set := make([]attribute.KeyValue, 0, len(kv)/2)
	for i := 0; i < len(kv); i += 2 {
		set = append(set, attribute.String(kv[i], kv[i+1]))
	}
	return metric.WithAttributeSet(attribute.NewSet(set...))
}

// result tells how e ended: "ok", "tool_error" (the server answered with an
// error) or "error" (there is no answer).
func result(e trace.Event) string {
	switch {
	case e.Err != "":
		return "error"
	case e.IsError:
		return "tool_error"
	default:
		return "ok"
	}
}

// Record counts e.
func (m *meter) Record(e trace.Event) {
	ctx := context.Background()
	switch e.Kind {
	case trace.SessionOpen:
		m.sessions.Add(ctx, 1, m.labels("tenant", e.Tenant).add...)
	case trace.StepBegin:
		m.steps.Add(ctx, 1, m.labels("tenant", e.Tenant).add...)
	case trace.Start:
		m.starts.Add(ctx, 1, m.labels("server", e.Server, "cause", string(e.Cause), "backend", e.Backend, "result", result(e)).add...)
		if e.Err == "" {
			m.startTime.Record(ctx, e.Provision.Seconds(), m.labels("server", e.Server, "cause", string(e.Cause)).record...)
		}
	case trace.Stop:
		m.stops.Add(ctx, 1, m.labels("server", e.Server, "backend", e.Backend).add...)
		if strings.HasPrefix(e.Detail, trace.Unused) {
			m.wasted.Add(ctx, 1, m.labels("server", e.Server, "cause", string(e.Cause)).add...)
		}
	case trace.Guess:
		m.guesses.Add(ctx, 1, m.labels("server", e.Server, "cause", string(e.Cause)).add...)
	case trace.CallEnd:
		m.call(ctx, e)
	case trace.CatalogFill:
		m.fills.Add(ctx, 1, m.labels("server", e.Server, "result", result(e)).add...)
	case trace.Noise:
		m.noise.Add(ctx, 1, m.labels("server", e.Server).add...)
	}
}

func (m *meter) call(ctx context.Context, e trace.Event) {
	outcome := string(e.Outcome)
	if outcome == "" {
		outcome = "none" // it never had a sandbox
	}
	m.calls.Add(ctx, 1, m.labels("server", e.Server, "outcome", outcome, "result", result(e)).add...)
	m.bytes.Add(ctx, e.BytesIn, m.labels("server", e.Server, "direction", "in").add...)
	m.bytes.Add(ctx, e.BytesOut, m.labels("server", e.Server, "direction", "out").add...)
	if e.Outcome == "" {
		return
	}
	by := m.labels("server", e.Server, "outcome", outcome)
	m.provision.Record(ctx, e.Provision.Seconds(), by.record...)
	m.execution.Record(ctx, e.Exec.Seconds(), by.record...)
	if e.Lead > 0 {
		by := m.labels("server", e.Server, "cause", string(e.Cause))
		m.lead.Record(ctx, e.Lead.Seconds(), by.record...)
		m.saved.Record(ctx, e.Saved.Seconds(), by.record...)
	}
}

// Healthz returns the handler of /healthz: 200 and {"status":"ok"} while check
// returns nil, otherwise 503 and its error. It is open to everybody, so the
// error must tell nothing of tenants. A nil check is always well.
func Healthz(check func(context.Context) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, body := http.StatusOK, map[string]string{"status": "ok"}
		if check != nil {
			if err := check(r.Context()); err != nil {
				status, body = http.StatusServiceUnavailable, map[string]string{"status": "failing", "error": err.Error()}
			}
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(status)
		json.NewEncoder(w).Encode(body)
	})
}
