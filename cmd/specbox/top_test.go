package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/specbox/specbox"
	"github.com/specbox/specbox/control"
)

// terminal opens a pseudo-terminal: what is written to far is typed at near.
func terminal(t *testing.T) (near, far *os.File) {
	t.Helper()
	far, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { far.Close() })
	raw, err := far.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var number int
	var failed error
	if err := raw.Control(func(fd uintptr) {
		if failed = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); failed == nil {
			number, failed = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
		if failed == nil {
			failed = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: 22, Col: 70})
		}
	}); err != nil || failed != nil {
		t.Fatal(err, failed)
	}
	near, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close() })
	return near, far
}

// TestTopOnATerminal watches a busy specbox from a small terminal, sees it end,
// and presses q.
func TestTopOnATerminal(t *testing.T) {
	t.Setenv("TERM", "xterm")
	near, far := terminal(t)
	before, err := unix.IoctlGetTermios(int(near.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	var sandboxes []control.Sandbox
	for i := range 40 {
		sandboxes = append(sandboxes, control.Sandbox{Server: fmt.Sprintf("server-%02d", i), State: "frozen", Cause: "intent", P: .74, Lead: 1200, Unused: true})
	}
	dir := t.TempDir()
	l, err := control.Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	serving, end := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- control.Serve(serving, l, control.Handler(control.Runtime{
			Health:        func(context.Context) (control.Health, error) { return control.Health{Sandboxes: 40}, nil },
			PS:            func(context.Context) ([]control.Sandbox, error) { return sandboxes, nil },
			Conversations: func(context.Context) ([]control.Conversation, error) { return nil, nil },
			Activity: func(context.Context) (control.Activity, error) {
				return control.Activity{Window: 300_000, Servers: []control.ServerActivity{
					{Server: "git", Warm: 2, Cold: 1, Wait: 800, Starts: map[string]int{"demand": 1}},
					{Server: "web", Late: 1, Wait: 200, Starts: map[string]int{"intent": 3}, Wasted: map[string]int{"intent": 2}},
				}}, nil
			},
		}), slog.New(slog.DiscardHandler))
	}()
	status := make(chan int, 1)
	go func() {
		status <- run(t.Context(), []string{"top", "--state", dir, "--every", "50ms"}, near, near, io.Discard)
		fmt.Fprint(near, "done")
	}()
	seen := func(want string) string {
		t.Helper()
		var all bytes.Buffer
		for b := make([]byte, 4096); !strings.Contains(all.String(), want); {
			if err := far.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
				t.Fatal(err)
			}
			n, err := far.Read(b)
			all.Write(b[:n])
			if err != nil {
				t.Fatalf("%v: no %q in %q", err, want, all.String())
			}
		}
		return all.String()
	}
	seen("q quits")
	frame := seen("q quits")
	for _, want := range []string{"40 sandboxes alive", "server-00", "nobody yet", "frozen", "74%", "none is known", "all ", "in the last 5 minutes"} {
		if !strings.Contains(frame, want) {
			t.Errorf("a frame lacks %q: %q", want, frame)
		}
	}
	lines := strings.Split(frame, "\r\n")
	if len(lines) > 22 || !strings.Contains(frame, "more") {
		t.Errorf("%d lines on a terminal of 22: %q", len(lines), frame)
	}
	for _, line := range lines {
		if !strings.Contains(line, "\x1b[1m") && len(strings.TrimSuffix(line, lineRest)) > 70+len(screenRest+lineRest+screenHome) {
			t.Errorf("a line is too long: %q", line)
		}
	}
	end()
	if err := <-served; err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	seen("no specbox runs")
	if _, err := far.Write([]byte("xq")); err != nil {
		t.Fatal(err)
	}
	if rest := seen("done"); !strings.Contains(rest, screenClose) {
		t.Errorf("the screen was not given back: %q", rest)
	}
	if s := <-status; s != 0 {
		t.Errorf("status %d", s)
	}
	if after, err := unix.IoctlGetTermios(int(near.Fd()), unix.TCGETS); err != nil || *after != *before {
		t.Errorf("the terminal was not given back: %v, %v", after, err)
	}
}

// TestFitSharesTheRoom gives every section its share.
func TestFitSharesTheRoom(t *testing.T) {
	rows := func(n int) *section { return &section{rows: make([][]string, n)} }
	for _, c := range []struct {
		have, want []int
		room       int
	}{
		{[]int{3, 0, 2}, []int{3, 0, 2}, 30},
		{[]int{100, 0, 2}, []int{16, 0, 2}, 30},
		{[]int{100, 50, 100}, []int{6, 6, 6}, 30},
		{[]int{100, 50, 100}, []int{1, 1, 1}, 3},
	} {
		var all []*section
		for _, n := range c.have {
			all = append(all, rows(n))
		}
		fit(all, c.room)
		for i, s := range all {
			if len(s.rows) != c.want[i] || s.more != c.have[i]-c.want[i] {
				t.Errorf("%v in %d lines: section %d has %d rows and %d more, want %d", c.have, c.room, i, len(s.rows), s.more, c.want[i])
			}
		}
	}
}

