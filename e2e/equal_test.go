package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/specbox/specbox/servers"
	"github.com/specbox/specbox/wire"
)

// A peer answers requests of MCP with the bytes of their results.
type peer interface {
	request(ctx context.Context, method, params string) ([]byte, error)
}

// A pipe is a server that is spoken to directly, over standard input and output.
type pipe struct {
	*wire.Conn
	meta func(params string) string // puts the _meta of the modern era in; nil in the legacy one
}

func (p *pipe) request(ctx context.Context, method, params string) ([]byte, error) {
	if p.meta != nil {
		params = p.meta(params)
	}
	r, err := p.Call(ctx, method, []byte(params))
	if err != nil {
		return nil, err
	}
	return r.Result, r.Err()
}

// direct starts a server and begins with it as a client without capabilities.
func direct(t *testing.T, env map[string]string, era, command string, args ...string) *pipe {
	t.Helper()
	cmd := exec.Command(command, args...)
	cmd.Env = os.Environ()
	for _, k := range slices.Sorted(maps.Keys(env)) {
		cmd.Env = append(cmd.Env, k+"="+env[k])
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // with what it starts, which holds its output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &pipe{Conn: wire.NewConn(wire.NewLines(out, in, in.Close, 0, nil))}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // the group is its own, and it is not waited for yet
		<-p.Done()
		_ = cmd.Wait()
	})
	if era == "modern" {
		p.meta = (&modernClient{capabilities: "{}"}).meta
		return p
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := p.request(ctx, "initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"e2e","version":"1"}}`); err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	if err := p.Notify("notifications/initialized", nil); err != nil {
		t.Fatal(err)
	}
	return p
}

// completed is what a modern client gets of a result of a legacy server: the
// same bytes, and behind the last member those that its era demands.
func completed(method string, result []byte) []byte {
	more := `"resultType":"complete"`
	if method == "resources/read" {
		more += `,"ttlMs":0,"cacheScope":"private"`
	}
	end := bytes.TrimRight(result[:len(result)-1], " ")
	if string(end) != "{" {
		more = "," + more
	}
	return slices.Concat(end, []byte(more+"}"))
}

// cases are results that gateways lose or change something of.
var cases = map[string]string{
	"unknown fields":    `{"content":[],"future":{"a":[1,{"b":null}]},"x-y":"z"}`,
	"unknown content":   `{"content":[{"type":"hologram","depth":{},"data":[]},{"type":"text","text":"t","annotations":{"new":true}}]}`,
	"large integers":    `{"content":[],"structuredContent":{"n":9007199254740993,"m":12345678901234567890123,"k":-9223372036854775809}}`,
	"number forms":      `{"content":[],"structuredContent":{"f":1.0,"e":1E+2,"z":-0.0,"t":0.10,"s":1e-7}}`,
	"key order":         `{"structuredContent":{"z":1,"a":2,"m":{"b":1,"a":2}},"content":[],"_meta":{"b":1,"a":2}}`,
	"empty objects":     `{"content":[],"structuredContent":{},"_meta":{}}`,
	"isError false":     `{"isError":false,"content":[]}`,
	"isError true":      `{"content":[{"type":"text","text":"no"}],"isError":true}`,
	"escapes":           `{"content":[{"type":"text","text":"\u00e9\ud83d\ude00 <&> \/ \u2028 é\u0000"}]}`,
	"white space":       `{ "content" : [ ] , "x" : { "spaced" : [ 1 , 2 ] } }`,
	"duplicate keys":    `{"content":[],"d":1,"d":2}`,
	"a task":            `{"task":{"taskId":"t","status":"working","ttl":null,"pollInterval":5},"content":[]}`,
	"no content at all": `{}`,
	"null members":      `{"content":[],"structuredContent":null,"x":null}`,
}

// pairing serves a nasty server of an era and returns a client of another one,
// and the server itself, spoken to directly.
func pairing(t *testing.T, clientEra, serverEra string, limits object) (through, straight peer) {
	t.Helper()
	x := serveFile(t, t.TempDir(), object{"servers": object{"nasty": with(bad("-era", serverEra), object{"prefix": ""})}, "limits": limits})
	x.filled(t, "nasty")
	straight = direct(t, nil, serverEra, nasty, "-era", serverEra)
	if clientEra == "modern" {
		return modern(t, x.url, "{}"), straight
	}
	return connect(t, x.url, "{}"), straight
}

// pairings runs f for each pair of eras: client over server.
func pairings(t *testing.T, f func(t *testing.T, client, server string)) {
	for _, client := range []string{"legacy", "modern"} {
		for _, server := range []string{"legacy", "modern"} {
			t.Run(client+" over "+server, func(t *testing.T) { f(t, client, server) })
		}
	}
}

