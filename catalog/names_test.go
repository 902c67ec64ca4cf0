package catalog_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/specbox/specbox/catalog"
)

func members(servers ...string) []catalog.Member {
	var out []catalog.Member
	for _, s := range servers {
		out = append(out, catalog.Member{Server: s, Hash: "h"})
	}
	return out
}

func prefixed(prefix string, ms []catalog.Member) []catalog.Member {
	for i := range ms {
		ms[i].Prefix = &prefix
	}
	return ms
}

// given returns "server/tool" -> exposed name.
func given(v *catalog.View) map[string]string {
	out := map[string]string{}
	for _, r := range v.Tools() {
		out[r.Server+"/"+r.Tool] = r.Name
	}
	return out
}

var legal = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

func TestNames(t *testing.T) {
	long := strings.Repeat("x", 70)
	s := open(t, t.TempDir())
	put(t, s, offer("git", "log", "a.b", "Ünïcode", "検索", long, strings.Repeat("y", 59)))
	put(t, s, offer("my server", "find"))
	got := given(s.View("", "none", members("git", "my server")))
	for tool, want := range map[string]string{
		"git/log":                        "git__log",
		"git/a.b":                        `git__a_b_[0-9a-f]{8}`,
		"git/Ünïcode":                    `git___n_code_[0-9a-f]{8}`,
		"git/検索":                         `git_____[0-9a-f]{8}`,
		"git/" + long:                    `git__x{50}_[0-9a-f]{8}`,
		"git/" + strings.Repeat("y", 59): `git__y{59}`,
		"my server/find":                 "my_server__find",
	} {
		if name := got[tool]; !regexp.MustCompile("^"+want+"$").MatchString(name) || !legal.MatchString(name) {
			t.Errorf("%s is named %q, want %s", tool, name, want)
		}
	}
	if own := given(s.Single("", "none", members("git")[0]))["git/a.b"]; own != "a.b" {
		t.Errorf("alone, a tool is named %q", own)
	}
	if got := given(s.View("", "none", prefixed("", members("my server"))))["my server/find"]; got != "find" {
		t.Errorf("with an empty prefix it is named %q", got)
	}
}

func TestFirstOwnerKeepsAName(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	put(t, s, offer("a", "b__c"))
	put(t, s, offer("a__b", "c"))
	first := given(s.View("", "none", members("a")))["a/b__c"]
	check := func(s *catalog.Store, ms []catalog.Member) {
		t.Helper()
		v := s.View("", "none", ms)
		got := given(v)
		if got["a/b__c"] != first || first != "a__b__c" {
			t.Errorf("the first owner's name became %q", got["a/b__c"])
		}
		second := got["a__b/c"]
		if second == first || !strings.HasPrefix(second, "a__b__c_") || !legal.MatchString(second) {
			t.Errorf("the second owner's name is %q", second)
		}
		if server, tool, _, ok := v.Tool(second); !ok || server != "a__b" || tool != "c" {
			t.Errorf("%s leads to %s/%s, %v", second, server, tool, ok)
		}
	}
	check(s, members("a", "a__b"))
	check(s, members("a__b", "a"))
	check(open(t, dir), members("a__b", "a"))
	second := given(open(t, dir).View("", "none", members("a__b")))["a__b/c"]
	if !strings.HasPrefix(second, "a__b__c_") {
		t.Errorf("alone, the second owner lost its name: %q", second)
	}
}

