package replay_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/specbox/specbox/intent"
	"github.com/specbox/specbox/replay"
)

// words is a policy that fires a server, which is called like a word, once the
// word has been written, with P = 1/(1+how many were before). It keeps all that
// it is shown.
type words struct {
	servers []string

	mu    sync.Mutex
	began []intent.History
	read  []string
	taken []intent.Step
}

func (p *words) Begin(h intent.History) intent.Watch {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.began = append(p.began, h)
	return &wordsWatch{p: p}
}

func (p *words) Learn(s intent.Step) { p.taken = append(p.taken, s) }

type wordsWatch struct {
	p     *words
	text  []byte
	found []string
}

func (w *wordsWatch) Text(_ intent.Kind, b []byte) { w.text = append(w.text, b...) }

func (w *wordsWatch) Candidates(servers []string) { w.found = append(w.found, servers...) }

func (w *wordsWatch) Intents(dst []intent.Intent, _ bool) []intent.Intent {
	w.p.mu.Lock()
	w.p.read = append(w.p.read, string(w.text))
	w.p.mu.Unlock()
	type at struct {
		server string
		pos    int
	}
	var all []at
	for _, s := range w.p.servers {
		if i := strings.Index(string(w.text), s); i >= 0 {
			all = append(all, at{s, i})
		} else if slices.Contains(w.found, s) {
			all = append(all, at{s, math.MaxInt})
		}
	}
	slices.SortFunc(all, func(a, b at) int { return a.pos - b.pos })
	for i, x := range all {
		dst = append(dst, intent.Intent{Server: x.server, P: 1 / float64(1+i), Fired: true})
	}
	return dst
}

// said makes a session out of lines "text > server server".
func said(id string, lines ...string) replay.Trajectory {
	t := replay.Trajectory{ID: id, Task: id, Prompt: "please, " + id}
	for _, l := range lines {
		text, calls, _ := strings.Cut(l, " > ")
		var s replay.Step
		if text != "" {
			s.Segments = []replay.Segment{{Kind: replay.Content, Text: text}}
		}
		for _, c := range strings.Fields(calls) {
			s.Calls = append(s.Calls, replay.Call{Server: c, Tool: "t"})
		}
		t.Steps = append(t.Steps, s)
	}
	return t
}

func servers(names ...string) (all []intent.Server) {
	for _, n := range names {
		all = append(all, intent.Server{Name: n})
	}
	return all
}

// just is a contestant that is p, whatever it could be fitted on.
func just(name string, p intent.Policy) replay.Contestant {
	return replay.Contestant{Name: name, Fit: func(context.Context, replay.Fitting) (intent.Policy, error) { return p, nil }}
}

