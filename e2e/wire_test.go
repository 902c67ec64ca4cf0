package e2e_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/specbox/specbox/wire"
)

// get reads a page.
func get(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: status %d, %v", url, resp.StatusCode, err)
	}
	return string(b)
}

// file writes a configuration.
func file(t *testing.T, content string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "mcp.json")
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestBytesPassAsTheyCame(t *testing.T) {
	x := serve(t, object{"nasty": bad()})
	x.filled(t, "nasty")
	c := connect(t, x.url, "{}")
	for _, v := range []string{
		`{"content":[],"n":12345678901234567890123,"f":1.0,"e":1E+2,"z":-0.0}`,
		`{"content":[{"type":"hologram","depth":{}}],"isError":false,"structuredContent":{},"_meta":{"b":1,"a":2}}`,
		`{"content":[{"type":"text","text":"\u00e9\ud83d\ude00 <&> \/ ` + "\u2028 é" + `"}],"x":null,"y":[],"x2":{ "spaced" : [ 1 , 2 ] }}`,
		`{"task":{"taskId":"t"},"execution":{"taskSupport":"optional"},"content":[]}`,
	} {
		got := c.must(t, "tools/call", callParams("nasty__raw", `{"result":`+v+`}`))
		if string(got) != v {
			t.Errorf("sent %s\ngot  %s", v, got)
		}
		if got := c.call(t, "nasty__echo", v); got != v {
			t.Errorf("the server got %s, of %s", got, v)
		}
	}
	for _, size := range []int{63 << 10, 65 << 10, 1100000, 17 << 20, 64 << 20} {
		if got := len(c.must(t, "tools/call", callParams("nasty__size", fmt.Sprintf(`{"bytes":%d}`, size)))); got != size {
			t.Errorf("a result of %d bytes came as %d", size, got)
		}
	}
}

func TestLimitsAreAnsweredWithErrors(t *testing.T) {
	x := serveFile(t, t.TempDir(), object{
		"limits":  object{"request": "1MiB", "message": "2MiB"},
		"servers": object{"nasty": bad()},
	})
	x.filled(t, "nasty")
	c := connect(t, x.url, "{}")
	c.call(t, "nasty__set", `{"key":"k","value":1}`)
	if _, err := c.try(t.Context(), "nasty__size", fmt.Sprintf(`{"bytes":%d}`, 3<<20)); err == nil || !strings.Contains(err.Error(), "limit") {
		t.Errorf("a result over the limit: %v", err)
	}
	if _, err := c.try(t.Context(), "nasty__echo", `{"long":"`+strings.Repeat("x", 2<<20)+`"}`); err == nil || !strings.Contains(err.Error(), "limit") {
		t.Errorf("a request over the limit: %v", err)
	}
	if got := c.call(t, "nasty__get", `{"key":"k"}`); got != "1" {
		t.Errorf("after both, the sandbox is another one: %s", got)
	}
}

// Some clients give every request the id 1.
func TestEqualIDsAreNotConfused(t *testing.T) {
	x := serve(t, object{"nasty": with(bad(), object{"scope": "tenant"})})
	x.filled(t, "nasty")
	clients := []*client{connect(t, x.url, "{}"), connect(t, x.url, "{}")}
	var work sync.WaitGroup
	for i := range 40 {
		work.Go(func() {
			want := fmt.Sprintf(`{"payload":%d}`, i)
			got, err := clients[i%2].withID(t.Context(), "1", "tools/call", callParams("nasty__echo", want))
			if err != nil || !strings.Contains(string(got), `"arguments":`+want) {
				t.Errorf("call %d: got %s, %v", i, got, err)
			}
		})
	}
	work.Wait()
}

