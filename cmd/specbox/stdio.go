package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/specbox/specbox/control"
)

func (a *app) stdioCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "stdio [-f FILE]",
		Short: "Serve one agent over standard input and output",
		Long: `Serve one agent over standard input and output, for clients that start a
command. With -f FILE the servers of FILE run under this process and end with
it. Without it, messages are passed to the specbox that runs on the state
folder, or to the MCP endpoint --url; where that wants a token, it is taken from
the environment variable SPECBOX_TOKEN.

Standard output carries nothing but MCP.`,
		Example: `  specbox stdio -f mcp.json
  specbox stdio                  # to the running specbox
  specbox stdio --server git     # only its server git`,
		Args: exactly(),
	}
	o := opening{}
	file := fileFlag(cmd)
	cmd.Flags().StringVar(&o.trace, "trace", "", "with -f: write events as JSON lines to this `file`")
	cmd.Flags().BoolVar(&o.offline, "offline", false, "with -f: install nothing")
	url := cmd.Flags().String("url", "", "`address` of an MCP endpoint, e.g. http://127.0.0.1:8484/mcp")
	server := cmd.Flags().String("server", "", "only this `server` of the running specbox")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx := cmd.Context()
		if n := cmd.Flags(); n.Changed("file") && n.Changed("url") || n.Changed("server") && (n.Changed("file") || n.Changed("url")) {
			return &usageError{"only one of --file, --url and --server can be given", "see specbox stdio --help"}
		}
		if o.file = *file; o.file != "" {
			r := &reporter{w: a.errs, phases: make(map[string]*phase)} // no bars: a client reads this
			h, err := a.open(r, o)
			if err != nil {
				return err
			}
			for _, w := range h.Warnings() {
				a.warn(r, w)
			}
			return h.close(h.ServeStdio(ctx, a.in, a.out))
		}
		log, err := a.logger(a.errs)
		if err != nil {
			return err
		}
		to := *url
		if to == "" {
			if to, err = a.endpoint(cmd, *server); err != nil {
				return err
			}
		}
		err = newBridge(to, os.Getenv("SPECBOX_TOKEN"), log).run(ctx, a.in, a.out)
		if ctx.Err() != nil {
			return nil // it was to end so
		}
		return err
	}
	return cmd
}

// endpoint returns where the running specbox serves server, or all of them.
func (a *app) endpoint(cmd *cobra.Command, server string) (string, error) {
	c, err := a.client()
	if err != nil {
		return "", err
	}
	health, err := c.Health(cmd.Context())
	if err != nil {
		return "", err
	}
	if health.Tokens && os.Getenv("SPECBOX_TOKEN") == "" {
		return "", &control.Error{
			Message: fmt.Sprintf("the specbox at %s wants a token", health.URL),
			Hint:    "set SPECBOX_TOKEN in the environment of this command",
		}
	}
	if server == "" {
		return health.URL, nil
	}
	return strings.TrimSuffix(health.URL, "/") + "/" + server, nil
}
