package catalog_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/specbox/specbox/catalog"
)

func open(t testing.TB, dir string) *catalog.Store {
	t.Helper()
	s, err := catalog.Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func put(t testing.TB, s *catalog.Store, e *catalog.Entry) bool {
	t.Helper()
	changed, err := s.Put(e)
	if err != nil {
		t.Fatal(err)
	}
	return changed
}

// offer returns an entry of server with these tools.
func offer(server string, tools ...string) *catalog.Entry {
	e := &catalog.Entry{
		Key:    catalog.Key{Server: server, Hash: "h", Fingerprint: "none"},
		Filled: time.Now().Round(0),
		Init:   []byte(`{"capabilities":{"tools":{}}}`),
	}
	for _, name := range tools {
		e.Tools = append(e.Tools, catalog.Item{Name: name, Raw: fmt.Appendf(nil, `{"name":%q}`, name)})
	}
	return e
}

func at(e *catalog.Entry, tenant, hash, fingerprint string) *catalog.Entry {
	e.Key.Tenant, e.Key.Hash, e.Key.Fingerprint = tenant, hash, fingerprint
	return e
}

func toolNames(e *catalog.Entry) string {
	if e == nil {
		return "nothing"
	}
	var out []string
	for _, it := range e.Tools {
		out = append(out, it.Name)
	}
	return strings.Join(out, " ")
}

func files(t testing.TB, dir, ext string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "*"+ext))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// one returns the only file of a server.
func one(t testing.TB, dir, server string) string {
	t.Helper()
	found := files(t, dir, ".catalog")
	found = slices.DeleteFunc(found, func(f string) bool { return !strings.HasPrefix(filepath.Base(f), server+"-") })
	if len(found) != 1 {
		t.Fatalf("files of %s: %q", server, found)
	}
	return found[0]
}

func TestEntriesSurviveARestartByteForByte(t *testing.T) {
	dir := t.TempDir()
	e := offer("all/of: it")
	e.Key.Tenant = "alice"
	e.Init = []byte("{ \"capabilities\" : {}, \"big\":12345678901234567890, \"x\":\"<\u2028\" }")
	for i, raw := range awkward {
		e.Tools = append(e.Tools, catalog.Item{Name: []string{"html", "lines", "big", "float", "twice", "space", "escaped", "broken"}[i], Raw: []byte(raw)})
	}
	e.Prompts = []catalog.Item{{Name: "p", Raw: []byte("{\"name\":\"p\"\n}")}}
	e.Resources = []catalog.Item{{Name: "file:///a", Raw: []byte(`{"uri":"file:///a"}`)}}
	e.Templates = []catalog.Item{{Name: "file:///{a}", Raw: []byte(`{"uriTemplate":"file:///{a}"}`)}}
	e.Truncated, e.Notes = []string{"cut"}, []string{"left out"}
	e.Errors, e.Err = map[string]string{catalog.PromptsList: "<no>"}, "why"
	want := *e
	if !put(t, open(t, dir), e) {
		t.Error("a new entry is no change")
	}
	got, exact := open(t, dir).Lookup(want.Key)
	if !exact || got == nil {
		t.Fatal("the entry is gone")
	}
	if !got.Filled.Equal(want.Filled) {
		t.Errorf("filled %v, want %v", got.Filled, want.Filled)
	}
	want.Filled = got.Filled
	if !reflect.DeepEqual(*got, want) {
		t.Errorf("got  %q\nwant %q", *got, want)
	}
	found := files(t, dir, ".catalog")
	if len(found) != 1 || !strings.HasPrefix(filepath.Base(found[0]), "all_of__it-") {
		t.Fatalf("files are %q", found)
	}
	if info, _ := os.Stat(found[0]); info.Mode().Perm() != 0o600 {
		t.Errorf("mode is %v, want 0600", info.Mode())
	}
}

