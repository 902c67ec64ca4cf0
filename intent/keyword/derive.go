package keyword

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A Server is what the keywords of a server are derived from.
type Server struct {
	Name        string
	Description string
	Tools       []Tool
	Keywords    []string // of the operator: they are added; "-word" takes one away
}

// A Tool is a tool of a server.
type Tool struct {
	Name        string
	Description string
	Params      []Param
}

// A Param is a parameter of a tool.
type Param struct{ Name, Description string }

// Where a word of a server stands says how much it says.
const (
	ofServer = 1.0 // the server's name
	ofTool   = 0.8 // a tool's name
	ofText   = 0.5 // a description
	ofParam  = 0.5 // a parameter's name
)

const (
	// leastWeight keeps what says little out of the profiles: of descriptions and
	// parameters only what no other server has comes in.
	leastWeight = 0.5
	// mostWords is how many keywords of a server are derived, besides names.
	mostWords = 32
	// mostShared is the part of all servers beyond which a word tells none.
	mostShared = 0.15
)

// Derive returns the profile of each server: its name and the names of its
// tools, the words of these that few others have, and of descriptions and
// parameters the words and phrases that no other has; at most 32 besides names
// and the operator's. The rarer a word is among the servers the more it weighs.
func Derive(servers []Server) []Profile {
	found := make([]map[string]*term, len(servers))
	df := map[string]int{}
	for i, s := range servers {
		found[i] = terms(s)
		for stem := range found[i] {
			df[stem]++
		}
	}
	// A word of many servers tells none of them; in a small catalogue two are not many.
	shared := max(2, int(mostShared*float64(len(servers))))
	norm := math.Log(1 + float64(len(servers)))
	profiles := make([]Profile, len(servers))
	for i, s := range servers {
		var list []*term
		for stem, t := range found[i] {
			if df[stem] > shared && !t.named {
				continue
			}
			t.weight = t.place * math.Log(1+float64(len(servers))/float64(df[stem])) / norm
			if t.named || t.weight >= leastWeight {
				list = append(list, t)
			}
		}
		slices.SortFunc(list, func(a, b *term) int {
			return cmp.Or(boolCompare(b.named, a.named), cmp.Compare(b.weight*b.often(), a.weight*a.often()), cmp.Compare(a.text, b.text))
		})
		n := 0
		for ; n < len(list) && (list[n].named || n < mostWords); n++ {
		}
		profiles[i] = Profile{s.Name, override(list[:n], s.Keywords)}
	}
	return profiles
}

