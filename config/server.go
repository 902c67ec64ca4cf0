package config

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

const maxName = 40 // leaves room for a tool's own name in the 64 that clients allow

var notName = regexp.MustCompile(`[^A-Za-z0-9_.-]+`)

// Name turns what a file calls a server into its name: everything but A-Z a-z
// 0-9 _ . and - becomes a -, the ends lose their - and leading dots, and what
// is over 40 characters is cut. It is "" if nothing is left.
func Name(label string) string {
	name := strings.TrimLeft(notName.ReplaceAllString(label, "-"), "-.")
	if len(name) > maxName {
		name = name[:maxName]
	}
	return strings.TrimRight(name, "-")
}

// quietKeys are what clients keep beside a server for themselves.
var quietKeys = []string{
	"always_allow", "auto_approve", "always_load", "description", "icon", "icons", "gallery", "version", "oauth", "auth",
	"auth_provider_type", "target_audience", "target_service_account", "trust", "name", "title", "display_name", "dev",
	"note", "notes", "comment", "tags", "category", "sandbox", "sandbox_enabled", "extension", "registry", "source",
	"is_active", "provider", "provider_url", "logo_url", "long_running", "init_timeout", "server_instructions", "chat_menu",
	"init_timeout_ms", "env_vars", "required", "instructions", "tools_discovery",
}

// servers reads all servers. client says that the keys of policies stand under
// "specbox" alone, because the clients use some of them for themselves.
func (r *reader) servers(n *node, client bool) {
	if n.kind == null {
		return
	}
	if n.kind != object {
		suggestion := "write NAME: {command: ...}"
		if n.kind == list {
			suggestion = "write an object whose keys are the names of the servers"
		}
		r.fault(Error, n.line, "", "the servers must be an object, not "+n.kind.String(), suggestion)
		return
	}
	for _, m := range n.members {
		name := Name(m.key)
		if name == "" {
			r.fault(Error, m.line, "", fmt.Sprintf("%q is no name for a server", m.key), "use A-Z a-z 0-9 _ . and -")
			continue
		}
		if i := slices.IndexFunc(r.config.Servers, func(s *Server) bool { return s.Name == name }); i >= 0 {
			first := r.config.Servers[i]
			message := fmt.Sprintf("there are two servers named %q", m.key)
			if first.Label != m.key {
				message = fmt.Sprintf("%q and %q are both named %s here", first.Label, m.key, name)
			}
			r.fault(Error, m.line, "", fmt.Sprintf("%s; the first one is at line %d", message, first.Place.Line), "give one of them another name")
			continue
		}
		if name != m.key {
			r.fault(Note, m.line, name, fmt.Sprintf("%q is named %s here", m.key, name), "names have at most 40 of A-Z a-z 0-9 _ . -")
		}
		r.config.Servers = append(r.config.Servers, r.server(name, m, client))
	}
}

// A serverReader reads one server.
type serverReader struct {
	*reader
	s         *Server
	line      int
	kind      string // as "type" says: "", "stdio", "http", "sse"
	kindLine  int
	urls      []string // keys that gave a URL
	isolated  bool     // isolation stands there
	local     []member // keys that mean something for local servers alone
	container []member // keys that mean something for containers alone
	envFile   map[string]string
	argLines  []int
	prefix    int // line of it
	shares    int // line of concurrency
}

func (r *reader) server(name string, m member, client bool) *Server {
	s := &Server{Name: name, Label: m.key, Place: Place{r.file, m.line}, written: &written{}}
	if m.value.kind != object {
		suggestion := "write {command: ..., args: [...]} or {url: ...}"
		r.fault(Error, m.line, name, "it must be an object, not "+m.value.kind.String(), suggestion)
		r.defaults(s)
		return s
	}
	s.variables = map[string]string{}
	r.vars.used = s.variables
	defer func() { r.vars.used = nil }()
	b := &serverReader{reader: r, s: s, line: m.line}
	fields := b.runFields()
	quiet := quietKeys
	if client {
		quiet = append(slices.Clone(quiet), "tools", "scope") // known there with another meaning
		for _, key := range b.policyKeys() {
			if _, ok := fields[key]; !ok && !slices.Contains(quiet, key) {
				fields[key] = func(m member) {
					r.fault(Warning, m.line, name, fmt.Sprintf("%q is read under \"specbox\" only in this form of file", m.key),
						fmt.Sprintf(`write "specbox": {%q: ...}`, m.key))
				}
			}
		}
	} else {
		maps.Copy(fields, b.policyFields())
	}
	fields["specbox"] = func(m member) {
		if r.is(m, name, object) {
			r.fields(m.value, name, `"specbox"`, b.policyFields(), nil)
		}
	}
	r.fields(m.value, name, "the server", fields, quiet)
	s.fromFile = b.envFile
	for k, v := range b.envFile { // what stands in the file itself wins
		if _, ok := s.Env[k]; !ok {
			s.setEnv(k, v)
		}
	}
	b.check()
	r.defaults(s)
	if s.Concurrency > 0 && s.Scope == PerSession {
		r.fault(Warning, b.shares, name, `"concurrency" has no effect where each session has a sandbox of its own`, "add scope: tenant or scope: shared, or take it out")
	}
	return s
}