func TestLookupOrder(t *testing.T) {
	full := catalog.Fingerprint([]byte(catalog.FullCapabilities))
	s := open(t, t.TempDir())
	check := func(tenant, hash, fp, want string, wantExact bool) {
		t.Helper()
		e, exact := s.Lookup(catalog.Key{Tenant: tenant, Server: "x", Hash: hash, Fingerprint: fp})
		if toolNames(e) != want || exact != wantExact {
			t.Errorf("(%s, %s, %s): got %s, %v; want %s, %v", tenant, hash, fp, toolNames(e), exact, want, wantExact)
		}
	}
	check("", "h", "none", "nothing", false)
	put(t, s, at(offer("x", "own"), "alice", "h", "f1"))
	check("alice", "h", "f1", "own", true)
	check("alice", "h", "f2", "own", false)
	check("bob", "h", "f1", "nothing", false)
	check("", "h", "f1", "nothing", false)
	put(t, s, at(offer("x", "rich"), "", "h", full))
	check("bob", "h", "f1", "rich", false)
	put(t, s, at(offer("x", "base"), "", "h", "none"))
	check("alice", "h", "f1", "own", true)
	check("alice", "h", "f2", "base", false)
	check("bob", "h", "none", "base", true)
	check("bob", "h", full, "rich", true)
	check("bob", "h", "f1", "base", false)
	put(t, s, at(offer("x", "exact"), "", "h", "f1"))
	check("bob", "h", "f1", "exact", true)
	check("alice", "h", "f1", "own", true)
	// Equal under both sets of capabilities: any fingerprint is exact.
	put(t, s, at(offer("x", "base"), "", "h", full))
	check("bob", "h", "f2", "base", true)
	check("bob", "h", "f1", "exact", true)
	check("alice", "h", "f1", "own", true)
	// Another configuration is another server.
	check("bob", "h2", "none", "nothing", false)
	// A list that could not be read proves nothing.
	broken := at(offer("x", "base"), "", "h", full)
	broken.Errors = map[string]string{catalog.PromptsList: "no"}
	put(t, s, broken)
	check("bob", "h", "f2", "base", false)
}

func TestWhatCannotBeReadKeepsWhatWas(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	put(t, s, offer("x", "a", "b"))
	k := offer("x").Key
	if err := s.SetError(k, errors.New("it crashed")); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*catalog.Store{s, open(t, dir)} {
		if e, exact := s.Lookup(k); toolNames(e) != "a b" || !exact || e.Err != "it crashed" {
			t.Errorf("got %s, %v, %+v", toolNames(e), exact, e)
		}
	}
	partial := offer("x", "a")
	partial.Errors = map[string]string{catalog.ToolsList: "page 2: no answer"}
	if put(t, s, partial) {
		t.Error("a list that could not be read is a change")
	}
	if e, _ := s.Lookup(k); toolNames(e) != "a b" || e.Problem() != "tools/list: page 2: no answer" {
		t.Errorf("got %s, problem %q", toolNames(e), e.Problem())
	}
	if !put(t, s, offer("x", "a")) {
		t.Error("a tool less is no change")
	}
	if e, _ := s.Lookup(k); toolNames(e) != "a" || e.Problem() != "" {
		t.Errorf("got %s, problem %q", toolNames(e), e.Problem())
	}
	// A server that was never read has an error and no entry.
	k.Server = "never"
	_ = s.SetError(k, errors.New("no such program"))
	v := s.View("", "none", []catalog.Member{{Server: "never", Hash: "h"}, {Server: "x", Hash: "h"}})
	if len(v.Missing()) != 1 || v.Errors()["never"] != "no such program" || len(v.Tools()) != 1 {
		t.Errorf("missing %v, errors %v, tools %v", v.Missing(), v.Errors(), v.Tools())
	}
	if err := s.SetError(k, nil); err != nil {
		t.Fatal(err)
	}
	if v = s.View("", "none", []catalog.Member{{Server: "never", Hash: "h"}}); len(v.Errors()) != 0 {
		t.Errorf("errors %v after they were cleared", v.Errors())
	}
	if _, err := s.Put(&catalog.Entry{Key: k}); err == nil {
		t.Error("an entry that was never read is stored")
	}
}

// Why a server could not be read is told to every client, also to those whose
// capabilities nobody has read it with.
func TestAReasonIsTheSameForAll(t *testing.T) {
	s := open(t, t.TempDir())
	_ = s.SetError(catalog.Key{Server: "x", Hash: "h", Fingerprint: "none"}, errors.New("no such program"))
	for _, tenant := range []string{"", "a"} {
		v := s.View(tenant, "other", []catalog.Member{{Server: "x", Hash: "h"}})
		if got := v.Errors()["x"]; got != "no such program" {
			t.Errorf("tenant %q is told %q", tenant, got)
		}
	}
	if got := s.View("", "other", []catalog.Member{{Server: "x", Hash: "another"}}).Errors(); len(got) > 0 {
		t.Errorf("another configuration is told %q", got)
	}
	put(t, s, at(offer("x", "t"), "", "h", "third"))
	if got := s.View("", "other", []catalog.Member{{Server: "x", Hash: "h"}}).Errors(); len(got) > 0 {
		t.Errorf("a server that was read by now has the errors %q", got)
	}
}

