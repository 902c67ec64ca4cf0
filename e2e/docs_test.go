package e2e_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// A block is a fenced block of a document, with the comment that stands on the
// line before it.
//
//	<!-- not run: REASON -->   it cannot be run by a test
//	<!-- file: NAME -->        it is written into a file for the blocks that follow
//	<!-- config -->            it is a configuration without errors
//	<!-- run: background -->   a specbox that serves while the blocks that follow run
//
// A block of commands without a comment is run. One without a language is a
// picture.
type block struct {
	line     int
	language string
	mark     string
	text     string
}

func blocks(t *testing.T, doc string) []block {
	t.Helper()
	raw, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	var out []block
	var open *block
	before := ""
	for i, line := range strings.Split(string(raw), "\n") {
		switch {
		case open != nil && line == "```":
			out = append(out, *open)
			open = nil
		case open != nil:
			open.text += line + "\n"
		case strings.HasPrefix(line, "```"):
			open = &block{line: i + 1, language: strings.TrimPrefix(line, "```")}
			if mark, ok := strings.CutPrefix(before, "<!-- "); ok {
				open.mark = strings.TrimSuffix(mark, " -->")
			}
		}
		before = line
	}
	if open != nil {
		t.Errorf("%s:%d: the block does not end", doc, open.line)
	}
	return out
}

func docs(t *testing.T) []string {
	t.Helper()
	more, err := filepath.Glob("../docs/*.md")
	if err != nil || len(more) == 0 {
		t.Fatal("no documents", err)
	}
	return append([]string{"../README.md", "../CONTRIBUTING.md", "../SECURITY.md"}, more...)
}

// What the documents tell people to type does what it is said to.
func TestDocumentsCanBeFollowed(t *testing.T) {
	for _, doc := range docs(t) {
		t.Run(filepath.Base(doc), func(t *testing.T) {
			r := newReader(t)
			for _, b := range blocks(t, doc) {
				t.Logf("%s:%d: %s %s", doc, b.line, b.language, b.mark)
				r.follow(t, b)
			}
			if filepath.Base(doc) == "README.md" {
				for _, want := range []string{"filesystem__read_text_file", "likes tea"} {
					if !strings.Contains(r.said.String(), want) {
						t.Errorf("%q is not in what the README's commands print:\n%s", want, &r.said)
					}
				}
			}
		})
	}
}

// A reader is somebody who does what a document says, in a home of their own.
type reader struct {
	dir, state string
	env        []string
	said       strings.Builder
}

func newReader(t *testing.T) *reader {
	t.Helper()
	home := t.TempDir()
	r := &reader{dir: home, state: filepath.Join(home, ".local", "state", "specbox")}
	for _, dir := range []string{"Documents", "project"} {
		if err := os.Mkdir(filepath.Join(home, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cache := os.Getenv("NPM_CONFIG_CACHE") // of this machine, to ask the registry less
	if own, err := os.UserHomeDir(); cache == "" && err == nil {
		cache = filepath.Join(own, ".npm")
	}
	r.env = append(os.Environ(), "HOME="+home, "NPM_CONFIG_CACHE="+cache, "SPECBOX_STATE=", "XDG_STATE_HOME=",
		"PATH="+filepath.Dir(specbox)+":"+os.Getenv("PATH"), "WEATHER_KEY=w", "SEARCH_TOKEN=s")
	return r
}

func (r *reader) follow(t *testing.T, b block) {
	t.Helper()
	switch mark, rest, _ := strings.Cut(b.mark, ": "); {
	case mark == "not run" && rest != "", b.language == "":
	case mark == "file" && rest != "":
		if err := os.WriteFile(filepath.Join(r.dir, rest), []byte(b.text), 0o600); err != nil {
			t.Fatal(err)
		}
	case b.mark == "config":
		name := filepath.Join(r.dir, fmt.Sprintf("block-%d.%s", b.line, b.language))
		if err := os.WriteFile(name, []byte(b.text), 0o600); err != nil {
			t.Fatal(err)
		}
		r.sh(t, "specbox validate "+name)
	case b.mark == "run: background":
		r.serve(t, strings.Fields(b.text))
	case b.language == "sh" && b.mark == "":
		r.sh(t, b.text)
	default:
		t.Errorf("line %d: a block of %s marked %q is neither run nor says why not", b.line, b.language, b.mark)
	}
}

func (r *reader) sh(t *testing.T, script string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
	c.Dir, c.Env = r.dir, r.env
	out, err := c.CombinedOutput()
	r.said.Write(out)
	if err != nil {
		t.Fatalf("%s\n%v\n%s", script, err, out)
	}
}

// serve runs specbox as the document says, but on a free port, and waits until
// it has installed and read everything.
func (r *reader) serve(t *testing.T, words []string) {
	t.Helper()
	if len(words) < 2 || words[0] != "specbox" || words[1] != "serve" {
		t.Fatalf("%q does not serve", words)
	}
	x := &box{cmd: exec.Command(specbox, append(words[1:], "--listen", "127.0.0.1:0")...), state: r.state, ended: make(chan struct{}), output: newOutput()}
	x.cmd.Dir, x.cmd.Env = r.dir, r.env
	x.begin(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := x.output.find(endedWith(ctx, x.ended), listens); err != nil {
		t.Fatal(err)
	}
	eventually(t, 2*time.Minute, "all is installed and read", func() string {
		for _, row := range x.catalog(t) {
			if row.Tools == 0 {
				return fmt.Sprintf("%+v\n%s", row, x.output)
			}
		}
		return ""
	})
}

// Every link of the documents to a file of the project leads somewhere.
func TestLinksLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#]+)(#[^)]*)?\)`)
	for _, doc := range docs(t) {
		raw, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(raw), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(doc), m[1])); err != nil {
				t.Errorf("%s: %v", doc, err)
			}
		}
	}
}
