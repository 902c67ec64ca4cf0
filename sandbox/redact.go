package sandbox

import (
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"
)

// secretNames are parts of the names of variables that hold secrets.
var secretNames = []string{"KEY", "TOKEN", "SECRET", "PASS", "PWD", "CRED", "AUTH", "COOKIE", "DSN", "DATABASE_URL"}

// hidden stands for a value that is not shown.
const hidden = "***"

// redactor returns what replaces the secrets of spec, longest first, so that
// none hides a part of another alone.
func (s *Spec) redactor() *strings.Replacer {
	const short = 6 // shorter values would blot out ordinary words
	shown := map[string]string{}
	hide := func(v, instead string) {
		for line := range strings.Lines(v) { // output is looked at line by line
			if line = strings.TrimSpace(line); len(line) >= short {
				shown[line] = instead
			}
		}
		if len(v) >= short {
			shown[v] = instead
		}
	}
	for _, v := range s.Headers {
		hide(v, hidden)
		if _, token, ok := strings.Cut(v, " "); ok { // "Bearer …"
			hide(token, hidden)
		}
	}
	for name, v := range s.Env {
		upper := strings.ToUpper(name)
		if upper == "PAT" || strings.HasSuffix(upper, "_PAT") ||
			slices.ContainsFunc(secretNames, func(s string) bool { return strings.Contains(upper, s) }) {
			hide(v, hidden)
		}
	}
	for v, instead := range s.Hide {
		hide(v, instead)
	}
	values := make([]string, 0, len(shown))
	for v := range shown {
		values = append(values, v)
	}
	slices.SortFunc(values, func(a, b string) int { return cmp.Or(len(b)-len(a), cmp.Compare(a, b)) })
	var pairs []string
	for _, v := range values {
		pairs = append(pairs, v, shown[v])
	}
	return strings.NewReplacer(pairs...)
}

// maxReason is how long the text of an error may be, in bytes: servers write
// some of it.
const maxReason = 2 << 10

// Redact returns text without the secrets of the server, and cut if it is long.
func (s *Spec) Redact(text string) string {
	text = s.redactor().Replace(text)
	if len(text) <= maxReason {
		return text
	}
	end := maxReason
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "…"
}

// RedactError returns err with its text as [Spec.Redact] has it. It wraps err.
func (s *Spec) RedactError(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if safe := s.Redact(text); safe != text {
		return &redacted{err, safe}
	}
	return err
}

type redacted struct {
	error
	text string
}

func (r *redacted) Error() string { return r.text }
func (r *redacted) Unwrap() error { return r.error }