func evaluate(t *testing.T, e replay.Evaluation) *replay.Report {
	t.Helper()
	r, err := replay.Evaluate(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestFiguresByHand(t *testing.T) {
	names := []string{"git", "mail", "maps", "time"}
	test := []replay.Trajectory{
		said("a",
			"first git then mail > git", // right: git, at 12 of 19; wrong: mail, later right
			"now mail > mail",           // right: mail, at 8 of 8
			"git again > git",           // nothing new; of all steps, right
			"done with git and maps",    // wrong: maps; of all steps, git too
		),
		said("b",
			"no word of it > time",        // missed: time
			"maps git time > git nowhere", // right: git, second of two; wrong: maps; nowhere does not count
			" > maps",                     // missed: maps, without any text
		),
	}
	p := &words{servers: names}
	r := evaluate(t, replay.Evaluation{Test: test, Servers: servers(names...), Contestants: []replay.Contestant{just("words", p)}, Every: 1})

	first := r.FirstUse["words"]
	check := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 1e-12 {
			t.Errorf("%s is %v, want %v", what, got, want)
		}
	}
	check("right", float64(first.Right), 3)
	check("wrong", float64(first.Wrong), 3)
	check("missed", float64(first.Missed), 2)
	check("precision", first.Precision, 3./6)
	check("recall", first.Recall, 3./5)
	check("F1", first.F1, 6./11)
	check("micro-F1", first.MicroF1, 6./10) // without the maps of the final answer
	check("top1", first.Top1, 2./5)
	check("top3", first.Top3, 3./5)
	check("false starts", first.FalseStarts, 3./7)
	check("later", first.Later, 2./3) // mail of the first step; maps of b's second, which its third calls

	all := r.AllSteps["words"]
	check("right of all", float64(all.Right), 4)
	check("wrong of all", float64(all.Wrong), 5) // mail; git, maps; maps, time
	check("missed of all", float64(all.Missed), 2)

	lead := r.Lead["words"]
	check("median fraction", lead.MedianFraction, 12./19)       // of 12/19, 8/8 and 8/13
	check("median of characters left", lead.MedianCharsLeft, 5) // of 7, 0 and 5

	want := replay.Size{Tasks: 2, Sessions: 2, Steps: 7, FirstUses: 5, Outside: 1}
	if r.Setting.Scored != want {
		t.Errorf("scored %+v, want %+v", r.Setting.Scored, want)
	}
}

func TestWaitsByHand(t *testing.T) {
	// 40 characters are 10 tokens, the tool's name 2, its arguments 1: the commit
	// is 1.2 s after the first token. In a, git fires with that; in b, never, and
	// its name is there 0.1 s before.
	test := []replay.Trajectory{said("a", strings.Repeat("git ", 10)+" > git"), said("b", strings.Repeat("hum ", 10)+" > git", "mail")}
	test[0].Steps[0].Segments[0].Text = strings.Repeat("git ", 10)
	test[1].Steps[0].Segments[0].Text = strings.Repeat("hum ", 10)
	p := &words{servers: []string{"git", "mail"}}
	r := evaluate(t, replay.Evaluation{
		Test: test, Servers: servers("git", "mail"), Contestants: []replay.Contestant{just("words", p)},
		Every: 1, Rate: 10, First: time.Second, Hold: time.Minute, Cold: []float64{1, 2},
	})
	for i, want := range []replay.Wait{
		{Cold: 1, OnDemand: 1, Mean: 0.5, Less: 2, Met: 0.5, Wasted: 0.5, NamedMean: 0.45, NamedLess: 2 / 0.9},
		{Cold: 2, OnDemand: 2, Mean: 1.4, Less: 4 / 2.8, Met: 0.5, Wasted: 0.5, NamedMean: 1.35, NamedLess: 4 / 2.7},
	} {
		got := *r.Wait["words"][i]
		for _, x := range []struct {
			what      string
			got, want float64
		}{
			{"cold", got.Cold, want.Cold}, {"on demand", got.OnDemand, want.OnDemand}, {"mean", got.Mean, want.Mean}, {"less", got.Less, want.Less}, {"met", got.Met, want.Met},
			{"wasted", got.Wasted, want.Wasted}, {"named mean", got.NamedMean, want.NamedMean}, {"named less", got.NamedLess, want.NamedLess},
		} {
			if math.Abs(x.got-x.want) > 1e-6 {
				t.Errorf("%s is %v, want %v", x.what, x.got, x.want)
			}
		}
		if got.LessInterval[0] > got.Less || got.LessInterval[1] < got.Less {
			t.Errorf("%v is not within %v", got.Less, got.LessInterval)
		}
	}
}

func TestMistakesAreListed(t *testing.T) {
	test := []replay.Trajectory{said("a", "mail maps > git mail", "git > git maps")}
	p := &words{servers: []string{"git", "mail", "maps"}}
	r := evaluate(t, replay.Evaluation{Test: test, Servers: servers(p.servers...), Contestants: []replay.Contestant{just("words", p)}, Mistakes: true})
	want := []replay.Mistake{
		{Session: "a", Step: 1, Server: "git", Missed: true, Calls: true},
		{Session: "a", Step: 1, Server: "maps", Later: true, Calls: true, P: 0.5, Rank: 2},
		{Session: "a", Step: 2, Server: "maps", Missed: true, Calls: true},
	}
	if got := r.Mistakes["words"]; !slices.Equal(got, want) {
		t.Errorf("mistakes are %+v, want %+v", got, want)
	}
}

func TestCrossValidationScoresEachTaskOnce(t *testing.T) {
	var train, validation []replay.Trajectory
	for i := range 9 {
		train = append(train, said(fmt.Sprint("t", i), fmt.Sprintf("use git%d > git", i)))
	}
	validation = append(validation, said("v", "use gitv > git"))
	var scoredTasks []string
	fit := func(_ context.Context, f replay.Fitting) (intent.Policy, error) {
		if len(f.Train) != 6 || len(f.Tune) != 2 {
			t.Errorf("fitted on %d tasks and tuned on %d, want 6 and 2", len(f.Train), len(f.Tune))
		}
		seen := map[string]bool{}
		for _, s := range slices.Concat(f.Train, f.Tune) {
			seen[s.Task] = true
		}
		for _, s := range slices.Concat(train, validation) {
			if !seen[s.Task] {
				scoredTasks = append(scoredTasks, s.Task)
			}
		}
		return &words{servers: []string{"git"}}, nil
	}
	r := evaluate(t, replay.Evaluation{
		Train: train, Validation: validation, Servers: servers("git"), Folds: 5, Seeds: 2,
		Contestants: []replay.Contestant{{Name: "words", Fit: fit}},
	})
	if got := r.FirstUse["words"].Right; got != 20 {
		t.Errorf("%d right decisions in two rounds over ten tasks, want 20", got)
	}
	first, second := slices.Clone(scoredTasks[:10]), slices.Clone(scoredTasks[10:])
	if slices.Equal(first, second) {
		t.Error("another seed folds alike")
	}
	slices.Sort(first)
	slices.Sort(second)
	if want := []string{"t0", "t1", "t2", "t3", "t4", "t5", "t6", "t7", "t8", "v"}; !slices.Equal(first, want) || !slices.Equal(second, want) {
		t.Errorf("scored are %v and %v", first, second)
	}
}

func TestWhatIsScoredIsNeverLearned(t *testing.T) {
	train := []replay.Trajectory{said("train", "alpha > git")}
	validation := []replay.Trajectory{said("validation", "beta > git")}
	test := []replay.Trajectory{said("test", "gamma of the secret > git", "delta > mail"), said("again", "epsilon > git")}
	p := &words{servers: []string{"git", "mail"}}
	var shown replay.Fitting
	fit := func(_ context.Context, f replay.Fitting) (intent.Policy, error) {
		shown = f
		f.Threshold(p)
		return p, nil
	}
	e := replay.Evaluation{Train: train, Validation: validation, Test: test, Servers: servers("git", "mail"), Contestants: []replay.Contestant{{Name: "spy", Fit: fit}}}
	evaluate(t, e)
	if len(shown.Train) != 1 || shown.Train[0].Task != "train" || len(shown.Tune) != 1 || shown.Tune[0].Task != "validation" {
		t.Errorf("fitted on %+v, tuned on %+v", shown.Train, shown.Tune)
	}
	if len(p.taken) > 0 {
		t.Errorf("it was made to learn %+v", p.taken)
	}
	for _, h := range p.began {
		if strings.Contains(h.Prompt, "test") && len(h.Used) == 0 && h.Candidates != nil {
			t.Errorf("a step began with what was to come: %+v", h)
		}
	}
	if !slices.Contains(p.read, "gamma of the secret") {
		t.Error("the test sessions were not streamed")
	}

	e.Test, e.Folds = nil, 0
	e.Validation = append(validation, train...)
	if _, err := replay.Evaluate(t.Context(), e); err == nil || !strings.Contains(err.Error(), "task train is in train and in validation") {
		t.Errorf("a task on two sides: %v", err)
	}
}

func TestNothingIsKnownBeforeItsTime(t *testing.T) {
	s := said("a", " > git")
	s.Steps[0].Segments = []replay.Segment{{Kind: replay.Content, Text: "hm"}, {Kind: replay.Query, Text: "one"}, {Kind: replay.Query, Text: "two"}, {Kind: replay.Content, Text: "so"}}
	s.Steps[0].Candidates = []replay.Candidate{{Server: "mail"}, {Server: "maps"}, {Server: "git"}, {Server: "git"}}
	score := func(candidates bool) (*replay.Report, *words) {
		p := &words{servers: []string{"git", "mail", "maps"}}
		return evaluate(t, replay.Evaluation{Test: []replay.Trajectory{s}, Servers: servers("git", "mail", "maps"), Contestants: []replay.Contestant{just("words", p)}, Candidates: candidates}), p
	}
	r, p := score(true)
	// git comes with the second search, after "hm\none\ntwo"; "\nso" is left
	if l := r.Lead["words"]; l.MedianCharsLeft != 3 || l.MedianFraction != 10./13 {
		t.Errorf("fired with %v characters left, at %v", l.MedianCharsLeft, l.MedianFraction)
	}
	if p.began[0].Candidates != nil {
		t.Errorf("the step began with the results of its searches: %v", p.began[0].Candidates)
	}
	if r, _ := score(false); r.FirstUse["words"].Missed != 1 || r.FirstUse["words"].Wrong != 0 {
		t.Errorf("results were told that were not asked for: %+v", r.FirstUse["words"])
	}
}

func TestSessionsTellWhatSearchesFound(t *testing.T) {
	s := said("a", " > git", "on > mail")
	s.Steps[0].Segments = []replay.Segment{{Kind: replay.Query, Text: "one"}, {Kind: replay.Content, Text: "hm"}, {Kind: replay.Query, Text: "two"}}
	s.Steps[0].Candidates = []replay.Candidate{{Server: "mail"}, {Server: "maps"}, {Server: "git"}, {Server: "mail"}, {Server: "git"}}
	told := replay.Sessions([]replay.Trajectory{s}, true)[0]
	if told.Task != "a" || len(told.Steps) != 2 {
		t.Fatalf("the session is %+v", told)
	}
	text := told.Steps[0].Text
	if got, want := [][]string{text[0].Found, text[1].Found, text[2].Found}, [][]string{{"mail", "maps"}, nil, {"git", "mail"}}; !reflect.DeepEqual(got, want) {
		t.Errorf("searches found %v, want %v", got, want)
	}
	if told.Steps[0].Offered != nil {
		t.Errorf("the first step was offered %v", told.Steps[0].Offered)
	}
	if got, want := told.Steps[1].Offered, []string{"git", "mail", "maps"}; !slices.Equal(got, want) {
		t.Errorf("the second step was offered %v, want %v", got, want)
	}
	for _, st := range replay.Sessions([]replay.Trajectory{s}, false)[0].Steps {
		if st.Offered != nil || st.Candidates != nil || slices.ContainsFunc(st.Text, func(g intent.Segment) bool { return g.Found != nil }) {
			t.Errorf("results were told that were not asked for: %+v", st)
		}
	}
}

func TestTextComesInTokens(t *testing.T) {
	p := &words{}
	evaluate(t, replay.Evaluation{Test: []replay.Trajectory{said("a", "abcdefghij日本語 > git")}, Servers: servers("git"), Contestants: []replay.Contestant{just("words", p)}, Every: 1})
	want := []string{"", "abcd", "abcdefgh", "abcdefghij日", "abcdefghij日本語", "abcdefghij日本語"}
	if !slices.Equal(p.read, want) {
		t.Errorf("decisions were asked for at %q, want %q", p.read, want)
	}
}

func TestMaskedNamesAreMasked(t *testing.T) {
	names := []string{"desktop-commander", "openWeather", "fetch", "时间"}
	for _, c := range []struct{ text, want string }{
		{"use desktop-commander.", "use it."},
		{"use Desktop Commander, DesktopCommander or desktop_commander", "use it, it or it"},
		{"open weather / open-weather", "it / it"},
		{"fetch fetch", "it it"},
		{"prefetching fetches", "prefetching fetches"},
		{"用 时间 吧", "用 it 吧"},
		{"the desktop of a commander", "the desktop of a commander"},
	} {
		p := &words{}
		var learned []intent.Session
		fit := func(_ context.Context, f replay.Fitting) (intent.Policy, error) {
			learned = f.Train
			return p, nil
		}
		test := said("a", c.text+" > git")
		test.Prompt = c.text
		train := said("b", c.text+" > git")
		evaluate(t, replay.Evaluation{
			Train: []replay.Trajectory{train}, Test: []replay.Trajectory{test}, Servers: servers(names...),
			Contestants: []replay.Contestant{{Name: "words", Fit: fit}}, Masked: true,
		})
		if got := p.read[len(p.read)-1]; got != c.want {
			t.Errorf("%q is streamed as %q, want %q", c.text, got, c.want)
		}
		if got := p.began[0].Prompt; got != c.want {
			t.Errorf("the prompt %q is told as %q, want %q", c.text, got, c.want)
		}
		if got := learned[0].Steps[0].Text[0].Text; got != c.want {
			t.Errorf("%q is learned as %q, want %q", c.text, got, c.want)
		}
	}
}

func TestIntervalsAreDeterministic(t *testing.T) {
	var test []replay.Trajectory
	for i := range 12 {
		text := strings.Repeat("so ", i) + "git" + strings.Repeat(" on", i*i%7)
		if i%3 == 0 {
			text = "mail"
		}
		test = append(test, said(fmt.Sprint(i), slices.Repeat([]string{text + " > git"}, 1+i%5)...))
	}
	score := func() []byte {
		r := evaluate(t, replay.Evaluation{Test: test, Servers: servers("git", "mail"), Contestants: []replay.Contestant{just("words", &words{servers: []string{"git", "mail"}})}})
		r.Cost = nil // of this machine at this moment
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		f := r.FirstUse["words"]
		if low, high := f.RecallInterval[0], f.RecallInterval[1]; !(0.3 < low && low < f.Recall && f.Recall < high && high < 1) {
			t.Errorf("recall is %v within %v", f.Recall, f.RecallInterval)
		}
		return b
	}
	if a, b := score(), score(); !slices.Equal(a, b) {
		t.Errorf("two runs differ:\n%s\n%s", a, b)
	}
}

func TestNamesOfFiguresStay(t *testing.T) {
	r := evaluate(t, replay.Evaluation{Test: []replay.Trajectory{said("a", "git > git")}, Servers: servers("git"), Contestants: []replay.Contestant{just("union", &words{servers: []string{"git"}})}})
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]map[string]map[string]any
	_ = json.Unmarshal(b, &got) // what is no figure is left out
	for part, figures := range map[string][]string{
		"first_use": {"precision", "recall", "f1", "top1", "top3", "false_starts_per_step"},
		"all_steps": {"precision", "recall", "f1", "top1", "top3", "false_starts_per_step"},
		"lead":      {"median_fraction", "median_chars_left"},
	} {
		for _, f := range figures {
			if _, ok := got[part]["union"][f].(float64); !ok {
				t.Errorf("%s.union.%s is no number: %v", part, f, got[part]["union"][f])
			}
		}
	}
}

