package process_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/wire"
)

// TestProgramsAreFoundWithWhatTheyNeed lays programs out as people have them:
// each answers, and shows no more of the host than its own.
func TestProgramsAreFoundWithWhatTheyNeed(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	put := func(path, text string) {
		path = filepath.Join(home, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if text == "" {
			b, err := os.ReadFile(probePath)
			if err != nil {
				t.Fatal(err)
			}
			text = string(b)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	link := func(to, path string) {
		path = filepath.Join(home, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, path); err != nil {
			t.Fatal(err)
		}
	}
	put("secret", "s")
	put("versions/7/bin/probe7", "")
	put("versions/7/lib/data", "d")
	link("probe7", "versions/7/bin/probe")
	link("versions/7", "current")
	link(home+"/versions/7/bin/probe", "venv/bin/server")
	put("venv/lib/own", "v")
	put("proj/node_modules/pkg/cli.sh", "#!/bin/sh\nexec \"$(dirname \"$0\")/../dep/probe\"\n")
	put("proj/node_modules/dep/probe", "")
	link("../pkg/cli.sh", "proj/node_modules/.bin/server")
	put("proj/private", "p")
	put("tools/script", "#!/usr/bin/env -S probe7 \n")
	put(".local/bin/direct", "")
	put(".local/share/keyring", "k")
	put("bin/mine", "")
	put("lone", "")

	b := newBackend(t, "")
	for _, tt := range []struct {
		name, argv0, path, dir string
		sees, hidden           []string
	}{
		{name: "links", argv0: home + "/venv/bin/server", sees: []string{"venv/lib/own", "versions/7/lib/data"}, hidden: []string{"secret"}},
		{name: "PATH", argv0: "server", path: home + "/nothing:" + home + "/venv/bin:/usr/bin", sees: []string{"venv/lib/own"}, hidden: []string{"secret"}},
		{name: "linked folder", argv0: home + "/current/bin/probe", sees: []string{"current/lib/data"}, hidden: []string{"secret"}},
		{name: "node_modules", argv0: home + "/proj/node_modules/.bin/server", sees: []string{"proj/node_modules/dep/probe"}, hidden: []string{"proj/private"}},
		{name: "interpreter", argv0: home + "/tools/script", path: home + "/versions/7/bin", sees: []string{"versions/7/lib/data"}, hidden: []string{"secret"}},
		{name: "home's bin", argv0: home + "/bin/mine", hidden: []string{"secret"}},
		{name: ".local", argv0: home + "/.local/bin/direct", hidden: []string{"secret", ".local/share/keyring"}},
		{name: "in home itself", argv0: home + "/lone", hidden: []string{"secret", "tools/script"}},
		{name: "relative", argv0: "./node_modules/.bin/server", dir: home + "/proj/node_modules", hidden: []string{"proj/private"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := spec(config.Process)
			s.Argv[0], s.Dir = tt.argv0, tt.dir
			if tt.path != "" {
				s.Env = map[string]string{"PATH": tt.path}
			}
			if tt.dir != "" {
				s.Argv[0] = "./.bin/server"
				s.Mounts = []config.Mount{{Path: tt.dir}}
			}
			p := start(t, b, s)
			for _, path := range tt.sees {
				if _, failed := p.call("read", probeArgs{Path: filepath.Join(home, path)}); failed != "" {
					t.Errorf("it does not see what belongs to it: %s", failed)
				}
			}
			for _, path := range tt.hidden {
				if _, failed := p.call("read", probeArgs{Path: filepath.Join(home, path)}); !strings.Contains(failed, "no such file") {
					t.Errorf("it sees %s (%s)", path, failed)
				}
			}
			if dir := filepath.Dir(tt.argv0); tt.path == "" && tt.dir == "" && !strings.HasPrefix(envOf(p)["PATH"], dir+":") {
				t.Errorf("PATH is %q: its own folder is not first", envOf(p)["PATH"])
			}
		})
	}
}

// TestInterpretersRun starts what most servers are written in. The servers are
// one-liners: they answer one request.
func TestInterpretersRun(t *testing.T) {
	b := newBackend(t, "")
	for name, argv := range map[string][]string{
		"node": {"-e", `
			const fs = require("fs"), cp = require("child_process"), { Worker } = require("worker_threads");
			new Worker("1", { eval: true }).on("exit", () => cp.exec("echo child", (e, out) =>
				require("readline").createInterface({ input: process.stdin }).on("line", l =>
					console.log(JSON.stringify({ jsonrpc: "2.0", id: JSON.parse(l).id, result: { e, out } })))));`},
		"python3": {"-c", `
import json, subprocess, sys, threading, ssl, tempfile, multiprocessing
t = threading.Thread(target=lambda: None); t.start(); t.join()
multiprocessing.Lock(); tempfile.TemporaryFile()
out = subprocess.run(["echo", "child"], capture_output=True, text=True).stdout
for l in sys.stdin:
    print(json.dumps({"jsonrpc": "2.0", "id": json.loads(l)["id"], "result": {"e": None, "out": out}}), flush=True)`},
		"sh": {"-c", `read -r l; printf '%s\n' '{"jsonrpc":"2.0","id":1,"result":{"e":null,"out":"'$(echo child)'\n"}}'; cat`},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := exec.LookPath(name); err != nil {
				t.Fatalf("%v: make needs tells what to install", err)
			}
			s := spec(config.Process)
			s.Argv, s.Memory, s.Pids = append([]string{name}, argv...), 2<<30, 512
			p := start(t, b, s)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			r, err := p.conn.Call(ctx, "ask", nil)
			if got, want := wire.Str(r.Result, "out"), "child\n"; err != nil || got != want {
				t.Errorf("it answered %s, %v and said %q", r.Result, err, p.said.String())
			}
		})
	}
}
