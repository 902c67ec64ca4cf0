package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/specbox/specbox/replay"
	"github.com/specbox/specbox/replay/standin"
)

var notInNames = regexp.MustCompile(`[^A-Za-z0-9_.-]+`)

// configNames returns the name of each server in the configuration, where names
// have fewer characters.
func configNames(entries []replay.Entry) map[string]string {
	names, taken := map[string]string{}, map[string]bool{}
	for _, e := range entries {
		name := notInNames.ReplaceAllString(e.Server, "-")
		name = name[:min(len(name), 36)]
		for base, n := name, 2; taken[name]; n++ {
			name = fmt.Sprintf("%s-%d", base, n)
		}
		taken[name] = true
		names[e.Server] = name
	}
	return names
}

// offer sees to it that a stand-in has the tool of a call: some agents call what
// a server does not list.
func (w *world) offer(c replay.Call) error {
	i := slices.IndexFunc(w.entries, func(e replay.Entry) bool { return e.Server == c.Server })
	if i < 0 {
		return fmt.Errorf("it calls server %q, which %s does not have", c.Server, w.o.Catalog)
	}
	e := &w.entries[i]
	if !slices.ContainsFunc(e.Tools, func(t replay.EntryTool) bool { return t.Name == c.Tool }) {
		e.Tools = append(e.Tools, replay.EntryTool{Name: c.Tool, InputSchema: json.RawMessage(`{"type":"object"}`)})
	}
	return nil
}

var notInTools = regexp.MustCompile(`[^A-Za-z0-9_-]`)

// toolName returns the name of a tool at SpecBox.
func (w *world) toolName(c replay.Call) string {
	return notInTools.ReplaceAllString(w.names[c.Server]+"__"+c.Tool, "_")
}

func (s *setting) costFile() string { return filepath.Join(s.dir, "cost.json") }

// setCost makes starts take as long as they should.
func (s *setting) setCost() error {
	cpu := time.Duration(float64(s.cold-s.base) / s.slope)
	return s.writeCost(standin.Cost{CPU: max(0, cpu)})
}

func (s *setting) writeCost(c standin.Cost) error {
	b, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return os.WriteFile(s.costFile(), b, 0o600)
}

// prepare lets a SpecBox read what the servers offer. The first time it finds out
// how long starts take.
func (s *setting) prepare(ctx context.Context) error {
	dir := filepath.Join(s.dir, "prepare")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := s.writeCost(standin.Cost{}); err != nil {
		return err
	}
	b, err := s.serve(ctx, OnDemand, dir, "http://127.0.0.1:9/v1", true)
	if err != nil {
		return err
	}
	tried := s.slope > 0
	if !tried {
		err = s.probe(ctx, b)
	}
	b.stop()
	if err != nil {
		return fmt.Errorf("try how long starts take: %w", err)
	}
	if !tried {
		if err := s.calibrate(filepath.Join(dir, "trace.jsonl")); err != nil {
			return err
		}
	}
	return s.setCost()
}

// catalogFile holds what one server offers.
func (w *world) catalogFile(e replay.Entry) string {
	return filepath.Join(w.dir, w.names[e.Server]+".json")
}

