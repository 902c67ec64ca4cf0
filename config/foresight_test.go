package config_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/specbox/specbox/config"
)

const oneServer = "\nservers: {a: {command: x}}\n"

func TestUpstreams(t *testing.T) {
	c, faults := parse(t, oneServer)
	if got := fmt.Sprint(c.Upstreams); got != "[openai anthropic]" || faults != "" {
		t.Errorf("a file that names no upstream has %s; %s", got, faults)
	}
	c, faults = parse(t, `
llm:
  upstreams:
    - {name: local, url: "http://127.0.0.1:8000/v1/", models: [qwen*, "llama-3"]}
    - name: claude
      api: anthropic
      url: https://${HOST}
      headers: {x-api-key: "${KEY}"}`+oneServer, "HOST=llm.example.com", "KEY=hunter2-hunter2")
	if faults != "" {
		t.Fatal(faults)
	}
	local, claude := c.Upstreams[0], c.Upstreams[1]
	if local.API != "openai" || local.URL != "http://127.0.0.1:8000/v1" || fmt.Sprint(local.Models) != "[qwen* llama-3]" {
		t.Errorf("local: %s %s %v", local.API, local.URL, local.Models)
	}
	if claude.API != "anthropic" || claude.URL != "https://llm.example.com" || claude.Headers["x-api-key"] != "hunter2-hunter2" {
		t.Errorf("claude: %s %s", claude.API, claude.URL)
	}
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	shown := fmt.Sprintf("%s %v %+v %#v", b, claude, claude, claude)
	if strings.Contains(shown, "hunter2") || strings.Contains(shown, "llm.example.com") || !strings.Contains(shown, "https://${HOST}") {
		t.Errorf("what variables hold is shown: %s", shown)
	}
}

func TestUpstreamFaults(t *testing.T) {
	for text, want := range map[string]string{
		`llm: {upstreams: [{url: "https://x.example.com"}]}`:                           "an upstream has no name",
		`llm: {upstreams: [{name: a}]}`:                                                "upstream a has no url",
		`llm: {upstreams: [{name: a, url: "ftp://x"}]}`:                                "must be http:// or https://",
		`llm: {upstreams: [{name: a, url: "https://x?k=1"}]}`:                          "have no query",
		`llm: {upstreams: [{name: a, url: "https://u:p@x.example.com"}]}`:              "holds a password",
		`llm: {upstreams: [{name: a, api: openapi, url: "https://x"}]}`:                `did you mean "openai"?`,
		`llm: {upstreams: [{name: a, url: "https://x"}, {name: a, url: "https://y"}]}`: "two upstreams named a",
		`llm: {upstreams: [{name: "a b", url: "https://x"}]}`:                          "a name has 1 to 40",
		`llm: {upstreams: [{name: a, url: "https://x", headers: {"a b": c}}]}`:         "is no name of a header",
		`llm: {upstream: []}`:              `did you mean "upstreams"?`,
		`speculation: {policy: calibrate}`: `did you mean "calibrated"?`,
		`speculation: {hold: 5}`:           "no unit of time",
		`speculation: {freeze: sometimes}`: "is not known",
		`speculation: {hedge: sometimes}`:  `"hedge" must be`,
	} {
		if _, faults := parse(t, text+oneServer); !strings.Contains(faults, want) {
			t.Errorf("%s:\n got %q\nwant %q", text, faults, want)
		}
	}
}

func TestSpeculation(t *testing.T) {
	for text, want := range map[string]config.Speculation{
		"":                       {Policy: "calibrated", Eagerness: "balanced", Hold: 30 * time.Second, Sandboxes: 16, Starts: 4, Freeze: "unused", Learn: "kept"},
		"speculation: off":       {Policy: "off", Eagerness: "balanced", Hold: 30 * time.Second, Sandboxes: 16, Starts: 4, Freeze: "unused", Learn: "kept"},
		"speculation: on":        {Policy: "calibrated", Eagerness: "balanced", Hold: 30 * time.Second, Sandboxes: 16, Starts: 4, Freeze: "unused", Learn: "kept"},
		"speculation: keyword-2": {Policy: "keyword-2", Eagerness: "balanced", Hold: 30 * time.Second, Sandboxes: 16, Starts: 4, Freeze: "unused", Learn: "kept"},
		"speculation: {policy: tool-name, eagerness: eager, hold: 5s, sandboxes: 3, memory: 1GiB, starts: 1, freeze: never, hedge: true, learn: off}": {
			Policy: "tool-name", Eagerness: "eager", Hold: 5 * time.Second, Sandboxes: 3, Memory: 1 << 30, Starts: 1, Freeze: "never", Hedge: true, Learn: "off"},
	} {
		c, faults := parse(t, text+"\nlimits: {starts: 4}"+oneServer)
		if c.Speculation != want || faults != "" {
			t.Errorf("%s:\n got %+v\nwant %+v; %s", text, c.Speculation, want, faults)
		}
	}
}

func TestKeywordsAndTemplates(t *testing.T) {
	c, faults := parse(t, `servers: {a: {command: x, keywords: [invoice, "-file"], templates: "Send the invoice"}}`)
	a := c.Servers[0]
	if got := fmt.Sprint(a.Keywords, a.Templates); got != "[invoice -file] [Send the invoice]" || faults != "" {
		t.Errorf("got %s; %s", got, faults)
	}
}
