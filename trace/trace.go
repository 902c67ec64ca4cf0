// Package trace records what the runtime did, one [Event] at a time.
//
// The trace is the runtime's only instrument: the file that replay reads, the
// metrics, the dashboard and the learner are all readers of this one stream.
// Rooms record events and import no metrics library. Figures that are states,
// not events, are snapshots that the rooms offer.
package trace

import (
	"encoding/json"
	"errors"
	"io"
	"iter"
	"slices"
	"sync"
	"time"
)

// A Kind says what an event is about.
type Kind string

const (
	SessionOpen  Kind = "session_open"  // a client opened Session
	SessionClose Kind = "session_close" // Session ended
	StepBegin    Kind = "step"          // Session committed the first call of Step
	CallEnd      Kind = "call"          // a call of Tool on Server returned
	Start        Kind = "start"         // a sandbox became ready, or could not be started (Err)
	Stop         Kind = "stop"          // a sandbox is gone; Detail says why it was stopped
	CatalogFill  Kind = "catalog"       // the catalogue of Server was read, or could not be (Err)
	Guess        Kind = "guess"         // Server became likely to be called: Cause, P, and in Detail which router says so
	Noise        Kind = "noise"         // Server printed something that is no MCP message (Detail)
)

// An Outcome says what a call found. The words are those of docs/words.md.
type Outcome string

const (
	Warm   Outcome = "warm"   // the sandbox was ready
	Late   Outcome = "late"   // its start was under way already
	Cold   Outcome = "cold"   // the call had to begin the start
	Cached Outcome = "cached" // no sandbox was needed
)

// A Cause says why a sandbox was started.
type Cause string

const (
	Demand  Cause = "demand"  // a call needed it
	Catalog Cause = "catalog" // its lists were to be read

	ToolName Cause = "tool name" // the model's stream named a tool of it
	Intent   Cause = "intent"    // the model's text made a call likely
	Prompt   Cause = "prompt"    // the user's words made a call likely
	Graph    Cause = "graph"     // it often follows what was called
	Hint     Cause = "hint"      // an operator or a client asked for it
)

// Unused begins the Detail of a Stop of a sandbox that was started ahead, and
// that no call came for.
const Unused = "unused"

// Speculative reports whether nobody waited when a start of that cause began.
func (c Cause) Speculative() bool {
	switch c {
	case ToolName, Intent, Prompt, Graph, Hint:
		return true
	}
	return false
}

// An Event is one thing that happened at one moment. Fields that do not apply
// are empty. It never holds arguments, results, or secrets.
type Event struct {
	Time    time.Time `json:"t"`
	Kind    Kind      `json:"kind"`
	Tenant  string    `json:"tenant,omitempty"`
	Session string    `json:"session,omitempty"`
	Step    int       `json:"step,omitempty"` // counts from 1 within Session
	Server  string    `json:"server,omitempty"`
	Method  string    `json:"method,omitempty"` // MCP method of a call
	Tool    string    `json:"tool,omitempty"`   // the server's own name of it
	Sandbox string    `json:"sandbox,omitempty"`
	Backend string    `json:"backend,omitempty"`
	Cause   Cause     `json:"cause,omitempty"`
	Outcome Outcome   `json:"outcome,omitempty"`

	Provision time.Duration `json:"provision_ns,omitempty"` // from commit, or start, to ready
	Lead      time.Duration `json:"lead_ns,omitempty"`      // of a call: how long before its commit the start of its sandbox had been asked for
	Saved     time.Duration `json:"saved_ns,omitempty"`     // of a call: how much longer it would have waited without that, by what its server's starts take
	P         float64       `json:"p,omitempty"`            // of a start that is a guess: how sure it was
	Exec      time.Duration `json:"exec_ns,omitempty"`      // from ready to the reply
	BytesIn   int64         `json:"bytes_in,omitempty"`     // arguments
	BytesOut  int64         `json:"bytes_out,omitempty"`    // result
	Memory    int64         `json:"memory_bytes,omitempty"` // of the sandbox when it was stopped: its peak where known
	IsError   bool          `json:"is_error,omitempty"`     // the tool, or the server, answered with an error
	Err       string        `json:"err,omitempty"`          // why there is no answer

	TraceID  string `json:"trace_id,omitempty"`  // of the client's trace, where it names one
	SpanID   string `json:"span_id,omitempty"`   // of this call in it
	ParentID string `json:"parent_id,omitempty"` // of the client's span
	Detail   string `json:"detail,omitempty"`
}

// A Recorder takes events. Record is called concurrently and on the request
// path: it must not block.
type Recorder interface {
	Record(Event)
}

// Discard is a Recorder that forgets.
var Discard Recorder = RecorderFunc(func(Event) {})

// A RecorderFunc is a function used as a [Recorder].
type RecorderFunc func(Event)

// Record calls f.
func (f RecorderFunc) Record(e Event) { f(e) }

// Tee returns a Recorder that hands each event to every one of rs, in order,
// with its time set if it had none.
func Tee(rs ...Recorder) Recorder {
	return RecorderFunc(func(e Event) {
		if e.Time.IsZero() {
			e.Time = time.Now()
		}
		for _, r := range rs {
			r.Record(e)
		}
	})
}

// A Log is a Recorder that keeps events in memory. Its zero value is empty.
type Log struct {
	mu     sync.Mutex
	events []Event
}

// Record keeps e.
func (l *Log) Record(e Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, e)
}

// Events returns what was recorded so far.
func (l *Log) Events() []Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.events)
}

// A Writer records events as JSON lines, off the request path: Record hands
// them to a goroutine, and drops them, counted, when it cannot keep up.
type Writer struct {
	mu      sync.Mutex
	closed  bool
	dropped int
	queue   chan Event
	done    chan struct{}
	err     error // first write error; read after done
}

// queued events take up to about a megabyte before they are dropped.
const writerQueue = 4096

// NewWriter returns a Writer on w. Call [Writer.Close] to write what is queued.
func NewWriter(w io.Writer) *Writer {
	t := &Writer{queue: make(chan Event, writerQueue), done: make(chan struct{})}
	go func() {
		defer close(t.done)
		enc := json.NewEncoder(w)
		for e := range t.queue {
			if t.err == nil {
				t.err = enc.Encode(e)
			}
		}
	}()
	return t
}

// Record queues e.
func (t *Writer) Record(e Event) {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	select {
	case t.queue <- e:
	default:
		t.dropped++
	}
}

// Dropped returns how many events were not written because the writer could
// not keep up.
func (t *Writer) Dropped() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.dropped
}

// Close writes what is queued and returns the first error of writing. The
// underlying writer stays open. Later events are ignored.
func (t *Writer) Close() error {
	t.mu.Lock()
	if !t.closed {
		t.closed = true
		close(t.queue)
	}
	t.mu.Unlock()
	<-t.done
	return t.err
}

// Read yields the events recorded in r. After an error it stops.
func Read(r io.Reader) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		dec := json.NewDecoder(r)
		for {
			var e Event
			err := dec.Decode(&e)
			if errors.Is(err, io.EOF) {
				return
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}
