package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/specbox/specbox"
	"github.com/specbox/specbox/bench"
	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/replay"
	"github.com/specbox/specbox/replay/model"
)

// A demoTalk is a conversation of an agent with its model.
type demoTalk struct {
	user  string
	turns []demoTurn
	rate  float64       // of the model, in tokens a second
	first time.Duration // of the model, to its first token
}

// A demoTurn is what the model says before it calls tools, all at once.
type demoTurn struct {
	says  string
	calls []demoAct
}

// A demoAct is a call of a tool by the model. FOLDER in its arguments stands for
// the demo's folder.
type demoAct struct{ server, tool, args string }

// usualTalk is the conversation of the demo.
func usualTalk() demoTalk {
	return demoTalk{
		user: "We present the project to the office in Tokyo at noon UTC. Get me ready: what changed last, what do I read out, and when is it for them?",
		turns: []demoTurn{
			{"I will help you to get ready. Let me begin with what changed last: the commit history of the project tells me, so that you can say what is new since they saw it.",
				[]demoAct{{"git", "git_log", `{"path": "FOLDER/project", "maxCount": 5}`}}},
			{"There is one commit so far. Next I read the text for the audience from its file, and at the same time I convert noon UTC to the time zone of the office in Tokyo.",
				[]demoAct{
					{"filesystem", "read_text_file", `{"path": "FOLDER/files/welcome.txt"}`},
					{"time", "convert_time", `{"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}`}}},
			{"That is nine in the evening there, rather late. I note it as an observation in the knowledge graph, so that we remember it when the next one is planned.",
				[]demoAct{{"memory", "create_entities", `{"entities": [{"name": "Presentation", "entityType": "event", "observations": ["9 pm in Tokyo"]}]}`}}},
			{"You are ready: one commit, a short text, 9 pm in Tokyo.", nil},
		},
		rate: 60, first: 800 * time.Millisecond,
	}
}

// trajectory returns the conversation as one that was recorded, without calls of
// servers that are not able to answer them.
func (t *demoTalk) trajectory(dir string, able func(server string) bool) *replay.Trajectory {
	out := &replay.Trajectory{ID: "demo", Task: "demo", Prompt: t.user}
	for _, turn := range t.turns {
		step := replay.Step{Segments: []replay.Segment{{Kind: replay.Content, Text: turn.says}}}
		for _, c := range turn.calls {
			if able(c.server) {
				step.Calls = append(step.Calls, replay.Call{Server: c.server, Tool: c.tool, Arguments: json.RawMessage(strings.ReplaceAll(c.args, "FOLDER", dir))})
			}
		}
		out.Steps = append(out.Steps, step)
	}
	return out
}

// demoForesight is what was measured of one conversation, played twice.
type demoForesight struct {
	Rate     float64     `json:"tokens_per_s"`
	First    float64     `json:"first_token_ms"`
	OnDemand *demoPlayed `json:"on_demand"` // nil where it could not be played
	SpecBox  *demoPlayed `json:"specbox"`
	Ratio    float64     `json:"wait_ratio"` // of SpecBox to on demand; 0 where that did not wait
	Picture  string      `json:"picture,omitempty"`
	lines    []*bench.Timeline
}

// demoPlayed is the conversation under one policy.
type demoPlayed struct {
	Policy string      `json:"policy"`
	Took   float64     `json:"ms"`
	Wait   float64     `json:"wait_ms"` // of all calls, each sandbox once
	Starts int         `json:"starts"`
	Wasted int         `json:"wasted"` // of them, those that no call came for
	Calls  []demoAhead `json:"calls"`
}

// demoAhead is one call of the conversation, as the trace has it.
type demoAhead struct {
	Server  string  `json:"server"`
	Tool    string  `json:"tool"`
	Outcome string  `json:"outcome"`
	Cause   string  `json:"cause"`   // of the start of its sandbox
	Lead    float64 `json:"lead_ms"` // from when that was asked for to the call; 0 where the call asked
	Wait    float64 `json:"wait_ms"`
	Error   string  `json:"error,omitempty"`
}

