package bench

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/specbox/specbox/replay/model"
)

const tenth = 100 * time.Millisecond

// at is a time, in tenths of a second.
func at(n int) time.Time { return time.Unix(1000, 0).Add(time.Duration(n) * tenth) }

// aCall was committed at from, had its sandbox at ready, and was answered at to.
func aCall(session, step int, server, sandbox, outcome, cause string, from, ready, to int) Event {
	return Event{
		Time: at(to), Kind: callKind, Method: "tools/call", Server: server, Step: step, Sandbox: sandbox, Cause: cause, Outcome: outcome,
		Provision: time.Duration(ready-from) * tenth, Exec: time.Duration(to-ready) * tenth, Lead: tenth, TraceID: TraceID(session),
	}
}

func aStart(server, sandbox, cause string, from, ready int) Event {
	return Event{Time: at(ready), Kind: startKind, Server: server, Sandbox: sandbox, Cause: cause, Provision: time.Duration(ready-from) * tenth}
}

func TestFirstUses(t *testing.T) {
	got := firstUses([]Event{
		aCall(1, 2, "a", "a-1", "warm", "demand", 90, 90, 95), // not the first
		aCall(1, 1, "a", "a-1", "late", "demand", 11, 40, 41), // came a moment after the one that began the start
		aCall(1, 1, "a", "a-1", "cold", "demand", 10, 40, 50),
		aCall(1, 2, "b", "b-1", "late", "intent", 80, 85, 86),
	})
	want := []PrewarmUse{
		{Server: "a", Outcome: "cold", Cause: "demand", Wait: 3, Lead: 0.1},
		{Server: "b", Outcome: "late", Cause: "intent", Wait: 0.5, Lead: 0.1},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := firstUses([]Event{
		aCall(1, 1, "a", "a-1", "late", "tool name", 10, 40, 50),
		aCall(1, 1, "a", "a-1", "cold", "demand", 11, 40, 50),
	}); got[0].Outcome != "cold" {
		t.Errorf("a step one of whose calls was cold is %s", got[0].Outcome)
	}
}

// two sessions, of which the second uses nothing that was started ahead.
func twoSessions() *played {
	p := &played{sessions: []Session{
		{number: 1, task: "one", begin: at(0), end: at(100), answers: []answerTime{{at(1), at(2), at(10)}}},
		{number: 2, task: "two", begin: at(50), end: at(200), failed: 1},
	}}
	p.read([]Event{
		aStart("a", "a-0", "catalog", 0, 1),
		aStart("a", "a-1", "intent", 5, 25),
		aStart("b", "b-1", "prompt", 60, 80), // for nobody, while both went on
		aStart("c", "c-1", "intent", 120, 140),
		aStart("d", "d-1", "demand", 150, 170),
		{Time: at(180), Kind: startKind, Server: "e", Cause: "intent", Provision: 10 * tenth, Err: "given up before it was ready"},
		aCall(1, 1, "a", "a-1", "late", "intent", 10, 25, 30),
		aCall(2, 1, "d", "d-1", "cold", "demand", 150, 170, 171),
	})
	return p
}

func TestReadCountsStarts(t *testing.T) {
	p := twoSessions()
	if p.starts != 5 || p.wasted != 3 {
		t.Errorf("%d starts, %d wasted, want 5 and 3", p.starts, p.wasted)
	}
	if one, two := p.sessions[0].wasted, p.sessions[1].wasted; one != 0.5 || two != 2.5 {
		t.Errorf("the sessions wasted %v and %v, want 0.5 and 2.5", one, two)
	}
}

func TestReportComparesWithOnDemand(t *testing.T) {
	r := &PrewarmReport{}
	onDemand := &played{sessions: []Session{{task: "one", begin: at(0), end: at(120)}, {task: "two", begin: at(0), end: at(200)}}}
	onDemand.read([]Event{
		aStart("a", "a-1", "demand", 10, 30), aStart("d", "d-1", "demand", 150, 170),
		aCall(1, 1, "a", "a-1", "cold", "demand", 10, 30, 35), aCall(2, 1, "d", "d-1", "cold", "demand", 150, 170, 171),
	})
	for range 2 { // seeds
		r.cell(OnDemand, 2*time.Second).enter(onDemand, 0)
		r.cell("other", 2*time.Second).enter(twoSessions(), 0)
	}
	r.sum()
	d, o := r.Cells[0], r.Cells[1]
	if d.Wait != 8 || d.Measured != 2 || d.Ahead != 0 || d.Ratio != 1 || d.RatioInterval != [2]float64{1, 1} || d.Session != 16 || d.Starts != 4 || d.Wasted != 0 {
		t.Errorf("on demand: %+v", d)
	}
	if o.Wait != 7 || o.Ratio != 0.875 || o.Ahead != 0.5 || o.Warm != 0 || o.Late != 2 || o.ColdUses != 2 || o.WastedPerUse != 1.5 || o.Failed != 2 {
		t.Errorf("the other: %+v", o)
	}
	// one session alone waits 1.5 s of 2, the other 2 of 2
	if o.RatioInterval != [2]float64{0.75, 1} || o.AheadInterval != [2]float64{0, 1} || o.WastedInterval != [2]float64{0.5, 2.5} {
		t.Errorf("intervals: %v %v %v", o.RatioInterval, o.AheadInterval, o.WastedInterval)
	}
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}
}

