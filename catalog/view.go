package catalog

import (
	"bytes"
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/specbox/specbox/wire"
)

// A Member is a server that takes part in a view.
type Member struct {
	Server  string
	Hash    string   // of its configuration
	Prefix  *string  // of its tool and prompt names; nil means Server and "__"
	Allowed []string // tools: names, or patterns of path.Match; empty means all
	Except  []string // tools that are not shown, whatever Allowed says
}

func (m Member) prefix() string {
	if m.Prefix != nil {
		return *m.Prefix
	}
	return m.Server + "__"
}

func (m Member) allows(tool string) bool {
	matches := func(pattern string) bool {
		ok, err := path.Match(pattern, tool)
		return pattern == tool || (ok && err == nil)
	}
	return (len(m.Allowed) == 0 || slices.ContainsFunc(m.Allowed, matches)) && !slices.ContainsFunc(m.Except, matches)
}

// A Row is a tool as it is listed for people and scripts.
type Row struct {
	Name   string `json:"name"` // as clients see it
	Server string `json:"server"`
	Tool   string `json:"tool"` // the server's own name of it
}

// Capabilities says what any server of a view declares.
type Capabilities struct {
	Tools, Prompts, Resources       bool
	Subscribe, Logging, Completions bool
}

// A View is what one session sees of the catalogue at one moment. It is
// immutable and safe for concurrent use; sessions that see the same share one.
type View struct {
	single  bool
	members []resolved
	lists   map[string][]byte // method -> result

	tools     map[string]ref
	prompts   map[string]ref
	resources map[string]ref
	templates map[string]ref
	routes    []route // templates that can be matched, the most special first
	shown     map[shownKey]string
	rows      []Row

	instructions string
	capabilities Capabilities
}

// A resolved member is one with its entry, which is nil if it was never read.
type resolved struct {
	Member
	entry   *Entry
	exact   bool
	problem string
}

// A ref is what a name stands for.
type ref struct {
	server, own string
	raw         []byte // as the server wrote it
}

// A route leads from URIs to a server.
type route struct {
	server          string
	wrapped         bool // exposed is in the form that is ours
	exposed, theirs *template
}

type shownKey struct{ server, uri string }

// View returns what a session of a tenant, whose client's capabilities have
// that fingerprint, sees of all servers at once. It is cheap where an equal
// view was made before; else new names are given and kept, which may touch the
// disk. A member that was never read has no items in it.
func (s *Store) View(tenant, fingerprint string, members []Member) *View {
	return s.view(tenant, fingerprint, members, false)
}

// Single is like View for one server alone: all names and URIs are its own.
func (s *Store) Single(tenant, fingerprint string, m Member) *View {
	return s.view(tenant, fingerprint, []Member{m}, true)
}

func (s *Store) view(tenant, fingerprint string, members []Member, single bool) *View {
	x := s.index.Load()
	rs := make([]resolved, len(members))
	for i, m := range members {
		k := Key{Tenant: tenant, Server: m.Server, Hash: m.Hash, Fingerprint: fingerprint}
		rs[i] = resolved{Member: m, problem: x.problem(k)}
		rs[i].entry, rs[i].exact = x.lookup(k)
	}
	if v := s.views.find(rs, single); v != nil {
		return v
	}
	var entries []*Entry
	for _, r := range rs {
		entries = append(entries, r.entry)
	}
	s.used(entries)
	v := s.build(rs, single)
	s.views.add(v)
	return v
}

// maxViews bounds how many views are kept for sessions to come. Clients have
// different capabilities, and tenants different entries, but most see the same.
const maxViews = 32

// views remembers the views made last.
type views struct {
	mu   sync.Mutex
	last []*View // the newest last
}

func (c *views) find(rs []resolved, single bool) *View {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, v := range slices.Backward(c.last) {
		if v.single == single && slices.EqualFunc(v.members, rs, sameMember) {
			c.last = append(slices.Delete(c.last, i, i+1), v)
			return v
		}
	}
	return nil
}

func (c *views) add(v *View) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.last) >= maxViews {
		c.last = slices.Delete(c.last, 0, 1)
	}
	c.last = append(c.last, v)
}

func sameMember(a, b resolved) bool {
	return a.entry == b.entry && a.exact == b.exact && a.problem == b.problem && a.Server == b.Server &&
		a.Hash == b.Hash && a.prefix() == b.prefix() && slices.Equal(a.Allowed, b.Allowed) && slices.Equal(a.Except, b.Except)
}

// A listed item takes part in a view.
type listed struct {
	owner
	list list
	raw  []byte
}

