package model

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"
)

// An answer is one turn on its way to a client.
type answer struct {
	script  string
	number  int // of the turn
	turn    *Turn
	model   string
	usage   bool // the client of a stream asked for it
	input   int  // tokens of the request
	created int64
	serial  uint64 // of the answer, in this server

	tokens []token
}

// A token is what comes at one moment. The tokens of a tool's name pass
// unseen but the last one, which brings the whole name: so do providers.
type token struct {
	kind  tokenKind
	block int // parts and then calls, counted from 0
	text  string
}

type tokenKind int

const (
	said tokenKind = iota
	hidden
	named
	argument
)

// split cuts the turn into tokens.
func (a *answer) split() {
	for i, p := range a.turn.Parts {
		for _, t := range Tokens(p.Text) {
			a.tokens = append(a.tokens, token{said, i, t})
		}
	}
	for i, c := range a.turn.Calls {
		block := len(a.turn.Parts) + i
		name := Tokens(c.Name)
		for range len(name) - 1 {
			a.tokens = append(a.tokens, token{hidden, block, ""})
		}
		a.tokens = append(a.tokens, token{named, block, c.Name})
		for _, t := range Tokens(arguments(c)) {
			a.tokens = append(a.tokens, token{argument, block, t})
		}
	}
}

func arguments(c Call) string {
	if c.Arguments == "" {
		return "{}"
	}
	return c.Arguments
}

// id returns an identifier that no other answer of this server has.
func (a *answer) id(prefix string, n int) string {
	return fmt.Sprintf("%s_%08x%04x", prefix, a.serial, n)
}

// said returns what the parts of one kind say, together.
func (a *answer) said(reasoning bool) string {
	text := ""
	for _, p := range a.turn.Parts {
		if p.Reasoning == reasoning {
			text += p.Text
		}
	}
	return text
}

// count returns how many tokens have passed, and how many of them were thoughts.
func (a *answer) count() (all, reasoning int) {
	for _, t := range a.tokens {
		if t.kind == said && a.turn.Parts[t.block].Reasoning {
			reasoning++
		}
	}
	return len(a.tokens), reasoning
}

// A voice says an answer in a wire format. Its methods but whole return what a
// stream of events says there.
type voice interface {
	begin() []event
	open(block int) []event // a part or a call begins
	delta(block int, text string) []event
	shut(block int) []event
	end() []event
	fail(f *Failure) []event
	// whole returns the answer that is no stream.
	whole() any
}

// play streams the answer.
func (a *answer) play(w http.ResponseWriter, p *pacer, v voice) {
	if !p.begin() {
		return
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.Header().Set("Cache-Control", "no-cache")
	out := &events{w: w, flush: http.NewResponseController(w)}
	out.write(v.begin())
	open := -1 // block
	for i, t := range a.tokens {
		if f := a.turn.Fail; f != nil && i >= f.After {
			break
		}
		if !p.token(i) || out.err != nil {
			return
		}
		if t.kind == hidden {
			continue
		}
		if t.block != open {
			if open >= 0 {
				out.write(v.shut(open))
			}
			open = t.block
			out.write(v.open(open))
		}
		if t.kind != named {
			out.write(v.delta(open, t.text))
		}
		out.send()
	}
	if f := a.turn.Fail; f != nil {
		if f.Cut {
			out.send()
			panic(http.ErrAbortHandler)
		}
		out.write(v.fail(f))
		out.send()
		return
	}
	if open >= 0 {
		out.write(v.shut(open))
	}
	out.write(v.end())
	out.send()
}

// A pacer keeps the time of one answer.
type pacer struct {
	config Config
	random *rand.Rand
	gone   <-chan struct{}
	due    time.Time // of the token before
}

// begin waits for the first token. It reports whether the client is still there,
// as all methods do.
func (p *pacer) begin() bool {
	p.due = time.Now()
	p.due = p.due.Add(p.shake(p.config.First))
	return p.wait()
}

// token waits for the n-th token; the first comes with begin.
func (p *pacer) token(n int) bool {
	if n == 0 || p.config.Rate == 0 {
		return true
	}
	p.due = p.due.Add(p.shake(p.gap()))
	return p.wait()
}

// skip waits for n tokens at once.
func (p *pacer) skip(n int) bool {
	if p.config.Rate == 0 {
		return true
	}
	for range n - 1 {
		p.due = p.due.Add(p.shake(p.gap()))
	}
	return p.wait()
}

func (p *pacer) gap() time.Duration { return time.Duration(float64(time.Second) / p.config.Rate) }

func (p *pacer) shake(d time.Duration) time.Duration {
	if p.config.Jitter == 0 {
		return d
	}
	return time.Duration(float64(d) * (1 + p.config.Jitter*(2*p.random.Float64()-1)))
}

func (p *pacer) wait() bool {
	left := time.Until(p.due)
	if left <= 0 {
		select {
		case <-p.gone:
			return false
		default:
			return true
		}
	}
	t := time.NewTimer(left)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-p.gone:
		return false
	}
}
