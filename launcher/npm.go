package launcher

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/specbox/specbox/config"
)

// npm installs packages from the npm registry into a folder with a lock file.
//
// Install scripts run as this user, outside of any sandbox and with the
// network. Few packages need them (native modules without a prebuilt binary),
// so that they do not run unless the server's install_scripts says so; which
// ones were left out is noted.
func (i *installer) npm(p Package, m *manifest) error {
	// Its own package.json keeps npm from looking for one further up. --prefix
	// would do that too, and hide the machine's npmrc: registry, proxy, CA.
	if err := os.WriteFile(filepath.Join(i.dir, "package.json"), []byte("{\"private\": true}\n"), 0o644); err != nil {
		return err
	}
	args := []string{"install", "--save-exact", "--omit=dev", "--no-audit", "--no-fund", "--no-update-notifier", "--no-progress", "--loglevel=error"}
	if p.Scripts {
		args = append(args, "--ignore-scripts=false", "--dangerously-allow-all-scripts")
	} else {
		args = append(args, "--ignore-scripts")
	}
	if _, err := i.run(nil, "npm", append(append(args, "--"), p.Specs...)...); err != nil {
		return err
	}
	var meta npmMeta
	if err := meta.read(i.dir, p.Name); err != nil {
		return err
	}
	m.Version = meta.Version
	if !p.Scripts {
		if left := withScripts(i.dir); len(left) > 0 {
			m.Notes = append(m.Notes, fmt.Sprintf("the install scripts of %s were not run; if the server does not start, add install_scripts: true to it", strings.Join(left, ", ")))
		}
	}
	return nil
}

// withScripts returns the packages that have install scripts.
func withScripts(dir string) []string {
	data, err := os.ReadFile(filepath.Join(dir, "package-lock.json"))
	if err != nil {
		return nil
	}
	var lock struct {
		Packages map[string]struct {
			HasInstallScript bool `json:"hasInstallScript"`
		} `json:"packages"`
	}
	if json.Unmarshal(data, &lock) != nil {
		return nil
	}
	var left []string
	for path, p := range lock.Packages {
		if _, err := os.Stat(filepath.Join(dir, path)); p.HasInstallScript && err == nil {
			left = append(left, path[strings.LastIndex(path, "node_modules/")+len("node_modules/"):])
		}
	}
	slices.Sort(left)
	return slices.Compact(left)
}

// npmMeta is what package.json says about a package.
type npmMeta struct {
	Version string `json:"version"`
	Bin     any    `json:"bin"` // a path, or paths by name
	dir     string
}

func (m *npmMeta) read(root, name string) error {
	m.dir = filepath.Join(root, "node_modules", filepath.FromSlash(name))
	data, err := os.ReadFile(filepath.Join(m.dir, "package.json"))
	if err != nil {
		return fmt.Errorf("what npm installed has no package %s: %w", name, err)
	}
	if err := json.Unmarshal(data, m); err != nil {
		return fmt.Errorf("package.json of %s: %w", name, err)
	}
	return nil
}

// programs returns the paths of a package's programs by name.
func (m *npmMeta) programs(name string) map[string]string {
	programs := map[string]string{}
	add := func(name, path string) {
		p := filepath.Join(m.dir, filepath.FromSlash(path))
		if strings.HasPrefix(p, m.dir+string(filepath.Separator)) {
			programs[name] = p
		}
	}
	switch bin := m.Bin.(type) {
	case string:
		add(name[strings.LastIndexByte(name, '/')+1:], bin)
	case map[string]any:
		for k, v := range bin {
			if path, ok := v.(string); ok {
				add(k, path)
			}
		}
	}
	if len(programs) == 0 { // packages of one binary, made to be depended on
		files, _ := os.ReadDir(filepath.Join(m.dir, "bin"))
		for _, f := range files {
			if info, err := f.Info(); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
				add(f.Name(), filepath.Join("bin", f.Name()))
			}
		}
	}
	return programs
}

// npmProgram finds the program of an installed package, as npx does.
func npmProgram(p Package, dir string) (*Program, error) {
	var path string
	var names []string
	for i, spec := range p.Specs { // the first that has it
		name, _, _ := splitNPM(spec)
		var meta npmMeta
		if err := meta.read(dir, name); err != nil {
			return nil, err
		}
		programs := meta.programs(name)
		names = append(names, slices.Sorted(maps.Keys(programs))...)
		switch paths := slices.Compact(slices.Sorted(maps.Values(programs))); {
		case path != "":
		case p.Program != "":
			path = programs[p.Program]
		case i > 0:
		case len(paths) == 1:
			path = paths[0]
		default:
			path = programs[name[strings.LastIndexByte(name, '/')+1:]]
		}
	}
	if path == "" {
		return nil, noProgram(p, names, "npx -p "+p.Name+" PROGRAM")
	}
	argv, mounts, err := fileArgv(path)
	if err != nil {
		return nil, err
	}
	return &Program{Argv: argv, Mounts: append(readOnly(dir), mounts...)}, nil
}

func noProgram(p Package, names []string, how string) error {
	switch {
	case len(names) == 0:
		return errors.New("it has no program to run")
	case p.Program != "":
		return fmt.Errorf("it has no program %q, but %s", p.Program, strings.Join(names, ", "))
	}
	return fmt.Errorf("it has several programs: %s: write %s", strings.Join(names, ", "), how)
}

// fileArgv says how to run a file: scripts for Node by node itself, everything
// else as the kernel does. Mounts are what the interpreter needs.
func fileArgv(path string) ([]string, []config.Mount, error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, nil, fmt.Errorf("its program is missing: %w", err)
	}
	interpreter, flags := shebang(real)
	ext := filepath.Ext(real)
	if interpreter == "" && (ext == ".js" || ext == ".mjs" || ext == ".cjs") {
		interpreter = "node"
	}
	switch interpreter {
	case "node", "nodejs", "bun", "deno":
		if interpreter == "nodejs" {
			interpreter = "node"
		}
		bin, err := exec.LookPath(interpreter)
		if err != nil {
			return nil, nil, fmt.Errorf("%s is not installed: %s", interpreter, howToGet(interpreter))
		}
		return append(append([]string{bin}, flags...), real), prefixOf(bin), nil
	}
	return []string{real}, nil, nil
}

// shebang returns the name of the interpreter that a script asks for, with its
// flags; "" if it is no script.
func shebang(path string) (string, []string) {
	f, err := os.Open(path)
	if err != nil {
		return "", nil
	}
	defer f.Close()
	head := make([]byte, 512)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return "", nil
	}
	line, _, _ := bytes.Cut(head[:n], []byte("\n"))
	line, ok := bytes.CutPrefix(line, []byte("#!"))
	words := strings.Fields(string(line))
	if !ok || len(words) == 0 {
		return "", nil
	}
	if filepath.Base(words[0]) == "env" {
		words = words[1:]
		for len(words) > 0 && (words[0] == "-S" || strings.Contains(words[0], "=")) {
			words = words[1:]
		}
		if len(words) == 0 {
			return "", nil
		}
	}
	return filepath.Base(words[0]), words[1:]
}
