package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// inspections are what the inspector is asked to do, and what its answer holds.
var inspections = []struct {
	id   string
	args []string
	want string
}{
	{"tools-list", []string{"--method", "tools/list"}, "test_simple_text"},
	{"tools-call", []string{"--method", "tools/call", "--tool-name", "test_simple_text"}, "This is a simple text response for testing."},
	{"prompts-list", []string{"--method", "prompts/list"}, "test_simple_prompt"},
	{"prompts-get", []string{"--method", "prompts/get", "--prompt-name", "test_simple_prompt"}, "messages"},
	{"resources-list", []string{"--method", "resources/list"}, "test://static-text"},
	{"resources-read", []string{"--method", "resources/read", "--uri", "test://static-text"}, "contents"},
}

// inspect runs the inspector's command line in the era of a revision.
func (k *kit) inspect(ctx context.Context, revision string, boxed bool) ([]check, error) {
	url, stop, err := k.serve(ctx, revision, boxed)
	if err != nil {
		return nil, err
	}
	defer stop()
	home, err := os.MkdirTemp(k.dir, "inspector")
	if err != nil {
		return nil, err
	}
	era := "legacy"
	if revision >= "2026" {
		era = "modern"
	}
	var checks []check
	for _, in := range inspections {
		args := append([]string{k.inspector, "--cli", "--transport", "http", "--server-url", url, "--protocol-era", era, "--format", "json"}, in.args...)
		c := exec.CommandContext(ctx, k.node, args...)
		c.Env = append(os.Environ(), "HOME="+home, "PATH="+filepath.Dir(k.node)+":"+os.Getenv("PATH"))
		var out, errs bytes.Buffer
		c.Stdout, c.Stderr = &out, &errs
		found := check{Scenario: "inspector-" + era, ID: in.id, Status: success}
		if err := c.Run(); err != nil || !bytes.Contains(out.Bytes(), []byte(in.want)) || !json.Valid(out.Bytes()) {
			found.Status = failure
			found.Message = fmt.Sprintf("%v: %.500s%.500s", err, out.Bytes(), errs.Bytes())
		}
		checks = append(checks, found)
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return checks, nil
}
