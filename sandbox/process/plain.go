package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/specbox/specbox/sandbox"
	"golang.org/x/sys/unix"
)

// shell is what holds a plain server back until it is in its cgroup.
const shell = "/bin/sh"

// await is the shell's program: it becomes the server when a line comes, and
// ends when none can come any more.
const await = `read -r _ <&3 && exec 3<&- && exec "$@"; exit 127`

// createPlain makes an instance that is a plain child.
func (b *Backend) createPlain(ctx context.Context, id string, spec *sandbox.Spec, stderr io.Writer, idle bool) (*instance, error) {
	born := false
	defer func() {
		if !born {
			b.forget(id)
		}
	}()
	i, err := b.reserve(id, spec, stderr, idle)
	if err != nil {
		return nil, err
	}
	home, tmp := cmp.Or(spec.Home, filepath.Join(i.dir, "home")), filepath.Join(i.dir, "tmp")
	env := map[string]string{
		"HOME": home, "TMPDIR": tmp,
		"PATH": cmp.Or(os.Getenv("PATH"), basePath), "LANG": cmp.Or(os.Getenv("LANG"), baseLang),
	}
	maps.Copy(env, spec.Env)
	env[marker] = b.run.mark(id)
	dir := cmp.Or(spec.Dir, home)
	path, err := plainProgram(spec.Argv[0], env["PATH"], dir)
	gate, open, gateErr := os.Pipe()
	err = errors.Join(err, gateErr)
	if spec.Home == "" {
		err = errors.Join(err, os.Mkdir(home, 0o700))
	}
	err = errors.Join(err, os.Mkdir(tmp, 0o700))
	if st, statErr := os.Stat(dir); statErr != nil || !st.IsDir() {
		err = errors.Join(err, fmt.Errorf("working directory %s does not exist: create it, or correct it", dir))
	}
	defer gate.Close()
	defer open.Close()
	if err != nil {
		return nil, errors.Join(err, i.release())
	}
	attr := os.ProcAttr{Dir: dir, Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: unix.SIGKILL}}
	for k, v := range env {
		attr.Env = append(attr.Env, k+"="+v)
	}
	argv := slices.Concat([]string{"sh", "-c", await, "specbox", path}, spec.Argv[1:])
	p, err := i.start(shell, argv, attr, []*os.File{gate}, func(p *os.Process) body {
		return &plain{mark: b.run.mark(id), child: p, group: i.group}
	})
	if err != nil {
		return nil, errors.Join(err, i.release())
	}
	born = true // run forgets it
	if err = i.group.add(p.Pid); err == nil {
		err = limitByRlimits(p.Pid, spec, i.group)
	}
	if err == nil {
		err = i.demote()
	}
	if err == nil {
		_, err = open.WriteString("\n")
	}
	if err = cmp.Or(err, context.Cause(ctx)); err != nil {
		i.abandon(p)
		return nil, err
	}
	return i, nil
}

// plainProgram finds the program of a plain server.
func plainProgram(name, search, dir string) (string, error) {
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		return name, runnable(name)
	}
	f := finder{search: search}
	if path := f.look(name); path != "" {
		return path, nil
	}
	return "", fmt.Errorf("there is no program %q in PATH: install it, or give its full path", name)
}

// plain is the body of an instance that is a plain child.
type plain struct {
	mark  string
	child *os.Process
	group *group
}

func (p *plain) server() int { return p.child.Pid }

func (p *plain) terminate() { _ = p.child.Signal(unix.SIGTERM) }

func (p *plain) kill() error {
	_ = p.child.Kill()
	p.group.kill()
	// The child is waited for by its instance.
	find := func() []int { return slices.DeleteFunc(p.pids(), func(pid int) bool { return pid == p.child.Pid }) }
	if _, left := killAll(find, killPatience); len(left) > 0 {
		return fmt.Errorf("processes %v do not die", left)
	}
	return nil
}

// pids finds also those that left the process group and the session: they are
// in the cgroup, or have the marker.
func (p *plain) pids() []int {
	pids := slices.Concat(p.group.procs(), markedPids(func(v string) bool { return v == p.mark }))
	slices.Sort(pids)
	return slices.Compact(pids)
}

func (p *plain) exit(state *os.ProcessState) string { return stateText(state) }

func (p *plain) close() {}
