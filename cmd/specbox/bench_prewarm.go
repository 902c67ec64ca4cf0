package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/specbox/specbox/bench"
	"github.com/specbox/specbox/replay/standin"
)

func (a *app) prewarmCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "prewarm --traces GLOB --catalog FILE",
		Short: "Measure what calls wait for when servers are started ahead",
		Long: `Play recorded sessions through a real SpecBox, and measure what the first use of
each server in a session waits for: with nothing started ahead, and under other
policies, all at the same time.

The servers of FILE are stand-ins with the same tools. Their start is work for the
CPU, on a twentieth of a core, so that it takes as long as --cold says. The model
is a replay that streams what was recorded. The agents speak to SpecBox as any
agent does: to its LLM API, and to its MCP door.

Policies are on-demand (nothing is started ahead), tool-name (a server is started
when the model has named a tool of it), specbox (what SpecBox does by default),
and those that a configuration knows. A ratio of 1/6 means that calls waited a
sixth of what they waited on demand.`,
		Example: `  specbox bench prewarm --traces 'traces/*.jsonl.gz' --catalog traces/catalog.json
  specbox bench prewarm --traces t.jsonl --catalog c.json --cold 2 --picture session.svg
  specbox bench prewarm --traces t.jsonl --catalog c.json --policy on-demand,paper --json`,
		Args: exactly(),
	}
	f := cmd.Flags()
	traces := f.StringSlice("traces", nil, "`globs` of the sessions to play")
	catalog := f.String("catalog", "", "`file` with the servers that they use")
	cold := f.Float64Slice("cold", []float64{0.5, 1, 2, 4}, "`seconds` that the start of a server takes")
	rate := f.Float64("rate", 60, "`tokens` a second of the model")
	first := f.Float64("ttft", 0.8, "`seconds` to the model's first token")
	policies := f.StringSlice("policy", []string{bench.OnDemand, bench.ToolName, bench.Shipped}, "`policies` to measure")
	sessions := f.Int("sessions", 6, "play so `many` sessions at once, of each policy")
	seeds := f.Int("seeds", 1, "repeat all so `often`, with other jitter of the model")
	picture := f.String("picture", "", "draw one session on demand and under the last policy, as SVG, into this `file`")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if len(*traces) == 0 || *catalog == "" {
			return &usageError{"name the sessions to play and the servers that they use", "--traces GLOB --catalog FILE"}
		}
		if *rate <= 0 || *first < 0 {
			return &usageError{"the model needs a rate, and a time to its first token that is not negative", "--rate 60 --ttft 0.8"}
		}
		self, err := os.Executable()
		if err != nil {
			return err
		}
		o := bench.PrewarmOptions{
			Program: self, StandIn: []string{"bench", "standin"}, Serve: []string{"serve"},
			Traces: *traces, Catalog: *catalog, Policies: *policies, Rate: *rate, First: seconds(*first), Sessions: *sessions, Seeds: *seeds,
		}
		for _, c := range *cold {
			if c <= 0 {
				return &usageError{"a cold start takes time", "--cold 0.5,1,2,4"}
			}
			o.Cold = append(o.Cold, seconds(c))
		}
		if isTerminal(a.errs) {
			o.Progress = func(s string) { fmt.Fprintf(a.errs, "\r\x1b[K%s", s) }
			defer fmt.Fprint(a.errs, "\r\x1b[K")
		}
		report, err := bench.Prewarm(cmd.Context(), o)
		if err != nil {
			return err
		}
		if *picture != "" {
			if err := drawPrewarm(report, *picture, o); err != nil {
				return err
			}
		}
		if *asJSON {
			return a.printJSON(report)
		}
		return a.printPrewarm(report)
	}
	return cmd
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// drawPrewarm draws the longest of the cold starts that were measured.
func drawPrewarm(r *bench.PrewarmReport, file string, o bench.PrewarmOptions) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	err = r.Picture(f, o.Policies[len(o.Policies)-1], o.Cold[len(o.Cold)-1])
	return errors.Join(err, f.Close())
}

