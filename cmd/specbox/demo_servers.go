package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// A demoServer is one server of the demo, written by others, and what the demo
// asks it.
type demoServer struct {
	name  string
	lang  string // that it is written in
	entry string // of mcpServers, as people write it
	calls []demoCall
}

// A demoCall is a call of a server's tool. FOLDER in its arguments stands for
// the demo's folder.
type demoCall struct {
	tool string
	args string
	want string // stands in the answer
}

// demoServers returns the six servers of the demo for an architecture of Go.
// Their versions are pinned, so that the demo is the same everywhere.
func demoServers(arch string) []demoServer {
	sixth := demoServer{"clock", "Go",
		`{"command": "npx", "args": ["-y", "mcp-time-linux-x64@0.4.0"]}`,
		[]demoCall{{"add_time", `{"time": "2024-01-01 00:00:00", "duration": "48h"}`, "2024-01-03"}}}
	if arch != "amd64" { // that package has a program for amd64 alone
		sixth = demoServer{"thinking", "Node.js",
			`{"command": "npx", "args": ["-y", "@modelcontextprotocol/server-sequential-thinking@2026.8.31"]}`,
			[]demoCall{{"sequentialthinking", `{"thought": "hm", "nextThoughtNeeded": false, "thoughtNumber": 1, "totalThoughts": 1}`, "thoughtHistoryLength"}}}
	}
	return []demoServer{
		{"everything", "Node.js",
			`{"command": "npx", "args": ["-y", "@modelcontextprotocol/server-everything@2026.8.31"]}`,
			[]demoCall{{"get-sum", `{"a": 2, "b": 40}`, "42"}}},
		{"filesystem", "Node.js",
			`{"command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem@2026.8.31", "${workspaceFolder}/files"]}`,
			[]demoCall{{"read_text_file", `{"path": "FOLDER/files/welcome.txt"}`, "Hello from a file"}}},
		{"memory", "Node.js",
			`{"command": "npx", "args": ["-y", "@modelcontextprotocol/server-memory@2026.8.31"]}`,
			[]demoCall{
				{"create_entities", `{"entities": [{"name": "Ada", "entityType": "person", "observations": ["likes tea"]}]}`, ""},
				{"open_nodes", `{"names": ["Ada"]}`, "likes tea"}}},
		{"git", "Node.js",
			`{"command": "npx", "args": ["-y", "@cyanheads/git-mcp-server@2.15.3"], "specbox": {"mounts": ["${workspaceFolder}/project"]}}`,
			[]demoCall{{"git_log", `{"path": "FOLDER/project"}`, demoCommit}}},
		{"time", "Python",
			`{"command": "uvx", "args": ["mcp-server-time==2026.10.19"]}`,
			[]demoCall{{"convert_time", `{"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}`, "21:00"}}},
		sixth,
	}
}

const demoCommit = "A commit for the demo"

// demoConfig is the configuration of servers, as people write one.
func demoConfig(servers []demoServer) []byte {
	var b bytes.Buffer
	b.WriteString("{\n  \"mcpServers\": {\n")
	for i, s := range servers {
		comma := ","
		if i == len(servers)-1 {
			comma = ""
		}
		fmt.Fprintf(&b, "    %q: %s%s\n", s.name, s.entry, comma)
	}
	b.WriteString("  }\n}\n")
	return b.Bytes()
}

// layDemo writes into the folder dir what the servers of the demo are given: a
// file to read, a repository to look at, and the configuration, whose path it
// returns.
func layDemo(ctx context.Context, dir string, servers []demoServer) (string, error) {
	if err := os.MkdirAll(filepath.Join(dir, "files"), 0o755); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, "files", "welcome.txt"), []byte("Hello from a file that only filesystem sees.\n"), 0o644); err != nil {
		return "", err
	}
	if err := layRepository(ctx, filepath.Join(dir, "project")); err != nil {
		return "", err
	}
	file := filepath.Join(dir, "mcp.json")
	return file, os.WriteFile(file, demoConfig(servers), 0o600)
}

// layRepository makes a git repository with one commit, whole or not at all.
func layRepository(ctx context.Context, dir string) error {
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	half := dir + ".new"
	if err := os.RemoveAll(half); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"init", "--quiet", half},
		{"-C", half, "-c", "user.name=SpecBox", "-c", "user.email=demo@localhost", "-c", "commit.gpgSign=false", "commit", "--quiet", "--allow-empty", "-m", demoCommit},
	} {
		cmd := exec.CommandContext(ctx, "git", args...)
		for _, v := range os.Environ() {
			if !strings.HasPrefix(v, "GIT_") { // of a repository that the demo is none of
				cmd.Env = append(cmd.Env, v)
			}
		}
		cmd.Env = append(cmd.Env, "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("git %s: %w: %s", args[0], err, short(string(out), 200))
		}
	}
	return os.Rename(half, dir)
}

// demoNeeds are the programs that the demo's servers need, and the packages of
// Debian and Ubuntu that have them.
var demoNeeds = []struct{ program, packages string }{
	{"node", "nodejs"}, {"npm", "npm"}, {"python3", "python3 python3-venv"}, {"git", "git"},
}
