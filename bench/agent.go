package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/specbox/specbox/replay"
	"github.com/specbox/specbox/replay/model"
)

// Script returns the model's part of a session. name tells how the model knows
// the tool of a call.
func Script(t *replay.Trajectory, name func(replay.Call) string) model.Script {
	sc := model.Script{Key: t.ID}
	for _, s := range t.Spoken() {
		turn := model.Turn{}
		if s.Text != "" {
			turn.Parts = []model.Part{{Text: s.Text}}
		}
		for _, c := range s.Calls {
			turn.Calls = append(turn.Calls, model.Call{Name: name(c), Arguments: c.Compact()})
		}
		sc.Turns = append(sc.Turns, turn)
	}
	return sc
}

// A ModelServer is a replayed model at an address of this machine.
type ModelServer struct {
	url  string
	srv  *http.Server
	done chan struct{}
}

// StartModel starts a model that says what the scripts of c say. The caller stops
// it.
func StartModel(c model.Config) (*ModelServer, error) {
	m, err := model.New(c)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &ModelServer{url: "http://" + l.Addr().String() + "/v1", srv: &http.Server{Handler: m}, done: make(chan struct{})}
	go func() { defer close(s.done); _ = s.srv.Serve(l) }() // Stop waits for it
	return s, nil
}

// URL returns the base URL of the model's OpenAI API.
func (s *ModelServer) URL() string { return s.url }

// Stop ends the model, with the answers that are under way.
func (s *ModelServer) Stop() {
	_ = s.srv.Close()
	<-s.done
}

// Agents are what leads recorded sessions at one SpecBox, as any agent leads its
// own: by streams of Chat Completions at /s/KEY/v1, and by MCP at /s/KEY/mcp. They
// may be used concurrently.
type Agents struct {
	base   string // URL of the SpecBox
	client *http.Client

	once  sync.Once
	tools json.RawMessage // of all servers, as a request to the model lists them
	err   error
}

// NewAgents returns agents of the SpecBox whose MCP door is at url. [Agents.Close]
// ends them.
func NewAgents(url string) *Agents {
	return &Agents{base: strings.TrimSuffix(url, "/mcp"), client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
}

// Close closes the connections that nobody uses any more.
func (a *Agents) Close() { a.client.CloseIdleConnections() }

// An agent has a session.
type agent struct {
	*Agents
	key string
	mcp *mcp.ClientSession
}

// open connects an agent to the MCP door of its session.
func (a *Agents) open(ctx context.Context, key string) (*agent, error) {
	s, err := mcp.NewClient(&mcp.Implementation{Name: "replay", Version: "1"}, nil).
		Connect(ctx, &mcp.StreamableClientTransport{Endpoint: a.base + "/s/" + key + "/mcp", HTTPClient: a.client}, nil)
	if err != nil {
		return nil, fmt.Errorf("connect to MCP: %w", err)
	}
	return &agent{a, key, s}, nil
}

func (a *agent) close() error { return a.mcp.Close() }

// list reads the tools, as every agent does, and keeps the first one's list for
// all.
func (a *agent) list(ctx context.Context) error {
	type function struct {
		Name        string `json:"name"`
		Description string `json:"description"`
		Parameters  any    `json:"parameters"`
	}
	type tool struct {
		Type     string   `json:"type"`
		Function function `json:"function"`
	}
	var all []tool
	for t, err := range a.mcp.Tools(ctx, nil) {
		if err != nil {
			return fmt.Errorf("list the tools: %w", err)
		}
		all = append(all, tool{"function", function{t.Name, t.Description, t.InputSchema}})
	}
	a.once.Do(func() { a.tools, a.err = json.Marshal(all) })
	return a.err
}

// TraceID returns what the calls of the session with a number have in common in
// SpecBox's trace.
func TraceID(session int) string { return fmt.Sprintf("%032x", session) }

// call calls a tool. The numbers of the session and of the call begin with 1.
func (a *agent) call(ctx context.Context, tool, arguments string, session, number int) (string, error) {
	r, err := a.mcp.CallTool(ctx, &mcp.CallToolParams{
		Name: tool, Arguments: json.RawMessage(arguments),
		Meta: mcp.Meta{"traceparent": fmt.Sprintf("00-%s-%016x-01", TraceID(session), number)},
	})
	if err != nil {
		return "", fmt.Errorf("call %s: %w", tool, err)
	}
	text := ""
	for _, c := range r.Content {
		if t, ok := c.(*mcp.TextContent); ok {
			text += t.Text
		}
	}
	if r.IsError {
		return text, fmt.Errorf("call %s: %s", tool, text)
	}
	return text, nil
}

// A message is one of a conversation with the model.
type message struct {
	Role      string     `json:"role"`
	Content   *string    `json:"content"`
	ToolCalls []toolCall `json:"tool_calls,omitempty"`
	CallID    string     `json:"tool_call_id,omitempty"`
}

type toolCall struct {
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

// An answerTime says when an answer of the model was asked for, began and ended.
type answerTime struct{ asked, began, ended time.Time }

// ask has the model's next answer.
func (a *agent) ask(ctx context.Context, name string, all []message) (message, answerTime, error) {
	var t answerTime
	body, err := json.Marshal(struct {
		Model    string          `json:"model"`
		Stream   bool            `json:"stream"`
		Messages []message       `json:"messages"`
		Tools    json.RawMessage `json:"tools"`
	}{name, true, all, a.tools})
	if err != nil {
		return message{}, t, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, a.base+"/s/"+a.key+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return message{}, t, err
	}
	r.Header.Set("Content-Type", "application/json")
	t.asked = time.Now()
	resp, err := a.client.Do(r)
	if err != nil {
		return message{}, t, fmt.Errorf("ask the model: %w", err)
	}
	defer func() { _ = resp.Body.Close() }() // it was read
	if resp.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(resp.Body, 1000))
		return message{}, t, fmt.Errorf("ask the model: %s: %s", resp.Status, said)
	}
	m, err := readStream(resp.Body, func() { t.began = time.Now() })
	t.ended = time.Now()
	if err != nil {
		return message{}, t, fmt.Errorf("read the model's answer: %w", err)
	}
	return m, t, nil
}

