package launcher

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Recognise tells which package a command line launches: npx, npm exec, pnpm
// dlx, yarn dlx, bunx; uvx, uv tool run, pipx run; docker run. They may have
// folders before them and .exe or .cmd behind, or `cmd /c`. It is false for
// everything else, also for packages that come from elsewhere than a registry
// and for options that change where they come from: those run as written.
func Recognise(command string, args []string) (Package, bool) {
	p, why := recognise(command, args)
	return p, p.Kind != "" && why == ""
}

// recognise also says why a launcher's line is not taken: "" if it is, or if
// it is no launcher at all.
func recognise(command string, args []string) (Package, string) {
	name := programName(command)
	if name == "cmd" && len(args) > 1 && strings.EqualFold(args[0], "/c") {
		name, args = programName(args[1]), args[2:]
	}
	first := func(i int) string {
		if i < len(args) {
			return args[i]
		}
		return ""
	}
	switch {
	case name == "npx", name == "pnpx":
		return npmLine(name, args, npmOptions)
	case name == "npm" && (first(0) == "exec" || first(0) == "x"):
		return npmLine("npm exec", args[1:], npmOptions)
	case name == "pnpm" && first(0) == "dlx", name == "yarn" && first(0) == "dlx":
		return npmLine(name+" dlx", args[1:], npmOptions)
	case name == "bunx":
		return npmLine(name, args, npmOptions)
	case name == "bun" && first(0) == "x":
		return npmLine("bun x", args[1:], npmOptions)
	case name == "uvx":
		return pyLine(name, args, uvOptions)
	case name == "uv" && first(0) == "tool" && first(1) == "run":
		return pyLine("uv tool run", args[2:], uvOptions)
	case name == "pipx" && first(0) == "run":
		return pyLine("pipx run", args[1:], pipxOptions)
	case name == "uv" && slices.Contains(args, "run"):
		return Package{}, "uv run resolves a project at every start"
	case name == "docker", name == "podman", name == "nerdctl":
		return dockerLine(name, args)
	}
	return Package{}, ""
}

