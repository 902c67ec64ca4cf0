// Package bench measures what SpecBox costs: the same calls of the same echo
// server, directly over standard input and output, and through SpecBox's HTTP
// door, in one run.
//
// Its laws:
//
//   - Both ways are measured interleaved, round by round, so that what else goes
//     on in the machine meets them alike.
//   - Both clients do the same, and little: each answer is read into memory of
//     its own, and its envelope is parsed. What is measured is the way, not the
//     client. The one of HTTP writes the protocol by itself, because a library
//     costs as much as what is to be measured.
//   - Every result is checked for its length, and the first of each kind byte
//     for byte.
package bench

import (
	"cmp"
	"slices"
	"time"
)

// The ways that a call can take.
const (
	Direct = "direct" // over standard input and output
	Legacy = "legacy" // through SpecBox, in a session
	Modern = "modern" // through SpecBox, without one
)

// Sizes of results that are measured, in bytes.
var sizes = []int{1 << 10, 1 << 20, 10 << 20}

// callers is how many there are at once.
var callers = []int{1, 32}

// A Cell is what was measured of one way, size and number of callers.
type Cell struct {
	Way      string  `json:"way"`
	Bytes    int     `json:"bytes"` // of a result
	Callers  int     `json:"callers"`
	Calls    int     `json:"calls"`
	P50us    float64 `json:"p50_us"`
	P99us    float64 `json:"p99_us"`
	PerSec   float64 `json:"calls_per_s"`            // the median of the rounds
	Ratio    float64 `json:"ratio,omitempty"`        // of the medians of time, to direct
	CPUus    float64 `json:"cpu_us,omitempty"`       // of SpecBox, a call
	PeakMB   float64 `json:"peak_mb,omitempty"`      // resident memory of SpecBox at its peak, in the first round
	OverMB   float64 `json:"peak_mb_over,omitempty"` // that, without the payload of all callers
	Failures int     `json:"failures,omitempty"`

	times   []time.Duration
	rates   []float64 // of each round
	cpu     time.Duration
	payload int
}

// A Report is what a run of [Hop] found. Its fields are those that scripts rely
// on; each stands for the era that is worse.
type Report struct {
	AddedP50us       float64 `json:"added_p50_us"`         // one caller, 1 KB: through SpecBox less direct
	CallsPerS32      float64 `json:"calls_per_s_32"`       // 32 callers, 1 KB, through SpecBox
	Ratio10MB        float64 `json:"ratio_10mb"`           // one caller, 10 MB: time through SpecBox to direct
	PeakMBOverResult float64 `json:"peak_mb_over_payload"` // one caller, 10 MB: resident memory of SpecBox less the result

	CPUus     float64 `json:"cpu_us"`      // of SpecBox, a call: one caller, 1 KB
	CPUus32   float64 `json:"cpu_us_32"`   // 32 callers, 1 KB
	CPUms10MB float64 `json:"cpu_ms_10mb"` // one caller, 10 MB

	CPUs    int     `json:"cpus"`
	Rounds  int     `json:"rounds"`
	IdleMB  float64 `json:"idle_mb"` // resident memory of SpecBox before the calls
	Seconds float64 `json:"seconds"`
	Cells   []*Cell `json:"cells"`
}

// Eras returns the ways through SpecBox that were measured.
func (r *Report) Eras() []string {
	var eras []string
	for _, c := range r.Cells {
		if c.Way != Direct && !slices.Contains(eras, c.Way) {
			eras = append(eras, c.Way)
		}
	}
	return eras
}

// Cell returns the cell of a way, size and number of callers, or nil.
func (r *Report) Cell(way string, bytes, callers int) *Cell {
	for _, c := range r.Cells {
		if c.Way == way && c.Bytes == bytes && c.Callers == callers {
			return c
		}
	}
	return nil
}

// percentile returns the p-th part of sorted times.
func percentile(sorted []time.Duration, p float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return micros(sorted[min(int(p*float64(len(sorted))), len(sorted)-1)])
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

func median[T cmp.Ordered](values []T) (m T) {
	if len(values) == 0 {
		return m
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// sum turns what was measured into figures.
func (r *Report) sum() {
	for _, c := range r.Cells {
		slices.Sort(c.times)
		c.Calls = len(c.times)
		c.P50us, c.P99us = percentile(c.times, 0.5), percentile(c.times, 0.99)
		c.PerSec = median(c.rates)
		if c.Way != Direct && c.Calls > 0 {
			c.CPUus = micros(c.cpu) / float64(c.Calls)
		}
	}
	first := true
	for _, era := range r.Eras() {
		for _, n := range callers {
			for _, size := range sizes {
				if c, d := r.Cell(era, size, n), r.Cell(Direct, size, n); c != nil && d != nil && d.P50us > 0 {
					c.Ratio = c.P50us / d.P50us
				}
			}
		}
		small, many, large := r.Cell(era, sizes[0], 1), r.Cell(era, sizes[0], callers[1]), r.Cell(era, sizes[2], 1)
		r.AddedP50us = max(r.AddedP50us, small.P50us-r.Cell(Direct, sizes[0], 1).P50us)
		r.Ratio10MB = max(r.Ratio10MB, large.Ratio)
		r.PeakMBOverResult = max(r.PeakMBOverResult, large.OverMB)
		r.CPUus, r.CPUus32 = max(r.CPUus, small.CPUus), max(r.CPUus32, many.CPUus)
		r.CPUms10MB = max(r.CPUms10MB, large.CPUus/1e3)
		if first || many.PerSec < r.CallsPerS32 {
			r.CallsPerS32 = many.PerSec
		}
		first = false
	}
}
