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
)

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
