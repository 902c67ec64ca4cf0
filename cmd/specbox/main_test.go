package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"github.com/specbox/specbox"
)

func TestMain(m *testing.M) {
	specbox.Init() // the command is this test program under another name
	testscript.Main(m, map[string]func(){"specbox": main})
}

// TestEveryCommandExplainsItself walks the command tree.
func TestEveryCommandExplainsItself(t *testing.T) {
	a := &app{out: io.Discard, errs: io.Discard}
	prints := map[string]bool{"validate": true, "ls": true, "call": true, "ps": true, "top": true, "logs": true, "stop": true, "doctor": true, "demo": true, "hop": true, "tap": true, "intent": true, "explain": true, "prewarm": true, "pool": true, "router": true, "token": true, "version": true}
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			if sub.Name() == "help" || sub.Name() == "completion" {
				continue // cobra's own
			}
			path := sub.CommandPath()
			if sub.Short == "" || strings.HasSuffix(sub.Short, ".") {
				t.Errorf("%s: Short is %q", path, sub.Short)
			}
			if sub.HasSubCommands() {
				walk(sub)
				continue
			}
			if !strings.Contains(sub.Example, "  "+path) {
				t.Errorf("%s has no example of itself", path)
			}
			if got := sub.Flags().Lookup("json") != nil; got != prints[sub.Name()] {
				t.Errorf("%s: --json is %v", path, got)
			}
		}
	}
	walk(a.root())
}

// TestScripts runs the stories in testdata, each against the real command.
// $NASTY is a server that misbehaves on request, $SPECBOX the command itself
// where PATH does not lead to it.
func TestScripts(t *testing.T) {
	nasty := filepath.Join(t.TempDir(), "nasty")
	if out, err := exec.Command("go", "build", "-o", nasty, "../../internal/nasty").CombinedOutput(); err != nil {
		t.Fatalf("build nasty: %v\n%s", err, out)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata", RequireExplicitExec: true, RequireUniqueNames: true,
		Setup: func(e *testscript.Env) error {
			path, err := exec.LookPath("specbox") // testscript has put it there
			e.Setenv("SPECBOX", path)
			e.Setenv("NASTY", nasty)
			e.Setenv("GORACE", "atexit_sleep_ms=0") // under -race every command would end a second late
			e.Setenv("SPECBOX_STATE", filepath.Join(e.WorkDir, "state"))
			return err
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"wait-for": waitFor},
	})
}

// waitFor waits until the named file has a line that matches a pattern.
func waitFor(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: wait-for FILE PATTERN")
	}
	pattern := regexp.MustCompile("(?m)" + args[1])
	deadline := time.After(30 * time.Second)
	for {
		b, err := os.ReadFile(ts.MkAbs(args[0]))
		if err == nil && pattern.Match(b) {
			return
		}
		select {
		case <-deadline:
			ts.Fatalf("%s has nothing that matches %s: %s", args[0], args[1], b)
		case <-time.After(20 * time.Millisecond): // a file does not tell when it changes
		}
	}
}
