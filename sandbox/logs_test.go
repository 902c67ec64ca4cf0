package sandbox_test

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/sandbox/sim"
	"github.com/specbox/specbox/trace"
	"github.com/specbox/specbox/wire"
)

// A recorder shows what is written to the instances of a backend.
type recorder struct {
	sandbox.Backend
	wrote func(server string, raw []byte)
}

func (r recorder) Create(ctx context.Context, id string, spec *sandbox.Spec, stderr io.Writer) (sandbox.Instance, error) {
	inst, err := r.Backend.Create(ctx, id, spec, stderr)
	if err != nil {
		return nil, err
	}
	return recorded{inst, func(raw []byte) { r.wrote(spec.Server, raw) }}, nil
}

type recorded struct {
	sandbox.Instance
	wrote func(raw []byte)
}

func (r recorded) Transport() wire.Transport {
	return recordedTransport{r.Instance.Transport(), r.wrote}
}

type recordedTransport struct {
	wire.Transport
	wrote func(raw []byte)
}

func (r recordedTransport) Write(parts ...[]byte) error {
	r.wrote(slices.Concat(parts...))
	return r.Transport.Write(parts...)
}

// speaker is a server that prints the given pieces when it is called.
func speaker(pieces ...string) *sim.Backend {
	return &sim.Backend{Life: func(*sandbox.Spec, int) sim.Life {
		return sim.Life{Serve: func(_ context.Context, p *sim.Peer, _ wire.Message) wire.Reply {
			for _, s := range pieces {
				_, _ = io.WriteString(p.Stderr(), s)
			}
			return wire.Reply{Result: []byte("{}")}
		}}
	}}
}

func TestStderrIsKeptInLinesWithoutSecrets(t *testing.T) {
	b := speaker("one\ntw", "o\r\n\n", "token is hunter22 and Bearer", " abc-123-xyz\n", strings.Repeat("x", 9000)+"\n", "stdout: Listening on 8080\n", "\xff\n", "not ended")
	bubble(t, b, sandbox.Config{}, func(t *testing.T, h *house) {
		d := demand("t", "s", "a")
		d.Spec.Env = map[string]string{"API_TOKEN": "hunter22", "HOME": "/root/one"}
		d.Spec.Headers = map[string]string{"Authorization": "Bearer abc-123-xyz"}
		l := h.acquire(d)
		if _, err := l.Conn().Call(t.Context(), "tools/call", []byte("{}")); err != nil {
			t.Fatal(err)
		}
		l.Discard("done")
		synctest.Wait()
		var got []string
		for _, line := range h.Logs("t", "a") {
			got = append(got, line.Text[:min(60, len(line.Text))])
		}
		want := []string{"one", "two", "token is *** and ***", strings.Repeat("x", 60), "stdout: Listening on 8080", "\uFFFD", "not ended"}
		if !slices.Equal(got, want) {
			t.Errorf("Logs:\n%q, want\n%q", got, want)
		}
		h.want("noise", h.events(trace.Noise), []string{"a Listening on 8080"})
	})
}

func TestLogsAreBounded(t *testing.T) {
	var lines []string
	for i := range 2500 {
		lines = append(lines, fmt.Sprintf("stdout: line %d\n", i))
	}
	bubble(t, speaker(lines...), sandbox.Config{}, func(t *testing.T, h *house) {
		l := h.acquire(demand("t", "s", "a"))
		_, _ = l.Conn().Call(t.Context(), "tools/call", []byte("{}"))
		logs := h.Logs("t", "a")
		h.want("lines", len(logs), 1000)
		h.want("first", logs[0].Text, "stdout: line 1500")
		h.want("last", logs[999].Text, "stdout: line 2499")
		h.want("events of noise", len(h.events(trace.Noise)), 10)
		l.Release()
	})
}