func (s *Server) setEnv(k, v string) {
	if s.Env == nil {
		s.Env = map[string]string{}
	}
	s.Env[k] = v
}

// defaults fills in what the file leaves open.
func (r *reader) defaults(s *Server) {
	if s.Isolation == "" {
		s.Isolation = Process
		if s.URL != "" {
			s.Isolation = Remote
		}
	}
	if s.Isolation == None { // nothing keeps it from the host's network
		s.Network = Network{All: true}
	}
	setDefault(&s.Memory, 2<<30)
	setDefault(&s.Pids, 512)
	setDefault(&s.Scope, PerSession)
	setDefault(&s.StartTimeout, 60*time.Second)
	setDefault(&s.CallTimeout, 10*time.Minute)
	setDefault(&s.IdleTimeout, 5*time.Minute)
	setDefault(&s.StopGrace, 2*time.Second)
}

// runFields are the keys that say what runs, in every client's spelling.
func (b *serverReader) runFields() map[string]field {
	name := b.s.Name
	dir := func(m member) {
		if b.is(m, name, text) {
			v := b.expand(m.value.text, m.value.line, name, m.key)
			b.s.Dir, b.s.written.dir = b.vars.path(v.text), v.raw
			b.local = append(b.local, m)
		}
	}
	transport := func(m member) { b.transport(m) }
	flag := func(to *bool, when string) field {
		return func(m member) {
			if b.is(m, name, boolean) {
				*to = strings.EqualFold(m.value.text, when)
			}
		}
	}
	except := func(m member) { b.patterns(m, &b.s.Except) }
	only := func(m member) { b.patterns(m, &b.s.Tools) }
	return map[string]field{
		"command":        b.command,
		"args":           b.args,
		"env":            b.env,
		"env_file":       b.readEnvFile,
		"dir":            dir,
		"cwd":            dir,
		"url":            b.url,
		"http_url":       b.url,
		"server_url":     b.url,
		"type":           transport,
		"transport":      transport,
		"headers":        b.headers,
		"disabled":       flag(&b.s.Disabled, "true"),
		"enabled":        flag(&b.s.Disabled, "false"),
		"timeout":        b.timeout,
		"include_tools":  only,
		"enabled_tools":  only,
		"exclude_tools":  except,
		"disabled_tools": except,
		"headers_helper": b.headersHelper,
	}
}

func (b *serverReader) headersHelper(m member) {
	b.fault(Warning, m.line, b.s.Name, fmt.Sprintf("%q is a command, and loading starts none", m.key), "write headers: {Authorization: \"Bearer ${TOKEN}\"}")
}

func (b *serverReader) command(m member) {
	name := b.s.Name
	if m.value.kind == list && len(m.value.items) > 0 && m.value.items[0].kind == text {
		rest := &node{kind: list, line: m.value.line, items: m.value.items[1:]}
		m.value = m.value.items[0]
		b.args(member{m.key, m.line, rest})
	}
	if !b.is(m, name, text) {
		return
	}
	v := b.expand(m.value.text, m.value.line, name, m.key)
	if strings.TrimSpace(v.text) == "" && !b.faulty() {
		b.fault(Error, m.value.line, name, "command is empty", "name a program, or write url for a remote server")
	}
	b.s.Command, b.s.written.command = v.text, v.raw
}

// faulty reports whether this server has an error already, of which another
// one would be a mere consequence.
func (b *serverReader) faulty() bool {
	return slices.ContainsFunc(b.faults, func(f Fault) bool { return f.Server == b.s.Name && f.Severity == Error })
}