func TestThresholdIsTheBestOnTune(t *testing.T) {
	// At P >= 1: 2 right, 1 wrong, 1 missed. From 1/2 on: 3 right, 2 wrong.
	tune := []replay.Trajectory{said("v1", "git mail > git"), said("v2", "git mail > mail"), said("v3", "git > git")}
	p := &words{servers: []string{"git", "mail"}}
	var from float64
	fit := func(_ context.Context, f replay.Fitting) (intent.Policy, error) {
		from = f.Threshold(p)
		return p, nil
	}
	evaluate(t, replay.Evaluation{Validation: tune, Servers: servers("git", "mail"), Contestants: []replay.Contestant{{Name: "words", Fit: fit}}})
	if from != 0.5 {
		t.Errorf("the threshold is %v, want 0.5, where F1 is 6/8 and not 4/6", from)
	}
}

func TestOtherThresholdsAreTried(t *testing.T) {
	test := []replay.Trajectory{said("a", "git mail > git"), said("b", "git mail > mail")}
	p := &words{servers: []string{"git", "mail"}}
	r := evaluate(t, replay.Evaluation{Test: test, Servers: servers("git", "mail"), Contestants: []replay.Contestant{just("words", p)}, From: []float64{0.4, 0.8}})
	if want := []string{"words", "words@0.4", "words@0.8"}; !slices.Equal(r.Policies, want) {
		t.Fatalf("scored are %v, want %v", r.Policies, want)
	}
	for name, want := range map[string][2]int{"words": {2, 2}, "words@0.4": {2, 2}, "words@0.8": {1, 1}} {
		if f := r.FirstUse[name]; f.Right != want[0] || f.Wrong != want[1] {
			t.Errorf("%s: %d right and %d wrong, want %v", name, f.Right, f.Wrong, want)
		}
	}
}

