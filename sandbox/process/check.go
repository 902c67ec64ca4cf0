package process

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/sandbox"
)

// A Finding is one thing that this machine can or cannot do for sandboxes.
type Finding struct {
	Name   string // "bubblewrap", "sandbox", "seccomp", "allow-list", "memory limit", "pids limit", "cpu limit", "kill of plain servers", "idle class"
	OK     bool
	Detail string // what was found, or what happened
	Fix    string // what to install or set; "" if it is OK
}

// Check tries what the backend needs, and says what this machine can do. It
// starts sandboxes and makes cgroups for a moment, and leaves nothing behind.
// The allow-list is tried only in a program that calls [Init].
func Check(ctx context.Context) []Finding {
	path, err := exec.LookPath("bwrap")
	if err != nil {
		out := []Finding{{Name: "bubblewrap", Detail: "there is no bwrap in PATH; only isolation: none works", Fix: installBwrap}}
		return append(out, checkGroups()...)
	}
	version, err := exec.CommandContext(ctx, path, "--version").Output()
	found := Finding{Name: "bubblewrap", OK: err == nil, Detail: strings.TrimSpace(string(version)) + " at " + path}
	if err != nil {
		found.Detail, found.Fix = path+" does not run: "+err.Error(), installBwrap
	}
	out := []Finding{found}
	status, err := tryOut(ctx, config.Network{})
	out = append(out, isolationFinding(err))
	if err == nil {
		out = append(out, statusFinding(status), checkAllowList(ctx))
	}
	return append(out, checkGroups()...)
}

// tryScript says what it is, and then waits to be stopped.
const tryScript = `while read -r l; do echo "$l"; done < /proc/self/status >&2; echo '{}'; read -r _`

// tryOut reads /proc/self/status in a sandbox, made like those of servers.
func tryOut(ctx context.Context, network config.Network) (status string, err error) {
	dir, err := os.MkdirTemp("", "specbox-check-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	b, err := New(Config{Run: dir, Cgroup: "none"})
	if err != nil {
		return "", err
	}
	defer b.Close()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var said bytes.Buffer // complete when the instance is closed
	inst, err := b.Create(ctx, "check", &sandbox.Spec{
		Server: "check", Isolation: config.Process, Network: network, StopGrace: time.Second,
		Argv: []string{shell, "-c", tryScript},
	}, &said)
	if err != nil {
		return "", err
	}
	stop := context.AfterFunc(ctx, func() { inst.Close() })
	_, err = inst.Transport().Read()
	stop()
	if closeErr := inst.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return "", fmt.Errorf("the sandbox ended with %s: %s", inst.Usage().Exit, strings.TrimSpace(said.String()))
	}
	return said.String(), nil
}

// isolationFinding explains why there is no sandbox, as far as can be known.
func isolationFinding(err error) Finding {
	f := Finding{Name: "sandbox", OK: err == nil, Detail: "user, mount, pid, ipc, uts and network namespaces work"}
	if err == nil {
		return f
	}
	f.Detail = strings.TrimSpace(err.Error())
	switch {
	case setting("/proc/sys/kernel/unprivileged_userns_clone") == "0":
		f.Fix = "allow user namespaces: sysctl -w kernel.unprivileged_userns_clone=1"
	case setting("/proc/sys/user/max_user_namespaces") == "0":
		f.Fix = "allow user namespaces: sysctl -w user.max_user_namespaces=10000"
	case strings.Contains(f.Detail, "mount proc"):
		f.Fix = "this container hides parts of /proc, so that no new one can be mounted: run it with --security-opt systempaths=unconfined"
	case setting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
		f.Fix = "allow bwrap user namespaces by an AppArmor profile (apt-get install apparmor-profiles), or: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
	case exists("/.dockerenv"), exists("/run/.containerenv"):
		f.Fix = "in a container, run it with --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined"
	default:
		f.Fix = "a kernel with user namespaces (CONFIG_USER_NS), or ask for isolation: none, server by server"
	}
	return f
}

