package config

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// houseFields are the keys that concern the whole runtime.
func (r *reader) houseFields() map[string]field {
	c := r.config
	return map[string]field{
		"listen":  func(m member) { r.address(m, &c.Listen, &r.listenLine) },
		"metrics": func(m member) { r.address(m, &c.Metrics, &r.metricsLine) },
		"hosts": func(m member) {
			r.words(m, &c.Hosts, hostName, "a host name without a scheme, such as mcp.example.com")
		},
		"origins":     func(m member) { r.words(m, &c.Origins, originName, "an origin, such as https://app.example.com") },
		"tenants":     r.tenants,
		"llm":         r.llm,
		"speculation": r.speculation,
		"limits": func(m member) {
			if !r.is(m, "", object) {
				return
			}
			r.fields(m.value, "", "limits", map[string]field{
				"request":   func(m member) { r.size(m, "", &c.Limits.Request) },
				"message":   func(m member) { r.size(m, "", &c.Limits.Message) },
				"sandboxes": func(m member) { r.count(m, "", 1, &c.Limits.Sandboxes) },
				"starts":    func(m member) { r.count(m, "", 1, &c.Limits.Starts) },
				"session":   func(m member) { r.duration(m, "", &c.Limits.Session) },
			}, nil)
		},
	}
}

// address reads HOST:PORT.
func (r *reader) address(m member, to *string, line *int) {
	if !r.is(m, "", text, number) {
		return
	}
	addr := strings.TrimSpace(m.value.text)
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		suggestion := fmt.Sprintf("write HOST:PORT, such as %s", net.JoinHostPort("127.0.0.1", "8484"))
		if n, e := strconv.Atoi(addr); e == nil {
			suggestion = fmt.Sprintf(`write "127.0.0.1:%d"`, n)
		} else if addr != "" && !strings.ContainsAny(addr, "/ ") && !strings.HasSuffix(addr, ":") {
			suggestion = fmt.Sprintf("write %q", net.JoinHostPort(strings.Trim(addr, "[]"), "8484"))
		}
		r.fault(Error, m.value.line, "", fmt.Sprintf("%q is %q, which has no port", m.key, addr), suggestion)
		return
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		r.fault(Error, m.value.line, "", fmt.Sprintf("%q is %q, whose port is no number from 0 to 65535", m.key, addr), "write "+net.JoinHostPort(host, "8484"))
		return
	}
	*to, *line = addr, m.value.line
}

var (
	hostName   = regexp.MustCompile(`^[A-Za-z0-9._-]+(:[0-9]+)?$`)
	originName = regexp.MustCompile(`^[a-z][a-z0-9+.-]*://[A-Za-z0-9.:_\[\]-]+$`)
)

// words reads a list of texts of one form, or a single one.
func (r *reader) words(m member, to *[]string, form *regexp.Regexp, what string) {
	if !r.is(m, "", list, text) {
		return
	}
	items := m.value.items
	if m.value.kind == text {
		items = []*node{m.value}
	}
	for _, n := range items {
		if !form.MatchString(n.text) {
			r.fault(Error, n.line, "", fmt.Sprintf("%q has %q", m.key, n.text), "write "+what)
			continue
		}
		*to = append(*to, n.text)
	}
}

// loopback reports whether an address can be reached from this machine alone.
func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

func (r *reader) checkListen() {
	c := r.config
	if !loopback(c.Listen) && len(c.Tenants) == 0 {
		r.fault(Error, r.listenLine, "", fmt.Sprintf("listen is %s, where others can reach it, and there are no tenants: it refuses to start without tokens", c.Listen),
			`listen on 127.0.0.1, or add tenants: [{name: NAME, tokens: ["sha256:HEX"]}] with the digest of a token of yours: `+hashHint)
	}
	if c.Metrics != "" && !loopback(c.Metrics) {
		r.fault(Note, r.metricsLine, "", fmt.Sprintf("metrics are served to everybody who reaches %s, without a token", c.Metrics), "")
	}
	if c.Metrics != "" && c.Metrics == c.Listen {
		r.fault(Error, r.metricsLine, "", "metrics has the address of listen", "give it another port, or leave it out")
	}
}

const hashHint = `printf %s "$TOKEN" | sha256sum`