func TestMissingPoliciesAreReported(t *testing.T) {
	gone := replay.Contestant{Name: "encoder", Fit: func(context.Context, replay.Fitting) (intent.Policy, error) {
		return nil, fmt.Errorf("the weights are %w: fetch them", replay.ErrMissing)
	}}
	r := evaluate(t, replay.Evaluation{Test: []replay.Trajectory{said("a", "git > git")}, Servers: servers("git"), Contestants: []replay.Contestant{gone, just("words", &words{servers: []string{"git"}})}})
	if want := map[string]string{"encoder": "the weights are not there: fetch them"}; !reflect.DeepEqual(r.Missing, want) {
		t.Errorf("missing are %v, want %v", r.Missing, want)
	}
	if r.FirstUse["encoder"] != nil || r.FirstUse["words"] == nil {
		t.Errorf("figures are of %v", r.FirstUse)
	}
}

func TestExplainTellsWhere(t *testing.T) {
	p := &words{servers: []string{"git", "mail", "maps"}}
	got := replay.Explain(p, intent.History{}, intent.Content, "日本 mail, then git")
	want := []replay.Guess{{Server: "mail", Fired: true, At: 10, P: 1}, {Server: "git", Fired: true, At: 17, P: 0.5}}
	if !slices.Equal(got, want) {
		t.Errorf("explained as %+v, want %+v", got, want)
	}
	if len(p.taken) > 0 {
		t.Errorf("explaining taught %+v", p.taken)
	}
}
