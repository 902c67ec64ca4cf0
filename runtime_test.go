package specbox_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/specbox/specbox"
	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/control"
	"github.com/specbox/specbox/trace"
	"github.com/specbox/specbox/wire"
)

var nasty string // the fixture server

func TestMain(m *testing.M) {
	specbox.Init()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "nasty-")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer os.RemoveAll(dir)
	nasty = filepath.Join(dir, "nasty")
	build := exec.Command("go", "build", "-o", nasty, "./internal/nasty")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Printf("build nasty: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// A running house, over HTTP.
type running struct {
	*specbox.Runtime
	t      *testing.T
	url    string
	events *strings.Builder
	filled chan struct{} // closed when the catalogue was filled
	stop   func()
}

// serve runs a house on a configuration in which NASTY stands for the fixture.
func serve(t *testing.T, state, yaml string) *running {
	t.Helper()
	cfg, faults := config.Parse("test.yaml", []byte(strings.ReplaceAll(yaml, "NASTY", nasty)), os.LookupEnv)
	if fatal := config.Fatal(faults); len(fatal) > 0 {
		t.Fatalf("configuration: %v", fatal)
	}
	cfg.Listen = "127.0.0.1:0"
	r := &running{t: t, events: new(strings.Builder), filled: make(chan struct{})}
	var err error
	r.Runtime, err = specbox.New(specbox.Options{
		Config: cfg, State: state, Offline: true, Version: "test", Trace: r.events,
		Report: func(p specbox.Progress) {
			if p.Phase == "catalog" && p.Done == p.Total {
				close(r.filled)
			}
		},
		Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	select {
	case <-r.Ready():
	case err := <-done:
		t.Fatalf("Run: %v", err)
	}
	r.url = "http://" + r.Addr() + "/mcp"
	stopped := false
	r.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
	t.Cleanup(r.stop)
	return r
}

func (r *running) connect(path string) *mcp.ClientSession {
	r.t.Helper()
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	s, err := c.Connect(r.t.Context(), &mcp.StreamableClientTransport{Endpoint: r.url + path}, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { s.Close() })
	return s
}

func call(t *testing.T, s *mcp.ClientSession, tool string, args map[string]any) string {
	t.Helper()
	res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		return "error: " + err.Error()
	}
	text, ok := res.Content[0].(*mcp.TextContent)
	if !ok {
		t.Fatalf("%s gave %T", tool, res.Content[0])
	}
	return text.Text
}

func (r *running) ps() []control.Sandbox {
	r.t.Helper()
	rows, err := r.Control().PS(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return rows
}

const two = `
servers:
  one: {command: NASTY, args: [-name, one, -instructions, be kind], idle_timeout: 1m}
  two: {command: NASTY, args: [-name, two, -tools, "101", -page, "50"]}
`

func TestAnAgentCallsServersThroughTheHouse(t *testing.T) {
	state := t.TempDir()
	r := serve(t, state, two)
	s := r.connect("")
	if got := s.InitializeResult().ServerInfo.Name; got != "specbox" {
		t.Errorf("the server is %q", got)
	}
	tools, err := s.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, tool := range tools.Tools {
		names[tool.Name] = true
	}
	for _, want := range []string{"one__echo", "two__echo", "two__tool-001", "two__tool-101"} {
		if !names[want] {
			t.Errorf("the list of %d tools lacks %s", len(names), want)
		}
	}
	if got, want := call(t, s, "two__echo", map[string]any{"n": 1}), `{"n":1}`; got != want {
		t.Errorf("echo: %s, want %s", got, want)
	}
	rows := r.ps()
	var mine []control.Sandbox
	for _, row := range rows {
		if row.Cause == string(trace.Demand) {
			mine = append(mine, row)
		}
	}
	if len(mine) != 1 || mine[0].Server != "two" || mine[0].PID == 0 || mine[0].Memory == 0 || mine[0].Tenant != "default" {
		t.Errorf("sandboxes %+v, want the one that was called", mine)
	}
	<-r.filled
	r.stop()

	// After a restart, all is there at once, and nothing runs.
	again := serve(t, state, two)
	begin := time.Now()
	s = again.connect("")
	tools, err = s.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(tools.Tools) != len(names) {
		t.Errorf("%d tools after the restart, want %d", len(tools.Tools), len(names))
	}
	t.Logf("connected and listed after a restart in %v", time.Since(begin))
	if rows := again.ps(); len(rows) != 0 {
		t.Errorf("sandboxes after a list: %+v", rows)
	}
}

func TestAStaleSessionIsNotFound(t *testing.T) {
	r := serve(t, t.TempDir(), two)
	req, err := http.NewRequestWithContext(t.Context(), "POST", r.url, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("Mcp-Session-Id", "of-yesterday")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusNotFound {
		t.Errorf("status %d, want 404", res.StatusCode)
	}
}

func TestTheOperatorsDoor(t *testing.T) {
	r := serve(t, t.TempDir(), two)
	<-r.filled
	c := r.Control()
	raw, err := c.Call(t.Context(), "", "one__echo", json.RawMessage(`{"big":12345678901234567890}`), func(control.Progress) error { return nil })
	if err != nil || !strings.Contains(string(raw), `"arguments":{"big":12345678901234567890}`) {
		t.Errorf("call: %s, %v", raw, err)
	}
	if _, err := c.Call(t.Context(), "", "one__nothing", nil, nil); err == nil || !strings.Contains(err.Error(), "unknown tool") {
		t.Errorf("an unknown tool: %v", err)
	}
	s := r.connect("/one")
	call(t, s, "stderr", map[string]any{"text": "hello operator"})
	found := errors.New("found")
	err = c.Logs(t.Context(), "", "one", true, func(l control.Line) error { // it comes when it comes
		if strings.Contains(l.Text, "hello operator") {
			return found
		}
		return nil
	})
	if !errors.Is(err, found) {
		t.Errorf("logs: %v", err)
	}
	n, err := c.Stop(t.Context(), control.Selector{All: true})
	if err != nil || n == 0 || len(r.ps()) != 0 {
		t.Errorf("stopped %d, %v; left %+v", n, err, r.ps())
	}
	if got := call(t, s, "echo", map[string]any{}); got != "{}" {
		t.Errorf("after the stop: %s", got)
	}
}

func TestTenantsAreApart(t *testing.T) {
	r := serve(t, t.TempDir(), `
tenants:
  a: {tokens: ["sha256:`+hashOf("token-a")+`"], sandboxes: 1}
  b: {tokens: ["sha256:`+hashOf("token-b")+`"], servers: [two]}
`+two)
	as := func(token string) (*mcp.ClientSession, error) {
		c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
		return c.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: r.url, HTTPClient: &http.Client{Transport: bearer(token)}}, nil)
	}
	if _, err := as("wrong"); err == nil {
		t.Error("a wrong token opens the door")
	}
	a, err := as("token-a")
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := as("token-b")
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	call(t, a, "one__set", map[string]any{"key": "k", "value": "secret of a"})
	if got := call(t, b, "one__get", map[string]any{"key": "k"}); !strings.Contains(got, "unknown tool") {
		t.Errorf("a server that b may not use answers %s", got)
	}
	call(t, a, "two__set", map[string]any{"key": "k", "value": "secret of a"}) // the quota of a is one: the idle one gives way
	if got := call(t, b, "two__get", map[string]any{"key": "k"}); got != "null" {
		t.Errorf("b sees %s", got)
	}
	n := 0
	for _, row := range r.ps() {
		if row.Tenant == "a" {
			n++
		}
	}
	if n > 1 {
		t.Errorf("a has %d sandboxes, its quota is 1", n)
	}
}

type bearer string

func (b bearer) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(req)
}

func hashOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// Servers behind a URL stand beside local ones, whichever way they speak.
func TestRemoteServersStandBesideLocalOnes(t *testing.T) {
	server := func() *mcp.Server {
		s := mcp.NewServer(&mcp.Implementation{Name: "far", Version: "1"}, nil)
		mcp.AddTool(s, &mcp.Tool{Name: "greet"}, func(_ context.Context, _ *mcp.CallToolRequest, in struct{ Name string }) (*mcp.CallToolResult, any, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "hello " + in.Name}}}, nil, nil
		})
		return s
	}
	get := func(*http.Request) *mcp.Server { return server() }
	keyed := func(h http.Handler) *httptest.Server {
		return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if req.Header.Get("X-Key") != "sesame-1234" {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			h.ServeHTTP(w, req)
		}))
	}
	streamable := keyed(mcp.NewStreamableHTTPHandler(get, nil))
	t.Cleanup(streamable.Close)
	legacy := keyed(mcp.NewSSEHandler(get, nil))
	t.Cleanup(legacy.Close)
	t.Setenv("FAR_KEY", "sesame-1234")
	r := serve(t, t.TempDir(), `
servers:
  new: {url: "`+streamable.URL+`", headers: {X-Key: "${FAR_KEY}"}}
  old: {url: "`+legacy.URL+`", transport: sse, headers: {X-Key: "${FAR_KEY}"}}
  guessed: {url: "`+legacy.URL+`", headers: {X-Key: "${FAR_KEY}"}}
  gone: {url: "http://127.0.0.1:1/mcp"}
  local: {command: NASTY}
`)
	<-r.filled
	s := r.connect("")
	for _, name := range []string{"new", "old", "guessed"} {
		if got, want := call(t, s, name+"__greet", map[string]any{"Name": "you"}), "hello you"; got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	if got := call(t, s, "local__echo", map[string]any{"n": 1}); got != `{"n":1}` {
		t.Errorf("the local one: %s", got)
	}
	rows, err := r.Control().Catalog(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var problem string
	for _, row := range rows {
		if row.Server == "gone" {
			problem += row.Error
		} else if row.Error != "" {
			t.Errorf("%s: %s", row.Server, row.Error)
		}
	}
	r.stop()
	if !strings.Contains(problem, "127.0.0.1:1") || strings.Contains(problem+r.events.String(), "sesame") {
		t.Errorf("the one that is gone: %s", problem)
	}
}

func TestStdioServesNoTenants(t *testing.T) {
	cfg, _ := config.Parse("test.yaml", []byte(`
tenants: {a: {tokens: ["sha256:`+hashOf("x")+`"]}}
servers: {one: {command: `+nasty+`}}`), os.LookupEnv)
	r, err := specbox.New(specbox.Options{Config: cfg, State: t.TempDir(), Offline: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.ServeStdio(t.Context(), strings.NewReader(""), io.Discard); err == nil || !strings.Contains(err.Error(), "tenants") {
		t.Errorf("ServeStdio with tenants: %v", err)
	}
}

// Nobody but this machine reaches SpecBox without a token.
func TestAnOpenDoorIsRefused(t *testing.T) {
	for _, addr := range []string{":8484", "0.0.0.0:8484", "[::]:0", "192.0.2.1:80", "example.com:80"} {
		_, err := specbox.New(specbox.Options{Config: &config.Config{Listen: addr}, State: t.TempDir()})
		if err == nil || !strings.Contains(err.Error(), "specbox token") {
			t.Errorf("listen on %s without tenants: %v", addr, err)
		}
	}
}

// Isolation is the default; without it a server is at home where its user is,
// and everybody is told.
func TestIsolationIsOnlyGivenUpWhereAsked(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	r := serve(t, t.TempDir(), `
servers:
  kept: {command: NASTY}
  free: {command: NASTY, isolation: none}
`)
	s := r.connect("")
	home := func(server string) string {
		return call(t, s, server+"__env", map[string]any{"names": []string{"HOME"}})
	}
	if got, want := home("free"), os.Getenv("HOME"); !strings.Contains(got, want) {
		t.Errorf("HOME without isolation: %s, want %s", got, want)
	}
	if got := home("kept"); strings.Contains(got, os.Getenv("HOME")) || !strings.Contains(got, "HOME") {
		t.Errorf("HOME in a sandbox: %s, want a private one", got)
	}
	for _, row := range r.ps() {
		if (row.IsolationWarning != "") != (row.Server == "free") {
			t.Errorf("ps says %q of %s", row.IsolationWarning, row.Server)
		}
	}
	if w := r.Warnings(); len(w) != 1 || !strings.Contains(w[0], "free: runs without isolation") {
		t.Errorf("warnings %q", w)
	}
}

// What came from a variable is shown nowhere, whatever goes wrong with it.
func TestVariablesAreShownNowhere(t *testing.T) {
	const secret = "value-of-a-variable"
	t.Setenv("PRIVATE", secret)
	state := filepath.Join(t.TempDir(), "state")
	r := serve(t, state, `
servers:
  mount: {command: NASTY, mounts: ["/nowhere/${PRIVATE}"]}
  dir: {command: NASTY, dir: "/nowhere/${PRIVATE}"}
  path: {url: "http://127.0.0.1:1/${PRIVATE}/mcp"}
  host: {url: "http://${PRIVATE}.invalid/mcp"}
  says: {command: NASTY, args: [-exit, "3", -say, "I was given ${PRIVATE}"]}
  lives: {command: NASTY, env: {GITHUB_PAT: "${PRIVATE}"}}
`)
	<-r.filled
	s := r.connect("")
	call(t, s, "lives__stderr", map[string]any{"text": "my key is " + secret})
	call(t, s, "lives__print", map[string]any{"text": "my key is " + secret})
	said := []string{call(t, s, "lives__crash", map[string]any{"say": "my key was " + secret, "status": 4})}
	if !strings.Contains(said[0], "my key was ${PRIVATE}") {
		t.Errorf("last words: %s", said[0])
	}
	door := r.Control()
	rows, err := door.Catalog(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		said = append(said, row.Error)
	}
	for _, name := range []string{"says", "lives", "path"} {
		if err := door.Logs(t.Context(), "", name, false, func(l control.Line) error { said = append(said, l.Text); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	r.stop()
	said = append(said, r.events.String())
	err = filepath.WalkDir(state, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			var b []byte
			b, err = os.ReadFile(path)
			said = append(said, string(b))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range said {
		if i := strings.Index(text, secret); i >= 0 {
			t.Errorf("it is shown: …%s", text[max(0, i-100):i+len(secret)])
		}
	}
}

// What stands beside the endpoints is guarded like them, and a slash at the end
// of their path is no other path.
func TestTheDoorIsOneDoor(t *testing.T) {
	r := serve(t, t.TempDir(), "servers: {one: {command: NASTY}}")
	for _, tt := range []struct {
		method, path, host string
		want               int
	}{
		{"GET", "/healthz", "", 200}, {"GET", "/metrics", "", 200}, {"GET", "/healthz", "evil.example", 403}, {"GET", "/metrics", "evil.example", 403},
		{"POST", "/mcp", "", 200}, {"POST", "/mcp/", "", 200}, {"POST", "/mcp/", "evil.example", 403}, {"POST", "/mcp/one", "", 200},
	} {
		body := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`
		req, err := http.NewRequestWithContext(t.Context(), tt.method, "http://"+r.Addr()+tt.path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		if tt.host != "" {
			req.Host = tt.host
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
		if res.StatusCode != tt.want {
			t.Errorf("%s %s for Host %q: %d, want %d", tt.method, tt.path, tt.host, res.StatusCode, tt.want)
		}
	}
}

// A modern client names its conversation by the path, too, and keeps its state.
func TestConversationsByPath(t *testing.T) {
	r := serve(t, t.TempDir(), `servers: {one: {command: NASTY, scope: session}}`)
	<-r.filled
	do := func(path, body string) string {
		req, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+r.Addr()+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
			"Mcp-Protocol-Version": wire.Modern, "Mcp-Method": "tools/call", "Mcp-Name": wire.Str([]byte(body), "params", "name")} {
			req.Header.Set(k, v)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	call := func(path, tool, args string) string {
		return do(path, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"one__`+tool+`","arguments":`+args+`,"_meta":{"`+wire.MetaVersion+`":"`+wire.Modern+`","`+wire.MetaCapabilities+`":{}}}}`)
	}
	call("/s/a/mcp", "set", `{"key":"k","value":"kept"}`)
	if got := call("/s/a/mcp", "get", `{"key":"k"}`); !strings.Contains(got, "kept") {
		t.Errorf("the same conversation: %s", got)
	}
	if got := call("/s/b/mcp", "get", `{"key":"k"}`); strings.Contains(got, "kept") || strings.Contains(got, "error") {
		t.Errorf("another conversation: %s", got)
	}
}

// What a call was asked with need not stay in memory for as long as it takes.
func TestCallsUnderWayHoldNoMessages(t *testing.T) {
	r := serve(t, t.TempDir(), "servers: {one: {command: NASTY, scope: shared}}")
	<-r.filled
	const size, calls = 4 << 20, 8
	post := func(ctx context.Context, key, head string, pad int) *http.Response {
		body := io.MultiReader(strings.NewReader(head), io.LimitReader(letters{}, int64(pad)), strings.NewReader(`"}}}`))
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url, body)
		if err != nil {
			t.Fatal(err)
		}
		req.ContentLength = int64(len(head) + pad + 4)
		req.Header.Set("Content-Type", "application/json")
		if key != "" {
			req.Header.Set("Mcp-Session-Id", key)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return nil // it was given up
		}
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
		return res
	}
	hello := post(t.Context(), "", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"`, 1)
	key := hello.Header.Get("Mcp-Session-Id")
	var before, m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	ctx, cancel := context.WithCancel(t.Context())
	var under sync.WaitGroup
	for range calls {
		under.Go(func() {
			post(ctx, key, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"one__hang","arguments":{"pad":"`, size)
		})
	}
	deadline := time.Now().Add(time.Minute)
	for { // until all have been passed on
		runtime.GC()
		runtime.ReadMemStats(&m)
		rows := r.ps()
		if len(rows) == 1 && rows[0].Calls == calls && m.HeapAlloc < before.HeapAlloc+size*calls/2 {
			break
		}
		if time.Now().After(deadline) {
			t.Errorf("%d MiB are in use while %d calls of %d MiB are under way, and %d before: %+v", m.HeapAlloc>>20, calls, size>>20, before.HeapAlloc>>20, rows)
			break
		}
	}
	cancel()
	under.Wait()
}

// letters read as an endless text.
type letters struct{}

func (letters) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}
