package config_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/specbox/specbox/config"
	"golang.org/x/tools/txtar"
)

var update = flag.Bool("update", false, "rewrite what the golden files expect")

// environ is the environment of a golden file: NAME=VALUE lines.
func environ(text string) func(string) (string, bool) {
	vars := map[string]string{"HOME": "/home/ada"}
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			vars[k] = v
		}
	}
	return func(name string) (string, bool) {
		v, ok := vars[name]
		return v, ok
	}
}

// Each file of testdata holds a configuration as a client writes it, then the
// environment, the faults expected and the configuration expected.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) < 8 {
		t.Fatalf("golden files: %d, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			section := map[string]string{}
			for _, f := range a.Files {
				section[f.Name] = string(f.Data)
			}
			input := a.Files[0]
			c, faults := config.Parse("/home/ada/work/"+input.Name, input.Data, environ(section["environment"]))

			var text strings.Builder
			for _, f := range faults {
				fmt.Fprintln(&text, strings.TrimPrefix(f.String(), "/home/ada/work/"))
			}
			shown := []byte("null")
			if c != nil {
				c.Limits.Starts, c.Speculation.Starts = 2, 1 // the machine's cores
				shown, err = json.MarshalIndent(c, "", "  ")
				if err != nil {
					t.Fatal(err)
				}
			}
			got := []txtar.File{input, {Name: "environment", Data: []byte(section["environment"])},
				{Name: "faults", Data: []byte(text.String())}, {Name: "config", Data: append(shown, '\n')}}
			if *update {
				if err := os.WriteFile(file, txtar.Format(&txtar.Archive{Comment: a.Comment, Files: got}), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			for _, f := range got {
				if want := section[f.Name]; string(f.Data) != want {
					t.Errorf("%s\n got:\n%s\nwant:\n%s", f.Name, f.Data, want)
				}
			}
			for line := range strings.Lines(section["environment"]) {
				if _, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok && len(v) > 5 && bytes.Contains(append(shown, text.String()...), []byte(v)) {
					t.Errorf("the value of %s is shown", line)
				}
			}
		})
	}
}
