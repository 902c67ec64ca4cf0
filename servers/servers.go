// Package servers installs real MCP servers that others wrote, for the tests,
// the benchmarks and the demo.
//
// servers.json says what they are, how they are run, what they can be asked and
// how they behave; lock/ pins each with all it depends on by digest; fixtures/
// holds the files that they work on. The package keeps to these laws:
//
//   - What is installed is what the lock file names, or nothing: package
//     scripts do not run, and a digest that differs is an error.
//   - Installing again costs nothing, and many processes may do it at once.
//   - A folder that was left half-installed is not taken for an installed one.
package servers

import (
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

//go:embed servers.json lock fixtures
var files embed.FS

// A Server is one server of the index. In Command, Env, Files and the arguments
// of Calls, {install}, {fixtures} and {data} stand for folders: see [Place].
type Server struct {
	Name     string            `json:"name"`
	Language string            `json:"language"` // of the server: node, go, python or dotnet
	Package  string            `json:"package"`
	Version  string            `json:"version"`
	Command  []string          `json:"command"`
	Env      map[string]string `json:"env,omitempty"`
	Files    map[string]string `json:"files,omitempty"`   // path -> content, written by [Lay]
	ColdMS   int               `json:"cold_ms"`           // start to answered tools/list: see [Server.Cold]
	Manners  []string          `json:"manners,omitempty"` // how it behaves out of the ordinary
	Calls    []Call            `json:"calls"`
}

// Cold returns about how long the server takes from its start to an answered
// tools/list, without isolation, on two quiet cores with its files in the page
// cache. Those of Python were measured beside everything's on a loaded machine
// and are scaled by it: compare ratios, not milliseconds.
func (s Server) Cold() time.Duration { return time.Duration(s.ColdMS) * time.Millisecond }

// A Call is a call that works without network, and a part of its answer.
type Call struct {
	Tool      string          `json:"tool"`
	Arguments json.RawMessage `json:"arguments"`
	Answer    string          `json:"answer"` // stands in the text of the result
}

// All returns the index, in its own order.
func All() []Server {
	b, err := files.ReadFile("servers.json")
	if err != nil {
		panic(err) // it is embedded
	}
	var all []Server
	if err := json.Unmarshal(b, &all); err != nil {
		panic("servers.json: " + err.Error())
	}
	return all
}

// Select returns the named servers in the order of names, or all of them when
// there are no names.
func Select(names ...string) ([]Server, error) {
	all := All()
	if len(names) == 0 {
		return all, nil
	}
	var out []Server
	for _, name := range names {
		i := slices.IndexFunc(all, func(s Server) bool { return s.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("server %q is not in the index; it has %s", name, strings.Join(Names(), ", "))
		}
		out = append(out, all[i])
	}
	return out, nil
}

// Names returns the names of all servers, in the order of the index.
func Names() []string {
	var names []string
	for _, s := range All() {
		names = append(names, s.Name)
	}
	return names
}

// A Place says which folders the placeholders stand for. Their names hold no
// quotes and no backslashes.
type Place struct {
	Installs string // holds one folder for each server: {install} is the server's
	Fixtures string // {fixtures}: files to work on; a server need not write them
	Data     string // {data}: a folder that the servers may write
}

// Lay copies the fixtures into the folder work and makes a data folder beside
// them. The fixtures hold a git repository with one commit if git is there.
func Lay(installs, work string) (Place, error) {
	p := Place{Installs: installs, Fixtures: filepath.Join(work, "fixtures"), Data: filepath.Join(work, "data")}
	if err := os.MkdirAll(p.Data, 0o755); err != nil {
		return p, err
	}
	sub, err := fs.Sub(files, "fixtures")
	if err != nil {
		return p, err
	}
	if err := os.CopyFS(p.Fixtures, sub); err != nil {
		return p, err
	}
	for _, s := range All() {
		for name, content := range s.Files {
			if err := os.WriteFile(p.Expand(s, name), []byte(p.Expand(s, content)), 0o644); err != nil {
				return p, err
			}
		}
	}
	return p, commit(filepath.Join(p.Fixtures, "repo"))
}

// commit makes dir a repository with one commit, always the same.
func commit(dir string) error {
	git, err := exec.LookPath("git")
	if err != nil {
		return nil // only the two git servers need it
	}
	for _, args := range [][]string{
		{"init", "-q", "-b", "main"},
		{"add", "-A"},
		{"commit", "-q", "-m", "first commit"},
	} {
		c := exec.Command(git, args...)
		c.Dir = dir
		c.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null",
			"GIT_AUTHOR_NAME=Ada", "GIT_AUTHOR_EMAIL=ada@example.org", "GIT_AUTHOR_DATE=2026-01-02T03:04:05Z",
			"GIT_COMMITTER_NAME=Ada", "GIT_COMMITTER_EMAIL=ada@example.org", "GIT_COMMITTER_DATE=2026-01-02T03:04:05Z")
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("git %s in %s: %w: %s", args[0], dir, err, out)
		}
	}
	return nil
}

func (p Place) install(s Server) string { return filepath.Join(p.Installs, s.Name) }

// Expand puts the folders of p for the placeholders of text, for the server s.
func (p Place) Expand(s Server, text string) string {
	return strings.NewReplacer("{install}", p.install(s), "{fixtures}", p.Fixtures, "{data}", p.Data).Replace(text)
}

// Arguments returns the arguments of c for the server s.
func (p Place) Arguments(s Server, c Call) json.RawMessage {
	return json.RawMessage(p.Expand(s, string(c.Arguments)))
}

// An Entry is a server as an mcpServers file writes it. SpecBox holds the
// policy under a key of its own, which other readers of such files ignore.
type Entry struct {
	Command string            `json:"command"`
	Args    []string          `json:"args,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	SpecBox map[string]any    `json:"specbox,omitempty"`
}

// Entry returns s as an mcpServers file writes it, with the folders of p
// mounted: its package and the fixtures to read, the data to write.
func (p Place) Entry(s Server) Entry {
	e := Entry{Command: p.Expand(s, s.Command[0]), SpecBox: map[string]any{
		"mounts": []string{p.install(s), p.Fixtures, p.Data + ":rw"},
	}}
	for _, a := range s.Command[1:] {
		e.Args = append(e.Args, p.Expand(s, a))
	}
	for k, v := range s.Env {
		if e.Env == nil {
			e.Env = map[string]string{}
		}
		e.Env[k] = p.Expand(s, v)
	}
	return e
}

// Config returns an mcpServers file with these servers.
func (p Place) Config(all []Server) []byte {
	entries := map[string]Entry{}
	for _, s := range all {
		entries[s.Name] = p.Entry(s)
	}
	b, err := json.MarshalIndent(map[string]any{"mcpServers": entries}, "", "  ")
	if err != nil {
		panic(err) // strings only
	}
	return append(b, '\n')
}