var (
	tokenHash  = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	tenantName = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,39}$`) // it names a folder too
)

// tenants reads a list of tenants, or an object of them by name.
func (r *reader) tenants(m member) {
	if !r.is(m, "", list, object) {
		return
	}
	for _, n := range m.value.items {
		if n.kind != object {
			r.fault(Error, n.line, "", "a tenant must be an object, not "+n.kind.String(), `write {name: NAME, tokens: ["sha256:HEX"]}`)
			continue
		}
		r.tenant(n, "")
	}
	for _, m := range m.value.members {
		if r.is(m, "", object) {
			r.tenant(m.value, m.key)
		}
	}
}

// A tenantPlace keeps the lines of what is checked when all is read.
type tenantPlace struct {
	line    int
	servers []member
}

func (r *reader) tenant(n *node, name string) {
	t := Tenant{Name: name}
	p := tenantPlace{line: n.line}
	r.fields(n, "", "a tenant", map[string]field{
		"name": func(m member) {
			if r.is(m, "", text, number) {
				t.Name = m.value.text
			}
		},
		"tokens":       func(m member) { r.tokens(m, &t) },
		"token_hashes": func(m member) { r.tokens(m, &t) },
		"servers": func(m member) {
			if !r.is(m, "", list) {
				return
			}
			t.Servers = []string{}
			for _, n := range m.value.items {
				p.servers = append(p.servers, member{n.text, n.line, n})
				t.Servers = append(t.Servers, n.text)
			}
		},
		"sandboxes": func(m member) { r.count(m, "", 1, &t.Sandboxes) },
		"memory":    func(m member) { r.size(m, "", &t.Memory) },
	}, []string{"description"})
	switch {
	case t.Name == "":
		r.fault(Error, n.line, "", "a tenant has no name", "add name: NAME")
	case !tenantName.MatchString(t.Name):
		r.fault(Error, n.line, "", fmt.Sprintf("tenant %q: a name has 1 to 40 of A-Z a-z 0-9 _ . - and begins with no dot", t.Name), "give it another name")
	case slices.ContainsFunc(r.config.Tenants, func(o Tenant) bool { return o.Name == t.Name }):
		r.fault(Error, n.line, "", fmt.Sprintf("there are two tenants named %s", t.Name), "give one of them another name")
	case len(t.TokenHashes) == 0 && n.find("tokens") == nil && n.find("token_hashes") == nil && n.find("tokenHashes") == nil:
		r.fault(Error, n.line, "", fmt.Sprintf("tenant %s has no token, so that nobody can use it", t.Name), `add tokens: ["sha256:HEX"]: `+hashHint)
	}
	r.config.Tenants = append(r.config.Tenants, t)
	r.tenantPlaces = append(r.tenantPlaces, p)
}

// tokens reads the digests of bearer tokens. A plain token is never repeated.
func (r *reader) tokens(m member, t *Tenant) {
	if !r.is(m, "", list, text) {
		return
	}
	items := m.value.items
	if m.value.kind == text {
		items = []*node{m.value}
	}
	for i, n := range items {
		where := fmt.Sprintf("tenant %s, tokens[%d]", t.Name, i)
		hash := strings.ToLower(strings.TrimSpace(r.expand(n.text, n.line, "", where).text))
		if n.kind == text && len(hash) == 64 && !strings.Contains(hash, ":") {
			hash = "sha256:" + hash
		}
		if n.kind != text || !tokenHash.MatchString(hash) {
			r.fault(Error, n.line, "", where+` is not "sha256:" and 64 hex digits: tokens are kept as digests, so that this file opens nothing`,
				"write sha256: and what this prints: "+hashHint)
			continue
		}
		if slices.Contains(t.TokenHashes, hash) {
			r.fault(Warning, n.line, "", where+" stands there twice", "take one of them out")
			continue
		}
		t.TokenHashes = append(t.TokenHashes, hash)
		r.tokenPlaces = append(r.tokenPlaces, tokenPlace{hash, len(r.config.Tenants), n.line})
	}
}

// A tokenPlace is where a digest stands.
type tokenPlace struct {
	hash   string
	tenant int // index
	line   int
}

// checkTenants checks what needs all tenants and servers.
func (r *reader) checkTenants() {
	owner := map[string]int{} // digest -> index of tenant
	for _, p := range r.tokenPlaces {
		if first, ok := owner[p.hash]; ok && first != p.tenant {
			r.fault(Error, p.line, "", fmt.Sprintf("tenants %s and %s have an equal token, so that nobody can tell them apart",
				r.config.Tenants[first].Name, r.config.Tenants[p.tenant].Name), "give each its own token")
			continue
		}
		owner[p.hash] = p.tenant
	}
	var names []string
	for _, s := range r.config.Servers {
		names = append(names, s.Name)
	}
	for i, p := range r.tenantPlaces {
		t := &r.config.Tenants[i]
		for j, m := range p.servers {
			if name := r.named(m.key); name != "" {
				t.Servers[j] = name
				continue
			}
			r.fault(Error, m.line, "", fmt.Sprintf("tenant %s may use server %q, which is not there", t.Name, m.key), didYouMean(m.key, names))
		}
		if t.Sandboxes > r.config.Limits.Sandboxes {
			r.fault(Warning, p.line, "", fmt.Sprintf("tenant %s may have %d sandboxes, but all together are limited to %d",
				t.Name, t.Sandboxes, r.config.Limits.Sandboxes), "raise limits: {sandboxes: ...}")
		}
		if t.Servers != nil && len(t.Servers) == 0 {
			r.fault(Warning, p.line, "", fmt.Sprintf("tenant %s has an empty list of servers, which means all", t.Name), "name some, or leave the key out")
		}
	}
}

// named returns the name of the server that is called so, or "".
func (r *reader) named(label string) string {
	for _, s := range r.config.Servers {
		if s.Name == label || s.Label == label {
			return s.Name
		}
	}
	return ""
}

// count reads a whole number of at least least.
func (r *reader) count(m member, server string, least int, to *int) {
	const most = 1 << 22 // what a kernel knows of processes
	n, err := strconv.Atoi(m.value.text)
	if m.value.kind != number || err != nil || n < least || n > most {
		r.fault(Error, m.value.line, server, fmt.Sprintf("%q must be a whole number from %d to %d", m.key, least, most), "")
		return
	}
	*to = n
}

var sizeForm = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)$`)

