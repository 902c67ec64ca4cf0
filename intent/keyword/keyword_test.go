package keyword_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/coregx/ahocorasick"

	"github.com/specbox/specbox/intent/keyword"
)

// profile makes a profile of texts.
func profile(server string, texts ...string) keyword.Profile {
	p := keyword.Profile{Server: server}
	for _, t := range texts {
		p.Patterns = append(p.Patterns, keyword.Pattern{Text: t, Weight: 1})
	}
	return p
}

// read returns what a stream finds in a text that is written in pieces.
func read(a *keyword.Automaton, pieces ...string) []keyword.Hit {
	s := a.Stream()
	var hits []keyword.Hit
	for _, p := range pieces {
		hits = s.Write([]byte(p), hits)
	}
	return s.End(hits)
}

// texts names the hits.
func texts(a *keyword.Automaton, hits []keyword.Hit) []string {
	var out []string
	for _, h := range hits {
		out = append(out, fmt.Sprintf("%s@%d", a.Word(int(h.Word)), h.End))
	}
	return out
}

func TestFindsWholeWordsWhateverTheirCase(t *testing.T) {
	a := keyword.New([]keyword.Profile{profile("s", "web search", "search", "browser", "node.js", "café", "straße", "搜索", "Ελλάς", "don't")})
	for _, c := range []struct{ text, want string }{
		{"browser", "browser@7"},
		{"The BROWSER, please", "browser@11"},
		{"browsers webbrowser browse", ""},
		{"web search", "web search@10 search@10"},
		{"web-search web_search web - _\n search", "web search@10 search@10 web search@21 search@21 web search@37 search@37"},
		{"web. search web/search web", "search@11 search@22"},
		{"webSearch", ""},
		{"a web web search", "web search@16 search@16"},
		{"node.js, node js, node. js, xnode.js, node.jsx", "node.js@7"},
		{"(browser)", "browser@8"},
		{"CAFÉ cafe", "café@5"},
		{"STRASSE straße STRAẞE", "straße@15 straße@24"},
		{"请搜索一下", "搜索@9"},
		{"请搜 索", "搜索@10"},
		{"use搜索now", "搜索@9"},
		{"ΕΛΛΆΣ ελλάς", "Ελλάς@10 Ελλάς@21"},
		{"Don’t DONT don't", "don't@7 don't@12 don't@18"},
		{"browser\xffbrowser\xe6", "browser@7 browser@15"},
		{"", ""},
	} {
		if got := strings.Join(texts(a, read(a, c.text)), " "); got != c.want {
			t.Errorf("%q: found %s, want %s", c.text, got, c.want)
		}
	}
}

func TestNegation(t *testing.T) {
	a := keyword.New([]keyword.Profile{profile("s", "browser", "weather", "web search")})
	for _, c := range []struct {
		text    string
		negated string // the keywords that are
	}{
		{"Use the browser.", ""},
		{"There is no need for the browser.", "browser"},
		{"I can do it without using the browser", "browser"},
		{"without the `browser`", "browser"},
		{"instead of the browser, the weather", "browser"},
		{"instead of the browser I ask for the weather", "browser"},
		{"rather than a web search, open the browser", "web search"},
		{"Don't use the browser", "browser"},
		{"don’t use the browser", "browser"},
		{"You do not need to use the web search or the browser.", "web search browser"},
		{"There is no browser here", "browser"},
		{"No. The browser it is", ""},
		{"No need for more text\nThe browser", ""},
		{"avoid the browser; get the weather", "browser"},
		{"Not only the browser but also the weather", ""},
		{"Why not use the browser?", ""},
		{"Do not hesitate to use the browser", ""},
		{"It cannot be done without the browser, I cannot use it without a web search", "browser"},
		{"You cannot call it without the browser", ""},
		{"without the browser but with the weather", "browser"},
		{"I don't know the weather", ""},
		{"I could not find the weather", ""},
		{"The weather, not the browser", "browser"},
		{"not with the browser but with a web search", "browser"},
		{"without it one two three four five browser", ""},
		{"The browser is not needed", ""}, // a negation that comes after is out of sight
		{"无需 browser", "browser"},
	} {
		want := strings.Join(strings.Fields(c.negated), "_")
		for _, split := range []bool{false, true} {
			pieces := []string{c.text}
			if split {
				pieces = strings.Split(c.text, "")
			}
			var got []string
			for _, h := range read(a, pieces...) {
				if h.Negated {
					got = append(got, strings.ReplaceAll(a.Word(int(h.Word)), " ", "_"))
				}
			}
			if got := strings.Join(got, "_"); got != want {
				t.Errorf("%q: negates %q, want %q", c.text, got, want)
			}
		}
	}
}

