package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/specbox/specbox/replay"
)

// An Event is a line of SpecBox's trace, as docs/observability.md describes it.
type Event struct {
	Time      time.Time     `json:"t"`
	Kind      string        `json:"kind"`
	Server    string        `json:"server"`
	Method    string        `json:"method"`
	Tool      string        `json:"tool"`
	Step      int           `json:"step"`
	Sandbox   string        `json:"sandbox"`
	Cause     string        `json:"cause"`
	Outcome   string        `json:"outcome"`
	Provision time.Duration `json:"provision_ns"`
	Lead      time.Duration `json:"lead_ns"`
	Exec      time.Duration `json:"exec_ns"`
	Err       string        `json:"err"`
	TraceID   string        `json:"trace_id"`
	Detail    string        `json:"detail"`
}

// Kinds and causes of events.
const (
	callKind     = "call"
	startKind    = "start"
	demandCause  = "demand"
	catalogCause = "catalog"
)

// commit returns when a call was made.
func (e *Event) commit() time.Time { return e.Time.Add(-e.Exec - e.Provision) }

// begin returns when the start of a sandbox began.
func (e *Event) begin() time.Time { return e.Time.Add(-e.Provision) }

// readEvents reads a trace.
func readEvents(file string) ([]Event, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was read only
	var all []Event
	for dec := json.NewDecoder(f); ; {
		var e Event
		if err := dec.Decode(&e); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("read the trace of SpecBox: %w", err)
		}
		all = append(all, e)
	}
}

// read takes from the trace what agents cannot see.
func (p *played) read(events []Event) {
	p.events = events
	used := map[string]bool{} // sandboxes
	owner := map[string]int{} // trace id -> session
	for i := range p.sessions {
		owner[TraceID(i+1)] = i
	}
	calls := make([][]Event, len(p.sessions))
	for _, e := range events {
		if e.Kind != callKind || e.Method != "tools/call" {
			continue
		}
		used[e.Sandbox] = true
		if i, ok := owner[e.TraceID]; ok {
			calls[i] = append(calls[i], e)
		}
	}
	for i := range calls {
		p.sessions[i].uses = firstUses(calls[i])
	}
	for _, e := range events {
		if e.Kind != startKind || e.Cause == catalogCause {
			continue
		}
		p.starts++ // one that was given up on the way has cost something as well
		if e.Cause != demandCause && !used[e.Sandbox] {
			p.wasted++
			p.blame(e)
		}
	}
}

// blame counts a wasted start on the session during which it was asked for. Of
// several that were under way each gets a part: the trace need not say whose
// text it was that made it likely.
func (p *played) blame(e Event) {
	var under []*Session
	for i := range p.sessions {
		if s := &p.sessions[i]; !e.begin().Before(s.begin) && e.begin().Before(s.end) {
			under = append(under, s)
		}
	}
	for _, s := range under {
		s.wasted += 1 / float64(len(under))
	}
}

// firstUses returns the first use of each server among the calls of a session.
// Calls of one step go out together: if one of them had to begin the start, the
// use was cold.
func firstUses(calls []Event) []PrewarmUse {
	slices.SortStableFunc(calls, func(a, b Event) int { return a.commit().Compare(b.commit()) })
	var uses []PrewarmUse
	step := map[string]int{} // server -> step of its first use
	at := map[string]int{}   // server -> index in uses
	for _, e := range calls {
		if first, ok := step[e.Server]; ok {
			if u := &uses[at[e.Server]]; e.Step == first {
				u.Wait = max(u.Wait, e.Provision.Seconds())
				if e.Outcome == replay.Cold {
					u.Outcome, u.Cause = e.Outcome, e.Cause
				}
			}
			continue
		}
		step[e.Server], at[e.Server] = e.Step, len(uses)
		uses = append(uses, PrewarmUse{
			Server: e.Server, Outcome: e.Outcome, Cause: e.Cause, Wait: e.Provision.Seconds(), Lead: e.Lead.Seconds(),
		})
	}
	return uses
}