func boolCompare(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// A term is a word or phrase of a server.
type term struct {
	text   string
	also   []string
	place  float64 // the best of the places where it stands
	times  int
	named  bool // it is the name of the server or of a tool
	weight float64
}

func (t *term) often() float64 { return 1 + math.Log(float64(max(t.times, 1))) }

// pattern returns what a term is looked for as.
func (t *term) pattern() Pattern { return Pattern{Text: t.text, Also: t.also, Weight: t.weight} }

// override adds what the operator wants, and takes away what not.
func override(list []*term, operator []string) []Pattern {
	var out []Pattern
	gone := map[string]bool{}
	for _, k := range operator {
		if word, minus := strings.CutPrefix(k, "-"); minus {
			gone[stems(Words(word))] = true
		} else {
			out = append(out, Pattern{Text: k, Also: plurals(Words(k)), Weight: 1})
		}
	}
	for _, t := range list {
		if !gone[stems(Words(t.text))] {
			out = append(out, t.pattern())
		}
	}
	return out
}

// terms collects the terms of a server by their stems.
func terms(s Server) map[string]*term {
	found := map[string]*term{}
	add := func(words []string, place float64, named bool) *term {
		stem := stems(words)
		t := found[stem]
		if t == nil {
			t = &term{text: strings.Join(words, " ")}
			found[stem] = t
		}
		for _, also := range plurals(words) {
			if !slices.Contains(t.also, also) {
				t.also = append(t.also, also)
			}
		}
		t.place, t.named = max(t.place, place), t.named || named
		t.times++
		return t
	}
	name := func(n string, place float64) {
		words := Words(n)
		if len(words) == 0 {
			return
		}
		if core := slices.DeleteFunc(slices.Clone(words), shell); len(core) > 0 && len(core) < len(words) {
			words = core
		}
		telling := slices.DeleteFunc(slices.Clone(words), stop)
		if (len(telling) > 0 || place == ofServer) && (len(words) > 1 || len([]rune(words[0])) > 1) {
			t := add(words, place, true)
			if joined := strings.Join(words, ""); len(words) > 1 && !slices.Contains(t.also, joined) {
				t.also = append(t.also, joined)
			}
		}
		for _, w := range telling {
			if long(w) {
				add([]string{w}, place, false)
			}
		}
	}
	text := func(text string, place float64) {
		for _, run := range runs(text) {
			for i, w := range run {
				add([]string{w}, place, false)
				if r, _ := utf8.DecodeRuneInString(w); i > 0 && w != run[i-1] && kindOf(r) != character {
					add(run[i-1:i+1:i+1], place, false)
				}
			}
		}
	}
	name(s.Name, ofServer)
	text(s.Description, ofText)
	for _, t := range s.Tools {
		name(t.Name, ofTool)
		text(t.Description, ofText)
		for _, p := range t.Params {
			for _, w := range Words(p.Name) {
				if long(w) && !stop(w) {
					add([]string{w}, ofParam, false)
				}
			}
		}
	}
	// A phrase that stands once may be chance, and so may a pair of characters.
	maps.DeleteFunc(found, func(_ string, t *term) bool {
		r, _ := utf8.DecodeRuneInString(t.text)
		return (strings.Contains(t.text, " ") || kindOf(r) == character) && t.place < ofTool && t.times < 2
	})
	return found
}

// shell reports whether a word of a name only says what kind of thing it names.
func shell(w string) bool { return w == "mcp" || w == "server" || w == "tool" || w == "tools" }

// runs returns the telling words of a text, in runs that nothing interrupts.
func runs(text string) [][]string {
	var all [][]string
	var run []string
	end := func() {
		if len(run) > 0 {
			all = append(all, run)
		}
		run = nil
	}
	for _, chunk := range strings.FieldsFunc(text, func(r rune) bool { k := kindOf(r); return k == breaker || k == closer || k == line }) {
		for _, w := range split(chunk, false) {
			if long(w) && !stop(w) {
				run = append(run, w)
			} else {
				end()
			}
		}
		end()
	}
	return all
}

// Words splits a name into its words, folded: at what is no letter or digit, and
// within camelCase. Of a run of Chinese each pair of characters is a word.
func Words(name string) []string { return split(name, true) }

// split does what [Words] says, and leaves camelCase whole unless camel is set.
func split(text string, camel bool) []string {
	var words []string
	var word []byte
	end := func() {
		if len(word) > 0 {
			words = append(words, string(word))
		}
		word = nil
	}
	runes := []rune(text)
	is := func(i, kind int) bool { return i >= 0 && i < len(runes) && kindOf(runes[i]) == kind }
	for i, r := range runes {
		switch kindOf(r) {
		case letter:
			if camel && i > 0 && unicode.IsUpper(r) && (unicode.IsLower(runes[i-1]) || i+1 < len(runes) && unicode.IsUpper(runes[i-1]) && unicode.IsLower(runes[i+1])) {
				end()
			}
			word = appendFolded(word, r)
		case character:
			end()
			if is(i+1, character) {
				words = append(words, string(appendFolded(appendFolded(nil, r), runes[i+1])))
			} else if !is(i-1, character) {
				words = append(words, string(appendFolded(nil, r)))
			}
		case ignored:
		default:
			end()
		}
	}
	end()
	return words
}

// long reports whether a word is long enough to tell something.
func long(w string) bool {
	digits := true
	n := 0
	for _, r := range w {
		digits = digits && unicode.IsDigit(r)
		n++
		if kindOf(r) == character {
			n++
		}
	}
	return n >= 3 && !digits
}

// stems names words whatever their number.
func stems(words []string) string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = singular(w)
	}
	return strings.Join(out, " ")
}

// singular takes the ending of an English plural away; it need not be a word.
func singular(w string) string {
	switch {
	case w == "news" || w == "series":
	case len(w) > 4 && strings.HasSuffix(w, "ies"):
		return w[:len(w)-3] + "y"
	case len(w) > 4 && (strings.HasSuffix(w, "ches") || strings.HasSuffix(w, "shes") || strings.HasSuffix(w, "xes") || strings.HasSuffix(w, "sses")):
		return w[:len(w)-2]
	case len(w) > 3 && strings.HasSuffix(w, "s") && !strings.HasSuffix(w, "ss") && !strings.HasSuffix(w, "us") && !strings.HasSuffix(w, "is"):
		return w[:len(w)-1]
	}
	return w
}

// plurals returns the other ways to write words: the last of them as one, and as
// many.
func plurals(words []string) []string {
	if len(words) == 0 {
		return nil
	}
	last := words[len(words)-1]
	if len(last) < 3 || last[len(last)-1] >= 0x80 {
		return nil
	}
	for _, ending := range []string{"ing", "ed", "ly", "is", "us", "news", "series"} {
		if strings.HasSuffix(last, ending) {
			return nil
		}
	}
	one := singular(last)
	many := one + "s"
	switch {
	case strings.HasSuffix(one, "y") && !strings.ContainsAny(one[len(one)-2:len(one)-1], "aeiou"):
		many = one[:len(one)-1] + "ies"
	case strings.HasSuffix(one, "ch"), strings.HasSuffix(one, "sh"), strings.HasSuffix(one, "x"), strings.HasSuffix(one, "s"):
		many = one + "es"
	}
	var out []string
	for _, w := range []string{one, many} {
		if w != last && !stop(w) {
			out = append(out, strings.Join(append(slices.Clone(words[:len(words)-1]), w), " "))
		}
	}
	return out
}
