package control_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/specbox/specbox/control"
)

// open serves rt on a fresh state folder until the test, or end, ends.
func open(t *testing.T, rt control.Runtime) (c *control.Client, dir string, end func()) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "state")
	l, err := control.Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- control.Serve(ctx, l, control.Handler(rt), slog.New(slog.DiscardHandler)) }()
	ended := false
	end = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(end)
	return control.Dial(dir), dir, end
}

func servers(names ...string) func(context.Context) ([]control.Server, error) {
	return func(context.Context) (rows []control.Server, err error) {
		for _, n := range names {
			rows = append(rows, control.Server{Name: n})
		}
		return rows, nil
	}
}

func TestALivingOneIsNotPushedAside(t *testing.T) {
	c, dir, _ := open(t, control.Runtime{PS: func(context.Context) ([]control.Sandbox, error) { return nil, nil }})
	_, err := control.Listen(dir)
	if !errors.Is(err, control.ErrRunning) || !strings.Contains(err.Error(), fmt.Sprintf("process %d", os.Getpid())) {
		t.Errorf("second Listen: %v", err)
	}
	var e *control.Error
	if !errors.As(err, &e) || e.Hint == "" {
		t.Errorf("%v has no hint", err)
	}
	if _, err := c.PS(t.Context()); err != nil {
		t.Errorf("the living one no longer answers: %v", err)
	}
}

func TestADeadOneDoesNotStandInTheWay(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	// What kill -9 leaves behind: a socket that nobody listens on.
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "control.sock")})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	if _, err := control.Dial(dir).PS(t.Context()); !errors.Is(err, control.ErrNotRunning) {
		t.Errorf("a dead socket: %v", err)
	}
	l, err := control.Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(l.Path()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

func TestAnEarlierCloseLeavesALaterSocketAlone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	first, err := control.Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	first.Close()
	second, err := control.Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(second.Path()); err != nil {
		t.Errorf("the second socket is gone: %v", err)
	}
}

func TestOnlyTheUserCanOpenTheDoor(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0)) // the worst case
	dir := filepath.Join(t.TempDir(), "state")
	l, err := control.Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for path, want := range map[string]os.FileMode{dir: 0o700, l.Path(): 0o600} {
		fi, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := fi.Mode().Perm(); got != want {
			t.Errorf("mode of %s: %o, want %o", path, got, want)
		}
	}
}