func (s *Store) build(rs []resolved, single bool) *View {
	v := &View{
		single: single, members: rs, lists: map[string][]byte{}, shown: map[shownKey]string{},
		tools: map[string]ref{}, prompts: map[string]ref{}, resources: map[string]ref{}, templates: map[string]ref{},
	}
	items := collect(rs)
	names := make([]string, len(items))
	if single {
		for i, it := range items {
			names[i] = it.own
		}
	} else {
		owners := make([]owner, len(items))
		for i, it := range items {
			owners[i] = it.owner
		}
		names = s.names.assign(owners)
	}
	texts := map[string][][]byte{}
	for i, it := range items {
		name, raw := names[i], it.raw
		if name != it.own {
			raw = wire.Replace(raw, wire.Quote(name), it.list.name)
		}
		texts[it.list.method] = append(texts[it.list.method], raw)
		v.enter(it, name)
	}
	for _, l := range lists {
		v.lists[l.method] = slices.Concat([]byte(`{"`+l.member+`":[`), bytes.Join(texts[l.method], []byte(",")), []byte("]}"))
	}
	v.lead(items, names)
	v.declare()
	v.instructions = v.instruct()
	return v
}

// collect returns the items of all members, members in order.
func collect(rs []resolved) []listed {
	kinds := map[string]kind{ToolsList: toolKind, PromptsList: promptKind, ResourcesList: resourceKind, TemplatesList: templateKind}
	var out []listed
	for _, r := range rs {
		if r.entry == nil {
			continue
		}
		for _, l := range lists {
			k, prefix := kinds[l.method], r.prefix()
			if k.isURI() {
				prefix = ""
			}
			for _, it := range r.entry.List(l.method) {
				if k == toolKind && !r.allows(it.Name) {
					continue
				}
				out = append(out, listed{owner{k, r.Server, prefix, it.Name}, l, it.Raw})
			}
		}
	}
	return out
}

// enter makes an item findable by its exposed name.
func (v *View) enter(it listed, name string) {
	to := ref{it.server, it.own, it.raw}
	switch it.kind {
	case toolKind:
		v.tools[name] = to
		v.rows = append(v.rows, Row{Name: name, Server: it.server, Tool: it.own})
	case promptKind:
		v.prompts[name] = to
	case resourceKind:
		v.resources[name] = to
		v.shown[shownKey{it.server, it.own}] = name
	case templateKind:
		v.templates[name] = to
	}
}

// lead makes the routes of the templates among items.
func (v *View) lead(items []listed, names []string) {
	count := map[string]int{}
	for i, it := range items {
		if it.kind != templateKind || count[it.server] == maxRoutes {
			continue
		}
		exposed, theirs := parseTemplate(names[i]), parseTemplate(it.own)
		if exposed != nil && theirs != nil {
			count[it.server]++
			v.routes = append(v.routes, route{it.server, strings.HasPrefix(names[i], wrapScheme), exposed, theirs})
		}
	}
	slices.SortStableFunc(v.routes, func(a, b route) int { return cmp.Compare(b.exposed.literal, a.exposed.literal) })
}

func (v *View) declare() {
	for _, r := range v.members {
		if r.entry == nil {
			continue
		}
		c, init := &v.capabilities, r.entry.Init
		c.Tools = c.Tools || declares(init, "tools") || len(r.entry.Tools) > 0
		c.Prompts = c.Prompts || declares(init, "prompts")
		c.Resources = c.Resources || declares(init, "resources")
		c.Subscribe = c.Subscribe || declares(init, "resources", "subscribe")
		c.Logging = c.Logging || declares(init, "logging")
		c.Completions = c.Completions || declares(init, "completions")
	}
}

const (
	maxInstructions = 64 << 10 // bytes of the instructions of all servers
	minInstructions = 1 << 10  // bytes that each server has at least
)

// instruct returns the instructions of all servers, each under its name. They
// speak of tools by the server's own names, so the prefix is told with them.
func (v *View) instruct() string {
	if v.single {
		if e := v.members[0].entry; e != nil {
			return wire.Str(e.Init, "instructions")
		}
		return ""
	}
	type text struct{ server, prefix, body string }
	var texts []text
	for _, r := range v.members {
		if r.entry == nil {
			continue
		}
		if body := strings.TrimSpace(wire.Str(r.entry.Init, "instructions")); body != "" {
			texts = append(texts, text{r.Server, sanitise(r.prefix()), body})
		}
	}
	var b strings.Builder
	for i, t := range texts {
		share := max(minInstructions, (maxInstructions-b.Len())/(len(texts)-i))
		if i > 0 {
			b.WriteString("\n\n")
		}
		fmt.Fprintf(&b, "# %s\n\n", t.server)
		if t.prefix != "" {
			fmt.Fprintf(&b, "(Names of this server's tools and prompts begin with %s here.)\n\n", t.prefix)
		}
		b.WriteString(cut(t.body, share))
	}
	return b.String()
}

// cut shortens s to about n bytes, at a character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "\n[cut]"
}

// List returns the result of a list method, all on one page, or nil if it is no
// list method. Items are as the servers wrote them but for their names. The
// caller must not change it.
func (v *View) List(method string) []byte { return v.lists[method] }

