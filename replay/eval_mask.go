package replay

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/specbox/specbox/intent"
)

// masked stands where the name of a server stood. It says nothing of a topic.
const masked = "it"

// A mask hides the literal names of servers.
type mask struct{ names *regexp.Regexp }

// newMask returns a mask of the names of servers, in all the ways in which
// words are joined: with -, _, blanks, or nothing, in any case.
func newMask(servers []intent.Server) *mask {
	var forms []string
	for _, s := range servers {
		if words := nameWords(s.Name); len(words) > 0 {
			for i := range words {
				words[i] = regexp.QuoteMeta(words[i])
			}
			forms = append(forms, strings.Join(words, `[-_./\s]*`))
		}
	}
	if len(forms) == 0 {
		return &mask{}
	}
	slices.SortFunc(forms, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) }) // the first that matches wins
	return &mask{regexp.MustCompile(`(?i)(^|[^\pL\pN])(?:` + strings.Join(forms, "|") + `)($|[^\pL\pN])`)}
}

// nameWords splits a name at signs and where small letters are followed by a
// capital.
func nameWords(name string) []string {
	var words []string
	var word []rune
	end := func() {
		if len(word) > 0 {
			words = append(words, string(word))
		}
		word = word[:0]
	}
	for _, r := range name {
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) {
			end()
			continue
		}
		if len(word) > 0 && unicode.IsUpper(r) && unicode.IsLower(word[len(word)-1]) {
			end()
		}
		word = append(word, r)
	}
	end()
	return words
}

// hide returns text without the names.
func (m *mask) hide(text string) string {
	if m.names == nil {
		return text
	}
	for {
		next := m.names.ReplaceAllString(text, "${1}"+masked+"${2}")
		if next == text {
			return text
		}
		text = next // of two names beside each other the sign between them went to the first
	}
}
