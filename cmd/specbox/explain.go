package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/specbox/specbox/control"
	"github.com/specbox/specbox/intent"
	"github.com/specbox/specbox/intent/keyword"
	"github.com/specbox/specbox/replay"
)

func (a *app) explainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain TEXT",
		Short: "Show which servers a text makes SpecBox start, where, and why",
		Long: `Stream TEXT through each policy as if a model wrote it, and show at which
character which server fires and on what evidence: the nearest examples, what
counts for the calibrated policy. Before that come the keywords with their weights,
also those that are negated ("no need for the browser") and fire nothing.

The servers are those of the running SpecBox, or those of a catalogue file. What
a running SpecBox has learned from its sessions is not used.`,
		Example: `  specbox explain "Let me look at the open issues on GitHub first."
  specbox explain --prompt "What is the weather in Paris?" --policy calibrated "I'll check."
  specbox explain --catalog catalog.json --json "server: web browser"`,
		Args: exactly("TEXT"),
	}
	flags := cmd.Flags()
	catalog := flags.StringArray("catalog", nil, "`file` with the servers and their tools; may be repeated")
	tenant := flags.String("tenant", "", "with the servers of this `tenant`")
	prompt := flags.String("prompt", "", "what the user said before")
	used := flags.StringSlice("used", nil, "`servers` that the session has used already, oldest first")
	policies := flags.StringSlice("policy", []string{"keyword-2", "retrieval", "calibrated"}, "policies to ask")
	kind := flags.String("kind", "content", "what TEXT is: content, reasoning, or a query to a search for tools")
	most := flags.Int("most", 5, "show so many `servers` that did not fire")
	model := flags.String("encoder", "", "`folder` with the encoder's model")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		k, ok := map[string]intent.Kind{"content": intent.Content, "reasoning": intent.Reasoning, "query": intent.Query}[*kind]
		if !ok {
			return &usageError{fmt.Sprintf("--kind %q is no kind of text", *kind), "the kinds are content, reasoning and query"}
		}
		servers, err := a.explained(cmd.Context(), *catalog, *tenant)
		if err != nil {
			return err
		}
		h := intent.History{Prompt: *prompt}
		for _, s := range *used {
			h.Used = append(h.Used, []string{s})
		}
		var o intent.Options
		if *model != "" {
			if o.Encoder, err = openEncoder(*model); err != nil {
				return err
			}
			defer func() { _ = o.Encoder.Close() }() // it was read only
		}
		all := explanations{Keywords: spot(servers, args[0]), Policies: []explanation{}}
		for _, name := range *policies {
			e, err := explain(name, servers, o, h, k, args[0], *most)
			if err != nil {
				return err
			}
			all.Policies = append(all.Policies, e)
		}
		if *asJSON {
			return a.printJSON(all)
		}
		return a.printExplanations(args[0], all)
	}
	return cmd
}

// explanations are what `specbox explain --json` prints.
type explanations struct {
	Keywords []spotted     `json:"keywords"`
	Policies []explanation `json:"policies"`
}

// A spotted keyword stands in the text.
type spotted struct {
	Keyword string             `json:"keyword"`
	At      int                `json:"at"` // characters of the text, up to what ended the word
	Negated bool               `json:"negated"`
	Weight  map[string]float64 `json:"weight"` // by server
}

// spot finds the keywords of servers in text, those that are negated as well.
func spot(servers []intent.Server, text string) []spotted {
	var known []keyword.Server
	for _, s := range servers {
		k := keyword.Server{Name: s.Name, Description: s.Description, Keywords: s.Keywords}
		for _, t := range s.Tools {
			kt := keyword.Tool{Name: t.Name, Description: t.Description}
			for _, p := range t.Params {
				kt.Params = append(kt.Params, keyword.Param{Name: p.Name, Description: p.Description})
			}
			k.Tools = append(k.Tools, kt)
		}
		known = append(known, k)
	}
	found := []spotted{}
	a := keyword.New(keyword.Derive(known))
	stream, counter := a.Stream(), a.Counter()
	for _, h := range stream.End(stream.Write([]byte(text), nil)) {
		f := spotted{Keyword: a.Word(int(h.Word)), At: utf8.RuneCountInString(text[:h.End]), Negated: h.Negated, Weight: make(map[string]float64)}
		h.Negated = false // its weight is asked for all the same
		counter.Reset()
		counter.Add([]keyword.Hit{h})
		for _, i := range counter.Touched() {
			f.Weight[a.Server(int(i))] = counter.Weight(int(i))
		}
		found = append(found, f)
	}
	return found
}

