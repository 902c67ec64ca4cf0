package config

import (
	"net/url"
	"regexp"
	"strings"
)

var (
	// How widely used services write their tokens.
	secretForm = regexp.MustCompile(`^(?:gh[pousr]_|github_pat_|glpat-|sk-|sk_live_|xox[abposr]-|AKIA|ASIA|AIza|ya29\.|npm_|pypi-|hf_|figd_|ntn_|secret_|lin_api_|dop_v1_|SG\.|eyJ)[A-Za-z0-9_.\-]{12,}$`)
	// Flags that are followed by a secret.
	secretFlag = regexp.MustCompile(`(?i)^--?[a-z0-9_-]*(?:api[-_]?key|access[-_]?key|secret|token|passw(?:or)?d|pat|auth|credentials?)$`)
	// Variables, as an argument names them, that hold a secret.
	secretVariable = regexp.MustCompile(`(?i)\$\{(?:env:)?(?:[a-z0-9_]*_)?(?:(?:api|access|auth|private|secret)?key|[a-z0-9]*token|[a-z0-9]*secret|passw(?:or)?d|pat|credentials?)(?:_[a-z0-9_]*)?[}:]`)
	// Variables that hold no secret, and whose value is in much of what is said.
	plainVariable = regexp.MustCompile(`^(?:HOME|USER|LOGNAME|PWD|OLDPWD|PATH|SHELL|TERM|TMPDIR|HOSTNAME|LANG|TZ|LC_[A-Z]+|XDG_[A-Z_]+)$`)
)

// Hidden returns what must not be seen of the server's configuration, and what
// is to be shown instead: values of variables, whose names are shown; values of
// headers and of an env file; and what looks like a secret in env, arguments and
// URL. Whatever is said of the server, and what it says itself, may hold them.
func (s *Server) Hidden() map[string]string {
	out := map[string]string{}
	hide := func(v string) {
		if v = strings.TrimSpace(v); v != "" {
			out[v] = Hidden
		}
	}
	for _, v := range s.fromFile {
		hide(v)
	}
	for _, v := range s.Headers {
		hide(v)
		_, token, _ := strings.Cut(v, " ") // "Bearer …"
		hide(token)
	}
	for name, v := range s.Env {
		if secretForm.MatchString(v) || secretVariable.MatchString("${"+name+"}") {
			hide(v)
		}
	}
	for i, arg := range s.Args {
		before := ""
		if i > 0 {
			before = s.Args[i-1]
		}
		if looksSecret(before, arg) {
			flag, v, ok := strings.Cut(arg, "=")
			if !ok || !strings.HasPrefix(flag, "-") {
				v = arg
			}
			hide(v)
		}
	}
	if u, err := url.Parse(s.URL); err == nil {
		if p, ok := u.User.Password(); ok {
			hide(p)
		}
		hide(u.RawQuery)
		for _, values := range u.Query() {
			for _, v := range values {
				hide(v)
			}
		}
	}
	for name, v := range s.variables {
		if v != "" && !plainVariable.MatchString(name) {
			out[v] = "${" + name + "}"
		}
	}
	return out
}

// looksSecret reports whether an argument is likely a secret: by how it looks,
// or by the flag that it has or follows.
func looksSecret(before, arg string) bool {
	flag, value, ok := strings.Cut(arg, "=")
	if ok && secretFlag.MatchString(flag) && value != "" {
		return true
	}
	if !ok {
		value = arg
	}
	if secretForm.MatchString(value) {
		return true
	}
	if u, err := url.Parse(value); err == nil && u.User != nil && u.Host != "" {
		if p, ok := u.User.Password(); ok && p != "" {
			return true
		}
	}
	return secretFlag.MatchString(before) && arg != "" && !strings.HasPrefix(arg, "-") && !strings.HasPrefix(arg, "/")
}
