package launcher

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/specbox/specbox/config"
)

// Resolve says how to run a local server: the installed program of the package
// that its line launches, the container that it is to be, or the line as written.
// The error is [ErrNotInstalled] if the package has to be installed first, and
// else says what is missing on this machine. Whether an image is there is not
// looked at.
//
// What the line names of the host is shown to the server read-only, and noted:
// the project around a script, and every argument, env value and dir that is an
// absolute path of an existing file or folder. A mount of the configuration
// wins over these. Without isolation nothing is mounted. Who has an error of it
// knows which server it is about.
func Resolve(s *config.Server, store *Store) (*Program, error) {
	p, why := recognise(s.Command, s.Args)
	p.Scripts = s.InstallScripts
	var out *Program
	var err error
	args := 0 // where in s.Args the program's arguments begin
	switch {
	case s.Isolation == config.Docker && s.Image != "":
		return ofImage(s), nil
	case s.Isolation == config.Docker && p.Kind == Docker && why == "":
		return p.Container.program(s, p.Args), nil
	case s.Isolation == config.Docker:
		return nil, fmt.Errorf("%s: correct the line, or write image: and what else it says; isolation: none runs it as it is", cmp.Or(why, "its command is no docker run line"))
	case p.Kind != "" && p.Kind != Docker && why == "":
		out, err = store.Installed(p)
		args = len(s.Args) - len(p.Args)
	default:
		out, err = asWritten(s)
	}
	if err != nil {
		return nil, err
	}
	if why != "" {
		out.Notes = append(out.Notes, fmt.Sprintf("it runs as written, because %s; what it downloads, it downloads at every start, which needs network: all", why))
	}
	if s.Isolation == config.None {
		out.Mounts = nil
	} else {
		mountNamed(s, out, args)
	}
	if p.Kind != "" && why == "" {
		known[string(p.Kind)+":"+p.Name].apply(out, s, p.Name)
	}
	return out, nil
}

// asWritten looks a command up.
func asWritten(s *config.Server) (*Program, error) {
	shown := s.Redacted()
	command, args, name := s.Command, s.Args, shown.Command
	if programName(command) == "cmd" && len(args) > 1 && strings.EqualFold(args[0], "/c") {
		command, args, name = args[1], args[2:], shown.Args[1]
	}
	path, err := lookUp(command, s.Env)
	if err != nil {
		return nil, fmt.Errorf("command %s %w", name, err)
	}
	return &Program{Argv: append([]string{path}, args...)}, nil
}

// lookUp finds a program as a shell with the server's PATH would.
func lookUp(command string, env map[string]string) (string, error) {
	if strings.Contains(command, "/") {
		info, err := os.Stat(command)
		switch {
		case err != nil:
			return "", fmt.Errorf("is not there: %s", howToGet(command))
		case info.IsDir():
			return "", errors.New("is a folder: name the file to run")
		case info.Mode()&0o111 == 0:
			return "", errors.New("is not executable: chmod +x it, or write its interpreter before it")
		}
		return unshim(command), nil
	}
	if search, ok := env["PATH"]; ok {
		for _, dir := range filepath.SplitList(search) {
			p := filepath.Join(dir, command)
			if info, err := os.Stat(p); filepath.IsAbs(p) && err == nil && !info.IsDir() && info.Mode()&0o111 != 0 {
				return unshim(p), nil
			}
		}
		return "", errors.New("is not in the PATH of its env: write its whole path")
	}
	path, err := exec.LookPath(command)
	if err != nil {
		return "", fmt.Errorf("is not in PATH: %s", howToGet(command))
	}
	return unshim(path), nil
}

// unshim returns what a pyenv shim would run. Shims are scripts that search at
// every start, and need all of pyenv for it.
func unshim(path string) string {
	dir, name := filepath.Split(path)
	root, ok := strings.CutSuffix(filepath.Clean(dir), "/shims")
	if !ok {
		return path
	}
	versions := os.Getenv("PYENV_VERSION")
	if versions == "" {
		data, err := os.ReadFile(filepath.Join(root, "version"))
		if err != nil {
			return path
		}
		versions = string(data)
	}
	for v := range strings.FieldsFuncSeq(versions, func(r rune) bool { return r == ':' || r == '\n' || r == ' ' }) {
		if p := filepath.Join(root, "versions", v, "bin", name); v != "system" {
			if info, err := os.Stat(p); err == nil && !info.IsDir() {
				return p
			}
		}
	}
	return path
}

// mountNamed adds what the server's line names: the program's surroundings,
// dir, and what arguments and env name. first is where in s.Args the program's
// own arguments begin.
func mountNamed(s *config.Server, out *Program, first int) {
	m := &mounter{own: s.Mounts, mounts: out.Mounts}
	shown := s.Redacted() // as the file has it
	m.program(out.Argv[0])

	// The project is found before the folder in it that dir may be.
	for i, arg := range s.Args[min(first, len(s.Args)):] {
		word := arg
		if s.Dir != "" && !filepath.IsAbs(word) && isCode(word) {
			word = filepath.Join(s.Dir, word)
		}
		if path, ok := existing(word); ok && isCode(path) && !m.covered(path) {
			if project := projectOf(path); project != "" {
				m.need(project)
				m.notes = append(m.notes, fmt.Sprintf("the folder around args[%d] %s is mounted read-only", first+i, shown.Args[first+i]))
			} else {
				m.need(path)
			}
		}
	}
	if path, ok := existing(s.Dir); ok {
		m.show(path, "dir", shown.Dir)
	}
	for i, arg := range s.Args[min(first, len(s.Args)):] {
		value := arg
		if flag, after, ok := strings.Cut(arg, "="); ok && strings.HasPrefix(flag, "-") {
			value = after
		}
		if path, ok := existing(value); ok {
			print := shown.Args[first+i]
			if flag, after, ok := strings.Cut(print, "="); ok && strings.HasPrefix(flag, "-") {
				print = after
			}
			m.show(path, fmt.Sprintf("args[%d]", first+i), print)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(s.Env)) {
		if path, ok := existing(s.Env[k]); ok && k != "PATH" && k != "HOME" {
			m.show(path, "what env "+k+" names", "")
		}
	}
	out.Mounts, out.Notes = m.mounts, append(out.Notes, m.notes...)
}

// program mounts what lies around a program that is not in every sandbox.
func (m *mounter) program(path string) {
	if withinAny(path, systemDirs) {
		return
	}
	name := programName(path)
	venv := filepath.Dir(filepath.Dir(path))
	_, err := os.Stat(filepath.Join(venv, "pyvenv.cfg"))
	switch {
	case err == nil: // an environment, and often the project that it is of
		if project := projectOf(filepath.Join(venv, "bin")); project != "" && project != venv {
			m.need(project)
		}
		m.need(venv)
		for _, p := range prefixOf(filepath.Join(venv, "bin", "python")) {
			m.need(p.Path)
		}
	case strings.HasPrefix(name, "python"), name == "node", name == "bun", name == "deno", name == "ruby", name == "uv":
		for _, p := range prefixOf(path) {
			m.need(p.Path)
		}
	default:
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			return
		}
		if before, _, ok := strings.Cut(real, "/node_modules/"); ok {
			m.need(before + "/node_modules")
			return
		}
		for _, p := range []string{path, real} {
			if dir := filepath.Dir(p); filepath.Base(dir) == "bin" { // shared with strangers
				m.need(p)
			} else {
				m.need(projectOf(p))
			}
		}
	}
}