// TestTopSeesAStream looks at a specbox while a model writes, and afterwards.
func TestTopSeesAStream(t *testing.T) {
	t.Parallel()
	nasty := filepath.Join(t.TempDir(), "nasty")
	if out, err := exec.Command("go", "build", "-o", nasty, "../../internal/nasty").CombinedOutput(); err != nil {
		t.Fatalf("build nasty: %v\n%s", err, out)
	}
	dir := filepath.Join(t.TempDir(), "state")
	list := []demoServer{{"well", "Go", `{"command": "` + nasty + `"}`, nil}}
	d := newDemo(&app{out: io.Discard, errs: io.Discard, logLevel: "info", logFormat: "text"}, dir, list, time.Minute)
	if err := control.MakeFolder(dir); err != nil {
		t.Fatal(err)
	}
	var err error
	if d.file, err = layDemo(t.Context(), dir, list); err != nil {
		t.Fatal(err)
	}
	if _, err := d.inside(t.Context(), specbox.Options{}, nil, io.Discard, func(ctx context.Context, h *specbox.Runtime) error {
		<-h.Prepared()
		return watchStream(ctx, t, dir, strings.TrimSuffix(h.URL(), "/mcp"))
	}); err != nil {
		t.Fatal(err)
	}
}

func watchStream(ctx context.Context, t *testing.T, dir, base string) error {
	frame := func(ok func(*topFrame) bool) *topFrame {
		t.Helper()
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		r, w := io.Pipe()
		done := make(chan int, 1)
		go func() {
			done <- run(ctx, []string{"top", "--state", dir, "--json", "--every", "50ms"}, strings.NewReader(""), w, io.Discard)
			w.Close()
		}()
		defer func() { r.Close(); <-done }()
		f := &topFrame{}
		for dec := json.NewDecoder(r); ; {
			f = &topFrame{}
			if err := dec.Decode(f); err != nil {
				t.Fatalf("%v: what was waited for did not come", err)
			}
			if ok(f) {
				return f
			}
		}
	}
	agent := newMCPClient(base + "/s/k1/mcp")
	defer agent.http.CloseIdleConnections()
	if err := agent.initialize(ctx); err != nil {
		return err
	}
	body, stream := io.Pipe()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/sessions/k1/stream", body)
	if err != nil {
		return err
	}
	answered := make(chan error, 1)
	go func() {
		resp, err := agent.http.Do(req)
		if err == nil {
			err = resp.Body.Close()
		}
		answered <- err
	}()
	fmt.Fprintln(stream, `{"prompt": "Say it"}`)
	fmt.Fprintln(stream, `{"tool": "well__echo", "id": "1"}`)
	f := frame(func(f *topFrame) bool {
		return len(f.Conversations) == 1 && len(f.Conversations[0].Expects) == 1 && len(f.Sandboxes) == 1 && f.Sandboxes[0].Unused
	})
	if c := f.Conversations[0]; c.Key != "k1" || c.Streams != 1 || c.Joined != "key" || len(c.Sessions) != 1 || c.Expects[0] != "well" {
		t.Errorf("while the model writes: %+v", c)
	}
	if s := f.Sandboxes[0]; s.Cause != "tool name" || s.P != 1 || s.Lead != 0 {
		t.Errorf("what was started ahead: %+v", s)
	}
	fmt.Fprintln(stream, `{"end": true}`)
	stream.Close()
	if err := <-answered; err != nil {
		return err
	}
	if _, err := agent.call(ctx, "well__echo", `{"say": "hello"}`); err != nil {
		return err
	}
	f = frame(func(f *topFrame) bool {
		return len(f.Activity.Servers) == 1 && f.Activity.Servers[0].Late+f.Activity.Servers[0].Warm == 1
	})
	if c := f.Conversations[0]; c.Streams != 0 || len(c.Expects) != 0 {
		t.Errorf("after the call: %+v", c)
	}
	if s := f.Sandboxes[0]; s.Lead <= 0 || s.Unused {
		t.Errorf("the sandbox after the call: %+v", s)
	}
	if a := f.Activity.Servers[0]; a.Starts["tool name"] != 1 || len(a.Wasted) != 0 || a.Cold != 0 {
		t.Errorf("what happened: %+v", a)
	}
	return nil
}
