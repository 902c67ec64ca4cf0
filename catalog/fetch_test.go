package catalog_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/specbox/specbox/catalog"
	"github.com/specbox/specbox/wire"
)

// A server answers list requests by a func of method and raw cursor.
type server func(ctx context.Context, method, cursor string) (wire.Reply, error)

func (s server) Call(ctx context.Context, method string, params []byte) (wire.Reply, error) {
	return s(ctx, method, string(wire.Get(params, "cursor")))
}

// fixed returns a server with one page for each method in results; other
// methods are not found.
func fixed(results map[string]string) server {
	return func(_ context.Context, method, _ string) (wire.Reply, error) {
		if r, ok := results[method]; ok {
			return wire.Reply{Result: []byte(r)}, nil
		}
		return wire.Fail(wire.CodeMethodNotFound, "no method %s", method), nil
	}
}

const initAll = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"prompts":{},"resources":{}},"serverInfo":{"name":"x","version":"1"}}`

var key = catalog.Key{Server: "x", Hash: "h", Fingerprint: "none"}

func fetch(t *testing.T, c catalog.Caller, init string, b catalog.Bounds) *catalog.Entry {
	t.Helper()
	e, err := catalog.Fetch(t.Context(), c, key, []byte(init), b)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func toolPage(from, to int, cursor string) string {
	var items []string
	for i := from; i < to; i++ {
		items = append(items, fmt.Sprintf(`{"name":"tool%d"}`, i))
	}
	if cursor != "" {
		cursor = `,"nextCursor":` + cursor
	}
	return `{"tools":[` + strings.Join(items, ",") + `]` + cursor + `}`
}

func TestAllPagesAreRead(t *testing.T) {
	e := fetch(t, server(func(_ context.Context, method, cursor string) (wire.Reply, error) {
		if method != catalog.ToolsList {
			return wire.Fail(wire.CodeMethodNotFound, "no"), nil
		}
		page := map[string]string{"": toolPage(0, 50, `"a"`), `"a"`: toolPage(50, 100, `"b\u003c"`), `"b\u003c"`: toolPage(100, 101, "")}
		return wire.Reply{Result: []byte(page[cursor])}, nil
	}), initAll, catalog.Bounds{})
	if len(e.Tools) != 101 || e.Tools[100].Name != "tool100" {
		t.Fatalf("got %d tools, want 101", len(e.Tools))
	}
	if e.Truncated != nil || e.Errors != nil || e.Notes != nil {
		t.Fatalf("got complaints %q %q %q", e.Truncated, e.Errors, e.Notes)
	}
}

// TestEndlessCursorsAreCut holds the law that reading is bounded, whatever a
// server sends, and that what was read stays.
func TestEndlessCursorsAreCut(t *testing.T) {
	calls := 0
	for name, c := range map[string]struct {
		next   func() string
		bounds catalog.Bounds
		items  int
		calls  int
	}{
		"the same for ever":  {func() string { return `"again"` }, catalog.Bounds{}, 2, 2},
		"two in turn":        {func() string { return fmt.Sprint(calls % 2) }, catalog.Bounds{}, 3, 3},
		"a new one each":     {func() string { return fmt.Sprintf("%q", fmt.Sprint(calls)) }, catalog.Bounds{Pages: 7}, 7, 7},
		"items without end":  {func() string { return fmt.Sprint(calls) }, catalog.Bounds{Items: 4}, 4, 5},
		"too long to return": {func() string { return `"` + strings.Repeat("x", 70<<10) + `"` }, catalog.Bounds{}, 1, 1},
	} {
		calls = 0
		e := fetch(t, server(func(_ context.Context, method, _ string) (wire.Reply, error) {
			if method != catalog.ToolsList {
				return wire.Reply{Result: []byte(`{"prompts":[],"resources":[],"resourceTemplates":[]}`)}, nil
			}
			calls++
			return wire.Reply{Result: []byte(toolPage(calls, calls+1, c.next()))}, nil
		}), initAll, c.bounds)
		if len(e.Tools) != c.items || calls != c.calls {
			t.Errorf("%s: got %d items in %d calls, want %d in %d", name, len(e.Tools), calls, c.items, c.calls)
		}
		if len(e.Truncated) != 1 || !strings.HasPrefix(e.Truncated[0], "tools/list: ") {
			t.Errorf("%s: truncated is %q", name, e.Truncated)
		}
	}
}

func TestHostileListIsBounded(t *testing.T) {
	var b bytes.Buffer
	b.WriteString(`{"tools":[`)
	for i := range 1_000_000 {
		fmt.Fprintf(&b, `{"name":"t%d"},`, i)
	}
	b.WriteString(`{"name":"last"}],"nextCursor":"more"}`)
	s := fixed(map[string]string{catalog.ToolsList: b.String(), catalog.PromptsList: `{"prompts":[{"name":"p"}]}`})
	e := fetch(t, s, initAll, catalog.Bounds{})
	if len(e.Tools) != 20_000 || len(e.Truncated) != 1 || len(e.Prompts) != 1 {
		t.Errorf("got %d tools, %d prompts, truncated %q", len(e.Tools), len(e.Prompts), e.Truncated)
	}
	const room = 5 << 20 // a quarter of the page and more, so that the page itself may come
	e = fetch(t, s, initAll, catalog.Bounds{Items: 2_000_000, Bytes: room})
	kept := 0
	for _, it := range e.Tools {
		kept += len(it.Raw)
	}
	if kept > room || kept < room-20 || len(e.Truncated) != 1 || !strings.HasPrefix(e.Truncated[0], "tools/list: cut after 2") {
		t.Errorf("kept %d bytes of %d, truncated %q", kept, b.Len(), e.Truncated)
	}
	e = fetch(t, s, initAll, catalog.Bounds{Bytes: 1 << 10})
	if len(e.Truncated) != 1 || !strings.Contains(e.Truncated[0], "bytes") {
		t.Errorf("a page of %d bytes passes a bound of 1 KiB: %q", b.Len(), e.Truncated)
	}
}

// TestPagesOfNothingAreBounded: what is not kept counts too.
func TestPagesOfNothingAreBounded(t *testing.T) {
	calls := 0
	e := fetch(t, server(func(context.Context, string, string) (wire.Reply, error) {
		calls++
		return wire.Reply{Result: fmt.Appendf(nil, `{"tools":[%s],"nextCursor":%d}`, strings.Repeat(" ", 1<<10), calls)}, nil
	}), `{"capabilities":{"tools":{}}}`, catalog.Bounds{Bytes: 1 << 10})
	if calls != 4 || len(e.Truncated) != 1 {
		t.Errorf("%d pages were read, want 4; truncated %q", calls, e.Truncated)
	}
}

func TestOneBrokenListLosesNoOther(t *testing.T) {
	for name, answer := range map[string]string{
		"no object":       `"hello"`,
		"no list in it":   `{"tool":[]}`,
		"no array":        `{"tools":{"name":"x"}}`,
		"array is cut":    `{"tools":[{"name":"x"}`,
		"cursor is no id": `{"tools":[],"nextCursor":tru}`,
	} {
		e := fetch(t, fixed(map[string]string{
			catalog.ToolsList: answer, catalog.PromptsList: `{"prompts":[{"name":"p"}]}`,
			catalog.ResourcesList: `{"resources":[{"uri":"a:b","name":"n"}]}`, catalog.TemplatesList: `{"resourceTemplates":[{"uriTemplate":"a:{b}"}]}`,
		}), initAll, catalog.Bounds{})
		if e.Errors[catalog.ToolsList] == "" || len(e.Errors) != 1 {
			t.Errorf("%s: errors are %q", name, e.Errors)
		}
		if len(e.Prompts) != 1 || len(e.Resources) != 1 || len(e.Templates) != 1 || e.Resources[0].Name != "a:b" || e.Templates[0].Name != "a:{b}" {
			t.Errorf("%s: other lists are lost: %+v", name, e)
		}
		if !strings.HasPrefix(e.Problem(), "tools/list: ") {
			t.Errorf("%s: problem is %q", name, e.Problem())
		}
	}
}

func TestListThatHangsEndsInItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		e := fetch(t, server(func(ctx context.Context, method, cursor string) (wire.Reply, error) {
			if method == catalog.ToolsList && cursor != "" {
				<-ctx.Done()
				return wire.Reply{}, ctx.Err()
			}
			return wire.Reply{Result: []byte(`{"tools":[{"name":"t"}],"prompts":[{"name":"p"}],"resources":[],"resourceTemplates":[],"nextCursor":""}`)}, nil
		}), initAll, catalog.Bounds{})
		if len(e.Tools) != 1 || len(e.Prompts) != 1 {
			t.Fatalf("an empty cursor is not the end: %+v", e)
		}
		e = fetch(t, server(func(ctx context.Context, method, cursor string) (wire.Reply, error) {
			if method == catalog.ToolsList && cursor == "" {
				return wire.Reply{Result: []byte(toolPage(0, 3, `"next"`))}, nil
			}
			if method == catalog.ToolsList {
				<-ctx.Done()
				return wire.Reply{}, context.Cause(ctx)
			}
			return wire.Reply{Result: []byte(`{"prompts":[{"name":"p"}],"resources":[],"resourceTemplates":[]}`)}, nil
		}), initAll, catalog.Bounds{Time: 3 * time.Second})
		if took := time.Since(begin); took != 3*time.Second {
			t.Errorf("took %v, want 3s", took)
		}
		if len(e.Tools) != 3 || len(e.Prompts) != 1 || e.Errors[catalog.ToolsList] != "page 2: no complete answer within 3s" {
			t.Errorf("got %d tools, %d prompts, errors %q", len(e.Tools), len(e.Prompts), e.Errors)
		}
	})
}

func TestNothingReadIsAnError(t *testing.T) {
	broken := errors.New("the server closed the connection")
	dead := server(func(context.Context, string, string) (wire.Reply, error) { return wire.Reply{}, broken })
	_, err := catalog.Fetch(t.Context(), dead, key, []byte(initAll), catalog.Bounds{})
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), `server "x": tools/list: `) {
		t.Errorf("got %v", err)
	}
	for _, init := range []string{``, `null`, `[]`, `{"capabilities":`} {
		if _, err := catalog.Fetch(t.Context(), dead, key, []byte(init), catalog.Bounds{}); err == nil || !strings.Contains(err.Error(), `"x"`) {
			t.Errorf("init %q: got %v", init, err)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(broken)
	gone := server(func(ctx context.Context, _, _ string) (wire.Reply, error) { return wire.Reply{}, ctx.Err() })
	if _, err := catalog.Fetch(ctx, gone, key, []byte(`{}`), catalog.Bounds{}); !errors.Is(err, broken) {
		t.Errorf("cancelled: got %v", err)
	}
}

// TestOnlyDeclaredListsAreAsked: and the tools of servers that declare nothing.
func TestOnlyDeclaredListsAreAsked(t *testing.T) {
	for _, c := range []struct {
		init, asked string
		tools       int
	}{
		{`{"capabilities":{"tools":{}}}`, "tools/list", 1},
		{`{"capabilities":{"prompts":{}}}`, "prompts/list", 0},
		{`{"capabilities":{"resources":{"subscribe":true}}}`, "resources/list resources/templates/list", 0},
		{`{"capabilities":{"logging":{}}}`, "tools/list", 1},
		{`{}`, "tools/list", 1},
	} {
		var asked []string
		e := fetch(t, server(func(_ context.Context, method, _ string) (wire.Reply, error) {
			asked = append(asked, method)
			if method != catalog.ToolsList {
				return wire.Fail(wire.CodeMethodNotFound, "no"), nil
			}
			return wire.Reply{Result: []byte(toolPage(0, 1, ""))}, nil
		}), c.init, catalog.Bounds{})
		if got := strings.Join(asked, " "); got != c.asked || len(e.Tools) != c.tools || e.Problem() != "" {
			t.Errorf("%s: asked for %s, got %d tools, problem %q", c.init, got, len(e.Tools), e.Problem())
		}
	}
	for _, reply := range []wire.Reply{wire.Fail(wire.CodeMethodNotFound, "no"), wire.Fail(-32603, "boom")} {
		e := fetch(t, server(func(context.Context, string, string) (wire.Reply, error) { return reply, nil }), `{}`, catalog.Bounds{})
		if e.Problem() != "" || len(e.Tools) != 0 {
			t.Errorf("undeclared tools and %s: problem %q", reply.Error, e.Problem())
		}
	}
}

// awkward are items that a decoder and encoder would change.
var awkward = []string{
	`{"name":"html","description":"<a href='x'>&amp;</a>"}`,
	"{\"name\":\"lines\",\"description\":\"a\u2028b\u2029c \\u2028 \\/ \\u00e9\"}",
	`{"name":"big","inputSchema":{"maximum":12345678901234567890123,"default":9007199254740993}}`,
	`{"name":"float","x":1.0,"y":1e2,"z":-0.0,"n":1E+2}`,
	`{"name":"twice","a":1,"a":2,"inputSchema":{"b":1,"b":1}}`,
	"{ \"name\" :\t\"space\" , \"a\" : [ 1 , 2 ] }",
	`{"z":1,"n\u0061me":"escap\u0065d","a":{"name":"inner"}}`,
	`{"name":"broken","description":"\ud800 ` + "\xff" + `"}`,
}

func TestItemsKeepTheirBytes(t *testing.T) {
	e := fetch(t, fixed(map[string]string{catalog.ToolsList: `{"tools":[ ` + strings.Join(awkward, " ,\n") + ` ]}`}), initAll, catalog.Bounds{})
	if len(e.Tools) != len(awkward) {
		t.Fatalf("got %d items, want %d: %q", len(e.Tools), len(awkward), e.Notes)
	}
	for i, it := range e.Tools {
		if string(it.Raw) != awkward[i] {
			t.Errorf("got  %s\nwant %s", it.Raw, awkward[i])
		}
	}
	if got := e.Tools[6].Name; got != "escaped" {
		t.Errorf("name is %q", got)
	}
}

func TestItemsThatCannotBeListedAreLeftOut(t *testing.T) {
	e := fetch(t, fixed(map[string]string{catalog.ToolsList: `{"tools":[
		{"name":"ok","v":1},{"name":"ok","v":2},{"title":"no name"},{"name":""},{"name":7},"text",null,
		{"name":"a","name":"b"},{"name":"bad` + "\xff" + `"},{"name":"x","y":tru},{"name":"` + strings.Repeat("n", 9<<10) + `"},{"name":"also"}]}`}), initAll, catalog.Bounds{})
	if len(e.Tools) != 2 || string(e.Tools[0].Raw) != `{"name":"ok","v":1}` || e.Tools[1].Name != "also" {
		t.Errorf("got %q", e.Tools)
	}
	want := "tools/list: left out: 1 named like one before, 1 with a name of more than 8192 bytes, 1 with a name that is no UTF-8, 1 with two members name, 3 no JSON object, 3 without a name"
	if len(e.Notes) != 1 || e.Notes[0] != want {
		t.Errorf("got notes %q, want %q", e.Notes, want)
	}
}

func TestFingerprint(t *testing.T) {
	equal := [][]string{
		{``, `{}`, ` { } `, `null`, `{"sampling":null}`},
		{`{"roots":{"listChanged":true},"sampling":{}}`, `{"sampling":{ },"roots":{ "listChanged" : true}}`},
		{`{"roots":{}}`}, {`{"roots":{"listChanged":false}}`},
		{`{"experimental":{"a":{"x":1,"y":2}}}`, `{"experimental":{"a":{"y":2,"x":1}}}`},
		{`{"experimental":{"a":{"x":1.0}}}`}, {`{"n":9007199254740993}`}, {`{"n":9007199254740992}`},
		{`{"future":true}`}, {`[]`}, {`{} x`}, {`{`}, {`7`},
		{catalog.FullCapabilities},
	}
	seen := map[string]string{}
	for _, class := range equal {
		first := catalog.Fingerprint([]byte(class[0]))
		if other, taken := seen[first]; taken {
			t.Errorf("%q and %q have one fingerprint", class[0], other)
		}
		seen[first] = class[0]
		for _, c := range class[1:] {
			if got := catalog.Fingerprint([]byte(c)); got != first {
				t.Errorf("%q and %q have different fingerprints", class[0], c)
			}
		}
	}
	if catalog.Fingerprint(nil) != catalog.Fingerprint([]byte(catalog.NoCapabilities)) {
		t.Error("nil is not no capabilities")
	}
}