func TestMachineTimeGoesOn(t *testing.T) {
	used, idle := machineTime()
	if used <= 0 || idle <= 0 {
		t.Errorf("used %v, idle %v", used, idle)
	}
}

func TestPictureIsWellFormed(t *testing.T) {
	p := twoSessions()
	r := &PrewarmReport{timelines: map[string]*Timeline{"on-demand2s": p.timeline("on-demand"), "other2s": p.timeline("other")}}
	var b strings.Builder
	if err := r.Picture(&b, "other", 2*time.Second); err != nil {
		t.Fatal(err)
	}
	for d := xml.NewDecoder(strings.NewReader(b.String())); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%v in %s", err, b.String())
		}
	}
	for _, want := range []string{"on-demand: 10.0 s, of which calls waited 1.5 s", `class="start"`, `class="wait"`, `class="call"`, `class="model"`} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%s is not in %s", want, b.String())
		}
	}
	if err := r.Picture(&b, "none", 2*time.Second); err == nil {
		t.Error("a policy that was not measured has a picture")
	}
}

func TestTimelineOfOneSession(t *testing.T) {
	s := Session{number: 1, begin: at(0), end: at(100), answers: []answerTime{{at(1), at(2), at(10)}}}
	events := []Event{
		aStart("a", "a-1", "catalog", 0, 1),
		aStart("c", "c-1", "intent", 20, 40), // for nobody
		aStart("b", "b-1", "demand", 50, 70),
		aStart("a", "a-2", "tool name", 5, 25),
		aCall(1, 2, "b", "b-1", "late", "demand", 60, 70, 81), // while the other waits
		aCall(1, 2, "b", "b-1", "cold", "demand", 50, 70, 80),
		aCall(1, 1, "a", "a-2", "late", "tool name", 10, 25, 30),
		aCall(2, 1, "d", "d-1", "cold", "demand", 10, 25, 30), // of another session
	}
	want := &Timeline{Name: "alone", Model: []Span{{0.1, 1}}, End: 10, Lanes: []Lane{
		{"a", []Span{{0.5, 2.5}}, []Span{{1, 2.5}}, []Span{{2.5, 3}}},
		{"b", []Span{{5, 7}}, []Span{{5, 7}, {6, 7}}, []Span{{7, 8}, {7, 8.1}}},
		{"c", []Span{{2, 4}}, nil, nil},
	}}
	got := s.Timeline("alone", events, true)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got.Waited() != 3.5 {
		t.Errorf("calls waited %v s, want 3.5", got.Waited())
	}
	if got := s.Timeline("one of many", events, false); len(got.Lanes) != 2 {
		t.Errorf("what was started for nobody is counted on a session: %+v", got.Lanes)
	}
}

func TestReadStream(t *testing.T) {
	chunk := func(delta string) string { return `data: {"choices":[{"delta":` + delta + `}]}` + "\n\n" }
	whole := chunk(`{"role":"assistant","content":""}`) + ": a comment\n\n" + chunk(`{"content":"Let "}`) + chunk(`{"content":"us."}`) +
		chunk(`{"tool_calls":[{"index":0,"id":"x","function":{"name":"a__b","arguments":""}}]}`) +
		chunk(`{"tool_calls":[{"index":0,"function":{"arguments":"{\"k\""}}]}`) + chunk(`{"tool_calls":[{"index":0,"function":{"arguments":":1}"}}]}`) +
		chunk(`{"tool_calls":[{"index":1,"id":"y","function":{"name":"c","arguments":"{}"}}]}`)
	begun := 0
	m, err := readStream(strings.NewReader(whole+"data: [DONE]\n\n"), func() { begun++ })
	if err != nil || begun != 1 || *m.Content != "Let us." {
		t.Fatalf("%+v, %v, begun %d times", m, err, begun)
	}
	if got := fmt.Sprint(m.ToolCalls); got != `[{x function {a__b {"k":1}}} {y function {c {}}}]` {
		t.Errorf("calls: %s", got)
	}
	for text, want := range map[string]string{
		whole: "unexpected EOF",
		`data: {"error":{"message":"too many"}}` + "\n\n":                        "too many",
		chunk(`{"tool_calls":[{"index":1,"function":{}}]}`) + "data: [DONE]\n\n": "call 1 comes before",
		"data: {\n\n": "unexpected end",
	} {
		if _, err := readStream(strings.NewReader(text), func() {}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: got %v, want %s", text, err, want)
		}
	}
}