func TestCounterCountsEachKeywordOnce(t *testing.T) {
	a := keyword.New([]keyword.Profile{
		{Server: "web", Patterns: []keyword.Pattern{{Text: "browser", Also: []string{"browsers"}, Weight: 0.5}, {Text: "page", Weight: 0.25}}},
		{Server: "sky", Patterns: []keyword.Pattern{{Text: "weather", Weight: 1}, {Text: "page", Weight: 0.125}, {Text: "Weather", Weight: 1}, {Text: "rain", Weight: 1}, {Text: "...", Weight: 1}}},
	})
	c := a.Counter()
	for range 2 {
		c.Add(read(a, "browser browsers page, no weather. Page"))
		if got := c.Touched(); !slices.Equal(got, []int32{0, 1}) {
			t.Errorf("touched %v, want both", got)
		}
		if d, w, b, s := c.Distinct(0), c.Weight(0), c.Best(0), c.Share(0); d != 2 || w != 0.75 || b != 0.5 || s != 1 {
			t.Errorf("web: %d keywords, weight %v, best %v, share %v; want 2, 0.75, 0.5, 1", d, w, b, s)
		}
		if d, w, s := c.Distinct(1), c.Weight(1), c.Share(1); d != 1 || w != 0.125 || s != 1.0/3 {
			t.Errorf("sky: %d keywords, weight %v, share %v; want 1, 0.125, 1/3", d, w, s)
		}
		c.Reset()
		if len(c.Touched()) != 0 || c.Distinct(0) != 0 {
			t.Error("a counter remembers what it was to forget")
		}
	}
	if got := a.Keywords(0, read(a, "browsers, page browser, no page")); !slices.Equal(got, []string{"browsers", "page"}) {
		t.Errorf("keywords of web: %q", got)
	}
}

// find is the oracle: a library that searches the whole text, which was
// normalised before, and the rule about boundaries.
func find(patterns []string, text string) []string {
	norm, at := normal(text)
	var forms []string
	for _, p := range patterns {
		n, _ := normal(p)
		forms = append(forms, strings.Trim(n, " \x00"))
	}
	m, err := ahocorasick.NewBuilder().AddStrings(forms).Build()
	if err != nil {
		panic(err)
	}
	edge := func(i int) bool { return i < 0 || i >= len(norm) || norm[i] == ' ' || norm[i] == 0 }
	var out []string
	for _, h := range m.FindAllOverlapping([]byte(norm)) {
		if edge(h.Start-1) && edge(h.End) {
			out = append(out, fmt.Sprintf("%s@%d", patterns[h.PatternID], at[h.End]))
		}
	}
	slices.Sort(out)
	return out
}

// normal folds a text: one space for each run of what joins, and for each run
// with anything else one zero. It returns where each byte of that began.
func normal(text string) (string, []int) {
	var b []byte
	var at []int
	put := func(c byte, i int) { b, at = append(b, c), append(at, i) }
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		joins := unicode.IsSpace(r) || r == '-' || r == '_'
		switch {
		case r == utf8.RuneError && size == 1, !joins && r != '\'' && !unicode.In(r, unicode.L, unicode.N):
			if n := len(b); n > 0 && b[n-1] == ' ' {
				b[n-1] = 0
			} else if n == 0 || b[n-1] != 0 {
				put(0, i)
			}
		case joins:
			if n := len(b); n == 0 || b[n-1] != 0 && b[n-1] != ' ' {
				put(' ', i)
			}
		case r == '\'':
		default:
			for _, c := range []byte(strings.ToLower(string(r))) {
				put(c, i)
			}
		}
		i += size
	}
	return string(b), append(at, len(text))
}

// pieces splits a text at random.
func pieces(r *rand.Rand, text string) []string {
	var out []string
	for len(text) > 0 {
		n := 1 + r.IntN(min(len(text), 7))
		out, text = append(out, text[:n]), text[n:]
	}
	return out
}

func TestAgreesWithALibrary(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	letters := []string{"a", "b", "A", "é", "É", "c"}
	gaps := []string{" ", "-", "_", "  ", "\n", ",", ". ", " - ", "\xff", "—", "'"}
	word := func(n int) string {
		var b strings.Builder
		for range 1 + r.IntN(n) {
			b.WriteString(letters[r.IntN(len(letters))])
		}
		return b.String()
	}
	total := 0
	for range 300 {
		var patterns []string
		seen := map[string]bool{}
		for range 1 + r.IntN(12) {
			var words []string
			for range 1 + r.IntN(3) {
				words = append(words, word(3))
			}
			p := strings.Join(words, " ")
			if n, _ := normal(p); !seen[n] {
				seen[n] = true
				patterns = append(patterns, p)
			}
		}
		var b strings.Builder
		for range 60 {
			b.WriteString(word(3))
			b.WriteString(gaps[r.IntN(len(gaps))])
		}
		// The library knows neither of dashes that join nor of marks that bind.
		text := strings.ReplaceAll(b.String(), "—", "|")
		a := keyword.New([]keyword.Profile{profile("s", patterns...)})
		got := texts(a, read(a, pieces(r, text)...))
		slices.Sort(got)
		want := find(patterns, text)
		total += len(want)
		if !slices.Equal(got, want) {
			t.Fatalf("patterns %q\ntext %q\ngot  %q\nwant %q", patterns, text, got, want)
		}
	}
	if total < 1000 {
		t.Errorf("only %d keywords were there to find", total)
	}
}

func FuzzSplits(f *testing.F) {
	a := keyword.New([]keyword.Profile{profile("s", "web search", "search", "node.js", "café", "搜索", "a/b")})
	f.Add("Use the Web-Search, not node.js; CAFÉ 搜索 a/b", uint64(1))
	f.Add("\xe6\x90 web\xffsearch \xf0\x9f\x98 don't use search", uint64(2))
	f.Fuzz(func(t *testing.T, text string, seed uint64) {
		want := read(a, text)
		got := read(a, pieces(rand.New(rand.NewPCG(seed, 0)), text)...)
		if !slices.Equal(got, want) {
			t.Fatalf("in pieces %v, whole %v", got, want)
		}
		for _, h := range want {
			if h.End <= 0 || h.End > int64(len(text)) {
				t.Fatalf("a hit ends at %d of %d", h.End, len(text))
			}
		}
	})
}
