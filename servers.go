package specbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/launcher"
	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/session"
)

// writeKey writes a fresh key whole, unless another process was quicker.
func writeKey(path string) error {
	f, err := os.CreateTemp(filepath.Dir(path), "key-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	_, err = f.Write(key)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

// A resolved is a configured server with what its launcher made of it.
type resolved struct {
	server  *config.Server
	program *launcher.Program // nil if it is remote, or cannot run
	missing bool              // its package is not installed
	err     error             // why it cannot run
}

// resolveAll resolves every server that is not disabled and gives the hall the
// result.
func (r *Runtime) resolveAll() {
	r.resolving.Lock() // what was found last is what stands last
	defer r.resolving.Unlock()
	var all []resolved
	for _, s := range r.opts.Config.Servers {
		if !s.Disabled {
			all = append(all, r.resolve(s))
		}
	}
	r.mu.Lock()
	r.servers = all
	r.mu.Unlock()
	var hall []*session.Server
	for _, v := range all {
		hall = append(hall, r.hallServer(v))
	}
	r.hub.SetServers(hall)
}

func (r *Runtime) resolve(s *config.Server) resolved {
	v := resolved{server: s}
	if s.Unready != "" {
		v.err = errors.New(s.Unready)
		return v
	}
	if s.URL != "" {
		return v
	}
	v.program, v.err = launcher.Resolve(s, r.packages)
	v.missing = errors.Is(v.err, launcher.ErrNotInstalled)
	return v
}

// hallServer says what the hall must know of a server.
func (r *Runtime) hallServer(v resolved) *session.Server {
	s, version := v.server, ""
	if v.program != nil {
		version = v.program.Version
	}
	out := &session.Server{
		Name: s.Name, Hash: s.Hash(r.hashKey, version), Prefix: s.Prefix, Tools: s.Tools, Except: s.Except,
		CallTimeout: s.CallTimeout, StopOnCancel: s.StopOnCancel,
		NeedsSession: s.ScopeSet && s.Scope == config.PerSession,
		Keywords:     s.Keywords, Templates: s.Templates,
	}
	if v.err != nil {
		out.Unready = v.err.Error()
		return out
	}
	spec := &sandbox.Spec{
		Server: s.Name, Hash: out.Hash, Isolation: s.Isolation,
		Dir: s.Dir, Mounts: s.Mounts, Network: s.Network,
		Memory: s.Memory, Pids: s.Pids, CPUs: s.CPUs, Limit: r.opts.Config.Limits.Message,
		URL: s.URL, Transport: s.Transport, Headers: s.Headers, Hide: s.Hidden(),
		Scope: s.Scope, Concurrency: s.Concurrency, StartTimeout: s.StartTimeout, IdleTimeout: s.IdleTimeout, StopGrace: s.StopGrace,
	}
	keep := s.KeepState
	if p := v.program; p != nil {
		spec.Argv = p.Argv
		spec.Mounts = slices.Concat(p.Mounts, s.Mounts)
		keep = keep || p.KeepState
		spec.Image, spec.Program, spec.User, spec.Runtime = p.Image, p.Entrypoint, p.User, p.Runtime
		if p.Dir != "" {
			spec.Dir = p.Dir
		}
	}
	spec.Env = environment(s, v.program, keep)
	out.Spec = spec
	if keep {
		out.Home = func(tenant string) (string, error) {
			dir := filepath.Join(r.opts.State, "home", tenant, s.Name)
			return dir, os.MkdirAll(dir, 0o700)
		}
	}
	return out
}

// environment returns what a server sees: what its program needs beneath what
// its configuration says. One that runs without isolation runs as its user's
// own, at home.
func environment(s *config.Server, p *launcher.Program, keep bool) map[string]string {
	env := map[string]string{}
	if s.Isolation == config.None && !keep {
		env["HOME"] = os.Getenv("HOME")
	}
	if p != nil {
		maps.Copy(env, p.Env)
	}
	if p == nil || !p.OwnEnv {
		maps.Copy(env, s.Env)
	}
	return env
}

// installs at once: they are bound by network and disk, and two keep a slow one
// from holding up the rest.
const installs = 2

// prepare installs what is missing and reads what the catalogue lacks. Neither
// waits for the other's slowest. It returns when all is done, or ctx ends.
func (r *Runtime) prepare(ctx context.Context) {
	var mu sync.Mutex
	done, total := 0, 0
	read := func(names []string) {
		if len(names) == 0 {
			return
		}
		_ = r.hub.Fill(ctx, names, false, func(f session.FillReport) { // each server's error is reported
			mu.Lock()
			done++
			p := Progress{Server: f.Server, Phase: "catalog", Done: done, Total: total, Err: f.Err}
			mu.Unlock()
			r.report(p)
		})
	}
	var able, missing []string
	r.mu.Lock()
	for _, v := range r.servers {
		switch {
		case v.missing && !r.opts.Offline:
			missing = append(missing, v.server.Name)
		case v.err == nil:
			able = append(able, v.server.Name)
		}
	}
	r.mu.Unlock()
	able = r.hub.Unread(able)
	total = len(able) + len(missing)
	var work sync.WaitGroup
	work.Go(func() { read(able) })
	if len(missing) > 0 {
		r.install(ctx, missing, false, r.report, func(name string) { work.Go(func() { read([]string{name}) }) })
	}
	work.Wait()
}

func (r *Runtime) report(p Progress) {
	r.reports.Lock()
	defer r.reports.Unlock()
	r.opts.Report(p)
}

// install installs the packages of the named servers (all, if none is named)
// that are missing, or with update moves all of them on. It calls installed,
// if given, with each server that is ready then.
func (r *Runtime) install(ctx context.Context, names []string, update bool, report func(Progress), installed func(server string)) {
	var todo []*config.Server
	r.mu.Lock()
	for _, v := range r.servers {
		if (len(names) == 0 || slices.Contains(names, v.server.Name)) && (update || v.missing) {
			todo = append(todo, v.server)
		}
	}
	r.mu.Unlock()
	var work sync.WaitGroup
	slots := make(chan struct{}, installs)
	var mu sync.Mutex
	done := 0
	for _, s := range todo {
		pkg, ok := launcher.For(s)
		if !ok {
			continue
		}
		work.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			tell := func(p launcher.Progress) {
				report(Progress{Server: s.Name, Phase: "install", Total: len(todo), Message: p.Message})
			}
			get := r.packages.Install
			if update {
				get = r.packages.Update
			}
			program, err := get(ctx, pkg, tell)
			r.resolveAll()
			mu.Lock()
			done++
			n := done
			mu.Unlock()
			p := Progress{Server: s.Name, Phase: "install", Done: n, Total: len(todo), Err: err}
			if err == nil {
				p.Message = fmt.Sprintf("%s %s", pkg.Name, program.Version)
			}
			report(p)
			if err == nil && installed != nil {
				installed(s.Name)
			}
		})
	}
	work.Wait()
}
