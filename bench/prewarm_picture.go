package bench

import (
	"fmt"
	"io"
	"time"
)

// timeline returns the session that uses most servers, or nil.
func (p *played) timeline(name string) *Timeline {
	best := 0
	for i := range p.sessions {
		if len(p.sessions[i].uses) > len(p.sessions[best].uses) {
			best = i
		}
	}
	if len(p.sessions) == 0 || len(p.sessions[best].uses) == 0 {
		return nil
	}
	return p.sessions[best].Timeline(name, p.events, false)
}

// Picture draws, as SVG, the session that uses most servers: when the model
// wrote, sandboxes started, calls waited and ran, without anything started ahead
// and, below, under the policy. cold chooses the cells; it is an error if they
// were not measured.
func (r *PrewarmReport) Picture(w io.Writer, policy string, cold time.Duration) error {
	var all []*Timeline
	for _, p := range []string{OnDemand, policy} {
		t := r.timelines[p+cold.String()]
		if t == nil {
			return fmt.Errorf("there is no session of policy %s with a cold start of %v to draw", p, cold)
		}
		all = append(all, t)
	}
	return Draw(w, fmt.Sprintf("One session, with servers that take %v to start", cold), all...)
}
