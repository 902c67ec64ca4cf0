package replay

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/specbox/specbox/intent"
)

// IntentSteps returns the session as a policy sees it, one element for each turn
// of the model. A step of the file within which the user speaks again is two
// turns: what the model had said before called nothing.
//
// History.Tools is nil: the recorded agents saw none of the servers' tools.
// Candidates are those of the whole step: which search returned which was not
// recorded.
func (t *Trajectory) IntentSteps() []intent.Step {
	var all []intent.Step
	var used [][]string
	prompt := t.Prompt
	for i := range t.Steps {
		s := &t.Steps[i]
		turn := intent.Step{History: intent.History{Prompt: prompt, Used: used}}
		for _, g := range s.Segments {
			if g.Kind == User {
				if len(turn.Text) > 0 {
					all = append(all, turn)
					used = append(slices.Clone(used), nil)
				}
				prompt = g.Text
				turn = intent.Step{History: intent.History{Prompt: prompt, Used: used}}
				continue
			}
			turn.Text = append(turn.Text, intent.Segment{Kind: kindOf(g.Kind), Text: g.Text})
		}
		turn.Candidates = s.candidates()
		turn.Called = s.Servers()
		all = append(all, turn)
		used = append(slices.Clone(used), turn.Called)
	}
	return all
}

func kindOf(kind string) intent.Kind {
	if kind == Query {
		return intent.Query
	}
	return intent.Content
}

// candidates returns the servers of the candidates, each once.
func (s *Step) candidates() []string {
	var names []string
	for _, c := range s.Candidates {
		if !slices.Contains(names, c.Server) {
			names = append(names, c.Server)
		}
	}
	return names
}

// Steps returns the turns of many sessions, one after another, as a policy is
// fitted on them.
func Steps(ts []Trajectory) []intent.Step {
	var all []intent.Step
	for i := range ts {
		all = append(all, ts[i].IntentSteps()...)
	}
	return all
}

// A Spoken is a turn of the model as it went on, for those who play the session
// again.
type Spoken struct {
	User  string // what the user says before it; "" in the middle of a task
	Text  string // what the model says, its pieces joined by line feeds
	Calls []Call // in parallel; those of servers that do not exist are left out
}

// Spoken returns the session as it was said, one element for each of
// [Trajectory.IntentSteps]. The first begins with the prompt.
func (t *Trajectory) Spoken() []Spoken {
	var all []Spoken
	user := t.Prompt
	for i := range t.Steps {
		var said []string
		turn := func(calls []Call) {
			all = append(all, Spoken{User: user, Text: strings.Join(said, "\n"), Calls: calls})
			user, said = "", nil
		}
		for _, g := range t.Steps[i].Segments {
			if g.Kind != User {
				said = append(said, g.Text)
				continue
			}
			if len(said) > 0 {
				turn(nil)
			}
			user = g.Text
		}
		var calls []Call
		for _, c := range t.Steps[i].Calls {
			if !c.Unknown {
				calls = append(calls, c)
			}
		}
		turn(calls)
	}
	return all
}

// Compact returns the arguments as a model writes them, without spaces between
// them; {} where there are none.
func (c *Call) Compact() string {
	var b bytes.Buffer
	if len(c.Arguments) == 0 || string(c.Arguments) == "null" || json.Compact(&b, c.Arguments) != nil {
		return "{}"
	}
	return b.String()
}
