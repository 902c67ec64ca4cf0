package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/specbox/specbox/tap"
)

// TapOptions say how to measure the model's door.
type TapOptions struct {
	// Program is a specbox, which is also the LLM and the proxy that is measured.
	Program string
	// Model and Proxy are the arguments with which Program is one or the other;
	// those of Proxy are followed by the address of the LLM.
	Model, Proxy []string
	Streams      int           // at once; 0 means 200
	Rate         int           // tokens a second of each; 0 means 200
	For          time.Duration // that each way is measured in a round; 0 means 5 s
	Rounds       int           // 0 means 3
	Progress     func(string)  // is told what is measured; may be nil
}

// The ways that a token can take, besides [Direct].
const (
	Plain  = "hop"    // through the proxy, which does not look at it
	Tapped = "tapped" // through the proxy, and told to an observer
)

// A TapReport is what a run of [Tap] found. Its fields are those that scripts
// rely on.
type TapReport struct {
	CPUusPerToken float64  `json:"cpu_us_per_token"` // of the proxy alone: hop and tap
	HopUsPerToken float64  `json:"hop_us_per_token"` // of it without the tap
	TapUsPerToken float64  `json:"tap_us_per_token"` // the difference
	GapP50Ratio   float64  `json:"gap_p50_ratio"`    // of the time between two tokens: tapped to direct
	GapP99Ratio   float64  `json:"gap_p99_ratio"`
	Seen          float64  `json:"seen"` // share of the tokens that the observer was told
	Streams       int      `json:"streams"`
	Rate          int      `json:"rate"`
	CPUs          int      `json:"cpus"`
	Rounds        int      `json:"rounds"`
	Seconds       float64  `json:"seconds"`
	Ways          []TapWay `json:"ways"`
}

// A TapWay is what was measured of one way: medians of the rounds.
type TapWay struct {
	Way       string  `json:"way"`
	PerSec    float64 `json:"tokens_per_s"`
	GapP50us  float64 `json:"gap_p50_us"`
	GapP99us  float64 `json:"gap_p99_us"`
	CPUus     float64 `json:"cpu_us_per_token,omitempty"`
	CPULow    float64 `json:"cpu_us_low,omitempty"`  // of the rounds
	CPUHigh   float64 `json:"cpu_us_high,omitempty"` // of the rounds
	CoresUsed float64 `json:"cores,omitempty"`
}

// A tapRound is what one round found of one way.
type tapRound struct {
	tokens int
	took   time.Duration
	cpu    time.Duration
	gaps   []time.Duration
}

const (
	tappedPath = "/v1/chat/completions"
	hopPath    = "/v1/untapped" // of the API, but nothing that is looked at
)

// Tap measures what the model's door costs a token: the same streams, directly
// and through a proxy that runs in a process of its own, interleaved. All that it
// started has ended when it returns.
func Tap(ctx context.Context, o TapOptions) (*TapReport, error) {
	o.Streams, o.Rate, o.Rounds = orElse(o.Streams, 200), orElse(o.Rate, 200), orElse(o.Rounds, 3)
	if o.For <= 0 {
		o.For = 5 * time.Second
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	began := time.Now()
	model, err := startPart(ctx, o.Program, o.Model)
	if err != nil {
		return nil, fmt.Errorf("start the LLM: %w", err)
	}
	defer model.stop()
	proxy, err := startPart(ctx, o.Program, append(slices.Clone(o.Proxy), "http://"+model.addr))
	if err != nil {
		return nil, fmt.Errorf("start the proxy: %w", err)
	}
	defer proxy.stop()
	rounds := map[string][]tapRound{}
	for i := range o.Rounds {
		for _, way := range []string{Direct, Plain, Tapped} {
			o.Progress(fmt.Sprintf("round %d of %d: %d streams, %s", i+1, o.Rounds, o.Streams, way))
			addr, path := proxy.addr, tappedPath
			if way == Direct {
				addr = model.addr
			} else if way == Plain {
				path = hopPath
			}
			r, err := streamAll(ctx, addr, path, proxy.pid(), o)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", way, err)
			}
			rounds[way] = append(rounds[way], r)
		}
	}
	report := sumTap(rounds)
	report.Streams, report.Rate, report.Rounds, report.CPUs = o.Streams, o.Rate, o.Rounds, runtime.NumCPU()
	if report.Seen, err = proxy.seen(); err != nil {
		return nil, err
	}
	report.Seconds = time.Since(began).Seconds()
	return report, nil
}