// files writes a catalogue and a session and returns what plays them.
func files(t *testing.T, session string) PrewarmOptions {
	t.Helper()
	dir := t.TempDir()
	o := PrewarmOptions{Catalog: filepath.Join(dir, "c.json"), Traces: []string{filepath.Join(dir, "t.jsonl")}, Rate: 60}
	for name, text := range map[string]string{
		o.Catalog: `[{"server":"A b","tools":[{"name":"x.y"}]},{"server":"A-b","tools":[]},{"server":"c","tools":[]}]`, o.Traces[0]: session,
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return o
}

func TestWorldNamesAndScripts(t *testing.T) {
	w, err := newWorld(files(t, `{"id":"s","user_prompt":"Do it","steps":[{"text":"I do.","calls":[{"server":"A b","tool":"x.y","arguments":{"k": 1}},{"server":"c","tool":"new"},{"server":"gone","tool":"z","unknown_server":true}]},{"text":"Done.","calls":[]}]}
{"id":"idle","user_prompt":"Hello","steps":[{"text":"Hello.","calls":[]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	if want := map[string]string{"A b": "A-b", "A-b": "A-b-2", "c": "c"}; !reflect.DeepEqual(w.names, want) {
		t.Errorf("names %v, want %v", w.names, want)
	}
	want := []model.Script{{Key: "s", Turns: []model.Turn{
		{Parts: []model.Part{{Text: "I do."}}, Calls: []model.Call{{Name: "A-b__x_y", Arguments: `{"k":1}`}, {Name: "c__new", Arguments: "{}"}}},
		{Parts: []model.Part{{Text: "Done."}}},
	}}}
	if !reflect.DeepEqual(w.scripts, want) {
		t.Errorf("scripts %+v, want %+v", w.scripts, want)
	}
	if got := w.entries[2].Tools; len(got) != 1 || got[0].Name != "new" {
		t.Errorf("a tool that is called but not listed: %v", got)
	}
	if _, err := newWorld(files(t, `{"id":"s","steps":[{"calls":[{"server":"none","tool":"x"}]}]}`)); err == nil || !strings.Contains(err.Error(), `server "none"`) {
		t.Errorf("a server that is not in the catalogue: %v", err)
	}
	if _, err := newWorld(files(t, `{"id":"s","steps":[]}`)); err == nil {
		t.Error("nothing to play is no error")
	}
}

// A start's cost and what it takes are on a line.
func TestCalibrate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trace.jsonl")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 2 * probes {
		took := 100*time.Millisecond + 20*littleWork
		if n%2 == 1 {
			took = 100*time.Millisecond + 20*muchWork
		}
		line, err := json.Marshal(map[string]any{"kind": "call", "trace_id": TraceID(n + 1), "provision_ns": took})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(f, "%s\n", line)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	w := &setting{world: &world{}, cold: 2 * time.Second, dir: t.TempDir()}
	if err := w.calibrate(file); err != nil {
		t.Fatal(err)
	}
	if !w.limited || w.base.Round(time.Millisecond) != 100*time.Millisecond || w.slope < 19.99 || w.slope > 20.01 {
		t.Errorf("base %v, slope %v, limited %v", w.base, w.slope, w.limited)
	}
	if err := w.setCost(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(w.costFile())
	if err != nil {
		t.Fatal(err)
	}
	var c struct {
		CPU time.Duration `json:"cpu_ns"`
	}
	if err := json.Unmarshal(b, &c); err != nil || c.CPU.Round(time.Millisecond) != 95*time.Millisecond {
		t.Errorf("two seconds cost %v of CPU (%v), want 95 ms", c.CPU, err)
	}
	w.limited, w.slope, w.base = false, 1, 0
	if err := w.setCost(); err != nil {
		t.Fatal(err)
	}
	if b, err = os.ReadFile(w.costFile()); err != nil || !strings.Contains(string(b), "2000000000") {
		t.Errorf("without a limit it is work of the whole time: %s, %v", b, err)
	}
}
