package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// alive returns the processes below the box, but for threads of its own making.
func (x *box) alive() []proc { return below(x.cmd.Process.Pid) }

// asleep waits until the box has no sandbox and no process below it.
func (x *box) asleep(t *testing.T) {
	t.Helper()
	eventually(t, 30*time.Second, "nothing runs", func() string {
		if rows := x.ps(t); len(rows) > 0 {
			return fmt.Sprintf("%+v", rows)
		}
		if p := x.alive(); len(p) > 0 {
			return fmt.Sprintf("%+v", p)
		}
		return ""
	})
}

func TestListsWithNoSandboxAlive(t *testing.T) {
	state := t.TempDir()
	config := object{"servers": object{
		"slow": with(bad("-init-delay", "8s", "-name", "slow"), object{"start_timeout": "30s"}),
		"fast": bad("-name", "fast"),
	}}
	x := serveFile(t, state, config)
	began := time.Now()
	c := connect(t, x.url, full)
	if d := time.Since(began); d > 3*time.Second {
		t.Errorf("initialize took %v while the lists of a slow server were read", d)
	}
	x.filled(t, "slow", "fast")
	c.end(t)
	x.stop(t)

	x = serveFile(t, state, config) // the lists are stored
	began = time.Now()
	c = connect(t, x.url, "{}")
	names := c.tools(t)
	if d := time.Since(began); d > 2*time.Second {
		t.Errorf("initialize and tools/list took %v after a restart", d)
	}
	for _, want := range []string{"slow__echo", "fast__echo"} {
		if !slices.Contains(names, want) {
			t.Errorf("%s is not among %q", want, names)
		}
	}
	for _, r := range x.ps(t) {
		t.Errorf("alive after the lists: %+v", r)
	}

	// A call waits for the slow start, and the client is told meanwhile.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := c.request(ctx, "tools/call", `{"name":"slow__echo","arguments":{},"_meta":{"progressToken":"wait"}}`)
	if err != nil {
		t.Fatal(err)
	}
	c.noted(t, "notifications/progress", `"progressToken":"wait"`)
}