// TestNamesAreStable is the law of names, over many random configurations:
// whatever is added, reordered, or restarted, a name once given stays, and
// names are legal and unique. Half of the stores see the folder of another.
func TestNamesAreStable(t *testing.T) {
	alphabet := []string{"a", "b", "__", ".", "ü", "search", strings.Repeat("long", 15)}
	for seed := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, 1))
		word := func() string {
			w := alphabet[r.IntN(2)]
			for range r.IntN(4) {
				w += alphabet[r.IntN(len(alphabet))]
			}
			return w
		}
		dir := t.TempDir()
		stores := []*catalog.Store{open(t, dir), open(t, dir)}
		names := map[string]string{} // server, prefix, tool -> name
		prefixes := []*string{nil, new(string), new(string)}
		*prefixes[2] = "a__"
		var ms []catalog.Member
		for range 15 {
			switch i := r.IntN(len(stores)); {
			case r.IntN(4) == 0:
				stores[i] = open(t, dir)
			case r.IntN(3) == 0 || len(ms) == 0:
				name := word()
				if !slices.ContainsFunc(ms, func(m catalog.Member) bool { return m.Server == name }) {
					ms = append(ms, catalog.Member{Server: name, Hash: "h", Prefix: prefixes[r.IntN(3)]})
				}
			default:
				tools := map[string]bool{}
				for range r.IntN(6) {
					tools[word()] = true
				}
				put(t, stores[i], offer(ms[r.IntN(len(ms))].Server, slices.Sorted(maps.Keys(tools))...))
			}
			r.Shuffle(len(ms), func(i, j int) { ms[i], ms[j] = ms[j], ms[i] })
			prefix := map[string]string{}
			for _, m := range ms {
				prefix[m.Server] = "default"
				if m.Prefix != nil {
					prefix[m.Server] = *m.Prefix
				}
			}
			v := stores[r.IntN(len(stores))].View("", "none", ms)
			seen := map[string]bool{}
			for _, row := range v.Tools() {
				id := fmt.Sprintf("%q %q %q", row.Server, prefix[row.Server], row.Tool)
				if was, ok := names[id]; ok && was != row.Name {
					t.Fatalf("seed %d: %s was named %s and is named %s", seed, id, was, row.Name)
				}
				names[id] = row.Name
				if seen[row.Name] || !legal.MatchString(row.Name) {
					t.Fatalf("seed %d: %s has a bad or taken name %q", seed, id, row.Name)
				}
				seen[row.Name] = true
				if server, tool, _, ok := v.Tool(row.Name); !ok || server != row.Server || tool != row.Tool {
					t.Fatalf("seed %d: %s leads to %s/%s", seed, row.Name, server, tool)
				}
			}
		}
	}
}

