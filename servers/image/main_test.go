package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/specbox/specbox/servers"
)

func TestRootHasTheServerAndWhatRunsIt(t *testing.T) {
	install := t.TempDir()
	if err := os.MkdirAll(filepath.Join(install, "node_modules", "a"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(install, "node_modules", "a", "index.js"), []byte("code"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("a/index.js", filepath.Join(install, "node_modules", "link")); err != nil {
		t.Fatal(err)
	}
	s := servers.Server{Name: "x", Command: []string{"node", "{install}/node_modules/a/index.js", "{fixtures}/f"}}
	command, changes, err := recipe(s)
	if err != nil {
		t.Fatal(err)
	}
	if want := `ENTRYPOINT ["node","/srv/x/node_modules/a/index.js","/fixtures/f"]`; !slices.Contains(changes, want) || !slices.Contains(changes, "USER 1000:1000") {
		t.Errorf("the image says %q, want %s", changes, want)
	}
	var b bytes.Buffer
	if err := writeRoot(&b, install, s, command); err != nil {
		t.Fatal(err)
	}
	got := map[string]*tar.Header{}
	for r := tar.NewReader(&b); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if got[h.Name] != nil {
			t.Errorf("%s stands there twice", h.Name)
		}
		got[h.Name] = h
	}
	for name, mode := range map[string]int64{"usr/bin/node": 0o555, "srv/x/node_modules/a/index.js": 0o444} {
		if h := got[name]; h == nil || h.Mode&mode != mode {
			t.Errorf("%s is %+v", name, h)
		}
	}
	if h := got["srv/x/node_modules/link"]; h == nil || h.Linkname != "a/index.js" {
		t.Errorf("the link is %+v", h)
	}
	if !slices.ContainsFunc(sortedNames(got), func(n string) bool { return strings.Contains(n, "libc.so") }) {
		t.Errorf("there is no C library in %v", sortedNames(got))
	}
}

func sortedNames(m map[string]*tar.Header) []string {
	var out []string
	for n := range m {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}
