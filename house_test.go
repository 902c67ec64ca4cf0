package specbox_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/specbox/specbox"

// plan says which packages of the house each package may import. Test files may
// import anything. A package that is not in the plan has no door.
var plan = map[string][]string{
	// ground
	"trace":   {},
	"wire":    {},
	"config":  {},
	"catalog": {"wire"},
	// rooms
	"sandbox":  {"trace", "wire", "config"},
	"gateway":  {"trace", "wire", "internal/alarm"},
	"control":  {"trace"},
	"tenant":   {"config"},
	"launcher": {"config"},
	"tap":      {"wire", "internal/sse"},
	// what intent is made of; its leaves know nothing of it
	"intent":           {"intent/keyword", "intent/retrieval", "intent/fasttext", "intent/encoder"},
	"intent/keyword":   {},
	"intent/retrieval": {},
	"intent/fasttext":  {},
	"intent/encoder":   {},
	// backends and what they share
	"sandbox/process":     {"sandbox", "wire", "config"},
	"sandbox/docker":      {"sandbox", "wire", "config"},
	"sandbox/remote":      {"sandbox", "wire", "config", "internal/sse"},
	"sandbox/sim":         {"sandbox", "wire", "config"},
	"sandbox/sandboxtest": {"sandbox", "wire", "config"},
	// hall
	"session": {"trace", "wire", "config", "catalog", "sandbox", "intent", "internal/alarm"},
	// house
	".":           {"*"},
	"cmd/specbox": {".", "config", "control", "launcher", "tenant", "bench", "internal/sse", "intent", "intent/encoder", "intent/keyword", "replay", "replay/model", "replay/standin"},            // the encoder's model is opened by who names its folder
	"bench":       {"wire", "config", "sandbox", "sandbox/process", "tap", "intent/keyword", "intent/retrieval", "intent/fasttext", "intent/encoder", "replay", "replay/model", "replay/standin"}, // measures a specbox that it starts, or one room alone
	// recorded sessions, and what plays them again
	"replay":         {"intent"},
	"replay/model":   {},
	"replay/standin": {},
	// closets and fixtures
	"conformance":         {"servers"},
	"servers":             {},
	"servers/install":     {"servers"},
	"servers/image":       {"servers"},
	"internal/sse":        {},
	"internal/alarm":      {},
	"internal/nasty":      {},
	"internal/dockertest": {},
}

func TestPlan(t *testing.T) {
	found := map[string]bool{}
	err := fs.WalkDir(os.DirFS("."), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && p != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "node_modules") {
			return fs.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(p, ".go") || strings.HasSuffix(p, "_test.go") {
			return nil
		}
		pkg := path.Dir(p)
		found[pkg] = true
		doors, ok := plan[pkg]
		if !ok {
			t.Errorf("%s is not in the plan", pkg)
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), filepath.FromSlash(p), nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, im := range f.Imports {
			imp, _ := strconv.Unquote(im.Path.Value)
			rest, ours := strings.CutPrefix(imp, module)
			if !ours {
				continue
			}
			to := strings.TrimPrefix(rest, "/")
			if to == "" {
				to = "."
			}
			if !slices.Contains(doors, to) && !slices.Contains(doors, "*") {
				t.Errorf("%s imports %s: no such door", p, to)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for pkg := range plan {
		if !found[pkg] {
			t.Errorf("the plan has a room that does not exist: %s", pkg)
		}
	}
}
