package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// A Severity says what follows from a fault.
type Severity string

const (
	// Error means that something cannot run: the server that the fault names,
	// or the whole configuration if it names none.
	Error Severity = "error"
	// Warning means that it runs, but likely not as it was meant.
	Warning Severity = "warning"
	// Note means that something is worth knowing.
	Note Severity = "note"
)

// A Fault is one thing that is wrong, or worth knowing, in a file.
type Fault struct {
	Place      Place    `json:"place"`
	Severity   Severity `json:"severity"`
	Server     string   `json:"server,omitempty"` // "" if it concerns the whole file
	Message    string   `json:"message"`
	Suggestion string   `json:"suggestion,omitempty"` // what to do, as a sentence without its full stop
}

// String returns the fault on one line, as compilers write them:
// "mcp.json:12: error: server git: no command; add command or url".
func (f Fault) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s: ", f.Place, f.Severity)
	if f.Server != "" {
		fmt.Fprintf(&b, "server %s: ", f.Server)
	}
	b.WriteString(f.Message)
	if f.Suggestion != "" {
		b.WriteString("; ")
		b.WriteString(f.Suggestion)
	}
	return b.String()
}

// Fatal returns those faults that leave nothing to run with: errors that
// concern no single server. A configuration that has some must not be served.
func Fatal(faults []Fault) []Fault {
	var fatal []Fault
	for _, f := range faults {
		if f.Severity == Error && f.Server == "" {
			fatal = append(fatal, f)
		}
	}
	return fatal
}

func sortFaults(faults []Fault) {
	slices.SortStableFunc(faults, func(a, b Fault) int { return cmp.Compare(a.Place.Line, b.Place.Line) })
}

// didYouMean suggests the known word that is nearest to the one written.
func didYouMean(written string, known []string) string {
	best, distance := "", 1+len(written)/3
	for _, k := range known {
		d := editDistance(strings.ToLower(written), strings.ToLower(k))
		if d < distance || d == distance && best == "" {
			best, distance = k, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("did you mean %q?", best)
}

// editDistance counts the letters to insert, delete, replace, or swap with
// their neighbour, to turn a into b. Long words are far from everything.
func editDistance(a, b string) int {
	const long = 64
	if len(a) > long || len(b) > long {
		return len(a) + len(b)
	}
	before, prev, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			replace := prev[j-1]
			if a[i-1] != b[j-1] {
				replace++
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, replace)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], before[j-2]+1)
			}
		}
		before, prev, cur = prev, cur, before
	}
	return prev[len(b)]
}