func TestUnknownSessionsAre404(t *testing.T) {
	state, config := t.TempDir(), object{"servers": object{"nasty": bad()}}
	x := serveFile(t, state, config)
	x.filled(t, "nasty")
	c := connect(t, x.url, "{}")
	c.call(t, "nasty__echo", "{}")
	x.stop(t)
	x = serveFile(t, state, config)
	c.url = x.url
	resp, err := c.post(t.Context(), callBody("1", "nasty__echo", "{}"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusNotFound {
		t.Errorf("a session of before the restart: status %d, want 404", resp.StatusCode)
	}
	c.session = ""
	c.open(t, "{}")
	c.call(t, "nasty__echo", "{}")
}

func TestPagesAndCursors(t *testing.T) {
	x := serve(t, object{
		"many":    bad("-tools", "101", "-page", "50"),
		"endless": bad("-endless-cursor"),
		"stuck":   bad("-stuck-cursor"),
		"plain":   bad("-undeclared"),
	})
	x.filled(t, "many", "endless", "stuck", "plain")
	names := connect(t, x.url, "{}").tools(t)
	for _, want := range []string{"many__tool-001", "many__tool-101", "endless__endless-0", "stuck__again", "plain__echo"} {
		if !slices.Contains(names, want) {
			t.Errorf("%s is not listed", want)
		}
	}
	rows := x.catalog(t)
	for _, server := range []string{"endless", "stuck"} {
		if len(rows[server].Truncated) < 5 {
			t.Errorf("catalog ls does not tell of the cursor of %s: %+v", server, rows[server])
		}
	}
	if rows["many"].Tools < 101 {
		t.Errorf("many: %+v", rows["many"])
	}
}

func TestNamesStay(t *testing.T) {
	state := t.TempDir()
	one := bad("-equal-names", "-long-names")
	config := object{"servers": object{"b": one}}
	x := serveFile(t, state, config)
	x.filled(t, "b")
	before := connect(t, x.url, "{}").tools(t)
	x.stop(t)

	x = serveFile(t, state, object{"servers": object{"a": one, "a_": one, "b": one}})
	x.filled(t, "a", "a_", "b")
	c := connect(t, x.url, "{}")
	after := c.tools(t)
	seen := map[string]bool{}
	for _, name := range after {
		if len(name) > 64 {
			t.Errorf("%s has %d characters", name, len(name))
		}
		if seen[name] {
			t.Errorf("%s is there twice", name)
		}
		seen[name] = true
	}
	for _, name := range before {
		if !seen[name] {
			t.Errorf("%s is gone since servers were added", name)
		}
	}
	// Each name is a tool, and of equal tools of two servers each is reachable.
	var rows []struct{ Name, Server, Tool string }
	decode(t, x.run(t, "tools", "ls", "--json"), &rows)
	long := 0
	for _, r := range rows {
		if len(r.Tool) == 120 {
			long++
			if got := c.call(t, r.Name, "{}"); got != "nasty: "+r.Tool {
				t.Errorf("%s answered as %s", r.Name, got)
			}
		}
	}
	if long != 6 {
		t.Errorf("%d long names, want 6", long)
	}
	if got := c.call(t, "a__echo", `{"to":"a"}`) + c.call(t, "b__echo", `{"to":"b"}`); got != `{"to":"a"}{"to":"b"}` {
		t.Errorf("got %s", got)
	}
}

func TestListChangedIsPassedOnAndStored(t *testing.T) {
	x := serve(t, object{"nasty": bad()})
	x.filled(t, "nasty")
	c := connect(t, x.url, "{}")
	c.listen(t)
	c.tools(t) // who has seen no list is not told that it changed
	c.call(t, "nasty__add-tool", `{"name":"brand-new"}`)
	c.noted(t, "notifications/tools/list_changed", "")
	eventually(t, 20*time.Second, "the new tool is listed", func() string {
		if names := c.tools(t); !slices.Contains(names, "nasty__brand-new") {
			return fmt.Sprint(len(names), " tools")
		}
		return ""
	})
	if got := c.call(t, "nasty__brand-new", "{}"); got != "nasty: brand-new" {
		t.Errorf("got %s", got)
	}
}

func TestInstructionsOfAll(t *testing.T) {
	x := serve(t, object{"one": bad("-instructions", "Use one for apples."), "two": bad("-instructions", "Use two for pears."), "three": bad()})
	x.filled(t, "one", "two", "three")
	c := &client{url: x.url, http: http.DefaultClient}
	all := string(c.open(t, "{}"))
	for _, want := range []string{"Use one for apples.", "Use two for pears.", "one", "two"} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is not in %s", want, all)
		}
	}
	single := &client{url: x.url + "/one", http: http.DefaultClient}
	if got := wire.Str(single.open(t, "{}"), "instructions"); got != "Use one for apples." {
		t.Errorf("of one server: %q", got)
	}
}

