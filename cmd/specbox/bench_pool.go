package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/specbox/specbox/bench"
	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/launcher"
)

// poolPackages are what bench pool starts unless it is told otherwise. Their
// versions are pinned, so that figures can be compared.
var poolPackages = []string{
	"@modelcontextprotocol/server-everything@2026.8.31",
	"@modelcontextprotocol/server-memory@2026.8.31",
	"@modelcontextprotocol/server-sequential-thinking@2026.8.31",
}

func (a *app) poolCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pool",
		Short: "Measure what starting servers on a guess costs, and saves",
		Long: `Start real servers in real sandboxes, on demand and on a guess, all in one run:
a demanded start alone and beside 3 and 8 guesses, calls whose server was guessed
some time ahead, and the first call of a frozen sandbox beside that of a running
one. The figures are medians of the rounds.

  demand ratio       a demanded start beside guesses, to one alone; as many of them
                     are under way as there are by default, and all at once
  promoted excess    what a correct guess waits beyond 1.15 times what was left of
                     the start; of the worst of the leads
  thaw extra         what the first call of a frozen sandbox takes more
  frozen CPU         of one core, by a sandbox that is frozen

The packages are installed from npm, unless they are.`,
		Example: `  specbox bench pool
  specbox bench pool --json --rounds 5`,
		Args: exactly(),
	}
	rounds := cmd.Flags().Int("rounds", 20, "measure everything so `often`")
	packages := cmd.Flags().StringSlice("package", poolPackages, "npm `packages` to start; the first is what is demanded")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *rounds < 1 || len(*packages) == 0 {
			return &usageError{"there is nothing to measure", "--rounds 20"}
		}
		o := bench.PoolOptions{Rounds: *rounds}
		if isTerminal(a.errs) {
			o.Progress = func(s string) { fmt.Fprintf(a.errs, "\r\x1b[K%s", s) }
			defer fmt.Fprint(a.errs, "\r\x1b[K")
		}
		var err error
		if o.Servers, err = a.poolServers(cmd.Context(), *packages, o.Progress); err != nil {
			return err
		}
		report, err := bench.Pool(cmd.Context(), o)
		if err != nil {
			return err
		}
		if *asJSON {
			return a.printJSON(report)
		}
		return a.printPool(report)
	}
	return cmd
}

// poolServers installs npm packages, and says how they are run.
func (a *app) poolServers(ctx context.Context, packages []string, progress func(string)) ([]bench.PoolServer, error) {
	dir, err := a.folder()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	store := launcher.New(filepath.Join(dir, "packages"))
	var out []bench.PoolServer
	for _, name := range packages {
		s := &config.Server{Name: config.Name(name), Command: "npx", Args: []string{"-y", name}}
		s.Isolation = config.Process
		program, err := launcher.Resolve(s, store)
		if pkg, ok := launcher.For(s); ok && errors.Is(err, launcher.ErrNotInstalled) {
			program, err = store.Install(ctx, pkg, func(p launcher.Progress) {
				if progress != nil {
					progress(name + ": " + p.Message)
				}
			})
			if err == nil {
				program, err = launcher.Resolve(s, store)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("package %s: %w", name, err)
		}
		out = append(out, bench.PoolServer{Name: s.Name, Argv: program.Argv, Env: program.Env, Mounts: program.Mounts})
	}
	return out, nil
}

// printPool shows a report to people.
func (a *app) printPool(r *bench.PoolReport) error {
	number := func(f float64, decimals int) string { return strconv.FormatFloat(f, 'f', decimals, 64) }
	var rows [][]string
	for _, c := range r.Cells {
		rows = append(rows, []string{c.What, number(c.MedianMS, 1), number(c.P90MS, 1)})
	}
	if err := a.table([]string{"WHAT", "MEDIAN ms", "P90 ms"}, rows); err != nil {
		return err
	}
	_, err := fmt.Fprintf(a.out, `
demand ratio     %.2f beside 3 guesses, %.2f beside 8
  all at once    %.2f beside 3 guesses, %.2f beside 8
promoted excess  %.0f ms
thaw extra       %.1f ms
frozen CPU       %.2f %%

%s, %s, %.0f s.
`, r.DemandRatioK3, r.DemandRatioK8, r.DemandRatioK3AtOnce, r.DemandRatioK8AtOnce, r.PromotedExcessMS, r.ThawExtraMS, r.FrozenCPUPercent, r.Server, plural(r.Rounds, "round"), r.Seconds)
	return err
}
