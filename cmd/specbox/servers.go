package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/specbox/specbox/control"
)

func (a *app) serversCommand() *cobra.Command {
	return group("servers", "Look at the configured servers, or move their packages on",
		a.serversListCommand(), a.serversUpdateCommand())
}

func (a *app) serversListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "ls",
		Short:   "List the servers of the running SpecBox",
		Example: "  specbox servers ls",
		Args:    exactly(),
	}
	return listing(a, cmd, (*control.Client).Servers, func(servers []control.Server) error {
		var rows [][]string
		for _, s := range servers {
			isolation := s.Isolation
			if s.Disabled {
				isolation = "(disabled)"
			}
			rows = append(rows, []string{s.Name, isolation, s.Network, s.Scope, s.Version, short(s.Runs, max(40, width(a.out)-60))})
		}
		if err := a.table([]string{"NAME", "ISOLATION", "NETWORK", "SCOPE", "VERSION", "RUNS"}, rows); err != nil {
			return err
		}
		for _, s := range servers {
			for _, w := range s.Warnings {
				a.warn(a.errs, fmt.Sprintf("server %s: %s", s.Name, plain(w)))
			}
		}
		return nil
	})
}

func (a *app) serversUpdateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "update [NAME...]",
		Short: "Install missing packages and move pinned versions on",
		Long: `Install the newest package of each server that npx, uvx and the like run, of all
those configured if none is named. Sandboxes that are alive go on with the old
one; those started from now on have the new one.`,
		Example: `  specbox servers update
  specbox servers update memory`,
		ValidArgsFunction: a.completeServers,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			r := newReporter(a.errs)
			err = c.Update(cmd.Context(), args, r.report)
			r.close()
			return r.outcome(err)
		},
	}
}
