package catalog

import (
	"net/url"
	"strings"
)

// wrapScheme begins the URI under which a second server's resource is shown.
const wrapScheme = "specbox://"

// wrap returns the form that a URI or URI template of a server has where its
// own is another server's already. No two servers' forms are equal.
func wrap(k kind, server, own string) string {
	if k == templateKind {
		return wrapTemplate(server, own)
	}
	return wrapURI(server, own)
}

func wrapURI(server, uri string) string {
	return wrapScheme + escape(server) + "/" + escape(uri)
}

// wrapTemplate keeps the expressions, so that a client can still expand them.
// The second slash, which is in no wrapped URI, tells the two forms apart.
func wrapTemplate(server, text string) string {
	t := parseTemplate(text)
	if t == nil {
		return wrapURI(server, text)
	}
	var b strings.Builder
	b.WriteString(wrapURI(server, "") + "t/")
	for _, p := range t.parts {
		if p.op == 0 {
			b.WriteString(escape(p.text))
		} else {
			b.WriteString(p.text)
		}
	}
	return b.String()
}

// unwrap takes apart what wrapURI made, and nothing else.
func unwrap(s string) (server, uri string, ok bool) {
	rest, ok := strings.CutPrefix(s, wrapScheme)
	if !ok {
		return "", "", false
	}
	server, uri, ok = strings.Cut(rest, "/")
	if !ok || strings.IndexByte(uri, '/') >= 0 {
		return "", "", false
	}
	server, err1 := url.PathUnescape(server)
	uri, err2 := url.PathUnescape(uri)
	return server, uri, err1 == nil && err2 == nil
}

// escape percent-encodes all but the characters that no URI gives a meaning.
func escape(s string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0 {
			b.WriteByte(c)
			continue
		}
		b.Write([]byte{'%', hex[c>>4], hex[c&15]})
	}
	return b.String()
}

const (
	maxParts    = 32      // of a template that is matched; others match only themselves
	maxRoutes   = 500     // templates of one server that are matched
	maxMatchURI = 4 << 10 // bytes of a URI that is matched
)

// A template is a URI template (RFC 6570) as far as it takes to tell which
// server a URI is for: which values its variables have is not looked at.
type template struct {
	parts   []part
	literal int // bytes of literal text: the more, the more special
}

// A part is literal text, or an expression.
type part struct {
	text    string // literal, or the expression with its braces
	op      byte   // 0 for a literal, 's' for an expression without operator
	vars    int
	explode bool
}

// parseTemplate returns nil for what is no template, or one beyond the bounds.
func parseTemplate(s string) *template {
	if len(s) > maxMatchURI {
		return nil
	}
	t := &template{}
	for s != "" {
		open := strings.IndexByte(s, '{')
		if open < 0 {
			open = len(s)
		}
		if lit := s[:open]; lit != "" {
			if strings.IndexByte(lit, '}') >= 0 {
				return nil
			}
			t.parts = append(t.parts, part{text: lit})
			t.literal += len(lit)
		}
		s = s[open:]
		if s == "" {
			break
		}
		end := strings.IndexByte(s, '}')
		if end < 0 {
			return nil
		}
		p, ok := parseExpression(s[:end+1])
		if !ok {
			return nil
		}
		t.parts = append(t.parts, p)
		s = s[end+1:]
	}
	if len(t.parts) > maxParts {
		return nil
	}
	return t
}

func parseExpression(text string) (part, bool) {
	p := part{text: text, op: 's'}
	inner := text[1 : len(text)-1]
	if inner != "" && strings.IndexByte("+#./;?&", inner[0]) >= 0 {
		p.op = inner[0]
		inner = inner[1:]
	}
	if inner == "" || strings.IndexByte(inner, '{') >= 0 {
		return p, false
	}
	p.vars = strings.Count(inner, ",") + 1
	p.explode = strings.IndexByte(inner, '*') >= 0
	return p, true
}

// reach returns for each i the end of the longest expansion of an expression
// that begins at uri[i]. Every shorter one is an expansion too. Clients do not
// always encode as they should, so more is taken than the RFC lets them write.
func (p part) reach(uri string) []int {
	stop, first, segments := "/?#", byte(0), 0
	switch p.op {
	case '+':
		stop = ""
	case '#':
		stop, first = "", '#'
	case '.', ';':
		first = p.op
	case '/':
		stop, first = "?#", '/'
		if !p.explode {
			segments = p.vars
		}
	case '?', '&':
		stop, first = "#", p.op
	}
	out := make([]int, len(uri)+1)
	out[len(uri)] = len(uri)
	run := len(uri)   // end of the run of allowed characters that begins at i+1
	var slashes []int // after i, the last first
	for i := len(uri) - 1; i >= 0; i-- {
		if first != 0 {
			out[i] = i // all its variables are undefined
			if uri[i] == first {
				out[i] = run
				if n := len(slashes) - segments; segments > 0 && n >= 0 {
					out[i] = min(run, slashes[n])
				}
			}
		}
		if strings.IndexByte(stop, uri[i]) >= 0 {
			run = i
		}
		if first == 0 {
			out[i] = run
		}
		if uri[i] == '/' {
			slashes = append(slashes, i)
		}
	}
	return out
}

// match reports whether the template can expand to uri, and what each of its
// expressions then stands for. Its cost is the number of parts times the length.
func (t *template) match(uri string) ([]string, bool) {
	if len(uri) > maxMatchURI || len(t.parts) == 0 {
		return nil, false
	}
	if first := t.parts[0]; first.op == 0 && !strings.HasPrefix(uri, first.text) {
		return nil, false
	}
	if last := t.parts[len(t.parts)-1]; last.op == 0 && !strings.HasSuffix(uri, last.text) {
		return nil, false
	}
	// from[p][i]: where part p began if it can end at i, plus one; 0 if it cannot.
	from := make([][]int32, len(t.parts))
	at := make([]bool, len(uri)+1) // where the part may begin
	at[0] = true
	for n, p := range t.parts {
		from[n] = make([]int32, len(uri)+1)
		next := make([]bool, len(uri)+1)
		reached, start := -1, 0
		var reach []int
		if p.op != 0 {
			reach = p.reach(uri)
		}
		for i := range at {
			if at[i] && p.op == 0 {
				if end := i + len(p.text); strings.HasPrefix(uri[i:], p.text) {
					from[n][end], next[end] = int32(i)+1, true
				}
				continue
			}
			if at[i] {
				if i > reached || reach[i] > reached {
					reached, start = reach[i], i
				}
			}
			if p.op != 0 && i <= reached {
				from[n][i], next[i] = int32(start)+1, true
			}
		}
		at = next
	}
	if !at[len(uri)] {
		return nil, false
	}
	var captures []string
	end := len(uri)
	for n := len(t.parts) - 1; n >= 0; n-- {
		begin := int(from[n][end]) - 1
		if t.parts[n].op != 0 {
			captures = append(captures, uri[begin:end])
		}
		end = begin
	}
	for i, j := 0, len(captures)-1; i < j; i, j = i+1, j-1 {
		captures[i], captures[j] = captures[j], captures[i]
	}
	return captures, true
}

// fill puts captures in the place of the expressions. It reports whether there
// are as many of them.
func (t *template) fill(captures []string) (string, bool) {
	var b strings.Builder
	for _, p := range t.parts {
		if p.op == 0 {
			b.WriteString(p.text)
			continue
		}
		if len(captures) == 0 {
			return "", false
		}
		b.WriteString(captures[0])
		captures = captures[1:]
	}
	return b.String(), len(captures) == 0
}
