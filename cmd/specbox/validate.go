package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/control"
	"github.com/specbox/specbox/launcher"
)

// A report is what `specbox validate --json` prints.
type report struct {
	File    string  `json:"file"`
	OK      bool    `json:"ok"` // there are no errors
	Faults  []fault `json:"faults"`
	Servers []plan  `json:"servers"`

	faults []config.Fault // the same, for people
}

// A fault is a [config.Fault] as JSON has it.
type fault struct {
	File       string          `json:"file"`
	Line       int             `json:"line,omitempty"`
	Severity   config.Severity `json:"severity"`
	Server     string          `json:"server,omitempty"`
	Message    string          `json:"message"`
	Suggestion string          `json:"suggestion,omitempty"`
}

// A plan is what would become of one server.
type plan struct {
	control.Server
	Mounts    []string `json:"mounts,omitempty"`
	Installed *bool    `json:"installed,omitempty"` // nil where there is no package
	KeepState bool     `json:"keep_state,omitempty"`
	Notes     []string `json:"notes,omitempty"`
	Error     string   `json:"error,omitempty"` // why it cannot run
}

func (a *app) validateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "validate FILE",
		Short: "Check a configuration and tell what would run",
		Long: `Check a configuration: every fault is told with its line and what to do, and for
each server what would run, where, and with what access. Nothing is started or
installed. The exit status is 1 if there are errors.`,
		Example: `  specbox validate mcp.json
  specbox validate ~/.config/Claude/claude_desktop_config.json --json`,
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
	}
	file := fileFlag(cmd)
	asJSON := jsonFlag(cmd)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if *file != "" {
			return exactly()(cmd, args)
		}
		return exactly("the FILE with the configuration")(cmd, args)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		name := *file
		if name == "" {
			name = args[0]
		}
		dir, err := a.folder()
		if err != nil {
			return err
		}
		rep := examine(name, dir)
		if *asJSON {
			err = a.printJSON(rep)
		} else {
			a.explain(rep)
		}
		if err == nil && !rep.OK {
			err = errSaid
		}
		return err
	}
	return cmd
}

// examine reads the configuration file and plans its servers with the packages
// that are installed in the state folder dir.
func examine(file, dir string) report {
	c, faults := config.Load(file, os.LookupEnv)
	rep := report{File: file, OK: true, Faults: []fault{}, Servers: []plan{}, faults: faults}
	for _, f := range faults {
		rep.OK = rep.OK && f.Severity != config.Error
		rep.Faults = append(rep.Faults, fault{f.Place.File, f.Place.Line, f.Severity, f.Server, f.Message, f.Suggestion})
	}
	if c == nil {
		return rep
	}
	packages := launcher.New(filepath.Join(dir, "packages"))
	for _, s := range c.Servers {
		p, err := planOf(s, packages)
		if err != nil {
			f := config.Fault{Place: s.Place, Severity: config.Error, Server: s.Name, Message: err.Error()}
			rep.OK, rep.faults = false, append(rep.faults, f)
			rep.Faults = append(rep.Faults, fault{File: f.Place.File, Line: f.Place.Line, Severity: f.Severity, Server: f.Server, Message: f.Message})
		}
		rep.Servers = append(rep.Servers, p)
	}
	return rep
}

// planOf tells what would become of s. Its error is a fault that only shows
// when what is installed is looked at.
func planOf(s *config.Server, packages *launcher.Store) (plan, error) {
	p := plan{Server: control.Server{
		Name: s.Name, Runs: s.Runs(), Isolation: string(s.Isolation), Network: s.Network.String(), Scope: string(s.Scope), Disabled: s.Disabled,
	}}
	mounts := s.Redacted().Mounts
	pkg, recognised := launcher.For(s)
	if recognised {
		p.Package = pkg.String()
	}
	if s.Image != "" {
		p.Package = string(launcher.Docker) + ":" + s.Image
	}
	if pkg.Container != nil {
		p.Notes = append(p.Notes, pkg.Container.Explain())
	}
	var fault error
	switch {
	case s.Unready != "":
		p.Error = s.Unready
	case s.URL != "" || s.Disabled:
	default:
		program, err := launcher.Resolve(s, packages)
		installed := err == nil
		if recognised && pkg.Container == nil {
			p.Installed = &installed
		}
		if err != nil {
			if !errors.Is(err, launcher.ErrNotInstalled) {
				fault, p.Error = err, err.Error()
			}
			break
		}
		p.Version, p.KeepState = program.Version, program.KeepState || s.KeepState
		p.Notes = append(p.Notes, program.Notes...)
		mounts = append(slices.Clone(mounts), program.Mounts...)
	}
	for _, m := range mounts {
		p.Mounts = append(p.Mounts, m.String())
	}
	return p, fault
}

// explain prints rep for people.
func (a *app) explain(rep report) {
	count := make(map[config.Severity]int)
	for _, f := range rep.faults {
		count[f.Severity]++
		fmt.Fprintln(a.out, a.faultText(f))
	}
	if len(rep.Faults) > 0 {
		fmt.Fprintln(a.out)
	}
	for _, p := range rep.Servers {
		a.explainServer(p)
	}
	fmt.Fprintf(a.out, "%s: %s, %s, %s\n", rep.File, plural(len(rep.Servers), "server"), plural(count[config.Error], "error"), plural(count[config.Warning], "warning"))
}

func (a *app) explainServer(p plan) {
	fmt.Fprintln(a.out, p.Name)
	defer fmt.Fprintln(a.out)
	say := func(what, text string) {
		if text != "" {
			fmt.Fprintf(a.out, "  %-10s %s\n", what, plain(text))
		}
	}
	say("runs", p.Runs)
	for _, n := range p.Notes {
		say("note", n)
	}
	if p.Disabled {
		say("disabled", "it is not served")
		return
	}
	if p.Error != "" {
		say("error", "it cannot run: "+p.Error)
		return
	}
	switch {
	case p.Installed == nil:
	case *p.Installed:
		say("package", fmt.Sprintf("%s, installed, version %s", p.Package, p.Version))
	default:
		say("package", p.Package+", not installed yet: serve installs it, or specbox servers update")
	}
	say("isolation", isolationText(p.Isolation))
	if p.Isolation != string(config.Remote) {
		say("network", p.Network)
	}
	say("scope", scopeText(p.Scope))
	say("mounts", strings.Join(p.Mounts, ", "))
	if p.KeepState {
		say("state", "HOME is kept when the sandbox goes")
	}
}

func isolationText(s string) string {
	switch config.Isolation(s) {
	case config.Process:
		return "process: a bubblewrap sandbox of its own"
	case config.Docker:
		return "docker: a container of its own"
	case config.None:
		return "NONE: it can read and change whatever you can"
	case config.Remote:
		return "remote: it runs elsewhere"
	}
	return s
}

func scopeText(s string) string {
	switch config.Scope(s) {
	case config.PerSession:
		return "session: each session has a sandbox of its own"
	case config.PerTenant:
		return "tenant: the sessions of a tenant share a sandbox"
	case config.Shared:
		return "shared: all share a sandbox"
	}
	return s
}
