package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/specbox/specbox/control"
)

func (a *app) psCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List the sandboxes that are alive",
		Long: `List the sandboxes that are alive, of all tenants. Servers that nobody has used
lately have none: they are started by the next call. LEAD is how long before the
first call the start was asked for, of those that were started ahead.`,
		Example: `  specbox ps
  specbox ps --json | jq '.[] | {server, pid, memory_bytes}'`,
		Args: exactly(),
	}
	return listing(a, cmd, (*control.Client).PS, func(sandboxes []control.Sandbox) error {
		warned := make(map[string]bool)
		var rows [][]string
		for _, s := range sandboxes {
			rows = append(rows, []string{s.ID, s.Server, s.Tenant, short(s.Session, 12), s.State, s.Cause, leadText(s.Lead), s.Backend,
				number(s.PID), bytesText(s.Memory), ageText(s.Age), ageText(s.Idle), strconv.FormatInt(s.Calls, 10)})
		}
		if err := a.table([]string{"ID", "SERVER", "TENANT", "SESSION", "STATE", "CAUSE", "LEAD", "BACKEND", "PID", "MEMORY", "AGE", "IDLE", "CALLS"}, rows); err != nil {
			return err
		}
		for _, s := range sandboxes {
			if s.IsolationWarning != "" && !warned[s.Server] {
				warned[s.Server] = true
				a.warn(a.errs, fmt.Sprintf("server %s: %s", s.Server, s.IsolationWarning))
			}
		}
		if len(rows) == 0 {
			fmt.Fprintln(a.errs, "no sandbox is alive")
		}
		return nil
	})
}

// number tells n to people, 0 being none.
func number(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

func (a *app) logsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "logs NAME",
		Short: "Show what a server printed besides its messages",
		Long: `Show what the sandboxes of a server printed on standard error, and on standard
output where it was no MCP message. The end of it is kept in memory, also of
sandboxes that are gone.`,
		Example: `  specbox logs git
  specbox logs git -f`,
		Args:              exactly("the NAME of a server"),
		ValidArgsFunction: a.completeServers,
	}
	follow := cmd.Flags().BoolP("follow", "f", false, "go on until interrupted")
	tenant := cmd.Flags().String("tenant", "", "only of the sandboxes of this `tenant`")
	asJSON := cmd.Flags().Bool("json", false, "print JSON, one line each")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client()
		if err != nil {
			return err
		}
		err = c.Logs(cmd.Context(), *tenant, args[0], *follow, func(l control.Line) {
			if *asJSON {
				a.printLine(l)
				return
			}
			fmt.Fprintf(a.out, "%s %s %s\n", l.Time.Local().Format(time.TimeOnly+".000"), plain(l.Sandbox), printable(l.Text))
		})
		if *follow && cmd.Context().Err() != nil {
			return nil // it was to end so
		}
		return err
	}
	return cmd
}

func (a *app) stopCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "stop NAME|ID|SESSION...",
		Short: "Stop sandboxes",
		Long: `Stop the sandboxes of a server or of a session, or one by its id, and wait until
they are gone with all their processes. Calls under way in them fail; the next
call starts a new one.`,
		Example: `  specbox stop git
  specbox stop --all`,
		ValidArgsFunction: a.completeServers,
	}
	all := cmd.Flags().Bool("all", false, "stop all sandboxes")
	tenant := cmd.Flags().String("tenant", "", "only those of this `tenant`")
	asJSON := jsonFlag(cmd)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if *all == (len(args) > 0) {
			return &usageError{"specbox stop: name what to stop, or say --all", "see specbox stop --help"}
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client()
		if err != nil {
			return err
		}
		var selectors []control.Selector
		for _, name := range args {
			selectors = append(selectors, control.Selector{Target: name, Tenant: *tenant})
		}
		if *all {
			selectors = append(selectors, control.Selector{All: true, Tenant: *tenant})
		}
		n := 0
		for _, s := range selectors {
			stopped, err := c.Stop(cmd.Context(), s)
			if err != nil {
				return err
			}
			n += stopped
		}
		if *asJSON {
			return a.printJSON(map[string]int{"stopped": n})
		}
		fmt.Fprintf(a.out, "%s stopped\n", plural(n, "sandbox"))
		return nil
	}
	return cmd
}

// completeServers completes names of the servers of the running specbox.
func (a *app) completeServers(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	c, err := a.client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	rows, err := c.Servers(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, s := range rows {
		names = append(names, cobra.CompletionWithDesc(s.Name, s.Runs))
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