func orElse(n, other int) int {
	if n <= 0 {
		return other
	}
	return n
}

func sumTap(rounds map[string][]tapRound) *TapReport {
	r := &TapReport{}
	ways := map[string]TapWay{}
	for _, way := range []string{Direct, Plain, Tapped} {
		w := TapWay{Way: way}
		var rates, cpus, cores []float64
		var gaps []time.Duration
		for _, round := range rounds[way] {
			gaps = append(gaps, round.gaps...)
			rates = append(rates, float64(round.tokens)/round.took.Seconds())
			cpus = append(cpus, float64(round.cpu.Microseconds())/float64(max(1, round.tokens)))
			cores = append(cores, round.cpu.Seconds()/round.took.Seconds())
		}
		slices.Sort(gaps)
		w.PerSec = middle(rates)
		w.GapP50us, w.GapP99us = us(quantile(gaps, 0.5)), us(quantile(gaps, 0.99))
		if way != Direct {
			w.CPUus, w.CPULow, w.CPUHigh, w.CoresUsed = middle(cpus), slices.Min(cpus), slices.Max(cpus), middle(cores)
		}
		ways[way] = w
		r.Ways = append(r.Ways, w)
	}
	r.CPUusPerToken, r.HopUsPerToken = ways[Tapped].CPUus, ways[Plain].CPUus
	r.TapUsPerToken = r.CPUusPerToken - r.HopUsPerToken
	if d := ways[Direct]; d.GapP50us > 0 && d.GapP99us > 0 {
		r.GapP50Ratio, r.GapP99Ratio = ways[Tapped].GapP50us/d.GapP50us, ways[Tapped].GapP99us/d.GapP99us
	}
	return r
}

func middle(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	if len(v) == 0 {
		return 0
	}
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[int(q*float64(len(sorted)-1))]
}

func us(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// streamAll reads many streams at once. It counts from when all of them have
// begun.
func streamAll(ctx context.Context, addr, path string, pid int, o TapOptions) (tapRound, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		work  sync.WaitGroup
		begun sync.WaitGroup
		open  atomic.Bool // tokens count
		mu    sync.Mutex  // guards what follows
		out   tapRound
		errs  []error
	)
	begun.Add(o.Streams)
	for range o.Streams {
		work.Go(func() {
			gaps, err := streamOne(ctx, addr, path, o.Rate, &open, begun.Done)
			mu.Lock()
			defer mu.Unlock()
			out.gaps = append(out.gaps, gaps...)
			if err != nil {
				errs = append(errs, err)
			}
		})
	}
	begun.Wait()
	cpu, start := cpuTime(pid), time.Now()
	open.Store(true)
	select {
	case <-time.After(o.For):
	case <-ctx.Done():
	}
	open.Store(false)
	out.took, out.cpu = time.Since(start), cpuTime(pid)-cpu
	cancel()
	work.Wait()
	if out.tokens = len(out.gaps); out.tokens == 0 && len(errs) == 0 {
		errs = append(errs, errors.New("no token came"))
	}
	return out, errors.Join(errs...)
}

const tapRequest = `{"model":"bench","stream":true,"messages":[{"role":"user","content":"What is the weather like?"}]}`

// streamOne reads one stream until ctx ends, and returns the time between the
// tokens that counted. It calls begun once.
func streamOne(ctx context.Context, addr, path string, rate int, open *atomic.Bool, begun func()) (gaps []time.Duration, err error) {
	begun = sync.OnceFunc(begun)
	defer begun()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nX-Rate: %d\r\nContent-Length: %d\r\n\r\n%s", path, addr, rate, len(tapRequest), tapRequest); err != nil {
		return nil, err
	}
	lines := bufio.NewReaderSize(conn, 8<<10)
	gaps = make([]time.Duration, 0, 4<<10)
	var last time.Time
	for {
		line, err := lines.ReadSlice('\n')
		if ctx.Err() != nil {
			return gaps, nil
		}
		if err != nil {
			return gaps, fmt.Errorf("a stream ended: %w", err)
		}
		if last.IsZero() && bytes.HasPrefix(line, []byte("HTTP/1.1 ")) && !bytes.Contains(line, []byte(" 200 ")) {
			return nil, fmt.Errorf("the answer is %s", bytes.TrimSpace(line))
		}
		if !bytes.HasPrefix(line, []byte("data: ")) {
			continue
		}
		now := time.Now()
		if last.IsZero() {
			begun()
		} else if open.Load() {
			gaps = append(gaps, now.Sub(last))
		}
		last = now
	}
}