// programName returns a program's name without folder and Windows' endings.
func programName(command string) string {
	base := strings.ToLower(command[strings.LastIndexAny(command, `/\`)+1:])
	for _, ext := range []string{".exe", ".cmd", ".bat", ".ps1"} {
		base = strings.TrimSuffix(base, ext)
	}
	return base
}

// options are those of a launcher that are understood. What an option means is
// one of the words below; true in takes says that a value follows.
type options struct {
	takes map[string]string
	plain []string
}

var npmOptions = options{
	takes: map[string]string{"-p": "package", "--package": "package", "--loglevel": "", "--cache": "", "--prefix": ""},
	plain: []string{"-y", "--yes", "-q", "--quiet", "--silent", "-s", "--bun", "--prefer-offline", "--prefer-online", "--offline", "--no-install", "--ignore-existing", "--no-audit", "--no-fund", "--no-update-notifier"},
}

var uvOptions = options{
	takes: map[string]string{"--from": "from", "--with": "with", "-w": "with", "--python": "python", "-p": "python", "--cache-dir": "", "--color": ""},
	plain: []string{"-q", "--quiet", "-v", "--verbose", "-n", "--no-cache", "--refresh", "--isolated", "--offline", "-U", "--upgrade", "--no-progress", "--native-tls", "--system-certs", "--no-config", "--managed-python", "--no-managed-python", "--no-python-downloads"},
}

var pipxOptions = options{
	takes: map[string]string{"--spec": "from", "--with": "with", "--python": "python"},
	plain: []string{"-q", "--quiet", "-v", "--verbose", "--no-cache", "--pypackages"},
}

// scan takes a launcher's own options off a line. It returns what the options
// say, the rest, and whether "--" ended the options.
func (o options) scan(launcher string, args []string) (said map[string][]string, rest []string, why string) {
	said = map[string][]string{}
	for len(args) > 0 {
		arg := args[0]
		if arg == "--" {
			return said, args[1:], ""
		}
		if !strings.HasPrefix(arg, "-") || arg == "-" {
			return said, args, ""
		}
		args = args[1:]
		key, value, joined := strings.Cut(arg, "=")
		meaning, takes := o.takes[key]
		switch {
		case takes && !joined:
			if len(args) == 0 {
				return nil, nil, fmt.Sprintf("%s needs a value after %s", launcher, key)
			}
			value, args = args[0], args[1:]
			fallthrough
		case takes:
			said[meaning] = append(said[meaning], value)
		case slices.Contains(o.plain, key):
		default:
			return nil, nil, fmt.Sprintf("%s is given the option %s, which is not known here", launcher, key)
		}
	}
	return said, nil, ""
}

// npmLine reads: [options] PACKAGE [args], or [options] -p PACKAGE PROGRAM [args].
func npmLine(launcher string, args []string, o options) (Package, string) {
	said, rest, why := o.scan(launcher, args)
	if why != "" {
		return Package{}, why
	}
	if len(rest) == 0 {
		return Package{}, launcher + " is given no package"
	}
	p := Package{Kind: NPM}
	specs := said["package"]
	if len(specs) == 0 {
		specs = rest[:1]
	} else {
		p.Program = rest[0]
	}
	p.Args = slices.Clone(rest[1:])
	if launcher == "npm exec" && len(p.Args) > 0 && p.Args[0] == "--" {
		p.Args = p.Args[1:] // npm's own
	}
	for i, spec := range specs {
		name, asked, ok := splitNPM(spec)
		if !ok {
			return Package{}, fmt.Sprintf("%s is given a package that does not come from the registry", launcher)
		}
		if asked != "" {
			name += "@" + asked
		}
		p.Specs = append(p.Specs, name)
		if i == 0 {
			p.Name, p.Asked = strings.TrimSuffix(name, "@"+asked), asked
			if asked == "" {
				p.Name = name
			}
		}
	}
	return p, ""
}

var npmSpec = regexp.MustCompile(`^((?:@[A-Za-z0-9~][A-Za-z0-9._~-]*/)?[A-Za-z0-9~_][A-Za-z0-9._~-]*)(?:@([A-Za-z0-9.^~<>=|*+ _-]+))?$`)

// splitNPM parts "@scope/name@version". "latest" is what no version means too.
func splitNPM(spec string) (name, asked string, ok bool) {
	m := npmSpec.FindStringSubmatch(spec)
	if m == nil || strings.HasSuffix(m[1], ".tgz") {
		return "", "", false
	}
	if m[2] == "latest" {
		m[2] = ""
	}
	return m[1], m[2], true
}

// pyLine reads: [options] PROGRAM[@version] [args], or with --from PACKAGE.
func pyLine(launcher string, args []string, o options) (Package, string) {
	said, rest, why := o.scan(launcher, args)
	if why != "" {
		return Package{}, why
	}
	if len(rest) == 0 {
		return Package{}, launcher + " is given no program"
	}
	p := Package{Kind: PyPI, Args: slices.Clone(rest[1:])}
	spec := rest[0]
	if from := said["from"]; len(from) > 0 {
		spec, p.Program = from[len(from)-1], rest[0]
		if strings.ContainsAny(p.Program, "/@ ") {
			return Package{}, fmt.Sprintf("%s is given %q, which is no program's name", launcher, p.Program)
		}
	}
	if len(p.Args) > 0 && p.Args[0] == "--" && launcher == "pipx run" {
		p.Args = p.Args[1:]
	}
	name, requirement, asked, ok := splitPyPI(spec)
	if !ok {
		return Package{}, launcher + " is given a package that does not come from the index"
	}
	p.Name, p.Asked, p.Specs = name, asked, []string{requirement}
	for _, with := range said["with"] {
		for w := range strings.SplitSeq(with, ",") {
			_, requirement, _, ok := splitPyPI(strings.TrimSpace(w))
			if !ok {
				return Package{}, launcher + " is given a package that does not come from the index"
			}
			p.Specs = append(p.Specs, requirement)
		}
	}
	if python := said["python"]; len(python) > 0 {
		p.Python = strings.TrimPrefix(strings.TrimPrefix(python[len(python)-1], "python"), "@")
		if !pythonVersion.MatchString(p.Python) {
			return Package{}, launcher + " is given a Python that is no version"
		}
	}
	return p, ""
}

var (
	pythonVersion = regexp.MustCompile(`^3(?:\.[0-9]{1,2}){0,2}$`)
	pySpec        = regexp.MustCompile(`^([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(\[[A-Za-z0-9,._ -]*\])?\s*(?:@([A-Za-z0-9.!+*_-]+)|((?:===|==|~=|!=|<=|>=|<|>)[A-Za-z0-9.!+*_ ,<>=~-]+))?$`)
)

// splitPyPI parts "name[extra]==1.2", and uv's "name@1.2".
func splitPyPI(spec string) (name, requirement, asked string, ok bool) {
	m := pySpec.FindStringSubmatch(spec)
	if m == nil {
		return "", "", "", false
	}
	name, requirement = m[1], m[1]+m[2]
	switch {
	case m[3] == "latest":
	case m[3] != "":
		asked = m[3]
		requirement += "==" + m[3]
	case m[4] != "":
		asked = strings.TrimPrefix(m[4], "==")
		requirement += m[4]
	}
	return name, requirement, asked, true
}
