package intent_test

import (
	"testing"

	"github.com/specbox/specbox/intent"
)

func TestNames(t *testing.T) {
	n := intent.NewNames()
	n.Add("git__log", "git", "log")
	n.Add("git__search", "git", "search")
	n.Add("web__search", "web", "search")
	n.Add("my-files__read_file", "my-files", "read_file")
	n.Add("a.b__list", "a.b", "list")
	for name, want := range map[string]string{
		"git__log":                 "git log", // as listed
		"mcp__specbox__git__log":   "git log", // AgentScope 2, Claude Code
		"specbox-git__log":         "git log",
		"specbox_git__log":         "git log",
		"mcp_specbox_web__search":  "web search",
		"log":                      "git log", // LangChain, AutoGen: the server's own
		"read_file":                "my-files read_file",
		"mcp__git__log":            "git log", // connected to /mcp/git
		"mcp__web__search":         "web search",
		"mcp__git__search":         "git search",
		"web.search":               "web search",
		"my-files.read_file":       "my-files read_file",
		"mcp__my-files__read_file": "my-files read_file",
		"server:a.b__list":         "a.b list",
		"search":                   "", // two have it
		"mcp__other__search":       "",
		"todo_list":                "", // the agent's own
		"no_such_tool":             "",
		"":                         "",
		"__":                       "",
		"mcp__":                    "",
	} {
		server, own, ok := n.Server(name)
		got := server + " " + own
		if !ok {
			got = ""
		}
		if got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

func FuzzNames(f *testing.F) {
	n := intent.NewNames()
	n.Add("git__log", "git", "log")
	f.Add("mcp__git__log")
	f.Fuzz(func(t *testing.T, name string) {
		if server, own, ok := n.Server(name); ok && (server != "git" || own != "log") {
			t.Errorf("%q is %s of %s", name, own, server)
		}
	})
}
