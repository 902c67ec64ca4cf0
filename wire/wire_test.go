package wire_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/specbox/specbox/wire"
)

// server is the far side of a Conn: it sees lines and writes lines.
type server struct {
	t     *testing.T
	in    *io.PipeReader
	out   *io.PipeWriter
	lines chan wire.Message
}

func dial(t *testing.T, limit int64) (*wire.Conn, *server) {
	t.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	s := &server{t: t, in: inR, out: outW, lines: make(chan wire.Message, 1000)}
	go func() {
		l := wire.NewLines(inR, io.Discard, func() error { return nil }, 0, nil)
		defer close(s.lines)
		for {
			raw, err := l.Read()
			if err != nil {
				return
			}
			m, err := wire.Parse(raw)
			if err != nil {
				t.Errorf("the server got %q: %v", raw, err)
				return
			}
			s.lines <- m
		}
	}()
	c := wire.NewConn(wire.NewLines(outR, inW, func() error { inW.Close(); outR.Close(); return nil }, limit, nil))
	t.Cleanup(func() { c.Close(); outW.Close() })
	return c, s
}

func (s *server) say(format string, args ...any) {
	if _, err := fmt.Fprintf(s.out, format+"\n", args...); err != nil {
		s.t.Errorf("say: %v", err)
	}
}

func TestParse(t *testing.T) {
	tests := []struct {
		in       string
		id       string
		method   string
		request  bool
		notified bool
		response bool
		bad      bool
	}{
		{in: `{"jsonrpc":"2.0","id":1,"method":"a"}`, id: "1", method: "a", request: true},
		{in: `{"jsonrpc":"2.0","id":"x\"y","method":"a"}`, id: `"x\"y"`, method: "a", request: true},
		{in: `{"jsonrpc":"2.0","id":1.0,"method":"a"}`, id: "1.0", method: "a", request: true},
		{in: `{"id":12345678901234567890,"method":"tools\/call","jsonrpc":"2.0"}`, id: "12345678901234567890", method: "tools/call", request: true},
		{in: `{"jsonrpc":"2.0","method":"a","id":null}`, method: "a", notified: true},
		{in: ` {"jsonrpc" : "2.0" , "method" : "a" , "params" : {"b":[1,"}"]} } `, method: "a", notified: true},
		{in: `{"jsonrpc":"2.0","id":1,"result":{}}`, id: "1", response: true},
		{in: `{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m"}}`, id: "1", response: true},
		{in: `{"jsonrpc":"2.0","id":1}`, bad: true},
		{in: `{"id":1,"method":"a"}`, bad: true},
		{in: `{"jsonrpc":"1.0","id":1,"method":"a"}`, bad: true},
		{in: `{"jsonrpc":"2.0","id":1,"method":"a"`, bad: true},
		{in: `[]`, bad: true},
		{in: ``, bad: true},
		{in: `{"jsonrpc":"2.0","id":"unended,"method":"a"}`, bad: true},
	}
	for _, tt := range tests {
		m, err := wire.Parse([]byte(tt.in))
		if (err != nil) != tt.bad {
			t.Errorf("Parse(%s): error %v, want bad = %v", tt.in, err, tt.bad)
		}
		if tt.bad {
			continue
		}
		if string(m.ID) != tt.id || m.Method != tt.method {
			t.Errorf("Parse(%s): id %s, method %q; want %s, %q", tt.in, m.ID, m.Method, tt.id, tt.method)
		}
		if m.IsRequest() != tt.request || m.IsNotification() != tt.notified || m.IsResponse() != tt.response {
			t.Errorf("Parse(%s): request %v, notification %v, response %v", tt.in, m.IsRequest(), m.IsNotification(), m.IsResponse())
		}
	}
}

