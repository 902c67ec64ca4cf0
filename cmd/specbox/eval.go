package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/specbox/specbox/control"
	"github.com/specbox/specbox/intent"
	"github.com/specbox/specbox/intent/encoder"
	"github.com/specbox/specbox/replay"
)

func (a *app) evalCommand() *cobra.Command {
	return group("eval", "Measure on recorded sessions what SpecBox decides", a.evalIntentCommand())
}

func (a *app) evalIntentCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "intent",
		Short: "Measure how well the next server is foreseen from what a model writes",
		Long: `Stream recorded sessions token by token through each policy, and compare what it
fires with the servers that the sessions went on to call.

Policies are fitted on the train sessions and their thresholds chosen on the
validation sessions. They are scored on the test sessions; where none are named,
on the validation sessions; with --cv on each task of train and validation, in
turn, with the others to fit and tune on. No policy is ever shown what a session
that it is scored on called.

A decision is a pair of a step and a server. Those about first uses concern the
servers that the session has not used yet. A server has fired if it did so by the
end of the step's text; that is right if the step then calls it. Steps without a
call count: what fires there is a false start. Decisions are summed over sessions
before rates are taken. Intervals are over tasks, drawn with replacement.`,
		Example: `  specbox eval intent --train 'train/*.jsonl.gz' --validation 'val/*.jsonl.gz' --catalog catalog.json
  specbox eval intent --train 'train/*.jsonl.gz' --validation 'val/*.jsonl.gz' --catalog catalog.json --cv 5 --seeds 5 --json`,
		Args: exactly(),
	}
	var o evalOptions
	flags := cmd.Flags()
	flags.StringArrayVar(&o.train, "train", nil, "sessions to fit on, as a `glob` of files; may be repeated")
	flags.StringArrayVar(&o.validation, "validation", nil, "sessions to choose thresholds on, as a `glob`")
	flags.StringArrayVar(&o.test, "test", nil, "sessions to score on, as a `glob`")
	flags.StringArrayVar(&o.catalog, "catalog", nil, "`file` with the servers and their tools; may be repeated")
	flags.StringSliceVar(&o.policies, "policy", intent.Policies(), "policies to score; besides these, shipped and shipped-new: the weights that come with SpecBox, after learning from train, and before")
	flags.IntVar(&o.e.Folds, "cv", 0, "cross-validate over tasks of train and validation in so many `folds`")
	flags.IntVar(&o.e.Seeds, "seeds", 1, "repeat so `often` what draws random numbers")
	flags.BoolVar(&o.e.Masked, "masked", false, "hide the literal names of servers from the policies")
	flags.BoolVar(&o.e.Candidates, "candidates", false, "tell policies what the model's searches for tools returned")
	flags.Float64Var(&o.e.Rate, "rate", 60, "`tokens` a second that a model writes")
	flags.DurationVar(&o.e.First, "ttft", 800*time.Millisecond, "from a request to its first token")
	flags.DurationVar(&o.e.Hold, "hold", 30*time.Second, "how long a sandbox is kept that nobody used")
	flags.Float64SliceVar(&o.e.Cold, "cold", []float64{0.5, 1, 2, 4}, "`seconds` that a start takes")
	flags.StringVar(&o.encoder, "encoder", "", "`folder` with the encoder's model")
	flags.Float64SliceVar(&o.e.From, "from", nil, "score each policy also as if it fired from these values of P on")
	flags.BoolVar(&o.e.Mistakes, "mistakes", false, "list what was missed and what fired wrongly, on first uses")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		e, err := o.load()
		if err != nil {
			return err
		}
		var options intent.Options
		if o.encoder != "" {
			if options.Encoder, err = openEncoder(o.encoder); err != nil {
				return err
			}
			defer func() { _ = options.Encoder.Close() }() // it was read only
		}
		if e.Contestants, err = replay.Contestants(o.policies, options); err != nil {
			return &usageError{err.Error(), "see specbox eval intent --help"}
		}
		if isTerminal(a.errs) {
			e.Progress = func(s string) { fmt.Fprintf(a.errs, "\r\x1b[K%s", s) }
		}
		r, err := replay.Evaluate(cmd.Context(), e)
		if isTerminal(a.errs) {
			fmt.Fprint(a.errs, "\r\x1b[K")
		}
		if err != nil {
			return err
		}
		if *asJSON {
			return a.printJSON(r)
		}
		return a.printEval(r)
	}
	return cmd
}

// openEncoder opens the encoder's model.
func openEncoder(dir string) (*encoder.Encoder, error) {
	e, err := encoder.Open(dir)
	if encoder.Missing(err) {
		return nil, &control.Error{Message: fmt.Sprintf("the encoder's model is not in %s: %v", dir, err), Hint: "specbox bench router --encoder " + dir + " --install fetches it", Cause: err}
	}
	return e, err
}