func TestAFolderOfOthersIsNotTaken(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := control.MakeFolder(dir); err != nil {
		t.Fatalf("an empty folder: %v", err)
	}
	if fi, _ := os.Stat(dir); fi.Mode().Perm() != 0o700 {
		t.Errorf("an empty folder stays open: %v", fi.Mode())
	}
	if err := os.WriteFile(filepath.Join(dir, "precious"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := control.Listen(dir); err == nil || !strings.Contains(err.Error(), "0755") {
		t.Errorf("a folder that holds something: %v", err)
	}
	if fi, _ := os.Stat(dir); fi.Mode().Perm() != 0o755 {
		t.Errorf("its mode was changed to %v", fi.Mode())
	}
	file := filepath.Join(dir, "precious")
	if err := control.MakeFolder(file); err == nil {
		t.Error("a file is no folder")
	}
}

func TestAFolderNameMayBeLong(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long/", 30))
	l, err := control.Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- control.Serve(ctx, l, control.Handler(control.Runtime{Servers: servers("git")}), slog.New(slog.DiscardHandler))
	}()
	rows, err := control.Dial(dir).Servers(t.Context())
	if err != nil || len(rows) != 1 {
		t.Errorf("got %v, %v", rows, err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	l.Close()
	if _, err := os.Stat(filepath.Join(dir, "control.sock")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

func TestNothingRuns(t *testing.T) {
	for _, dir := range []string{t.TempDir(), filepath.Join(t.TempDir(), "none")} {
		_, err := control.Dial(dir).Tools(t.Context(), "")
		var e *control.Error
		if !errors.Is(err, control.ErrNotRunning) || !errors.As(err, &e) || !strings.Contains(e.Hint, "specbox serve") {
			t.Errorf("got %v", err)
		}
	}
}

func TestRowsKeepTheirNames(t *testing.T) {
	for _, c := range []struct {
		row  any
		want []string
	}{
		{control.Sandbox{}, []string{"server", "tenant", "session", "state", "cause", "pid", "memory_bytes", "id", "backend", "age_ms", "idle_ms", "calls"}},
		{control.Tool{}, []string{"name", "server", "tool"}},
		{control.CatalogRow{}, []string{"server", "tools", "prompts", "resources", "templates", "fingerprint"}},
		{control.Server{}, []string{"name", "runs", "isolation", "network", "scope"}},
	} {
		b, err := json.Marshal(c.row)
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]any
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatal(err)
		}
		for _, name := range c.want {
			if _, ok := got[name]; !ok {
				t.Errorf("%T has no %q: %s", c.row, name, b)
			}
		}
	}
}

func TestASelectorSelects(t *testing.T) {
	b := control.Sandbox{ID: "sb-1", Server: "git", Tenant: "ann", Session: "s-1"}
	shared := control.Sandbox{ID: "sb-2", Server: "time"}
	for _, c := range []struct {
		s    control.Selector
		b    control.Sandbox
		want bool
	}{
		{control.Selector{All: true}, b, true},
		{control.Selector{All: true, Tenant: "bob"}, b, false},
		{control.Selector{Target: "sb-1"}, b, true},
		{control.Selector{Target: "git"}, b, true},
		{control.Selector{Target: "s-1", Tenant: "ann"}, b, true},
		{control.Selector{Target: "git", Tenant: "bob"}, b, false},
		{control.Selector{Target: "gi"}, b, false},
		{control.Selector{}, shared, false}, // no session is not the session ""
	} {
		if got := c.s.Match(c.b); got != c.want {
			t.Errorf("%+v.Match(%+v) = %v", c.s, c.b, got)
		}
	}
}

func TestAnswersPassWhole(t *testing.T) {
	want := []control.Tool{{Name: "git__log", Server: "git", Tool: "log", Annotations: json.RawMessage(`{"readOnlyHint":true}`)}}
	asked := make(chan string, 1)
	c, _, _ := open(t, control.Runtime{
		Health: func(context.Context) (control.Health, error) { return control.Health{PID: 7, Version: "1.2.3"}, nil },
		PS:     func(context.Context) ([]control.Sandbox, error) { return nil, nil },
		Tools: func(_ context.Context, tenant string) ([]control.Tool, error) {
			asked <- tenant
			return want, nil
		},
		Catalog: func(context.Context) ([]control.CatalogRow, error) {
			return []control.CatalogRow{{Server: "git", Tools: 900}}, nil
		},
		Conversations: func(context.Context) ([]control.Conversation, error) {
			return []control.Conversation{{Key: "k", Joined: "key", Sessions: []string{"s"}, Streams: 1, Expects: []string{"git"}}}, nil
		},
		Activity: func(context.Context) (control.Activity, error) {
			return control.Activity{Window: 1000, Servers: []control.ServerActivity{{Server: "git", Warm: 7, Wasted: map[string]int{"intent": 2}}}}, nil
		},
	})
	if h, err := c.Health(t.Context()); err != nil || h.PID != 7 || h.Version != "1.2.3" {
		t.Errorf("health: %+v, %v", h, err)
	}
	if rows, err := c.PS(t.Context()); err != nil || rows == nil || len(rows) != 0 {
		t.Errorf("ps of nothing is an empty array: %#v, %v", rows, err)
	}
	got, err := c.Tools(t.Context(), "a&b=c")
	if err != nil || len(got) != 1 || got[0].Name != want[0].Name || string(got[0].Annotations) != string(want[0].Annotations) {
		t.Errorf("tools: %+v, %v", got, err)
	}
	if tenant := <-asked; tenant != "a&b=c" {
		t.Errorf("tools of tenant %q", tenant)
	}
	if rows, err := c.Catalog(t.Context()); err != nil || len(rows) != 1 || rows[0].Tools != 900 {
		t.Errorf("catalog: %+v, %v", rows, err)
	}
	if rows, err := c.Conversations(t.Context()); err != nil || len(rows) != 1 || rows[0].Joined != "key" || rows[0].Streams != 1 || rows[0].Expects[0] != "git" {
		t.Errorf("conversations: %+v, %v", rows, err)
	}
	if a, err := c.Activity(t.Context()); err != nil || a.Window != 1000 || len(a.Servers) != 1 || a.Servers[0].Warm != 7 || a.Servers[0].Wasted["intent"] != 2 {
		t.Errorf("activity: %+v, %v", a, err)
	}
	if _, err := c.Servers(t.Context()); err == nil || !strings.Contains(err.Error(), "does not offer") {
		t.Errorf("what is not offered: %v", err)
	}
}

func TestAResultPassesAsTheBytesItCameIn(t *testing.T) {
	raw := "{\n  \"content\":[ {\"text\":\"<&>\u2028\"} ],\t\"n\":9007199254740993, \"f\":1.0, \"isError\":true}"
	var arguments string
	c, _, _ := open(t, control.Runtime{Call: func(_ context.Context, tenant, name string, args json.RawMessage, on func(control.Progress) error) (json.RawMessage, error) {
		arguments = tenant + " " + name + " " + string(args)
		for i := range 3 {
			if err := on(control.Progress{Done: float64(i), Total: 3, Message: "at it\n"}); err != nil {
				return nil, err
			}
		}
		return json.RawMessage(raw), nil
	}})
	var seen []float64
	got, err := c.Call(t.Context(), "ann", "git__log", json.RawMessage(`{"n":9007199254740993,"f":1.0,"s":"<"}`), func(p control.Progress) { seen = append(seen, p.Done) })
	if err != nil {
		t.Fatal(err)
	}
	if string(got.Raw) != raw || !got.IsError {
		t.Errorf("got %s, %v", got.Raw, got.IsError)
	}
	if want := `ann git__log {"n":9007199254740993,"f":1.0,"s":"<"}`; arguments != want {
		t.Errorf("arguments came as %s, want %s", arguments, want)
	}
	if !slices.Equal(seen, []float64{0, 1, 2}) {
		t.Errorf("progress %v", seen)
	}
}

func TestReportsMayComeFromManyGoroutines(t *testing.T) {
	c, _, _ := open(t, control.Runtime{Update: func(_ context.Context, _ []string, on func(control.Progress) error) error {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 50 {
					on(control.Progress{Message: strings.Repeat("long ", 100)})
				}
			})
		}
		wg.Wait()
		return nil
	}})
	n := 0
	if err := c.Update(t.Context(), nil, func(control.Progress) { n++ }); err != nil || n != 400 {
		t.Errorf("%d reports, %v", n, err)
	}
}

