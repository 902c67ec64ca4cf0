package replay

import (
	"math"
	"slices"
	"time"
	"unicode/utf8"
)

// TokenChars is how many characters a token has where waits are computed. The
// replayed model has the same.
const TokenChars = 4

// A Pace says how fast a session goes.
type Pace struct {
	Rate  float64       // tokens a second
	First time.Duration // from a request to its first token
	Cold  time.Duration // from the beginning of a start to a ready sandbox
	Exec  time.Duration // of a call, when its sandbox is ready
	Hold  time.Duration // after which a ready sandbox that nobody used is discarded; 0: never
	// ToolName starts a server when the name of a tool of it is complete in the
	// stream, while the arguments are still to come.
	ToolName bool
}

// A Turn is a turn of a model as [Simulate] sees it. Characters are counted, not
// bytes.
type Turn struct {
	Chars int // of what is said before the calls
	Calls []TurnCall
	Fired []Firing // decisions to start a server, in any order
}

// A TurnCall is a call in a [Turn].
type TurnCall struct {
	Server    string
	Name      int // characters of the tool's name, as the model knows it
	Arguments int // characters of the arguments
}

// A Firing is a decision to start a server, made when so many characters of the
// turn had come; 0 means with the request, before the first token.
type Firing struct {
	Server string
	At     int
}

// What a call finds.
const (
	Warm = "warm" // a ready sandbox
	Late = "late" // a start under way
	Cold = "cold" // nothing: it begins the start
)

// A Use is the first use of a server in a session.
type Use struct {
	Server  string
	Turn    int // counted from 0
	Outcome string
	Wait    time.Duration // from the commit of the call to a ready sandbox
	Lead    time.Duration // from the decision to start to the commit
}

// Waits are what a session waits for.
type Waits struct {
	Uses   []Use
	Sum    time.Duration // of the waits of all uses
	Starts int           // all sandboxes that were started
	Wasted int           // of them, those that nobody used
	Length time.Duration // of the whole session
}

// A box is a sandbox in a simulated session.
type box struct {
	asked, ready time.Duration
	hold         time.Duration // until when it is kept unused
	used         bool
}

// Simulate computes what a session waits for, in virtual time: how long each
// first use of a server waits when servers are started by the decisions in
// turns. A server that was used stays. As many starts as are asked for go on at
// once, and none is slowed by another.
func Simulate(turns []Turn, p Pace) Waits {
	var w Waits
	var now time.Duration
	boxes := map[string]*box{}
	start := func(server string, at time.Duration) *box {
		b := boxes[server]
		if b != nil && !b.used && at > b.hold { // it was discarded in the meantime
			w.Wasted++
			b = nil
		}
		if b == nil {
			b = &box{asked: at, ready: at + p.Cold}
			boxes[server] = b
			w.Starts++
		}
		if b.hold = time.Duration(math.MaxInt64); p.Hold > 0 {
			b.hold = max(at, b.ready) + p.Hold
		}
		return b
	}
	for i, t := range turns {
		fired, commit := schedule(t, now, p)
		for _, f := range fired {
			start(f.server, f.at)
		}
		now = commit
		for _, c := range t.Calls {
			before := w.Starts
			b := start(c.Server, commit)
			ready := max(b.ready, commit)
			if !b.used {
				b.used = true
				u := Use{Server: c.Server, Turn: i, Outcome: Late, Wait: ready - commit, Lead: commit - b.asked}
				switch {
				case w.Starts > before:
					u.Outcome = Cold
				case b.ready <= commit:
					u.Outcome = Warm
				}
				w.Uses = append(w.Uses, u)
				w.Sum += u.Wait
			}
			now = max(now, ready+p.Exec)
		}
	}
	for _, b := range boxes {
		if !b.used {
			w.Wasted++
		}
	}
	w.Length = now
	return w
}

// A moment is when a server's start is asked for.
type moment struct {
	server string
	at     time.Duration
}

// schedule returns when the decisions of a turn that begins at begin are made,
// in order, and when its calls are committed, which is with its last token.
func schedule(t Turn, begin time.Duration, p Pace) (fired []moment, commit time.Duration) {
	// when returns the moment at which so many tokens have come
	when := func(tokens int) time.Duration {
		if tokens == 0 {
			return begin
		}
		d := begin + p.First
		if p.Rate > 0 {
			d += time.Duration(float64(tokens-1) / p.Rate * float64(time.Second))
		}
		return d
	}
	for _, f := range t.Fired {
		fired = append(fired, moment{f.Server, when(tokens(min(f.At, t.Chars)))})
	}
	all := tokens(t.Chars)
	for _, c := range t.Calls {
		all += tokens(c.Name)
		if p.ToolName {
			fired = append(fired, moment{c.Server, when(all)})
		}
		all += tokens(c.Arguments)
	}
	slices.SortStableFunc(fired, func(a, b moment) int { return int(a.at - b.at) })
	return fired, when(max(1, all))
}

func tokens(chars int) int { return (chars + TokenChars - 1) / TokenChars }

// Turns returns the session for [Simulate], one element for each of
// [Trajectory.IntentSteps], with no decisions yet. Tools have the names that
// SpecBox gives them. Calls of servers that do not exist are left out.
func (t *Trajectory) Turns() []Turn {
	var all []Turn
	for _, s := range t.Spoken() {
		turn := Turn{Chars: utf8.RuneCountInString(s.Text)}
		for _, c := range s.Calls {
			turn.Calls = append(turn.Calls, TurnCall{
				Server: c.Server, Name: utf8.RuneCountInString(c.Server + "__" + c.Tool),
				Arguments: utf8.RuneCountInString(c.Compact()),
			})
		}
		all = append(all, turn)
	}
	return all
}

// Add takes in another session.
func (w *Waits) Add(o Waits) {
	w.Uses = append(w.Uses, o.Uses...)
	w.Sum += o.Sum
	w.Starts += o.Starts
	w.Wasted += o.Wasted
	w.Length += o.Length
}

// Outcomes returns how many uses found what.
func (w *Waits) Outcomes() map[string]int {
	n := map[string]int{}
	for _, u := range w.Uses {
		n[u.Outcome]++
	}
	return n
}
