// Package launcher turns what people write about a local server into something
// that runs directly.
//
// Configurations say "npx -y PACKAGE" or "uvx PACKAGE". Taken literally that
// asks a registry at every start and needs the network inside the sandbox. This
// package recognises such lines ([Recognise]), installs the package once into a
// folder of its own ([Store.Install]), and says how to run its program from
// there, offline ([Resolve]). What is not recognised runs as written.
//
// Its laws:
//
//   - Resolving starts nothing, reaches no network and changes nothing.
//   - A version, once installed, does not change: the folder of a running
//     program stays as it is, and [Store.Update] makes a new one.
//   - What is half installed is never run. Several processes may share a store.
//   - Packages run no code of their own while they are installed, unless that
//     was asked for.
//   - No folder that holds more than a server's business is shown to it by
//     itself: not /, not a HOME, not /etc.
package launcher

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/specbox/specbox/config"
)

// A Kind is where a package comes from.
type Kind string

const (
	NPM    Kind = "npm"    // the npm registry: npx, npm exec, pnpm dlx, yarn dlx, bunx
	PyPI   Kind = "pypi"   // the Python package index: uvx, uv tool run, pipx run
	Docker Kind = "docker" // an image: docker run and the like, which is run but not installed
)

// A Package is what a launcher's command line asks for.
type Package struct {
	Kind      Kind
	Name      string   // "@scope/name", "mcp-server-git", or an image
	Asked     string   // version, range or tag; "" means the newest
	Specs     []string // all that is to be installed, as the installer writes it; the package itself first
	Python    string   // version of Python that is asked for; "" means any
	Program   string   // which of its programs; "" means the only one, or that of its name
	Args      []string // of the program
	Scripts   bool     // it may run code of its own while it is installed
	Container *Container
}

// ErrNotInstalled says that a package is recognised, but not in the store.
var ErrNotInstalled = errors.New("not installed yet")

// ErrContainer says that a package is an image, which no [Store] holds.
var ErrContainer = errors.New("images are not installed here, but by the container engine (docker pull)")

// String returns the package as "npm:@scope/name@1.2".
func (p Package) String() string {
	s := string(p.Kind) + ":" + p.Name
	if p.Asked != "" {
		s += "@" + p.Asked
	}
	return s
}

var notFile = regexp.MustCompile(`[^a-z0-9._]+`)

// id names the package's folder: equal for all that can share an installation.
func (p Package) id() string {
	data, err := json.Marshal(struct {
		Kind    Kind
		Specs   []string
		Python  string
		Scripts bool
	}{p.Kind, p.Specs, p.Python, p.Scripts})
	if err != nil {
		panic("launcher: " + err.Error()) // strings always have a JSON form
	}
	sum := sha256.Sum256(data)
	name := strings.Trim(notFile.ReplaceAllString(strings.ToLower(p.Name), "-"), "-.")
	return fmt.Sprintf("%s-%.60s-%s", p.Kind, name, hex.EncodeToString(sum[:5]))
}

// A Program is what runs in a sandbox.
type Program struct {
	Argv    []string          // the first is an absolute path, but of a container
	Mounts  []config.Mount    // what it needs to see besides the server's own mounts, all read-only
	Env     map[string]string // beneath the server's own
	Version string            // of the package; "" if it is none
	Notes   []string          // for people: what was decided for this server, and how to decide otherwise

	// Of a container. Argv are then the arguments of the image's own program, or
	// of Entrypoint, and Mounts may be writable.
	Image      string
	Entrypoint string // "" means the image's own
	User       string
	Dir        string
	Runtime    string
	OwnEnv     bool // Env is all that the server gets

	// KeepState says that the package is of no use without its HOME being kept,
	// and the configuration does not say otherwise.
	KeepState bool
}

// For recognises the launcher of a server. It is [Recognise] with what the
// configuration says about installing.
func For(s *config.Server) (Package, bool) {
	p, ok := Recognise(s.Command, s.Args)
	p.Scripts = s.InstallScripts
	return p, ok
}
