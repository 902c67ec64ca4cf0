package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/specbox/specbox/control"
)

func (a *app) toolsCommand() *cobra.Command {
	return group("tools", "List the tools of all servers, or call one",
		a.toolsListCommand(), a.toolsCallCommand())
}

func (a *app) toolsListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the tools of all servers",
		Long:  "List the tools of all servers from the stored catalogue. No server is started.",
		Example: `  specbox tools ls
  specbox tools ls --server git --json | jq -r '.[].name'`,
		Args: exactly(),
	}
	tenant := cmd.Flags().String("tenant", "", "as this `tenant` sees them")
	server := cmd.Flags().String("server", "", "only those of this `server`")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.client()
		if err != nil {
			return err
		}
		tools, err := c.Tools(cmd.Context(), *tenant)
		if err != nil {
			return err
		}
		if *server != "" {
			tools = slices.DeleteFunc(tools, func(t control.Tool) bool { return t.Server != *server })
		}
		if *asJSON {
			return a.printJSON(tools)
		}
		longest := 0
		for _, t := range tools {
			longest = max(longest, len(t.Name)+len(t.Server)+4)
		}
		var rows [][]string
		for _, t := range tools {
			rows = append(rows, []string{t.Name, t.Server, short(t.Description, max(30, width(a.out)-longest))})
		}
		if err := a.table([]string{"NAME", "SERVER", "DESCRIPTION"}, rows); err != nil {
			return err
		}
		if len(rows) == 0 {
			fmt.Fprintln(a.errs, "no tools are known yet; specbox catalog ls tells why")
		}
		return nil
	}
	return cmd
}

func (a *app) toolsCallCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "call NAME [KEY=VALUE | KEY:=JSON]...",
		Short: "Call a tool",
		Long: `Call a tool through the running SpecBox, which starts its server if need be.

A VALUE that is JSON (a number, true, a list) is taken as that, unless the tool
says that KEY is a string. KEY:=JSON is always JSON. The exit status is 1 if the
tool says that it failed.`,
		Example: `  specbox tools call time__get_current_time timezone=Europe/Berlin
  specbox tools call everything__get-sum a=2 b=3
  specbox tools call memory__open_nodes names:='["ann", "bob"]'
  specbox tools call git__git_log --args @arguments.json --json`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return &usageError{"specbox tools call: the NAME of a tool is missing", "specbox tools ls lists them"}
			}
			return nil
		},
		ValidArgsFunction: a.completeTools,
	}
	tenant := cmd.Flags().String("tenant", "", "as this `tenant`")
	whole := cmd.Flags().String("args", "", "arguments as a JSON `object`, or @FILE with one")
	timeout := cmd.Flags().Duration("timeout", 0, "give up after this `duration`, e.g. 30s")
	asJSON := cmd.Flags().Bool("json", false, "print the result as the server wrote it")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		if *timeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeoutCause(ctx, *timeout, fmt.Errorf("no answer within %v", *timeout))
			defer cancel()
		}
		result, err := a.call(ctx, *tenant, args[0], *whole, args[1:])
		if err != nil {
			if cause := context.Cause(ctx); cause != nil && cmd.Context().Err() == nil {
				err = &control.Error{Message: fmt.Sprintf("call %s: %v", args[0], cause), Hint: "give it more time with --timeout, or see specbox logs"}
			}
			return err
		}
		if *asJSON {
			_, err = fmt.Fprintf(a.out, "%s\n", result.Raw)
		} else {
			err = a.show(result.Raw)
		}
		if err == nil && result.IsError {
			a.complain(fmt.Errorf("%s says that it failed", args[0]), "")
			err = errSaid
		}
		return err
	}
	return cmd
}

// call calls the tool called name with arguments as [arguments] reads them.
func (a *app) call(ctx context.Context, tenant, name, whole string, pairs []string) (control.Result, error) {
	c, err := a.client()
	if err != nil {
		return control.Result{}, err
	}
	tools, err := c.Tools(ctx, tenant)
	if err != nil {
		return control.Result{}, err
	}
	var schema json.RawMessage
	var near []string // tools that have this name at their server
	for _, t := range tools {
		switch name {
		case t.Name:
			schema = t.InputSchema
		case t.Tool:
			near = append(near, t.Name)
		}
	}
	args, err := arguments(whole, pairs, schema)
	if err != nil {
		return control.Result{}, err
	}
	r := newReporter(a.errs)
	result, err := c.Call(ctx, tenant, name, args, r.report)
	r.close()
	var e *control.Error
	if errors.As(err, &e) && schema == nil && len(near) > 0 {
		e.Hint = "did you mean " + strings.Join(near, " or ") + "?"
	}
	return result, err
}

// show prints the content of the result of a call for people.
func (a *app) show(raw json.RawMessage) error {
	var result struct {
		Content []struct {
			Type     string `json:"type"`
			Text     string `json:"text"`
			Data     string `json:"data"`
			MimeType string `json:"mimeType"`
			Name     string `json:"name"`
			URI      string `json:"uri"`
			Resource struct {
				URI      string `json:"uri"`
				MimeType string `json:"mimeType"`
				Text     string `json:"text"`
				Blob     string `json:"blob"`
			} `json:"resource"`
		} `json:"content"`
		Structured json.RawMessage `json:"structuredContent"`
	}
	if err := json.Unmarshal(raw, &result); err != nil {
		return fmt.Errorf("the result is not what MCP calls one (see it with --json): %w", err)
	}
	for _, c := range result.Content {
		switch {
		case c.Type == "text":
			a.text(c.Text)
		case c.Type == "resource" && c.Resource.Blob == "":
			a.text(c.Resource.Text)
		case c.Type == "resource":
			fmt.Fprintf(a.out, "[%s %s %s]\n", plain(c.Resource.URI), plain(c.Resource.MimeType), bytesText(decodedLen(c.Resource.Blob)))
		case c.Type == "resource_link":
			fmt.Fprintf(a.out, "[%s %s]\n", plain(c.Name), plain(c.URI))
		case c.Data != "":
			fmt.Fprintf(a.out, "[%s %s %s; --json has it]\n", plain(c.Type), plain(c.MimeType), bytesText(decodedLen(c.Data)))
		default:
			fmt.Fprintf(a.out, "[%s; --json has it]\n", plain(c.Type))
		}
	}
	if len(result.Content) == 0 && len(result.Structured) > 0 {
		fmt.Fprintf(a.out, "%s\n", result.Structured)
	}
	return nil
}

// text prints text of a server, which must not command the terminal.
func (a *app) text(s string) {
	if isTerminal(a.out) {
		s = printable(s)
	}
	io.WriteString(a.out, s)
	if len(s) == 0 || s[len(s)-1] != '\n' {
		io.WriteString(a.out, "\n")
	}
}

func decodedLen(s string) int64 { return int64(base64.StdEncoding.DecodedLen(len(s))) }

// completeTools completes names of the tools of the running specbox.
func (a *app) completeTools(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	c, err := a.client()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	tools, err := c.Tools(cmd.Context(), "")
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, t := range tools {
		names = append(names, cobra.CompletionWithDesc(t.Name, short(t.Description, 60)))
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
