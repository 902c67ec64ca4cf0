package main

import (
	"fmt"
	"io"
	"sync/atomic"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/specbox/specbox/control"
)

// A reporter shows the progress of work: on a terminal a bar for each phase,
// and everywhere a line for each server that is through with it. Write may be
// called concurrently, the rest not.
type reporter struct {
	w      io.Writer
	bars   *mpb.Progress // nil where nobody looks
	phases map[string]*phase
	failed int // servers, counted once a phase
}

// A phase is one kind of work on several servers, or one call.
type phase struct {
	bar   *mpb.Bar // nil where nobody looks
	done  float64
	say   atomic.Value    // string beside the bar, which a goroutine of its own draws
	begun map[string]bool // servers that were told of
}

// newReporter returns a reporter on w. Its close must be called.
func newReporter(w io.Writer) *reporter {
	r := &reporter{w: w, phases: make(map[string]*phase)}
	if isTerminal(w) {
		r.bars = mpb.New(mpb.WithOutput(w))
	}
	return r
}

// Write prints whole lines above the bars.
func (r *reporter) Write(b []byte) (int, error) {
	if r.bars == nil {
		return r.w.Write(b)
	}
	return r.bars.Write(b)
}

// close removes the bars. Lines that are written later appear as they come.
func (r *reporter) close() {
	if r.bars == nil {
		return
	}
	for phase := range r.phases {
		r.end(phase)
	}
	r.bars.Wait()
}

// report shows p.
func (r *reporter) report(p control.Progress) {
	ph := r.phases[p.Phase]
	if ph == nil {
		ph = &phase{begun: make(map[string]bool)}
		ph.say.Store("")
		r.phases[p.Phase] = ph
		if r.bars != nil {
			ph.bar = r.bar(p, ph)
		}
	}
	through := p.Error != "" || p.Done > ph.done
	ph.done = max(ph.done, p.Done)
	if r.bars != nil {
		ph.say.Store(short(line(p.Server, p.Message), max(20, width(r.w)-barWidth-20)))
		// mpb takes a bar whose total is 0 for one without an end.
		ph.bar.SetTotal(int64(p.Total*1000), false)
		ph.bar.SetCurrent(int64(ph.done * 1000))
	}
	if p.Server == "" {
		return // a call: what it reports is of interest only while it runs
	}
	switch {
	case p.Error != "":
		r.failed++
		fmt.Fprintln(r, paint(r.w, red, r.prefix(p, ph)+line(p.Server, "error: "+p.Error)))
	case through:
		text := p.Message
		if text == "" {
			text = "done"
		}
		fmt.Fprintln(r, r.prefix(p, ph)+line(p.Server, text))
	case r.bars == nil && !ph.begun[p.Server]:
		fmt.Fprintln(r, p.Phase+" "+line(p.Server, p.Message))
	}
	ph.begun[p.Server] = true
	if p.Total > 0 && ph.done >= p.Total {
		r.end(p.Phase)
	}
}

// end forgets a phase that is over: the next report of it begins another round.
func (r *reporter) end(phase string) {
	if ph := r.phases[phase]; ph.bar != nil {
		ph.bar.Abort(true)
	}
	delete(r.phases, phase)
}

// prefix tells how far a phase is: "install 2/6 ".
func (r *reporter) prefix(p control.Progress, ph *phase) string {
	if p.Total == 0 {
		return p.Phase + " "
	}
	return fmt.Sprintf("%s %g/%g ", p.Phase, ph.done, p.Total)
}

const barWidth = 28

// bar makes the bar of a phase, or a spinner where its end is not known.
func (r *reporter) bar(p control.Progress, ph *phase) *mpb.Bar {
	style := mpb.BarFillerBuilder(mpb.BarStyle().Lbound("").Filler("█").Tip("█").Padding("░").Rbound(""))
	if p.Total == 0 {
		style = mpb.SpinnerStyle()
	}
	return r.bars.New(0, style,
		mpb.BarWidth(barWidth),
		mpb.PrependDecorators(decor.Name(p.Phase+" ", decor.WCSyncSpaceR)),
		mpb.AppendDecorators(decor.Any(func(decor.Statistics) string { return " " + ph.say.Load().(string) })))
}

// line is "name: text" on one line, or whichever of them there is.
func line(name, text string) string {
	switch {
	case text == "":
		return plain(name)
	case name == "":
		return plain(text)
	}
	return plain(name) + ": " + plain(text)
}