// A partner is a process that takes part in a measurement.
type partner struct {
	cmd   *exec.Cmd
	stdin io.Closer // it ends with this
	addr  string
}

func (p *partner) pid() int { return p.cmd.Process.Pid }

// startPart starts a process that says its address on its first line.
func startPart(ctx context.Context, program string, args []string) (*partner, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	var said bytes.Buffer
	cmd.Stderr = &said
	cmd.WaitDelay = stopTimeout
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &partner{cmd: cmd, stdin: in}
	line, err := bufio.NewReader(out).ReadString('\n')
	if p.addr = strings.TrimSpace(line); err != nil {
		p.stop()
		return nil, fmt.Errorf("%s ended: %s", strings.Join(args, " "), said.String())
	}
	return p, nil
}

func (p *partner) stop() {
	_ = p.stdin.Close()
	kill := time.AfterFunc(stopTimeout, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	_ = p.cmd.Wait() // it ends by itself or by that
}

// A tapCount is what a proxy counted of the tokens that it told.
type tapCount struct {
	Told, Passed int64
}

// seen asks a proxy for the share of tokens that it told.
func (p *partner) seen() (float64, error) {
	resp, err := http.Get("http://" + p.addr + "/count")
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	var c tapCount
	if err := json.NewDecoder(resp.Body).Decode(&c); err != nil {
		return 0, err
	}
	return float64(c.Told) / float64(max(1, c.Passed)), nil
}

// TapModel is the LLM that [Tap] measures with. It says its address on out, and
// streams to whoever asks until in ends.
func TapModel(in io.Reader, out io.Writer) error {
	return serveUntil(in, out, http.HandlerFunc(babble))
}

// babble streams tokens at the rate that the header X-Rate names, until the
// client leaves. It writes to the connection by itself, for it shares the
// machine with what is measured.
func babble(w http.ResponseWriter, r *http.Request) {
	rate, err := strconv.Atoi(r.Header.Get("X-Rate"))
	if err != nil || rate <= 0 {
		http.Error(w, "X-Rate must be a number of tokens a second", http.StatusBadRequest)
		return
	}
	_, _ = io.Copy(io.Discard, r.Body)
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"); err != nil {
		return
	}
	const event = `data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1741570283,"model":"bench","system_fingerprint":"fp_44709d6fcb","choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}` + "\n\n"
	piece := fmt.Appendf(nil, "%x\r\n%s\r\n", len(event), event)
	period := time.Second / time.Duration(rate)
	time.Sleep(time.Duration(time.Now().UnixNano()) % period) // so that not all speak at once
	tick := time.NewTicker(period)
	defer tick.Stop()
	for range tick.C {
		if _, err := conn.Write(piece); err != nil {
			return
		}
	}
}

// TapProxy is the proxy that [Tap] measures, in front of the LLM at target. It
// says its address on out, and serves until in ends.
func TapProxy(ctx context.Context, in io.Reader, out io.Writer, target string) error {
	var c counter
	p, err := tap.New(tap.Config{
		Upstreams: []tap.Upstream{{Name: "bench", API: tap.OpenAI, URL: target}},
		Observer:  &c,
	})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/v1/", p)
	mux.HandleFunc("/count", func(w http.ResponseWriter, _ *http.Request) {
		told, dropped := c.text.Load(), p.Stats().Dropped
		const bytesOfToken = 230
		_ = json.NewEncoder(w).Encode(tapCount{Told: told, Passed: told + dropped/bytesOfToken})
	})
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); _ = p.Run(ctx) }()
	err = serveUntil(in, out, mux)
	cancel()
	<-done
	return err
}

// A counter is an observer that counts.
type counter struct{ text atomic.Int64 }

func (c *counter) Observe(*tap.Request) tap.Watcher { return c }

func (c *counter) Delta(d tap.Delta) {
	if d.Kind == tap.Text {
		c.text.Add(1)
	}
}

func (c *counter) End() {}

// serveUntil serves on loopback until in ends.
func serveUntil(in io.Reader, out io.Writer, h http.Handler) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: stopTimeout}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }() // ends with the server
	if _, err := fmt.Fprintln(out, l.Addr()); err != nil {
		return errors.Join(err, srv.Close())
	}
	_, _ = io.Copy(io.Discard, in)
	err = srv.Close()
	<-done
	return err
}
