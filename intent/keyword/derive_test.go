package keyword_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/specbox/specbox/intent/keyword"
)

var servers = []keyword.Server{
	{
		Name:        "duckduckgo-search",
		Description: "Search the web with DuckDuckGo. Fetch pages.",
		Tools:       []keyword.Tool{{Name: "webSearch", Description: "Search the web for pages", Params: []keyword.Param{{Name: "region"}}}},
		Keywords:    []string{"look it up"},
	},
	{
		Name:        "pdf_reader",
		Description: "Read PDF files. Pages of PDF files are turned into text: pages and more pages.",
		Tools:       []keyword.Tool{{Name: "read_pdf", Description: "Read a PDF file and its pages"}},
	},
	{Name: "weather", Description: "Forecast of the weather in a city. 天气预报，天气", Tools: []keyword.Tool{{Name: "get_forecast"}}, Keywords: []string{"-cities"}},
	{Name: "mcp-server-notes", Tools: []keyword.Tool{{Name: "get"}, {Name: "page_notes"}}},
}

// weights returns the weight of every keyword of a profile.
func weights(p keyword.Profile) map[string]float64 {
	m := map[string]float64{}
	for _, pat := range p.Patterns {
		m[pat.Text] = pat.Weight
	}
	return m
}

func TestDerive(t *testing.T) {
	profiles := keyword.Derive(servers)
	for i, c := range []struct{ has, hasNot string }{
		{"duckduckgo_search web_search duckduckgo web region look_it_up", "the with for page pages fetch_pages"},
		{"pdf_reader read_pdf pdf reader pdf_files", "files_turned and read"},
		{"weather forecast get_forecast 天气", "city city_天气 the of 预报"},
		{"notes page_notes", "get mcp server mcp_server_notes"},
	} {
		got := weights(profiles[i])
		for _, w := range strings.Fields(c.has) {
			if _, ok := got[strings.ReplaceAll(w, "_", " ")]; !ok {
				t.Errorf("%s: %q is not among %v", servers[i].Name, w, got)
			}
		}
		for _, w := range strings.Fields(c.hasNot) {
			if _, ok := got[strings.ReplaceAll(w, "_", " ")]; ok {
				t.Errorf("%s: %q is among its keywords", servers[i].Name, w)
			}
		}
		for text, w := range got {
			if w <= 0 || w > 1 {
				t.Errorf("%s: %q weighs %v", servers[i].Name, text, w)
			}
		}
	}
	if w := weights(profiles[1]); w["pdf reader"] <= w["pdf files"] {
		t.Errorf("a name weighs no more than a phrase: %v", w)
	}
}

func TestDerivedKeywordsAreFoundAsTheyAreWritten(t *testing.T) {
	a := keyword.New(keyword.Derive(servers))
	for text, want := range map[string]int{
		"I will call webSearch now":         0,
		"use web_search":                    0,
		"the DuckDuckGo-search":             0,
		"let me look it up":                 0,
		"open the pdfs":                     1,
		"several forecasts":                 2,
		"查看天气":                              2,
		"duckduckgo_search__webSearch call": 0,
	} {
		c := a.Counter()
		c.Add(read(a, text))
		if !slices.Contains(c.Touched(), int32(want)) {
			t.Errorf("%q does not tell %s: %v", text, a.Server(want), c.Touched())
		}
	}
}

func TestDeriveIsDeterministic(t *testing.T) {
	want := keyword.Derive(servers)
	for range 5 {
		got := keyword.Derive(servers)
		for i := range want {
			if !slices.EqualFunc(got[i].Patterns, want[i].Patterns, func(x, y keyword.Pattern) bool {
				return x.Text == y.Text && x.Weight == y.Weight && slices.Equal(x.Also, y.Also)
			}) {
				t.Fatalf("%v, then %v", want[i], got[i])
			}
		}
	}
}

func TestWords(t *testing.T) {
	for name, want := range map[string]string{
		"getHTTPResponse": "get http response",
		"web_search-v2":   "web search v2",
		"XMLReader":       "xml reader",
		"天气预报api":         "天气 气预 预报 api",
		"don't":           "dont",
		"":                "",
	} {
		if got := strings.Join(keyword.Words(name), " "); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}
