package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/specbox/specbox"
)

// A diagnosis is what `specbox doctor --json` prints.
type diagnosis struct {
	OK       bool      `json:"ok"` // the default isolation works
	Findings []finding `json:"findings"`
}

// A finding is one thing that was looked at.
type finding struct {
	Name     string `json:"name"`
	OK       bool   `json:"ok"`
	Required bool   `json:"required"` // without it the default isolation cannot work
	Detail   string `json:"detail"`
	Fix      string `json:"fix,omitempty"`
}

// required are the findings of the process backend that the default isolation
// cannot do without.
var required = map[string]bool{"bubblewrap": true, "sandbox": true, "seccomp": true}

func (a *app) doctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Tell what this machine can do, and what to install",
		Long: `Try what SpecBox needs: the sandbox and its limits, and the programs that install
packages. The exit status is 1 if the default isolation cannot work.`,
		Example: `  specbox doctor
  specbox doctor --json`,
		Args: exactly(),
	}
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		dir, err := a.folder()
		if err != nil {
			return err
		}
		d := diagnose(cmd.Context(), dir)
		if *asJSON {
			err = a.printJSON(d)
		} else {
			a.tell(d)
		}
		if err == nil && !d.OK {
			err = errSaid
		}
		return err
	}
	return cmd
}

// diagnose looks at the machine and at the state folder dir.
func diagnose(ctx context.Context, dir string) diagnosis {
	d := diagnosis{OK: true}
	for _, f := range specbox.Check(ctx) {
		d.Findings = append(d.Findings, finding{f.Name, f.OK, required[f.Name], f.Detail, f.Fix})
	}
	d.Findings = append(d.Findings,
		tool(ctx, "node", "to run npm packages: apt-get install nodejs"),
		tool(ctx, "npm", "to install npm packages: apt-get install npm"),
		tool(ctx, "python3", "to install and run Python packages: apt-get install python3-venv"),
		tool(ctx, "uv", "optional, installs Python packages faster: pip install uv"),
		stateFolder(dir))
	for _, f := range d.Findings {
		d.OK = d.OK && (f.OK || !f.Required)
	}
	return d
}

// tool looks for a program and asks for its version.
func tool(ctx context.Context, name, use string) finding {
	path, err := exec.LookPath(name)
	if err != nil {
		return finding{Name: name, Detail: "not in PATH", Fix: use}
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").CombinedOutput()
	said := short(string(out), 80)
	if err != nil {
		return finding{Name: name, Detail: fmt.Sprintf("%s does not run: %v: %s", path, err, said), Fix: use}
	}
	return finding{Name: name, OK: true, Detail: said + " at " + path}
}

// stateFolder tells whether the state folder can be used. It does not make it.
func stateFolder(dir string) finding {
	f := finding{Name: "state folder", OK: true, Detail: dir}
	fi, err := os.Stat(dir)
	switch {
	case os.IsNotExist(err):
		f.Detail += " will be made"
	case err != nil:
		f.OK, f.Detail, f.Fix = false, err.Error(), "choose another folder with --state DIR"
	case !fi.IsDir():
		f.OK, f.Detail, f.Fix = false, dir+" is no folder", "choose another folder with --state DIR"
	case fi.Mode().Perm()&0o077 != 0:
		f.OK, f.Detail, f.Fix = false, fmt.Sprintf("%s is open to other users (mode %04o)", dir, fi.Mode().Perm()), "chmod 700 "+filepath.Clean(dir)
	}
	return f
}

// tell prints d for people.
func (a *app) tell(d diagnosis) {
	longest := 0
	for _, f := range d.Findings {
		longest = max(longest, len(f.Name))
	}
	for _, f := range d.Findings {
		mark := paint(a.out, green, "ok  ")
		switch {
		case !f.OK && f.Required:
			mark = paint(a.out, red, "FAIL")
		case !f.OK:
			mark = paint(a.out, yellow, "none")
		}
		fmt.Fprintf(a.out, "%s  %-*s  %s\n", mark, longest, f.Name, plain(f.Detail))
		if f.Fix != "" {
			fmt.Fprintf(a.out, "      %s  %s\n", strings.Repeat(" ", longest), plain(f.Fix))
		}
	}
	if d.OK {
		fmt.Fprintln(a.out, "\nThe default isolation works on this machine.")
		return
	}
	fmt.Fprintln(a.out, "\nThe default isolation does not work on this machine: see FAIL above.")
}