// foresee plays a conversation twice, without anything started ahead and as
// SpecBox does by default, and draws both.
func (d *demo) foresee(ctx context.Context) error {
	able := func(server string) bool {
		return slices.ContainsFunc(d.figures.Servers, func(r demoRow) bool { return r.Server == server && r.Error == "" })
	}
	talk := d.talk.trajectory(d.dir, able)
	if !slices.ContainsFunc(talk.Steps, func(s replay.Step) bool { return len(s.Calls) > 0 }) {
		return nil
	}
	d.chapter("7. Started before it is called")
	d.say("An agent leads a conversation with a model through SpecBox, which reads along.")
	d.say("The model is a replay, %g tokens a second, the first after %g s. It says:", d.talk.rate, d.talk.first.Seconds())
	d.say("")
	d.tellTalk(talk)
	f := &d.figures.Foresight
	f.Rate, f.First = d.talk.rate, ms(d.talk.first)
	var err error
	if f.OnDemand, err = d.play(ctx, talk, config.SpeculationOff, "on demand"); err != nil {
		return err
	}
	if f.SpecBox, err = d.play(ctx, talk, "", "SpecBox"); err != nil {
		return err
	}
	if f.OnDemand == nil || f.SpecBox == nil {
		return nil
	}
	if f.OnDemand.Wait > 0 {
		f.Ratio = math.Round(f.SpecBox.Wait/f.OnDemand.Wait*1000) / 1000
	}
	d.say("")
	end := max(f.lines[0].End, f.lines[1].End)
	for _, t := range f.lines {
		d.drawBars(t, end)
	}
	d.tellForesight()
	return d.drawPicture()
}

// tellTalk shows what the model says and calls.
func (d *demo) tellTalk(t *replay.Trajectory) {
	for _, s := range t.Steps {
		for _, g := range s.Segments {
			d.say("  %q", g.Text)
		}
		for _, c := range s.Calls {
			d.say("    -> %s %s", demoTool(c), strings.ReplaceAll(string(c.Arguments), d.dir, "..."))
		}
	}
}

// demoTool returns the name of a call's tool at SpecBox.
func demoTool(c replay.Call) string { return c.Server + "__" + c.Tool }

// play plays the conversation under a policy, "" being the default one. What does
// not work is a problem, and nil is returned with it.
func (d *demo) play(ctx context.Context, talk *replay.Trajectory, policy, name string) (*demoPlayed, error) {
	m, err := bench.StartModel(model.Config{Scripts: []model.Script{bench.Script(talk, demoTool)}, Rate: d.talk.rate, First: d.talk.first})
	if err != nil {
		return nil, err
	}
	defer m.Stop()
	var s bench.Session
	var failed error
	p, trace := &demoPlayed{}, newDemoTrace()
	change := func(c *config.Config) {
		c.Upstreams = []config.Upstream{{Name: "replay", API: "openai", URL: m.URL()}}
		if policy != "" {
			c.Speculation.Policy = policy
		}
		c.Speculation.Learn = "memory" // so that an earlier demo is not what it knows this one from
		p.Policy = c.Speculation.Policy
	}
	_, err = d.inside(ctx, specbox.Options{Offline: true, Trace: trace}, change, d.errs, func(ctx context.Context, h *specbox.Runtime) error {
		agents := bench.NewAgents(h.URL())
		defer agents.Close()
		ctx, cancel := context.WithTimeout(ctx, demoPatience)
		defer cancel()
		s, failed = agents.Run(ctx, talk, 1)
		return nil
	})
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	if failed != nil {
		d.problem("the conversation, %s: %v", name, failed)
		return nil, nil
	}
	for _, err := range s.Errors() {
		d.problem("the conversation, %s: %v", name, err)
	}
	events := trace.of(func(demoEvent) bool { return true })
	line := s.Timeline(name, events, true)
	d.figures.Foresight.lines = append(d.figures.Foresight.lines, line)
	p.Took, p.Wait = ms(s.Length()), math.Round(line.Waited()*1e6)/1000
	p.read(events)
	if len(p.Calls) != s.Calls() {
		d.problem("the conversation, %s: the trace has %d of %d calls", name, len(p.Calls), s.Calls())
	}
	return p, nil
}

// read takes from the trace what the agent cannot see.
func (p *demoPlayed) read(events []demoEvent) {
	p.Calls = []demoAhead{}
	called := map[string]bool{}
	for _, e := range events {
		if e.Kind == "call" && e.TraceID == bench.TraceID(1) {
			called[e.Sandbox] = true
			p.Calls = append(p.Calls, demoAhead{e.Server, e.Tool, e.Outcome, e.Cause, ms(e.Lead), ms(e.Provision), e.Err})
		}
	}
	for _, e := range events {
		if e.Kind != "start" || e.Cause == "catalog" {
			continue
		}
		p.Starts++
		if !called[e.Sandbox] {
			p.Wasted++
		}
	}
}