func (b *serverReader) args(m member) {
	name := b.s.Name
	if !b.is(m, name, list) {
		return
	}
	for i, n := range m.value.items {
		where := fmt.Sprintf("args[%d]", i)
		if n.kind == object || n.kind == list || n.kind == null {
			b.fault(Error, n.line, name, where+" must be a string, not "+n.kind.String(), "put it in quotes")
			continue
		}
		v := b.expand(n.text, n.line, name, where)
		b.s.Args = append(b.s.Args, v.text)
		b.s.written.args = append(b.s.written.args, v.raw)
		b.argLines = append(b.argLines, n.line)
	}
}

func (b *serverReader) env(m member) {
	name := b.s.Name
	if !b.is(m, name, object) {
		return
	}
	seen := map[string]bool{}
	for _, e := range m.value.members {
		where := "env " + e.key
		switch {
		case e.key == "" || strings.ContainsAny(e.key, "=\x00"):
			b.fault(Error, e.line, name, "a name in env is empty, or has = or NUL in it", "write NAME: VALUE")
			continue
		case seen[e.key]:
			b.fault(Error, e.line, name, where+" stands there twice", "keep one of them")
			continue
		case e.value.kind == object || e.value.kind == list:
			b.fault(Error, e.value.line, name, where+" must be a string, not "+e.value.kind.String(), "put it in quotes")
			continue
		}
		seen[e.key] = true
		if e.value.kind == null { // VS Code: not set
			continue
		}
		if bareVariable.MatchString(e.value.text) || windowsVar.MatchString(e.value.text) {
			b.fault(Warning, e.value.line, name, where+" looks like a variable, but stays as it is",
				fmt.Sprintf("write ${%s}", strings.Trim(e.value.text, "$%")))
		}
		b.s.setEnv(e.key, b.expand(e.value.text, e.value.line, name, where).text)
	}
}

// readEnvFile reads NAME=VALUE lines, as VS Code's envFile has them.
func (b *serverReader) readEnvFile(m member) {
	name := b.s.Name
	if !b.is(m, name, text) {
		return
	}
	v := b.expand(m.value.text, m.value.line, name, m.key)
	data, err := readFile(b.vars.path(v.text), MaxFile)
	if err != nil {
		var pe *os.PathError
		if errors.As(err, &pe) {
			err = pe.Err // without the path, which may come from a variable
		} else {
			err = errors.New("it is not a file of at most 8 MiB")
		}
		b.fault(Error, m.value.line, name, fmt.Sprintf("cannot read %s %s: %v", m.key, v.raw, err), "check the path")
		return
	}
	b.envFile = map[string]string{}
	for i, line := range strings.Split(string(data), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, val, ok := strings.Cut(strings.TrimPrefix(line, "export "), "=")
		key = strings.TrimSpace(key)
		if !ok || key == "" || strings.ContainsRune(line, 0) {
			b.fault(Error, m.value.line, name, fmt.Sprintf("line %d of %s %s is not NAME=VALUE", i+1, m.key, v.raw), "")
			continue
		}
		val = strings.TrimSpace(val)
		if len(val) >= 2 && (val[0] == '"' || val[0] == '\'') && val[len(val)-1] == val[0] {
			val = val[1 : len(val)-1]
		}
		b.envFile[key] = val
	}
}

func (b *serverReader) url(m member) {
	name := b.s.Name
	if !b.is(m, name, text) {
		return
	}
	if len(b.urls) > 0 && m.key != "httpUrl" && m.key != "http_url" {
		b.fault(Warning, m.line, name, fmt.Sprintf("%q and %q are both there; %q counts", b.urls[0], m.key, b.urls[0]), "keep one of them")
		return
	}
	if len(b.urls) > 0 {
		b.fault(Warning, m.line, name, fmt.Sprintf("%q and %q are both there; %q counts", b.urls[0], m.key, m.key), "keep one of them")
	}
	if snake(m.key) == "http_url" {
		b.s.Transport = "http"
	}
	b.urls = append(b.urls, m.key)
	v := b.expand(m.value.text, m.value.line, name, m.key)
	b.s.URL, b.s.written.url = v.text, v.raw
	u, err := url.Parse(v.text)
	switch {
	case b.faulty():
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		b.fault(Error, m.value.line, name, fmt.Sprintf("%q is no URL of a server", m.key), "write https://HOST/PATH")
		b.s.URL = ""
	case u.User != nil:
		b.fault(Warning, m.value.line, name, fmt.Sprintf("%q has a user name or password in it", m.key), `write headers: {Authorization: "Basic ${CREDENTIALS}"}`)
	case u.Scheme == "http" && len(b.s.Headers) > 0 && !loopback(net0(u)):
		b.fault(Warning, m.value.line, name, "headers travel unencrypted over http", "use https")
	}
}