func TestGetReplaceSet(t *testing.T) {
	const in = `{ "a" : {"b\u0063": [1, 2.0, "]"], "n": 12345678901234567890}, "e":{} }`
	if got, want := string(wire.Get([]byte(in), "a", "bc")), `[1, 2.0, "]"]`; got != want {
		t.Errorf("Get: %s, want %s", got, want)
	}
	if got := wire.Get([]byte(in), "a", "x"); got != nil {
		t.Errorf("Get of what is not there: %s, want nil", got)
	}
	if got, want := string(wire.Replace([]byte(in), []byte("0"), "a", "n")), strings.Replace(in, "12345678901234567890", "0", 1); got != want {
		t.Errorf("Replace: %s, want %s", got, want)
	}
	if got := string(wire.Replace([]byte(in), []byte("0"), "x")); got != in {
		t.Errorf("Replace of what is not there: %s, want the same", got)
	}
	for _, tt := range [][2]string{{`{}`, `{"k":1}`}, {` { } `, ` { "k":1} `}, {`{"k":2}`, `{"k":1}`}, {`{"a":"}"}`, `{"a":"}","k":1}`}} {
		if got := string(wire.Set([]byte(tt[0]), []byte("1"), "k")); got != tt[1] {
			t.Errorf("Set(%s): %s, want %s", tt[0], got, tt[1])
		}
	}
	if got, want := string(wire.Quote("<\u2028\"\x00é")), `"<\u2028\"\u0000é"`; got != want {
		t.Errorf("Quote: %s, want %s", got, want)
	}
}

// Two callers whose requests overlap get their own replies and progress, with
// the tokens that they gave, and the server never sees an id or token twice.
func TestNoConfusionOfCallers(t *testing.T) {
	c, s := dial(t, 0)
	const callers = 50
	go func() {
		seen := map[string]bool{}
		var held []wire.Message
		for m := range s.lines {
			token := string(wire.Get(m.Params, "_meta", "progressToken"))
			if seen[string(m.ID)] || seen["t"+token] {
				t.Errorf("id %s or token %s was used twice", m.ID, token)
			}
			seen[string(m.ID)], seen["t"+token] = true, true
			if held = append(held, m); len(held) == callers {
				break
			}
		}
		for i := range held { // answer the newest first
			m := held[callers-1-i]
			arg := wire.Get(m.Params, "arg")
			s.say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1,"message":%s}}`, wire.Get(m.Params, "_meta", "progressToken"), arg)
			s.say(`{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, arg)
		}
	}()
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			arg := fmt.Sprintf(`"caller %d"`, i)
			var mu sync.Mutex
			var heard []string
			call, err := c.Start("m", []byte(`{"arg":`+arg+`,"_meta":{"progressToken":"same"}}`), func(p []byte) {
				mu.Lock()
				defer mu.Unlock()
				heard = append(heard, string(p))
			})
			if err != nil {
				t.Error(err)
				return
			}
			<-call.Done()
			r, err := call.Outcome()
			if err != nil || string(r.Result) != arg {
				t.Errorf("caller %d got %s, %v", i, r.Result, err)
			}
			mu.Lock()
			defer mu.Unlock()
			if want := `{"progressToken":"same","progress":1,"message":` + arg + `}`; len(heard) != 1 || heard[0] != want {
				t.Errorf("caller %d heard %q, want %q", i, heard, want)
			}
		})
	}
	wg.Wait()
}

// A cancellation names the id that the server knows.
func TestCancellationNamesTheServersID(t *testing.T) {
	c, s := dial(t, 0)
	if _, err := c.Start("first", nil, nil); err != nil {
		t.Fatal(err)
	}
	<-s.lines
	ctx, cancel := context.WithCancelCause(t.Context())
	boom := errors.New("enough")
	errc := make(chan error)
	go func() { _, err := c.Call(ctx, "second", []byte(`{}`)); errc <- err }()
	m := <-s.lines
	cancel(boom)
	if err := <-errc; !errors.Is(err, boom) {
		t.Errorf("Call: %v, want %v", err, boom)
	}
	n := <-s.lines
	if n.Method != "notifications/cancelled" || !bytes.Equal(wire.Get(n.Params, "requestId"), m.ID) {
		t.Errorf("the server got %s, want a cancellation of %s", n.Raw, m.ID)
	}
	s.say(`{"jsonrpc":"2.0","id":%s,"result":"too late"}`, m.ID) // is not given to anybody
	s.say(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)
	if m := <-s.lines; string(m.Result) != "{}" {
		t.Errorf("the answer to a ping is %s", m.Raw)
	}
}

