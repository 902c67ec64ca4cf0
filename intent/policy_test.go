package intent_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/specbox/specbox/intent"
)

// house is a small catalogue.
func house() []intent.Server {
	tool := func(name, description string, params ...string) intent.Tool {
		t := intent.Tool{Name: name, Description: description}
		for _, p := range params {
			t.Params = append(t.Params, intent.Param{Name: p})
		}
		return t
	}
	return []intent.Server{
		{Name: "browser", Description: "Browser automation: opens web pages and takes screenshots.", Tools: []intent.Tool{
			tool("navigate_page", "Navigate the browser to a web page", "url"), tool("take_screenshot", "Take a screenshot of the page")}},
		{Name: "weather", Description: "Weather forecasts and alerts for places.", Tools: []intent.Tool{
			tool("get_forecast", "Get the weather forecast of a city", "city", "days"), tool("get_alerts", "Storm alerts of a region", "region")}},
		{Name: "excel-mcp", Description: "Reads and writes Excel spreadsheets (xlsx).", Tools: []intent.Tool{
			tool("read_sheet", "Read cells of an Excel sheet", "workbook", "range"), tool("write_sheet", "Write cells into an Excel sheet", "workbook", "cells")}},
		{Name: "whois", Description: "Looks up who owns an internet domain.", Tools: []intent.Tool{
			tool("whois_domain", "Registration and owner of a domain", "domain")}},
		{Name: "music-analysis", Description: "Analyses audio files: tempo, beats, chroma.", Tools: []intent.Tool{
			tool("track_beats", "Track the beats of an audio file", "audio_path")}},
		{Name: "stocks", Description: "Share prices, company financials and dividends.", Tools: []intent.Tool{
			tool("get_quote", "Current share price of a company", "ticker"), tool("get_dividends", "Dividends of a company", "ticker")}},
	}
}

// words that sessions of each server of the house are about.
var topics = map[string][]string{
	"browser":        {"open the page and take a screenshot", "navigate the browser to the site", "look at the web page"},
	"weather":        {"get the weather forecast for Paris", "check storm alerts of the region", "see the forecast of the city"},
	"excel-mcp":      {"read the Excel sheet", "write the cells into the xlsx workbook", "open the spreadsheet workbook"},
	"whois":          {"look up who owns the domain", "find the registration of the domain", "query whois of the domain"},
	"music-analysis": {"track the beats of the audio file", "analyse the tempo of the song", "compute the chroma of the audio"},
	"stocks":         {"get the share price of the company", "look at the dividends of the company", "check the ticker quote"},
}

// sessions makes up so many tasks: each needs two servers, one after the other,
// and ends with an answer.
func sessions(n int, seed uint64) []intent.Session {
	rng := rand.New(rand.NewPCG(seed, 1))
	names := slices.Sorted(func(yield func(string) bool) {
		for k := range topics {
			if !yield(k) {
				return
			}
		}
	})
	var all []intent.Session
	for i := range n {
		rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		a, b := names[0], names[1]
		pick := func(s string) string { return topics[s][rng.IntN(len(topics[s]))] }
		prompt := "Please " + pick(a) + " and then " + pick(b) + "."
		said := func(text string) []intent.Segment { return []intent.Segment{{Kind: intent.Content, Text: text}} }
		h := func(used ...[]string) intent.History { return intent.History{Prompt: prompt, Used: used} }
		all = append(all, intent.Session{Task: fmt.Sprint("task", i), Steps: []intent.Step{
			{History: h(), Text: said("I'll help you with that. First, let me " + pick(a) + ":"), Called: []string{a}},
			{History: h([]string{a}), Text: said("Let me " + pick(a) + " again:"), Called: []string{a}},
			{History: h([]string{a}, []string{a}), Text: said("Now let me " + pick(b) + ":"), Called: []string{b}},
			{History: h([]string{a}, []string{a}, []string{b}), Text: said("Here is the summary. I have completed both parts successfully.\n\n- One\n- Two\n")},
		}})
	}
	return all
}

// fitted is a model of made-up sessions.
var fitted = sync.OnceValues(func() (*intent.Model, error) {
	return intent.Fit(1, intent.Corpus{Servers: house(), Sessions: sessions(24, 1)})
})

