package control

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
)

// linger bounds how long Serve waits for answers under way once it is ended.
// Their contexts are cancelled at once, so that it is seldom needed.
const linger = 2 * time.Second

// maxBody bounds a request of the operator: the arguments of one call.
const maxBody = 256 << 20

// Serve answers on l until ctx ends, then ends what is under way and returns
// nil. It closes the socket but not l, so that the state folder stays taken
// until the caller closes l. A handler that ignores its context is left behind
// after two seconds.
func Serve(ctx context.Context, l *Listener, h http.Handler, log *slog.Logger) error {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	srv := &http.Server{
		Handler:           h,
		BaseContext:       func(net.Listener) context.Context { return life },
		ReadHeaderTimeout: 10 * time.Second,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l.Listener) }()
	var failed error
	select {
	case err := <-served:
		failed = fmt.Errorf("serve the control socket: %w", err)
	case <-ctx.Done():
	}
	end()
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), linger)
	defer cancel()
	if srv.Shutdown(bound) != nil {
		srv.Close()
	}
	if failed == nil {
		<-served
	}
	return failed
}

// Handler returns the API over rt. It does not authenticate: only the socket
// of [Listen] may lead to it.
func Handler(rt Runtime) http.Handler {
	mux := http.NewServeMux()
	get(mux, "GET /v1/health", rt.Health)
	get(mux, "GET /v1/ps", rt.PS)
	get(mux, "GET /v1/conversations", rt.Conversations)
	get(mux, "GET /v1/activity", rt.Activity)
	get(mux, "GET /v1/catalog", rt.Catalog)
	get(mux, "GET /v1/servers", rt.Servers)
	mux.HandleFunc("GET /v1/tools", func(w http.ResponseWriter, r *http.Request) {
		if rt.Tools == nil {
			fail(w, notOffered(r))
			return
		}
		tools, err := rt.Tools(r.Context(), r.FormValue("tenant"))
		answer(w, tools, err)
	})
	mux.HandleFunc("POST /v1/stop", func(w http.ResponseWriter, r *http.Request) { stop(w, r, rt) })
	mux.HandleFunc("GET /v1/logs", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		stream(w, r, rt.Logs != nil, func(s *streamer) error {
			if err := known(r.Context(), rt, q.Get("server")); err != nil {
				return err
			}
			return rt.Logs(r.Context(), q.Get("tenant"), q.Get("server"), q.Get("follow") == "true", func(l Line) error {
				return s.send(event{Line: &l})
			})
		})
	})
	mux.HandleFunc("POST /v1/call", func(w http.ResponseWriter, r *http.Request) { call(w, r, rt) })
	work(mux, "POST /v1/refresh", rt, rt.Refresh)
	work(mux, "POST /v1/update", rt, rt.Update)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, NotFound(fmt.Sprintf("the control socket has no %s %s", r.Method, r.URL.Path), "is this command of another version than the running specbox?"))
	})
	return mux
}

// get serves what a function without arguments returns.
func get[T any](mux *http.ServeMux, pattern string, f func(context.Context) (T, error)) {
	mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		if f == nil {
			fail(w, notOffered(r))
			return
		}
		v, err := f(r.Context())
		answer(w, v, err)
	})
}

// A names is the request of work on servers.
type names struct {
	Servers []string `json:"servers"`
}

// work serves a function that works on servers and reports progress.
func work(mux *http.ServeMux, pattern string, rt Runtime, f func(context.Context, []string, func(Progress) error) error) {
	mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		var in names
		if err := decode(w, r, &in); err != nil {
			fail(w, err)
			return
		}
		stream(w, r, f != nil, func(s *streamer) error {
			if err := known(r.Context(), rt, in.Servers...); err != nil {
				return err
			}
			return f(r.Context(), in.Servers, func(p Progress) error { return s.send(event{Progress: &p}) })
		})
	})
}

// A callRequest is the request of a call.
type callRequest struct {
	Tenant    string          `json:"tenant"`
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments,omitempty"`
}

func call(w http.ResponseWriter, r *http.Request, rt Runtime) {
	var in callRequest
	if err := decode(w, r, &in); err != nil {
		fail(w, err)
		return
	}
	stream(w, r, rt.Call != nil, func(s *streamer) error {
		result, err := rt.Call(r.Context(), in.Tenant, in.Name, in.Arguments, func(p Progress) error {
			return s.send(event{Progress: &p})
		})
		if err != nil {
			return err
		}
		return s.result(result)
	})
}

