// Package model is a language model that says what a script tells it to: a
// replay of recorded conversations behind the wire formats of real providers,
// OpenAI Chat Completions and Responses and Anthropic Messages, streaming and
// not.
//
// Its laws:
//
//   - Nothing is kept between two requests: which conversation it is, and which
//     turn of it, stands in the request, as with a real model. Requests are
//     served concurrently.
//   - Text comes token by token, at the rate that was asked for, on a schedule
//     that a slow reader does not shift.
//   - All waiting is on timers, so that it is exact in virtual time, and ends
//     when the client goes.
//   - Jitter comes from a seed: the same conversation always has the same.
package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

// TokenChars is how many characters a token has; the last one of a text may have
// fewer. It is about what tokenizers of real models have in English.
const TokenChars = 4

// Prefix is what names of models begin with that name a conversation: Prefix and
// its Key.
const Prefix = "replay/"

// A Script is one conversation.
type Script struct {
	// Key names the conversation. A request is for it if its model is Prefix and
	// the key, or, under any other model, if its first message of a user is
	// Prompt.
	Key    string
	Prompt string
	// Turns are the answers, in order. A request gets the one that follows the
	// turns of the assistant that it repeats.
	Turns []Turn
}

// A Turn is one answer: what is said and then the tools that are called, all in
// parallel. One without calls is final.
type Turn struct {
	Parts []Part
	Calls []Call
	Fail  *Failure // nil: nothing fails
}

// A Part is a piece of what is said.
type Part struct {
	Text      string
	Reasoning bool // thought, not said
}

// A Call is the call of a tool.
type Call struct {
	Name      string // as the request's tools name it
	Arguments string // a JSON object; "" means {}
}

// A Failure is how an answer fails. With After 0 it comes instead of the answer,
// with the status; with more it comes in a stream after so many tokens, as the
// provider's event for errors, and an answer that is no stream fails as with 0.
type Failure struct {
	Status  int    // of HTTP; 0 means 500
	Type    string // such as overloaded_error; "" means server_error
	Message string
	After   int
	Cut     bool // no event tells of it: the connection is cut
}

// Config configures a [Server].
type Config struct {
	Scripts []Script
	Rate    float64       // tokens a second; 0 means all at once
	First   time.Duration // from the request to the first token
	Jitter  float64       // every gap is longer or shorter by up to this share, in [0, 1]
	Seed    uint64
}

// A Server is the model. It is an [http.Handler] for /v1/chat/completions,
// /v1/responses, /v1/messages and /v1/models, below any prefix.
type Server struct {
	config  Config
	byKey   map[string]*Script
	byFirst map[string]*Script
	served  atomic.Uint64
}

// New checks the scripts and returns a Server of them. It starts nothing.
func New(c Config) (*Server, error) {
	if c.Jitter < 0 || c.Jitter > 1 {
		return nil, fmt.Errorf("jitter is %v: it must be from 0 to 1", c.Jitter)
	}
	if c.Rate < 0 || c.First < 0 {
		return nil, errors.New("the rate and the time to the first token must not be negative")
	}
	s := &Server{config: c, byKey: map[string]*Script{}, byFirst: map[string]*Script{}}
	for i := range c.Scripts {
		sc := &c.Scripts[i]
		if _, twice := s.byKey[sc.Key]; twice || sc.Key == "" {
			return nil, fmt.Errorf("script %d: its key %q must be there, and there once", i+1, sc.Key)
		}
		s.byKey[sc.Key] = sc
		if _, twice := s.byFirst[sc.Prompt]; !twice && sc.Prompt != "" {
			s.byFirst[sc.Prompt] = sc
		}
		for n, t := range sc.Turns {
			for _, p := range t.Parts {
				if p.Text == "" {
					return nil, fmt.Errorf("script %q, turn %d: a part needs text", sc.Key, n+1)
				}
			}
			for _, call := range t.Calls {
				if call.Name == "" || call.Arguments != "" && !json.Valid([]byte(call.Arguments)) {
					return nil, fmt.Errorf("script %q, turn %d: a call needs a name, and arguments that are JSON: %q", sc.Key, n+1, call.Arguments)
				}
			}
		}
	}
	return s, nil
}

// Tokens cuts text into tokens: pieces of [TokenChars] characters.
func Tokens(text string) []string {
	var all []string
	for len(text) > 0 {
		n := 0
		for range TokenChars {
			_, size := utf8.DecodeRuneInString(text[n:])
			n += size
		}
		all = append(all, text[:n])
		text = text[n:]
	}
	return all
}