// printPrewarm shows a report to people.
func (a *app) printPrewarm(r *bench.PrewarmReport) error {
	number := func(f float64, decimals int) string { return strconv.FormatFloat(f, 'f', decimals, 64) }
	part := func(ratio float64) string { // 0.17 is 1/6.0
		if ratio <= 0 {
			return ""
		}
		return "1/" + number(1/ratio, 1)
	}
	var rows [][]string
	notes := ""
	for _, c := range r.Cells {
		rows = append(rows, []string{
			number(c.Cold, 1), c.Policy, strconv.Itoa(c.FirstUses), number(100*c.Ahead, 0) + " %",
			strconv.Itoa(c.Warm), strconv.Itoa(c.Late), strconv.Itoa(c.ColdUses), number(c.Wait, 1),
			part(c.Ratio), part(c.RatioInterval[1]) + " to " + part(c.RatioInterval[0]),
			number(c.WastedPerUse, 2), number(c.Session, 1),
		})
		if c.Policy == bench.OnDemand {
			notes += fmt.Sprintf("A start that should take %.1f s took %.2f s (median of those that calls waited for).\n", c.Cold, c.Measured)
		}
		if c.Failed > 0 {
			notes += fmt.Sprintf("%s of %s failed at %.1f s.\n", plural(c.Failed, "call"), c.Policy, c.Cold)
		}
	}
	head := []string{"START s", "POLICY", "FIRST USES", "AHEAD", "WARM", "LATE", "COLD", "WAIT s", "TO ON-DEMAND", "95 % OF DRAWS", "WASTED PER USE", "SESSION s"}
	if err := a.table(head, rows); err != nil {
		return err
	}
	if !r.Limited {
		notes += "This machine cannot limit the CPU of a server: starts were plain work on a whole core.\n"
	}
	const busy = 0.7
	if r.Busy > busy {
		notes += fmt.Sprintf("The cores were in use for %.0f %% of the time. What is started ahead gets only what nobody else wants:\nmeasure on a quiet machine.\n", 100*r.Busy)
	}
	_, err := fmt.Fprintf(a.out, `
%s of %s, %d at once, %s; %g tokens a second, the first after %g s.
%sWAIT is the sum over all first uses. WASTED are starts that no call used.
%s, %.0f s.
`, plural(r.Tasks, "session"), plural(r.Servers, "server"), r.Sessions, plural(r.Seeds, "seed"), r.Rate, r.First, notes, plural(r.CPUs, "core"), r.Seconds)
	return err
}

// standInCommand is a server of prewarm.
func (a *app) standInCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "standin --catalog FILE --server NAME",
		Short: "Take the place of a server, on standard input and output",
		Long: `Offer the tools that a server has in FILE, after a start that costs what it
should: so much time of the CPU, and so much memory.`,
		Example: "  specbox bench standin --catalog catalog.json --server weather --cpu 200ms",
		Args:    exactly(),
		Hidden:  true,
	}
	f := cmd.Flags()
	var o standin.Options
	f.StringVar(&o.Catalog, "catalog", "", "`file` with servers and their tools")
	f.StringVar(&o.Server, "server", "", "`name` of the server")
	f.DurationVar(&o.Cost.CPU, "cpu", 0, "`time` of the CPU that a start costs")
	f.Int64Var(&o.Cost.Memory, "memory", 0, "`bytes` that it takes")
	f.StringVar(&o.CostFile, "cost", "", "`file` with both, as JSON, read at the start")
	cmd.RunE = func(*cobra.Command, []string) error {
		if strings.TrimSpace(o.Catalog) == "" || o.Server == "" {
			return &usageError{"name a catalogue and a server", "--catalog FILE --server NAME"}
		}
		return standin.Run(a.in, a.out, o)
	}
	return cmd
}
