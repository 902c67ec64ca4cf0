package e2e_test

//lint:file-ignore SA1019 what the SDK calls deprecated is what the revisions tested here have

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/specbox/specbox/servers"
)

// checks are those that each client's session runs, in order.
var checks = []string{
	"initialize", "tools", "call", "structured", "progress", "cancellation", "cancellation stops the server",
	"sampling", "elicitation", "roots", "resource", "template", "subscription", "prompt", "completion", "logging", "close",
}

// Each official SDK's client has a whole session, with all servers and with one.
func TestClientsHaveAWholeSession(t *testing.T) {
	_, _, entries := real(t, "everything")
	entries["nasty"] = bad()
	x := serve(t, entries)
	x.filled(t, "everything", "nasty")
	for _, client := range []struct {
		name string
		run  func(t *testing.T, url, prefix, nasty string) []check
	}{{"go", goSession}, {"typescript", typescriptSession}, {"python", pythonSession}} {
		for _, at := range []struct{ name, path, prefix, nasty string }{
			{"all servers", "", "everything__", "nasty__"},
			{"one server", "/everything", "", ""},
		} {
			t.Run(client.name+" "+at.name, func(t *testing.T) {
				want := slices.Clone(checks)
				if at.nasty == "" {
					want = slices.DeleteFunc(want, func(s string) bool { return s == "cancellation stops the server" })
				}
				var got []string
				for _, c := range client.run(t, x.url+at.path, at.prefix, at.nasty) {
					got = append(got, c.Check)
					if !c.OK {
						t.Errorf("%s: %s", c.Check, c.Detail)
					}
				}
				if !slices.Equal(got, want) {
					t.Errorf("checks\n%q, want\n%q", got, want)
				}
			})
		}
	}
}

// A check is what a session's program says of one.
type check struct {
	Check  string
	OK     bool
	Detail string
}

func typescriptSession(t *testing.T, url, prefix, nasty string) []check {
	return sessionProgram(t, "client-ts", "ts", url, prefix, nasty, func(dir string) []string {
		return []string{"node", filepath.Join(dir, "session.mjs")}
	})
}

func pythonSession(t *testing.T, url, prefix, nasty string) []check {
	return sessionProgram(t, "client-py", "py", url, prefix, nasty, func(dir string) []string {
		return []string{filepath.Join(dir, "venv", "bin", "python"), filepath.Join(dir, "session.py")}
	})
}

// sessionProgram installs the program of a folder with what it is locked to, and
// runs it.
func sessionProgram(t *testing.T, name, folder, url, prefix, nasty string, argv func(dir string) []string) []check {
	t.Helper()
	dir, err := servers.Dir()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := servers.InstallLocked(t.Context(), dir, name, os.DirFS(folder)); err != nil {
		t.Fatal(err)
	}
	args := append(argv(filepath.Join(dir, name)), url, prefix)
	if nasty != "" {
		args = append(args, nasty)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, args[0], args[1:]...)
	var errs bytes.Buffer
	c.Stderr = &errs
	out, err := c.Output()
	if err != nil {
		t.Errorf("%v\n%s", err, &errs)
	}
	var all []check
	lines(bytes.NewReader(out), func(line string) {
		var one check
		decode(t, line, &one)
		all = append(all, one)
	})
	return all
}

// goSession is the session of the Go SDK's client.
func goSession(t *testing.T, url, prefix, nasty string) []check {
	s := &session{prefix: prefix, nasty: nasty, news: make(chan struct{}, 1)}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	client := mcp.NewClient(&mcp.Implementation{Name: "go", Version: "1.0.0"}, s.options())
	client.AddRoots(&mcp.Root{URI: "file:///srv/root-of-go", Name: "root-of-go"})
	var all []check
	say := func(name string, err error) {
		one := check{Check: name, OK: err == nil}
		if err != nil {
			one.Detail = err.Error()
		}
		all = append(all, one)
	}
	var err error
	s.ClientSession, err = client.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: url}, &mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"}) // the era with sessions
	if err != nil {
		say("initialize", err)
		return all
	}
	for _, c := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"initialize", s.initialize}, {"tools", s.tools}, {"call", s.plain}, {"structured", s.structured},
		{"progress", s.progress}, {"cancellation", s.cancellation}, {"cancellation stops the server", s.cancellationStops},
		{"sampling", s.sampling}, {"elicitation", s.elicitation}, {"roots", s.roots},
		{"resource", s.resource}, {"template", s.template}, {"subscription", s.subscription},
		{"prompt", s.prompt}, {"completion", s.completion}, {"logging", s.logging},
	} {
		if nasty != "" || c.name != "cancellation stops the server" {
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			say(c.name, c.run(ctx))
			cancel()
		}
	}
	say("close", s.Close())
	return all
}

// A session is the Go SDK's client in its session, and what came to it.
type session struct {
	*mcp.ClientSession
	prefix, nasty string

	mu      sync.Mutex
	steps   []float64
	updates []string
	logs    []string
	news    chan struct{} // of size one: look again
}