// evalOptions are the flags of eval intent.
type evalOptions struct {
	train, validation, test, catalog []string
	policies                         []string
	encoder                          string
	e                                replay.Evaluation
}

// load reads what the flags name.
func (o *evalOptions) load() (e replay.Evaluation, err error) {
	e = o.e
	usage := func(message string) error { return &usageError{message, "see specbox eval intent --help"} }
	switch {
	case len(o.train) == 0:
		return e, usage("there is nothing to fit on: name sessions with --train GLOB")
	case len(o.validation) == 0:
		return e, usage("there is nothing to choose thresholds on: name sessions with --validation GLOB")
	case len(o.catalog) == 0:
		return e, usage("the servers are not known: name a catalogue with --catalog FILE")
	case e.Folds > 0 && len(o.test) > 0:
		return e, usage("--cv scores the tasks of train and validation: leave --test out")
	case e.Rate <= 0:
		return e, usage("--rate is more than 0 tokens a second")
	}
	if e.Servers, err = replay.ReadCatalog(o.catalog...); err != nil {
		return e, err
	}
	for _, part := range []struct {
		globs []string
		to    *[]replay.Trajectory
	}{{o.train, &e.Train}, {o.validation, &e.Validation}, {o.test, &e.Test}} {
		if *part.to, err = replay.Read(part.globs...); err != nil {
			return e, err
		}
	}
	return e, nil
}

// printEval shows a report to people.
func (a *app) printEval(r *replay.Report) error {
	s := r.Setting
	fmt.Fprintf(a.out, "scored on    %s: %s\n", s.ScoredOn, sizeText(s.Scored))
	fmt.Fprintf(a.out, "fitted on    %s; thresholds chosen on %s\n", sizeText(s.Fitted), s.TunedOn)
	fmt.Fprintf(a.out, "setting      %s, names %s, results of searches %s, a decision every %d bytes, %s\n",
		plural(s.Servers, "server"), either(s.Masked, "masked", "as they are"), either(s.Candidates, "told", "not told"), s.Every, plural(s.Seeds, "seed"))
	for _, print := range []func(*replay.Report, []string) error{a.printFigures, a.printLead, a.printWaits, a.printPaper, a.printMistakes} {
		if err := print(r, r.Policies); err != nil {
			return err
		}
	}
	for _, n := range slices.Sorted(maps.Keys(r.Missing)) {
		fmt.Fprintf(a.out, "\n%s is not scored: %s\n", n, r.Missing[n])
	}
	return nil
}

// titled prints a table under its title.
func (a *app) titled(title string, head []string, rows [][]string) error {
	if len(rows) == 0 {
		return nil
	}
	fmt.Fprintf(a.out, "\n%s\n", paint(a.out, bold, title))
	return a.table(head, rows)
}

