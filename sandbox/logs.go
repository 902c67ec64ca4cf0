package sandbox

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	maxLine  = 4 << 10 // bytes of one line of stderr; the rest of it is dropped
	maxLines = 1000    // of one server of one tenant
	maxLogs  = 1024    // servers of tenants; then the one that was silent longest is forgotten
	maxTail  = 8       // lines that stand in an error
	maxWords = 300     // bytes of each of them
	maxNoise = 10      // events of noise of one sandbox
)

// NoisePrefix begins the lines that a backend hands to a sandbox's stderr
// though the server printed them on stdout, between its messages.
const NoisePrefix = "stdout: "

// A LogLine is one line that a server printed.
type LogLine struct {
	Time    time.Time
	Tenant  string
	Server  string
	Sandbox string
	Text    string
}

type logKey struct{ tenant, server string }

// logs keep the last lines of every server. They are safe for concurrent use.
type logs struct {
	mu    sync.Mutex
	rings map[logKey]*ring
	news  chan struct{} // closed with the next line; nil while nobody waits
}

// A ring holds the last lines.
type ring struct {
	lines []LogLine
	next  int // where the next line goes, once lines is full
	total int // lines ever
	last  time.Time
}

// since returns the lines that came after the first n, as far as they are kept.
func (r *ring) since(n int) []LogLine {
	all := slices.Concat(r.lines[r.next:], r.lines[:r.next])
	return all[max(0, len(all)-max(0, r.total-n)):]
}

func (l *logs) add(key logKey, line LogLine) {
	line.Tenant, line.Server = key.tenant, key.server
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.news != nil {
		close(l.news)
		l.news = nil
	}
	r := l.rings[key]
	if r == nil {
		if len(l.rings) >= maxLogs {
			l.forgetOldest()
		}
		if l.rings == nil {
			l.rings = map[logKey]*ring{}
		}
		r = &ring{}
		l.rings[key] = r
	}
	r.last = line.Time
	r.total++
	if len(r.lines) < maxLines {
		r.lines = append(r.lines, line)
		return
	}
	r.lines[r.next] = line
	r.next = (r.next + 1) % maxLines
}

func (l *logs) forgetOldest() {
	var oldest logKey
	var t time.Time
	for key, r := range l.rings {
		if t.IsZero() || r.last.Before(t) {
			oldest, t = key, r.last
		}
	}
	delete(l.rings, oldest)
}

func (l *logs) get(key logKey) []LogLine {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.rings[key]
	if r == nil {
		return nil
	}
	return r.since(0)
}

// after returns the lines of a server that came after those counted in seen,
// which it brings up to date, oldest first, and a channel that is closed with
// the next line of any server.
func (l *logs) after(tenant, server string, seen map[logKey]int) ([]LogLine, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []LogLine
	for key, r := range l.rings {
		if key.server == server && (tenant == "" || tenant == key.tenant) {
			out = append(out, r.since(seen[key])...)
			seen[key] = r.total
		}
	}
	slices.SortStableFunc(out, func(a, b LogLine) int { return a.Time.Compare(b.Time) })
	if l.news == nil {
		l.news = make(chan struct{})
	}
	return out, l.news
}

// Follow calls on with the kept lines of a server, oldest first, and then with
// each new one until ctx ends; without follow it returns after the kept ones.
// An empty tenant stands for all. It returns the first error of on, and nil
// when ctx ends.
func (m *Manager) Follow(ctx context.Context, tenant, server string, follow bool, on func(LogLine) error) error {
	seen := map[logKey]int{}
	for {
		lines, news := m.logs.after(tenant, server, seen)
		for _, line := range lines {
			if err := on(line); err != nil {
				return err
			}
		}
		if !follow {
			return nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return nil
		}
	}
}

// stderr is the writer that a sandbox's server prints to. It cuts lines, hides
// secrets, and keeps the tail. It is safe for concurrent use.
type stderr struct {
	line func(string) // called with each line

	mu      sync.Mutex
	secrets *strings.Replacer
	part    []byte // the line that has not ended yet
	tail    []string
}

func newStderr(spec *Spec, line func(string)) *stderr {
	return &stderr{line: line, secrets: spec.redactor()}
}

// Write takes output in pieces of any size.
func (w *stderr) Write(p []byte) (int, error) {
	var lines []string
	w.mu.Lock()
	n := len(p)
	for len(p) > 0 {
		end := bytes.IndexByte(p, '\n')
		piece := p
		if end >= 0 {
			piece = p[:end]
		}
		w.part = append(w.part, piece[:min(len(piece), max(0, maxLine-len(w.part)))]...)
		if end < 0 {
			break
		}
		lines = w.flush(lines)
		p = p[end+1:]
	}
	w.mu.Unlock()
	for _, text := range lines {
		w.line(text)
	}
	return n, nil
}

// flush appends the line that has ended to lines, unless it is empty.
func (w *stderr) flush(lines []string) []string {
	text := strings.TrimRight(strings.ToValidUTF8(string(w.part), "\uFFFD"), " \t\r")
	w.part = w.part[:0]
	if text == "" {
		return lines
	}
	text = w.secrets.Replace(text)
	w.tail = append(w.tail, text)
	if len(w.tail) > maxTail {
		w.tail = slices.Delete(w.tail, 0, len(w.tail)-maxTail)
	}
	return append(lines, text)
}

// end takes what was printed last as a line, though it did not end.
func (w *stderr) end() {
	_, _ = w.Write([]byte("\n")) // it has no errors
}

// last returns the last lines, cut to what an error may hold.
func (w *stderr) last() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := slices.Clone(w.tail)
	if part := strings.TrimSpace(string(w.part)); part != "" {
		out = append(out, w.secrets.Replace(strings.ToValidUTF8(part, "\uFFFD")))
	}
	for i, s := range out {
		if len(s) > maxWords {
			out[i] = strings.ToValidUTF8(s[:maxWords], "") + "…"
		}
	}
	return out
}
