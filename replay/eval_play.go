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

// A turn is a step of a recorded session as it is played.
type turn struct {
	intent.Step
	searches [][]string // what each search for tools returned, in order; nil: not to be told
}

// A recorded is a session as it is played.
type recorded struct {
	id, task string
	turns    []turn
	flow     []Turn // the same turns, as they are timed
}

// record makes t ready to be played, with or without what its searches for
// tools returned, and with names masked if mask is not nil.
func record(t *Trajectory, candidates bool, mask *mask) recorded {
	r := recorded{id: t.ID, task: t.Task, flow: t.Turns()}
	var found []*Step // steps with candidates, which are the turns with candidates
	for i := range t.Steps {
		if len(t.Steps[i].Candidates) > 0 {
			found = append(found, &t.Steps[i])
		}
	}
	for _, s := range t.IntentSteps() {
		tu := turn{Step: s}
		if len(s.Candidates) > 0 {
			if candidates {
				tu.searches = searches(s.Text, found[0].Candidates)
			} else {
				tu.Candidates = nil
			}
			found = found[1:]
		}
		if mask != nil {
			tu.Prompt = mask.hide(tu.Prompt)
			tu.Text = slices.Clone(tu.Text)
			for i := range tu.Text {
				tu.Text[i].Text = mask.hide(tu.Text[i].Text)
			}
		}
		r.turns = append(r.turns, tu)
	}
	return r
}

// searches says which servers each search of a turn returned. The file holds the
// results of all of them in one list. They return equally many nearly always; a
// rest is given to the last, so that nothing is known too early.
func searches(text []intent.Segment, all []Candidate) [][]string {
	queries := 0
	for _, seg := range text {
		if seg.Kind == intent.Query {
			queries++
		}
	}
	queries = max(queries, 1)
	lists := make([][]string, queries)
	each := len(all) / queries
	for i := range lists {
		part := all[i*each : (i+1)*each]
		if i == queries-1 {
			part = all[i*each:]
		}
		for _, c := range part {
			if !slices.Contains(lists[i], c.Server) {
				lists[i] = append(lists[i], c.Server)
			}
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
	*turn
	chars int // of its whole text
	said  map[string]*outlook
	order []string // servers at the end of the text, surest first
}

// A stopwatch sums what a policy costs.
type stopwatch struct {
	tokens, decisions int
	text, decide      time.Duration
}

// add adds o.
func (s *stopwatch) add(o stopwatch) {
	s.tokens += o.tokens
	s.decisions += o.decisions
	s.text += o.text
	s.decide += o.decide
}

// A player streams turns through a policy the way they come in life: token by
// token, with a decision every so many bytes and wherever a piece of text ends.
type player struct {
	every int // bytes between decisions, at least
	cost  stopwatch

	since   int // bytes since the last decision
	guesses []intent.Intent
	buf     [tokenBytes + utf8.UTFMax]byte
}

// play streams one turn through a watch of p, which is not told what the turn
// called, nor what its searches are going to return.
func (pl *player) play(p intent.Policy, t *turn) *played {
	h := t.History
	h.Candidates = nil
	out := &played{turn: t, said: make(map[string]*outlook)}
	w := p.Begin(h)
	pl.ask(w, out) // what is known before the first token may be enough

	pending := t.searches
	for i, seg := range t.Text {
		text := seg.Text
		if i > 0 {
			text = "\n" + text // else the words at the seam would be one
		}
		pl.stream(w, out, seg.Kind, text)
		pl.ask(w, out)
		if len(pending) > 0 && seg.Kind == intent.Query {
			pl.tell(w, out, pending[0])
			pending = pending[1:]
		}
	}
	for _, found := range pending { // of searches whose words were not recorded
		pl.tell(w, out, found)
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