func TestNoiseIsSkippedAndKept(t *testing.T) {
	x := serve(t, object{"noisy": bad("-banner", "11", "-junk", "-say", "words on stderr")})
	x.filled(t, "noisy")
	c := connect(t, x.url, "{}")
	if got := c.call(t, "noisy__echo", `{"a":1}`); got != `{"a":1}` {
		t.Errorf("got %s", got)
	}
	c.call(t, "noisy__print", `{"text":"more junk"}`)
	c.call(t, "noisy__stderr", `{"text":"more words"}`)
	eventually(t, 10*time.Second, "all of it is in the logs", func() string {
		logs := x.run(t, "logs", "noisy")
		for _, want := range []string{"Server running on stdio", "words on stderr", "more junk", "more words"} {
			if !strings.Contains(logs, want) {
				return fmt.Sprintf("%q is not in %s", want, logs)
			}
		}
		return ""
	})
	other := serve(t, object{"exit": with(bad("-exit", "2", "-say", "it ends here"), object{"start_timeout": "5s"})})
	other.filled(t, "exit")
	if row := other.catalog(t)["exit"]; !strings.Contains(row.Error, "it ends here") || !strings.Contains(row.Error, "exit") {
		t.Errorf("the error has no last words: %+v", row)
	}
}

func TestServersAskTheirClient(t *testing.T) {
	x := serve(t, object{"nasty": bad("-roots", "-by-sampling", "-list-changed")})
	x.filled(t, "nasty")
	c := connect(t, x.url, full)
	c.listen(t)
	if names := c.tools(t); !slices.Contains(names, "nasty__sampler") {
		// The lists of these capabilities may have to be read first.
		c.noted(t, "notifications/tools/list_changed", "")
		if names = c.tools(t); !slices.Contains(names, "nasty__sampler") {
			t.Errorf("a tool that needs sampling is not listed for a client that can sample: %q", names)
		}
	}
	if names := connect(t, x.url, "{}").tools(t); slices.Contains(names, "nasty__sampler") {
		t.Error("a tool that needs sampling is listed for a client that cannot sample")
	}
	eventually(t, 10*time.Second, "roots, asked for outside of any call", func() string {
		if got := c.call(t, "nasty__roots-seen", "{}"); !strings.Contains(got, "file:///srv/root") {
			return got
		}
		return ""
	})
	if got := c.call(t, "nasty__ask", `{"method":"sampling/createMessage","params":{"messages":[],"maxTokens":1}}`); !strings.Contains(got, "sampled") {
		t.Errorf("sampling: %s", got)
	}
	if got := c.call(t, "nasty__ask", `{"method":"elicitation/create","params":{"message":"?","requestedSchema":{"type":"object","properties":{}}}}`); !strings.Contains(got, "decline") {
		t.Errorf("elicitation: %s", got)
	}
}

// Two clients answer the questions of their own servers.
func TestQuestionsGoToTheirClient(t *testing.T) {
	x := serve(t, object{"nasty": bad()})
	x.filled(t, "nasty")
	var work sync.WaitGroup
	for range 4 {
		c := connect(t, x.url, full)
		for range 10 {
			work.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				got, err := c.try(ctx, "nasty__ask", `{"method":"roots/list"}`)
				if err != nil || !strings.Contains(got, "file:///srv/root") {
					t.Errorf("got %s, %v", got, err)
				}
			})
		}
	}
	work.Wait()
}

