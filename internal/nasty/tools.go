package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A tool is one tool and what it does.
type tool struct {
	name string
	doc  string
	args string // properties of its input schema, as JSON
	more string // further members of its item, as JSON with a leading comma
	run  func(ctx context.Context, c invocation) ([]byte, error)
}

// An invocation is one call of a tool.
type invocation struct {
	s      *server
	id     json.RawMessage
	meta   json.RawMessage // _meta of the params
	raw    json.RawMessage // arguments as they came
	modern bool
	retry  retry
}

func (t tool) item(server string) []byte {
	return join(`{"name":`, quote(t.name), `,"description":`, quote(server+": "+t.doc),
		`,"inputSchema":{"type":"object","properties":{`, t.args, `}}`, t.more, `}`)
}

// tools are the tools of every nasty server, in the order of its list.
var tools = []tool{
	{name: "echo", doc: "Gives its arguments back: as text, and byte for byte under the key arguments.", run: echo},
	{name: "raw", doc: "Gives the argument result back as the whole result, byte for byte.", args: `"result":{"type":"object"}`, run: raw},
	{name: "size", doc: "Gives a result whose JSON has exactly so many bytes.", args: `"bytes":{"type":"integer"}`, run: size},
	{name: "structured", doc: "Gives structured content.", args: `"n":{"type":"integer"}`,
		more: `,"outputSchema":{"type":"object","properties":{"n":{"type":"integer"},"twice":{"type":"integer"}},"required":["n","twice"]}`, run: structured},
	{name: "fail", doc: "Fails: with isError, or with a JSON-RPC error of a code.", args: `"code":{"type":"integer"},"text":{"type":"string"}`, run: fail},

	{name: "sleep", doc: "Answers after ms; heeds a cancellation unless deaf.", args: `"ms":{"type":"integer"},"deaf":{"type":"boolean"}`, run: sleep},
	{name: "hang", doc: "Never answers; heeds a cancellation unless deaf.", args: `"deaf":{"type":"boolean"}`, run: hang},
	{name: "crash", doc: "Ends the process in mid-call, after ms, with status or by signal, with words on stderr.",
		args: `"ms":{"type":"integer"},"status":{"type":"integer"},"signal":{"type":"integer"},"say":{"type":"string"}`, run: crash},
	{name: "mute", doc: "Closes stdout and lives on.", run: mute},
	{name: "stop-reading", doc: "Answers, and then never reads stdin again.", run: stopReading},
	{name: "child", doc: "Runs sleep for seconds as a child, which a cancellation kills; says its pid by progress and as the result.",
		args: `"seconds":{"type":"integer"}`, run: child},
	{name: "grandchild", doc: "Leaves a process in a session of its own, deaf to SIGTERM, that holds stdout open; answers with its pid.",
		args: `"seconds":{"type":"integer"}`, run: leave},
	{name: "cancelled", doc: "Tells the cancellations that came, each with the call that it named.", run: cancelled},

	{name: "progress", doc: "Sends progress steps times, interval_ms apart.", args: `"steps":{"type":"integer"},"interval_ms":{"type":"integer"}`, run: progress},
	{name: "log", doc: "Sends a log message.", args: `"level":{"type":"string"},"text":{"type":"string"}`, run: logMessage},
	{name: "level", doc: "Tells the log level that was set.", run: level},
	{name: "ask", doc: "Sends a request to the client and answers with its reply. In the modern era it can do so wrongly: endless, request, no-state, nothing.",
		args: `"method":{"type":"string"},"params":{"type":"object"},"manner":{"type":"string"}`, run: ask},
	{name: "interview", doc: "Asks the client rounds times, each time so many questions at once; tells all answers.",
		args: `"rounds":{"type":"integer"},"each":{"type":"integer"},"method":{"type":"string"},"params":{"type":"object"}`, run: interview},
	{name: "shed", doc: "Sends a modern client away to come again, so many times.", args: `"times":{"type":"integer"}`, run: shed},
	{name: "meta", doc: "Tells the _meta of this call.", run: metaSeen},
	{name: "end-listens", doc: "Ends every subscriptions/listen with its result; tells how many.", run: endListens},
	{name: "roots-seen", doc: "Tells the roots that the client gave right after the start.", run: rootsSeen},
	{name: "capabilities", doc: "Tells the capabilities that the client declared.", run: capabilities},

	{name: "add-tool", doc: "Adds a tool, and says so.", args: `"name":{"type":"string"}`, run: addTool},
	{name: "update", doc: "Says that a resource was updated, if somebody subscribed to it.", args: `"uri":{"type":"string"}`, run: update},
	{name: "set", doc: "Keeps a value in memory.", args: `"key":{"type":"string"},"value":{}`, run: set},
	{name: "get", doc: "Tells a value that was kept, or null.", args: `"key":{"type":"string"}`, run: get},
	{name: "env", doc: "Tells the named environment variables, or all.", args: `"names":{"type":"array","items":{"type":"string"}}`, run: env},
	{name: "process", doc: "Tells pid, ppid and uid, and how often initialize was seen.", run: process},
	{name: "stderr", doc: "Prints text on stderr.", args: `"text":{"type":"string"}`, run: stderr},
	{name: "print", doc: "Prints text on stdout, where only messages belong.", args: `"text":{"type":"string"}`, run: printJunk},

	{name: "read", doc: "Reads a file, at most a mebibyte.", args: `"path":{"type":"string"}`, run: read},
	{name: "write", doc: "Writes a file.", args: `"path":{"type":"string"},"text":{"type":"string"}`, run: write},
	{name: "dir", doc: "Lists a folder.", args: `"path":{"type":"string"}`, run: dir},
	{name: "dial", doc: "Connects to an address and reads what comes within a second.", args: `"network":{"type":"string"},"address":{"type":"string"}`, run: dial},
	{name: "lookup", doc: "Resolves a host name.", args: `"host":{"type":"string"}`, run: lookup},
	{name: "processes", doc: "Tells the processes that it can see.", run: processes},
	{name: "status", doc: "Tells capabilities, seccomp and no_new_privs of itself.", run: status},
	{name: "alloc", doc: "Allocates and touches so many bytes, and keeps them.", args: `"bytes":{"type":"integer"}`, run: alloc},
	{name: "fork", doc: "Starts children until n run or it may start no more; tells how many; ends them.", args: `"n":{"type":"integer"}`, run: fork},
	{name: "burn", doc: "Computes on every core for ms; tells the cores' time that it got in ms.", args: `"ms":{"type":"integer"}`, run: burn},
}