func setting(file string) string { return strings.Join(words(file), " ") }

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// statusFinding judges what a process in a sandbox says of itself.
func statusFinding(status string) Finding {
	fields := map[string]string{}
	for line := range strings.Lines(status) {
		k, v, _ := strings.Cut(line, ":")
		fields[k] = strings.TrimSpace(v)
	}
	var lacks []string
	for k, want := range map[string]string{"Seccomp": "2", "NoNewPrivs": "1", "CapEff": "0000000000000000", "CapBnd": "0000000000000000"} {
		if fields[k] != want {
			lacks = append(lacks, k+" is "+cmp.Or(fields[k], "unknown"))
		}
	}
	f := Finding{Name: "seccomp", OK: len(lacks) == 0, Detail: "system calls are filtered, no new privileges, no capability"}
	if !f.OK {
		slices.Sort(lacks)
		f.Detail = strings.Join(lacks, ", ")
		f.Fix = "a kernel with CONFIG_SECCOMP_FILTER, and a current bubblewrap"
	}
	return f
}

func checkAllowList(ctx context.Context) Finding {
	f := Finding{Name: "allow-list", Detail: "single hosts of the network can be allowed"}
	if !initialized.Load() {
		f.Detail, f.Fix = "not tried: this program does not call process.Init", "call process.Init in main"
		return f
	}
	_, err := tryOut(ctx, config.Network{Hosts: []string{"localhost:80", "allowed.invalid:443", "192.0.2.1:53"}})
	if f.OK = err == nil; !f.OK {
		f.Detail = err.Error()
		f.Fix = "allow this program to make user and network namespaces, as bubblewrap may; until then use network: none or all"
	}
	return f
}

// withoutGroup says what holds a limit where no cgroup does.
var withoutGroup = map[string]string{
	"memory": "each process is held by an rlimit of its own, so that a sandbox may use several times its limit",
	"pids":   "an rlimit holds, which does not bind servers of a SpecBox run as root",
	"cpu":    "nothing holds it",
}

// checkGroups tries to set each limit on a cgroup.
func checkGroups() []Finding {
	g, err := findGroups("")
	if err != nil {
		g = &groups{v1: map[string]string{}}
	}
	defer func() { _ = g.leave() }()
	var out []Finding
	for _, c := range limiters {
		f := Finding{Name: c + " limit"}
		switch {
		case g.v1[c] != "":
			f.Detail = "cgroup version 1, in " + g.v1[c]
		case slices.Contains(g.v2ctl, c):
			f.Detail = "cgroup version 2, in " + g.v2
		default:
			f.Detail = "no cgroup with the " + c + " controller can be made: " + withoutGroup[c]
			f.Fix = "let this user have a cgroup: run SpecBox as a service with Delegate=yes (systemd-run --user -p Delegate=yes specbox serve …), or as root, or in a container with a writable /sys/fs/cgroup"
		}
		if f.Fix == "" {
			err := g.try(c)
			if f.OK = err == nil; !f.OK {
				f.Detail, f.Fix = err.Error(), "delegate the "+c+" controller to this user"
			}
		}
		out = append(out, f)
	}
	kill := Finding{Name: "kill of plain servers", OK: g.v2 != "" || len(g.v1) > 0, Detail: "by cgroup, also children that left"}
	if !kill.OK {
		kill.Detail = "by the environment marker alone: a child of isolation: none that clears its environment and leaves its parent escapes"
		kill.Fix = "let this user have a cgroup, as for the limits"
	}
	return append(out, kill, idleFinding(g))
}

// noIdle says why there is no idle class.
const noIdle = "there is no cgroup with the cpu controller, and this user may not take processes out of SCHED_IDLE again (RLIMIT_NICE)"

func idleFinding(g *groups) Finding {
	f := Finding{Name: "idle class", OK: true}
	switch {
	case !slices.Contains(g.missing(), "cpu"):
		f.Detail = "speculative starts are in the idle class of the scheduler, by cgroup"
	case canIdle():
		f.Detail = "speculative starts are in SCHED_IDLE"
	default:
		f.OK, f.Detail = false, "speculative starts compete with those that are demanded: "+noIdle
		f.Fix = "let this user have a cgroup, as for the limits, or set LimitNICE=+0 for the service"
	}
	return f
}

// try sets a limit of controller c.
func (g *groups) try(c string) error {
	t := g.plan(fmt.Sprintf("specbox-try-%d", os.Getpid()))
	defer func() { _ = t.remove() }()
	switch c {
	case "memory":
		return t.make(64<<20, 0, 0)
	case "pids":
		return t.make(0, 16, 0)
	}
	return t.make(0, 0, 0.5)
}