func TestVariablesAndSecrets(t *testing.T) {
	t.Setenv("E2E_TOKEN", "s3cret-of-one")
	t.Setenv("E2E_OTHER", "s3cret-of-two")
	state, trace := t.TempDir(), filepath.Join(t.TempDir(), "trace.jsonl")
	x := serveFile(t, state, object{"servers": object{
		"one": with(bad("-name", "${E2E_NAME:-by-default}"), object{"env": object{"TOKEN": "${E2E_TOKEN}"}}),
		"two": with(bad(), object{"env": object{"TOKEN": "${E2E_OTHER}"}}),
	}}, "--trace", trace, "--log-level", "debug")
	x.filled(t, "one", "two")
	c := connect(t, x.url, "{}")
	one, two := c.call(t, "one__env", "{}"), c.call(t, "two__env", "{}")
	if !strings.Contains(one, "s3cret-of-one") || strings.Contains(one, "s3cret-of-two") || strings.Contains(one, "E2E_") {
		t.Errorf("one sees %s", one)
	}
	if !strings.Contains(two, "s3cret-of-two") || strings.Contains(two, "s3cret-of-one") {
		t.Errorf("two sees %s", two)
	}
	for _, p := range x.alive() {
		if strings.Contains(p.line, "s3cret") {
			t.Errorf("a secret in a command line: %+v", p)
		}
	}
	said := x.output.String() + x.run(t, "ps", "--json") + x.run(t, "servers", "ls", "--json") + x.run(t, "logs", "one")
	x.stop(t)
	events, err := os.ReadFile(trace)
	if err != nil || !strings.Contains(string(events), `"kind":"call"`) {
		t.Errorf("the trace: %v\n%s", err, events)
	}
	said += string(events)
	err = filepath.WalkDir(state, func(p string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(p)
		if strings.Contains(string(b), "s3cret") {
			t.Errorf("a secret in %s", p)
		}
		return err
	})
	if err != nil || strings.Contains(said, "s3cret") {
		t.Errorf("a secret in what was printed, or %v:\n%s", err, said)
	}
	bare := exec.Command(specbox, "validate", file(t, `{"mcpServers":{"x":{"command":"/bin/true","env":{"A":"${E2E_UNSET}"}}}}`))
	if out, err := bare.CombinedOutput(); err == nil || !strings.Contains(string(out), "E2E_UNSET") {
		t.Errorf("an unset variable: %v, %s", err, out)
	}
}