// callTool runs a tool. A tool that was only listed answers with its name.
func (s *server) callTool(ctx context.Context, m message, modern bool) ([]byte, error) {
	var p struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
		Meta      json.RawMessage `json:"_meta"`
		retry
	}
	if err := json.Unmarshal(m.Params, &p); err != nil {
		return nil, &failure{code: -32602, message: err.Error()}
	}
	for _, t := range tools {
		if t.name == p.Name {
			return t.run(ctx, invocation{s: s, id: m.ID, meta: p.Meta, raw: p.Arguments, modern: modern, retry: p.retry})
		}
	}
	for _, item := range s.items(s.capabilities(m.Params, modern)) {
		if field(item, "name") == p.Name {
			return text(s.m.name + ": " + p.Name), nil
		}
	}
	return nil, &failure{code: -32602, message: "nasty has no tool " + p.Name}
}

// args decodes the arguments of c. A missing one is its zero value.
func args[T any](c invocation) (T, error) {
	var a T
	if c.raw == nil {
		return a, nil
	}
	if err := json.Unmarshal(c.raw, &a); err != nil {
		return a, &failure{code: -32602, message: err.Error()}
	}
	return a, nil
}

// text is a result with one block of text.
func text(s string) []byte {
	return join(`{"content":[{"type":"text","text":`, quote(s), `}]}`)
}

// value is a result with a JSON value as its text.
func value(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	return text(string(b)), err
}

// wrong is a result that says that the tool failed.
func wrong(err error) ([]byte, error) {
	return join(`{"content":[{"type":"text","text":`, quote(err.Error()), `}],"isError":true}`), nil
}

func echo(_ context.Context, c invocation) ([]byte, error) {
	raw := c.raw
	if raw == nil {
		raw = []byte("null")
	}
	return join(`{"content":[{"type":"text","text":`, quote(string(raw)), `}],"arguments":`, raw, `,"isError":false}`), nil
}

func raw(_ context.Context, c invocation) ([]byte, error) {
	a, err := args[struct{ Result json.RawMessage }](c)
	return a.Result, err
}

func size(_ context.Context, c invocation) ([]byte, error) {
	a, err := args[struct{ Bytes int }](c)
	if err != nil {
		return nil, err
	}
	const head, tail = `{"content":[{"type":"text","text":"`, `"}]}`
	fill := a.Bytes - len(head) - len(tail)
	if fill < 0 {
		return nil, &failure{code: -32602, message: fmt.Sprintf("a result has at least %d bytes", len(head)+len(tail))}
	}
	const digits = "0123456789"
	return join(head, strings.Repeat(digits, fill/len(digits)+1)[:fill], tail), nil
}