// An explanation is what one policy makes of a text.
type explanation struct {
	Policy  string         `json:"policy"`
	Servers []replay.Guess `json:"servers"`
	Missing string         `json:"missing,omitempty"` // why it could not be asked
}

// explain asks one policy. Of the servers that do not fire it keeps so many.
func explain(name string, servers []intent.Server, o intent.Options, h intent.History, k intent.Kind, text string, most int) (explanation, error) {
	e := explanation{Policy: name, Servers: []replay.Guess{}}
	if !slices.Contains(intent.Policies(), name) {
		return e, &usageError{fmt.Sprintf("there is no policy %q", name), "the policies are " + strings.Join(intent.Policies(), ", ")}
	}
	p, err := intent.NewPolicy(name, servers, o)
	if errors.Is(err, intent.ErrNoEncoder) {
		e.Missing = "its model is not there: specbox bench router --encoder DIR --install fetches it, and --encoder DIR names it"
		return e, nil
	}
	if err != nil {
		return e, err
	}
	for _, g := range replay.Explain(p, h, k, text) {
		if !g.Fired {
			if most == 0 {
				break
			}
			most--
		}
		e.Servers = append(e.Servers, g)
	}
	return e, nil
}

// explained returns the servers to choose from.
func (a *app) explained(ctx context.Context, files []string, tenant string) ([]intent.Server, error) {
	if len(files) > 0 {
		return replay.ReadCatalog(files...)
	}
	c, err := a.client()
	if err != nil {
		return nil, err
	}
	tools, err := c.Tools(ctx, tenant)
	var e *control.Error
	if errors.As(err, &e) {
		return nil, &control.Error{Message: e.Message, Hint: e.Hint + "; or name a catalogue file with --catalog FILE", Status: e.Status, Cause: e}
	}
	if err != nil {
		return nil, err
	}
	var entries []*replay.Entry
	byName := make(map[string]*replay.Entry)
	for _, t := range tools {
		e := byName[t.Server]
		if e == nil {
			e = &replay.Entry{Server: t.Server}
			byName[t.Server] = e
			entries = append(entries, e)
		}
		e.Tools = append(e.Tools, replay.EntryTool{Name: t.Tool, Description: t.Description, InputSchema: t.InputSchema})
	}
	if len(entries) == 0 {
		return nil, &control.Error{Message: "the tools of no server are known yet", Hint: "specbox catalog ls tells why; or name a catalogue file with --catalog FILE"}
	}
	var servers []intent.Server
	for _, e := range entries {
		s, err := e.Intent()
		if err != nil {
			return nil, fmt.Errorf("server %q: %w", e.Server, err)
		}
		servers = append(servers, s)
	}
	return servers, nil
}

// printExplanations shows explanations of text to people.
func (a *app) printExplanations(text string, all explanations) error {
	var rows [][]string
	for _, f := range all.Keywords {
		var of []string
		for _, server := range slices.Sorted(maps.Keys(f.Weight)) {
			of = append(of, fmt.Sprintf("%s %.2f", server, f.Weight[server]))
		}
		rows = append(rows, []string{f.Keyword, strconv.Itoa(f.At), strings.Join(of, ", "), either(f.Negated, "negated", "")})
	}
	if len(rows) > 0 {
		fmt.Fprintln(a.out, paint(a.out, bold, "keywords"))
		if err := a.table([]string{"KEYWORD", "AT", "OF, WITH WEIGHT", ""}, rows); err != nil {
			return err
		}
		fmt.Fprintln(a.out)
	}
	for i, e := range all.Policies {
		if i > 0 {
			fmt.Fprintln(a.out)
		}
		fmt.Fprintln(a.out, paint(a.out, bold, e.Policy))
		if e.Missing != "" {
			fmt.Fprintf(a.out, "is not asked: %s\n", e.Missing)
			continue
		}
		var rows [][]string
		for _, g := range e.Servers {
			place := "no"
			if g.Fired {
				place = before(text, g.At)
			}
			rows = append(rows, []string{g.Server, decimal(g.P, 2), place, g.Why})
		}
		if len(rows) == 0 {
			fmt.Fprintln(a.out, "sees nothing in it")
			continue
		}
		if err := a.table([]string{"SERVER", "P", "FIRES", "WHY"}, rows); err != nil {
			return err
		}
	}
	return nil
}

// before shows a place in text by what stands before it.
func before(text string, at int) string {
	if at == 0 {
		return "at 0, before the text"
	}
	const most = 24
	r := []rune(text)[:at]
	shown := strings.TrimSpace(plain(string(r[max(0, len(r)-most):])))
	if len(r) > most {
		shown = "…" + shown
	}
	return fmt.Sprintf("at %d, %q", at, shown)
}
