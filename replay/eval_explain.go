package replay

import (
	"unicode/utf8"

	"github.com/specbox/specbox/intent"
)

// A Guess is what a policy makes of a server in a text.
type Guess struct {
	Server string  `json:"server"`
	Fired  bool    `json:"fired"`
	At     int     `json:"at"`     // characters of the text seen when it fired; 0: the prompt alone was enough
	P      float64 `json:"p"`      // at that moment; of one that did not fire, at the end
	Source string  `json:"source"` // what says so
	Why    string  `json:"why"`    // the evidence, at that moment
}

// Explain streams text to p, token by token, as one of kind k after history,
// and asks after each. It returns first what fired, in that order, then what did
// not, the surest first.
func Explain(p intent.Policy, h intent.History, k intent.Kind, text string) []Guess {
	w := p.Begin(h)
	var fired []Guess
	known := make(map[string]bool)
	var now []intent.Intent
	chars := 0
	ask := func() {
		now = w.Intents(now[:0], true)
		for _, g := range now {
			if g.Fired && !known[g.Server] {
				known[g.Server] = true
				fired = append(fired, Guess{g.Server, true, chars, g.P, g.Source, g.Why})
			}
		}
	}
	ask()
	for text != "" {
		piece := cut(text)
		text = text[len(piece):]
		w.Text(k, []byte(piece))
		chars += utf8.RuneCountInString(piece)
		ask()
	}
	all := fired
	for _, g := range now {
		if !known[g.Server] {
			all = append(all, Guess{g.Server, false, 0, g.P, g.Source, g.Why})
		}
	}
	return all
}
