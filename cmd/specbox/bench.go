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

func (a *app) benchCommand() *cobra.Command {
	g := group("bench", "Measure what SpecBox costs", a.hopCommand(), a.echoCommand(), a.profiledCommand(), a.routerCommand())
	g.AddCommand(a.tapCommand(), a.tapModelCommand(), a.tapProxyCommand())
	g.AddCommand(a.prewarmCommand(), a.standInCommand())
	g.AddCommand(a.poolCommand())
	return g
}

func (a *app) hopCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "hop",
		Short: "Measure calls through SpecBox beside direct ones",
		Long: `Call the same fast echo server directly over standard input and output, and
through a SpecBox's HTTP door, interleaved in one run: one caller and 32, results
of 1 KB, 1 MB and 10 MB, in both eras. The figures at the end are those of the
worse era:

  added p50    what SpecBox adds to the median of a call of one caller, 1 KB
  calls/s      of 32 callers, 1 KB
  ratio        of the time of a 10 MB result to that of the direct one
  peak         resident memory of SpecBox at its peak, less the 10 MB result`,
		Example: `  specbox bench hop
  specbox bench hop --json --rounds 10`,
		Args: exactly(),
	}
	rounds := cmd.Flags().Int("rounds", 5, "measure each cell so `often`")
	span := cmd.Flags().Duration("for", 300*time.Millisecond, "measure a cell for so long, in a round")
	profile := cmd.Flags().String("cpuprofile", "", "write a profile of the SpecBox that is measured to this `file`")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		serve := []string{"serve"}
		if *profile != "" {
			serve = []string{"bench", "serve", "--cpuprofile", *profile}
		}
		o := bench.Options{Program: self, Echo: []string{"bench", "echo"}, Serve: serve, Rounds: *rounds, For: *span}
		if isTerminal(a.errs) {
			o.Progress = func(s string) { fmt.Fprintf(a.errs, "\r\x1b[K%s", s) }
			defer fmt.Fprint(a.errs, "\r\x1b[K")
		}
		report, err := bench.Hop(cmd.Context(), o)
		if err != nil {
			return err
		}
		if *asJSON {
			return a.printJSON(report)
		}
		return a.printHop(report)
	}
	return cmd
}

// printHop shows a report to people.
func (a *app) printHop(r *bench.Report) error {
	number := func(f float64, decimals int) string { return strconv.FormatFloat(f, 'f', decimals, 64) }
	var rows [][]string
	for _, c := range r.Cells {
		row := []string{bytesText(int64(c.Bytes)), strconv.Itoa(c.Callers), c.Way, number(c.P50us, 0), number(c.P99us, 0), number(c.PerSec, 0), "", "", ""}
		if c.Way != bench.Direct {
			row[6], row[7], row[8] = number(c.Ratio, 2), number(c.CPUus, 0), number(c.OverMB, 1)
		}
		rows = append(rows, row)
	}
	if err := a.table([]string{"RESULT", "CALLERS", "WAY", "P50 µs", "P99 µs", "CALLS/s", "TIMES DIRECT", "CPU µs", "PEAK MB OVER"}, rows); err != nil {
		return err
	}
	_, err := fmt.Fprintf(a.out, `
added p50      %.0f µs, one caller, 1 KB
calls          %.0f a second, 32 callers, 1 KB
10 MB result   %.2f times the direct one
CPU            %.0f µs a call, %.0f of 32 callers, and %.1f ms with a 10 MB result
peak memory    %.1f MB above the 10 MB result (%.1f MB of that before the calls)

%s, %s, %.0f s. The columns CPU and PEAK are of SpecBox alone: its time a
call, and its resident memory less the results of all callers.
`, r.AddedP50us, r.CallsPerS32, r.Ratio10MB, r.CPUus, r.CPUus32, r.CPUms10MB, r.PeakMBOverResult, r.IdleMB, plural(r.CPUs, "core"), plural(r.Rounds, "round"), r.Seconds)
	return err
}

// echoCommand is the server that hop measures.
func (a *app) echoCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "echo",
		Short:   "Be the server that bench hop calls, on standard input and output",
		Example: "  specbox bench echo",
		Args:    exactly(),
		Hidden:  true,
		RunE:    func(*cobra.Command, []string) error { return bench.Echo(a.in, a.out) },
	}
}

// profiledCommand is serve with a profile of it.
func (a *app) profiledCommand() *cobra.Command {
	cmd := a.serveCommand()
	serve := cmd.RunE
	cmd.Hidden = true
	cmd.Short = "Serve as specbox serve does, and write a profile"
	cmd.Example = "  specbox bench serve --cpuprofile cpu.pprof -f specbox.yaml"
	profile := cmd.Flags().String("cpuprofile", "", "write a profile to this `file`")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f, err := os.Create(*profile)
		if err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		err = serve(cmd, args)
		pprof.StopCPUProfile()
		if closed := f.Close(); err == nil {
			err = closed
		}
		return err
	}
	return cmd
}
