package bench

import (
	"fmt"
	"html"
	"io"
	"slices"
	"strings"
	"time"
)

// A span is a bar of a picture, in seconds since the session began.
type span struct{ from, to float64 }

// A timeline is one session, lane by lane.
type timeline struct {
	task    string
	model   []span // from the request to the end of the answer
	servers []bars
	end     float64
}

// bars are those of a server that a session used.
type bars struct {
	server             string
	starts, wait, call []span
}

// timeline returns the session that uses most servers, or nil.
func (p *played) timeline() *timeline {
	best := 0
	for i := range p.sessions {
		if len(p.sessions[i].uses) > len(p.sessions[best].uses) {
			best = i
		}
	}
	if len(p.sessions) == 0 || len(p.sessions[best].uses) == 0 {
		return nil
	}
	s := &p.sessions[best]
	since := func(t time.Time) float64 { return t.Sub(s.begin).Seconds() }
	t := &timeline{task: s.task, end: since(s.end)}
	for _, a := range s.answers {
		t.model = append(t.model, span{since(a.asked), since(a.ended)})
	}
	sandboxes := map[string]int{} // -> index of lane
	for _, u := range s.uses {
		t.servers = append(t.servers, bars{server: u.Server})
	}
	for _, e := range p.events {
		if e.Kind != callKind || e.TraceID != traceID(best+1) {
			continue
		}
		i := slices.IndexFunc(t.servers, func(l bars) bool { return l.server == e.Server })
		if i < 0 {
			continue
		}
		sandboxes[e.Sandbox] = i
		from, ready, to := since(e.commit()), since(e.Time.Add(-e.Exec)), since(e.Time)
		t.servers[i].call = append(t.servers[i].call, span{ready, to})
		if ready-from > 0.001 {
			t.servers[i].wait = append(t.servers[i].wait, span{from, ready})
		}
	}
	for _, e := range p.events {
		if i, ok := sandboxes[e.Sandbox]; ok && e.Kind == startKind {
			t.servers[i].starts = append(t.servers[i].starts, span{since(e.begin()), since(e.Time)})
		}
	}
	return t
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

// Picture draws, as SVG, the session that uses most servers: when the model
// wrote, sandboxes started, calls waited and ran, without anything started ahead
// and, below, under the policy. cold chooses the cells; it is an error if they
// were not measured.
func (r *PrewarmReport) Picture(w io.Writer, policy string, cold time.Duration) error {
	lanes := 0
	var all []*timeline
	policies := []string{OnDemand, policy}
	for _, p := range policies {
		t := r.timelines[p+cold.String()]
		if t == nil {
			return fmt.Errorf("there is no session of policy %s with a cold start of %v to draw", p, cold)
		}
		all = append(all, t)
		lanes += 1 + len(t.servers)
	}
	end := max(all[0].end, all[1].end)
	x := func(s float64) float64 { return left + s/end*(pictureWidth-left-right) }
	height := 70 + lanes*laneHeight + len(all)*gapHeight
	var b strings.Builder
	fmt.Fprintf(&b, pictureHead, pictureWidth, height, pictureWidth, height, cold)
	y := 40
	for i, t := range all {
		waited := 0.0
		for _, s := range t.servers {
			for _, p := range s.wait {
				waited += p.to - p.from
			}
		}
		fmt.Fprintf(&b, "  <text class=\"ink b\" x=\"20\" y=\"%d\">%s: %.1f s, of which calls waited %.1f s</text>\n", y, html.EscapeString(policies[i]), t.end, waited)
		y += 12
		t.draw(&b, y, x)
		y += (1+len(t.servers))*laneHeight + gapHeight - 12
	}
	b.WriteString(axis(end, y-14, x))
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

const pictureHead = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-labelledby="t" font-family="ui-sans-serif, system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif">
  <title id="t">One session, with servers that take %v to start</title>
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
func (t *timeline) draw(b *strings.Builder, y int, x func(float64) float64) {
	bar := func(class string, s span, y, height int) {
		fmt.Fprintf(b, "  <rect class=%q x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\"/>\n", class, x(s.from), y, max(1.5, x(s.to)-x(s.from)), height)
	}
	lane := func(name string) {
		fmt.Fprintf(b, "  <text class=\"soft\" x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n", left-10, y+barHeight-2, html.EscapeString(short(name, 26)))
	}
	lane("LLM")
	for _, s := range t.model {
		bar("model", s, y, barHeight)
	}
	for _, server := range t.servers {
		y += laneHeight
		lane(server.server)
		for _, s := range server.starts {
			bar("start", s, y, barHeight)
		}
		for _, s := range server.wait {
			bar("wait", s, y+barHeight, 3)
		}
		for _, s := range server.call {
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
