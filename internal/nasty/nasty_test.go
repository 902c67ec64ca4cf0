package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/specbox/specbox/wire"
)

var program string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "nasty")
	if err != nil {
		panic(err)
	}
	program = filepath.Join(dir, "nasty")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		panic(fmt.Sprintf("%v: %s", err, out))
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

type process struct {
	*wire.Conn
	cmd   *exec.Cmd
	stdin io.WriteCloser
	ended chan struct{}

	mu     sync.Mutex
	noise  []string
	notes  []wire.Message
	stderr strings.Builder
}

func (p *process) Notified(_ *wire.Conn, m wire.Message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.notes = append(p.notes, m)
}

func (p *process) Requested(c *wire.Conn, m wire.Message) {
	_ = c.Respond(m.ID, wire.Reply{Result: []byte(`{"roots":[{"uri":"file:///here"}]}`)})
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stderr.Write(b)
}

func start(t *testing.T, flags ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(program, flags...), ended: make(chan struct{})}
	p.cmd.Stderr = p
	p.cmd.WaitDelay = time.Second // a grandchild may hold stderr
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout = w
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	go func() { _ = p.cmd.Wait(); close(p.ended) }()
	p.Conn = wire.NewConn(wire.NewLines(out, p.stdin, p.stdin.Close, 0, func(line []byte) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.noise = append(p.noise, string(line))
	}))
	p.Handle(p)
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
		out.Close()
		<-p.Done()
	})
	return p
}

func ready(t *testing.T, flags ...string) *process {
	t.Helper()
	p := start(t, flags...)
	p.result(t, "initialize", `{"protocolVersion":"2025-11-25","capabilities":{"sampling":{}},"clientInfo":{"name":"t","version":"1"}}`)
	if err := p.Notify("notifications/initialized", nil); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *process) result(t *testing.T, method, params string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r, err := p.Call(ctx, method, []byte(params))
	if err == nil {
		err = r.Err()
	}
	if err != nil {
		t.Fatalf("%s %s: %v", method, params, err)
	}
	return r.Result
}

// call calls a tool and returns the text of its result.
func (p *process) call(t *testing.T, tool, args string) string {
	t.Helper()
	var r struct{ Content []struct{ Text string } }
	b := p.result(t, "tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s}`, tool, args))
	if err := json.Unmarshal(b, &r); err != nil || len(r.Content) == 0 {
		t.Fatalf("%s: %v in %s", tool, err, b)
	}
	return r.Content[0].Text
}

func (p *process) names(t *testing.T, params string) (names []string, next string) {
	t.Helper()
	var r struct {
		Tools      []struct{ Name string }
		NextCursor string
	}
	if err := json.Unmarshal(p.result(t, "tools/list", params), &r); err != nil {
		t.Fatal(err)
	}
	for _, tool := range r.Tools {
		names = append(names, tool.Name)
	}
	return names, r.NextCursor
}

// within fails the test if c is not closed in time.
func within(t *testing.T, d time.Duration, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(d):
		t.Fatalf("%s: not within %v", what, d)
	}
}

// gone waits until a process is gone.
func gone(t *testing.T, pid int) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Second)
	for {
		// A zombie of another parent counts as gone.
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(b), ") Z ") {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("process %d is still there: %s", pid, b)
		}
	}
}

func TestBytesComeBackAsTheyWent(t *testing.T) {
	p := ready(t)
	for _, v := range []string{
		`{"n":12345678901234567890,"f":1.0,"e":1e2}`,
		`{"b":{},"a":[],"z":null,"a ":"\u00e9<&>` + "\u2028" + `"}`,
	} {
		got := p.result(t, "tools/call", `{"name":"echo","arguments":`+v+`}`)
		if !strings.Contains(string(got), `"arguments":`+v+`,"isError":false`) {
			t.Errorf("echo of %s gave %s", v, got)
		}
		if got := p.result(t, "tools/call", `{"name":"raw","arguments":{"result":`+v+`}}`); string(got) != v {
			t.Errorf("raw of %s gave %s", v, got)
		}
	}
	for _, n := range []int{63 << 10, 64 << 10, 1100000, 17 << 20} {
		if got := len(p.result(t, "tools/call", fmt.Sprintf(`{"name":"size","arguments":{"bytes":%d}}`, n))); got != n {
			t.Errorf("size %d gave %d bytes", n, got)
		}
	}
}

func TestListsAsTheFlagsSay(t *testing.T) {
	plain, _ := ready(t).names(t, "{}")
	p := ready(t, "-tools", "101", "-page", "50", "-equal-names", "-long-names", "-by-sampling")
	all, next := p.names(t, "{}")
	if len(all) != 50 || next == "" {
		t.Fatalf("the first page has %d tools and the cursor %q", len(all), next)
	}
	for next != "" {
		var page []string
		page, next = p.names(t, fmt.Sprintf(`{"cursor":%q}`, next))
		all = append(all, page...)
	}
	if want := len(plain) + 101 + 2 + 2 + 1; len(all) != want {
		t.Errorf("%d tools, want %d", len(all), want)
	}
	endless := ready(t, "-endless-cursor")
	_, one := endless.names(t, "{}")
	_, two := endless.names(t, fmt.Sprintf(`{"cursor":%q}`, one))
	if one == "" || two == "" || one == two {
		t.Errorf("an endless cursor went from %q to %q", one, two)
	}
	stuck := ready(t, "-stuck-cursor")
	_, one = stuck.names(t, "{}")
	_, two = stuck.names(t, fmt.Sprintf(`{"cursor":%q}`, one))
	if one == "" || one != two {
		t.Errorf("a stuck cursor went from %q to %q", one, two)
	}
}

