package encoder

import (
	"fmt"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// words is the vocabulary of the model: WordPiece, without case or accents.
type words struct {
	ids                 map[string]int32
	unknown, begin, end int32
}

// longestWord is the number of characters beyond which a word is unknown.
const longestWord = 100

func readWords(name string) (*words, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	w := &words{ids: map[string]int32{}}
	for i, line := range strings.Split(strings.TrimSuffix(string(b), "\n"), "\n") {
		w.ids[strings.TrimSuffix(line, "\r")] = int32(i)
	}
	if len(w.ids) != vocab {
		return nil, fmt.Errorf("%s has %d tokens, not %d; the model must be all-MiniLM-L6-v2", name, len(w.ids), vocab)
	}
	for token, id := range map[string]*int32{"[UNK]": &w.unknown, "[CLS]": &w.begin, "[SEP]": &w.end} {
		var ok bool
		if *id, ok = w.ids[token]; !ok {
			return nil, fmt.Errorf("%s has no token %s", name, token)
		}
	}
	return w, nil
}

// framed puts the marks of beginning and end around tokens.
func (w *words) framed(ids []int32) []int32 {
	return append(append(append(make([]int32, 0, len(ids)+2), w.begin), ids...), w.end)
}

// tokens returns the tokens of a text.
func (w *words) tokens(text string) []int32 {
	var ids []int32
	for _, word := range split(text) {
		ids = w.pieces(word, ids)
	}
	return ids
}

// pieces appends the tokens of a word: from its beginning, the longest that there
// are.
func (w *words) pieces(word string, ids []int32) []int32 {
	if utf8.RuneCountInString(word) > longestWord {
		return append(ids, w.unknown)
	}
	had := len(ids)
	var piece []byte
	for rest := word; rest != ""; {
		end := len(rest)
		for ; end > 0; end-- {
			piece = piece[:0]
			if len(rest) < len(word) {
				piece = append(piece, "##"...)
			}
			if id, ok := w.ids[string(append(piece, rest[:end]...))]; ok {
				ids = append(ids, id)
				break
			}
		}
		if end == 0 {
			return append(ids[:had], w.unknown)
		}
		rest = rest[end:]
	}
	return ids
}

// split cleans a text and returns its words. A mark, and a Chinese character, is
// a word of its own.
func split(text string) []string {
	var out []string
	var word []byte
	end := func() {
		if len(word) > 0 {
			out = append(out, string(word))
		}
		word = word[:0]
	}
	for _, r := range norm.NFD.String(clean(text)) {
		switch {
		case unicode.Is(unicode.Mn, r): // an accent
		case unicode.IsSpace(r):
			end()
		case punctuation(r) || chinese(r):
			end()
			out = append(out, string(unicode.ToLower(r)))
		default:
			word = utf8.AppendRune(word, unicode.ToLower(r))
		}
	}
	end()
	return out
}

// clean takes away what cannot be seen.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t' || r == '\n' || r == '\r':
			return ' '
		case r == 0 || r == utf8.RuneError || unicode.Is(unicode.C, r):
			return -1
		}
		return r
	}, text)
}

func punctuation(r rune) bool {
	if r < utf8.RuneSelf {
		return r >= '!' && r <= '/' || r >= ':' && r <= '@' || r >= '[' && r <= '`' || r >= '{' && r <= '~'
	}
	return unicode.Is(unicode.P, r)
}

// chinese reports whether the model takes a character for a Chinese one.
func chinese(r rune) bool {
	return r >= 0x4E00 && r <= 0x9FFF || r >= 0x3400 && r <= 0x4DBF || r >= 0x20000 && r <= 0x2A6DF || r >= 0x2A700 && r <= 0x2B73F ||
		r >= 0x2B740 && r <= 0x2B81F || r >= 0x2B920 && r <= 0x2CEAF || r >= 0xF900 && r <= 0xFAFF || r >= 0x2F800 && r <= 0x2FA1F
}
