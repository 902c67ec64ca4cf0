package config

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// MaxFile bounds a configuration file, in bytes.
const MaxFile = 8 << 20

// Load reads a configuration file: what it holds decides how it is read, not
// its name. These are understood:
//
//   - {"mcpServers": {NAME: {...}}}: Claude Desktop, Claude Code, Cursor,
//     Gemini CLI, Windsurf and others. Policies may stand under a "specbox"
//     key of a server, and "listen", "metrics", "tenants" and "limits" under a
//     "specbox" key of the file; these clients ignore both.
//   - {"servers": {NAME: {...}}}, also inside "mcp": VS Code.
//   - SpecBox's own YAML, which is the same with policies beside command or
//     url. docs/configuration.md has all keys.
//
// JSON may have comments and trailing commas.
//
// Variables stand in command, args, env, url, headers, dir and mounts, in
// envFile and in a tenant's tokens: ${NAME} must be set, ${NAME:-default} has
// a default for where it is unset or empty. ${env:NAME} is ${NAME};
// ${workspaceFolder} is the folder of the file, or the one above if the file
// lies in .vscode, .cursor, .gemini, .claude or the like; ${userHome} is HOME.
// A $ that no { follows is itself, and $${ is a literal ${. getenv looks
// variables up, as [os.LookupEnv] does.
//
// The configuration is nil if the file cannot be read or holds no servers
// form. Otherwise it is complete as far as the faults leave it: a server with
// errors is in it with Unready set. [Fatal] tells the faults with which
// nothing should be served. Faults stand in the order of their lines.
func Load(path string, getenv func(string) (string, bool)) (*Config, []Fault) {
	data, err := readFile(path, MaxFile)
	if err != nil {
		suggestion := "check the path"
		if os.IsPermission(err) {
			suggestion = "make it readable for this user"
		}
		return nil, []Fault{{Place{File: path}, Error, "", "cannot read the configuration: " + err.Error(), suggestion}}
	}
	return Parse(path, data, getenv)
}

// Parse is [Load] for a file's content; name is where it lies, or would.
// Besides looking at which of the named paths exist, it reads the envFile of
// servers that have one.
func Parse(name string, data []byte, getenv func(string) (string, bool)) (*Config, []Fault) {
	r := &reader{file: name, config: &Config{File: name}}
	r.vars.getenv = getenv
	r.vars.workspace = workspace(name)
	if home, ok := getenv("HOME"); ok && filepath.IsAbs(home) {
		r.vars.home = filepath.Clean(home)
	}
	root, err := parse(data)
	if err != nil {
		f := Fault{Place: Place{File: name}, Severity: Error, Message: err.Error()}
		if e, ok := err.(*syntaxError); ok {
			f.Place.Line, f.Suggestion = e.line, e.hint
		}
		return nil, []Fault{f}
	}
	ok := r.root(root)
	sortFaults(r.faults)
	if !ok {
		return nil, r.faults
	}
	return r.config, r.faults
}

// readFile reads a regular file of at most limit bytes. It does not wait for
// pipes and does not read devices.
func readFile(path string, limit int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("%s is larger than %d bytes", path, limit)
	}
	return data, err
}

// workspace returns the folder that relative paths of a file are taken from:
// where the file lies, or the project around a client's settings folder.
func workspace(name string) string {
	abs, err := filepath.Abs(name)
	if err != nil {
		abs = filepath.Join("/", name)
	}
	dir := filepath.Dir(abs)
	switch filepath.Base(dir) {
	case ".vscode", ".cursor", ".gemini", ".claude", ".windsurf", ".roo", ".kiro", ".specbox":
		return filepath.Dir(dir)
	}
	return dir
}

// A reader turns one file into a Config and its faults.
type reader struct {
	file   string
	vars   expander
	config *Config
	faults []Fault

	listenLine, metricsLine int
	tenantPlaces            []tenantPlace // beside config.Tenants
	tokenPlaces             []tokenPlace
}

