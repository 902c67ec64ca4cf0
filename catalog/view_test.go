package catalog_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/specbox/specbox/catalog"
)

// TestListsAreTheServersBytes: all but the name is as the server wrote it, and
// alone the name too.
func TestListsAreTheServersBytes(t *testing.T) {
	s := open(t, t.TempDir())
	e := fetch(t, fixed(map[string]string{
		catalog.ToolsList:   `{"tools":[` + strings.Join(awkward, ",") + `]}`,
		catalog.PromptsList: `{"prompts":[{"title":"<p>","name":"p"}]}`,
	}), initAll, catalog.Bounds{})
	put(t, s, e)
	var want []string
	for _, raw := range awkward {
		for _, name := range []string{"html", "lines", "big", "float", "twice", "space", "broken"} {
			raw = strings.Replace(raw, `"`+name+`"`, `"x__`+name+`"`, 1)
		}
		want = append(want, strings.Replace(raw, `"escap\u0065d"`, `"x__escaped"`, 1))
	}
	v := s.View("", "none", members("x"))
	if got, want := string(v.List(catalog.ToolsList)), `{"tools":[`+strings.Join(want, ",")+`]}`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got, want := string(v.List(catalog.PromptsList)), `{"prompts":[{"title":"<p>","name":"x__p"}]}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if _, tool, raw, ok := v.Tool("x__escaped"); !ok || tool != "escaped" || string(raw) != awkward[6] {
		t.Errorf("got %s, %s, %v", tool, raw, ok)
	}
	if server, prompt, _, ok := v.Prompt("x__p"); !ok || server != "x" || prompt != "p" {
		t.Errorf("got %s, %s, %v", server, prompt, ok)
	}
	one := s.Single("", "none", members("x")[0])
	if got, want := string(one.List(catalog.ToolsList)), `{"tools":[`+strings.Join(awkward, ",")+`]}`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	for method, want := range map[string]string{
		catalog.ResourcesList: `{"resources":[]}`, catalog.TemplatesList: `{"resourceTemplates":[]}`, "tools/call": "",
	} {
		if got := string(v.List(method)); got != want {
			t.Errorf("%s: got %s, want %s", method, got, want)
		}
	}
	for _, l := range []string{catalog.ToolsList, catalog.PromptsList} {
		if !json.Valid(v.List(l)) {
			t.Errorf("%s is no JSON", l)
		}
	}
}

// TestABrokenServerEmptiesNobodysList is that law.
func TestABrokenServerEmptiesNobodysList(t *testing.T) {
	s := open(t, t.TempDir())
	put(t, s, offer("a", "x"))
	put(t, s, offer("c", "x"))
	if err := s.SetError(catalog.Key{Server: "b", Hash: "h", Fingerprint: "none"}, errors.New(`server "b": exit status 1`)); err != nil {
		t.Fatal(err)
	}
	v := s.View("", "f", members("a", "b", "c"))
	if got := string(v.List(catalog.ToolsList)); got != `{"tools":[{"name":"a__x"},{"name":"c__x"}]}` {
		t.Errorf("got %s", got)
	}
	if m := v.Missing(); len(m) != 1 || m[0].Server != "b" {
		t.Errorf("missing %v", m)
	}
	if m := v.Inexact(); len(m) != 2 || m[0].Server != "a" || m[1].Server != "c" {
		t.Errorf("inexact %v", m)
	}
	if m := s.View("", "none", members("a", "b", "c")).Inexact(); m != nil {
		t.Errorf("inexact with the fingerprint of the entry: %v", m)
	}
	if errs := s.View("", "none", members("a", "b", "c")).Errors(); len(errs) != 1 || errs["b"] != `server "b": exit status 1` {
		t.Errorf("errors %v", errs)
	}
	if v.Entry("b") != nil || v.Entry("a") == nil || v.Entry("z") != nil {
		t.Error("entries are those of others")
	}
}

func TestAllowedTools(t *testing.T) {
	s := open(t, t.TempDir())
	put(t, s, offer("x", "read_file", "read_dir", "write", "we[ird", "a/b"))
	for _, c := range []struct {
		allowed, except []string
		want            string
	}{
		{nil, nil, "read_file read_dir write we[ird a/b"},
		{[]string{"read_*"}, nil, "read_file read_dir"},
		{[]string{"write", "nothing"}, nil, "write"},
		{[]string{"we[ird", "a/b"}, nil, "we[ird a/b"},
		{[]string{"none"}, nil, ""},
		{nil, []string{"read_*", "a/b"}, "write we[ird"},
		{[]string{"read_*"}, []string{"read_dir"}, "read_file"},
	} {
		m := catalog.Member{Server: "x", Hash: "h", Allowed: c.allowed, Except: c.except}
		for _, v := range []*catalog.View{s.View("", "none", []catalog.Member{m}), s.Single("", "none", m)} {
			var got []string
			for _, r := range v.Tools() {
				got = append(got, r.Tool)
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("%q: got %q, want %s", c.allowed, got, c.want)
			}
			_, _, _, alone := v.Tool("write")
			_, _, _, prefixed := v.Tool("x__write")
			if (alone || prefixed) != strings.Contains(c.want, "write") {
				t.Errorf("%q: whether write can be called is not whether it is listed", c.allowed)
			}
		}
	}
}

func TestInstructionsOfAllServers(t *testing.T) {
	s := open(t, t.TempDir())
	with := func(server, instructions string) {
		e := offer(server)
		b, _ := json.Marshal(map[string]any{"instructions": instructions})
		e.Init = b
		put(t, s, e)
	}
	with("a", "Use <read> first.\n")
	with("b", "")
	with("c", "Ünïcode & more")
	if got, want := s.View("", "none", members("a", "b", "c", "missing")).Instructions(),
		"# a\n\n(Names of this server's tools and prompts begin with a__ here.)\n\nUse <read> first.\n\n"+
			"# c\n\n(Names of this server's tools and prompts begin with c__ here.)\n\nÜnïcode & more"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := s.View("", "none", prefixed("", members("a"))).Instructions(), "# a\n\nUse <read> first."; got != want {
		t.Errorf("without a prefix: got %q, want %q", got, want)
	}
	if got := s.Single("", "none", members("a")[0]).Instructions(); got != "Use <read> first.\n" {
		t.Errorf("alone: got %q", got)
	}
	if got := s.Single("", "none", members("missing")[0]).Instructions(); got != "" {
		t.Errorf("missing: got %q", got)
	}
	for _, odd := range []string{"", "x"} {
		with("huge", odd+strings.Repeat("ü", 1<<20))
		got := s.View("", "none", members("huge", "a")).Instructions()
		if len(got) > 70<<10 || !strings.Contains(got, "\n[cut]\n\n# a\n") || !utf8.ValidString(got) || !strings.HasSuffix(got, "first.") {
			t.Errorf("got %d bytes", len(got))
		}
	}
}

func TestCapabilitiesOfAllServers(t *testing.T) {
	s := open(t, t.TempDir())
	for server, caps := range map[string]string{
		"tools": `{"tools":{}}`, "none": `{}`, "res": `{"resources":{"subscribe":true}}`, "nosub": `{"resources":{"subscribe":false}}`,
		"rest": `{"logging":{},"completions":{},"prompts":{}}`, "null": `{"logging":null}`,
	} {
		e := offer(server)
		e.Init = []byte(`{"capabilities":` + caps + `}`)
		put(t, s, e)
	}
	silent := offer("silent", "t")
	silent.Init = []byte(`{}`)
	put(t, s, silent)
	for servers, want := range map[string]catalog.Capabilities{
		"none missing null": {},
		"silent":            {Tools: true},
		"nosub tools":       {Tools: true, Resources: true},
		"nosub res":         {Resources: true, Subscribe: true},
		"rest":              {Prompts: true, Logging: true, Completions: true},
	} {
		if got := s.View("", "none", members(strings.Fields(servers)...)).Capabilities(); got != want {
			t.Errorf("%s: got %+v, want %+v", servers, got, want)
		}
	}
}

// TestEqualViewsAreOne: sessions share what they see, until it changes.
func TestEqualViewsAreOne(t *testing.T) {
	s := open(t, t.TempDir())
	put(t, s, offer("a", "x"))
	put(t, s, offer("b", "x"))
	ms := members("a", "b")
	v := s.View("", "f1", ms)
	if s.View("alice", "f2", members("a", "b")) != v {
		t.Error("an equal view is made twice")
	}
	allowed := members("a", "b")
	allowed[1].Allowed = []string{"y"}
	except := members("a", "b")
	except[1].Except = []string{"y"}
	for name, other := range map[string]*catalog.View{
		"exact": s.View("", "none", ms), "order": s.View("", "f1", members("b", "a")), "fewer": s.View("", "f1", members("a")),
		"allowed": s.View("", "f1", allowed), "except": s.View("", "f1", except), "prefix": s.View("", "f1", prefixed("", members("a", "b"))),
		"single": s.Single("", "f1", ms[0]),
	} {
		if other == v {
			t.Errorf("%s: another view is the same", name)
		}
	}
	put(t, s, at(offer("b", "x", "y"), "alice", "h", "f1"))
	if s.View("bob", "f1", ms) != v {
		t.Error("a tenant's own entry changes what others see")
	}
	mine := s.View("alice", "f1", ms)
	if got := mine.Differs(v); !slices.Equal(got, []string{catalog.ToolsList}) || len(mine.Tools()) != 3 {
		t.Errorf("differs in %v, tools %v", got, mine.Tools())
	}
	put(t, s, offer("b", "x"))
	if again := s.View("", "f1", ms); again == v || again.Differs(v) != nil {
		t.Error("a view is not renewed, or differs without reason")
	}
}

func TestURITemplates(t *testing.T) {
	s := open(t, t.TempDir())
	for _, c := range []struct {
		template, uri string
		want          bool
	}{
		{"file:///{x}", "file:///a%20b.txt", true},
		{"file:///{x}", "file:///a b", true},
		{"file:///{x}", "file:///a/b", false},
		{"file:///{x}", "file://", false},
		{"file:///{+x}", "file:///a/b?c#d", true},
		{"file://{/x}", "file:///a", true},
		{"file://{/x}", "file:///a/b", false},
		{"file://{/x,y}", "file:///a/b", true},
		{"file://{/x*}", "file:///a/b/c", true},
		{"file://{/x*}/end", "file:///a/b/end", true},
		{"file://{/x*}/end", "file:///a/b/fin", false},
		{"a:b{?x,y}", "a:b", true},
		{"a:b{?x,y}", "a:b?x=1&y=2", true},
		{"a:b{?x,y}", "a:b/x=1", false},
		{"a:b?q=1{&x}", "a:b?q=1&x=2", true},
		{"a:{x}.{y}", "a:b.c.d", true},
		{"a:{x}{.y}", "a:b.json", true},
		{"a:{x*}", "a:b,c,d", true},
		{"a:{x}{#frag}", "a:b#c/d", true},
		{"a:{x}{;p}", "a:b;p=1", true},
		{"a:{x:3}/z", "a:abc/z", true},
		{"a:{x}/b/{y}/c", "a:1/b/2/c", true},
		{"a:{x}/b/{y}/c", "a:1/b/2/d", false},
		{"a:{x", "a:y", false},
		{"a:}x{y}", "a:}x1", false},
		{"a:{}", "a:x", false},
		{"a:" + strings.Repeat("{x}", 40), "a:y", false},
	} {
		e := offer("s")
		e.Templates = []catalog.Item{{Name: c.template, Raw: fmt.Appendf(nil, `{"uriTemplate":%q}`, c.template)}}
		put(t, s, e)
		other := offer("t") // has the same scheme, so that the template alone decides
		other.Resources = []catalog.Item{{Name: c.template[:strings.Index(c.template, ":")] + ":", Raw: []byte(`{"uri":"x"}`)}}
		put(t, s, other)
		server, own, ok := s.View("", "none", members("s", "t")).Resource(c.uri)
		if ok != c.want || (ok && (server != "s" || own != c.uri)) {
			t.Errorf("%s and %s: %s of %s, %v; want %v", c.template, c.uri, own, server, ok, c.want)
		}
	}
}

// TestTheMostSpecialTemplateWins: one that matches everything takes nothing
// from others, nor what has the form that is ours.
func TestTheMostSpecialTemplateWins(t *testing.T) {
	s := open(t, t.TempDir())
	for server, templates := range map[string][]string{"greedy": {"{+all}"}, "files": {"file:///{+path}"}, "logs": {"file:///var/log/{name}"}} {
		e := offer(server)
		for _, text := range templates {
			e.Templates = append(e.Templates, catalog.Item{Name: text, Raw: fmt.Appendf(nil, `{"uriTemplate":%q}`, text)})
		}
		put(t, s, e)
	}
	v := s.View("", "none", members("greedy", "files", "logs"))
	for uri, want := range map[string]string{
		"file:///var/log/x": "logs", "file:///var/log/x/y": "files", "http://x": "greedy", "specbox://files/http%3A%2F%2Fx": "files",
	} {
		if server, _, _ := v.Resource(uri); server != want {
			t.Errorf("%s leads to %s, want %s", uri, server, want)
		}
	}
}

// offerMany returns an entry with n tools of about a kilobyte.
func offerMany(server string, n int) *catalog.Entry {
	e := offer(server)
	for i := range n {
		name := fmt.Sprintf("tool_%d", i)
		e.Tools = append(e.Tools, catalog.Item{Name: name, Raw: fmt.Appendf(nil, `{"description":%q,"name":%q}`, strings.Repeat("what it does. ", 70), name)})
	}
	return e
}

// BenchmarkToolsList answers tools/list of 900 tools as a session does: from
// the view that it holds, from an equal one, and from a new one.
func BenchmarkToolsList(b *testing.B) {
	s := open(b, b.TempDir())
	var ms []catalog.Member
	for i := range 20 {
		name := fmt.Sprint("server", i)
		put(b, s, offerMany(name, 45))
		ms = append(ms, catalog.Member{Server: name, Hash: "h"})
	}
	v := s.View("", "none", ms)
	b.Run("held", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if len(v.List(catalog.ToolsList)) < 900_000 {
				b.Fatal("short")
			}
		}
	})
	b.Run("equal", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if len(s.View("", "none", ms).List(catalog.ToolsList)) < 900_000 {
				b.Fatal("short")
			}
		}
	})
	b.Run("new", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			ms[0].Allowed = []string{"tool_*", fmt.Sprint(i)}
			if len(s.View("", "none", ms).List(catalog.ToolsList)) < 900_000 {
				b.Fatal("short")
			}
		}
	})
}

func BenchmarkOpen(b *testing.B) {
	dir := b.TempDir()
	s := open(b, dir)
	for i := range 20 {
		put(b, s, offerMany(fmt.Sprint("server", i), 45))
	}
	for b.Loop() {
		open(b, dir)
	}
}
