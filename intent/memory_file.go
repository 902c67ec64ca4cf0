package intent

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"slices"
)

// memoryVersion is that of what a memory saves. It changes when words are hashed
// in another way, too.
const memoryVersion = 1

type savedMemory struct {
	Version int           `json:"version"`
	Servers []string      `json:"servers"`
	Steps   []savedLesson `json:"steps"` // oldest first
}

// A savedLesson names servers by their place in the list of all.
type savedLesson struct {
	Called []int  `json:"called"`
	Used   []int  `json:"used,omitempty"`
	Text   []term `json:"text,omitempty"`
	Prompt []term `json:"prompt,omitempty"`
}

// Save writes what was learned so that Load can read it: names of servers and
// hashes of words. Meanwhile steps may be learned.
func (m *Memory) Save(w io.Writer) error {
	m.mu.RLock()
	lessons := m.g.lessons(m.limit)
	m.mu.RUnlock()
	s := savedMemory{Version: memoryVersion}
	places := map[string]int{}
	number := func(names []string) []int {
		var all []int
		for _, name := range names {
			n, ok := places[name]
			if !ok {
				n = len(s.Servers)
				places[name] = n
				s.Servers = append(s.Servers, name)
			}
			all = append(all, n)
		}
		return all
	}
	for _, l := range lessons {
		s.Steps = append(s.Steps, savedLesson{number(l.called), number(l.used), l.text, l.prompt})
	}
	z := gzip.NewWriter(w)
	if err := json.NewEncoder(z).Encode(s); err != nil {
		return err
	}
	return z.Close()
}

// largest is how many bytes of a file are read, unpacked.
const largest = 64 << 20

// Load replaces what was learned by what Save wrote. After an error the memory
// is as it was.
func (m *Memory) Load(r io.Reader) error {
	z, err := gzip.NewReader(r)
	if err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	var s savedMemory
	if err := json.NewDecoder(io.LimitReader(z, largest)).Decode(&s); err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	if s.Version != memoryVersion {
		return fmt.Errorf("memory: it is of version %d, this program reads version %d: take it away, and what it holds is learned anew", s.Version, memoryVersion)
	}
	g := newGeneration()
	for i, st := range s.Steps[max(0, len(s.Steps)-m.limit):] {
		var l lesson
		for _, part := range []struct {
			from []int
			to   *[]string
		}{{st.Called, &l.called}, {st.Used, &l.used}} {
			for _, n := range part.from {
				if n < 0 || n >= len(s.Servers) {
					return fmt.Errorf("memory: step %d names server %d of %d", i+1, n, len(s.Servers))
				}
				*part.to = append(*part.to, s.Servers[n])
			}
		}
		l.text, l.prompt = distinct(slices.Clone(st.Text)), distinct(slices.Clone(st.Prompt))
		if len(l.called) > 0 {
			g.add(l)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.g = g
	return nil
}
