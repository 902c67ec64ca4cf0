package replay

import (
	"slices"
	"time"
	"unicode/utf8"

	"github.com/specbox/specbox/intent"
)

// tokenBytes is how much a model writes at a time: English has about four bytes
// to a token. A piece is lengthened to the end of its last character.
const tokenBytes = 4

// A recorded is a session as it is played.
type recorded struct {
	id, task string
	steps    []intent.Step
	flow     []Turn // the same steps, as they are timed
}

// record makes t ready to be played, with or without what its searches for
// tools returned, and with names masked if mask is not nil.
func record(t *Trajectory, candidates bool, mask *mask) recorded {
	r := recorded{id: t.ID, task: t.Task, steps: t.IntentSteps(), flow: t.Turns()}
	var found []*Step // steps with candidates, which are the turns with candidates
	for i := range t.Steps {
		if len(t.Steps[i].Candidates) > 0 {
			found = append(found, &t.Steps[i])
		}
	}
	var offered []string
	for i := range r.steps {
		s := &r.steps[i]
		s.Text = slices.Clone(s.Text)
		for j := range s.Text {
			s.Text[j].Found = nil
			if mask != nil {
				s.Text[j].Text = mask.hide(s.Text[j].Text)
			}
		}
		if mask != nil {
			s.Prompt = mask.hide(s.Prompt)
		}
		s.Offered = offered
		if len(s.Candidates) > 0 {
			if candidates {
				for _, l := range searched(s.Text, found[0].Candidates) {
					offered = join(l, offered)
				}
			} else {
				s.Candidates = nil
			}
			found = found[1:]
		}
	}
	return r
}

// Sessions returns sessions as policies are fitted on them, with or without what
// their searches for tools returned: [intent.Segment] says what each found, and
// [intent.History] what searches of earlier steps had found.
func Sessions(ts []Trajectory, candidates bool) []intent.Session {
	var all []intent.Session
	for i := range ts {
		r := record(&ts[i], candidates, nil)
		all = append(all, intent.Session{Task: r.task, Steps: r.steps})
	}
	return all
}

// join returns names, and after them those of others that are not among them.
func join(names, others []string) []string {
	all := slices.Clone(names)
	for _, o := range others {
		if !slices.Contains(all, o) {
			all = append(all, o)
		}
	}
	return all
}

// searched notes with each search in text which servers it returned, and
// returns these lists. The file holds the results of all searches of a step in
// one list. They return equally many nearly always; a rest is given to the last,
// so that nothing is known too early.
func searched(text []intent.Segment, all []Candidate) [][]string {
	var queries []*intent.Segment
	for i := range text {
		if text[i].Kind == intent.Query {
			queries = append(queries, &text[i])
		}
	}
	n := max(len(queries), 1)
	each := len(all) / n
	lists := make([][]string, n)
	for i := range lists {
		part := all[i*each : (i+1)*each]
		if i == n-1 {
			part = all[i*each:]
		}
		for _, c := range part {
			lists[i] = join(lists[i], []string{c.Server})
		}
		if i < len(queries) {
			queries[i].Found = lists[i]
		}
	}
	return lists
}

// An outlook is what a policy said of one server in one turn.
type outlook struct {
	best  float64 // highest P
	fired bool    // at any time
	at    int     // characters seen when it first fired
}

// A played turn is what a policy said in it.
type played struct {
	*intent.Step
	chars int // of its whole text
	said  map[string]*outlook
	order []string // servers at the end of the text, surest first
}

// A stopwatch sums what a policy costs.
type stopwatch struct {
	tokens, decisions int
	text, decide      time.Duration
}

// A player streams steps through a policy the way they come in life: token by
// token, with a decision every so many bytes and wherever a piece of text ends.
type player struct {
	every int // bytes between decisions, at least
	cost  stopwatch

	since   int // bytes since the last decision
	guesses []intent.Intent
	buf     [tokenBytes + utf8.UTFMax]byte
}

// play streams one step through a watch of p, which is not told what the step
// called, nor what its searches are going to return.
func (pl *player) play(p intent.Policy, step *intent.Step) *played {
	h := step.History
	h.Candidates = nil
	out := &played{Step: step, said: make(map[string]*outlook)}
	w := p.Begin(h)
	pl.ask(w, out) // what is known before the first token may be enough

	told := false
	for i, seg := range step.Text {
		text := seg.Text
		if i > 0 {
			text = "\n" + text // else the words at the seam would be one
		}
		pl.stream(w, out, seg.Kind, text)
		pl.ask(w, out)
		if len(seg.Found) > 0 {
			pl.tell(w, out, seg.Found)
			told = true
		}
	}
	if !told && len(step.Candidates) > 0 { // of searches whose words were not recorded
		pl.tell(w, out, step.Candidates)
	}
	for _, g := range pl.guesses {
		out.order = append(out.order, g.Server)
	}
	return out
}

// tell hands over what a search returned, and asks again.
func (pl *player) tell(w intent.Watch, out *played, found []string) {
	w.Candidates(slices.Clone(found))
	pl.ask(w, out)
}

// stream feeds text token by token.
func (pl *player) stream(w intent.Watch, out *played, k intent.Kind, text string) {
	for len(text) > 0 {
		began := time.Now()
		for pl.since < pl.every && len(text) > 0 {
			piece := cut(text)
			text = text[len(piece):]
			w.Text(k, pl.buf[:copy(pl.buf[:], piece)]) // overwritten by the next: a watch keeps nothing
			out.chars += utf8.RuneCountInString(piece)
			pl.cost.tokens++
			pl.since += len(piece)
		}
		pl.cost.text += time.Since(began)
		if pl.since >= pl.every {
			pl.ask(w, out)
		}
	}
}

// cut returns the first token of s, which is not empty.
func cut(s string) string {
	n := min(tokenBytes, len(s))
	for n < len(s) && n < tokenBytes+utf8.UTFMax && !utf8.RuneStart(s[n]) {
		n++
	}
	return s[:n]
}

// ask takes the policy's decision as of now.
func (pl *player) ask(w intent.Watch, out *played) {
	began := time.Now()
	pl.guesses = w.Intents(pl.guesses[:0], false)
	pl.cost.decide += time.Since(began)
	pl.cost.decisions++
	pl.since = 0
	for _, g := range pl.guesses {
		o := out.said[g.Server]
		if o == nil {
			o = &outlook{}
			out.said[g.Server] = o
		}
		o.best = max(o.best, g.P)
		if g.Fired && !o.fired {
			o.fired, o.at = true, out.chars
		}
	}
}
