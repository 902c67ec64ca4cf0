package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/specbox/specbox/control"
)

// Exit statuses.
const (
	statusOK     = 0
	statusFailed = 1
	statusUsage  = 2
)

// An app is one run of the command: its streams and global flags.
type app struct {
	in        io.Reader
	out, errs io.Writer

	state     string
	logLevel  string
	logFormat string
}

// A usageError says that the command was asked for in a wrong way.
type usageError struct {
	message string
	hint    string
}

func (e *usageError) Error() string { return e.message }

// errSaid means that the command failed and has said why.
var errSaid = errors.New("said")

// run runs the command line args and returns the exit status.
func run(ctx context.Context, args []string, in io.Reader, out, errs io.Writer) int {
	a := &app{in: in, out: out, errs: errs}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errs)
	err := root.ExecuteContext(ctx)
	var usage *usageError
	switch {
	case err == nil:
		return statusOK
	case errors.Is(err, errSaid):
		return statusFailed
	case errors.As(err, &usage):
		a.complain(err, usage.hint)
		return statusUsage
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		a.complain(errors.New("interrupted"), "")
		return statusFailed
	}
	hint := ""
	var e *control.Error
	if errors.As(err, &e) {
		hint = e.Hint
	}
	a.complain(err, hint)
	return statusFailed
}

// complain prints an error and what to do about it.
func (a *app) complain(err error, hint string) {
	fmt.Fprintf(a.errs, "%s %s\n", paint(a.errs, red, "specbox:"), printable(err.Error())) // servers write some of it
	if hint != "" {
		fmt.Fprintf(a.errs, "  %s\n", hint)
	}
}

// warn prints what the user must not overlook to w, which leads to a.errs.
func (a *app) warn(w io.Writer, text string) {
	fmt.Fprintf(w, "%s %s\n", paint(a.errs, yellow, "warning:"), text)
}

// root returns the command tree.
func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "specbox",
		Short: "Serve MCP tool servers in sandboxes, on demand",
		Long: `SpecBox stands between an agent and its MCP tool servers. The agent points at
SpecBox and sees the tools of all its servers at once; each server runs in a
sandbox of its own, and only while it is needed.`,
		Example: `  specbox validate mcp.json     # what would run, and what is wrong
  specbox serve -f mcp.json     # serve it at http://127.0.0.1:8484/mcp
  specbox tools call time__get_current_time timezone=UTC`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noSuchCommand,
		RunE:          help,
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &usageError{err.Error(), "see " + cmd.CommandPath() + " --help"}
	})
	flags := root.PersistentFlags()
	flags.StringVar(&a.state, "state", "", "`folder` with all that SpecBox keeps (default $SPECBOX_STATE, else $XDG_STATE_HOME/specbox, else ~/.local/state/specbox)")
	flags.StringVar(&a.logLevel, "log-level", "info", "`level` of the log on standard error: debug, info, warn, error")
	flags.StringVar(&a.logFormat, "log-format", "text", "`format` of the log: text, json")
	for flag, words := range map[string][]string{"log-level": {"debug", "info", "warn", "error"}, "log-format": {"text", "json"}} {
		if err := root.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)); err != nil {
			panic(err) // the flag is registered above
		}
	}
	root.AddCommand(a.commands()...)
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "completion" {
			cmd.Args, cmd.RunE = noSuchCommand, help
		}
	}
	return root
}

// group makes a command that only holds others.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	g := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  noSuchCommand,
		RunE:  help,
	}
	g.AddCommand(commands...)
	return g
}

// help is what a command does that only holds others.
func help(cmd *cobra.Command, _ []string) error { return cmd.Help() }

// noSuchCommand is reached with arguments when none of them is a command.
func noSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	e := &usageError{fmt.Sprintf("there is no command %q", cmd.CommandPath()+" "+args[0]), "see " + cmd.CommandPath() + " --help"}
	cmd.SuggestionsMinimumDistance = min(2, 1+len(args[0])/4)
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		e.hint = "did you mean " + strings.Join(near, " or ") + "?"
	}
	return e
}

// exactly checks that as many arguments were given as names says.
func exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return &usageError{fmt.Sprintf("%s: %s is missing", cmd.CommandPath(), names[len(args)]), "see " + cmd.CommandPath() + " --help"}
		case len(args) > len(names):
			return &usageError{fmt.Sprintf("%s: too many arguments: %s", cmd.CommandPath(), strings.Join(args[len(names):], " ")), "see " + cmd.CommandPath() + " --help"}
		}
		return nil
	}
}

// folder returns the state folder as an absolute path. It need not exist.
func (a *app) folder() (string, error) {
	dir := a.state
	if dir == "" {
		dir = os.Getenv("SPECBOX_STATE")
	}
	if dir == "" {
		if base := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(base) { // others are to be ignored, says its specification
			dir = filepath.Join(base, "specbox")
		}
	}
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", &control.Error{Message: fmt.Sprintf("find the state folder: %v", err), Hint: "name one with --state DIR", Cause: err}
		}
		dir = filepath.Join(home, ".local", "state", "specbox")
	}
	return filepath.Abs(dir)
}

// client returns a client of the specbox that runs on the state folder.
func (a *app) client() (*control.Client, error) {
	dir, err := a.folder()
	if err != nil {
		return nil, err
	}
	return control.Dial(dir), nil
}

// logger returns the log that the global flags describe.
func (a *app) logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(a.logLevel)); err != nil {
		return nil, &usageError{fmt.Sprintf("--log-level %q is no level", a.logLevel), "the levels are debug, info, warn and error"}
	}
	opts := &slog.HandlerOptions{Level: level}
	switch a.logFormat {
	case "text":
		return slog.New(slog.NewTextHandler(w, opts)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	}
	return nil, &usageError{fmt.Sprintf("--log-format %q is no format", a.logFormat), "the formats are text and json"}
}