func TestErrorsCarryTheirHint(t *testing.T) {
	hinted := &control.Error{Message: "git crashed", Hint: "see specbox logs git"}
	for _, reports := range []int{0, 2} { // before the first line, and after it
		c, _, _ := open(t, control.Runtime{
			Servers: servers("git"),
			Refresh: func(_ context.Context, names []string, on func(control.Progress) error) error {
				for range reports {
					on(control.Progress{Server: names[0]})
				}
				return fmt.Errorf("refresh: %w", hinted)
			},
		})
		seen := 0
		err := c.Refresh(t.Context(), []string{"git"}, func(control.Progress) { seen++ })
		var e *control.Error
		if !errors.As(err, &e) || e.Message != "refresh: git crashed" || e.Hint != hinted.Hint || seen != reports {
			t.Errorf("after %d reports: %#v", seen, err)
		}
	}
}

func TestUnknownNamesAreToldWithTheKnownOnes(t *testing.T) {
	called := false
	c, _, _ := open(t, control.Runtime{
		Servers: servers("git", "time"),
		Stop:    func(context.Context, control.Selector) (int, error) { return 0, nil },
		Refresh: func(context.Context, []string, func(control.Progress) error) error { called = true; return nil },
		Logs: func(context.Context, string, string, bool, func(control.Line) error) error {
			called = true
			return nil
		},
	})
	ctx := t.Context()
	for _, err := range []error{
		c.Refresh(ctx, []string{"git", "gti"}, nil),
		c.Logs(ctx, "", "gti", false, func(control.Line) {}),
	} {
		var e *control.Error
		if !errors.As(err, &e) || !strings.Contains(e.Message, `"gti"`) || !strings.Contains(e.Hint, "git, time") || e.Status != http.StatusNotFound {
			t.Errorf("got %v", err)
		}
	}
	if called {
		t.Error("the runtime was asked for a server that does not exist")
	}
	if n, err := c.Stop(ctx, control.Selector{Target: "git"}); n != 0 || err != nil {
		t.Errorf("stop of a server that sleeps: %d, %v", n, err)
	}
	if _, err := c.Stop(ctx, control.Selector{Target: "gti"}); err == nil {
		t.Error("stop of what does not exist is an error")
	}
	if _, err := c.Stop(ctx, control.Selector{}); err == nil || !strings.Contains(err.Error(), "nothing to stop was named") {
		t.Errorf("stop of nothing: %v", err)
	}
}

