package remote_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/sandbox/sandboxtest"
	"github.com/specbox/specbox/wire"
)

// A fixture is an HTTP server of test servers. The path says which: /http/… is
// Streamable HTTP that answers with event streams, /json/… one that answers
// with JSON and has no GET stream, /sse/… is HTTP with SSE; then the manner.
type fixture struct {
	*httptest.Server
	over chan struct{} // closed at the end of the test

	mu       sync.Mutex
	last     int
	sessions map[string]*session
	seen     []string // methods of HTTP and messages, with what matters of their headers
}

type session struct {
	out  chan string   // events of the GET stream
	gone chan struct{} // closed when the session ends
}

func newFixture(t *testing.T) *fixture {
	f := &fixture{over: make(chan struct{}), sessions: map[string]*session{}}
	f.Server = httptest.NewServer(f)
	t.Cleanup(func() {
		close(f.over)
		f.CloseClientConnections()
		f.Close()
	})
	return f
}

func (f *fixture) spec(kind, manner string) *sandbox.Spec {
	s := &sandbox.Spec{Server: "far-" + manner, Isolation: config.Remote, URL: f.URL + "/" + kind + "/" + manner, Transport: "http"}
	if kind == "sse" {
		s.Transport = "sse"
	}
	return s
}

// left returns the sessions that nobody has ended.
func (f *fixture) left() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for id := range f.sessions {
		out = append(out, "session "+id)
	}
	return out
}

func (f *fixture) note(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen = append(f.seen, fmt.Sprintf(format, args...))
}

func (f *fixture) notes() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.seen)
}

func (f *fixture) open() (string, *session) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last++
	id := fmt.Sprint("id-", f.last)
	s := &session{out: make(chan string), gone: make(chan struct{})}
	f.sessions[id] = s
	return id, s
}

func (f *fixture) find(id string) *session {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sessions[id]
}

func (f *fixture) end(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.sessions[id]; s != nil {
		close(s.gone)
		delete(f.sessions, id)
	}
}

func event(w http.ResponseWriter, typ, data string) {
	fmt.Fprintf(w, "event: %s\r\ndata: %s\r\n\r\n", typ, data)
	w.(http.Flusher).Flush()
}

func (f *fixture) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	kind, manner := parts[0], parts[1]
	if manner == sandboxtest.Deaf && r.Method == http.MethodPost {
		select {
		case <-f.over:
		case <-r.Context().Done():
		}
		return
	}
	if kind == "sse" {
		f.legacy(w, r, manner)
		return
	}
	id := r.Header.Get("Mcp-Session-Id")
	s := f.find(id)
	if r.Method != http.MethodPost && s == nil {
		http.NotFound(w, r)
		return
	}
	f.note("%s %s %s", r.Method, id, r.Header.Get("Mcp-Protocol-Version"))
	switch {
	case r.Method == http.MethodDelete && manner == sandboxtest.Stubborn:
		<-r.Context().Done()
		f.end(id)
	case r.Method == http.MethodDelete:
		f.end(id)
	case r.Method == http.MethodGet && kind == "json":
		http.Error(w, "no stream here", http.StatusMethodNotAllowed)
	case r.Method == http.MethodGet:
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush()
		f.events(w, r, s)
	default:
		f.post(w, r, kind, manner, id, s)
	}
}

// events sends the events of a session until one side ends.
func (f *fixture) events(w http.ResponseWriter, r *http.Request, s *session) {
	for {
		select {
		case e := <-s.out:
			event(w, "message", e)
		case <-s.gone:
			return
		case <-r.Context().Done():
			return
		}
	}
}

func (f *fixture) post(w http.ResponseWriter, r *http.Request, kind, manner, id string, s *session) {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	m, _ := wire.Parse(raw)
	switch {
	case m.Method == "initialize":
		id, _ = f.open()
		w.Header().Set("Mcp-Session-Id", id)
	case s == nil:
		http.NotFound(w, r)
		return
	case m.Method == "crash" && manner == sandboxtest.Crash:
		f.end(id)
		if kind == "http" {
			panic(http.ErrAbortHandler)
		}
		http.NotFound(w, r)
		return
	}
	answers := sandboxtest.Answer(raw)
	switch {
	case len(answers) == 0:
		w.WriteHeader(http.StatusAccepted)
	case kind == "json" && len(answers) == 1:
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		_, _ = w.Write(append(answers[0], '\n'))
	default:
		w.Header().Set("Content-Type", "text/event-stream")
		for _, a := range answers {
			event(w, "message", string(a))
		}
	}
}

// legacy is HTTP with SSE.
func (f *fixture) legacy(w http.ResponseWriter, r *http.Request, manner string) {
	if r.Method == http.MethodGet {
		id, s := f.open()
		defer f.end(id)
		w.Header().Set("Content-Type", "text/event-stream")
		event(w, "endpoint", r.URL.Path+"?session="+id)
		f.events(w, r, s)
		return
	}
	id := r.URL.Query().Get("session")
	s := f.find(id)
	if r.Method != http.MethodPost || s == nil {
		http.Error(w, "no session", http.StatusMethodNotAllowed)
		return
	}
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	w.WriteHeader(http.StatusAccepted)
	if m, _ := wire.Parse(raw); m.Method == "crash" && manner == sandboxtest.Crash {
		f.end(id)
		return
	}
	for _, a := range sandboxtest.Answer(raw) {
		select {
		case s.out <- string(a):
		case <-s.gone:
		}
	}
}