// An api is a wire format.
type api struct {
	parse  func([]byte) (*request, error)
	answer func(*answer) voice
	fail   func(status int, kind, message string) any // the body of an error
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var a api
	switch {
	case strings.HasSuffix(r.URL.Path, "/v1/chat/completions"):
		a = api{parseChat, newChat, failOpenAI}
	case strings.HasSuffix(r.URL.Path, "/v1/responses"):
		a = api{parseResponses, newResponses, failOpenAI}
	case strings.HasSuffix(r.URL.Path, "/v1/messages"):
		a = api{parseMessages, newMessages, failAnthropic}
	case strings.HasSuffix(r.URL.Path, "/v1/models") && r.Method == http.MethodGet:
		s.models(w)
		return
	default:
		a.fail = failOpenAI
		a.refuse(w, http.StatusNotFound, "invalid_request_error", fmt.Sprintf("there is nothing at %s %s", r.Method, r.URL.Path))
		return
	}
	if r.Method != http.MethodPost {
		a.refuse(w, http.StatusMethodNotAllowed, "invalid_request_error", "use POST")
		return
	}
	body, err := readBody(w, r)
	if err != nil {
		a.refuse(w, http.StatusBadRequest, "invalid_request_error", err.Error())
		return
	}
	req, err := a.parse(body)
	if err != nil {
		a.refuse(w, http.StatusBadRequest, "invalid_request_error", err.Error())
		return
	}
	sc, err := s.find(req)
	if err != nil {
		a.refuse(w, http.StatusNotFound, "not_found_error", err.Error())
		return
	}
	if req.turn >= len(sc.Turns) {
		a.refuse(w, http.StatusBadRequest, "invalid_request_error", fmt.Sprintf("script %q has %d turns, and the request repeats as many", sc.Key, len(sc.Turns)))
		return
	}
	s.answer(w, r, a, req, sc)
}

// find returns the conversation that a request belongs to.
func (s *Server) find(req *request) (*Script, error) {
	if key := req.key; key != "" { // of a response that the request continues
		if sc := s.byKey[key]; sc != nil {
			return sc, nil
		}
		return nil, fmt.Errorf("there is no script %q any more", key)
	}
	if key, ok := strings.CutPrefix(req.model, Prefix); ok {
		if sc := s.byKey[key]; sc != nil {
			return sc, nil
		}
		return nil, fmt.Errorf("there is no script %q", key)
	}
	if sc := s.byFirst[req.prompt]; sc != nil {
		return sc, nil
	}
	return nil, fmt.Errorf("model %q names no script (write %sKEY), and none begins with the first message of the user", req.model, Prefix)
}

// answer plays a turn.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, a api, req *request, sc *Script) {
	turn := &sc.Turns[req.turn]
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%s\x00%d", sc.Key, req.turn)
	an := &answer{
		script: sc.Key, number: req.turn, turn: turn, model: req.model, usage: req.usage,
		input: req.tokens, created: time.Now().Unix(), serial: s.served.Add(1),
	}
	an.split()
	p := &pacer{
		config: s.config, random: rand.New(rand.NewPCG(s.config.Seed, h.Sum64())),
		gone: r.Context().Done(),
	}
	if f := turn.Fail; f != nil && (f.After == 0 || !req.stream) {
		if p.begin() {
			if f.Cut {
				panic(http.ErrAbortHandler)
			}
			a.refuse(w, f.status(), f.kind(), f.Message)
		}
		return
	}
	v := a.answer(an)
	if !req.stream {
		if p.begin() && p.skip(len(an.tokens)) {
			respond(w, http.StatusOK, v.whole())
		}
		return
	}
	an.play(w, p, v)
}

func (f *Failure) status() int {
	if f.Status == 0 {
		return http.StatusInternalServerError
	}
	return f.Status
}

func (f *Failure) kind() string {
	if f.Type == "" {
		return "server_error"
	}
	return f.Type
}

// refuse answers with an error.
func (a *api) refuse(w http.ResponseWriter, status int, kind, message string) {
	respond(w, status, a.fail(status, kind, message))
}

func respond(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // a client that has gone has no use for it
}

func failOpenAI(_ int, kind, message string) any {
	return object{"error": object{"message": message, "type": kind, "param": nil, "code": nil}}
}

func failAnthropic(_ int, kind, message string) any {
	return object{"type": "error", "error": object{"type": kind, "message": message}}
}

// models lists the conversations, as both providers do.
func (s *Server) models(w http.ResponseWriter) {
	data := []object{}
	for _, key := range slices.Sorted(maps.Keys(s.byKey)) {
		data = append(data, object{
			"id": Prefix + key, "object": "model", "created": 0, "owned_by": "replay",
			"type": "model", "display_name": key, "created_at": "1970-01-01T00:00:00Z",
		})
	}
	respond(w, http.StatusOK, object{"object": "list", "data": data, "has_more": false, "first_id": nil, "last_id": nil})
}

type object = map[string]any
