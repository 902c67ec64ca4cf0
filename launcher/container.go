package launcher

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/specbox/specbox/config"
)

// What of a docker run line a sandbox has in any case, or needs no word about.
var dockerGiven = []string{
	"-i", "--interactive", "-t", "--tty", "-it", "-ti", "--rm", "--init", "--read-only", "-q", "--quiet", "--no-healthcheck",
	"--name", "-l", "--label", "--pull", "--platform", "--restart", "--log-driver", "--log-opt", "--cidfile", "-a", "--attach",
	"--stop-signal", "--stop-timeout", "-h", "--hostname", "--cap-drop",
}

// What of a docker run line the server's own keys say.
var dockerPolicies = map[string]string{
	"-m": "memory", "--memory": "memory", "--memory-swap": "memory", "--cpus": "cpus", "--pids-limit": "pids",
	"--stop-grace": "stop_grace", "--network": "network", "--net": "network", "--env-file": "env_file",
}

// keep takes down what a sandbox is made of.
func (c *Container) keep(key, value string) {
	switch key {
	case "-e", "--env":
		name, v, given := strings.Cut(value, "=")
		if c.env == nil {
			c.env = map[string]*string{}
		}
		c.env[name] = nil
		if given {
			c.env[name] = &v
		}
	case "-v", "--volume":
		c.volume(value)
	case "--mount":
		c.mount(value)
	case "-u", "--user":
		c.user = value
	case "-w", "--workdir":
		c.dir = value
	case "--runtime":
		c.runtime = value
	case "--entrypoint": // Container.Entrypoint has it
	case "--security-opt":
		if !strings.HasPrefix(value, "no-new-privileges") {
			c.note("%s %s is not given to it", key, value)
		}
	default:
		policy, known := dockerPolicies[key]
		switch {
		case policy == "network" && value == "none":
		case known:
			c.note("%s has no effect: write %s", key, policy+": …")
		case !slices.Contains(dockerGiven, key):
			c.note("%s is not given to it", key)
		}
	}
}

func (c *Container) note(format string, args ...any) {
	c.notes = append(c.notes, fmt.Sprintf("of its docker run line, "+format, args...))
}

// volume takes down "/host:/inside:ro".
func (c *Container) volume(value string) {
	parts := strings.SplitN(value, ":", 3)
	m := config.Mount{Path: parts[0], Write: true}
	if len(parts) > 1 {
		m.At = parts[1]
	}
	if len(parts) == 3 {
		m.Write = !slices.Contains(strings.Split(parts[2], ","), "ro")
	}
	c.bind(m)
}

// mount takes down "type=bind,src=/host,dst=/inside,readonly".
func (c *Container) mount(value string) {
	m := config.Mount{Write: true}
	kind := "volume"
	for part := range strings.SplitSeq(value, ",") {
		switch k, v, _ := strings.Cut(part, "="); k {
		case "type":
			kind = v
		case "src", "source":
			m.Path = v
		case "dst", "target", "destination":
			m.At = v
		case "ro", "readonly":
			m.Write = v == "false"
		}
	}
	if kind != "bind" {
		c.note("the %s at %s is not mounted: only folders and files are", kind, m.At)
		return
	}
	c.bind(m)
}

func (c *Container) bind(m config.Mount) {
	switch {
	case !filepath.IsAbs(m.Path):
		c.note("%s is not mounted: it is no absolute path of this machine", m.Path)
	case m.At == "" || !filepath.IsAbs(m.At):
		c.note("%s is not mounted: it has no absolute path inside", m.Path)
	case strings.HasSuffix(m.Path, ".sock"):
		c.note("%s is not mounted: who reaches such a socket may command the machine; if it must be, write mounts: [%q]", m.Path, m.Path+":"+m.At+":rw")
	default:
		c.binds = append(c.binds, m)
	}
}

// program says how the container of a docker run line runs. As with docker, the
// server gets of its env what the line names.
func (c *Container) program(s *config.Server, args []string) *Program {
	p := &Program{
		Argv: args, Image: c.Image, Entrypoint: c.Entrypoint, User: c.user, Dir: c.dir, Runtime: c.runtime,
		Mounts: c.binds, Env: map[string]string{}, OwnEnv: true, Notes: slices.Clone(c.notes),
	}
	if s.User != "" {
		p.User = s.User
	}
	if s.Runtime != "" {
		p.Runtime = s.Runtime
	}
	for name, value := range c.env {
		if value != nil {
			p.Env[name] = *value
		} else if v, ok := s.Env[name]; ok {
			p.Env[name] = v
		} else if v, ok := os.LookupEnv(name); ok {
			p.Env[name] = v
		} else {
			p.Notes = append(p.Notes, fmt.Sprintf("its docker run line wants %s, which is not set: add it to env", name))
		}
	}
	slices.Sort(p.Notes)
	return p
}

// ofImage says how a server runs that is configured with an image.
func ofImage(s *config.Server) *Program {
	return &Program{Argv: s.Args, Image: s.Image, Entrypoint: s.Command, User: s.User, Runtime: s.Runtime, Dir: s.Dir}
}