func TestAClientThatLeavesEndsTheWork(t *testing.T) {
	ended := make(chan error, 1)
	c, _, _ := open(t, control.Runtime{
		Servers: servers("git"),
		Logs: func(ctx context.Context, tenant, server string, follow bool, on func(control.Line) error) error {
			if !follow {
				return errors.New("it was to follow")
			}
			if err := on(control.Line{Server: server, Text: "hello"}); err != nil {
				return err
			}
			<-ctx.Done()
			ended <- ctx.Err()
			return ctx.Err()
		},
	})
	ctx, leave := context.WithCancel(t.Context())
	lines := 0
	if err := c.Logs(ctx, "", "git", true, func(control.Line) { lines++; leave() }); err != context.Canceled {
		t.Errorf("got %v", err)
	}
	if err := <-ended; err == nil {
		t.Error("the work goes on")
	}
	if lines != 1 {
		t.Errorf("%d lines", lines)
	}
}

func TestNothingOutlivesServe(t *testing.T) {
	begun, ended := make(chan struct{}), make(chan struct{})
	c, dir, end := open(t, control.Runtime{Call: func(ctx context.Context, _, _ string, _ json.RawMessage, on func(control.Progress) error) (json.RawMessage, error) {
		defer close(ended)
		on(control.Progress{})
		close(begun)
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	failed := make(chan error, 1)
	go func() {
		_, err := c.Call(t.Context(), "", "x", nil, nil)
		failed <- err
	}()
	<-begun
	end()
	select {
	case <-ended:
	default:
		t.Error("Serve returned before the call had ended")
	}
	if err := <-failed; err == nil || !strings.Contains(err.Error(), "shutting down") {
		t.Errorf("the client was told %v", err)
	}
	if _, err := c.PS(t.Context()); !errors.Is(err, control.ErrNotRunning) {
		t.Errorf("afterwards: %v", err)
	}
	if l, err := control.Listen(dir); err != nil {
		t.Errorf("the folder is not free: %v", err)
	} else {
		l.Close()
	}
}

func TestAnAnswerWithoutItsEndIsAnError(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "control.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, answer := range []string{
		"HTTP/1.1 200 OK\r\n\r\n",
		"HTTP/1.1 200 OK\r\n\r\n{\"progress\":{\"done\":1}}\n",
		"HTTP/1.1 200 OK\r\n\r\n{\"result_bytes\":100}\n{}",
		"HTTP/1.1 200 OK\r\n\r\n{\"end\":true",
	} {
		go func() {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Read(make([]byte, 4096))
			conn.Write([]byte(answer))
			conn.Close()
		}()
		if _, err := control.Dial(dir).Call(t.Context(), "", "x", nil, nil); err == nil || !strings.Contains(err.Error(), "middle of its answer") {
			t.Errorf("%q: got %v", answer, err)
		}
	}
}