func TestInitializeIsNeverCancelled(t *testing.T) {
	c, s := dial(t, 0)
	ctx, cancel := context.WithCancel(t.Context())
	errc := make(chan error)
	go func() { _, err := c.Call(ctx, "initialize", nil); errc <- err }()
	<-s.lines
	cancel()
	<-errc
	if err := c.Notify("marker", nil); err != nil {
		t.Fatal(err)
	}
	if m := <-s.lines; m.Method != "marker" {
		t.Errorf("the server got %s, want nothing about initialize", m.Raw)
	}
}

// A message over the limit fails the call that it answers and nothing else.
func TestTooLong(t *testing.T) {
	for _, form := range []string{`{"jsonrpc":"2.0","id":%s,"result":"%s"}`, `{"result":"%[2]s","jsonrpc":"2.0","id":%[1]s}`} {
		c, s := dial(t, 10_000)
		big, err := c.Start("big", nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		small, err := c.Start("small", nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		b, m := <-s.lines, <-s.lines
		s.say(form, b.ID, strings.Repeat("x", 200_000))
		s.say(form, m.ID, "ok")
		<-big.Done()
		var long *wire.TooLongError
		if _, err := big.Outcome(); !errors.As(err, &long) || long.Size < 200_000 || long.Limit != 10_000 {
			t.Errorf("the large one: %v, want a TooLongError", err)
		}
		<-small.Done()
		if r, err := small.Outcome(); err != nil || string(r.Result) != `"ok"` {
			t.Errorf("the small one: %s, %v", r.Result, err)
		}
	}
}

func TestNoiseIsSkipped(t *testing.T) {
	var noise []string
	in := "Server v1 started\n\n{\"a\":1}\r\n  debug: {not json}\n[1]\n{\"last\":true}"
	l := wire.NewLines(strings.NewReader(in), io.Discard, func() error { return nil }, 0, func(b []byte) { noise = append(noise, string(b)) })
	var got []string
	for {
		raw, err := l.Read()
		if err != nil {
			if err != io.EOF {
				t.Errorf("Read: %v, want EOF", err)
			}
			break
		}
		got = append(got, string(raw))
	}
	if want := []string{`{"a":1}`, `[1]`, `{"last":true}`}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("messages %q, want %q", got, want)
	}
	if want := []string{"Server v1 started", "debug: {not json}"}; fmt.Sprint(noise) != fmt.Sprint(want) {
		t.Errorf("noise %q, want %q", noise, want)
	}
}

// Newlines between tokens are legal JSON; a line must stay one line.
func TestOneLineAMessage(t *testing.T) {
	var out bytes.Buffer
	l := wire.NewLines(strings.NewReader(""), &out, func() error { return nil }, 0, nil)
	if err := l.Write([]byte("{\n \"a\":"), []byte("\"b\\n\"\r\n}")); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "{  \"a\":\"b\\n\"  }\n"; got != want {
		t.Errorf("wrote %q, want %q", got, want)
	}
}

func TestDeathFailsWhatIsUnderWay(t *testing.T) {
	c, s := dial(t, 0)
	call, err := c.Start("m", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.out.Close()
	<-call.Done()
	if _, err := call.Outcome(); err == nil {
		t.Error("the call of a dead server has no error")
	}
	<-c.Done()
	if _, err := c.Start("m", nil, nil); err == nil {
		t.Error("Start on a dead connection has no error")
	}
}

// What a server says before there is a handler is kept for it, in order.
func TestEarlyMessagesAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := &scripted{in: make(chan string, 10)}
		c := wire.NewConn(tr)
		tr.in <- `{"jsonrpc":"2.0","id":7,"method":"roots/list"}`
		tr.in <- `{"jsonrpc":"2.0","method":"notifications/message","params":{"n":1}}`
		synctest.Wait()
		h := &recorder{}
		c.Handle(h)
		tr.in <- `{"jsonrpc":"2.0","method":"notifications/message","params":{"n":2}}`
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if got, want := fmt.Sprint(h.seen), "[roots/list notifications/message notifications/message]"; got != want {
			t.Errorf("handled %s, want %s", got, want)
		}
		c.Close()
		synctest.Wait()
	})
}

