package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"
)

const (
	startTimeout = 30 * time.Second // of a program that is to listen
	stopTimeout  = 15 * time.Second

	scenarioTimeout = "20000" // milliseconds; what works takes a second
)

// servers runs the suite against the fixture that serves.
func (k *kit) servers(ctx context.Context, revision string, boxed bool) ([]check, error) {
	url, stop, err := k.serve(ctx, revision, boxed)
	if err != nil {
		return nil, err
	}
	defer stop()
	out, err := os.MkdirTemp(k.dir, "server")
	if err != nil {
		return nil, err
	}
	said, err := k.runSuite(ctx, nil, "server", "--url", url, "--requirements", revision, "--timeout", scenarioTimeout, "-o", out)
	if err != nil {
		return nil, err
	}
	return collect(out, said)
}

// serve starts the fixture, on its own or behind a SpecBox.
func (k *kit) serve(ctx context.Context, revision string, boxed bool) (url string, stop func(), err error) {
	if boxed {
		return startBox(ctx, k.specbox, map[string]any{"command": k.server, "prefix": "", "isolation": "none"}, true)
	}
	// Stateless is what the modern era wants, and the only way in which this
	// fixture serves it; the legacy era has sessions.
	stateless := fmt.Sprintf("-stateless=%v", revision >= "2026")
	for try := range 3 {
		addr, err := freeAddress()
		if err != nil {
			return "", nil, err
		}
		url, stop, err = startListening(ctx, addr, k.server, "-http", addr, stateless)
		if err == nil || try == 2 {
			return url, stop, err
		}
	}
	return url, stop, err
}

// freeAddress returns a loopback address that nobody listens on. Another may
// take it meanwhile.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// startListening starts a program and waits until it listens.
func startListening(ctx context.Context, addr, name string, args ...string) (url string, stop func(), err error) {
	p, err := start(ctx, name, args...)
	if err != nil {
		return "", nil, err
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	late := time.After(startTimeout)
	for {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			return "http://" + addr, p.stop, c.Close()
		}
		select {
		case <-tick.C:
		case <-p.ended:
			return "", nil, fmt.Errorf("%s ended: %s", filepath.Base(name), p.said())
		case <-late:
			p.stop()
			return "", nil, fmt.Errorf("%s does not listen after %v: %s", filepath.Base(name), startTimeout, p.said())
		}
	}
}

var (
	listens = regexp.MustCompile(`serves .* at (http://\S+/mcp)`)
	filled  = regexp.MustCompile(`catalog 1/1`)
)

// startBox starts a SpecBox with one server and waits until it serves; full
// says that the lists are to be there, too.
func startBox(ctx context.Context, specbox string, server map[string]any, full bool) (url string, stop func(), err error) {
	dir, err := os.MkdirTemp("", "conformance-box")
	if err != nil {
		return "", nil, err
	}
	remove := func() { _ = os.RemoveAll(dir) }
	b, err := json.Marshal(map[string]any{"servers": map[string]any{"everything": server}})
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "specbox.json"), b, 0o600)
	}
	var p *program
	if err == nil {
		p, err = start(ctx, specbox, "--state", filepath.Join(dir, "state"), "serve", "-f", filepath.Join(dir, "specbox.json"), "--listen", "127.0.0.1:0")
	}
	if err != nil {
		remove()
		return "", nil, err
	}
	stop = func() { p.stop(); remove() }
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	m, err := p.find(ctx, listens)
	if err == nil && full {
		_, err = p.find(ctx, filled)
	}
	if err != nil {
		stop()
		return "", nil, err
	}
	return m[1], stop, nil
}

// runSuite runs the suite and returns what it prints. That checks fail is no
// error.
func (k *kit) runSuite(ctx context.Context, env []string, args ...string) (string, error) {
	c := exec.CommandContext(ctx, k.node, append([]string{k.suite}, args...)...)
	c.Env = append(os.Environ(), env...)
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.WaitDelay = stopTimeout
	out, err := c.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 {
		err = nil
	}
	if err != nil {
		return "", fmt.Errorf("the suite: %w: %s", err, bytes.TrimSpace(out[max(0, len(out)-2000):]))
	}
	return string(out), nil
}

// stamped is the end of a folder's name that the suite adds.
var stamped = regexp.MustCompile(`-\d{4}-\d\d-\d\dT[\d-]+Z$`)

// collect reads the checks that the suite wrote to a folder.
func collect(dir, said string) ([]check, error) {
	var all []check
	err := filepath.WalkDir(dir, func(file string, d os.DirEntry, err error) error {
		if err != nil || d.Name() != "checks.json" {
			return err
		}
		rel, err := filepath.Rel(dir, filepath.Dir(file)) // scenarios such as auth/basic are folders in folders
		if err != nil {
			return err
		}
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var checks []check
		if err := json.Unmarshal(b, &checks); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		for _, c := range checks {
			c.Scenario = strings.TrimPrefix(stamped.ReplaceAllString(filepath.ToSlash(rel), ""), "server-")
			all = append(all, c)
		}
		return nil
	})
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("the suite made no checks: %s", said[max(0, len(said)-2000):])
	}
	return all, err
}

// through is the argument that makes this program the client under test.
const through = "client-through-specbox"

// Variables by which the client under test learns which programs to run.
const (
	envSpecbox = "CONFORMANCE_SPECBOX"
	envClient  = "CONFORMANCE_CLIENT"
)

// clients runs the suite's servers against the fixture that is a client,
// directly or with a SpecBox in between, which is then the client.
func (k *kit) clients(ctx context.Context, revision string, boxed bool) ([]check, error) {
	scenarios, err := k.clientScenarios(revision)
	if err != nil {
		return nil, err
	}
	command := k.client
	if boxed {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		command = self + " " + through
	}
	out, err := os.MkdirTemp(k.dir, "client")
	if err != nil {
		return nil, err
	}
	env := []string{envSpecbox + "=" + k.specbox, envClient + "=" + k.client}
	said := ""
	for _, s := range scenarios {
		more, err := k.runSuite(ctx, env, "client", "--command", command, "--scenario", s, "--spec-version", revision, "--timeout", scenarioTimeout, "-o", out)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s, err)
		}
		said += more
	}
	return collect(out, said)
}

// clientScenarios returns the scenarios that a revision asks of clients, but for
// those of logging in.
func (k *kit) clientScenarios(revision string) ([]string, error) {
	b, err := os.ReadFile(filepath.Join(k.requirements, revision+".yaml"))
	if err != nil {
		return nil, err
	}
	var required struct {
		Client    []string
		NotScored []struct{ Scenario, Leg string } `yaml:"not_scored"`
	}
	if err := yaml.Unmarshal(b, &required); err != nil {
		return nil, err
	}
	names := required.Client
	for _, s := range required.NotScored {
		if s.Leg == "client" {
			names = append(names, s.Scenario)
		}
	}
	names = slices.DeleteFunc(names, func(s string) bool { return strings.HasPrefix(s, "auth/") })
	if len(names) == 0 {
		return nil, fmt.Errorf("revision %s asks nothing of clients", revision)
	}
	return names, nil
}

// clientThrough is the client under test: the fixture, with a SpecBox between
// it and the server at url.
func clientThrough(ctx context.Context, url string) error {
	box, stop, err := startBox(ctx, os.Getenv(envSpecbox), map[string]any{"url": url, "prefix": ""}, true)
	if err != nil {
		return err
	}
	defer stop()
	c := exec.CommandContext(ctx, os.Getenv(envClient), box)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	return c.Run()
}