// TestANameIsReleasedInTheEnd: a server that was renamed gets its names back
// when the old one was not seen for long.
func TestANameIsReleasedInTheEnd(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	put(t, s, offer("old", "read"))
	put(t, s, offer("new", "read"))
	s.View("", "none", prefixed("", members("old")))
	path := filepath.Join(dir, "names.log")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	seen := func(daysAgo int) {
		t.Helper()
		now := time.Now().UTC()
		text := strings.ReplaceAll(string(b), now.Format(time.DateOnly), now.AddDate(0, 0, -daysAgo).Format(time.DateOnly))
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	seen(6)
	if got := given(open(t, dir).View("", "none", prefixed("", members("new"))))["new/read"]; got == "read" {
		t.Error("the name went over after six days")
	}
	seen(9)
	if got := given(open(t, dir).View("", "none", prefixed("", members("new", "old"))))["old/read"]; got != "read" {
		t.Errorf("a server that takes part lost its name and got %q", got)
	}
	seen(9)
	v := open(t, dir).View("", "none", prefixed("", members("new")))
	if got := given(v)["new/read"]; got != "read" {
		t.Errorf("after nine days the name is %q", got)
	}
	if got := given(open(t, dir).View("", "none", prefixed("", members("old", "new")))); got["new/read"] != "read" || got["old/read"] == "read" {
		t.Errorf("afterwards the names are %v", got)
	}
}

// TestNamesSurviveACrashedWriter: a line that was cut is ignored, and does not
// take the next one with it.
func TestNamesSurviveACrashedWriter(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	put(t, s, offer("a", "x"))
	put(t, s, offer("b", "z", "x")) // z is the line after the cut one
	put(t, s, offer("c", "z", "x"))
	s.View("", "none", prefixed("", members("a")))
	path := filepath.Join(dir, "names.log")
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("nonsense\n{\"kind\":\"tool\",\"server\":\"b\",\"own\":\"x\",\"na"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	want := given(s.View("", "none", prefixed("", members("a", "b"))))
	for _, s := range []*catalog.Store{open(t, dir), s} {
		got := given(s.View("", "none", prefixed("", members("c", "b", "a"))))
		if got["a/x"] != "x" || got["b/x"] != want["b/x"] || got["c/x"] == "x" || got["b/z"] != "z" {
			t.Errorf("got %v, want %v and another", got, want)
		}
	}
}

// TestParallelProcessesGiveDifferentNames: stores that name at the same moment
// never give one name to two.
func TestParallelProcessesGiveDifferentNames(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	var servers []string
	for i := range 6 {
		servers = append(servers, fmt.Sprint("s", i))
		put(t, s, offer(servers[i], "read", "write", "find"))
	}
	begin := make(chan struct{})
	results := make([]map[string]string, len(servers))
	var wg sync.WaitGroup
	for i, server := range servers {
		store := open(t, dir)
		wg.Go(func() {
			<-begin
			results[i] = given(store.View("", "none", prefixed("", members(server))))
		})
	}
	close(begin)
	wg.Wait()
	owners := map[string]string{}
	for _, names := range results {
		for id, name := range names {
			if other, taken := owners[name]; taken {
				t.Errorf("%s and %s are both named %s", id, other, name)
			}
			owners[name] = id
		}
	}
	for id, name := range given(open(t, dir).View("", "none", prefixed("", members(servers...)))) {
		if owners[name] != id {
			t.Errorf("%s is named %s after a restart, which was %s", id, name, owners[name])
		}
	}
}

// TestAProcessThatHangsStopsNobody: names are given without its lock, and only
// the first view waits.
func TestAProcessThatHangsStopsNobody(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	put(t, s, offer("a", "x"))
	put(t, s, offer("b", "x"))
	hung, err := os.OpenFile(filepath.Join(dir, "names.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer hung.Close()
	if err := syscall.Flock(int(hung.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if got := given(s.View("", "none", prefixed("", members("a")))); got["a/x"] != "x" {
		t.Errorf("got %v", got)
	}
	begin := time.Now()
	got := given(s.View("", "none", prefixed("", members("b", "a"))))
	if got["a/x"] != "x" || got["b/x"] == "x" || got["b/x"] == "" {
		t.Errorf("got %v", got)
	}
	if took := time.Since(begin); took > time.Second {
		t.Errorf("the second view took %v", took)
	}
}

// TestALogThatWasReplacedIsReadAnew: what this process knew of the old one is
// not what others know.
func TestALogThatWasReplacedIsReadAnew(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	for _, server := range []string{"a", "b", "c"} {
		put(t, s, offer(server, "x", "y"))
	}
	s.View("", "none", prefixed("", members("a"))) // a has x and y
	log := `{"format":"specbox-names 1","generation":"another"}` + "\n" +
		`{"kind":"tool","server":"b","own":"y","name":"y"}` + "\n" +
		strings.Repeat(`{"server":"z","seen":"2020-01-01"}`+"\n", 50) // longer than it was
	if err := os.WriteFile(filepath.Join(dir, "names.log"), []byte(log), 0o600); err != nil {
		t.Fatal(err)
	}
	got := given(s.View("", "none", prefixed("", members("a", "b"))))
	if got["b/y"] != "y" || got["a/y"] == "y" || got["a/x"] != "x" {
		t.Errorf("got %v", got)
	}
	if got := given(open(t, dir).View("", "none", prefixed("", members("c")))); got["c/x"] == "x" {
		t.Error("a name that is in use was not kept, and is given again")
	}
}

// TestNamesDoNotGrowForEver: neither the file nor what is remembered.
func TestNamesDoNotGrowForEver(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	put(t, s, offer("good", "tool"))
	for round := range 4 {
		var tools []string
		for i := range 15_000 {
			tools = append(tools, fmt.Sprintf("r%d-%d", round, i))
		}
		put(t, s, offer("bad", tools...))
		v := s.View("", "none", members("good", "bad"))
		if len(v.Tools()) != 15_001 || given(v)["good/tool"] != "good__tool" {
			t.Fatalf("round %d: %d tools", round, len(v.Tools()))
		}
	}
	b, err := os.ReadFile(filepath.Join(dir, "names.log"))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(b), "\n"); n > 50_000 {
		t.Errorf("the log has %d lines", n)
	}
}

// Names that are long take as much room as many short ones.
func TestLongNamesDoNotFillTheDisk(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	members := []catalog.Member{{Server: "x", Hash: "h"}}
	for round := range 12 {
		var names []string
		for i := range 500 {
			names = append(names, fmt.Sprintf("%d-%d-%s", round, i, strings.Repeat("n", 8000)))
		}
		put(t, s, offer("x", names...))
		if n := len(s.View("", "none", members).Tools()); n != 500 {
			t.Fatalf("%d tools are listed", n)
		}
	}
	info, err := os.Stat(filepath.Join(dir, "names.log"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > 32<<20 {
		t.Errorf("the log of names has %d MiB after 48 MB of names, of which 4 are in use", info.Size()>>20)
	}
}

func TestSecondOwnerOfAURIIsReachable(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	with := func(server string, uris, templates []string) {
		e := offer(server)
		e.Init = []byte(`{"capabilities":{"resources":{}}}`)
		for _, u := range uris {
			e.Resources = append(e.Resources, catalog.Item{Name: u, Raw: fmt.Appendf(nil, `{"name":"n","uri":%q}`, u)})
		}
		for _, u := range templates {
			e.Templates = append(e.Templates, catalog.Item{Name: u, Raw: fmt.Appendf(nil, `{"uriTemplate":%q}`, u)})
		}
		put(t, s, e)
	}
	with("a", []string{"file:///x y", "mem://a"}, []string{"file:///{path}", "{broken"})
	with("b/2", []string{"file:///x y", "specbox://a/file%3A%2F%2F%2Fx%20y"}, []string{"file:///{path}", "{broken"})
	v := s.View("", "none", members("a", "b/2"))
	for _, s := range []*catalog.Store{s, open(t, dir)} {
		if other := s.View("", "none", members("b/2", "a")); len(other.Differs(v)) != 2 {
			t.Errorf("another order changes %v, want the order of the two lists", other.Differs(v))
		}
	}
	for _, c := range []struct {
		uri, server, own string
		ok               bool
	}{
		{"file:///x y", "a", "file:///x y", true},
		{"specbox://b%2F2/file%3A%2F%2F%2Fx%20y", "b/2", "file:///x y", true},
		{"specbox://b%2F2/specbox%3A%2F%2Fa%2Ffile%253A%252F%252F%252Fx%2520y", "b/2", "specbox://a/file%3A%2F%2F%2Fx%20y", true},
		{"specbox://a/file%3A%2F%2F%2Fx%20y", "a", "file:///x y", true},
		{"file:///z%20z", "a", "file:///z%20z", true},
		{"specbox://b%2F2/t/file%3A%2F%2F%2Fz%20z", "b/2", "file:///z%20z", true},
		{"specbox://b%2F2/other%3Ax%2Fy", "b/2", "other:x/y", true},
		{"specbox://b%2F2/t/none", "", "", false},
		{"specbox://nobody/x", "", "", false},
		{"mem://other", "a", "mem://other", true},
		{"unknown:x", "", "", false},
	} {
		server, own, ok := v.Resource(c.uri)
		if ok != c.ok || (ok && (server != c.server || own != c.own)) {
			t.Errorf("%s leads to %q of %q, %v; want %q of %q", c.uri, own, server, ok, c.own, c.server)
		}
	}
	for _, server := range []string{"a", "b/2"} {
		for _, own := range []string{"file:///x y", "file:///q", "file:///q/r", "mem://a", "new:thing", "specbox://a/x"} {
			shown := v.Shown(server, own)
			if s, o, ok := v.Resource(shown); !ok || s != server || o != own {
				t.Errorf("%s of %s is shown as %s, which leads to %s of %s, %v", own, server, shown, o, s, ok)
			}
		}
	}
	if server, own, _, ok := v.Template("specbox://b%2F2/t/file%3A%2F%2F%2F{path}"); !ok || server != "b/2" || own != "file:///{path}" {
		t.Errorf("a template leads to %s of %s, %v", own, server, ok)
	}
	if got := string(v.List(catalog.ResourcesList)); !strings.Contains(got, `{"name":"n","uri":"specbox://b%2F2/file%3A%2F%2F%2Fx%20y"}`) {
		t.Errorf("resources are %s", got)
	}
	if server, own, ok := s.Single("", "none", members("b/2")[0]).Resource("anything:at all"); !ok || server != "b/2" || own != "anything:at all" {
		t.Errorf("alone: %s of %s, %v", own, server, ok)
	}
}