// Tool returns what a tool name stands for: the server, its own name of the
// tool, and the tool as the server wrote it.
func (v *View) Tool(name string) (server, tool string, raw []byte, ok bool) {
	to, ok := v.tools[name]
	return to.server, to.own, to.raw, ok
}

// Prompt is like Tool for a prompt.
func (v *View) Prompt(name string) (server, prompt string, raw []byte, ok bool) {
	to, ok := v.prompts[name]
	return to.server, to.own, to.raw, ok
}

// Template is like Tool for a URI template, as completions name it.
func (v *View) Template(text string) (server, own string, raw []byte, ok bool) {
	to, ok := v.templates[text]
	return to.server, to.own, to.raw, ok
}

// Resource returns the server to ask for a URI, and the URI as that server
// knows it. Beside what is listed it takes what matches a listed template, the
// most special one, what [View.Shown] returned, and, since servers need not
// list all that they mention, URIs whose scheme only one server uses, or any
// if only one server has resources.
func (v *View) Resource(uri string) (server, own string, ok bool) {
	if v.single {
		return v.members[0].Server, uri, true
	}
	if to, ok := v.resources[uri]; ok {
		return to.server, to.own, true
	}
	wrapped := strings.HasPrefix(uri, wrapScheme)
	for _, r := range v.routes {
		if r.wrapped != wrapped { // a template that matches everything must not take them
			continue
		}
		if captures, ok := r.exposed.match(uri); ok {
			if own, ok := r.theirs.fill(captures); ok {
				return r.server, own, true
			}
		}
	}
	if wrapped {
		server, own, ok := unwrap(uri)
		return server, own, ok && slices.ContainsFunc(v.members, func(r resolved) bool { return r.Server == server })
	}
	if server, ok := v.only(func(e *Entry) bool { return usesScheme(e, uri) }); ok {
		return server, uri, true
	}
	server, ok = v.only(func(e *Entry) bool { return declares(e.Init, "resources") })
	return server, uri, ok
}

// only returns the one server whose entry has a property.
func (v *View) only(has func(*Entry) bool) (server string, ok bool) {
	for _, r := range v.members {
		if r.entry == nil || !has(r.entry) {
			continue
		}
		if ok {
			return "", false
		}
		server, ok = r.Server, true
	}
	return server, ok
}

func usesScheme(e *Entry, uri string) bool {
	scheme, _, ok := strings.Cut(uri, ":")
	if !ok || scheme == "" {
		return false
	}
	has := func(it Item) bool { return strings.HasPrefix(it.Name, scheme+":") }
	return slices.ContainsFunc(e.Resources, has) || slices.ContainsFunc(e.Templates, has)
}

// Shown returns the URI under which clients know a URI of a server, for what
// the server says of it: [View.Resource] leads back.
func (v *View) Shown(server, uri string) string {
	if name, ok := v.shown[shownKey{server, uri}]; ok {
		return name
	}
	if to, own, ok := v.Resource(uri); ok && to == server && own == uri {
		return uri
	}
	return wrapURI(server, uri)
}

// Instructions returns what the servers want the model to know, each server's
// under its name and cut if all are too long; of a single server as it is.
func (v *View) Instructions() string { return v.instructions }

// Capabilities returns what any server of the view declares.
func (v *View) Capabilities() Capabilities { return v.capabilities }

// Tools returns a row for each tool, in the order of the list.
func (v *View) Tools() []Row { return slices.Clone(v.rows) }

// Entry returns the entry that a server takes part with, or nil.
func (v *View) Entry(server string) *Entry {
	for _, r := range v.members {
		if r.Server == server {
			return r.entry
		}
	}
	return nil
}

// Missing returns the members of which nothing is known yet.
func (v *View) Missing() []Member {
	return v.which(func(r resolved) bool { return r.entry == nil })
}

// Inexact returns the members that are shown by an entry of other capabilities,
// until one of these is there.
func (v *View) Inexact() []Member {
	return v.which(func(r resolved) bool { return r.entry != nil && !r.exact })
}

func (v *View) which(is func(resolved) bool) []Member {
	var out []Member
	for _, r := range v.members {
		if is(r) {
			out = append(out, r.Member)
		}
	}
	return out
}

// Errors returns by server why it, or one of its lists, could not be read.
func (v *View) Errors() map[string]string {
	out := map[string]string{}
	for _, r := range v.members {
		if r.problem != "" {
			out[r.Server] = r.problem
		}
	}
	return out
}

// Differs returns the list methods whose results are others than in the view
// that a session had before.
func (v *View) Differs(before *View) []string {
	var out []string
	for _, l := range lists {
		if !bytes.Equal(v.lists[l.method], before.lists[l.method]) {
			out = append(out, l.method)
		}
	}
	return out
}