// size reads bytes: 1048576, 512MiB, 1.5g. K, M, G and T, with and without iB,
// count in 1024; KB, MB, GB and TB in 1000.
func (r *reader) size(m member, server string, to *int64) {
	n, ok := parseSize(m.value.text)
	if m.value.kind != number && m.value.kind != text || !ok || n <= 0 {
		r.fault(Error, m.value.line, server, fmt.Sprintf("%q is no size", m.key), "write 512MiB or 2GiB")
		return
	}
	*to = n
}

func parseSize(s string) (int64, bool) {
	m := sizeForm.FindStringSubmatch(strings.TrimSpace(s))
	if m == nil {
		return 0, false
	}
	f, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		return 0, false
	}
	unit := strings.ToLower(m[2])
	if unit != "" && unit != "b" {
		power := strings.IndexByte("kmgt", unit[0]) + 1
		base := 1024.0
		switch unit[1:] {
		case "", "i", "ib":
		case "b":
			base = 1000
		default:
			power = 0
		}
		if power == 0 {
			return 0, false
		}
		for range power {
			f *= base
		}
	}
	const most = 1 << 50
	if f > most {
		return 0, false
	}
	return int64(f), true
}

// forever stands for a time that never comes; sums with it do not overflow.
const forever = 10 * 365 * 24 * time.Hour

// duration reads 30s, 5m, 1h30m.
func (r *reader) duration(m member, server string, to *time.Duration) {
	d, err := time.ParseDuration(m.value.text)
	if m.value.kind == number || err != nil {
		suggestion := "write 30s, 5m or 1h30m"
		if n, e := strconv.Atoi(m.value.text); e == nil {
			suggestion = fmt.Sprintf("write %ds or %dms", n, n)
		}
		r.fault(Error, m.value.line, server, fmt.Sprintf("%q has no unit of time", m.key), suggestion)
		return
	}
	if d <= 0 || d > forever {
		r.fault(Error, m.value.line, server, fmt.Sprintf("%q must be more than nothing and at most 10 years", m.key), "")
		return
	}
	*to = d
}