// What a server answers arrives as it was written, whoever asks.
func TestResultsAreEqualByteForByte(t *testing.T) {
	pairings(t, func(t *testing.T, client, server string) {
		through, straight := pairing(t, client, server, object{"request": "32MiB"})
		same := func(what, method, params string) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			want, err := straight.request(ctx, method, params)
			if err != nil {
				t.Fatalf("%s, directly: %v", what, err)
			}
			if client == "modern" && server == "legacy" {
				want = completed(method, want)
			}
			got, err := through.request(ctx, method, params)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: got %d bytes %.400s, %v\nwant %d bytes %.400s", what, len(got), got, err, len(want), want)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(cases)) {
			same(name, "tools/call", callParams("raw", `{"result":`+cases[name]+`}`))
			same(name+" as arguments", "tools/call", callParams("echo", cases[name]))
		}
		same("structured", "tools/call", callParams("structured", `{"n":4}`))
		same("a resource", "resources/read", `{"uri":"nasty://text"}`)
		same("a prompt", "prompts/get", `{"name":"greet","arguments":{"who":"Ada"}}`)
		same("a completion", "completion/complete", `{"ref":{"type":"ref/prompt","name":"greet"},"argument":{"name":"who","value":"A"}}`)
		same("arguments of 5 MB", "tools/call", callParams("echo", `{"long":"`+strings.Repeat("0123456789", 500_000)+`"}`))
		for _, size := range []int{63 << 10, 65 << 10, 1100000, 17_000_000} {
			same(fmt.Sprintf("a result of %d bytes", size), "tools/call", callParams("size", fmt.Sprintf(`{"bytes":%d}`, size)))
		}
	})
}

// A result of 200 MB is long, and otherwise like all others.
func TestAResultOf200MB(t *testing.T) {
	pairings(t, func(t *testing.T, client, server string) {
		through, straight := pairing(t, client, server, object{})
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		params := callParams("size", `{"bytes":200000000}`)
		want, err := straight.request(ctx, "tools/call", params)
		if err != nil {
			t.Fatal(err)
		}
		if client == "modern" && server == "legacy" {
			want = completed("tools/call", want)
		}
		got, err := through.request(ctx, "tools/call", params)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("got %d bytes, %v; want %d", len(got), err, len(want))
		}
	})
}

// Ids come back as they were sent, of every type, and belong to their caller.
func TestIDsComeBackAsTheyWere(t *testing.T) {
	x := serve(t, object{"nasty": with(bad(), object{"prefix": ""})})
	x.filled(t, "nasty")
	legacy, now := connect(t, x.url, "{}"), modern(t, x.url, "{}")
	for i, id := range []string{`1`, `-7`, `0`, `9007199254740993`, `12345678901234567890`, `1.0`, `1e3`, `"one"`, `""`, `"1"`, `"\u00e9<&>"`, `"a b"`} {
		args := fmt.Sprintf(`{"i":%d}`, i)
		for era, send := range map[string]func() ([]byte, error){
			"legacy": func() ([]byte, error) { return read(legacy.post(t.Context(), callBody(id, "echo", args))) },
			"modern": func() ([]byte, error) { return read(now.post(t.Context(), id, "tools/call", callParams("echo", args))) },
		} {
			body, err := send()
			if err != nil {
				t.Fatal(err)
			}
			if got := wire.Get(body, "id"); string(got) != id || !bytes.Contains(body, []byte(`"arguments":`+args)) {
				t.Errorf("%s: the answer to the id %s is %s", era, id, body)
			}
		}
	}
}

// Callers that all say id 1, in both eras at once, get their own answers.
func TestEqualIDsInBothEras(t *testing.T) {
	x := serve(t, object{"nasty": with(bad(), object{"prefix": "", "scope": "tenant"})})
	x.filled(t, "nasty")
	legacy, now := connect(t, x.url, "{}"), modern(t, x.url, "{}")
	var work sync.WaitGroup
	for i := range 60 {
		work.Go(func() {
			args := fmt.Sprintf(`{"payload":%d}`, i)
			send := func() ([]byte, error) { return read(legacy.post(t.Context(), callBody("1", "echo", args))) }
			if i%2 == 1 {
				send = func() ([]byte, error) {
					return read(now.post(t.Context(), "1", "tools/call", callParams("echo", args)))
				}
			}
			if got, err := send(); err != nil || !bytes.Contains(got, []byte(`"arguments":`+args+`,`)) {
				t.Errorf("call %d: got %s, %v", i, got, err)
			}
		})
	}
	work.Wait()
}

// read reads the body of a response.
func read(resp *http.Response, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(resp.Body)
}

// strange are tools whose answers depend on more than their arguments: what of
// them is the same twice is so by chance, or is another thing in a sandbox.
var strange = map[string]string{
	"everything/get-env": "tells the environment",
	"excel":              "lists what is wrong with arguments in any order",
}

// slow is how long a tool may take with no arguments to be asked again.
const slow = 2 * time.Second