// writeCatalogs writes the files of all servers.
func (w *world) writeCatalogs() error {
	for _, e := range w.entries {
		b, err := json.Marshal([]replay.Entry{e})
		if err != nil {
			return err
		}
		if err := os.WriteFile(w.catalogFile(e), b, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// What starts cost in the probes, and how often each is tried.
const (
	littleWork = 20 * time.Millisecond
	muchWork   = 70 * time.Millisecond
	probes     = 3
)

// probe calls a tool of a fresh server, at two costs of a start.
func (s *setting) probe(ctx context.Context, b *box) error {
	a := NewAgents(b.url)
	defer a.Close()
	i := slices.IndexFunc(s.entries, func(e replay.Entry) bool { return len(e.Tools) > 0 })
	if i < 0 {
		return errors.New("no server of the catalogue has a tool")
	}
	name := s.toolName(replay.Call{Server: s.entries[i].Server, Tool: s.entries[i].Tools[0].Name})
	for n := range 2 * probes {
		cost := littleWork
		if n%2 == 1 {
			cost = muchWork
		}
		if err := s.writeCost(standin.Cost{CPU: cost}); err != nil {
			return err
		}
		ag, err := a.open(ctx, fmt.Sprintf("probe-%d", n))
		if err != nil {
			return err
		}
		_, err = ag.call(ctx, name, "{}", n+1, 1)
		if err := errors.Join(err, ag.close()); err != nil {
			return err
		}
	}
	return nil
}

// calibrate reads what the probes took.
func (w *world) calibrate(trace string) error {
	events, err := readEvents(trace)
	if err != nil {
		return err
	}
	var little, much []float64
	for n := range 2 * probes {
		i := slices.IndexFunc(events, func(e Event) bool { return e.Kind == callKind && e.TraceID == TraceID(n+1) })
		if i < 0 {
			return errors.New("the trace lacks a call that was made")
		}
		if n%2 == 0 {
			little = append(little, events[i].Provision.Seconds())
		} else {
			much = append(much, events[i].Provision.Seconds())
		}
	}
	w.slope = max(1, (median(much)-median(little))/(muchWork-littleWork).Seconds())
	w.base = max(0, time.Duration((median(little)-w.slope*littleWork.Seconds())*float64(time.Second)))
	w.limited = w.slope > 3 // a whole core has 1
	return nil
}

// serve starts a SpecBox in dir. The first one, which fills the catalogue, is
// ready when that is done; others begin with what it has found.
func (s *setting) serve(ctx context.Context, policy, dir, modelURL string, first bool) (*box, error) {
	state := filepath.Join(dir, "state")
	if err := os.MkdirAll(state, 0o700); err != nil {
		return nil, err
	}
	if !first {
		if err := copyState(state, filepath.Join(s.dir, "prepare", "state")); err != nil {
			return nil, err
		}
	}
	file := filepath.Join(dir, "specbox.json")
	config, err := json.MarshalIndent(s.config(policy, modelURL), "", " ")
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(file, config, 0o600); err != nil {
		return nil, err
	}
	args := append(append([]string{"--state", state}, s.o.Serve...), "-f", file, "--listen", "127.0.0.1:0", "--trace", filepath.Join(dir, "trace.jsonl"))
	until := ""
	if first {
		until = fmt.Sprintf("catalog %d/%d", len(s.entries), len(s.entries))
	}
	return launch(ctx, s.o.Program, args, until)
}

// copyState copies what a SpecBox has found out about its servers, without what
// it has learned.
func copyState(to, from string) error {
	b, err := os.ReadFile(filepath.Join(from, "hash.key"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(to, "hash.key"), b, 0o600); err != nil {
		return err
	}
	return os.CopyFS(filepath.Join(to, "catalog"), os.DirFS(filepath.Join(from, "catalog")))
}

// config returns the configuration of a policy.
func (s *setting) config(policy, modelURL string) any {
	type object = map[string]any
	servers := object{}
	for _, e := range s.entries {
		servers[s.names[e.Server]] = object{
			"command": s.o.Program,
			"args":    append(slices.Clone(s.o.StandIn), "--catalog", s.catalogFile(e), "--server", e.Server, "--cost", s.costFile()),
			"cpus":    share,
		}
	}
	known := policy
	switch policy {
	case OnDemand:
		known = "off"
	case Shipped:
		known = "calibrated"
	}
	return object{
		"servers": servers,
		"llm":     object{"upstreams": []object{{"name": "replay", "api": "openai", "url": modelURL}}},
		"limits":  object{"sandboxes": 512, "starts": 64},
		"speculation": object{
			"policy": known, "learn": "memory", "sandboxes": 256, "starts": 32,
		},
	}
}

// launch starts a SpecBox and waits until it listens, and has said until.
func launch(ctx context.Context, program string, args []string, until string) (*box, error) {
	b := &box{cmd: exec.Command(program, args...), ended: make(chan struct{})}
	r, out := io.Pipe()
	b.cmd.Stdout, b.cmd.Stderr = out, out
	b.cmd.WaitDelay = stopTimeout
	if err := b.cmd.Start(); err != nil {
		return nil, err
	}
	ready := make(chan error, 1)
	go func() { // ends with the output
		var said []string
		url, filled, told := "", until == "", false
		for lines := bufio.NewScanner(r); lines.Scan(); {
			if len(said) < 1000 {
				said = append(said, lines.Text())
			}
			if m := serves.FindStringSubmatch(lines.Text()); m != nil {
				url = m[1]
			}
			filled = filled || strings.Contains(lines.Text(), until)
			if filled && url != "" && !told {
				told = true
				b.url = url
				ready <- nil
			}
		}
		_, _ = io.Copy(io.Discard, r) // behind a line that was too long
		if !told {
			ready <- fmt.Errorf("specbox did not start: %s", strings.Join(said, "\n"))
		}
	}()
	go func() { // stop waits for it
		_ = b.cmd.Wait()
		_ = out.Close()
		close(b.ended)
	}()
	var err error
	select {
	case err = <-ready:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		b.stop()
		return nil, err
	}
	return b, nil
}
