package config

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// policyKeys are the names of policyFields.
func (b *serverReader) policyKeys() []string {
	var keys []string
	for k := range b.policyFields() {
		keys = append(keys, k)
	}
	return keys
}

// policyFields are the keys that say what a server may do and use.
func (b *serverReader) policyFields() map[string]field {
	s, name := b.s, b.s.Name
	local := func(read field) field {
		return func(m member) {
			b.local = append(b.local, m)
			read(m)
		}
	}
	flag := func(to *bool) field {
		return func(m member) {
			if b.is(m, name, boolean) {
				*to = strings.EqualFold(m.value.text, "true")
			}
		}
	}
	return map[string]field{
		"isolation": func(m member) {
			b.isolated = true
			s.Isolation = Isolation(b.oneOf(m, "process", "docker", "none"))
		},
		"image":   local(func(m member) { b.containerText(m, &s.Image) }),
		"runtime": local(func(m member) { b.containerText(m, &s.Runtime) }),
		"user":    local(func(m member) { b.containerText(m, &s.User) }),
		"network": local(b.network),
		"mounts":  local(b.mounts),
		"memory":  local(func(m member) { b.memory(m) }),
		"pids":    local(func(m member) { b.count(m, name, 1, &s.Pids) }),
		"cpus":    local(b.cpus),
		"scope": func(m member) {
			s.Scope = Scope(b.oneOf(m, "session", "tenant", "shared"))
			s.ScopeSet = true
		},
		"concurrency": func(m member) {
			b.count(m, name, 0, &s.Concurrency)
			b.shares = m.value.line
		},
		"start_timeout":     func(m member) { b.duration(m, name, &s.StartTimeout) },
		"call_timeout":      func(m member) { b.duration(m, name, &s.CallTimeout) },
		"stop_grace":        func(m member) { b.duration(m, name, &s.StopGrace) },
		"idle_timeout":      b.idle,
		"tools":             func(m member) { b.patterns(m, &s.Tools) },
		"except":            func(m member) { b.patterns(m, &s.Except) },
		"prefix":            b.readPrefix,
		"trust_annotations": flag(&s.TrustAnnotations),
		"state": local(func(m member) {
			s.KeepState = b.oneOf(m, "private", "kept") == "kept"
			s.StateSet = true
		}),
		"stop_on_cancel":  flag(&s.StopOnCancel),
		"keywords":        func(m member) { b.texts(m, name, &s.Keywords) },
		"templates":       func(m member) { b.texts(m, name, &s.Templates) },
		"install_scripts": local(flag(&s.InstallScripts)),
	}
}

// containerText reads a word that a container engine is given.
func (b *serverReader) containerText(m member, to *string) {
	if m.value.kind == number {
		m.value.kind = text
	}
	if !b.is(m, b.s.Name, text) {
		return
	}
	*to = b.expand(m.value.text, m.value.line, b.s.Name, m.key).text
	if *to == "" || strings.ContainsAny(*to, " \t\n\x00") {
		b.fault(Error, m.value.line, b.s.Name, fmt.Sprintf("%q must be one word", m.key), "")
		return
	}
	b.container = append(b.container, m)
}

// oneOf reads one of some words; "" if it is none of them.
func (b *serverReader) oneOf(m member, words ...string) string { return b.word(m, b.s.Name, words...) }

func (b *serverReader) idle(m member) {
	if m.value.kind == text && m.value.text == "never" {
		b.s.IdleTimeout = forever
		return
	}
	b.duration(m, b.s.Name, &b.s.IdleTimeout)
}

func (b *serverReader) memory(m member) {
	const little = 32 << 20 // no interpreter starts with less
	b.size(m, b.s.Name, &b.s.Memory)
	if b.s.Memory > 0 && b.s.Memory < little {
		b.fault(Warning, m.value.line, b.s.Name, fmt.Sprintf("%q is less than most servers need to start", m.key), "write 256MiB or more")
	}
}

func (b *serverReader) cpus(m member) {
	const most = 4096
	f, err := strconv.ParseFloat(m.value.text, 64)
	if m.value.kind != number || err != nil || !(f >= 0 && f <= most) {
		b.fault(Error, m.value.line, b.s.Name, fmt.Sprintf("%q must be a number of cores, such as 0.5", m.key), "")
		return
	}
	b.s.CPUs = f
}

var prefixForm = regexp.MustCompile(`^[A-Za-z0-9_.-]{0,40}$`)

func (b *serverReader) readPrefix(m member) {
	if !b.is(m, b.s.Name, text) {
		return
	}
	if !prefixForm.MatchString(m.value.text) {
		b.fault(Error, m.value.line, b.s.Name, fmt.Sprintf("prefix %q has other letters than A-Z a-z 0-9 _ . - or more than 40", m.value.text), "shorten it")
		return
	}
	b.s.Prefix, b.prefix = &m.value.text, m.value.line
}