// net0 returns host and some port of a URL.
func net0(u *url.URL) string {
	if u.Port() != "" {
		return u.Host
	}
	return u.Host + ":80"
}

func (b *serverReader) transport(m member) {
	name := b.s.Name
	if !b.is(m, name, text) {
		return
	}
	kind := strings.NewReplacer("-", "", "_", "", " ", "").Replace(strings.ToLower(m.value.text))
	switch kind {
	case "stdio", "local", "process", "command":
		b.kind = "stdio"
	case "http", "streamablehttp", "streamable":
		b.kind = "http"
	case "sse":
		b.kind = "sse"
	case "remote", "url", "auto":
		b.kind = "remote"
	case "ws", "wss", "websocket":
		b.fault(Error, m.value.line, name, "WebSocket is no transport of MCP that specbox speaks", "use the server's http or sse URL")
	default:
		b.fault(Error, m.value.line, name, fmt.Sprintf("%q is %q, which is not known", m.key, m.value.text), or(didYouMean(m.value.text, []string{"stdio", "http", "sse"}), "write stdio, http or sse"))
	}
	b.kindLine = m.value.line
}

func or(s, otherwise string) string {
	if s != "" {
		return s
	}
	return otherwise
}

var headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")

func (b *serverReader) headers(m member) {
	if h := b.headerValues(m, b.s.Name); h != nil {
		b.s.Headers = h
	}
}

// headerValues reads an object of headers.
func (r *reader) headerValues(m member, server string) map[string]string {
	if !r.is(m, server, object) {
		return nil
	}
	headers := map[string]string{}
	for _, h := range m.value.members {
		where := "header " + h.key
		if !headerName.MatchString(h.key) {
			r.fault(Error, h.line, server, fmt.Sprintf("%q is no name of a header", h.key), "write NAME: VALUE")
			continue
		}
		if h.value.kind == object || h.value.kind == list || h.value.kind == null {
			r.fault(Error, h.value.line, server, where+" must be a string, not "+h.value.kind.String(), "put it in quotes")
			continue
		}
		v := r.expand(h.value.text, h.value.line, server, where).text
		if strings.ContainsAny(v, "\r\n") {
			if v = strings.TrimRight(v, "\r\n"); strings.ContainsAny(v, "\r\n") {
				r.fault(Error, h.value.line, server, where+" has a line break in it", "take it out")
				continue
			}
		}
		if _, ok := headers[h.key]; ok {
			r.fault(Error, h.line, server, where+" stands there twice", "keep one of them")
		}
		headers[h.key] = v
	}
	return headers
}

// timeout reads a client's timeout of calls: some count it in seconds, most in
// milliseconds. Nobody waits for a thousand seconds, nor for less than one.
func (b *serverReader) timeout(m member) {
	if m.value.kind == text {
		b.duration(m, b.s.Name, &b.s.CallTimeout)
		return
	}
	n, err := strconv.ParseFloat(m.value.text, 64)
	if m.value.kind != number || err != nil || n <= 0 || n > forever.Seconds() {
		b.fault(Error, m.value.line, b.s.Name, fmt.Sprintf("%q must be a number of milliseconds, or of seconds below 1000", m.key), "write 60000")
		return
	}
	unit := time.Second
	if n >= 1000 {
		unit = time.Millisecond
	}
	b.s.CallTimeout = time.Duration(n * float64(unit))
}

// patterns reads names of tools, or patterns of them.
func (b *serverReader) patterns(m member, to *[]string) {
	name := b.s.Name
	if !b.is(m, name, list) {
		return
	}
	for i, n := range m.value.items {
		where := fmt.Sprintf("%s[%d]", m.key, i)
		if n.kind != text && n.kind != number && n.kind != boolean {
			b.fault(Error, n.line, name, where+" must be a string, not "+n.kind.String(), "put it in quotes")
			continue
		}
		if _, err := path.Match(n.text, ""); err != nil || n.text == "" {
			b.fault(Error, n.line, name, fmt.Sprintf("%s is %q, which is no pattern", where, n.text), "write a name, or use * and ? in it")
			continue
		}
		*to = append(*to, n.text)
	}
	if len(m.value.items) == 0 && to == &b.s.Tools {
		b.fault(Warning, m.line, name, fmt.Sprintf("%q is empty, which allows all tools", m.key), "name some, or leave the key out")
	}
}

