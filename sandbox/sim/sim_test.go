package sim_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/sandbox/sandboxtest"
	"github.com/specbox/specbox/sandbox/sim"
	"github.com/specbox/specbox/wire"
)

func TestContract(t *testing.T) {
	b := &sim.Backend{Life: func(spec *sandbox.Spec, n int) sim.Life {
		manner := spec.Server
		l := sim.Life{Init: []byte(`{"protocolVersion":"` + sandboxtest.Version + `"}`), Create: 2 * time.Millisecond}
		switch manner {
		case sandboxtest.Missing:
			l.Err = errors.New("no such program")
		case sandboxtest.Stubborn:
			l.Close = 2 * spec.StopGrace
		case sandboxtest.Deaf:
			l.Deaf = true
		case sandboxtest.Crash:
			l.LastWords = sandboxtest.LastWords
		}
		l.Serve = func(_ context.Context, p *sim.Peer, m wire.Message) wire.Reply {
			if manner == sandboxtest.Chatty {
				p.Say(sandboxtest.Banner)
				p.Say(sandboxtest.Banner)
			}
			if manner == sandboxtest.Crash && m.Method == "crash" {
				p.Die("exit status 3")
			}
			answers := sandboxtest.Answer(m.Raw)
			if len(answers) == 2 {
				n, _ := wire.Parse(answers[0])
				p.Notify(n.Method, n.Params)
			}
			last, _ := wire.Parse(answers[len(answers)-1])
			return wire.Reply{Result: last.Result, Error: last.Error}
		}
		return l
	}}
	sandboxtest.TestBackend(t, sandboxtest.Suite{
		Backend: b,
		Spec:    func(manner string) *sandbox.Spec { return &sandbox.Spec{Server: manner} },
		Left: func() []string {
			if c := b.Count(); c.Live != 0 {
				return append(b.Live(), "and what is being created")
			}
			return nil
		},
	})
}

// A life passes in virtual time, exactly.
func TestTimeIsVirtual(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stderr strings.Builder
		b := &sim.Backend{Life: func(_ *sandbox.Spec, n int) sim.Life {
			return sim.Life{
				Create: time.Minute, Handshake: time.Hour, Dies: 3 * time.Hour, LastWords: "farewell", Close: time.Second,
				Memory: func(age time.Duration, calls int) int64 { return int64(age/time.Hour)*100 + int64(calls) },
			}
		}}
		begun := time.Now()
		inst, err := b.Create(t.Context(), "a", &sandbox.Spec{Server: "s"}, &stderr)
		if err != nil || time.Since(begun) != time.Minute {
			t.Fatalf("Create: %v after %v, want 1m", err, time.Since(begun))
		}
		c := wire.NewConn(inst.Transport())
		if _, err := c.Call(t.Context(), "initialize", []byte(`{"protocolVersion":"2025-06-18"}`)); err != nil || time.Since(begun) != time.Hour+time.Minute {
			t.Fatalf("initialize: %v after %v, want 1h1m", err, time.Since(begun))
		}
		r, err := c.Call(t.Context(), "tools/call", []byte(`{"name":"sleep","arguments":{"ms":3600000}}`))
		if err != nil || string(r.Result) != `{"content":[{"type":"text","text":"slept"}]}` {
			t.Errorf("sleep: %s, %v", r.Result, err)
		}
		if got := inst.Usage().Memory; got != 202 {
			t.Errorf("memory after 2 h and 2 calls: %d, want 202", got)
		}
		<-c.Done()
		if since := time.Since(begun); since != 3*time.Hour+time.Minute || stderr.String() != "farewell\n" {
			t.Errorf("it died after %v saying %q, want 3h1m and farewell", since, stderr.String())
		}
		if err := inst.Close(); err != nil || time.Since(begun) != 3*time.Hour+time.Minute {
			t.Errorf("Close of a dead instance: %v, at %v", err, time.Since(begun))
		}
		if exit := inst.Usage().Exit; exit != "exit status 1" {
			t.Errorf("exit %q", exit)
		}
	})
}

// A request to the client, a cancelled call, and a kill from outside work as
// with a real server.
func TestServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &sim.Backend{}
		inst, err := b.Create(t.Context(), "a", &sandbox.Spec{Server: "s"}, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		defer inst.Close()
		c := wire.NewConn(inst.Transport())
		c.Handle(answerer{})
		r, err := c.Call(t.Context(), "tools/call", []byte(`{"name":"ask","arguments":{"method":"roots/list","params":{}}}`))
		if want := `{"content":[{"type":"text","text":"{\"asked\":\"roots/list\"}"}]}`; err != nil || string(r.Result) != want {
			t.Errorf("ask: %s, %v, want %s", r.Result, err, want)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.Call(ctx, "tools/call", []byte(`{"name":"sleep","arguments":{"ms":60000}}`)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("cancelled call: %v", err)
		}
		synctest.Wait()
		if !b.Kill("a") || b.Kill("b") {
			t.Error("Kill(a), Kill(b) want true, false")
		}
		<-c.Done()
		if exit := inst.Usage().Exit; exit != "killed by signal 9" {
			t.Errorf("exit %q", exit)
		}
	})
}

type answerer struct{}

func (answerer) Notified(*wire.Conn, wire.Message) {}
func (answerer) Requested(c *wire.Conn, m wire.Message) {
	_ = c.Respond(m.ID, wire.Reply{Result: []byte(`{"asked":"` + m.Method + `"}`)})
}
