package main

import (
	"cmp"
	"fmt"
	"slices"
)

// What the suite says of a check.
const (
	success = "SUCCESS"
	warning = "WARNING"
	failure = "FAILURE"
	skipped = "SKIPPED"
	info    = "INFO"
	absent  = "absent" // by us: it was not made
)

// A check is one finding of the suite.
type check struct {
	Scenario string `json:"scenario"`
	ID       string `json:"id"`
	Status   string `json:"status"`
	Message  string `json:"errorMessage,omitempty"`
}

// A difference is a check that came out otherwise through SpecBox.
type difference struct {
	Scenario string `json:"scenario"`
	ID       string `json:"id"`
	Direct   string `json:"direct"`
	Through  string `json:"through"`
	Message  string `json:"message,omitempty"`
}

func (d difference) String() string {
	s := fmt.Sprintf("%s / %s: %s -> %s", d.Scenario, d.ID, d.Direct, d.Through)
	if d.Message != "" {
		s += ": " + d.Message
	}
	return s
}

// goodness orders what the suite says. SKIPPED and INFO say nothing for or
// against, but where a check was made and passed they are less than that.
var goodness = map[string]int{failure: 0, absent: 1, warning: 2, skipped: 3, info: 3, success: 4}

// A key names a check. Of several of one name the worst one counts.
type key struct{ scenario, id string }

func worst(checks []check) map[key]check {
	out := map[key]check{}
	for _, c := range checks {
		k := key{c.Scenario, c.ID}
		if old, ok := out[k]; !ok || goodness[c.Status] < goodness[old.Status] {
			out[k] = c
		}
	}
	return out
}

// compare returns the checks that are worse through SpecBox. What passed
// directly and is not graded through SpecBox, by the suite's own word, is other:
// INFO in place of a grade or, where the check is absent, an INFO of its
// scenario that was not there directly. (Whether an answer is JSON or an event
// stream is the server's choice; the suite grades streams alone.)
func compare(direct, through []check) (worse, other []difference) {
	before, after := worst(direct), worst(through)
	notApplicable := map[string]string{} // scenario -> the id of the INFO
	for k, c := range after {
		if _, was := before[k]; !was && c.Status == info {
			notApplicable[k.scenario] = k.id
		}
	}
	for k, b := range before {
		a, ok := after[k]
		if !ok {
			a = check{Status: absent}
		}
		if goodness[a.Status] >= goodness[b.Status] || b.Status == info || b.Status == skipped && a.Status == absent {
			continue
		}
		d := difference{Scenario: k.scenario, ID: k.id, Direct: b.Status, Through: a.Status, Message: a.Message}
		switch {
		case a.Status == info:
			other = append(other, d)
		case a.Status == absent && notApplicable[k.scenario] != "":
			d.Message = "the suite says " + notApplicable[k.scenario]
			other = append(other, d)
		default:
			worse = append(worse, d)
		}
	}
	// What fails only through SpecBox is worse, too.
	for k, a := range after {
		if _, was := before[k]; !was && a.Status == failure {
			worse = append(worse, difference{Scenario: k.scenario, ID: k.id, Direct: absent, Through: a.Status, Message: a.Message})
		}
	}
	for _, list := range [][]difference{worse, other} {
		slices.SortFunc(list, func(a, b difference) int {
			return cmp.Or(cmp.Compare(a.Scenario, b.Scenario), cmp.Compare(a.ID, b.ID))
		})
	}
	return worse, other
}
