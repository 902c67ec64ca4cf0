package catalog_test

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/specbox/specbox/catalog"
)

// FuzzFile: no file makes loading fail, and what is taken for an entry is
// written again as the same.
func FuzzFile(f *testing.F) {
	e := offer("x", "a", "b")
	e.Prompts = []catalog.Item{{Name: "p", Raw: []byte(`{"name":"p"}`)}}
	e.Errors = map[string]string{catalog.ResourcesList: "no"}
	b, err := catalog.Encode(e)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	_, body, _ := bytes.Cut(b, []byte("\n"))
	f.Add(body)
	f.Add([]byte("{\"server\":\"x\"}\ntools/list 99999999999999\n{}\nend\n"))
	f.Add([]byte("{\"server\":\"x\"}\ninitialize 0\n\nend\n"))
	f.Add([]byte("specbox-catalog 1 sha256:00\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = catalog.Decode(b)
		e, err := catalog.DecodeBody(b)
		if err != nil {
			return
		}
		if y := e.Filled.Year(); y < 0 || y > 9999 {
			return // what a clock does not give
		}
		text, err := catalog.Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		again, err := catalog.Decode(text)
		if err != nil {
			t.Fatal(err)
		}
		if !again.Filled.Equal(e.Filled) {
			t.Fatalf("filled %v, was %v", again.Filled, e.Filled)
		}
		again.Filled, e.Filled = time.Time{}, time.Time{}
		if !reflect.DeepEqual(normal(again), normal(e)) {
			t.Fatalf("got  %+v\nwant %+v", again, e)
		}
	})
}

// normal makes absent and empty the same, where JSON does.
func normal(e *catalog.Entry) *catalog.Entry {
	if len(e.Errors) == 0 {
		e.Errors = nil
	}
	if len(e.Truncated) == 0 {
		e.Truncated = nil
	}
	if len(e.Notes) == 0 {
		e.Notes = nil
	}
	return e
}

// FuzzNames: no log of names makes a view fail, or two names equal.
func FuzzNames(f *testing.F) {
	head := "{\"format\":\"specbox-names 1\",\"generation\":\"g\"}\n"
	f.Add(head + "{\"kind\":\"tool\",\"server\":\"a\",\"prefix\":\"\",\"own\":\"x\",\"name\":\"x\"}\n")
	f.Add(head + "{\"kind\":\"tool\",\"server\":\"b\",\"prefix\":\"\",\"own\":\"x\",\"name\":\"x\"}\n{\"server\":\"b\",\"seen\":\"9999-01-01\"}\n")
	f.Add(head + "{\"kind\":\"resource\",\"server\":\"c\",\"own\":\"u:\",\"name\":\"specbox://a/u%3A\"}\nnull\n7\n{")
	f.Add("nothing")
	f.Fuzz(func(t *testing.T, log string) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "names.log"), []byte(log), 0o600); err != nil {
			t.Fatal(err)
		}
		s := open(t, dir)
		for _, server := range []string{"a", "b"} {
			e := offer(server, "x", "y")
			e.Resources = []catalog.Item{{Name: "u:", Raw: []byte(`{"uri":"u:"}`)}}
			put(t, s, e)
		}
		v := s.View("", "none", prefixed("", members("a", "b")))
		seen := map[string]bool{}
		for _, r := range v.Tools() {
			if seen[r.Name] || !legal.MatchString(r.Name) {
				t.Errorf("%s/%s has a bad or taken name %q", r.Server, r.Tool, r.Name)
			}
			seen[r.Name] = true
		}
		for _, server := range []string{"a", "b"} {
			if got, own, ok := v.Resource(v.Shown(server, "u:")); !ok || got != server || own != "u:" {
				t.Errorf("the resource of %s leads to %s of %s, %v", server, own, got, ok)
			}
		}
	})
}

// FuzzTemplate: whatever matches can be put together again, and a template
// without expressions matches itself alone.
func FuzzTemplate(f *testing.F) {
	f.Add("file:///{+x}", "file:///a/b")
	f.Add("a:{x}/b{/y,z}{?q}", "a:1/b/2/3?q=4")
	f.Add("{a}{+b}{#c}{.d}{;e}{&f*}", "x/y#z")
	f.Add("}{", "}{")
	f.Fuzz(func(t *testing.T, text, uri string) {
		_, again, ok := catalog.Match(text, uri)
		if ok && again != uri {
			t.Errorf("%q matches %q but gives %q", text, uri, again)
		}
		if !strings.ContainsAny(text, "{}") && text != "" && len(text) <= 4<<10 && len(uri) <= 4<<10 && ok != (text == uri) {
			t.Errorf("%q and %q: %v", text, uri, ok)
		}
	})
}

// FuzzPage: no answer of a server makes reading fail in another way than with
// an error, and what is listed is listed as it came.
func FuzzPage(f *testing.F) {
	f.Add(`{"tools":[{"name":"a"},{"name":"b","x":[1,{"y":"]"}]}],"nextCursor":"c"}`)
	f.Add(`{"tools":[` + strings.Join(awkward, ",") + `]}`)
	f.Add(`{"tools":[{"name":"\"},{"name":"x"}]`)
	f.Fuzz(func(t *testing.T, page string) {
		e, err := catalog.Fetch(t.Context(), fixed(map[string]string{catalog.ToolsList: page}), key, []byte(`{}`), catalog.Bounds{Pages: 3})
		if err != nil {
			t.Fatal(err) // undeclared: notes at most
		}
		for _, it := range e.Tools {
			if it.Name == "" || !strings.Contains(page, string(it.Raw)) {
				t.Errorf("%q: %s is not as it came", it.Name, it.Raw)
			}
		}
	})
}
