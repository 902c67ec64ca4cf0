package sandbox

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/specbox/specbox/config"
)

// An Estimate is what was learned of a server on a backend. Quantiles are over
// the last starts; figures of which nothing is known are 0.
type Estimate struct {
	Server  string
	Backend config.Isolation
	Starts  int           // the starts that Cold is learned from, of those remembered
	Cold    time.Duration // from the beginning of a start to the sandbox being ready: the median
	ColdP99 time.Duration
	Memory  int64 // bytes in use by a sandbox once it is ready: the median
	Peak    int64 // bytes, the most at any time of a sandbox's life: the median
	PeakP99 int64
}

const (
	remembered = 64                     // figures of each kind
	maxKnown   = 1024                   // servers; then all is learned anew
	usualCold  = time.Second            // of a server, while nothing is known of any
	usualSize  = int64(64 << 20)        // bytes, likewise
	oddStart   = 100 * time.Microsecond // what took less was no start
)

type estimateKey struct {
	server  string
	backend config.Isolation
}

// figures are what is remembered of a server.
type figures struct {
	cold    recent // of starts in the ordinary class, in ns
	guessed recent // of those that ended in the idle class, in ns
	memory  recent
	peak    recent
	last    int64 // memory seen last
}

// A recent is the last figures of a kind.
type recent struct {
	values []int64
	next   int   // where the next one goes, once values is full
	median int64 // 0 without values
}

func (r *recent) add(v int64) {
	if len(r.values) < remembered {
		r.values = append(r.values, v)
	} else {
		r.values[r.next] = v
		r.next = (r.next + 1) % remembered
	}
	r.median = r.quantile(0.5)
}

// quantile returns the q-quantile, or 0 if there are no figures.
func (r *recent) quantile(q float64) int64 {
	if len(r.values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(r.values))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

func (b *box) estimateKey() estimateKey { return estimateKey{b.server, b.spec.Isolation} }

// figures returns what is known of the server of b, to be added to.
func (s *state) figures(b *box) *figures {
	key := b.estimateKey()
	f := s.known[key]
	if f == nil {
		if len(s.known) >= maxKnown {
			clear(s.known)
		}
		f = &figures{}
		s.known[key] = f
	}
	return f
}

// cold is what a start of b's server takes, or that of a typical one.
func (s *state) cold(b *box) time.Duration {
	if f := s.known[b.estimateKey()]; f != nil && f.usualCold() > 0 {
		return f.usualCold()
	}
	return cmp.Or(s.typical, usualCold)
}

// typify notes the median of what the starts of all servers take.
func (s *state) typify() {
	var all []time.Duration
	for _, f := range s.known {
		if cold := f.usualCold(); cold > 0 {
			all = append(all, cold)
		}
	}
	if len(all) > 0 {
		slices.Sort(all)
		s.typical = all[len(all)/2]
	}
}

// usualCold tells by the starts in the ordinary class. Those in the idle class
// take longer: the shortest of them is the nearest to the truth.
func (f *figures) usualCold() time.Duration {
	if len(f.cold.values) == 0 && len(f.guessed.values) > 0 {
		return time.Duration(slices.Min(f.guessed.values))
	}
	return time.Duration(f.cold.median)
}

// expected is the memory that b will use. Nothing is held against a call whose
// server was never seen. A guess must show that there is room, also for what its
// server needs while it starts.
func (s *state) expected(b *box) int64 {
	f := s.known[b.estimateKey()]
	switch {
	case b.guess && f == nil:
		return usualSize
	case b.guess:
		return cmp.Or(max(f.last, f.peak.median), usualSize)
	case f == nil:
		return 0
	}
	return f.last
}

// started notes how long a start took; inIdle says that it was in the idle
// class, and promoted that it left it on the way.
func (s *state) started(b *box, took time.Duration, inIdle, promoted bool) {
	switch f := s.figures(b); {
	case took < oddStart:
	case !inIdle:
		f.cold.add(int64(took))
	case !promoted:
		f.guessed.add(int64(took))
	}
	s.typify()
}

// used notes what b uses.
func (s *state) used(b *box, u Usage) {
	u.Peak = max(u.Peak, u.Memory, b.usage.Peak)
	b.usage = u
	if u.Memory > 0 {
		if !b.wrung { // what was taken back will be in use again
			s.figures(b).last = u.Memory
		}
		s.stirred = true
	}
}

// weighed notes what b uses as that of a sandbox that is ready.
func (s *state) weighed(b *box) {
	f := s.figures(b)
	if b.usage.Memory > 0 {
		f.memory.add(b.usage.Memory)
	}
	if b.usage.Peak > 0 {
		f.peak.add(b.usage.Peak)
	}
}

// Estimates returns what was learned of each server on each backend, by name.
func (m *Manager) Estimates() []Estimate {
	var out []Estimate
	m.view(func(s *state) {
		for key, f := range s.known {
			out = append(out, Estimate{
				Server: key.server, Backend: key.backend, Starts: len(f.cold.values),
				Cold: f.usualCold(), ColdP99: cmp.Or(time.Duration(f.cold.quantile(0.99)), f.usualCold()),
				Memory: f.memory.median, Peak: f.peak.median, PeakP99: f.peak.quantile(0.99),
			})
		}
	})
	slices.SortFunc(out, func(a, b Estimate) int {
		return cmp.Or(cmp.Compare(a.Server, b.Server), cmp.Compare(a.Backend, b.Backend))
	})
	return out
}

// stored is the form in which what was learned is kept.
type stored struct {
	Server  string           `json:"server"`
	Backend config.Isolation `json:"backend"`
	Cold    []int64          `json:"cold_ns,omitempty"`
	Guessed []int64          `json:"idle_class_ns,omitempty"`
	Memory  []int64          `json:"memory_bytes,omitempty"`
	Peak    []int64          `json:"peak_bytes,omitempty"`
}

// SaveEstimates writes what was learned, for [Manager.LoadEstimates].
func (m *Manager) SaveEstimates(w io.Writer) error {
	all := []stored{}
	m.view(func(s *state) {
		for key, f := range s.known {
			all = append(all, stored{
				Server: key.server, Backend: key.backend, Cold: slices.Clone(f.cold.values), Guessed: slices.Clone(f.guessed.values),
				Memory: slices.Clone(f.memory.values), Peak: slices.Clone(f.peak.values),
			})
		}
	})
	slices.SortFunc(all, func(a, b stored) int {
		return cmp.Or(cmp.Compare(a.Server, b.Server), cmp.Compare(a.Backend, b.Backend))
	})
	if err := json.NewEncoder(w).Encode(all); err != nil {
		return fmt.Errorf("write the estimates of servers: %w", err)
	}
	return nil
}

// LoadEstimates reads what [Manager.SaveEstimates] has written. It replaces what
// is known of the servers that stand there. Figures that cannot be are left out.
func (m *Manager) LoadEstimates(r io.Reader) error {
	var all []stored
	if err := json.NewDecoder(r).Decode(&all); err != nil {
		return fmt.Errorf("read the estimates of servers: %w", err)
	}
	m.update(func(s *state, _ time.Time) {
		for _, e := range all[:min(len(all), maxKnown)] {
			f := &figures{cold: newRecent(e.Cold), guessed: newRecent(e.Guessed), memory: newRecent(e.Memory), peak: newRecent(e.Peak)}
			f.last = f.memory.median
			s.known[estimateKey{e.Server, e.Backend}] = f
		}
		s.typify()
	})
	return nil
}

func newRecent(values []int64) recent {
	var r recent
	for _, v := range values {
		if v > 0 {
			r.add(v)
		}
	}
	return r
}
