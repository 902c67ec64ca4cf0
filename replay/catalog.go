package replay

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/specbox/specbox/intent"
)

// An Entry is one server of a catalogue file, as it stands there.
type Entry struct {
	Server      string      `json:"server"`
	Title       string      `json:"title,omitempty"`
	Description string      `json:"description"`
	Category    string      `json:"category,omitempty"`
	Tools       []EntryTool `json:"tools"`
}

// An EntryTool is a tool of an [Entry].
type EntryTool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	InputSchema json.RawMessage `json:"inputSchema"`
}

// ReadEntries reads a catalogue file: a list of servers with their tools.
func ReadEntries(file string) ([]Entry, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var all []Entry
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, fmt.Errorf("%s: this is no catalogue, which is a list of servers: %w", file, err)
	}
	seen := map[string]bool{}
	for i, e := range all {
		if e.Server == "" {
			return nil, fmt.Errorf("%s: entry %d names no server", file, i+1)
		}
		if seen[e.Server] {
			return nil, fmt.Errorf("%s: server %q stands there twice", file, e.Server)
		}
		seen[e.Server] = true
	}
	return all, nil
}

// ReadCatalog reads catalogue files into what routers know of servers. Of a
// server that stands in several of them the first is taken.
func ReadCatalog(files ...string) ([]intent.Server, error) {
	var all []intent.Server
	seen := map[string]bool{}
	for _, file := range files {
		entries, err := ReadEntries(file)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if seen[e.Server] {
				continue
			}
			seen[e.Server] = true
			s, err := e.Intent()
			if err != nil {
				return nil, fmt.Errorf("%s: server %q: %w", file, e.Server, err)
			}
			all = append(all, s)
		}
	}
	return all, nil
}

// Intent returns what routers know of the server.
func (e *Entry) Intent() (intent.Server, error) {
	s := intent.Server{Name: e.Server, Description: e.Description}
	if e.Title != "" && e.Title != e.Description {
		s.Description = e.Title + "\n" + e.Description
	}
	for _, t := range e.Tools {
		params, err := parameters(t.InputSchema)
		if err != nil {
			return intent.Server{}, fmt.Errorf("tool %q: %w", t.Name, err)
		}
		s.Tools = append(s.Tools, intent.Tool{Name: t.Name, Description: t.Description, Params: params})
	}
	return s, nil
}

// parameters returns what a tool takes, sorted by name.
func parameters(schema json.RawMessage) ([]intent.Param, error) {
	if len(schema) == 0 {
		return nil, nil
	}
	var s struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	if err := json.Unmarshal(schema, &s); err != nil {
		return nil, fmt.Errorf("its schema: %w", err)
	}
	var ps []intent.Param
	for name, raw := range s.Properties {
		var p struct {
			Description string `json:"description"`
		}
		var wrong *json.UnmarshalTypeError // a schema may also be true or false
		if err := json.Unmarshal(raw, &p); err != nil && !errors.As(err, &wrong) {
			return nil, fmt.Errorf("parameter %q: %w", name, err)
		}
		ps = append(ps, intent.Param{Name: name, Description: p.Description})
	}
	slices.SortFunc(ps, func(a, b intent.Param) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return ps, nil
}