// checkPrefixes reports servers whose names at /mcp begin alike.
func (r *reader) checkPrefixes() {
	first := map[string]*Server{}
	for _, s := range r.config.Servers {
		prefix := s.Name + "__"
		if s.Prefix != nil {
			prefix = *s.Prefix
		}
		other := first[prefix]
		switch {
		case s.Disabled:
		case other == nil:
			first[prefix] = s
		case prefix == "":
			r.fault(Warning, s.Place.Line, s.Name, fmt.Sprintf("it has no prefix, and neither has %s: where both have a tool of one name, that of the second is renamed", other.Name), "give one of them a prefix")
		default:
			r.fault(Error, s.Place.Line, s.Name, fmt.Sprintf("its prefix %q is that of %s too", prefix, other.Name), "give one of them another prefix")
		}
	}
}

func (b *serverReader) network(m member) {
	name := b.s.Name
	if m.value.kind == text {
		switch m.value.text {
		case "none":
			b.s.Network = Network{}
		case "all":
			b.s.Network = Network{All: true}
		default:
			suggestion := didYouMean(m.value.text, []string{"none", "all"})
			if host, _ := parseHost(m.value.text); suggestion == "" && host != "" {
				suggestion = fmt.Sprintf("write [%s] to allow that host", host)
			}
			b.fault(Error, m.value.line, name, fmt.Sprintf("%q is %q", m.key, m.value.text), or(suggestion, "write none, all, or a list of hosts"))
		}
		return
	}
	if !b.is(m, name, text, list) {
		return
	}
	for i, n := range m.value.items {
		host, suggestion := "", "put it in quotes"
		if n.kind == text || n.kind == number {
			host, suggestion = parseHost(n.text)
		}
		if host == "" {
			b.fault(Error, n.line, name, fmt.Sprintf("%s[%d] is no host", m.key, i), suggestion)
		} else if !slices.Contains(b.s.Network.Hosts, host) {
			b.s.Network.Hosts = append(b.s.Network.Hosts, host)
		}
	}
}

var hostForm = regexp.MustCompile(`^[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*$`)

// parseHost reads "host", "host:port", "ip", "ip:port", "[ip]:port". If it is
// none of them the host is "" and there is a suggestion.
func parseHost(s string) (host, suggestion string) {
	host = strings.ToLower(strings.TrimSpace(s))
	if _, rest, ok := strings.Cut(host, "://"); ok {
		rest, _, _ = strings.Cut(rest, "/")
		if h, _ := parseHost(rest); h != "" {
			return "", fmt.Sprintf("write %s, without scheme and path", h)
		}
		return "", "write HOST or HOST:PORT"
	}
	if h, _, ok := strings.Cut(host, "/"); ok {
		if _, err := netip.ParsePrefix(host); err == nil {
			return "", "networks cannot be allowed, only single addresses: IP or IP:PORT"
		}
		if h, _ := parseHost(h); h != "" {
			return "", fmt.Sprintf("write %s, without a path", h)
		}
	}
	if strings.Contains(host, "*") {
		return "", "write every host out: patterns are not known"
	}
	if ip, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		if ip.Is6() {
			return "[" + ip.String() + "]", ""
		}
		return host, ""
	}
	name, port := host, ""
	if i := strings.LastIndexByte(host, ':'); i >= 0 {
		name, port = host[:i], host[i+1:]
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return "", "write HOST:PORT with a port from 1 to 65535"
		}
	}
	if ip, err := netip.ParseAddr(strings.Trim(name, "[]")); err == nil {
		return netip.AddrPortFrom(ip, mustPort(port)).String(), ""
	}
	name = strings.TrimSuffix(name, ".")
	if len(name) > 253 || !hostForm.MatchString(name) {
		return "", "write HOST, HOST:PORT or IP:PORT"
	}
	if name == "all" || name == "none" {
		return "", fmt.Sprintf("write network: %s, not in a list", name)
	}
	if port != "" {
		return name + ":" + port, ""
	}
	return name, ""
}

// mustPort turns digits that were checked into a port.
func mustPort(s string) uint16 {
	n, _ := strconv.ParseUint(s, 10, 16)
	return uint16(n)
}