func (s *session) options() *mcp.ClientOptions {
	return &mcp.ClientOptions{
		CreateMessageHandler: func(_ context.Context, r *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
			text := r.Params.Messages[0].Content.(*mcp.TextContent).Text
			return &mcp.CreateMessageResult{Model: "none", Role: "assistant", Content: &mcp.TextContent{Text: "sampled: " + text}}, nil
		},
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": "Ada Lovelace"}}, nil
		},
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			s.note(func() { s.steps = append(s.steps, r.Params.Progress) })
		},
		ResourceUpdatedHandler: func(_ context.Context, r *mcp.ResourceUpdatedNotificationRequest) {
			s.note(func() { s.updates = append(s.updates, r.Params.URI) })
		},
		LoggingMessageHandler: func(_ context.Context, r *mcp.LoggingMessageRequest) {
			s.note(func() { s.logs = append(s.logs, fmt.Sprint(r.Params.Data)) })
		},
	}
}

func (s *session) note(f func()) {
	s.mu.Lock()
	f()
	s.mu.Unlock()
	select {
	case s.news <- struct{}{}:
	default:
	}
}

// until waits until look says so.
func (s *session) until(ctx context.Context, what string, look func() bool) error {
	for {
		s.mu.Lock()
		ok := look()
		s.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-s.news:
		case <-ctx.Done():
			return fmt.Errorf("%s did not come", what)
		}
	}
}

func (s *session) call(ctx context.Context, name string, args any) (string, *mcp.CallToolResult, error) {
	r, err := s.CallTool(ctx, &mcp.CallToolParams{Name: name, Arguments: args})
	if err != nil {
		return "", nil, err
	}
	var text strings.Builder
	for _, c := range r.Content {
		if c, ok := c.(*mcp.TextContent); ok {
			text.WriteString(c.Text)
		}
	}
	return text.String(), r, nil
}

// has calls a tool and looks for part in its text.
func (s *session) has(ctx context.Context, name string, args any, part string) error {
	text, _, err := s.call(ctx, name, args)
	if err == nil && !strings.Contains(text, part) {
		err = fmt.Errorf("got %s", text)
	}
	return err
}

func (s *session) initialize(context.Context) error {
	r := s.InitializeResult()
	if r.ServerInfo.Name == "" || !strings.Contains(r.Instructions, "Everything") {
		return fmt.Errorf("got %+v", r)
	}
	return nil
}

func (s *session) tools(ctx context.Context) error {
	var names []string
	for tool, err := range s.Tools(ctx, nil) {
		if err != nil {
			return err
		}
		names = append(names, tool.Name)
	}
	for _, name := range []string{"get-sum", "trigger-sampling-request", "trigger-elicitation-request", "get-roots-list"} {
		if !slices.Contains(names, s.prefix+name) {
			return fmt.Errorf("%s is not among %q", s.prefix+name, names)
		}
	}
	return nil
}

func (s *session) plain(ctx context.Context) error {
	return s.has(ctx, s.prefix+"get-sum", object{"a": 2, "b": 40}, "42")
}

func (s *session) structured(ctx context.Context) error {
	_, r, err := s.call(ctx, s.prefix+"get-structured-content", object{"location": "Chicago"})
	if err != nil {
		return err
	}
	if got, ok := r.StructuredContent.(object); !ok || got["temperature"] != 36.0 || got["humidity"] != 82.0 {
		return fmt.Errorf("got %v", r.StructuredContent)
	}
	return nil
}

func (s *session) progress(ctx context.Context) error {
	p := &mcp.CallToolParams{Name: s.prefix + "trigger-long-running-operation", Arguments: object{"duration": 0.5, "steps": 5}}
	p.SetProgressToken("progress")
	if _, err := s.CallTool(ctx, p); err != nil {
		return err
	}
	// The client hands notifications on beside replies.
	return s.until(ctx, "five steps of progress", func() bool { return slices.Equal(s.steps, []float64{1, 2, 3, 4, 5}) })
}

func (s *session) cancellation(ctx context.Context) error {
	s.mu.Lock()
	s.steps = nil
	s.mu.Unlock()
	callCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		p := &mcp.CallToolParams{Name: s.prefix + "trigger-long-running-operation", Arguments: object{"duration": 20, "steps": 200}}
		p.SetProgressToken("cancelled")
		_, err := s.CallTool(callCtx, p)
		done <- err
	}()
	if err := s.until(ctx, "progress", func() bool { return len(s.steps) > 0 }); err != nil {
		return err
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		return fmt.Errorf("the call ended with %v", err)
	}
	s.mu.Lock()
	seen := len(s.steps)
	s.mu.Unlock()
	<-time.After(500 * time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.steps) > seen+1 { // one may have been on its way
		return fmt.Errorf("%d steps after the cancellation", len(s.steps)-seen)
	}
	return nil
}