func (a *app) printFigures(r *replay.Report, names []string) error {
	for _, part := range []struct {
		title   string
		figures map[string]*replay.Figures
	}{{"first uses", r.FirstUse}, {"all steps", r.AllSteps}} {
		var rows [][]string
		for _, n := range names {
			f := part.figures[n]
			rows = append(rows, []string{n, within(f.Precision, f.PrecisionInterval), within(f.Recall, f.RecallInterval), within(f.F1, f.F1Interval),
				within(f.Top1, f.Top1Interval), within(f.Top3, f.Top3Interval), within(f.FalseStarts, f.FalseStartsInterval), decimal(f.Later, 2)})
		}
		if err := a.titled(part.title, []string{"POLICY", "PRECISION", "RECALL", "F1", "TOP-1", "TOP-3", "FALSE A STEP", "LATER TRUE"}, rows); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) printLead(r *replay.Report, names []string) error {
	var rows [][]string
	for _, n := range names {
		l, c := r.Lead[n], r.Cost[n]
		rows = append(rows, []string{n, within(l.MedianFraction, l.FractionInterval), fmt.Sprintf("%.0f [%.0f, %.0f]", l.MedianCharsLeft, l.CharsLeftInterval[0], l.CharsLeftInterval[1]),
			decimal(c.PerToken, 2), decimal(c.PerDecision, 1)})
	}
	return a.titled("lead of right first uses (medians), and cost", []string{"POLICY", "TEXT SEEN", "CHARACTERS LEFT", "µs A TOKEN", "µs A DECISION"}, rows)
}

func (a *app) printWaits(r *replay.Report, names []string) error {
	var rows [][]string
	head := []string{"POLICY", "MET", "WASTED"}
	for _, n := range names {
		for i, w := range r.Wait[n] {
			if i == 0 {
				rows = append(rows, []string{n, decimal(w.Met, 2), decimal(w.Wasted, 2)})
			}
			if len(rows) == 1 {
				head = append(head, fmt.Sprintf("%g s", w.Cold))
			}
			last := &rows[len(rows)-1]
			*last = append(*last, fmt.Sprintf("1/%.1f (1/%.1f [%.1f, %.1f])", w.Less, w.NamedLess, w.NamedLessInterval[0], w.NamedLessInterval[1]))
		}
	}
	title := fmt.Sprintf("what first uses wait for, as a part of on-demand's wait, by cold start, at %g tokens a second\n(in brackets: with the tool's name in the stream besides; WASTED: starts for each first use)", r.Setting.Rate)
	return a.titled(title, head, rows)
}

// printPaper shows the figures in the shape of the paper's tables, at the third
// of the cold starts where there are as many.
func (a *app) printPaper(r *replay.Report, names []string) error {
	for _, table := range []struct {
		title    string
		policies []string
		head     []string
		row      func(f *replay.Figures, c *replay.Cost, w *replay.Wait) []string
	}{
		{"keywords (Table 1)", []string{"keyword-1", "keyword-2", "keyword-3"}, []string{"AVG WAIT", "MATCH", "MISMATCHES"},
			func(f *replay.Figures, _ *replay.Cost, w *replay.Wait) []string {
				return []string{decimal(w.Mean*1e3, 0) + " ms", decimal(w.Met*100, 0) + " %", strconv.Itoa(f.Wrong)}
			}},
		{"semantic routers (Table 2)", []string{"retrieval", "encoder", "fasttext"}, []string{"MICRO-F1", "HIT@3", "PRECISION", "LATENCY"},
			func(f *replay.Figures, c *replay.Cost, _ *replay.Wait) []string {
				return []string{decimal(f.MicroF1, 3), decimal(f.Top3, 3), decimal(f.Precision, 3), decimal(c.PerDecision/1e3, 3) + " ms"}
			}},
		{"assembly (Table 3)", []string{"union", "intersection", "weighted", "calibrated"}, []string{"AVG WAIT", "MATCH", "COLD"},
			func(_ *replay.Figures, _ *replay.Cost, w *replay.Wait) []string {
				return []string{decimal(w.Mean*1e3, 0) + " ms", decimal(w.Met*100, 0) + " %", decimal((1-w.Met)*100, 0) + " %"}
			}},
	} {
		var rows [][]string
		title := table.title
		for _, n := range table.policies {
			if !slices.Contains(names, n) || len(r.Wait[n]) == 0 {
				continue
			}
			w := r.Wait[n][min(2, len(r.Wait[n])-1)]
			rows = append(rows, append([]string{n}, table.row(r.FirstUse[n], r.Cost[n], w)...))
			title = fmt.Sprintf("%s, cold start %g s", table.title, w.Cold)
		}
		if err := a.titled(title, append([]string{"POLICY"}, table.head...), rows); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) printMistakes(r *replay.Report, names []string) error {
	for _, n := range names {
		var rows [][]string
		for _, m := range r.Mistakes[n] {
			what := "false"
			switch {
			case m.Missed:
				what = "missed"
			case m.Later:
				what = "too early"
			case !m.Calls:
				what = "false, nothing new is called"
			}
			rank := ""
			if m.Rank > 0 {
				rank = strconv.Itoa(m.Rank)
			}
			rows = append(rows, []string{m.Session, strconv.Itoa(m.Step), m.Server, what, decimal(m.P, 2), rank})
		}
		if err := a.titled("mistakes of "+n, []string{"SESSION", "STEP", "SERVER", "WHAT", "P", "RANK"}, rows); err != nil {
			return err
		}
	}
	return nil
}

// sizeText tells a size to people.
func sizeText(s replay.Size) string {
	parts := []string{plural(s.Tasks, "task"), plural(s.Sessions, "session"), plural(s.Steps, "step"), plural(s.FirstUses, "first use")}
	if s.Outside > 0 {
		parts = append(parts, fmt.Sprintf("%d more of servers that the catalogue does not have", s.Outside))
	}
	return strings.Join(parts, ", ")
}

func either(which bool, yes, no string) string {
	if which {
		return yes
	}
	return no
}

// decimal writes f with so many decimals.
func decimal(f float64, decimals int) string { return strconv.FormatFloat(f, 'f', decimals, 64) }

// within writes a figure with its interval.
func within(f float64, i replay.Interval) string {
	return fmt.Sprintf("%.2f [%.2f, %.2f]", f, i[0], i[1])
}
