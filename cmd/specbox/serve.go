package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

func (a *app) serveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve -f FILE",
		Short: "Serve the servers of a configuration to agents, over HTTP",
		Long: `Serve all servers of FILE at /mcp, and each at /mcp/NAME. FILE is an mcpServers
JSON as Claude Desktop, Claude Code, Cursor, Gemini and VS Code write it, or
SpecBox's own YAML.

Packages that are named by npx, uvx and the like are installed once, with
network; the sandboxes then run them offline. What the servers offer is read
once, in the background, and served from the stored catalogue from then on. The
first signal to stop takes everything down in order, the second one at once.`,
		Example: `  specbox serve -f mcp.json
  specbox serve -f specbox.yaml --listen 127.0.0.1:9000 --trace trace.jsonl`,
		Args: exactly(),
	}
	file := fileFlag(cmd)
	listen := cmd.Flags().String("listen", "", "`address` to listen on (default that of FILE, else 127.0.0.1:8484)")
	tracing := cmd.Flags().String("trace", "", "write events as JSON lines to this `file`")
	offline := cmd.Flags().Bool("offline", false, "install nothing")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx := cmd.Context()
		r := newReporter(a.errs)
		defer r.close()
		h, err := a.open(r, opening{*file, *listen, *tracing, *offline})
		if err != nil {
			return err
		}
		done := make(chan error, 1)
		go func() { done <- h.Run(ctx) }()
		select {
		case err := <-done:
			return h.close(err)
		case <-h.Ready():
		}
		a.announce(h, r)
		select {
		case err = <-done:
		case <-ctx.Done():
			fmt.Fprintln(r, "stopping; once more stops at once")
			err = <-done
		}
		return h.close(err)
	}
	return cmd
}

// fileFlag adds the flag that names a configuration.
func fileFlag(cmd *cobra.Command) *string {
	file := cmd.Flags().StringP("file", "f", "", "configuration `file`")
	if err := cmd.MarkFlagFilename("file", "json", "yaml", "yml"); err != nil {
		panic(err) // the flag is registered above
	}
	return file
}

// announce says where h listens and how a client gets there.
func (a *app) announce(h *house, r *reporter) {
	for _, w := range h.Warnings() {
		a.warn(r, w)
	}
	health, err := h.Control().Health(context.Background())
	if err != nil {
		a.warn(r, err.Error())
	}
	w := a.out
	if r.bars != nil && isTerminal(w) {
		w = r // the bars would overwrite it
	}
	fmt.Fprintf(w, "specbox %s serves %s at %s\n", thisVersion().Version, plural(health.Servers, "server"), health.URL)
	type entry struct {
		Type    string            `json:"type"`
		URL     string            `json:"url"`
		Headers map[string]string `json:"headers,omitempty"`
	}
	e, header := entry{"http", health.URL, nil}, ""
	if health.Tokens {
		e.Headers = map[string]string{"Authorization": "Bearer TOKEN"}
		header = ` --header "Authorization: Bearer TOKEN"`
	}
	snippet, err := json.Marshal(map[string]map[string]entry{"mcpServers": {"specbox": e}})
	if err == nil {
		fmt.Fprintf(w, "  clients:     %s\n", snippet)
	}
	fmt.Fprintf(w, "  Claude Code: claude mcp add --transport http specbox %s%s\n", health.URL, header)
	metrics := strings.TrimSuffix(health.URL, "/mcp") + "/metrics"
	if h.config.Metrics != "" {
		metrics = "http://" + h.config.Metrics + "/metrics"
	}
	if h.config.Metrics != "" || !health.Tokens {
		fmt.Fprintf(w, "  metrics:     %s\n", metrics)
	}
}
