package launcher

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/specbox/specbox/config"
)

const venvName = "venv"

// pypi installs packages from the Python package index into an environment of
// their own, by uv where there is one and by pip otherwise.
//
// A source distribution runs code of its own to build itself, as this user and
// with the network. Wheels alone are taken, unless the server's install_scripts
// says otherwise.
func (i *installer) pypi(p Package, m *manifest) error {
	venv := filepath.Join(i.dir, venvName)
	python := filepath.Join(venv, "bin", "python")
	var wheels []string
	if !p.Scripts {
		wheels = []string{"--only-binary", ":all:"}
	}
	var frozen string
	if _, err := exec.LookPath("uv"); err == nil {
		args := []string{"venv", "--quiet", "--no-project"}
		if p.Python != "" {
			args = append(args, "--python", p.Python)
		}
		if _, err := i.run(nil, "uv", append(args, venv)...); err != nil {
			return err
		}
		args = slices.Concat([]string{"pip", "install", "--quiet", "--compile-bytecode", "--python", python}, wheels, []string{"--"}, p.Specs)
		if _, err := i.run(nil, "uv", args...); err != nil {
			return err
		}
		if frozen, err = i.run(nil, "uv", "pip", "freeze", "--python", python); err != nil {
			return err
		}
	} else {
		base, err := findPython(p.Python)
		if err != nil {
			return err
		}
		if _, err := i.run(nil, base, "-m", "venv", venv); err != nil {
			return err
		}
		args := slices.Concat([]string{"-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check", "--progress-bar", "off"}, wheels, []string{"--"}, p.Specs)
		if _, err := i.run(nil, python, args...); err != nil {
			return err
		}
		if frozen, err = i.run(nil, python, "-m", "pip", "freeze", "--disable-pip-version-check"); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(i.dir, "requirements.lock"), []byte(frozen), 0o644); err != nil {
		return err
	}
	info, err := distInfo(i.dir, p.Name)
	if err != nil {
		return err
	}
	_, m.Version, _ = strings.Cut(strings.TrimSuffix(filepath.Base(info), ".dist-info"), "-")
	return nil
}

// findPython returns the Python to make an environment with.
func findPython(version string) (string, error) {
	name := "python3"
	if version != "" {
		parts := strings.SplitN(version, ".", 3)
		name = "python" + strings.Join(parts[:min(2, len(parts))], ".")
	}
	if path, err := exec.LookPath(name); err == nil {
		return unshim(path), nil
	}
	if version != "" {
		return "", fmt.Errorf("there is no %s here, which was asked for: install it or uv, or leave the version out", name)
	}
	return "", errors.New("there is no python3 here: " + howToGet("python3"))
}

var separators = regexp.MustCompile(`[-_.]+`)

// normalName makes names of Python packages comparable.
func normalName(name string) string {
	return separators.ReplaceAllString(strings.ToLower(name), "_")
}

// distInfo returns the folder with what is known of an installed package.
func distInfo(dir, name string) (string, error) {
	infos, _ := filepath.Glob(filepath.Join(globEscape(dir), venvName, "lib", "python*", "site-packages", "*.dist-info"))
	for _, info := range infos {
		n, _, _ := strings.Cut(filepath.Base(info), "-")
		if normalName(n) == normalName(name) {
			return info, nil
		}
	}
	return "", fmt.Errorf("what was installed has no package %s", name)
}

// pyProgram finds the program of an installed package, as uvx does.
func pyProgram(p Package, dir string) (*Program, error) {
	bin := filepath.Join(dir, venvName, "bin")
	name := cmp.Or(p.Program, p.Name)
	path := filepath.Join(bin, name)
	if info, err := os.Stat(path); err != nil || info.IsDir() {
		scripts := consoleScripts(dir, p.Name)
		if p.Program != "" || len(scripts) != 1 {
			if p.Program == "" && len(scripts) > 0 {
				return nil, fmt.Errorf("it has no program of its own name, but %s: write uvx --from %s PROGRAM", strings.Join(scripts, ", "), p.Name)
			}
			return nil, noProgram(p, scripts, "uvx --from "+p.Name+" PROGRAM")
		}
		path = filepath.Join(bin, scripts[0]) // pipx takes the only one too
	}
	python := filepath.Join(bin, "python")
	argv := []string{path}
	// The kernel cuts long interpreter lines, and pip writes around that; both
	// are avoided by naming the interpreter here.
	if interpreter, _ := shebang(path); strings.HasPrefix(interpreter, "python") || interpreter == "sh" && wrapped(path) {
		argv = []string{python, path}
	}
	return &Program{
		Argv:   argv,
		Mounts: append(readOnly(dir), prefixOf(python)...),
		Env:    map[string]string{"VIRTUAL_ENV": filepath.Dir(bin)},
	}, nil
}

// wrapped reports whether a script for sh is in truth one for Python.
func wrapped(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	r := bufio.NewReader(f)
	if _, err := r.ReadString('\n'); err != nil {
		return false
	}
	second, _ := r.ReadString('\n') // it may be the last line
	return strings.HasPrefix(second, "'''exec'")
}

// consoleScripts returns the names of the programs that a package brings.
func consoleScripts(dir, name string) []string {
	info, err := distInfo(dir, name)
	if err != nil {
		return nil
	}
	data, err := os.ReadFile(filepath.Join(info, "entry_points.txt"))
	if err != nil {
		return nil
	}
	var names []string
	section := ""
	for line := range strings.SplitSeq(string(data), "\n") {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			section = line
		} else if script, _, ok := strings.Cut(line, "="); ok && section == "[console_scripts]" {
			names = append(names, strings.TrimSpace(script))
		}
	}
	return names
}

// readOnly mounts paths where they are.
func readOnly(paths ...string) []config.Mount {
	var mounts []config.Mount
	for _, p := range paths {
		mounts = append(mounts, config.Mount{Path: p})
	}
	return mounts
}