func TestIdleServersAreNotSpokenTo(t *testing.T) {
	dir := t.TempDir()
	x := serve(t, object{"nasty": with(bad("-inits", filepath.Join(dir, "inits")), object{"mounts": []string{dir + ":rw"}})})
	x.filled(t, "nasty")
	inits := func() int {
		b, err := os.ReadFile(filepath.Join(dir, "inits"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(b), "\n")
	}
	eventually(t, 20*time.Second, "the lists were read", func() string {
		if p := x.alive(); len(p) > 0 {
			return fmt.Sprint(p)
		}
		return ""
	})
	before := inits()
	for range 20 {
		c := connect(t, x.url, "{}")
		c.tools(t)
		c.end(t)
	}
	if after := inits(); before > 2 || after > before {
		t.Errorf("initialize was seen %d times for the lists, and %d times by 20 sessions that called nothing", before, after-before)
	}
}

func TestACrashFailsItsCallWithTheLastWords(t *testing.T) {
	x := serve(t, object{"nasty": bad()})
	x.filled(t, "nasty")
	c := connect(t, x.url, "{}")
	c.call(t, "nasty__echo", "{}")
	began := time.Now()
	_, err := c.try(t.Context(), "nasty__crash", `{"status":9,"say":"the disk is full"}`)
	if d := time.Since(began); d > time.Second {
		t.Errorf("the call failed after %v", d)
	}
	if err == nil || !strings.Contains(err.Error(), "the disk is full") || !strings.Contains(err.Error(), "nasty") {
		t.Errorf("got %v, want the server's name and last words", err)
	}
	if got := c.call(t, "nasty__echo", `{"again":1}`); got != `{"again":1}` {
		t.Errorf("the next call got %s", got)
	}
}

func TestServersKilledInMidCall(t *testing.T) {
	x := serve(t, object{"nasty": with(bad(), object{"scope": "tenant"})})
	x.filled(t, "nasty")
	c := connect(t, x.url, "{}")
	for i := range 200 {
		if got := c.call(t, "nasty__echo", fmt.Sprint(`{"i":`, i, `}`)); got != fmt.Sprint(`{"i":`, i, `}`) {
			t.Fatalf("call %d got %s", i, got)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		done := make(chan error, 1)
		go func() {
			_, err := c.request(ctx, "tools/call", fmt.Sprintf(
				`{"name":"nasty__progress","arguments":{"steps":100000,"interval_ms":100},"_meta":{"progressToken":"call %d"}}`, i))
			done <- err
		}()
		c.noted(t, "notifications/progress", fmt.Sprintf(`"call %d"`, i)) // it is under way
		victim := 0
		for _, p := range x.alive() {
			if strings.HasPrefix(p.line, nasty) && p.state != "Z" {
				victim = p.pid
			}
		}
		if victim <= 1 {
			t.Fatalf("no server runs: %+v", x.alive())
		}
		began := time.Now()
		if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		err := <-done
		cancel()
		if err == nil {
			t.Fatalf("call %d was answered though its server was killed", i)
		}
		if d := time.Since(began); d > time.Second {
			t.Errorf("call %d failed %v after its server was killed", i, d)
		}
	}
	c.end(t)
}

// Clients die in mid-request: all in one session, whose sandbox goes on, or each
// in a session and with a sandbox of its own, which nobody ends.
func TestClientsThatDie(t *testing.T) {
	for name, scope := range map[string]string{"one session": "tenant", "sessions of their own": "session"} {
		t.Run(name, func(t *testing.T) {
			server := with(object{"command": nasty}, object{"idle_timeout": "1s", "scope": scope})
			if scope == "tenant" {
				server = with(bad(), object{"idle_timeout": "1s", "scope": scope})
			}
			x := serve(t, object{"nasty": server})
			x.filled(t, "nasty")
			c := connect(t, x.url, "{}")
			var work sync.WaitGroup
			slots := make(chan struct{}, 8)
			for i := range 200 {
				slots <- struct{}{}
				mine := c
				if scope == "session" {
					mine = connect(t, x.url, "{}")
				}
				work.Go(func() {
					defer func() { <-slots }()
					if err := dieCalling(x.url, mine.session, i); err != nil {
						t.Error(err)
					}
				})
			}
			work.Wait()
			if got := c.call(t, "nasty__echo", `{"after":1}`); got != `{"after":1}` {
				t.Errorf("got %s", got)
			}
			c.end(t)
			x.asleep(t)
		})
	}
}

// dieCalling is the death of the i-th client: some die within the request,
// others while they wait, with and without a reset.
func dieCalling(url, session string, i int) error {
	address := strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/mcp")
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	body := callBody("1", "nasty__sleep", `{"ms":200}`)
	whole := fmt.Sprintf("POST /mcp HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\nMcp-Session-Id: %s\r\nMCP-Protocol-Version: 2025-11-25\r\nContent-Length: %d\r\n\r\n%s",
		address, session, len(body), body)
	_, err = conn.Write([]byte(whole[:len(whole)*(1+i%8)/8]))
	if i%2 == 0 {
		err = errors.Join(err, conn.(*net.TCPConn).SetLinger(0))
	}
	return errors.Join(err, conn.Close())
}

func callBody(id, tool, args string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":%s}`, id, callParams(tool, args))
}

func TestSpecBoxKilled(t *testing.T) {
	state := t.TempDir()
	config := object{"servers": object{
		"sandboxed": bad("-ignore-eof", "-ignore-term"),
		"plain":     with(bad("-ignore-eof", "-ignore-term"), object{"isolation": "none"}),
	}}
	for i := range 20 {
		x := serveFile(t, state, config)
		if i == 0 {
			x.filled(t, "sandboxed", "plain")
		}
		c := connect(t, x.url, "{}")
		c.call(t, "sandboxed__grandchild", `{"seconds":600}`)
		c.call(t, "plain__grandchild", `{"seconds":600}`)
		go func() { _, _ = c.try(t.Context(), "sandboxed__hang", "{}") }()
		x.kill(t)
	}
	x := serveFile(t, state, config) // takes away what the kernel could not
	eventually(t, 10*time.Second, "nothing of the killed ones is left", func() string {
		for _, p := range orphans() {
			if p.state == "Z" && p.parent == os.Getpid() {
				reap(p.pid)
			} else if strings.Contains(p.line, nasty) {
				return fmt.Sprintf("%+v", p)
			}
		}
		return ""
	})
	x.stop(t)
}

func TestStubbornServers(t *testing.T) {
	x := serve(t, object{"stubborn": with(bad("-ignore-eof", "-ignore-term"), object{"idle_timeout": "1s", "stop_grace": "300ms"})})
	x.filled(t, "stubborn")
	var work sync.WaitGroup
	for i := range 10 {
		c := connect(t, x.url, "{}")
		for j := range 50 {
			work.Go(func() {
				want := fmt.Sprintf(`{"client":%d,"call":%d}`, i, j)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if got, err := c.try(ctx, "stubborn__echo", want); err != nil || got != want {
					t.Errorf("client %d, call %d: got %q, %v", i, j, got, err)
				}
			})
		}
	}
	work.Wait()
	x.asleep(t) // though the sessions are open
	for _, p := range below(os.Getpid()) {
		if p.state == "Z" {
			t.Errorf("a zombie: %+v", p)
		}
	}
}

func TestStoppingIsBounded(t *testing.T) {
	x := serve(t, object{"stubborn": with(bad("-ignore-eof", "-ignore-term"), object{"stop_grace": "300ms"})})
	x.filled(t, "stubborn")
	c := connect(t, x.url, "{}")
	c.call(t, "stubborn__grandchild", `{"seconds":600}`)
	began := time.Now()
	x.run(t, "stop", "stubborn")
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("stop took %v", d)
	}
	x.asleep(t)
	if got := c.call(t, "stubborn__echo", `{}`); got != "{}" {
		t.Errorf("the session's next call got %s", got)
	}
	began = time.Now()
	x.stop(t)
	if d := time.Since(began); d > 10*time.Second {
		t.Errorf("the end took %v", d)
	}
}

func TestSessionsEndTakesItsSandboxes(t *testing.T) {
	x := serve(t, object{"nasty": bad()})
	x.filled(t, "nasty")
	a, b := connect(t, x.url, "{}"), connect(t, x.url, "{}")
	a.call(t, "nasty__set", `{"key":"k","value":"a"}`)
	if got := b.call(t, "nasty__get", `{"key":"k"}`); got != "null" {
		t.Errorf("a session sees another's state: %s", got)
	}
	if got := a.call(t, "nasty__get", `{"key":"k"}`); got != `"a"` {
		t.Errorf("a session lost its state: %s", got)
	}
	if rows := x.ps(t); len(rows) != 2 {
		t.Errorf("two sessions have %+v", rows)
	}
	a.end(t)
	eventually(t, 10*time.Second, "one sandbox is left", func() string {
		if rows := x.ps(t); len(rows) != 1 {
			return fmt.Sprintf("%+v", rows)
		}
		return ""
	})
	b.end(t)
	x.asleep(t)
}

func TestCancelledCallsStop(t *testing.T) {
	x := serve(t, object{"nasty": bad(), "deaf": with(bad(), object{"stop_on_cancel": true})})
	x.filled(t, "nasty", "deaf")
	c := connect(t, x.url, "{}")
	done := make(chan error, 1)
	go func() {
		_, err := c.withID(t.Context(), `"the client's own id"`, "tools/call", callParams("nasty__child", `{"seconds":120}`))
		done <- err
	}()
	eventually(t, 10*time.Second, "the child runs", func() string {
		if strings.Contains(c.call(t, "nasty__processes", "{}"), "-sleeper 120s") {
			return ""
		}
		return "it does not"
	})
	c.notify(t, "notifications/cancelled", `{"requestId":"the client's own id","reason":"enough"}`)
	if err := <-done; err == nil {
		t.Error("a cancelled call was answered")
	}
	eventually(t, 10*time.Second, "the child is gone", func() string {
		if got := c.call(t, "nasty__processes", "{}"); strings.Contains(got, "-sleeper 120s") {
			return got
		}
		return ""
	})
	var seen []struct{ Call, Reason string }
	decode(t, c.call(t, "nasty__cancelled", "{}"), &seen)
	if len(seen) != 1 || seen[0].Call != "child" || seen[0].Reason != "enough" {
		t.Errorf("the server saw %+v: a cancellation has the id that the server knows", seen)
	}

	// A server that goes on in spite of it is stopped where that was asked for.
	go func() {
		_, err := c.withID(t.Context(), "7000", "tools/call", callParams("deaf__hang", `{"deaf":true}`))
		done <- err
	}()
	eventually(t, 10*time.Second, "the call runs", func() string {
		for _, r := range x.ps(t) {
			if r.Server == "deaf" && r.State == "leased" { // a start that is cancelled goes on, for the next call
				return ""
			}
		}
		return "it does not"
	})
	c.notify(t, "notifications/cancelled", `{"requestId":7000}`)
	<-done
	eventually(t, 20*time.Second, "the sandbox is gone", func() string {
		for _, r := range x.ps(t) {
			if r.Server == "deaf" {
				return fmt.Sprintf("%+v", r)
			}
		}
		return ""
	})
}

func TestTimeoutsAreTheServers(t *testing.T) {
	x := serve(t, object{
		"quick": with(bad(), object{"call_timeout": "1s"}),
		"never": with(bad("-silent"), object{"start_timeout": "1s"}),
	})
	x.filled(t, "quick", "never")
	c := connect(t, x.url, "{}")
	c.call(t, "quick__echo", "{}")
	began := time.Now()
	_, err := c.try(t.Context(), "quick__hang", "{}")
	if d := time.Since(began); err == nil || d < time.Second || d > 5*time.Second || !strings.Contains(err.Error(), "quick") {
		t.Errorf("after %v: %v", d, err)
	}
	// Progress counts as life, whether the client wants to see it or not.
	params := `{"name":"quick__progress","arguments":{"steps":10,"interval_ms":300},"_meta":{"progressToken":1}}`
	if _, err := c.request(t.Context(), "tools/call", params); err != nil {
		t.Errorf("a call with progress timed out: %v", err)
	}
	row := x.catalog(t)["never"]
	if !strings.Contains(row.Error, "never") && !strings.Contains(row.Error, "1s") {
		t.Errorf("a server that never answers: %+v", row)
	}
}

func TestAFailingStartBacksOff(t *testing.T) {
	x := serve(t, object{"broken": bad("-exit", "3", "-say", "no key in KEY"), "fine": bad()})
	x.filled(t, "broken", "fine")
	row := x.catalog(t)["broken"]
	if !strings.Contains(row.Error, "no key in KEY") {
		t.Errorf("catalog ls: %+v", row)
	}
	c := connect(t, x.url, "{}")
	if names := c.tools(t); !slices.Contains(names, "fine__echo") {
		t.Errorf("a broken server empties the list: %q", names)
	}
	one := connect(t, x.url+"/fine", "{}")
	if got := one.call(t, "echo", "{}"); got != "{}" {
		t.Errorf("got %s", got)
	}
	metrics := get(t, strings.TrimSuffix(x.url, "/mcp")+"/metrics")
	if !regexp.MustCompile(`(?m)^specbox_\S*\{[^}]*server="broken"[^}]*\} [1-9]`).MatchString(metrics) {
		t.Errorf("the metrics say nothing of the broken server:\n%s", metrics)
	}
}

// All servers that there are, used for the first time at once.
func TestFirstUseOfAllAtOnce(t *testing.T) {
	place, all, entries := real(t)
	x := serve(t, entries)
	c := connect(t, x.url, full)
	var names []string
	for _, s := range all {
		names = append(names, s.Name)
	}
	x.filled(t, names...)
	for name, row := range x.catalog(t) {
		if row.Error != "" {
			t.Errorf("%s: %s", name, row.Error)
		}
	}
	x.run(t, "stop", "--all")
	var work sync.WaitGroup
	for _, s := range all {
		work.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			for _, call := range s.Calls {
				got, err := c.try(ctx, s.Name+"__"+call.Tool, string(place.Arguments(s, call)))
				if err != nil || !strings.Contains(got, call.Answer) {
					t.Errorf("%s %s: got %.300q, %v, want %q in it", s.Name, call.Tool, got, err, call.Answer)
				}
			}
		})
	}
	work.Wait()
	if rows := x.ps(t); len(rows) != len(all) {
		t.Errorf("%d sandboxes for %d servers: %+v", len(rows), len(all), rows)
	}
	for _, r := range x.ps(t) {
		if r.Memory == 0 || r.PID == 0 || r.State == "" || r.Cause != "demand" {
			t.Errorf("ps: %+v", r)
		}
	}
	c.end(t)
	x.asleep(t)
}