func structured(_ context.Context, c invocation) ([]byte, error) {
	a, err := args[struct{ N int }](c)
	content := fmt.Sprintf(`{"n":%d,"twice":%d}`, a.N, 2*a.N)
	return join(`{"content":[{"type":"text","text":`, quote(content), `}],"structuredContent":`, content, `}`), err
}

func fail(_ context.Context, c invocation) ([]byte, error) {
	a, err := args[struct {
		Code int
		Text string
	}](c)
	if err != nil {
		return nil, err
	}
	if a.Code != 0 {
		return nil, &failure{code: a.Code, message: a.Text}
	}
	return wrong(fmt.Errorf("%s", a.Text))
}

func sleep(ctx context.Context, c invocation) ([]byte, error) {
	a, err := args[struct {
		MS   int
		Deaf bool
	}](c)
	if err != nil {
		return nil, err
	}
	if a.Deaf {
		ctx = context.WithoutCancel(ctx)
	}
	select {
	case <-time.After(time.Duration(a.MS) * time.Millisecond):
		return text("slept"), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func hang(ctx context.Context, c invocation) ([]byte, error) {
	a, err := args[struct{ Deaf bool }](c)
	if err != nil {
		return nil, err
	}
	if a.Deaf {
		rest()
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

func crash(ctx context.Context, c invocation) ([]byte, error) {
	a, err := args[struct {
		MS, Status, Signal int
		Say                string
	}](c)
	if err != nil {
		return nil, err
	}
	if _, err := sleep(ctx, invocation{s: c.s, raw: fmt.Appendf(nil, `{"ms":%d}`, a.MS)}); err != nil {
		return nil, err
	}
	if a.Say != "" {
		fmt.Fprintln(os.Stderr, a.Say)
	}
	if a.Signal != 0 {
		_ = syscall.Kill(os.Getpid(), syscall.Signal(a.Signal))
		rest() // until it comes; PID 1 of a namespace does not get every signal
	}
	os.Exit(a.Status)
	return nil, nil
}

func mute(context.Context, invocation) ([]byte, error) {
	if err := os.Stdout.Close(); err != nil {
		return nil, err
	}
	rest()
	return nil, nil
}

func stopReading(_ context.Context, c invocation) ([]byte, error) {
	close(c.s.deaf)
	return text("deaf after the next message"), nil
}

func child(ctx context.Context, c invocation) ([]byte, error) {
	a, err := args[struct{ Seconds int }](c)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self(), "-sleeper", fmt.Sprintf("%ds", a.Seconds))
	if err := cmd.Start(); err != nil {
		return wrong(err)
	}
	pid := strconv.Itoa(cmd.Process.Pid)
	c.report(0, 1, pid)
	if err := cmd.Wait(); ctx.Err() != nil {
		return nil, ctx.Err()
	} else if err != nil {
		return wrong(err)
	}
	return text(pid), nil
}

// self returns the path of this program.
func self() string {
	path, err := os.Executable()
	if err != nil {
		panic(err) // there is no /proc
	}
	return path
}

// grandchild starts a process that leaves the session, the process group and
// the care of this one.
func grandchild(life time.Duration) (int, error) {
	cmd := exec.Command(self(), "-sleeper", life.String())
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	pid := cmd.Process.Pid // Release forgets it
	return pid, cmd.Process.Release()
}

func leave(_ context.Context, c invocation) ([]byte, error) {
	a, err := args[struct{ Seconds int }](c)
	if err != nil {
		return nil, err
	}
	pid, err := grandchild(time.Duration(a.Seconds) * time.Second)
	if err != nil {
		return wrong(err)
	}
	return value(pid)
}

func cancelled(_ context.Context, c invocation) ([]byte, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	return value(append([]cancellation{}, c.s.cancelled...))
}

// report sends progress under the token of the call, if it has one.
func (c invocation) report(progress, total int, message string) {
	var meta struct {
		Token json.RawMessage `json:"progressToken"`
	}
	if json.Unmarshal(c.meta, &meta) != nil || meta.Token == nil {
		return
	}
	c.s.notify("notifications/progress", join(`{"progressToken":`, meta.Token, `,"progress":`, strconv.Itoa(progress),
		`,"total":`, strconv.Itoa(total), `,"message":`, quote(message), `}`))
}

func progress(ctx context.Context, c invocation) ([]byte, error) {
	a, err := args[struct {
		Steps    int
		Interval int `json:"interval_ms"`
	}](c)
	if err != nil {
		return nil, err
	}
	for i := range a.Steps {
		c.report(i+1, a.Steps, fmt.Sprintf("step %d", i+1))
		select {
		case <-time.After(time.Duration(a.Interval) * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return text(fmt.Sprintf("%d steps", a.Steps)), nil
}

func logMessage(_ context.Context, c invocation) ([]byte, error) {
	a, err := args[struct{ Level, Text string }](c)
	if err != nil {
		return nil, err
	}
	if c.modern && !strings.Contains(string(c.meta), metaLogLevel) {
		return text("not logged: the call did not ask for it"), nil
	}
	c.s.notify("notifications/message", join(`{"level":`, quote(a.Level), `,"logger":`, quote(c.s.m.name), `,"data":`, quote(a.Text), `}`))
	return text("logged"), nil
}

func level(_ context.Context, c invocation) ([]byte, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	return text(c.s.level), nil
}

func ask(ctx context.Context, c invocation) ([]byte, error) {
	a, err := args[struct {
		Method string
		Params json.RawMessage
		Manner string
	}](c)
	if err != nil {
		return nil, err
	}
	if c.modern {
		return askModern(c, a.Method, a.Params, a.Manner)
	}
	reply, err := c.s.ask(ctx, a.Method, a.Params)
	return join(`{"content":[{"type":"text","text":`, quote(string(reply)), `}]}`), err
}

func rootsSeen(_ context.Context, c invocation) ([]byte, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	return text(string(c.s.roots)), nil
}

func capabilities(_ context.Context, c invocation) ([]byte, error) {
	if c.modern {
		var of map[string]json.RawMessage
		_ = json.Unmarshal(c.meta, &of) // it was looked at before
		return text(string(of[metaCapabilities])), nil
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	return text(string(c.s.client)), nil
}

func addTool(_ context.Context, c invocation) ([]byte, error) {
	a, err := args[struct{ Name string }](c)
	if err != nil {
		return nil, err
	}
	c.s.mu.Lock()
	c.s.added = append(c.s.added, a.Name)
	c.s.mu.Unlock()
	c.s.changed("notifications/tools/list_changed")
	return text("added " + a.Name), nil
}

func update(_ context.Context, c invocation) ([]byte, error) {
	a, err := args[struct{ URI string }](c)
	if err != nil {
		return nil, err
	}
	c.s.mu.Lock()
	subscribed := c.s.subscribed[a.URI]
	c.s.mu.Unlock()
	if subscribed {
		c.s.notify("notifications/resources/updated", join(`{"uri":`, quote(a.URI), `}`))
	}
	return value(c.s.heard(a.URI) || subscribed)
}

func set(_ context.Context, c invocation) ([]byte, error) {
	a, err := args[struct {
		Key   string
		Value json.RawMessage
	}](c)
	if err != nil {
		return nil, err
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.s.state[a.Key] = a.Value
	return text("kept"), nil
}

func get(_ context.Context, c invocation) ([]byte, error) {
	a, err := args[struct{ Key string }](c)
	if err != nil {
		return nil, err
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if v := c.s.state[a.Key]; v != nil {
		return text(string(v)), nil
	}
	return text("null"), nil
}

func env(_ context.Context, c invocation) ([]byte, error) {
	a, err := args[struct{ Names []string }](c)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, kv := range os.Environ() {
		k, v, _ := strings.Cut(kv, "=")
		out[k] = v
	}
	if len(a.Names) > 0 {
		all := out
		out = map[string]string{}
		for _, name := range a.Names {
			if v, ok := all[name]; ok {
				out[name] = v
			}
		}
	}
	return value(out)
}

func process(_ context.Context, c invocation) ([]byte, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	return value(map[string]int{"pid": os.Getpid(), "ppid": os.Getppid(), "uid": os.Getuid(), "initializes": c.s.inits})
}

func stderr(_ context.Context, c invocation) ([]byte, error) {
	a, err := args[struct{ Text string }](c)
	fmt.Fprintln(os.Stderr, a.Text)
	return text("printed"), err
}

func printJunk(_ context.Context, c invocation) ([]byte, error) {
	a, err := args[struct{ Text string }](c)
	c.s.out.Lock()
	defer c.s.out.Unlock()
	fmt.Fprintln(c.s.w, a.Text)
	return text("printed"), err
}