func TestCancelledTellsWhichCall(t *testing.T) {
	p := ready(t)
	call, err := p.Start("tools/call", []byte(`{"name":"child","arguments":{"seconds":120},"_meta":{"progressToken":"x"}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	for pid == 0 { // until the child runs
		for id, line := range decode[map[string]string](t, p.call(t, "processes", "{}")) {
			if strings.Contains(line, "-sleeper 120s") {
				pid, _ = strconv.Atoi(id)
			}
		}
	}
	call.Abandon([]byte(`"enough"`))
	gone(t, pid)
	got := decode[[]struct{ Call, Reason string }](t, p.call(t, "cancelled", "{}"))
	if len(got) != 1 || got[0].Call != "child" || got[0].Reason != "enough" {
		t.Errorf("got %+v", got)
	}
}

func decode[T any](t *testing.T, s string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(s), &v); err != nil {
		t.Fatalf("%v in %s", err, s)
	}
	return v
}

func TestStaysWhenToldToGo(t *testing.T) {
	p := ready(t, "-ignore-eof", "-ignore-term")
	if err := p.stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.ended:
		t.Error("it went")
	case <-time.After(300 * time.Millisecond):
	}
	q := ready(t)
	if err := q.stdin.Close(); err != nil {
		t.Fatal(err)
	}
	within(t, 10*time.Second, q.ended, "a server without manners ends at EOF")
}

func TestLeavesAGrandchild(t *testing.T) {
	p := ready(t)
	pid := decode[int](t, p.call(t, "grandchild", `{"seconds":60}`))
	if err := p.stdin.Close(); err != nil {
		t.Fatal(err)
	}
	within(t, 10*time.Second, p.ended, "the server ends")
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || pid <= 1 || !strings.Contains(string(line), "-sleeper") {
		t.Fatalf("process %d is no grandchild: %q, %v", pid, line, err)
	}
	select {
	case <-p.Done():
		t.Error("stdout ended though the grandchild holds it")
	default:
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	within(t, 10*time.Second, p.Done(), "stdout ends with the grandchild")
}

func TestFailsAsTold(t *testing.T) {
	p := start(t, "-exit", "7", "-say", "no key in KEY")
	within(t, 10*time.Second, p.ended, "exit at start")
	if code := p.cmd.ProcessState.ExitCode(); code != 7 || p.stderr.String() != "no key in KEY\n" {
		t.Errorf("exit %d with %q", code, p.stderr.String())
	}
	q := ready(t)
	r, err := q.Call(t.Context(), "tools/call", []byte(`{"name":"crash","arguments":{"status":9,"say":"out of luck"}}`))
	if err == nil {
		t.Errorf("a crash answered %s", r.Result)
	}
	within(t, 10*time.Second, q.ended, "crash")
	if code := q.cmd.ProcessState.ExitCode(); code != 9 || q.stderr.String() != "out of luck\n" {
		t.Errorf("exit %d with %q", code, q.stderr.String())
	}
	e := ready(t, "-list-error", "tools/list")
	if r, err := e.Call(t.Context(), "tools/list", nil); err != nil || r.Err() == nil {
		t.Errorf("got %v, %v", r, err)
	}
}

func TestPrintsJunkAndWorks(t *testing.T) {
	p := ready(t, "-banner", "11", "-junk", "-list-changed", "-roots")
	if got := p.call(t, "echo", "{}"); got != "{}" {
		t.Errorf("got %q", got)
	}
	for p.call(t, "roots-seen", "{}") == "" { // its answer is under way
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.noise) < 5 {
		t.Errorf("noise: %q", p.noise)
	}
	if len(p.notes) == 0 || p.notes[0].Method != "notifications/tools/list_changed" {
		t.Errorf("notes: %v", p.notes)
	}
}

func TestCountsInitializes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "inits")
	ready(t, "-inits", file, "-name", "one")
	ready(t, "-inits", file, "-name", "two")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(string(b), "\n"); got != 2 || !strings.Contains(string(b), " two\n") {
		t.Errorf("got %q", b)
	}
}

func TestRemembers(t *testing.T) {
	p := ready(t)
	p.call(t, "set", `{"key":"k","value":{"a":1}}`)
	if got := p.call(t, "get", `{"key":"k"}`); got != `{"a":1}` {
		t.Errorf("got %s", got)
	}
	p.result(t, "resources/subscribe", `{"uri":"nasty://text"}`)
	if got := p.call(t, "update", `{"uri":"nasty://text"}`); got != "true" {
		t.Errorf("update: %s", got)
	}
	if got := p.call(t, "update", `{"uri":"nasty://blob"}`); got != "false" {
		t.Errorf("update of what nobody subscribed to: %s", got)
	}
}