// Allows reports whether the policy lets a tool be seen and called. tool is
// the server's own name of it.
func (p *Policy) Allows(tool string) bool {
	match := func(pattern string) bool {
		ok, err := path.Match(pattern, tool)
		return ok && err == nil || pattern == tool
	}
	return (len(p.Tools) == 0 || slices.ContainsFunc(p.Tools, match)) && !slices.ContainsFunc(p.Except, match)
}

// check looks at the server as a whole.
func (b *serverReader) check() {
	s, name := b.s, b.s.Name
	remote := len(b.urls) > 0
	switch {
	case s.written.command != "" && remote:
		b.fault(Error, b.line, name, "command and "+b.urls[0]+" are both there", "keep command for a local server, "+b.urls[0]+" for a remote one")
		return
	case s.written.command == "" && !remote && s.Image == "":
		if !b.faulty() {
			b.fault(Error, b.line, name, "it has neither command nor url", "add command: for a local server or url: for a remote one")
		}
		return
	case b.kind == "stdio" && remote:
		b.fault(Error, b.kindLine, name, "it is of type stdio, but has a url", "write type http or sse, or command instead of url")
	case (b.kind == "http" || b.kind == "sse" || b.kind == "remote") && !remote:
		b.fault(Error, b.kindLine, name, "it is of type "+b.kind+", but has a command", "write type stdio, or url instead of command")
	}
	if remote {
		b.checkRemote()
		return
	}
	if len(s.Headers) > 0 {
		b.fault(Warning, b.line, name, "headers are for servers with a url; a command gets none", "use env")
	}
	if b.checkContainer() {
		return
	}
	if s.Network.All && s.Isolation != None {
		b.fault(Note, b.line, name, "it may reach every host", "list the hosts it needs: network: [api.example.com]")
	}
	if s.Isolation == None {
		b.fault(Warning, b.line, name, "it runs without isolation, with all that this user may do", "leave isolation out, if the server works without")
	}
	b.checkCommand()
	b.checkArgs()
	b.checkDir()
}

// checkContainer looks at what is about containers. It reports whether the
// server is one: then command, arguments and dir are names inside of the image.
func (b *serverReader) checkContainer() bool {
	s, name := b.s, b.s.Name
	base := programName(s.Command)
	line := slices.Contains([]string{"docker", "podman", "nerdctl"}, base) && slices.Contains(s.Args, "run")
	if s.Isolation == "" && (line || s.Image != "") {
		s.Isolation = Docker
	}
	switch {
	case s.Isolation != Docker && line && s.Isolation != None:
		b.fault(Error, b.line, name, fmt.Sprintf("`%s run` does not run with isolation %s", base, s.Isolation), "leave isolation out, and its image is run in a sandbox; isolation: none runs the line as it is")
	case s.Isolation != Docker:
		for _, m := range b.container {
			b.fault(Error, m.line, name, fmt.Sprintf("%q is for isolation docker, not %s", m.key, or(string(s.Isolation), string(Process))), "add isolation: docker, or take it out")
		}
	case line && s.Image != "":
		b.fault(Error, b.line, name, fmt.Sprintf("it has an image, and a `%s run` line that names one", base), "keep one of them")
	case !line && s.Image == "":
		b.fault(Error, b.line, name, "isolation docker needs an image", "add image: NAME:TAG")
	}
	if s.Isolation != Docker {
		return false
	}
	if len(s.Network.Hosts) > 0 {
		b.fault(Error, b.line, name, "isolation docker cannot allow single hosts of the network", "write network: none or network: all")
	}
	if user, _, _ := strings.Cut(s.User, ":"); s.User != "" && (user == "root" || strings.Trim(user, "0") == "") {
		b.fault(Error, b.line, name, fmt.Sprintf("user %q is root, which no server is", s.User), "name another one, or leave it out")
	}
	if s.Network.All {
		b.fault(Note, b.line, name, "it may reach every host", "leave network out, if the server works without")
	}
	b.checkArgs()
	return true
}

