package replay_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/specbox/specbox/replay"
	"github.com/specbox/specbox/replay/model"
)

const ms = time.Millisecond

// Ten tokens a second, the first after a second, a start of two seconds. Turn 0
// is 4 tokens of text, 2 of name, 3 of arguments: the name is complete at 1.5 s,
// the call is committed at 1.8 s.
func TestWaitsOfOneTurn(t *testing.T) {
	pace := replay.Pace{Rate: 10, First: time.Second, Cold: 2 * time.Second}
	named := pace
	named.ToolName = true
	turn := func(fired ...replay.Firing) []replay.Turn {
		return []replay.Turn{{Chars: 16, Calls: []replay.TurnCall{{Server: "a", Name: 7, Arguments: 9}}, Fired: fired}}
	}
	use := func(outcome string, wait, lead time.Duration) []replay.Use {
		return []replay.Use{{Server: "a", Outcome: outcome, Wait: wait, Lead: lead}}
	}
	slow := replay.Turn{Chars: 4000, Calls: []replay.TurnCall{{Server: "a", Name: 4, Arguments: 4}}, Fired: []replay.Firing{{Server: "a", At: 4}}}
	held := pace
	held.Hold = 10 * time.Second
	for name, c := range map[string]struct {
		turns []replay.Turn
		pace  replay.Pace
		want  replay.Waits
	}{
		"on demand":         {turn(), pace, replay.Waits{Uses: use("cold", 2000*ms, 0), Sum: 2000 * ms, Starts: 1, Length: 3800 * ms}},
		"the name":          {turn(), named, replay.Waits{Uses: use("late", 1700*ms, 300*ms), Sum: 1700 * ms, Starts: 1, Length: 3800*ms - 300*ms}},
		"the request":       {turn(replay.Firing{Server: "a"}), pace, replay.Waits{Uses: use("late", 200*ms, 1800*ms), Sum: 200 * ms, Starts: 1, Length: 2000 * ms}},
		"the first token":   {turn(replay.Firing{Server: "a", At: 1}), pace, replay.Waits{Uses: use("late", 1200*ms, 800*ms), Sum: 1200 * ms, Starts: 1, Length: 3000 * ms}},
		"the eighth letter": {turn(replay.Firing{Server: "a", At: 8}), pace, replay.Waits{Uses: use("late", 1300*ms, 700*ms), Sum: 1300 * ms, Starts: 1, Length: 3100 * ms}},
		"a wrong guess":     {turn(replay.Firing{Server: "b"}), pace, replay.Waits{Uses: use("cold", 2000*ms, 0), Sum: 2000 * ms, Starts: 2, Wasted: 1, Length: 3800 * ms}},
		"plenty of time":    {[]replay.Turn{slow}, pace, replay.Waits{Uses: use("warm", 0, 100100*ms), Starts: 1, Length: 101100 * ms}},
		"too much time":     {[]replay.Turn{slow}, held, replay.Waits{Uses: use("cold", 2000*ms, 0), Sum: 2000 * ms, Starts: 2, Wasted: 1, Length: 103100 * ms}},
		"nothing said":      {[]replay.Turn{{}}, pace, replay.Waits{Length: time.Second}},
	} {
		if got := replay.Simulate(c.turns, c.pace); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}

func TestOnlyFirstUsesWait(t *testing.T) {
	call := replay.TurnCall{Server: "a", Name: 4, Arguments: 4}
	other := replay.TurnCall{Server: "b", Name: 4, Arguments: 4}
	got := replay.Simulate([]replay.Turn{
		{Calls: []replay.TurnCall{call, call, other}},
		{Calls: []replay.TurnCall{other}},
	}, replay.Pace{First: time.Second, Cold: 3 * time.Second, Exec: time.Second})
	want := replay.Waits{
		Uses:   []replay.Use{{Server: "a", Outcome: "cold", Wait: 3 * time.Second}, {Server: "b", Outcome: "cold", Wait: 3 * time.Second}},
		Sum:    6 * time.Second,
		Starts: 2,
		Length: 7 * time.Second, // a second, the starts together, the calls together; a second, a call
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	got.Add(got)
	if got.Sum != 12*time.Second || got.Starts != 4 || !reflect.DeepEqual(got.Outcomes(), map[string]int{"cold": 4}) {
		t.Errorf("twice: %+v", got)
	}
}

func TestTurnsCountCharacters(t *testing.T) {
	ts, err := replay.ReadFrom(strings.NewReader(strings.ReplaceAll(`{"id":"a","steps":[
		{"segments":[{"kind":"user","text":"x"},{"kind":"content","text":"nöön"},{"kind":"route_query","text":"qq"}],"calls":[{"server":"s","tool":"t","arguments":{"k": "ä"}},{"server":"u","tool":"t","unknown_server":true}]},
		{"segments":[{"kind":"content","text":"bye?"},{"kind":"user","text":"no"}],"calls":[{"server":"s","tool":"t"}]}]}`, "\n", "")), "f")
	if err != nil {
		t.Fatal(err)
	}
	want := []replay.Turn{
		{Chars: 7, Calls: []replay.TurnCall{{Server: "s", Name: 4, Arguments: 9}}},
		{Chars: 4},
		{Calls: []replay.TurnCall{{Server: "s", Name: 4, Arguments: 2}}},
	}
	if got := ts[0].Turns(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// What Simulate computes is what an agent waits for that talks to the replayed
// model, in virtual time.
func TestSimulationAgreesWithTheModel(t *testing.T) {
	ts, err := replay.Read("testdata/sessions.*.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	for _, pace := range []replay.Pace{
		{Rate: 50, First: 800 * ms, Cold: 1500 * ms},
		{Rate: 50, First: 800 * ms, Cold: 1500 * ms, ToolName: true, Exec: 100 * ms},
		{Rate: 10, First: 300 * ms, Cold: 4 * time.Second, ToolName: true},
	} {
		for i := range ts {
			turns := ts[i].Turns()
			for n := range turns { // decide for each server that is called, in the middle of the text
				for _, c := range turns[n].Calls {
					if c.Server != "notes" {
						turns[n].Fired = append(turns[n].Fired, replay.Firing{Server: c.Server, At: turns[n].Chars / 2})
					}
				}
			}
			want := replay.Simulate(turns, pace)
			var got replay.Waits
			synctest.Test(t, func(t *testing.T) { got = play(t, turns, pace) })
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s at %+v: the model gives\n%+v, the simulation\n%+v", ts[i].ID, pace, got, want)
			}
		}
	}
}

// play is an agent, with sandboxes that are timers.
func play(t *testing.T, turns []replay.Turn, pace replay.Pace) (w replay.Waits) {
	sc := model.Script{Key: "k"}
	for _, turn := range turns {
		mt := model.Turn{}
		if turn.Chars > 0 {
			mt.Parts = []model.Part{{Text: strings.Repeat("x", turn.Chars)}}
		}
		for _, c := range turn.Calls {
			mt.Calls = append(mt.Calls, model.Call{Name: c.Server + strings.Repeat("_", c.Name-len(c.Server)), Arguments: `"` + strings.Repeat("x", c.Arguments-2) + `"`})
		}
		sc.Turns = append(sc.Turns, mt)
	}
	m, err := model.New(model.Config{Scripts: []model.Script{sc}, Rate: pace.Rate, First: pace.First})
	if err != nil {
		t.Fatal(err)
	}
	near, far := net.Pipe()
	l := &once{conn: make(chan net.Conn, 1)}
	l.conn <- far
	srv := &http.Server{Handler: m}
	var work sync.WaitGroup
	work.Go(func() { _ = srv.Serve(l) })
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1, DialContext: func(context.Context, string, string) (net.Conn, error) { return near, nil }}}
	defer func() { _ = srv.Close(); _ = near.Close(); work.Wait() }()

	began := time.Now()
	asked := map[string]time.Time{}
	used := map[string]bool{}
	start := func(server string) {
		if _, ok := asked[server]; !ok {
			asked[server] = time.Now()
			w.Starts++
		}
	}
	for i, turn := range turns {
		seen := 0
		decide := func() {
			for _, f := range turn.Fired {
				if f.At <= seen {
					start(f.Server)
				}
			}
		}
		decide()
		body := `{"model":"replay/k","stream":true,"messages":[{"role":"user","content":"x"}` + strings.Repeat(`,{"role":"assistant","content":"y"},{"role":"user","content":"z"}`, i) + `]}`
		r, err := client.Post("http://model/v1/chat/completions", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for lines := bufio.NewScanner(r.Body); lines.Scan(); {
			data, _ := strings.CutPrefix(lines.Text(), "data: ")
			var c struct {
				Choices []struct {
					Delta struct {
						Content string
						Calls   []struct{ Function struct{ Name string } } `json:"tool_calls"`
					}
				}
			}
			if json.Unmarshal([]byte(data), &c) != nil {
				continue
			}
			for _, ch := range c.Choices {
				seen += utf8.RuneCountInString(ch.Delta.Content)
				for _, call := range ch.Delta.Calls {
					if call.Function.Name != "" && pace.ToolName {
						start(strings.TrimRight(call.Function.Name, "_"))
					}
				}
			}
			decide()
		}
		_ = r.Body.Close()
		commit := time.Now()
		done := commit
		for _, c := range turn.Calls {
			_, warm := asked[c.Server]
			start(c.Server)
			ready := asked[c.Server].Add(pace.Cold)
			u := replay.Use{Server: c.Server, Turn: i, Outcome: "late", Lead: commit.Sub(asked[c.Server]), Wait: max(0, ready.Sub(commit))}
			if u.Wait == 0 {
				u.Outcome = "warm"
			} else if !warm {
				u.Outcome = "cold"
			}
			if !used[c.Server] {
				used[c.Server] = true
				w.Uses = append(w.Uses, u)
				w.Sum += u.Wait
			}
			if ready.Before(commit) {
				ready = commit
			}
			if end := ready.Add(pace.Exec); end.After(done) {
				done = end
			}
		}
		time.Sleep(done.Sub(commit))
	}
	w.Length = time.Since(began)
	w.Wasted = w.Starts - len(used)
	return w
}

// A once is a listener of one connection.
type once struct {
	conn chan net.Conn
	shut sync.Once
}

func (o *once) Accept() (net.Conn, error) {
	if c, ok := <-o.conn; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (o *once) Close() error   { o.shut.Do(func() { close(o.conn) }); return nil }
func (o *once) Addr() net.Addr { return &net.UnixAddr{Name: "once"} }