// A server that puts megabytes into its errors fills neither memory nor disk.
func TestReasonsAreCut(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	k := catalog.Key{Server: "x", Hash: "h", Fingerprint: "none"}
	if err := s.SetError(k, errors.New(strings.Repeat("é", 1<<20))); err != nil {
		t.Fatal(err)
	}
	if e := s.Entries()[0]; len(e.Err) > 5<<10 || !utf8.ValidString(e.Err) {
		t.Errorf("%d bytes of an error are kept", len(e.Err))
	}
}

func TestOrderAloneIsNoChange(t *testing.T) {
	s := open(t, t.TempDir())
	put(t, s, offer("x", "a", "b", "c"))
	if put(t, s, offer("x", "c", "a", "b")) {
		t.Error("another order is a change")
	}
	if e, _ := s.Lookup(offer("x").Key); toolNames(e) != "a b c" {
		t.Errorf("order is %s, want a b c", toolNames(e))
	}
	other := offer("x", "a", "b", "c")
	other.Tools[1].Raw = []byte(`{"name":"b","v":2}`)
	if !put(t, s, other) {
		t.Error("another description is no change")
	}
}

func TestWatchersSeeChanges(t *testing.T) {
	s := open(t, t.TempDir())
	var got []string
	stop := s.Watch(func(c catalog.Change) {
		got = append(got, fmt.Sprintf("%s/%s %v", c.Key.Tenant, c.Key.Server, c.Lists))
	})
	k := offer("x").Key
	put(t, s, offer("x", "a"))
	put(t, s, offer("x", "a"))
	put(t, s, at(offer("x", "b"), "alice", "h", "none"))
	_ = s.SetError(k, errors.New("no"))
	_ = s.SetError(k, errors.New("no"))
	prompts := offer("x")
	prompts.Prompts = []catalog.Item{{Name: "p", Raw: []byte(`{"name":"p"}`)}}
	put(t, s, prompts)
	put(t, s, offer("empty"))
	stop()
	put(t, s, offer("x", "z"))
	want := []string{"/x [tools/list]", "alice/x [tools/list]", "/x []", "/x [tools/list prompts/list]", "/empty []"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestCorruptFilesAreSetAside(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	for _, name := range []string{"cut", "flipped", "good", "moved"} {
		put(t, s, offer(name, "a"))
	}
	edit := func(server string, f func(path string, b []byte)) {
		t.Helper()
		path := one(t, dir, server)
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		f(path, b)
	}
	write := func(path string, b []byte) {
		t.Helper()
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	edit("cut", func(p string, b []byte) { write(p, b[:len(b)/2]) })
	edit("flipped", func(p string, b []byte) { write(p, bytes.Replace(b, []byte(`"name":"a"`), []byte(`"name":"b"`), 1)) })
	edit("moved", func(p string, b []byte) { _ = os.Rename(p, filepath.Join(dir, "other.catalog")) })
	write(filepath.Join(dir, "foreign.catalog"), []byte("hello"))
	write(filepath.Join(dir, "empty.catalog"), nil)
	write(filepath.Join(dir, "newer.catalog"), []byte("specbox-catalog 2 sha256:00\nwhatever"))
	write(filepath.Join(dir, "names.log"), []byte("\x00\x01"))
	write(filepath.Join(dir, "notes.txt"), []byte("mine"))
	if err := os.Mkdir(filepath.Join(dir, "folder.catalog"), 0o700); err != nil {
		t.Fatal(err)
	}

	var log bytes.Buffer
	s, err := catalog.Open(dir, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if all := s.Entries(); len(all) != 1 || all[0].Key.Server != "good" {
		t.Errorf("entries are %v", all)
	}
	s.View("", "none", []catalog.Member{{Server: "good", Hash: "h"}})
	if got := len(files(t, dir, ".corrupt")); got != 7 {
		t.Errorf("%d files are set aside, want 7: %q", got, files(t, dir, ".corrupt"))
	}
	for _, name := range []string{"newer.catalog", "notes.txt", "names.log"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	if got := strings.Count(log.String(), "set aside"); got != 7 {
		t.Errorf("%d lines tell of it, want 7:\n%s", got, &log)
	}
	log.Reset()
	if _, err := catalog.Open(dir, slog.New(slog.NewTextHandler(&log, nil))); err != nil || strings.Contains(log.String(), "set aside") {
		t.Errorf("met again: %v\n%s", err, &log)
	}
}

func TestAFolderThatCannotBeWritten(t *testing.T) {
	if _, err := catalog.Open("/proc/no/such/folder", nil); err == nil || !strings.Contains(err.Error(), "choose another folder") {
		t.Errorf("got %v", err)
	}
	dir := filepath.Join(t.TempDir(), "gone")
	s := open(t, dir)
	put(t, s, offer("kept", "a"))
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	changed, err := s.Put(offer("x", "a"))
	if err == nil || !changed || !strings.Contains(err.Error(), `"x"`) {
		t.Errorf("got %v, %v", changed, err)
	}
	v := s.View("", "none", []catalog.Member{{Server: "x", Hash: "h"}})
	if _, tool, _, ok := v.Tool("x__a"); !ok || tool != "a" {
		t.Error("what cannot be written is not in use")
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.Refresh(); err != nil {
		t.Fatal(err)
	}
	if e, _ := s.Lookup(offer("x").Key); e == nil {
		t.Error("what cannot be written is lost by a refresh")
	}
	if e, _ := s.Lookup(offer("kept").Key); e != nil {
		t.Error("what was removed stays after a refresh")
	}
}

func TestInventedCapabilitiesDoNotFillTheDisk(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	full := catalog.Fingerprint([]byte(catalog.FullCapabilities))
	put(t, s, offer("x", "a"))
	put(t, s, at(offer("x", "b"), "", "h", full))
	for i := range 30 {
		e := at(offer("x", "c"), "", "h", fmt.Sprint(i))
		e.Filled = e.Filled.Add(time.Duration(i+1) * time.Second)
		put(t, s, e)
	}
	if got := len(files(t, dir, ".catalog")); got != 10 {
		t.Errorf("%d files, want 10", got)
	}
	for fp, want := range map[string]bool{"none": true, full: true, "29": true, "22": true, "21": false} {
		if _, exact := s.Lookup(catalog.Key{Server: "x", Hash: "h", Fingerprint: fp}); exact != want {
			t.Errorf("fingerprint %s: exact is %v, want %v", fp, exact, want)
		}
	}
}

func TestOldConfigurationsGo(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	age := func(hash string, days int) {
		before := files(t, dir, ".catalog")
		put(t, s, at(offer("x", "a"), "", hash, "none"))
		for _, f := range files(t, dir, ".catalog") {
			if !slices.Contains(before, f) {
				then := time.Now().AddDate(0, 0, -days)
				if err := os.Chtimes(f, then, then); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for hash, days := range map[string]int{"h1": 1, "h2": 40, "h3": 50, "h4": 60, "dead": 200} {
		age(hash, days)
	}
	put(t, s, offer("removed", "a"))
	then := time.Now().AddDate(0, 0, -200)
	if err := os.Chtimes(one(t, dir, "removed"), then, then); err != nil {
		t.Fatal(err)
	}
	tmp := filepath.Join(dir, ".tmp-1")
	if err := os.WriteFile(tmp, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	then = time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(tmp, then, then); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	var left []string
	for _, e := range s.Entries() {
		left = append(left, e.Key.Hash)
	}
	slices.Sort(left)
	if got := strings.Join(left, " "); got != "h1 h2 h3" {
		t.Errorf("left are %s, want h1 h2 h3", got)
	}
	if _, err := os.Stat(tmp); err == nil {
		t.Error("what a crash left is still there")
	}
	// What is in use does not age.
	s.View("", "none", []catalog.Member{{Server: "x", Hash: "h3"}})
	age("h5", 1)
	age("h6", 1)
	s = open(t, dir)
	if e, _ := s.Lookup(catalog.Key{Server: "x", Hash: "h3", Fingerprint: "none"}); e == nil {
		t.Error("an entry in use is removed")
	}
	if e, _ := s.Lookup(catalog.Key{Server: "x", Hash: "h2", Fingerprint: "none"}); e != nil {
		t.Error("an entry out of use is kept")
	}
}

func TestRefreshTakesInOtherProcesses(t *testing.T) {
	dir := t.TempDir()
	a, b := open(t, dir), open(t, dir)
	var got []string
	defer b.Watch(func(c catalog.Change) { got = append(got, fmt.Sprint(c.Key.Server, c.Lists)) })()
	refresh := func(want ...string) {
		t.Helper()
		got = nil
		if err := b.Refresh(); err != nil {
			t.Fatal(err)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	put(t, a, offer("x", "a"))
	put(t, a, offer("y", "a"))
	refresh("x[tools/list]", "y[tools/list]")
	refresh()
	put(t, a, offer("x", "a", "b"))
	put(t, a, offer("y", "a"))
	refresh("x[tools/list]")
	if e, _ := b.Lookup(offer("x").Key); toolNames(e) != "a b" {
		t.Errorf("got %s", toolNames(e))
	}
	v := b.View("", "none", members("x", "y"))
	refresh()
	if b.View("", "none", members("x", "y")) != v {
		t.Error("what has not changed is read again")
	}
	if err := os.Remove(one(t, dir, "y")); err != nil {
		t.Fatal(err)
	}
	refresh("y[tools/list]")
}

// TestTwoStoresOnOneFolder lets two stores, as of two processes, write, read
// and name at once: the files stay whole and the names of both are the same.
func TestTwoStoresOnOneFolder(t *testing.T) {
	dir := t.TempDir()
	stores := []*catalog.Store{open(t, dir), open(t, dir)}
	prefix := ""
	var members []catalog.Member
	for i := range 4 {
		members = append(members, catalog.Member{Server: fmt.Sprint("s", i), Hash: "h", Prefix: &prefix})
	}
	var wg sync.WaitGroup
	for n, s := range stores {
		for w := range 3 {
			wg.Go(func() {
				for round := range 10 {
					server := fmt.Sprint("s", (round+w+n)%4)
					if _, err := s.Put(offer(server, "same", fmt.Sprint("tool", round), "only-"+server)); err != nil {
						t.Error(err)
					}
					_ = s.SetError(catalog.Key{Server: server, Hash: "h", Fingerprint: "none"}, fmt.Errorf("round %d", round))
					v := s.View("", "none", members)
					seen := map[string]bool{}
					for _, r := range v.Tools() {
						if seen[r.Name] {
							t.Errorf("two tools are named %s", r.Name)
						}
						seen[r.Name] = true
					}
					if err := s.Refresh(); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	for i := range 4 {
		put(t, stores[0], offer(fmt.Sprint("s", i), "same", fmt.Sprint("only-s", i)))
	}
	var lists []string
	for _, s := range append(stores, open(t, dir)) {
		if err := s.Refresh(); err != nil {
			t.Fatal(err)
		}
		lists = append(lists, string(s.View("", "none", members).List(catalog.ToolsList)))
	}
	if lists[0] != lists[1] || lists[0] != lists[2] {
		t.Errorf("names differ:\n%s", strings.Join(lists, "\n"))
	}
	if bad := append(files(t, dir, ".corrupt"), files(t, dir, ".tmp-*")...); len(bad) > 0 {
		t.Errorf("left over: %q", bad)
	}
}

func BenchmarkLookup(b *testing.B) {
	s := open(b, b.TempDir())
	for i := range 20 {
		put(b, s, offer(fmt.Sprint("s", i), "a"))
	}
	keys := []catalog.Key{
		{Server: "s7", Hash: "h", Fingerprint: "none"},
		{Server: "s7", Hash: "h", Fingerprint: "other", Tenant: "alice"},
		{Server: "s7", Hash: "no", Fingerprint: "other", Tenant: "alice"},
	}
	b.ReportAllocs()
	for b.Loop() {
		for _, k := range keys {
			s.Lookup(k)
		}
	}
}

func TestLookupAllocatesNothing(t *testing.T) {
	s := open(t, t.TempDir())
	put(t, s, offer("x", "a"))
	for _, k := range []catalog.Key{offer("x").Key, {Tenant: "t", Server: "x", Hash: "h", Fingerprint: "f"}, {Server: "y"}} {
		if n := testing.AllocsPerRun(100, func() { s.Lookup(k) }); n != 0 {
			t.Errorf("%+v: %v allocations", k, n)
		}
	}
}