func policy(t testing.TB, name string, o intent.Options) intent.Policy {
	t.Helper()
	p, err := intent.NewPolicy(name, house(), o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// feed streams text in pieces of n bytes, in a buffer that is overwritten.
func feed(w intent.Watch, k intent.Kind, text string, n int) {
	buf := make([]byte, n)
	for len(text) > 0 {
		m := copy(buf, text)
		w.Text(k, buf[:m])
		clear(buf)
		text = text[m:]
	}
}

func fires(is []intent.Intent) []string {
	var all []string
	for _, in := range is {
		if in.Fired {
			all = append(all, in.Server)
		}
	}
	return slices.Sorted(slices.Values(all))
}

func find(is []intent.Intent, server string) intent.Intent {
	for _, in := range is {
		if in.Server == server {
			return in
		}
	}
	return intent.Intent{}
}

func TestPoliciesFindTheServer(t *testing.T) {
	text := "Now let me get the weather forecast for the city, and the storm alerts of the region:"
	for _, name := range intent.Policies() {
		if name == "encoder" {
			continue // needs its model: the router bench and the evaluation install it
		}
		t.Run(name, func(t *testing.T) {
			w := policy(t, name, intent.Options{}).Begin(intent.History{Prompt: "How is the weather in Paris?"})
			feed(w, intent.Content, text, 4)
			is := w.Intents(nil, true)
			if len(is) == 0 || is[0].Server != "weather" {
				t.Fatalf("got %v, want weather first", is)
			}
			if is[0].P <= 0 || is[0].P > 1 || is[0].Why == "" || is[0].Source == "" {
				t.Errorf("got %+v, want a probability, a source and a reason", is[0])
			}
			seen := map[string]bool{}
			for i, in := range is {
				if seen[in.Server] {
					t.Errorf("%s comes twice", in.Server)
				}
				seen[in.Server] = true
				if i > 0 && in.P > is[i-1].P {
					t.Errorf("%s is surer than what stands before it", in.Server)
				}
			}
		})
	}
}

func TestUnknownPolicy(t *testing.T) {
	if _, err := intent.NewPolicy("oracle", house(), intent.Options{}); err == nil || !strings.Contains(err.Error(), "calibrated") {
		t.Errorf("got %v, want an error that names the policies", err)
	}
	if _, err := intent.NewPolicy("encoder", house(), intent.Options{}); !errors.Is(err, intent.ErrNoEncoder) {
		t.Errorf("got %v, want ErrNoEncoder", err)
	}
}

func TestKeywordsAreCounted(t *testing.T) {
	for text, want := range map[string][]bool{ // by gamma
		"I know it by heart.":                             {false, false, false},
		"A forecast is enough.":                           {true, false, false},
		"The forecast, then the alerts of the region.":    {true, true, true},
		"A forecast of a forecast is still one forecast.": {true, false, false},
	} {
		for gamma := 1; gamma <= 3; gamma++ {
			w := policy(t, fmt.Sprint("keyword-", gamma), intent.Options{}).Begin(intent.History{})
			feed(w, intent.Content, text+"\n", 3)
			if got := find(w.Intents(nil, false), "weather").Fired; got != want[gamma-1] {
				t.Errorf("%q, gamma %d: fired is %v", text, gamma, got)
			}
		}
	}
}

func TestNegatedServersDoNotFire(t *testing.T) {
	for _, c := range []struct {
		text  string
		fires bool
	}{
		{"Let me open the page in the browser and take a screenshot:", true},
		{"There is no need for the browser to navigate a page.", false},
		{"I can answer this without the browser automation.", false},
		{"Instead of the browser page I take what I know.", false},
		{"I will not use the browser page.", false},
		{"I don't need to navigate the browser.", false},
		{"Rather than the browser screenshot, I describe it.", false},
		{"It cannot be done without care, so let me navigate the browser to the page and take a screenshot:", true},
	} {
		for _, name := range []string{"keyword-1", "keyword-2", "calibrated"} {
			w := policy(t, name, intent.Options{}).Begin(intent.History{})
			var fired bool
			for i := range len(c.text) {
				w.Text(intent.Content, []byte(c.text[i:i+1]))
				if i%intent.Cadence == intent.Cadence-1 {
					fired = fired || find(w.Intents(nil, false), "browser").Fired
				}
			}
			fired = fired || find(w.Intents(nil, false), "browser").Fired
			if fired != c.fires {
				t.Errorf("%s: %q: fired is %v", name, c.text, fired)
			}
		}
	}
}

func TestSplitChangesNothing(t *testing.T) {
	text := "Zuerst: naïve café — 天気予報を見る。 Let me getForecast of the city, then read_sheet(workbook) …\n# Done: HTMLPage №5 isn't it?"
	rng := rand.New(rand.NewPCG(5, 6))
	for _, name := range []string{"keyword-2", "retrieval", "fasttext", "union", "intersection", "weighted", "calibrated"} {
		p := policy(t, name, intent.Options{Sessions: sessions(5, 3)})
		for _, s := range sessions(5, 3) {
			for _, st := range s.Steps {
				p.Learn(st)
			}
		}
		ask := func(next func(left int) int) []intent.Intent {
			w := p.Begin(intent.History{Prompt: "the weather and the workbook, 天気", Used: [][]string{{"stocks"}}})
			for _, k := range []intent.Kind{intent.Content, intent.Query, intent.Content} {
				for rest := text; rest != ""; {
					n := next(len(rest))
					w.Text(k, []byte(rest[:n]))
					rest = rest[n:]
				}
			}
			return w.Intents(nil, true)
		}
		want := ask(func(left int) int { return left })
		if len(want) == 0 {
			t.Errorf("%s says nothing", name)
		}
		for range 20 {
			if got := ask(func(left int) int { return 1 + rng.IntN(min(left, 9)) }); !reflect.DeepEqual(got, want) {
				t.Fatalf("%s: got %v\nwant %v", name, got, want)
			}
		}
	}
}

func TestOnlyOfferedToolsAreGuessed(t *testing.T) {
	for _, name := range []string{"keyword-1", "calibrated"} {
		h := intent.History{Tools: []string{"stocks", "whois"}}
		w := policy(t, name, intent.Options{}).Begin(h)
		feed(w, intent.Content, "Let me get the weather forecast of the city:", 4)
		if in := find(w.Intents(nil, false), "weather"); in.Server != "" {
			t.Errorf("%s: got %+v of a server whose tools the model does not have", name, in)
		}
	}
}

func TestPromptIsEnoughForAGuess(t *testing.T) {
	w := policy(t, "calibrated", intent.Options{}).Begin(intent.History{Prompt: "Please track the beats of the audio file."})
	is := w.Intents(nil, false)
	if len(is) == 0 || is[0].Server != "music-analysis" || is[0].Source != "prompt" {
		t.Errorf("got %v, want music-analysis first, because of the prompt", is)
	}
}

func TestBarelySaidIsNotCertain(t *testing.T) {
	w := policy(t, "calibrated", intent.Options{}).Begin(intent.History{Prompt: "Hello!"})
	feed(w, intent.Content, "Hello! How are you?", 4)
	if got := fires(w.Intents(nil, false)); len(got) > 0 {
		t.Errorf("%v fired at a greeting", got)
	}
}

func TestLearningShowsInLaterSteps(t *testing.T) {
	memory := intent.NewMemory(0)
	p := policy(t, "calibrated", intent.Options{Memory: memory})
	say := "Time for the quarterly gizmo:"
	ask := func(p intent.Policy) float64 {
		w := p.Begin(intent.History{Prompt: "Do the usual."})
		feed(w, intent.Content, say, 4)
		return find(w.Intents(nil, false), "stocks").P
	}
	before := ask(p)
	for range 10 {
		p.Learn(intent.Step{
			History: intent.History{Prompt: "Do the usual."}, Called: []string{"stocks"},
			Text: []intent.Segment{{Kind: intent.Content, Text: say}},
		})
	}
	// What is learned of others must not count for it.
	for _, s := range sessions(60, 9) {
		for _, st := range s.Steps {
			p.Learn(st)
		}
	}
	after := ask(p)
	if after <= 2*before {
		t.Errorf("got %.4f after ten lessons and %.4f before", after, before)
	}
	again := policy(t, "calibrated", intent.Options{Memory: memory})
	if got := ask(again); got != after {
		t.Errorf("a policy made anew says %.4f, want %.4f as before", got, after)
	}
	fewer, err := intent.NewPolicy("calibrated", house()[3:], intent.Options{Memory: memory})
	if err != nil {
		t.Fatal(err)
	}
	if got := ask(fewer); got <= 2*before {
		t.Errorf("with fewer servers what was learned of one is gone: %.4f", got)
	}
}

func TestRoutersLearn(t *testing.T) {
	p := policy(t, "retrieval", intent.Options{})
	ask := func() float64 {
		w := p.Begin(intent.History{})
		feed(w, intent.Content, "Time for the quarterly gizmo.", 4)
		return find(w.Intents(nil, false), "stocks").P
	}
	before := ask()
	p.Learn(intent.Step{Called: []string{"stocks"}, Text: []intent.Segment{{Kind: intent.Content, Text: "Time for the quarterly gizmo."}}})
	if after := ask(); after <= before {
		t.Errorf("got %.3f after a lesson, %.3f before", after, before)
	}
}

func TestMemoryIsBoundedAndForgets(t *testing.T) {
	const limit = 40
	step := func(server, text string) intent.Step {
		return intent.Step{Called: []string{server}, Text: []intent.Segment{{Kind: intent.Content, Text: text}}}
	}
	// ask returns what a policy says that was first taught one thing and then
	// many others.
	ask := func(first, others int) float64 {
		memory := intent.NewMemory(limit)
		p := policy(t, "calibrated", intent.Options{Memory: memory})
		for range first {
			p.Learn(step("whois", "gizmo time:"))
		}
		for i := range others {
			p.Learn(step("browser", fmt.Sprint("something else ", i)))
			if memory.Len() > limit {
				t.Fatalf("it holds %d steps, want %d at most", memory.Len(), limit)
			}
		}
		p.Learn(intent.Step{Text: []intent.Segment{{Text: "a step without calls"}}})
		if want := min(limit, first+others); memory.Len() != want {
			t.Errorf("it holds %d steps, want %d", memory.Len(), want)
		}
		w := p.Begin(intent.History{})
		feed(w, intent.Content, "gizmo time:", 4)
		return find(w.Intents(nil, false), "whois").P
	}
	known, forgotten, never := ask(20, 20), ask(20, 200), ask(0, 220)
	if forgotten != never {
		t.Errorf("got %.4f when it is long ago, and %.4f where it was never learned", forgotten, never)
	}
	if known <= never {
		t.Errorf("got %.4f where it was learned, and %.4f where it never was", known, never)
	}
}

func TestMemoryIsSaved(t *testing.T) {
	first := intent.NewMemory(0)
	p := policy(t, "calibrated", intent.Options{Memory: first})
	for _, s := range sessions(12, 4) {
		for _, st := range s.Steps {
			p.Learn(st)
		}
	}
	var file bytes.Buffer
	if err := first.Save(&file); err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(file.Bytes(), []byte("dividends")) {
		t.Error("it holds words of what was said")
	}
	second := intent.NewMemory(0)
	if err := second.Load(bytes.NewReader(file.Bytes())); err != nil {
		t.Fatal(err)
	}
	q := policy(t, "calibrated", intent.Options{Memory: second})
	h := intent.History{Prompt: "the dividends, and the owner of the domain", Used: [][]string{{"weather"}}}
	ask := func(p intent.Policy) []intent.Intent {
		w := p.Begin(h)
		feed(w, intent.Content, "Let me look at the dividends of the company:", 5)
		return w.Intents(nil, false)
	}
	if got, want := ask(q), ask(p); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
	for _, broken := range []string{"", "no memory", file.String()[:file.Len()/2]} {
		if err := second.Load(strings.NewReader(broken)); err == nil {
			t.Errorf("%q is taken for a memory", broken[:min(len(broken), 10)])
		}
	}
	if second.Len() != first.Len() {
		t.Errorf("after errors it holds %d steps, want %d", second.Len(), first.Len())
	}
}

func TestSearchesCount(t *testing.T) {
	p := policy(t, "calibrated", intent.Options{})
	prompt := "Please do what is needed."
	ask := func(found ...string) float64 {
		w := p.Begin(intent.History{Prompt: prompt})
		feed(w, intent.Query, "server: registry\ntool: find out who is behind it", 4)
		if found != nil {
			w.Candidates(found)
		}
		feed(w, intent.Content, "Now let me get it:", 4)
		return find(w.Intents(nil, false), "stocks").P
	}
	if told, untold := ask("stocks"), ask(); told <= 2*untold || told < 0.1 {
		t.Errorf("got %.4f where a search found it, %.4f where nothing is known", told, untold)
	}
	offered := func(names ...string) float64 {
		w := p.Begin(intent.History{Prompt: prompt, Used: [][]string{{"weather"}}, Offered: names})
		feed(w, intent.Content, "Now let me get the rest:", 4)
		return find(w.Intents(nil, false), "stocks").P
	}
	if told, untold := offered("stocks", "weather"), offered(); told <= 2*untold {
		t.Errorf("got %.4f where an earlier search found it, %.4f where none did", told, untold)
	}
}

func TestManyAtOnce(t *testing.T) {
	for _, name := range []string{"union", "calibrated"} {
		p := policy(t, name, intent.Options{Memory: intent.NewMemory(30)})
		ss := sessions(10, 6)
		var work sync.WaitGroup
		for i := range 4 {
			work.Go(func() {
				for _, s := range ss {
					for _, st := range s.Steps {
						w := p.Begin(st.History)
						for _, seg := range st.Text {
							feed(w, seg.Kind, seg.Text, 5+i)
							w.Intents(nil, i == 0)
						}
						p.Learn(st)
					}
				}
			})
		}
		work.Wait()
	}
}