// How the bars of a timeline look, without colours as well.
const (
	barModel = "▒"
	barStart = "-"
	barWait  = "w"
	barCall  = "█"
)

// drawBars draws a timeline, from 0 to end seconds.
func (d *demo) drawBars(t *bench.Timeline, end float64) {
	names := d.longest()
	columns := max(20, min(width(d.out)-names-6, 72))
	lane := func(name string, layers ...barLayer) {
		d.say("%-*s  %s", names, short(name, names), d.bar(columns, end, layers))
	}
	d.say("%s: %.1f s, of which calls waited %.2f s", paint(d.out, bold, t.Name), t.End, t.Waited())
	lane("LLM", barLayer{barModel, "", t.Model})
	for _, l := range t.Lanes {
		lane(l.Server, barLayer{barStart, yellow, l.Starts}, barLayer{barWait, red, l.Waits}, barLayer{barCall, green, l.Calls})
	}
	d.say("%-*s  %s", names, "", axisText(columns, end))
}

// A barLayer is a kind of spans, drawn over the layers before it.
type barLayer struct {
	char   string
	colour string
	spans  []bench.Span
}

// bar draws layers on one line.
func (d *demo) bar(columns int, end float64, layers []barLayer) string {
	cells := make([]int, columns) // layer, from 1
	for n, l := range layers {
		for _, s := range l.spans {
			from := min(int(s.From/end*float64(columns)), columns-1)
			to := min(int(math.Ceil(s.To/end*float64(columns))), columns)
			for i := from; i < max(to, from+1); i++ {
				cells[i] = n + 1
			}
		}
	}
	var b strings.Builder
	for i := 0; i < columns; {
		n := 1
		for i+n < columns && cells[i+n] == cells[i] {
			n++
		}
		if cells[i] == 0 {
			b.WriteString(strings.Repeat(" ", n))
		} else {
			l := layers[cells[i]-1]
			text := strings.Repeat(l.char, n)
			if l.colour != "" {
				text = paint(d.out, l.colour, text)
			}
			b.WriteString(text)
		}
		i += n
	}
	return b.String()
}

// axisText numbers the seconds below a bar.
func axisText(columns int, end float64) string {
	line := []byte(strings.Repeat(" ", columns+8))
	step := 1
	for end/float64(step) > float64(columns)/8 {
		step *= 2
	}
	for s := 0; float64(s) <= end; s += step {
		copy(line[int(float64(s)/end*float64(columns)):], strconv.Itoa(s)+" s")
	}
	return strings.TrimRight(string(line), " ")
}

// tellForesight tells how both went.
func (d *demo) tellForesight() {
	f := &d.figures.Foresight
	d.say("")
	d.say("%s the model writes   %s a sandbox starts   %s a call waits for it   %s a call runs", barModel, barStart, barWait, barCall)
	d.say("")
	var rows [][]string
	for _, c := range f.OnDemand.Calls {
		row := []string{c.Server, c.Tool, c.Outcome, msText(c.Wait), "", "", "", ""}
		if n := slices.IndexFunc(f.SpecBox.Calls, func(a demoAhead) bool { return a.Server == c.Server && a.Tool == c.Tool }); n >= 0 {
			a := f.SpecBox.Calls[n]
			row = append(row[:4], a.Outcome, msText(a.Wait), a.Cause, msText(a.Lead))
		}
		rows = append(rows, row)
	}
	d.print([]string{"SERVER", "TOOL", "ON DEMAND", "WAITED", "SPECBOX", "WAITED", "STARTED BY", "AHEAD BY"}, rows)
	d.say("")
	ratio := ""
	if f.Ratio > 0 {
		ratio = fmt.Sprintf(": 1/%.1f", 1/f.Ratio)
	}
	d.say("Calls waited %s on demand, and %s with SpecBox%s.", msText(f.OnDemand.Wait), msText(f.SpecBox.Wait), ratio)
	d.say("It made %s ahead or on demand, %d of them for nobody.", plural(f.SpecBox.Starts, "start"), f.SpecBox.Wasted)
}

// drawPicture writes the same as a picture.
func (d *demo) drawPicture() error {
	f := &d.figures.Foresight
	f.Picture = filepath.Join(d.dir, "foresight.svg")
	file, err := os.Create(f.Picture)
	if err != nil {
		return err
	}
	err = errors.Join(bench.Draw(file, "One conversation, on demand and with SpecBox", f.lines...), file.Close())
	if err == nil {
		d.say("The same as a picture: %s", f.Picture)
	}
	return err
}
