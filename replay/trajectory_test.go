package replay_test

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/specbox/specbox/intent"
	"github.com/specbox/specbox/replay"
)

func TestReadFollowsGlobsFilesAndLines(t *testing.T) {
	ts, err := replay.Read("testdata/sessions.v*.jsonl", "testdata/sessions.*.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, tr := range ts {
		ids = append(ids, tr.ID)
	}
	if want := []string{"v1", "s1", "s1b", "s2", "s3"}; !reflect.DeepEqual(ids, want) {
		t.Errorf("read %v, want %v", ids, want)
	}
	v := ts[0]
	if v.Source != "sample" || v.Task != "t9" || v.Run != "2" || v.Prompt != "Draw how many trains leave Utrecht each hour." || len(v.Steps) != 3 {
		t.Errorf("read %+v", v)
	}
	if got, want := v.Steps[1].Segments, []replay.Segment{{Kind: replay.Content, Text: "Eight, twelve and nine. A line chart shows that well."}}; !reflect.DeepEqual(got, want) {
		t.Errorf("plain text became %v", got)
	}
	if got := v.Steps[1].Servers(); !reflect.DeepEqual(got, []string{"charts"}) {
		t.Errorf("a step with an unknown server called %v", got)
	}
	if c := v.Steps[0].Calls[0]; c.Tool != "departures" || string(c.Arguments) != `{"station": "Utrecht"}` || c.Chars != 42 || c.Result != "It is done." {
		t.Errorf("a call became %+v", c)
	}
	if got, want := v.Steps[0].Candidates, []replay.Candidate{{Server: "trains", Tool: "departures"}, {Server: "charts", Tool: "line_chart"}}; !reflect.DeepEqual(got, want) {
		t.Errorf("candidates became %v", got)
	}
}