// readStream reads a stream of Chat Completions. begun is called when the first
// piece comes.
func readStream(body io.Reader, begun func()) (message, error) {
	text, m, done := "", message{Role: "assistant"}, false
	lines := bufio.NewScanner(body)
	for first := true; lines.Scan(); {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		if first {
			begun()
			first = false
		}
		if string(data) == "[DONE]" {
			done = true
			continue
		}
		var c struct {
			Choices []struct {
				Delta struct {
					Content string `json:"content"`
					Calls   []struct {
						Index int `json:"index"`
						toolCall
					} `json:"tool_calls"`
				} `json:"delta"`
			} `json:"choices"`
			Error json.RawMessage `json:"error"`
		}
		if err := json.Unmarshal(data, &c); err != nil {
			return m, err
		}
		if c.Error != nil {
			return m, fmt.Errorf("the model says %s", c.Error)
		}
		for _, ch := range c.Choices {
			text += ch.Delta.Content
			for _, call := range ch.Delta.Calls {
				if call.Index == len(m.ToolCalls) {
					m.ToolCalls = append(m.ToolCalls, toolCall{ID: call.ID, Type: "function"})
				}
				if call.Index < 0 || call.Index >= len(m.ToolCalls) {
					return m, fmt.Errorf("call %d comes before the one before it", call.Index)
				}
				f := &m.ToolCalls[call.Index].Function
				f.Name += call.Function.Name
				f.Arguments += call.Function.Arguments
			}
		}
	}
	if err := lines.Err(); err != nil {
		return m, err
	}
	if !done {
		return m, io.ErrUnexpectedEOF
	}
	m.Content = &text
	return m, nil
}

// A Session is one session as it was played.
type Session struct {
	number     int // see TraceID
	task       string
	begin, end time.Time
	answers    []answerTime
	calls      []callTime
	failed     int

	// from SpecBox's trace
	uses   []PrewarmUse
	wasted float64
}

// Errors returns what the calls of the session failed with, in their order.
func (s *Session) Errors() []error {
	var all []error
	for _, c := range s.calls {
		if c.err != nil {
			all = append(all, c.err)
		}
	}
	return all
}

// Calls returns how many calls were made, those that failed among them.
func (s *Session) Calls() int { return len(s.calls) }

// Length returns how long the session took, from connecting to the end.
func (s *Session) Length() time.Duration { return s.end.Sub(s.begin) }

// A callTime is one call as its agent saw it.
type callTime struct {
	server string
	begin  time.Time
	end    time.Time
	err    error
}

// Run plays a session: it asks the model, makes the calls of its answer in
// parallel, and goes on until there is nothing left to say. The model must have the
// session's [Script]. number is that of the session, from 1: no two sessions of one
// SpecBox have the same. A call that fails is told to the model and ends nothing; see
// [Session.Errors].
func (a *Agents) Run(ctx context.Context, t *replay.Trajectory, number int) (s Session, err error) {
	s = Session{number: number, task: t.Task, begin: time.Now()}
	defer func() { s.end = time.Now() }()
	ag, err := a.open(ctx, fmt.Sprintf("session-%d", number))
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, ag.close()) }()
	if err := ag.list(ctx); err != nil {
		return s, err
	}
	var talk []message
	say := func(role, text, id string) { talk = append(talk, message{Role: role, Content: &text, CallID: id}) }
	for i, turn := range t.Spoken() {
		if turn.User != "" {
			say("user", turn.User, "")
		} else if last := talk[len(talk)-1]; last.Role == "assistant" {
			say("user", "Go on.", "")
		}
		m, at, err := ag.ask(ctx, "replay/"+t.ID, talk)
		if err != nil {
			return s, err
		}
		if len(m.ToolCalls) != len(turn.Calls) {
			return s, fmt.Errorf("turn %d of %s came with %d calls instead of %d", i+1, t.ID, len(m.ToolCalls), len(turn.Calls))
		}
		s.answers = append(s.answers, at)
		talk = append(talk, m)
		made := make([]callTime, len(m.ToolCalls))
		results := make([]string, len(m.ToolCalls))
		var work sync.WaitGroup
		for j, c := range m.ToolCalls {
			work.Go(func() {
				made[j] = callTime{server: turn.Calls[j].Server, begin: time.Now()}
				results[j], made[j].err = ag.call(ctx, c.Function.Name, c.Function.Arguments, number, len(s.calls)+j+1)
				made[j].end = time.Now()
			})
		}
		work.Wait()
		if err := ctx.Err(); err != nil {
			return s, err
		}
		for j, c := range m.ToolCalls {
			if made[j].err != nil {
				s.failed++
				results[j] = made[j].err.Error()
			}
			if turn.Calls[j].Result != "" { // what the model had seen when it went on
				results[j] = turn.Calls[j].Result
			}
			say("tool", results[j], c.ID)
		}
		s.calls = append(s.calls, made...)
	}
	return s, nil
}
