// Package replay reads recorded sessions of agents, and what their servers
// offer, so that what SpecBox decides can be measured on them.
//
// Its laws:
//
//   - What is read is what stands in the file: no call is invented, and a server
//     that the catalogue does not know is never taken for one that it does.
//   - A session becomes steps as they would be live: a user who speaks again
//     begins a new one.
//   - Nothing here looks at a clock or at randomness that was not handed to it:
//     the same files give the same figures.
package replay

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A Trajectory is one recorded session of an agent. It is not changed after it
// was read.
type Trajectory struct {
	ID       string `json:"id"`
	Source   string `json:"source"`      // the set that it comes from
	Model    string `json:"model"`       // that acted; "reference": a solution of the set's authors
	Task     string `json:"task_id"`     // runs of one task belong on one side of a split
	Prompt   string `json:"user_prompt"` // the user's first words
	Category string `json:"category"`
	Run      string `json:"run"` // which of several runs of the task
	Steps    []Step `json:"steps"`

	// Of a task without a run: servers that it needs, and a prompt that says more.
	Servers  []string `json:"servers"`
	Detailed string   `json:"prompt_detailed"`

	// Truncated: the recording ends with the first calls, not with the task.
	Truncated bool `json:"truncated_after_first_calls"`
}

// A Step is what was said until the next turn with calls, and these calls. The
// last one may have none: the final answer.
type Step struct {
	Segments   []Segment   `json:"segments"` // in order; none of an empty text
	Candidates []Candidate `json:"candidates"`
	Calls      []Call      `json:"calls"` // of one turn, in parallel
}

// Kinds of segments.
const (
	Content = "content"     // the model, to the user
	Query   = "route_query" // the model, to a search for tools
	User    = "user"        // the user, after an answer without calls
)

// A Segment is a piece of what was said.
type Segment struct {
	Kind string `json:"kind"` // one of Content, Query and User
	Text string `json:"text"`
}

// A Candidate is a tool that a search for tools returned. In a file it is a pair
// of names.
type Candidate struct{ Server, Tool string }

// UnmarshalJSON reads a pair of names.
func (c *Candidate) UnmarshalJSON(b []byte) error {
	var pair []string
	if err := json.Unmarshal(b, &pair); err != nil {
		return err
	}
	if len(pair) != 2 {
		return fmt.Errorf("a candidate is a pair of server and tool, not %d names", len(pair))
	}
	c.Server, c.Tool = pair[0], pair[1]
	return nil
}

// A Call is one call of a tool.
type Call struct {
	Server    string          `json:"server"`
	Tool      string          `json:"tool"` // the server's own name of it
	Arguments json.RawMessage `json:"arguments"`
	Unknown   bool            `json:"unknown_server"` // the model named a server that does not exist
	Result    string          `json:"result_sample"`  // the beginning of the result, where it was recorded
	Chars     int             `json:"result_chars"`   // of the whole result; 0 where it was not recorded
	IsError   bool            `json:"is_error"`
}

// Servers returns the servers that a step called, each once, in the order of the
// calls. Those that do not exist are left out.
func (s *Step) Servers() []string {
	var names []string
	for _, c := range s.Calls {
		if !c.Unknown && c.Server != "" && !slices.Contains(names, c.Server) {
			names = append(names, c.Server)
		}
	}
	return names
}

// Read reads the trajectories of all files that the globs name, in the order of
// the globs, their sorted matches and their lines. Files end in .jsonl or
// .jsonl.gz, or hold either of it. A glob that matches nothing is an error, and
// so is a file that matches twice read once.
func Read(globs ...string) ([]Trajectory, error) {
	var all []Trajectory
	seen := map[string]bool{}
	for _, g := range globs {
		files, err := filepath.Glob(g)
		if err != nil {
			return nil, fmt.Errorf("trajectories %q: %w", g, err)
		}
		if len(files) == 0 {
			return nil, fmt.Errorf("trajectories %q: no file matches: %w", g, fs.ErrNotExist)
		}
		slices.Sort(files)
		for _, name := range files {
			if seen[name] {
				continue
			}
			seen[name] = true
			ts, err := readFile(name)
			if err != nil {
				return nil, err
			}
			all = append(all, ts...)
		}
	}
	return all, nil
}

func readFile(name string) ([]Trajectory, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was read only
	return ReadFrom(f, name)
}

// ReadFrom reads trajectories, one a line, compressed by gzip or not. Errors
// begin with name and the line.
func ReadFrom(r io.Reader, name string) ([]Trajectory, error) {
	b := bufio.NewReaderSize(r, 64<<10)
	if head, _ := b.Peek(2); string(head) == "\x1f\x8b" {
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		b = bufio.NewReaderSize(z, 64<<10)
	}
	var all []Trajectory
	for n := 1; ; n++ {
		line, err := b.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%s:%d: %w", name, n, err)
		}
		if text := strings.TrimSpace(string(line)); text != "" {
			t, err := parse([]byte(text))
			if err != nil {
				return nil, fmt.Errorf("%s:%d: %w", name, n, err)
			}
			all = append(all, t)
		}
		if err != nil {
			return all, nil
		}
	}
}

// parse reads one line.
func parse(line []byte) (Trajectory, error) {
	var raw struct {
		Trajectory
		Run   json.RawMessage `json:"run"` // text in some sets, a number in others
		Steps []struct {
			Step
			Text string `json:"text"`
		} `json:"steps"`
	}
	if err := json.Unmarshal(line, &raw); err != nil {
		return Trajectory{}, fmt.Errorf("this is no trajectory: %w", err)
	}
	t := raw.Trajectory
	if t.ID == "" {
		return Trajectory{}, errors.New("this trajectory has no id")
	}
	if t.Task == "" {
		t.Task = t.ID
	}
	if len(raw.Run) > 0 && string(raw.Run) != "null" {
		t.Run = strings.Trim(string(raw.Run), `"`)
	}
	for i, r := range raw.Steps {
		s := r.Step
		if len(s.Segments) == 0 && r.Text != "" {
			s.Segments = []Segment{{Content, r.Text}}
		}
		s.Segments = slices.DeleteFunc(s.Segments, func(g Segment) bool { return g.Text == "" })
		for _, g := range s.Segments {
			switch g.Kind {
			case Content, Query, User:
			default:
				return Trajectory{}, fmt.Errorf("%s: step %d has a segment of kind %q: it must be %s, %s or %s", t.ID, i+1, g.Kind, Content, Query, User)
			}
		}
		t.Steps = append(t.Steps, s)
	}
	return t, nil
}