func stop(w http.ResponseWriter, r *http.Request, rt Runtime) {
	var in Selector
	err := decode(w, r, &in)
	switch {
	case err != nil:
	case rt.Stop == nil:
		err = notOffered(r)
	case !in.All && in.Target == "":
		err = &Error{Message: "nothing to stop was named", Hint: "name a server, a sandbox or a session, or stop all", Status: http.StatusBadRequest}
	}
	if err != nil {
		fail(w, err)
		return
	}
	n, err := rt.Stop(r.Context(), in)
	if err == nil && n == 0 && !in.All {
		// Nothing alive of a known server is no error; a word that names nothing is.
		if e := known(r.Context(), rt, in.Target); e != nil {
			err = &Error{Message: fmt.Sprintf("%q is no server, and no sandbox or session that is alive", in.Target), Hint: "specbox ps lists what is", Status: http.StatusNotFound}
		}
	}
	answer(w, stopped{n}, err)
}

// A stopped is the answer to stop.
type stopped struct {
	Stopped int `json:"stopped"`
}

// known returns an error if one of names is no configured server.
func known(ctx context.Context, rt Runtime, names ...string) error {
	if rt.Servers == nil || len(names) == 0 {
		return nil
	}
	rows, err := rt.Servers(ctx)
	if err != nil {
		return err
	}
	var have []string
	for _, s := range rows {
		have = append(have, s.Name)
	}
	for _, name := range names {
		if !slices.Contains(have, name) {
			return NotFound(fmt.Sprintf("there is no server %q", name), "the servers are: "+strings.Join(have, ", "))
		}
	}
	return nil
}

// errClosing is the reason why work was given up at shutdown.
var errClosing = &Error{Message: "specbox is shutting down", Hint: "try again once it runs", Status: http.StatusServiceUnavailable}

func notOffered(r *http.Request) *Error {
	return &Error{Message: fmt.Sprintf("this specbox does not offer %s", r.URL.Path), Status: http.StatusNotImplemented}
}

func decode(w http.ResponseWriter, r *http.Request, into any) error {
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(into); err != nil {
		return &Error{Message: fmt.Sprintf("read the request: %v", err), Status: http.StatusBadRequest}
	}
	return nil
}

// answer writes v, or err. A nil slice becomes an empty array.
func answer[T any](w http.ResponseWriter, v T, err error) {
	if err != nil {
		fail(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	b, err := json.Marshal(v)
	if err != nil {
		fail(w, err)
		return
	}
	if string(b) == "null" {
		b = []byte("[]")
	}
	w.Write(append(b, '\n')) // an error means that the client left
}

func fail(w http.ResponseWriter, err error) {
	e := asError(err)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(e.Status)
	json.NewEncoder(w).Encode(e)
}

// An event is one line of a streaming answer. Exactly one field is set. A
// Result says how many bytes follow the line: they pass as they are, and end
// with a line feed. After a Result, an Error, or End nothing follows.
type event struct {
	Line     *Line     `json:"line,omitempty"`
	Progress *Progress `json:"progress,omitempty"`
	Result   *int      `json:"result_bytes,omitempty"`
	Error    *Error    `json:"failed,omitempty"`
	End      bool      `json:"end,omitempty"`
}

// A streamer writes the lines of one streaming answer.
type streamer struct {
	w    http.ResponseWriter
	rc   *http.ResponseController
	gone <-chan struct{} // the client left, or SpecBox ends
	turn chan struct{}   // held while a line is written: reports come from many goroutines
	done bool            // its last line was written
}

func (s *streamer) send(e event) error {
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-s.gone:
		return context.Canceled
	}
	if _, err := s.w.Write(append(b, '\n')); err != nil {
		return err
	}
	return s.rc.Flush()
}

func (s *streamer) result(raw json.RawMessage) error {
	n := len(raw)
	s.done, s.gone = true, nil
	if err := s.send(event{Result: &n}); err != nil {
		return err
	}
	if _, err := s.w.Write(raw); err != nil {
		return err
	}
	_, err := s.w.Write([]byte{'\n'})
	return err
}

// stream answers with the lines that do sends, and a last line that tells how
// it ended. An error before the first line is answered with its status.
func stream(w http.ResponseWriter, r *http.Request, offered bool, do func(*streamer) error) {
	if !offered {
		fail(w, notOffered(r))
		return
	}
	first := &firstWrite{ResponseWriter: w}
	s := &streamer{w: first, rc: http.NewResponseController(w), gone: r.Context().Done(), turn: make(chan struct{}, 1)}
	w.Header().Set("Content-Type", "application/jsonl")
	err := do(s)
	if err != nil && r.Context().Err() != nil {
		err = errClosing // if it is the client that left, nobody reads this
	}
	s.gone = nil // the last line is tried in any case
	switch {
	case s.done:
	case err == nil:
		s.send(event{End: true})
	case !first.written:
		fail(w, err)
	default:
		s.send(event{Error: asError(err)})
	}
}

// A firstWrite remembers whether anything was written.
type firstWrite struct {
	http.ResponseWriter
	written bool
}

func (f *firstWrite) Write(b []byte) (int, error) {
	f.written = true
	return f.ResponseWriter.Write(b)
}
