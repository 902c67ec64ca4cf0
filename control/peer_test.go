package control_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/specbox/specbox/control"
)

// folderVariable makes a test the client of the socket of that folder.
const folderVariable = "SPECBOX_TEST_FOLDER"

// TestAskFromElsewhere is what TestNoSandboxOpensTheDoor runs.
func TestAskFromElsewhere(t *testing.T) {
	dir := os.Getenv(folderVariable)
	if dir == "" {
		return
	}
	h, err := control.Dial(dir).Health(t.Context())
	t.Logf("health %q, error %v", h.Version, err)
}

// Whoever is in a user namespace of its own, as sandboxes are, gets no answer,
// though the folder may be visible there.
func TestNoSandboxOpensTheDoor(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	l, err := control.Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	h := control.Handler(control.Runtime{Health: func(context.Context) (control.Health, error) { return control.Health{Version: "open"}, nil }})
	go func() { done <- control.Serve(ctx, l, h, slog.New(slog.DiscardHandler)) }()
	defer func() { cancel(); <-done }()
	ask := func(attr *syscall.SysProcAttr) string {
		cmd := exec.Command(os.Args[0], "-test.run=^TestAskFromElsewhere$", "-test.v")
		cmd.Env = append(os.Environ(), folderVariable+"="+dir)
		cmd.SysProcAttr = attr
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v\n%s", err, &out)
		}
		return out.String()
	}
	if got := ask(nil); !strings.Contains(got, `health "open"`) {
		t.Errorf("a process beside it got %s", got)
	}
	same := []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}}
	got := ask(&syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: same, GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}}})
	if strings.Contains(got, "open") || !strings.Contains(got, "error") {
		t.Errorf("a process in a namespace of its own got %s", got)
	}
	if h, err := control.Dial(dir).Health(t.Context()); err != nil || h.Version != "open" {
		t.Errorf("afterwards: %q, %v", h.Version, err)
	}
}