func TestFilesAndStateLast(t *testing.T) {
	place, _, entries := real(t, "filesystem")
	entries["filesystem"].(object)["mounts"] = []string{place.Installs, place.Fixtures + ":rw"}
	entries["kept"] = with(bad(), object{"state": "kept", "idle_timeout": "500ms"})
	entries["private"] = bad()
	x := serve(t, entries)
	x.filled(t, "filesystem", "kept", "private")
	c := connect(t, x.url, "{}")
	path := strconv.Quote(filepath.Join(place.Fixtures, "new.txt"))
	c.call(t, "filesystem__write_file", `{"path":`+path+`,"content":"written before"}`)
	if got := c.call(t, "filesystem__read_text_file", `{"path":`+path+`}`); got != "written before" {
		t.Errorf("got %q", got)
	}
	for _, server := range []string{"kept", "private"} {
		var env map[string]string
		decode(t, c.call(t, server+"__env", "{}"), &env)
		note := strconv.Quote(env["HOME"] + "/note")
		c.call(t, server+"__write", `{"path":`+note+`,"text":"mine"}`)
		x.run(t, "stop", server)
		_, err := c.try(t.Context(), server+"__read", `{"path":`+note+`}`)
		if (err == nil) != (server == "kept") {
			t.Errorf("%s: the note after a stop: %v", server, err)
		}
	}
}

// The look for what is left must be able to find something: while a sandbox
// lives, its cgroups are there, where this user may make any.
func TestTheLookForCgroupsFindsThem(t *testing.T) {
	x := serve(t, object{"n": object{"command": nasty}})
	c := connect(t, x.url, "{}")
	c.call(t, "n__echo", "{}")
	limited := !strings.Contains(x.run(t, "doctor", "--json"), "rlimit")
	if groups := x.cgroups(); limited && len(groups) == 0 {
		t.Error("a sandbox lives, and no cgroup of it was found")
	}
}
