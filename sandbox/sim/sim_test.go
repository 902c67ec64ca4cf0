package sim_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
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
		Speculates: true, Freezes: true,
	})
}

// In the idle class a start has what the others leave of the processor, until
// it is promoted.
func TestIdleClassGetsWhatIsLeft(t *testing.T) {
	type start struct {
		at      time.Duration
		idle    bool
		promote time.Duration // after at; 0 means never
		want    time.Duration // of the start and its handshake, 3 s alone
	}
	for name, tt := range map[string]struct {
		cores  int
		starts []start
	}{
		"alone": {0, []start{{idle: true, want: 3 * time.Second}}},
		"stands still beside an ordinary one": {0, []start{
			{idle: true, want: 6 * time.Second},
			{at: time.Second, want: 3 * time.Second},
		}},
		"promoted beside an ordinary one": {0, []start{
			{idle: true, promote: 2500 * time.Millisecond, want: 3500 * time.Millisecond}, // it stood still for half a second
			{at: 2 * time.Second, want: 3 * time.Second},
		}},
		"promoted in its handshake": {0, []start{
			{idle: true, promote: 2500 * time.Millisecond, want: 3 * time.Second},
		}},
		"on two cores": {2, []start{
			{idle: true, want: 3 * time.Second},
			{want: 3 * time.Second},
		}},
		"three on two cores": {2, []start{
			{want: 4500 * time.Millisecond}, {want: 4500 * time.Millisecond}, {want: 4500 * time.Millisecond},
			{idle: true, want: 7500 * time.Millisecond},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &sim.Backend{Cores: tt.cores, Life: func(*sandbox.Spec, int) sim.Life {
					return sim.Life{Create: 2 * time.Second, Handshake: time.Second}
				}}
				var starting sync.WaitGroup
				for n, s := range tt.starts {
					starting.Go(func() {
						time.Sleep(s.at)
						begun, create := time.Now(), b.Create
						if s.idle {
							create = b.Speculate
						}
						inst, err := create(t.Context(), fmt.Sprint(n), &sandbox.Spec{Server: "s"}, io.Discard)
						if err != nil {
							t.Error(err)
							return
						}
						defer inst.Close()
						if left := s.promote - time.Since(begun); s.promote > 0 {
							time.AfterFunc(left, func() { _ = inst.(sandbox.Promoter).Promote() })
						}
						if _, err := wire.NewConn(inst.Transport()).Call(t.Context(), "initialize", []byte("{}")); err != nil {
							t.Error(err)
						}
						if took := time.Since(begun); took != s.want {
							t.Errorf("start %d took %v, want %v", n, took, s.want)
						}
					})
				}
				starting.Wait()
			})
		})
	}
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