func TestCompressedFilesReadTheSame(t *testing.T) {
	plain, err := os.ReadFile("testdata/sessions.train.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	want, err := replay.ReadFrom(bytes.NewReader(plain), "plain")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "a.jsonl.gz")
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(bytes.TrimSpace(plain)); err != nil { // and without the last line feed
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := replay.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the compressed file reads as %+v", got)
	}
}

func TestErrorsNameFileAndLine(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"no json":        {"\n{", "f:2: this is no trajectory"},
		"no id":          {"{}\n", "f:1: this trajectory has no id"},
		"a kind":         {`{"id":"a","steps":[{"segments":[{"kind":"song","text":"la"}]}]}`, `f:1: a: step 1 has a segment of kind "song"`},
		"half a pair":    {`{"id":"a","steps":[{"candidates":[["b"]]}]}`, "f:1: this is no trajectory: a candidate is a pair"},
		"broken archive": {"\x1f\x8b--", "f: "},
	} {
		_, err := replay.ReadFrom(strings.NewReader(c.text), "f")
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
	if _, err := replay.Read("testdata/none*.jsonl"); err == nil || !strings.Contains(err.Error(), "none*.jsonl") {
		t.Errorf("a glob without a match: %v", err)
	}
}

func TestUserWhoSpeaksAgainBeginsAStep(t *testing.T) {
	ts, err := replay.Read("testdata/sessions.validation.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	steps := replay.Steps(ts)
	content := func(s string) []intent.Segment { return []intent.Segment{{Kind: intent.Content, Text: s}} }
	prompt := "Draw how many trains leave Utrecht each hour."
	want := []intent.Step{
		{
			History: intent.History{Prompt: prompt, Candidates: []string{"trains", "charts"}},
			Text: []intent.Segment{
				{Kind: intent.Content, Text: "The timetable of Utrecht tells how many trains leave."},
				{Kind: intent.Query, Text: "server: railway timetable\ntool: departures of a station"},
			},
			Called: []string{"trains"},
		},
		{
			History: intent.History{Prompt: prompt, Used: [][]string{{"trains"}}},
			Text:    content("Eight, twelve and nine. A line chart shows that well."), Called: []string{"charts"},
		},
		{
			History: intent.History{Prompt: prompt, Used: [][]string{{"trains"}, {"charts"}}},
			Text:    content("The chart is drawn. Is there anything else?"),
		},
		{
			History: intent.History{Prompt: "Yes, write it down as a note.", Used: [][]string{{"trains"}, {"charts"}, nil}},
			Text:    content("There is nothing that I can draw it into, so I only say it."),
		},
	}
	if len(steps) != len(want) {
		t.Fatalf("%d steps, want %d", len(steps), len(want))
	}
	for i := range want {
		if !reflect.DeepEqual(steps[i], want[i]) {
			t.Errorf("step %d is\n%+v, want\n%+v", i, steps[i], want[i])
		}
	}
}

func TestSpokenIsWhatWasSaid(t *testing.T) {
	ts, err := replay.Read("testdata/sessions.validation.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range ts[0].Spoken() {
		calls := ""
		for _, c := range s.Calls {
			calls += " " + c.Server + c.Compact()
		}
		got = append(got, s.User+" | "+s.Text+" |"+calls)
	}
	want := []string{
		"Draw how many trains leave Utrecht each hour. | The timetable of Utrecht tells how many trains leave.\nserver: railway timetable\ntool: departures of a station | trains{\"station\":\"Utrecht\"}",
		" | Eight, twelve and nine. A line chart shows that well. | charts{\"data\":\"8, 12, 9\",\"title\":\"Utrecht\"}",
		" | The chart is drawn. Is there anything else? |",
		"Yes, write it down as a note. | There is nothing that I can draw it into, so I only say it. |",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestReadCatalog(t *testing.T) {
	servers, err := replay.ReadCatalog("testdata/catalog.json")
	if err != nil {
		t.Fatal(err)
	}
	if len(servers) != 4 {
		t.Fatalf("%d servers, want 4", len(servers))
	}
	want := intent.Server{
		Name: "trains", Description: "Railway\nTimetables and tickets of trains.",
		Tools: []intent.Tool{
			{Name: "departures", Description: "Trains that leave a station", Params: []intent.Param{{Name: "station", Description: "Name of a station"}}},
			{Name: "ticket_price", Description: "What a journey costs", Params: []intent.Param{{Name: "destination", Description: "To"}, {Name: "origin", Description: "From"}}},
		},
	}
	if !reflect.DeepEqual(servers[2], want) {
		t.Errorf("got %+v, want %+v", servers[2], want)
	}
	if twice, err := replay.ReadCatalog("testdata/catalog.json", "testdata/catalog.json"); err != nil || !reflect.DeepEqual(twice, servers) {
		t.Errorf("a file twice: %d servers, %v", len(twice), err)
	}
	file := filepath.Join(t.TempDir(), "c.json")
	for text, want := range map[string]string{
		`{}`:                              "this is no catalogue",
		`[{"tools":[]}]`:                  "entry 1 names no server",
		`[{"server":"a"},{"server":"a"}]`: `server "a" stands there twice`,
		`[{"server":"a","tools":[{"name":"t","inputSchema":{"properties":[]}}]}]`: `server "a": tool "t": its schema`,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := replay.ReadCatalog(file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

func FuzzReadFrom(f *testing.F) {
	for _, name := range []string{"testdata/sessions.train.jsonl", "testdata/sessions.validation.jsonl"} {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte("\x1f\x8b"))
	f.Fuzz(func(t *testing.T, b []byte) {
		ts, err := replay.ReadFrom(bytes.NewReader(b), "fuzz")
		if err != nil {
			return
		}
		for i := range ts {
			called := 0
			steps := ts[i].IntentSteps()
			if turns := ts[i].Turns(); len(turns) != len(steps) {
				t.Errorf("%s: %d steps are %d turns", ts[i].ID, len(steps), len(turns))
			}
			for _, s := range steps {
				called += len(s.Called)
			}
			for _, s := range ts[i].Steps {
				called -= len(s.Servers())
			}
			if called != 0 {
				t.Errorf("%s: %d more servers are called in its turns than in its steps", ts[i].ID, called)
			}
		}
	})
}
