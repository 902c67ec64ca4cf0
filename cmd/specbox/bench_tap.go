package main

import (
	"fmt"
	"os"
	"runtime/pprof"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/specbox/specbox/bench"
)

func (a *app) tapCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tap",
		Short: "Measure the model's stream through SpecBox beside a direct one",
		Long: `Let an LLM stream to many clients at once, directly, through SpecBox's proxy
without looking, and through it with an observer that is told every token,
interleaved in one run. LLM, proxy and clients are processes of their own, so that
the CPU time is that of the proxy alone:

  cpu        what a token costs the proxy, hop and tap
  gap ratio  of the median time between two tokens of a stream to that of direct`,
		Example: `  specbox bench tap
  specbox bench tap --json --streams 50 --rate 100`,
		Args: exactly(),
	}
	streams := cmd.Flags().Int("streams", 200, "read so `many` streams at once")
	rate := cmd.Flags().Int("rate", 200, "so many `tokens` a second in each")
	seconds := cmd.Flags().Float64("seconds", 5, "measure each way for so many `seconds`, in a round")
	rounds := cmd.Flags().Int("rounds", 3, "measure each way so `often`")
	profile := cmd.Flags().String("cpuprofile", "", "write a profile of the proxy to this `file`")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		o := bench.TapOptions{
			Program: self, Model: []string{"bench", "tap-model"}, Proxy: []string{"bench", "tap-proxy"},
			Streams: *streams, Rate: *rate, Rounds: *rounds, For: time.Duration(*seconds * float64(time.Second)),
		}
		if *profile != "" {
			o.Proxy = append(o.Proxy, "--cpuprofile", *profile)
		}
		if isTerminal(a.errs) {
			o.Progress = func(s string) { fmt.Fprintf(a.errs, "\r\x1b[K%s", s) }
			defer fmt.Fprint(a.errs, "\r\x1b[K")
		}
		report, err := bench.Tap(cmd.Context(), o)
		if err != nil {
			return err
		}
		if *asJSON {
			return a.printJSON(report)
		}
		return a.printTap(report)
	}
	return cmd
}

// printTap shows a report to people.
func (a *app) printTap(r *bench.TapReport) error {
	number := func(f float64, decimals int) string { return strconv.FormatFloat(f, 'f', decimals, 64) }
	var rows [][]string
	for _, w := range r.Ways {
		row := []string{w.Way, number(w.PerSec, 0), number(w.GapP50us, 0), number(w.GapP99us, 0), "", "", ""}
		if w.Way != bench.Direct {
			row[4], row[5], row[6] = number(w.CPUus, 1), number(w.CPULow, 1)+"-"+number(w.CPUHigh, 1), number(w.CoresUsed, 2)
		}
		rows = append(rows, row)
	}
	if err := a.table([]string{"WAY", "TOKENS/s", "GAP P50 µs", "GAP P99 µs", "CPU µs/TOKEN", "ROUNDS", "CORES"}, rows); err != nil {
		return err
	}
	_, err := fmt.Fprintf(a.out, `
cpu        %.1f µs a token (hop %.1f, tap %.1f)
gap ratio  %.3f at the median, %.2f at the 99th percentile
told       %.2f %% of the tokens

%s at %d tokens/s, %s, %s, %.0f s
`, r.CPUusPerToken, r.HopUsPerToken, r.TapUsPerToken, r.GapP50Ratio, r.GapP99Ratio, 100*r.Seen,
		plural(r.Streams, "stream"), r.Rate, plural(r.CPUs, "core"), plural(r.Rounds, "round"), r.Seconds)
	return err
}

// tapModelCommand is the LLM that tap measures with.
func (a *app) tapModelCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "tap-model",
		Short:   "Be the LLM that bench tap streams from, until standard input ends",
		Example: "  specbox bench tap-model",
		Args:    exactly(),
		Hidden:  true,
		RunE:    func(*cobra.Command, []string) error { return bench.TapModel(a.in, a.out) },
	}
}

// tapProxyCommand is the proxy that tap measures.
func (a *app) tapProxyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "tap-proxy URL",
		Short:   "Be the proxy that bench tap measures, until standard input ends",
		Example: "  specbox bench tap-proxy http://127.0.0.1:9000",
		Args:    exactly("URL"),
		Hidden:  true,
	}
	profile := cmd.Flags().String("cpuprofile", "", "write a profile to this `file`")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		serve := func() error { return bench.TapProxy(cmd.Context(), a.in, a.out, args[0]) }
		if *profile == "" {
			return serve()
		}
		f, err := os.Create(*profile)
		if err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		err = serve()
		pprof.StopCPUProfile()
		if closed := f.Close(); err == nil {
			err = closed
		}
		return err
	}
	return cmd
}