func (r *reader) fault(s Severity, line int, server, message, suggestion string) {
	r.faults = append(r.faults, Fault{Place{r.file, line}, s, server, message, suggestion})
}

// A field reads the value of one key.
type field func(m member)

// fields reads the members of an object. A key is found as it is written or in
// snake case, so that JSON may say startTimeout. quiet are keys that others use.
func (r *reader) fields(n *node, server, where string, fields map[string]field, quiet []string) {
	seen := map[string]string{} // field -> key
	for _, m := range n.members {
		name := m.key
		read, ok := fields[name]
		if !ok {
			name = snake(m.key)
			read, ok = fields[name]
		}
		if before, twice := seen[name]; twice {
			message := fmt.Sprintf("%q stands twice in %s", m.key, where)
			if before != m.key {
				message = fmt.Sprintf("%q and %q in %s are the same", before, m.key, where)
			}
			r.fault(Error, m.line, server, message, "keep one of them")
			continue
		}
		seen[name] = m.key
		if ok {
			if m.value.kind != null { // as if it were not there
				read(m)
			}
			continue
		}
		if slices.Contains(quiet, name) || strings.HasPrefix(m.key, "x-") || strings.HasPrefix(m.key, "_") ||
			strings.HasPrefix(m.key, "$") || strings.HasPrefix(m.key, "//") || m.key == "#" {
			continue
		}
		known := make([]string, 0, len(fields))
		for k := range fields {
			known = append(known, k)
		}
		slices.Sort(known)
		suggestion := didYouMean(snake(m.key), known)
		if suggestion == "" {
			suggestion = "it has no effect"
		}
		r.fault(Warning, m.line, server, fmt.Sprintf("%q in %s is not known", m.key, where), suggestion)
	}
}

// snake turns startTimeout and start-timeout into start_timeout.
func snake(key string) string {
	var b strings.Builder
	upper := false
	for i, c := range key {
		switch {
		case c >= 'A' && c <= 'Z':
			if i > 0 && !upper {
				b.WriteByte('_')
			}
			b.WriteRune(c - 'A' + 'a')
		case c == '-':
			b.WriteByte('_')
		default:
			b.WriteRune(c)
		}
		upper = c >= 'A' && c <= 'Z'
	}
	return b.String()
}

// is checks the kind of a member's value.
func (r *reader) is(m member, server string, want ...kind) bool {
	if slices.Contains(want, m.value.kind) {
		return true
	}
	words := make([]string, len(want))
	for i, k := range want {
		words[i] = k.String()
	}
	suggestion := ""
	if slices.Contains(want, list) && m.value.kind == text {
		suggestion = fmt.Sprintf("write [%q, ...] with every word in its own quotes", "...")
	} else if slices.Contains(want, text) && (m.value.kind == number || m.value.kind == boolean) {
		suggestion = "put it in quotes"
	}
	r.fault(Error, m.value.line, server,
		fmt.Sprintf("%q must be %s, not %s", m.key, strings.Join(words, " or "), m.value.kind), suggestion)
	return false
}

// expand expands the variables of a string and reports those that are missing.
func (r *reader) expand(s string, line int, server, where string) value {
	v, faults := r.vars.expand(s)
	for _, f := range faults {
		r.fault(Error, line, server, where+": "+f.message, f.suggestion)
	}
	if strings.ContainsRune(v.text, 0) {
		r.fault(Error, line, server, where+" holds a NUL character", "take it out")
		v.text = ""
	}
	return v
}

// root reads the whole file. It reports whether the file is a configuration.
func (r *reader) root(root *node) bool {
	if root.kind != object {
		r.fault(Error, root.line, "", "the file is "+root.kind.String()+", not an object", `begin with {"mcpServers": {...}} or servers:`)
		return false
	}
	switch mcp := root.find("mcp"); {
	case root.find("mcpServers") != nil:
		r.clientFile(root)
	case root.find("servers") != nil:
		r.ownFile(root)
	case mcp.find("servers") != nil:
		r.servers(mcp.find("servers"), false)
	default:
		r.noServers(root)
		return false
	}
	r.finish()
	return true
}

