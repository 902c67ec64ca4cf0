package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/specbox/specbox/control"
)

func (a *app) catalogCommand() *cobra.Command {
	return group("catalog", "Look at the stored lists of the servers, or read them again",
		a.catalogListCommand(), a.catalogRefreshCommand())
}

func (a *app) catalogListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "ls",
		Short:   "List what is stored of each server",
		Example: "  specbox catalog ls",
		Args:    exactly(),
	}
	return listing(a, cmd, (*control.Client).Catalog, func(entries []control.CatalogRow) error {
		var rows [][]string
		for _, e := range entries {
			filled := "never"
			if !e.Filled.IsZero() {
				filled = ageText(time.Since(e.Filled).Milliseconds()) + " ago"
			}
			rows = append(rows, []string{e.Server, e.Tenant, strconv.Itoa(e.Tools), strconv.Itoa(e.Prompts), strconv.Itoa(e.Resources), strconv.Itoa(e.Templates),
				filled, short(e.Fingerprint, 12), short(strings.Join(append(e.Truncated, e.Error), " "), max(40, width(a.out)-80))})
		}
		return a.table([]string{"SERVER", "TENANT", "TOOLS", "PROMPTS", "RESOURCES", "TEMPLATES", "FILLED", "CLIENT", "FAULT"}, rows)
	})
}

func (a *app) catalogRefreshCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "refresh [NAME...]",
		Short: "Read the lists of servers again",
		Long: `Start each server, of all those configured if none is named, read its tools,
prompts, resources and templates, and store them. A server that cannot be read
keeps the lists of an earlier time and shows up as its own error.`,
		Example: `  specbox catalog refresh
  specbox catalog refresh git time`,
		ValidArgsFunction: a.completeServers,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			r := newReporter(a.errs)
			err = c.Refresh(cmd.Context(), args, r.report)
			r.close()
			return r.outcome(err)
		},
	}
}

// outcome is the error of work that was reported to r and ended with err.
func (r *reporter) outcome(err error) error {
	if err == nil && r.failed > 0 {
		return fmt.Errorf("%s failed, as told above", plural(r.failed, "server"))
	}
	return err
}