// Every tool of every real server, asked with its sample and with no arguments
// at all (which many refuse, in words of their own), says the same bytes through
// SpecBox as directly, if it says the same twice.
func TestRealServersAreEqualByteForByte(t *testing.T) {
	dir, err := servers.Dir()
	if err != nil {
		t.Fatal(err)
	}
	if err := servers.Install(t.Context(), dir, nil); err != nil {
		t.Fatal(err)
	}
	work := filepath.Join(t.TempDir(), "work")
	place := func() servers.Place { // the same folders, as if nobody had been there
		if err := os.RemoveAll(work); err != nil {
			t.Fatal(err)
		}
		p, err := servers.Lay(dir, work)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	all := servers.All()
	// ask asks a server all questions and returns the answers by question.
	var tools, tedious sync.Map // server -> []string; server/tool -> it takes longer
	ask := func(t *testing.T, p servers.Place, s servers.Server, to peer) map[string]string {
		got := map[string]string{}
		one := func(tool, args string) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if _, straight := to.(*pipe); straight && args == "{}" {
				cancel()
				ctx, cancel = context.WithTimeout(t.Context(), slow)
			}
			defer cancel()
			result, err := to.request(ctx, "tools/call", callParams(tool, args))
			if ctx.Err() != nil {
				tedious.Store(s.Name+"/"+tool, true)
				return
			}
			if err != nil {
				result = []byte("error: " + err.Error())
			}
			got[tool+" "+args] = string(result)
		}
		for _, c := range s.Calls {
			var args bytes.Buffer
			if err := json.Compact(&args, p.Arguments(s, c)); err != nil {
				t.Fatal(err)
			}
			one(c.Tool, args.String())
		}
		names, ok := tools.Load(s.Name)
		if !ok {
			t.Fatalf("the tools of %s are not known", s.Name)
		}
		for _, tool := range names.([]string) {
			_, long := tedious.Load(s.Name + "/" + tool)
			if !long && strange[s.Name] == "" && strange[s.Name+"/"+tool] == "" {
				one(tool, "{}")
			}
		}
		return got
	}
	pass := func(name string, each func(t *testing.T, p servers.Place, s servers.Server) map[string]string) map[string]map[string]string {
		p := place()
		out := map[string]map[string]string{}
		var mu sync.Mutex
		t.Run(name, func(t *testing.T) {
			for _, s := range all {
				t.Run(s.Name, func(t *testing.T) {
					t.Parallel()
					got := each(t, p, s)
					mu.Lock()
					defer mu.Unlock()
					out[s.Name] = got
				})
			}
		})
		return out
	}
	straight := func(t *testing.T, p servers.Place, s servers.Server) map[string]string {
		e := p.Entry(s)
		d := direct(t, e.Env, "legacy", e.Command, e.Args...)
		list, err := d.request(t.Context(), "tools/list", "{}")
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		_ = wire.Each(wire.Get(list, "tools"), func(tool []byte) bool { names = append(names, wire.Str(tool, "name")); return true })
		tools.Store(s.Name, names)
		return ask(t, p, s, d)
	}
	first, second := pass("direct", straight), pass("again", straight)
	// Some speak the modern era as well, with other words of their own. Whether they
	// are spoken to in it depends on how soon they answer.
	modernly := pass("direct, modern", func(t *testing.T, p servers.Place, s servers.Server) map[string]string {
		e := p.Entry(s)
		d := direct(t, e.Env, "modern", e.Command, e.Args...)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		found, err := d.request(ctx, "server/discover", "{}")
		if err != nil || !bytes.Contains(wire.Get(found, "supportedVersions"), []byte(wire.Modern)) {
			return nil
		}
		return ask(t, p, s, d)
	})
	if t.Failed() {
		return
	}
	entries := object{}
	for _, s := range all {
		e := (servers.Place{Installs: dir, Fixtures: filepath.Join(work, "fixtures"), Data: filepath.Join(work, "data")}).Entry(s)
		entries[s.Name] = object{"command": e.Command, "args": e.Args, "env": e.Env, "isolation": "none"}
	}
	for _, era := range []string{"legacy", "modern"} {
		place()
		x := serve(t, entries)
		x.filled(t, servers.Names()...)
		got := pass(era, func(t *testing.T, p servers.Place, s servers.Server) map[string]string {
			if era == "modern" {
				return ask(t, p, s, modern(t, x.url+"/"+s.Name, "{}"))
			}
			return ask(t, p, s, connect(t, x.url+"/"+s.Name, "{}"))
		})
		x.stop(t)
		compared := 0
		for name, answers := range first {
			for question, want := range answers {
				if second[name][question] != want {
					continue // not the same twice
				}
				if era == "modern" && !strings.HasPrefix(want, "error: ") {
					want = string(completed("tools/call", []byte(want)))
				}
				compared++
				got := got[name][question]
				if era == "modern" && modernly[name] != nil && got == modernly[name][question] {
					continue
				}
				if got != want {
					t.Errorf("%s, %s %s:\ngot  %.500s\nwant %.500s", era, name, question, got, want)
				}
			}
		}
		t.Logf("%s: %d answers of %d servers are equal", era, compared, len(all))
		if compared < 2*len(all) {
			t.Errorf("%s: only %d answers could be compared", era, compared)
		}
	}
}