// noServers explains a file without servers.
func (r *reader) noServers(root *node) {
	forms := []string{"mcpServers", "servers"}
	bare := len(root.members) > 0
	for _, m := range root.members {
		if s := didYouMean(m.key, forms); s != "" && m.value.kind == object {
			r.fault(Error, m.line, "", fmt.Sprintf("there are no servers here: %q is not known", m.key), s)
			return
		}
		bare = bare && (m.value.find("command") != nil || m.value.find("url") != nil)
	}
	suggestion := `write {"mcpServers": {NAME: {"command": ..., "args": [...]}}}`
	if bare {
		suggestion = `put all of it into {"mcpServers": ...}`
	}
	r.fault(Error, root.line, "", "there are no servers here", suggestion)
}

// clientFile reads a file that a client uses too. Its other keys are the
// client's settings.
func (r *reader) clientFile(root *node) {
	seen := false
	for _, m := range root.members {
		switch m.key {
		case "mcpServers":
			if seen {
				r.fault(Error, m.line, "", `"mcpServers" stands twice in the file`, "join them")
				continue
			}
			seen = true
			r.servers(m.value, true)
		case "servers":
			r.fault(Warning, m.line, "", `"servers" is not read where there is "mcpServers"`, "join them")
		case "specbox":
			if r.is(m, "", object) {
				r.fields(m.value, "", `"specbox"`, r.houseFields(), nil)
			}
		case "projects":
			for _, p := range m.value.members {
				if s := p.value.find("mcpServers"); s != nil && len(s.members) > 0 {
					r.fault(Note, p.line, "", "servers of single projects are not read", `copy them into the "mcpServers" of the file to have them`)
					break
				}
			}
		}
	}
}

// ownFile reads SpecBox's own form, or VS Code's.
func (r *reader) ownFile(root *node) {
	fields := r.houseFields()
	fields["servers"] = func(m member) { r.servers(m.value, false) }
	r.fields(root, "", "the file", fields, []string{"inputs", "version", "name", "description", "sandbox"})
}

// finish fills in defaults and checks what concerns several servers.
func (r *reader) finish() {
	c := r.config
	if c.Listen == "" {
		c.Listen = "127.0.0.1:8484"
	}
	l := &c.Limits
	setDefault(&l.Request, 64<<20)
	setDefault(&l.Message, 256<<20)
	setDefault(&l.Sandboxes, 64)
	setDefault(&l.Starts, max(2, runtime.NumCPU()))
	setDefault(&l.Session, time.Hour)
	if len(c.Servers) == 0 && !slices.ContainsFunc(r.faults, func(f Fault) bool { return f.Severity == Error }) {
		r.fault(Warning, 1, "", "there is no server in this file", `add one: NAME: {command: ..., args: [...]}`)
	}
	r.finishForesight()
	r.checkPrefixes()
	r.checkTenants()
	r.checkListen()

	disabled := map[string]bool{}
	for _, s := range c.Servers {
		disabled[s.Name] = s.Disabled
	}
	errs := map[string]string{}
	for i := range r.faults {
		f := &r.faults[i]
		if f.Severity != Error || f.Server == "" {
			continue
		}
		if disabled[f.Server] {
			f.Severity = Warning // what is not used cannot be in the way
		} else if errs[f.Server] == "" {
			errs[f.Server] = f.Message
		}
	}
	for _, s := range c.Servers {
		if e := errs[s.Name]; e != "" {
			s.Unready = e
		}
	}
}

func setDefault[T comparable](p *T, def T) {
	var zero T
	if *p == zero {
		*p = def
	}
}