func (s *session) cancellationStops(ctx context.Context) error {
	running := func() (bool, error) {
		text, _, err := s.call(ctx, s.nasty+"processes", nil)
		return strings.Contains(text, "-sleeper 122s"), err
	}
	callCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, _, err := s.call(callCtx, s.nasty+"child", object{"seconds": 122})
		done <- err
	}()
	for _, want := range []bool{true, false} {
		for {
			got, err := running()
			if err != nil {
				return err
			}
			if got == want {
				break
			}
		}
		cancel()
	}
	<-done
	text, _, err := s.call(ctx, s.nasty+"cancelled", nil)
	if err != nil {
		return err
	}
	var got []struct{ Call string }
	if err := json.Unmarshal([]byte(text), &got); err != nil || len(got) != 1 || got[0].Call != "child" {
		return fmt.Errorf("the server saw %s", text)
	}
	return nil
}

func (s *session) sampling(ctx context.Context) error {
	return s.has(ctx, s.prefix+"trigger-sampling-request", object{"prompt": "who are you"},
		"sampled: Resource trigger-sampling-request context: who are you")
}

func (s *session) elicitation(ctx context.Context) error {
	return s.has(ctx, s.prefix+"trigger-elicitation-request", nil, "Ada Lovelace")
}

func (s *session) roots(ctx context.Context) error {
	return s.has(ctx, s.prefix+"get-roots-list", nil, "file:///srv/root-of-go")
}

func (s *session) resource(ctx context.Context) error {
	for r, err := range s.Resources(ctx, nil) {
		if err != nil {
			return err
		}
		if !strings.HasPrefix(r.URI, "demo://resource/static/") {
			continue
		}
		got, err := s.ReadResource(ctx, &mcp.ReadResourceParams{URI: r.URI})
		if err == nil && (got.Contents[0].URI != r.URI || got.Contents[0].Text == "") {
			err = fmt.Errorf("got %+v", got.Contents[0])
		}
		return err
	}
	return errors.New("no static resource is listed")
}

func (s *session) template(ctx context.Context) error {
	listed := false
	for tmpl, err := range s.ResourceTemplates(ctx, nil) {
		if err != nil {
			return err
		}
		listed = listed || tmpl.URITemplate == "demo://resource/dynamic/text/{resourceId}"
	}
	got, err := s.ReadResource(ctx, &mcp.ReadResourceParams{URI: "demo://resource/dynamic/text/7"})
	if err == nil && (!listed || !strings.HasPrefix(got.Contents[0].Text, "Resource 7:")) {
		err = fmt.Errorf("listed %v, got %+v", listed, got.Contents[0])
	}
	return err
}

func (s *session) subscription(ctx context.Context) error {
	const uri = "demo://resource/dynamic/text/1"
	if err := s.Subscribe(ctx, &mcp.SubscribeParams{URI: uri}); err != nil {
		return err
	}
	if _, _, err := s.call(ctx, s.prefix+"toggle-subscriber-updates", nil); err != nil {
		return err
	}
	if err := s.until(ctx, "an update", func() bool { return slices.Contains(s.updates, uri) }); err != nil {
		return err
	}
	if _, _, err := s.call(ctx, s.prefix+"toggle-subscriber-updates", nil); err != nil {
		return err
	}
	return s.Unsubscribe(ctx, &mcp.UnsubscribeParams{URI: uri})
}

func (s *session) prompt(ctx context.Context) error {
	listed := false
	for p, err := range s.Prompts(ctx, nil) {
		if err != nil {
			return err
		}
		listed = listed || p.Name == s.prefix+"args-prompt"
	}
	got, err := s.GetPrompt(ctx, &mcp.GetPromptParams{Name: s.prefix + "args-prompt", Arguments: map[string]string{"city": "Paris"}})
	if err != nil {
		return err
	}
	if c, ok := got.Messages[0].Content.(*mcp.TextContent); !ok || !listed || !strings.Contains(c.Text, "Paris") {
		return fmt.Errorf("listed %v, got %+v", listed, got.Messages[0])
	}
	return nil
}

func (s *session) completion(ctx context.Context) error {
	got, err := s.Complete(ctx, &mcp.CompleteParams{
		Ref:      &mcp.CompleteReference{Type: "ref/prompt", Name: s.prefix + "completable-prompt"},
		Argument: mcp.CompleteParamsArgument{Name: "department", Value: "S"},
	})
	if err == nil && !slices.Equal(got.Completion.Values, []string{"Sales", "Support"}) {
		err = fmt.Errorf("got %q", got.Completion.Values)
	}
	return err
}

func (s *session) logging(ctx context.Context) error {
	if err := s.SetLoggingLevel(ctx, &mcp.SetLoggingLevelParams{Level: "debug"}); err != nil {
		return err
	}
	if _, _, err := s.call(ctx, s.prefix+"toggle-simulated-logging", nil); err != nil {
		return err
	}
	if err := s.until(ctx, "a log message", func() bool {
		return slices.ContainsFunc(s.logs, func(l string) bool { return strings.Contains(l, "essage") })
	}); err != nil {
		return err
	}
	_, _, err := s.call(ctx, s.prefix+"toggle-simulated-logging", nil)
	return err
}
