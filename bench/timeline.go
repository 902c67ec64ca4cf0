package bench

import (
	"fmt"
	"html"
	"io"
	"slices"
	"strings"
	"time"
)

// A Span is a stretch of time, in seconds since its session began.
type Span struct{ From, To float64 }

// A Timeline is one session, lane by lane.
type Timeline struct {
	Name  string  // what the session is an example of
	Model []Span  // from each request to the model to the end of its answer
	Lanes []Lane  // in the order of the first calls, then those that no call came for
	End   float64 // of the session
}

// A Lane is what went on at one server.
type Lane struct {
	Server string
	Starts []Span // of sandboxes
	Waits  []Span // of calls, for a sandbox
	Calls  []Span // from the ready sandbox to the reply
}

// shortest is the shortest wait that is one, in seconds.
const shortest = 0.001

// Timeline returns what went on in a session, by SpecBox's trace. With alone, it
// was the only one, and what was started ahead for nobody stands there too.
func (s *Session) Timeline(name string, events []Event, alone bool) *Timeline {
	since := func(t time.Time) float64 { return t.Sub(s.begin).Seconds() }
	t := &Timeline{Name: name, End: since(s.end)}
	for _, a := range s.answers {
		t.Model = append(t.Model, Span{since(a.asked), since(a.ended)})
	}
	var calls []Event
	for _, e := range events {
		if e.Kind == callKind && e.TraceID == TraceID(s.number) {
			calls = append(calls, e)
		}
	}
	slices.SortStableFunc(calls, func(a, b Event) int { return a.commit().Compare(b.commit()) })
	used := map[string]bool{} // sandboxes
	for _, e := range calls {
		used[e.Sandbox] = true
		l := t.lane(e.Server)
		from, ready, to := since(e.commit()), since(e.Time.Add(-e.Exec)), since(e.Time)
		l.Calls = append(l.Calls, Span{ready, to})
		if ready-from > shortest {
			l.Waits = append(l.Waits, Span{from, ready})
		}
	}
	for _, e := range events {
		if e.Kind == startKind && (used[e.Sandbox] || alone && e.Cause != catalogCause) {
			l := t.lane(e.Server)
			l.Starts = append(l.Starts, Span{since(e.begin()), min(since(e.Time), t.End)})
		}
	}
	return t
}

// lane returns the lane of a server.
func (t *Timeline) lane(server string) *Lane {
	i := slices.IndexFunc(t.Lanes, func(l Lane) bool { return l.Server == server })
	if i < 0 {
		i = len(t.Lanes)
		t.Lanes = append(t.Lanes, Lane{Server: server})
	}
	return &t.Lanes[i]
}

// Waited returns how long all calls together waited for their sandboxes, in
// seconds. Calls that waited for one sandbox at the same time count once.
func (t *Timeline) Waited() float64 {
	sum := 0.0
	for _, l := range t.Lanes {
		until := 0.0
		for _, w := range l.Waits { // they are in the order in which they begin
			sum += max(0, w.To-max(w.From, until))
			until = max(until, w.To)
		}
	}
	return sum
}

// Measures of the picture, in pixels.
const (
	pictureWidth = 1000
	left         = 190 // where time begins
	right        = 20
	laneHeight   = 22
	barHeight    = 12
	gapHeight    = 34 // between two policies
)

// Draw draws timelines, as SVG, below one another and on one scale.
func Draw(w io.Writer, title string, all ...*Timeline) error {
	lanes, end := 0, 0.0
	for _, t := range all {
		lanes += 1 + len(t.Lanes)
		end = max(end, t.End)
	}
	x := func(s float64) float64 { return left + s/end*(pictureWidth-left-right) }
	height := 70 + lanes*laneHeight + len(all)*gapHeight
	var b strings.Builder
	fmt.Fprintf(&b, pictureHead, pictureWidth, height, pictureWidth, height, html.EscapeString(title))
	y := 40
	for _, t := range all {
		fmt.Fprintf(&b, "  <text class=\"ink b\" x=\"20\" y=\"%d\">%s: %.1f s, of which calls waited %.1f s</text>\n", y, html.EscapeString(t.Name), t.End, t.Waited())
		y += 12
		t.draw(&b, y, x)
		y += (1+len(t.Lanes))*laneHeight + gapHeight - 12
	}
	b.WriteString(axis(end, y-14, x))
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

const pictureHead = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-labelledby="t" font-family="ui-sans-serif, system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif">
  <title id="t">%s</title>
  <style>
    .ink { fill: #1f2933 } .soft { fill: #52606d } .line { stroke: #cbd2d9 }
    .model { fill: #a9bcd6 } .start { fill: #f7c948 } .wait { fill: #d64545 } .call { fill: #2f8f5b }
    @media (prefers-color-scheme: dark) {
      .ink { fill: #e6edf3 } .soft { fill: #a5b1bf } .line { stroke: #3e4c59 }
      .model { fill: #40536d } .start { fill: #d79b2d } .wait { fill: #e66a6a } .call { fill: #45b079 }
    }
    text { font-size: 12px } .b { font-size: 14px; font-weight: 600 }
  </style>
  <rect class="model" x="190" y="8" width="14" height="10"/><text class="soft" x="210" y="17">the model writes</text>
  <rect class="start" x="330" y="8" width="14" height="10"/><text class="soft" x="350" y="17">a sandbox starts</text>
  <rect class="wait" x="470" y="8" width="14" height="10"/><text class="soft" x="490" y="17">a call waits for it</text>
  <rect class="call" x="620" y="8" width="14" height="10"/><text class="soft" x="640" y="17">a call runs</text>
`

// draw draws the lanes of a session below y.
func (t *Timeline) draw(b *strings.Builder, y int, x func(float64) float64) {
	bar := func(class string, s Span, y, height int) {
		fmt.Fprintf(b, "  <rect class=%q x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\"/>\n", class, x(s.From), y, max(1.5, x(s.To)-x(s.From)), height)
	}
	lane := func(name string) {
		fmt.Fprintf(b, "  <text class=\"soft\" x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n", left-10, y+barHeight-2, html.EscapeString(short(name, 26)))
	}
	lane("LLM")
	for _, s := range t.Model {
		bar("model", s, y, barHeight)
	}
	for _, server := range t.Lanes {
		y += laneHeight
		lane(server.Server)
		for _, s := range server.Starts {
			bar("start", s, y, barHeight)
		}
		for _, s := range server.Waits {
			bar("wait", s, y+barHeight, 3)
		}
		for _, s := range server.Calls {
			bar("call", s, y, barHeight)
		}
	}
}

// short cuts a name that is too long for its place.
func short(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}

// axis draws the seconds.
func axis(end float64, y int, x func(float64) float64) string {
	step := 1.0
	for _, s := range []float64{2, 5, 10, 20, 50, 100} {
		if end/step > 12 {
			step = s
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "  <path class=\"line\" d=\"M%d %dH%d\"/>\n", left, y, pictureWidth-right)
	for s := 0.0; s <= end; s += step {
		fmt.Fprintf(&b, "  <path class=\"line\" d=\"M%.1f %dv5\"/><text class=\"soft\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.0f s</text>\n", x(s), y, x(s), y+18, s)
	}
	return b.String()
}
