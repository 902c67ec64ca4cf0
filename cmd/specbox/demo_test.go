package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/specbox/specbox/bench"
	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/launcher"
	"github.com/specbox/specbox/servers"
)

// TestDemoServersArePinned looks at the configuration of the demo: there is
// nothing to say about it, and each of its packages is one that is tested.
func TestDemoServersArePinned(t *testing.T) {
	known := map[string]string{} // package -> version
	for _, s := range servers.All() {
		known[s.Package] = strings.TrimPrefix(s.Version, "v")
	}
	for _, arch := range []string{"amd64", "arm64"} {
		dir := t.TempDir()
		list := demoServers(arch)
		file, err := layDemo(t.Context(), dir, list)
		if err != nil {
			t.Fatal(err)
		}
		c, faults := config.Load(file, os.LookupEnv)
		if len(faults) > 0 || len(c.Servers) != 6 || len(list) != 6 {
			t.Fatalf("%s: %d servers, faults %v", arch, len(c.Servers), faults)
		}
		for i, s := range c.Servers {
			p, ok := launcher.For(s)
			if s.Name != list[i].name || !ok || p.Asked == "" || known[p.Name] != p.Asked {
				t.Errorf("%s: server %q is %v, of package %q; tested is version %q", arch, s.Name, p, p.Name, known[p.Name])
			}
			if s.Isolation != config.Process || s.Network.All || len(s.Network.Hosts) > 0 {
				t.Errorf("%s: server %q has isolation %q, network %v", arch, s.Name, s.Isolation, s.Network)
			}
			for _, call := range list[i].calls {
				if !json.Valid([]byte(call.args)) {
					t.Errorf("%s: server %q: arguments %s", arch, s.Name, call.args)
				}
			}
		}
	}
}

// demoOf runs a demo of servers in dir and returns its figures and its story.
func demoOf(t *testing.T, dir string, list []demoServer, talk demoTalk, idle time.Duration) (demoFigures, string) {
	t.Helper()
	var story bytes.Buffer
	d := newDemo(&app{out: &story, errs: io.Discard, logLevel: "info", logFormat: "text"}, dir, list, idle)
	d.talk = talk
	if err := d.run(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, &story)
	}
	return d.figures, story.String()
}

// TestDemo is the demo that users see. The packages are kept from run to run.
func TestDemo(t *testing.T) {
	t.Parallel()
	dir, err := servers.Dir()
	if err != nil {
		t.Fatal(err)
	}
	f, story := demoOf(t, filepath.Join(dir, ".demo"), demoServers(runtime.GOARCH), usualTalk(), demoIdle)
	if !f.OK || len(f.Problems) > 0 {
		t.Fatalf("problems: %q\n%s", f.Problems, story)
	}
	if len(f.Servers) != 6 || f.Idle.Stopped != 6 || f.Idle.Alive != 0 || f.Memory.Before != 0 || f.Memory.All == 0 || f.Memory.After != 0 {
		t.Errorf("%+v", f)
	}
	if f.Shutdown.Alive != 1 || f.Shutdown.Left != 0 || f.Shutdown.Files != 0 || f.Again.Outcome != "cold" {
		t.Errorf("again %+v, shutdown %+v", f.Again, f.Shutdown)
	}
	if len(f.Lists) != 5 || f.Lists[1].Items < 50 {
		t.Errorf("lists: %+v", f.Lists)
	}
	for _, r := range f.Servers {
		if r.Outcome != "cold" || r.First < r.Start || r.Start == 0 || r.Further != demoFurther || r.Median >= r.First || r.Memory == 0 || r.Backend != "process" || r.Version == "" {
			t.Errorf("%+v", r)
		}
	}
	checkForesight(t, &f.Foresight, "git", "filesystem", "time", "memory")
	if !slices.ContainsFunc(f.Foresight.SpecBox.Calls, func(c demoAhead) bool { return c.Lead > 0 && c.Outcome != "cold" && c.Cause != "demand" }) {
		t.Errorf("nothing was started ahead: %+v", f.Foresight.SpecBox)
	}
}

// checkForesight checks what was measured of a conversation in which each server
// is called once.
func checkForesight(t *testing.T, f *demoForesight, servers ...string) {
	t.Helper()
	if f.OnDemand == nil || f.SpecBox == nil || f.OnDemand.Policy != "off" || f.SpecBox.Policy != "calibrated" {
		t.Fatalf("on demand %+v, SpecBox %+v", f.OnDemand, f.SpecBox)
	}
	if n := len(servers); f.OnDemand.Starts != n || f.OnDemand.Wasted != 0 || f.SpecBox.Starts < n || f.OnDemand.Wait <= 0 || f.Ratio <= 0 {
		t.Errorf("on demand %+v, SpecBox %+v, ratio %v", f.OnDemand, f.SpecBox, f.Ratio)
	}
	for _, p := range []*demoPlayed{f.OnDemand, f.SpecBox} {
		var called []string
		for _, c := range p.Calls {
			called = append(called, c.Server)
			if p == f.OnDemand && (c.Outcome != "cold" || c.Cause != "demand" || c.Lead != 0) {
				t.Errorf("on demand: %+v", c)
			}
		}
		slices.Sort(called)
		if want := slices.Sorted(slices.Values(servers)); !slices.Equal(called, want) {
			t.Errorf("%s: called %q, want %q", p.Policy, called, want)
		}
	}
	if b, err := os.ReadFile(f.Picture); err != nil || !strings.Contains(string(b), ">SpecBox: ") {
		t.Errorf("picture %s: %v", f.Picture, err)
	}
}

