package standin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/specbox/specbox/replay/standin"
)

const entry = `[{"server":"other","tools":[]},
{"server":"notes","description":"Keeps notes.","tools":[
 {"name":"write_note","description":"Write a note","inputSchema":{"type":"object","properties":{"title":{"type":"string","description":"Its <title>"}},"required":["title"],"x-more":9007199254740993}},
 {"name":"read_note","description":"Read one"}]}]`

// asServer makes the test program the server.
const asServer = "STANDIN_TEST_CATALOG"

func TestMain(m *testing.M) {
	if file := os.Getenv(asServer); file != "" {
		o := standin.Options{Catalog: file, Server: "notes", CostFile: os.Getenv("STANDIN_TEST_COST")}
		if err := standin.Run(os.Stdin, os.Stdout, o); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func catalog(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "catalog.json")
	if err := os.WriteFile(file, []byte(entry), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// start runs the server in a process of its own, and connects the SDK's client.
func start(t *testing.T, cost standin.Cost) (*mcp.ClientSession, *exec.Cmd) {
	t.Helper()
	b, err := json.Marshal(cost)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "cost.json")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asServer+"="+catalog(t), "STANDIN_TEST_COST="+file)
	s, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s, cmd
}

func TestToolsAreThoseOfTheCatalogue(t *testing.T) {
	s, _ := start(t, standin.Cost{})
	list, err := s.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Tools) != 2 || list.Tools[0].Name != "write_note" || list.Tools[1].Description != "Read one" {
		t.Errorf("tools: %+v", list.Tools)
	}
	call := func(name string) *mcp.CallToolResult {
		r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: map[string]any{"title": "a"}})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := call("write_note"); r.IsError || !reflect.DeepEqual(r.Content[0], &mcp.TextContent{Text: "notes has done write_note."}) {
		t.Errorf("a call: %+v", r)
	}
	if r := call("burn_note"); !r.IsError {
		t.Errorf("a call of a tool that is not there: %+v", r)
	}
	if err := s.Ping(context.Background(), nil); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// A schema keeps its bytes.
func TestSchemasAreAsWritten(t *testing.T) {
	var out bytes.Buffer
	in := `{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n" + `{"jsonrpc":"2.0","id":"x","method":"tools/list"}` + "\n" + `{"jsonrpc":"2.0","id":7,"method":"none"}` + "\n"
	if err := standin.Run(strings.NewReader(in), &out, standin.Options{Catalog: catalog(t), Server: "notes"}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"inputSchema":{"type":"object","properties":{"title":{"type":"string","description":"Its <title>"}},"required":["title"],"x-more":9007199254740993}`,
		`{"name":"read_note","description":"Read one","inputSchema":{"type":"object"}}`, `"id":"x"`,
		`{"error":{"code":-32601,"message":"there is no method none"},"id":7,"jsonrpc":"2.0"}`,
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s is not in %s", want, out.String())
		}
	}
	if n := strings.Count(out.String(), "\n"); n != 2 {
		t.Errorf("%d answers, want 2", n)
	}
}

// The cost of a start is CPU time of the process and memory, by the kernel's
// account.
func TestStartCostsWhatItShould(t *testing.T) {
	cost := standin.Cost{CPU: 150 * time.Millisecond, Memory: 160 << 20}
	s, cmd := start(t, cost)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if used := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(); used < cost.CPU || used > 2*cost.CPU {
		t.Errorf("it used %v of CPU time, want %v", used, cost.CPU)
	}
	if kb := maxRSS(cmd); kb < 160<<10 {
		t.Errorf("it had %d KiB of memory at most, want 160 MiB", kb)
	}
}

// maxRSS returns the most memory that an ended process had, in KiB.
func maxRSS(cmd *exec.Cmd) int64 {
	if u, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		return u.Maxrss
	}
	return 0
}

func TestErrorsSayWhatIsWrong(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.json")
	if err := os.WriteFile(bad, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, o := range map[string]standin.Options{
		`there is no server "none"`: {Catalog: catalog(t), Server: "none"},
		"this is no catalogue":      {Catalog: bad, Server: "notes"},
		"this is no cost":           {Catalog: catalog(t), Server: "notes", CostFile: bad},
		"no such file":              {Catalog: bad + "x", Server: "notes"},
		"read a message":            {Catalog: catalog(t), Server: "notes"},
	} {
		err := standin.Run(strings.NewReader("{]"), &bytes.Buffer{}, o)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func FuzzRun(f *testing.F) {
	file := filepath.Join(f.TempDir(), "catalog.json")
	if err := os.WriteFile(file, []byte(entry), 0o600); err != nil {
		f.Fatal(err)
	}
	f.Add(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`)
	f.Add(`{"id":{},"method":"tools/call","params":{"name":"read_note"}}`)
	f.Fuzz(func(t *testing.T, in string) {
		var out bytes.Buffer
		_ = standin.Run(strings.NewReader(in), &out, standin.Options{Catalog: file, Server: "notes"})
		for line := range strings.Lines(out.String()) {
			if !json.Valid([]byte(line)) {
				t.Errorf("%q answers %q", in, line)
			}
		}
	})
}
