package launcher

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/specbox/specbox/config"
)

// systemDirs are in every sandbox.
var systemDirs = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store"}

// ownDirs are a sandbox's own: what the host has there is never shown.
var ownDirs = []string{"/proc", "/sys", "/dev"}

// broadDirs hold more than one server's business.
var broadDirs = []string{"/", "/home", "/root", "/etc", "/var", "/run", "/var/run", "/tmp", "/var/tmp", "/opt", "/srv", "/mnt", "/media", "/boot", "/Users"}

// keyDirs in a HOME hold keys, all that is in them.
var keyDirs = []string{".ssh", ".gnupg", ".aws", ".kube", ".docker", ".azure", ".password-store", filepath.Join(".config", "gcloud")}

// within reports whether path is dir or below it.
func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

func withinAny(path string, dirs []string) bool {
	return slices.ContainsFunc(dirs, func(d string) bool { return within(path, d) })
}

// tooBroad says why a path is not shown to a server unless its configuration
// mounts it; "" if it may be.
func tooBroad(path string) string {
	home, _ := os.UserHomeDir()
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		real = path
	}
	for _, p := range []string{path, real} {
		switch {
		case slices.Contains(broadDirs, p), home != "" && within(home, p):
			return "it holds more than one server's business"
		case home != "" && home != "/" && slices.ContainsFunc(keyDirs, func(d string) bool { return within(p, filepath.Join(home, d)) }),
			home != "" && p == filepath.Join(home, ".config"):
			return "it holds keys"
		}
	}
	return ""
}

// prefixOf returns what an interpreter needs to be seen of where it is
// installed: nothing if that is in every sandbox.
func prefixOf(bin string) []config.Mount {
	real, err := filepath.EvalSymlinks(bin)
	if err != nil {
		return nil
	}
	var paths []string
	for _, p := range []string{bin, real} {
		dir := filepath.Dir(p)
		if withinAny(p, systemDirs) {
			continue
		}
		prefix := dir
		if base := filepath.Base(dir); base == "bin" || base == "shims" {
			prefix = filepath.Dir(dir)
		}
		switch {
		case tooBroad(prefix) == "" && filepath.Base(prefix) != ".local":
			paths = append(paths, prefix)
		default:
			paths = append(paths, p)
		}
	}
	return readOnly(slices.Compact(paths)...)
}

// markers are files that the root of a project has.
var markers = []string{"package.json", "pyproject.toml", "go.mod", "Cargo.toml", "Gemfile", "deno.json", "pom.xml", ".git"}

// projectOf returns the nearest folder around a file that is a project: the
// folder of the file if none is, "" if that may not be shown.
func projectOf(file string) string {
	for dir := filepath.Dir(file); tooBroad(dir) == ""; dir = filepath.Dir(dir) {
		for _, m := range markers {
			if _, err := os.Lstat(filepath.Join(dir, m)); err == nil {
				return dir
			}
		}
	}
	if dir := filepath.Dir(file); tooBroad(dir) == "" {
		return dir
	}
	return ""
}

// A mounter collects what a server needs to see besides its own mounts.
type mounter struct {
	own    []config.Mount // of the configuration: they win
	mounts []config.Mount
	notes  []string
}

// covered reports whether the server sees a path already.
func (m *mounter) covered(path string) bool {
	if withinAny(path, systemDirs) || withinAny(path, ownDirs) {
		return true
	}
	for _, o := range m.own {
		if o.At == path || o.At == "" && within(path, o.Path) || o.At != "" && within(path, o.At) {
			return true
		}
	}
	return slices.ContainsFunc(m.mounts, func(o config.Mount) bool { return within(path, o.Path) })
}

// show mounts what the server's own lines name: where is how to call it to
// people, shown the path as the configuration has it, "" if it is not to be
// printed.
func (m *mounter) show(path, where, shown string) {
	if m.covered(path) {
		return
	}
	writable := "PATH:rw"
	if shown != "" {
		where += " " + shown
		writable = shown + ":rw"
	}
	if why := tooBroad(path); why != "" {
		m.notes = append(m.notes, fmt.Sprintf("%s is not mounted by itself, because %s; add it to mounts if the server needs it", where, why))
		return
	}
	m.mounts = append(m.mounts, config.Mount{Path: path})
	m.notes = append(m.notes, fmt.Sprintf("%s is mounted read-only; add mounts: [%q] to let the server write", where, writable))
}

// need mounts what a program cannot do without.
func (m *mounter) need(paths ...string) {
	for _, p := range paths {
		if p != "" && !m.covered(p) && tooBroad(p) == "" {
			m.mounts = append(m.mounts, config.Mount{Path: p})
		}
	}
}

// existing returns the absolute path that a word is, if there is such a file or
// folder. Sockets and devices are none.
func existing(word string) (string, bool) {
	if !filepath.IsAbs(word) {
		return "", false
	}
	path := filepath.Clean(word)
	info, err := os.Stat(path)
	return path, err == nil && (info.IsDir() || info.Mode().IsRegular())
}

// codeFiles are files that are run, so that what lies around them is needed.
var codeFiles = []string{".js", ".mjs", ".cjs", ".ts", ".mts", ".tsx", ".py", ".rb", ".php", ".pl", ".sh", ".lua", ".jar", ".ex", ".exs"}

func isCode(path string) bool { return slices.Contains(codeFiles, filepath.Ext(path)) }