func TestTenantsAreKeptApart(t *testing.T) {
	hash := func(token string) string {
		sum := sha256.Sum256([]byte(token))
		return "sha256:" + hex.EncodeToString(sum[:])
	}
	x := serveFile(t, t.TempDir(), object{
		"tenants": []object{
			{"name": "ada", "tokens": []string{hash("token-of-ada")}, "sandboxes": 2},
			{"name": "bob", "tokens": []string{hash("token-of-bob")}, "servers": []string{"shared"}},
		},
		"servers": object{"nasty": with(bad(), object{"scope": "tenant"}), "shared": with(bad(), object{"scope": "tenant"})},
	})
	x.filled(t, "nasty", "shared")
	for _, token := range []string{"", "token-of-eve"} {
		c := &client{url: x.url, token: token, http: http.DefaultClient}
		resp, err := c.post(t.Context(), `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"e","version":"1"}}}`)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusUnauthorized || resp.Header.Get("WWW-Authenticate") == "" {
			t.Errorf("token %q: status %d, header %v", token, resp.StatusCode, resp.Header)
		}
	}
	as := func(token string) *client {
		c := &client{url: x.url, token: token, http: http.DefaultClient}
		c.open(t, "{}")
		return c
	}
	ada, bob := as("token-of-ada"), as("token-of-bob")
	ada.call(t, "shared__set", `{"key":"k","value":"ada's"}`)
	if got := bob.call(t, "shared__get", `{"key":"k"}`); got != "null" {
		t.Errorf("bob sees what is ada's: %s", got)
	}
	if got := as("token-of-ada").call(t, "shared__get", `{"key":"k"}`); got != `"ada's"` {
		t.Errorf("ada's other session sees %s", got)
	}
	if names := bob.tools(t); slices.Contains(names, "nasty__echo") || !slices.Contains(names, "shared__echo") {
		t.Errorf("bob has %q", names)
	}
	if _, err := bob.try(t.Context(), "nasty__echo", "{}"); err == nil {
		t.Error("bob called what he may not")
	}
	thief := &client{url: x.url, token: "token-of-bob", session: ada.session, http: http.DefaultClient}
	resp, err := thief.post(t.Context(), callBody("1", "shared__get", `{"key":"k"}`))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusNotFound {
		t.Errorf("bob in ada's session: status %d", resp.StatusCode)
	}
	open := exec.Command(specbox, "--state", t.TempDir(), "serve", "-f", file(t, `{"mcpServers":{"x":{"command":"/bin/true"}}}`), "--listen", "0.0.0.0:0")
	if out, err := open.CombinedOutput(); err == nil || !strings.Contains(string(out), "specbox token") {
		t.Errorf("it serves everybody without tokens: %v, %s", err, out)
	}
}

func TestStrangePagesAreRefused(t *testing.T) {
	x := serve(t, object{"nasty": bad()})
	for _, header := range [][2]string{{"Origin", "https://evil.example"}, {"Host", "evil.example"}} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, x.url, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set(header[0], header[1])
		if header[0] == "Host" {
			r.Host = header[1]
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusForbidden {
			t.Errorf("%s: %s: status %d", header[0], header[1], resp.StatusCode)
		}
	}
}

// specbox stdio serves a client that starts a command, and leaves nothing.
func TestStdio(t *testing.T) {
	served := serve(t, object{"nasty": bad()})
	served.filled(t, "nasty")
	config := file(t, fmt.Sprintf(`{"mcpServers":{"nasty":{"command":%q}}}`, nasty))
	for _, args := range [][]string{
		{"--state", t.TempDir(), "stdio", "-f", config},
		{"--state", served.state, "stdio"},
		{"stdio", "--url", served.url},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			c := exec.Command(specbox, args...)
			in, err := c.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := c.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			errs := newOutput()
			c.Stderr = errs
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			var noise []string
			conn := wire.NewConn(wire.NewLines(out, in, in.Close, 0, func(line []byte) { noise = append(noise, string(line)) }))
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			request := func(method, params string) []byte {
				t.Helper()
				r, err := conn.Call(ctx, method, []byte(params))
				if err = errors.Join(err, r.Err()); err != nil {
					t.Fatalf("%s: %v\n%s", method, err, errs)
				}
				return r.Result
			}
			request("initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"e2e","version":"1"}}`)
			if err := conn.Notify("notifications/initialized", nil); err != nil {
				t.Fatal(err)
			}
			eventually(t, 20*time.Second, "the tools are listed", func() string {
				if got := request("tools/list", "{}"); !strings.Contains(string(got), "nasty__echo") {
					return string(got)
				}
				return ""
			})
			if got := request("tools/call", callParams("nasty__echo", `{"n":1.0}`)); !strings.Contains(string(got), `"arguments":{"n":1.0}`) {
				t.Errorf("got %s", got)
			}
			if err := in.Close(); err != nil {
				t.Fatal(err)
			}
			<-conn.Done()
			if err := c.Wait(); err != nil {
				t.Errorf("at its end: %v\n%s", err, errs)
			}
			if len(noise) > 0 {
				t.Errorf("on stdout, besides messages: %q", noise)
			}
		})
	}
}