func (b *serverReader) mounts(m member) {
	name := b.s.Name
	if !b.is(m, name, list) {
		return
	}
	at := map[string]bool{}
	for i, n := range m.value.items {
		where := fmt.Sprintf("mounts[%d]", i)
		var mount Mount
		var shown string
		var ok bool
		switch n.kind {
		case text:
			mount, shown, ok = b.mountString(n, where)
		case object:
			mount, shown, ok = b.mountObject(n, where)
		default:
			b.fault(Error, n.line, name, where+" must be a string or an object, not "+n.kind.String(), `write "/path", "/path:rw" or "/path:/at:rw"`)
		}
		if !ok {
			continue
		}
		inside := or(mount.At, mount.Path)
		switch {
		case at[inside]:
			b.fault(Error, n.line, name, where+" has the place of another mount", "keep one of them")
			continue
		case forbiddenAt(inside):
			b.fault(Error, n.line, name, where+" would hide what every sandbox needs there", `give it another place: "/path:/at"`)
			continue
		case !exists(mount.Path):
			b.fault(Warning, n.line, name, fmt.Sprintf("%s %s is not there", where, shown), "create it, or check the path")
		}
		if why := b.dangerous(mount.Path); why != "" {
			b.fault(Warning, n.line, name, fmt.Sprintf("%s %s: %s", where, shown, why), "mount only the folder that the server needs")
		}
		at[inside] = true
		b.s.Mounts = append(b.s.Mounts, mount)
		b.s.written.mounts = append(b.s.written.mounts, "")
		if strings.Contains(shown, "${") {
			b.s.written.mounts[len(b.s.Mounts)-1] = shown
		}
	}
}

// mountString reads PATH, PATH:rw, PATH:AT and PATH:AT:rw. shown is the path as
// the file has it.
func (b *serverReader) mountString(n *node, where string) (m Mount, shown string, ok bool) {
	raw, write := n.text, false
	if cut, found := strings.CutSuffix(raw, ":rw"); found {
		raw, write = cut, true
	} else if cut, found := strings.CutSuffix(raw, ":ro"); found {
		raw = cut
	}
	// The colons of ${NAME:-default} part nothing.
	host, inside := raw, ""
	for i, open := 0, 0; i < len(raw); i++ {
		switch {
		case raw[i] == '{':
			open++
		case raw[i] == '}':
			open--
		case raw[i] == ':' && open <= 0 && inside == "":
			host, inside = raw[:i], raw[i+1:]
		}
	}
	v := b.expand(host, n.line, b.s.Name, where)
	m = Mount{Path: v.text, At: b.expand(inside, n.line, b.s.Name, where).text, Write: write}
	return b.cleanMount(m, n.line, v, where)
}

// mountObject reads {path: ..., at: ..., write: true}.
func (b *serverReader) mountObject(n *node, where string) (m Mount, shown string, ok bool) {
	var path value
	b.fields(n, b.s.Name, where, map[string]field{
		"path": func(f member) {
			if b.is(f, b.s.Name, text) {
				path = b.expand(f.value.text, f.value.line, b.s.Name, where)
				m.Path = path.text
			}
		},
		"at": func(f member) {
			if b.is(f, b.s.Name, text) {
				m.At = b.expand(f.value.text, f.value.line, b.s.Name, where).text
			}
		},
		"write": func(f member) {
			if b.is(f, b.s.Name, boolean) {
				m.Write = strings.EqualFold(f.value.text, "true")
			}
		},
	}, nil)
	return b.cleanMount(m, n.line, path, where)
}

func (b *serverReader) cleanMount(m Mount, line int, v value, where string) (Mount, string, bool) {
	path := b.vars.path(m.Path)
	if m.Path == "" || !filepath.IsAbs(path) || m.At != "" && (!filepath.IsAbs(m.At) || strings.Contains(m.At, ":")) {
		b.fault(Error, line, b.s.Name, where+" has no absolute path", `write "/path", "/path:rw" or "/path:/at:rw"`)
		return m, v.raw, false
	}
	m.Path = filepath.Clean(path)
	if m.At != "" {
		m.At = filepath.Clean(m.At)
	}
	if m.At == m.Path {
		m.At = ""
	}
	return m, v.raw, true
}

// forbiddenAt reports whether nothing may be mounted there.
func forbiddenAt(at string) bool {
	for _, p := range []string{"/proc", "/dev", "/sys"} {
		if at == p || strings.HasPrefix(at, p+"/") {
			return true
		}
	}
	return at == "/"
}

// dangerous says why a host path gives away more than a server should have.
func (b *serverReader) dangerous(p string) string {
	home := b.vars.home
	base := filepath.Base(p)
	switch {
	case p == "/":
		return "this is the whole machine"
	case slices.Contains([]string{"docker.sock", "podman.sock", "containerd.sock", "crio.sock"}, base):
		return "whoever reaches this socket commands the machine"
	case p == "/etc" || p == "/var" || p == "/run" || p == "/var/run" || p == "/boot" || p == "/root" || p == "/home" && p != home:
		return "this holds much that is no server's business"
	case p == home && home != "":
		return "this is the whole HOME, with keys and passwords in it"
	case home != "" && filepath.Dir(p) == home && slices.Contains([]string{".ssh", ".gnupg", ".aws", ".kube", ".docker", ".config"}, base):
		return "this holds keys"
	}
	return ""
}