type scripted struct {
	in   chan string
	once sync.Once
}

func (s *scripted) Read() ([]byte, error) {
	m, ok := <-s.in
	if !ok {
		return nil, io.EOF
	}
	return []byte(m), nil
}
func (s *scripted) Write(...[]byte) error { return nil }
func (s *scripted) Close() error          { s.once.Do(func() { close(s.in) }); return nil }

type recorder struct {
	mu   sync.Mutex
	seen []string
}

func (r *recorder) Notified(_ *wire.Conn, m wire.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, m.Method)
}
func (r *recorder) Requested(c *wire.Conn, m wire.Message) { r.Notified(c, m) }

// The scanner agrees with encoding/json on whatever that takes for JSON, and
// never panics on anything else.
func FuzzScan(f *testing.F) {
	for _, s := range []string{`{"jsonrpc":"2.0","id":1,"method":"a","params":{"_meta":{"progressToken":"x"}}}`, `{"a":[{"b":"\\\""}]}`, `[[[`, `{"a":1,}`, "\"", `{"\u0061":{}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := wire.Parse(b)
		_, _ = wire.Elements(b)
		_ = wire.Set(b, []byte("1"), "a")
		var fields map[string]json.RawMessage
		if json.Unmarshal(b, &fields) != nil || fields == nil {
			return
		}
		n := 0
		walk := wire.Members(b, func(string, []byte) bool { n++; return true })
		if walk != nil && !bytes.Contains(b, bytes.Repeat([]byte("["), 500)) && !bytes.Contains(b, bytes.Repeat([]byte("{"), 500)) {
			t.Errorf("Members refuses valid JSON: %v", walk)
		}
		if err == nil && m.Params != nil && !json.Valid(m.Params) {
			t.Errorf("params %q of valid JSON are not valid", m.Params)
		}
		if replaced := wire.Replace(b, []byte("null"), "a"); !json.Valid(replaced) {
			t.Errorf("Replace made %q of %q", replaced, b)
		}
	})
}

func FuzzLines(f *testing.F) {
	f.Add([]byte("{}\n{\"a\":\"\n\"}\r\nnoise\n"), uint8(3))
	f.Fuzz(func(t *testing.T, b []byte, chunk uint8) {
		l := wire.NewLines(&dribble{b, int(chunk%16) + 1}, io.Discard, func() error { return nil }, 1000, nil)
		for range len(b) + 2 {
			m, err := l.Read()
			var long *wire.TooLongError
			if errors.As(err, &long) {
				continue
			}
			if err != nil {
				return
			}
			if len(m) > 1000 {
				t.Errorf("a message of %d bytes passed the limit", len(m))
			}
		}
		t.Error("Read does not come to an end")
	})
}

// dribble reads a few bytes at a time.
type dribble struct {
	b []byte
	n int
}

func (d *dribble) Read(p []byte) (int, error) {
	if len(d.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p, d.b[:min(d.n, len(d.b))])
	d.b = d.b[n:]
	return n, nil
}

func BenchmarkHop(b *testing.B) {
	raw := []byte(`{"jsonrpc":"2.0","id":123,"method":"tools/call","params":{"name":"everything__echo","arguments":{"message":"` + strings.Repeat("x", 1000) + `"},"_meta":{"progressToken":7}}}`)
	b.ReportAllocs()
	for b.Loop() {
		m, err := wire.Parse(raw)
		if err != nil {
			b.Fatal(err)
		}
		_ = wire.Str(m.Params, "name")
		_ = wire.Get(m.Params, "_meta", "progressToken")
	}
}

// A quoted text is what the standard library makes of it.
func FuzzQuote(f *testing.F) {
	for _, s := range []string{"", "tools/call", `a"b\c`, "<&>", "\x7f", "\x00", "ä", "\u2028", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var want bytes.Buffer
		enc := json.NewEncoder(&want)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(s); err != nil {
			t.Fatal(err)
		}
		if got := string(wire.Quote(s)) + "\n"; got != want.String() {
			t.Errorf("Quote(%q) = %s, want %s", s, got, want.String())
		}
	})
}