// TestDemoGoesOn has one server that cannot be installed, one that does not
// start, one that answers something else, and one that is well.
func TestDemoGoesOn(t *testing.T) {
	t.Setenv("npm_config_registry", "http://127.0.0.1:1/") // nobody listens there
	t.Setenv("npm_config_fetch_retries", "0")
	nasty := filepath.Join(t.TempDir(), "nasty")
	if out, err := exec.Command("go", "build", "-o", nasty, "../../internal/nasty").CombinedOutput(); err != nil {
		t.Fatalf("build nasty: %v\n%s", err, out)
	}
	echo := func(want string) []demoCall { return []demoCall{{"echo", `{"say": "hello"}`, want}} }
	dir := filepath.Join(t.TempDir(), "demo")
	f, story := demoOf(t, dir, []demoServer{
		{"well", "Go", `{"command": "` + nasty + `"}`, echo("hello")},
		{"gone", "Go", `{"command": "npx", "args": ["-y", "left-out@1.0.0"]}`, echo("hello")},
		{"dead", "Go", `{"command": "` + nasty + `", "args": ["-exit", "3", "-say", "I will not"]}`, echo("hello")},
		{"other", "Go", `{"command": "` + nasty + `"}`, echo("good bye")},
		{"open", "Go", `{"command": "` + nasty + `", "specbox": {"isolation": "none"}}`, echo("hello")},
	}, demoTalk{user: "Say it", rate: 1000, turns: []demoTurn{
		{"I say it.", []demoAct{{"well", "fail", `{"text": "ouch"}`}, {"dead", "echo", "{}"}}},
		{"Nobody hears it.", []demoAct{{"gone", "echo", "{}"}}},
		{"That is all.", nil},
	}}, 300*time.Millisecond)
	if !slices.Contains(f.Problems, "the conversation, on demand: call well__fail: ouch") || !slices.Contains(f.Problems, "the conversation, SpecBox: call well__fail: ouch") {
		t.Errorf("no problem is that a call of the conversation fails: %q", f.Problems)
	}
	checkForesight(t, &f.Foresight, "well")
	for server, want := range map[string]string{"gone": "install: ", "dead": "I will not", "other": `lacks "good bye"`, "open": "shares the net namespace"} {
		if !slices.ContainsFunc(f.Problems, func(p string) bool { return strings.HasPrefix(p, "server "+server) && strings.Contains(p, want) }) {
			t.Errorf("no problem of %s has %q: %q", server, want, f.Problems)
		}
	}
	if f.OK {
		t.Error("all is well, it says")
	}
	if r := f.Servers[0]; r.Error != "" || r.Outcome != "cold" || r.Warm != demoFurther || r.PID == 0 || len(r.Kept.lacks()) > 0 {
		t.Errorf("the one that is well: %+v", r)
	}
	if f.Idle.Alive+f.Idle.Left+f.Shutdown.Left+f.Shutdown.Files > 0 {
		t.Errorf("left: idle %+v, shutdown %+v", f.Idle, f.Shutdown)
	}
	if !slices.Equal(f.Install.Servers, []string{"gone"}) {
		t.Errorf("to install: %q", f.Install.Servers)
	}
	for _, want := range []string{"isolation NONE: it can", "well    Go          ", "gone    Go          failed"} {
		if !strings.Contains(story, want) {
			t.Errorf("the story lacks %q:\n%s", want, story)
		}
	}
	if strings.Contains(story, "\x1b") {
		t.Error("the story has colours, and nobody looks")
	}
}

// TestDemoNeedsOneServer has none that can run.
func TestDemoNeedsOneServer(t *testing.T) {
	t.Parallel()
	d := newDemo(&app{out: io.Discard, errs: io.Discard, logLevel: "info", logFormat: "text"}, filepath.Join(t.TempDir(), "demo"),
		[]demoServer{{"dead", "none", `{"command": "/no/such/program"}`, nil}}, demoIdle)
	if err := d.run(t.Context()); err == nil || !strings.Contains(err.Error(), "/no/such/program") {
		t.Errorf("got %v", err)
	}
}

// TestBarsAreDrawn draws what is known.
func TestBarsAreDrawn(t *testing.T) {
	d := &demo{app: app{out: io.Discard}}
	got := d.bar(10, 5, []barLayer{
		{barStart, yellow, []bench.Span{{From: 0, To: 1.2}, {From: 2, To: 3}}},
		{barWait, red, []bench.Span{{From: 2.5, To: 3}}},
		{barCall, green, []bench.Span{{From: 3, To: 3.001}, {From: 5, To: 5}}},
	})
	if want := "--- -w█  █"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := axisText(24, 6), "0 s     2 s     4 s     6 s"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestDemoTraceAwaits holds the law of demoTrace: lines may come in pieces.
func TestDemoTraceAwaits(t *testing.T) {
	trace := newDemoTrace()
	go func() {
		for _, piece := range []string{`{"kind":"call","ser`, `ver":"a"}`, "\n" + `{"kind":"stop"}` + "\n" + `{"kind":"call"`, `}` + "\n"} {
			if _, err := trace.Write([]byte(piece)); err != nil {
				t.Error(err)
			}
		}
	}()
	got := trace.await(t.Context(), 2, func(e demoEvent) bool { return e.Kind == "call" })
	if len(got) != 2 || got[0].Server != "a" {
		t.Errorf("got %+v", got)
	}
	if _, err := trace.Write([]byte("nonsense\n")); err == nil {
		t.Error("nonsense is taken for an event")
	}
}