func (b *serverReader) checkRemote() {
	s, name := b.s, b.s.Name
	if b.kind == "http" || b.kind == "sse" {
		s.Transport = b.kind
	}
	if b.isolated {
		b.fault(Error, b.line, name, "isolation is for servers with a command", "leave it out")
	}
	for _, m := range b.local {
		b.fault(Warning, m.line, name, fmt.Sprintf("%q has no effect on a remote server", m.key), "take it out")
	}
	if len(s.Args) > 0 || len(s.Env) > 0 {
		b.fault(Warning, b.line, name, "args and env have no effect on a remote server", "use headers")
	}
}

var windowsPath = regexp.MustCompile(`^[A-Za-z]:[\\/]|^\\\\`)

func (b *serverReader) checkCommand() {
	s, name := b.s, b.s.Name
	shown := s.written.command
	base := programName(s.Command)
	switch {
	case windowsPath.MatchString(s.Command):
		b.fault(Error, b.line, name, fmt.Sprintf("command is a path of Windows: %s", shown), "name the program as it is installed here")
		return
	case base == "cmd" && len(s.Args) > 1 && strings.EqualFold(s.Args[0], "/c"):
		b.fault(Note, b.line, name, fmt.Sprintf("`cmd /c` is for Windows; %s is started without it", programName(s.Args[1])), "")
	case strings.ContainsAny(s.Command, " \t") && !exists(b.vars.path(s.Command)):
		words := strings.Fields(shown)
		b.fault(Error, b.line, name, "command has spaces in it, and there is no such file", fmt.Sprintf("write command: %s and put the rest into args", words[0]))
		return
	case strings.HasPrefix(s.Command, "~/"):
		s.Command = b.vars.path(s.Command)
	case strings.Contains(s.Command, "/") && !filepath.IsAbs(s.Command):
		from := or(s.Dir, b.vars.workspace)
		s.Command = filepath.Join(from, s.Command)
		b.fault(Warning, b.line, name, fmt.Sprintf("command %s is a relative path, taken from %s", shown, or(s.written.dir, "the folder of the file")), "write the whole path")
	}
}

// programName returns the name of a program without its folder and without the
// endings it has on Windows.
func programName(command string) string {
	base := strings.ToLower(command[strings.LastIndexAny(command, `/\`)+1:])
	for _, ext := range []string{".exe", ".cmd", ".bat", ".ps1"} {
		base = strings.TrimSuffix(base, ext)
	}
	return base
}

func (b *serverReader) checkArgs() {
	s, name := b.s, b.s.Name
	for i := range s.Args {
		arg, raw, line := s.Args[i], s.written.args[i], b.argLines[i]
		where := fmt.Sprintf("args[%d]", i)
		before := ""
		if i > 0 {
			before = s.Args[i-1]
		}
		switch {
		case looksSecret(before, arg), secretVariable.MatchString(raw):
			b.fault(Warning, line, name, where+" looks like a secret, and a command line is visible to every process beside it", "give it in env, if the server reads it from there")
		case windowsPath.MatchString(arg):
			b.fault(Warning, line, name, where+" is a path of Windows", "write the path as it is here")
		case bareVariable.MatchString(raw):
			b.fault(Warning, line, name, where+" looks like a variable, but stays as it is", fmt.Sprintf("write ${%s}", raw[1:]))
		case strings.HasPrefix(arg, "~/") && b.vars.home != "":
			s.Args[i] = b.vars.path(arg) // no shell is there to do it
		case s.Isolation != Docker && s.Dir == "" && relativeFile.MatchString(arg) && exists(filepath.Join(b.vars.workspace, arg)):
			b.fault(Warning, line, name, fmt.Sprintf("%s is the relative path %s, but the server starts in a HOME of its own", where, raw),
				fmt.Sprintf("write the whole path, or add dir: %s", b.vars.workspace))
		}
	}
}

var relativeFile = regexp.MustCompile(`^[A-Za-z0-9_.][^:=]*\.(?:js|mjs|cjs|ts|py|rb|jar|sh|json|ya?ml|toml)$`)

func (b *serverReader) checkDir() {
	if dir := b.s.Dir; dir != "" && !exists(dir) {
		b.fault(Warning, b.line, b.s.Name, fmt.Sprintf("dir %s is not there", b.s.written.dir), "check the path")
	}
}

func exists(p string) bool {
	_, err := os.Stat(p)
	return err == nil
}
