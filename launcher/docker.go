package launcher

import (
	"fmt"
	"slices"
	"strings"

	"github.com/specbox/specbox/config"
)

// A Container is what a docker run line asks for.
type Container struct {
	Image      string
	Env        []string // names; "NAME=VALUE" is here without its value
	Mounts     []string // "/host -> /inside", ", read-only" behind
	Network    string   // "" if the line does not say
	Entrypoint string

	env     map[string]*string // nil means that of the environment
	binds   []config.Mount
	user    string
	dir     string
	runtime string
	notes   []string // for people: what of the line has no effect
}

// Options of docker run that a value follows. With others unknown, the image
// could not be told from a value.
var dockerTakes = []string{
	"-e", "--env", "--env-file", "-v", "--volume", "--mount", "-p", "--publish", "--name", "--network", "--net", "-u", "--user", "-w", "--workdir",
	"--entrypoint", "--platform", "--pull", "-m", "--memory", "--memory-swap", "--cpus", "--pids-limit", "-l", "--label", "--add-host", "--dns",
	"-h", "--hostname", "--cap-add", "--cap-drop", "--security-opt", "--device", "--gpus", "--shm-size", "--tmpfs", "--ulimit", "--restart",
	"--log-driver", "--log-opt", "--ip", "--ipc", "--pid", "--runtime", "--stop-signal", "--stop-timeout", "--userns", "--cidfile", "-a", "--attach",
}

var dockerPlain = []string{"-i", "--interactive", "-t", "--tty", "-it", "-ti", "--rm", "--init", "-d", "--detach", "--privileged", "--read-only", "-q", "--quiet", "-P", "--publish-all", "--no-healthcheck"}

// dockerLine reads: run [options] IMAGE [args].
func dockerLine(program string, args []string) (Package, string) {
	if len(args) > 1 && args[0] == "container" {
		args = args[1:]
	}
	if len(args) == 0 || args[0] != "run" {
		return Package{}, ""
	}
	p := Package{Kind: Docker, Container: &Container{}}
	c := p.Container
	args = args[1:]
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		key, value, joined := strings.Cut(args[0], "=")
		if !strings.HasPrefix(key, "--") && joined { // -e=..., as nobody means it
			key, value, joined = args[0], "", false
		}
		args = args[1:]
		switch {
		case slices.Contains(dockerPlain, key):
			c.keep(key, "")
			continue
		case key == "--":
			continue
		case !slices.Contains(dockerTakes, key):
			return Package{}, fmt.Sprintf("%s run is given the option %s, which is not known here", program, key)
		case !joined && len(args) == 0:
			return Package{}, fmt.Sprintf("%s run needs a value after %s", program, key)
		case !joined:
			value, args = args[0], args[1:]
		}
		c.option(key, value)
		c.keep(key, value)
	}
	if len(args) == 0 {
		return Package{}, program + " run is given no image"
	}
	c.Image, p.Name, p.Args = args[0], args[0], slices.Clone(args[1:])
	p.Specs = []string{p.Name}
	return p, ""
}

func (c *Container) option(key, value string) {
	switch key {
	case "-e", "--env":
		name, _, _ := strings.Cut(value, "=")
		c.Env = append(c.Env, name)
	case "-v", "--volume":
		if parts := strings.SplitN(value, ":", 3); len(parts) > 1 {
			m := parts[0] + " -> " + parts[1]
			if len(parts) == 3 && strings.Contains(parts[2], "ro") {
				m += ", read-only"
			}
			c.Mounts = append(c.Mounts, m)
		}
	case "--mount":
		var source, target, more string
		for part := range strings.SplitSeq(value, ",") {
			switch k, v, _ := strings.Cut(part, "="); k {
			case "src", "source":
				source = v
			case "dst", "target", "destination":
				target = v
			case "ro", "readonly":
				more = ", read-only"
			}
		}
		c.Mounts = append(c.Mounts, source+" -> "+target+more)
	case "--network", "--net":
		c.Network = value
	case "--entrypoint":
		c.Entrypoint = value
	}
}

// Explain says on one line what a container would be given.
func (c *Container) Explain() string {
	parts := []string{"image " + c.Image}
	if len(c.Env) > 0 {
		parts = append(parts, "env "+strings.Join(c.Env, ", "))
	}
	if len(c.Mounts) > 0 {
		parts = append(parts, "mounts "+strings.Join(c.Mounts, "; "))
	}
	if c.Network != "" {
		parts = append(parts, "network "+c.Network)
	}
	return strings.Join(parts, "; ")
}
