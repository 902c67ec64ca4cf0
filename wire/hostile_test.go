package wire_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"unicode/utf8"

	"github.com/specbox/specbox/wire"
)

// stuck is a transport whose peer talks and never reads.
type stuck struct {
	scripted
	closed chan struct{}
}

func newStuck() *stuck {
	return &stuck{scripted{in: make(chan string)}, make(chan struct{})}
}

func (s *stuck) Write(...[]byte) error { <-s.closed; return io.ErrClosedPipe }
func (s *stuck) Close() error          { s.once.Do(func() { close(s.in); close(s.closed) }); return nil }

// What a server is sent that does not read is bounded, whatever it asks for, and
// holds nobody up.
func TestWhatIsUnreadIsBounded(t *testing.T) {
	for name, say := range map[string]string{
		"pings":    `{"jsonrpc":"2.0","id":5,"method":"ping"}`,
		"requests": `{"jsonrpc":"2.0","id":5,"method":"roots/list"}`,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tr := newStuck()
				c := wire.NewConn(tr)
				c.Handle(nil)
				before := runtime.NumGoroutine()
				for range 20_000 {
					tr.in <- say
				}
				synctest.Wait()
				if n := runtime.NumGoroutine() - before; n > 5 {
					t.Errorf("%d goroutines write to a server that does not read", n)
				}
				if err := c.Post("notifications/x", nil); !errors.Is(err, wire.ErrUnread) {
					t.Errorf("Post: %v, want ErrUnread", err)
				}
				call, err := make(chan *wire.Call, 1), make(chan error, 1)
				go func() { c, e := c.Start("m", nil, nil); call <- c; err <- e }()
				synctest.Wait()
				c.Close()
				if <-call; <-err == nil {
					t.Error("Start on a closed connection has no error")
				}
				if err := c.Post("notifications/x", nil); !errors.Is(err, wire.ErrClosed) {
					t.Errorf("Post on a closed connection: %v", err)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		tr := newStuck()
		c := wire.NewConn(tr)
		defer c.Close()
		big := []byte(`"` + strings.Repeat("x", 9<<20) + `"`)
		n := 0
		for ; n < 100 && c.Post("notifications/big", big) == nil; n++ {
			synctest.Wait()
		}
		if n < 1 || n > 3 {
			t.Errorf("%d messages of 9 MiB wait for a server that does not read", n)
		}
	})
}

// What is posted arrives in order.
func TestPostsKeepTheirOrder(t *testing.T) {
	c, s := dial(t, 0)
	for i := range 500 {
		if err := c.Post("n", fmt.Appendf(nil, `{"i":%d}`, i)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 500 {
		if m := <-s.lines; string(wire.Get(m.Params, "i")) != fmt.Sprint(i) {
			t.Fatalf("message %d is %s", i, m.Raw)
		}
	}
}

// An answer that not every reader can read fails its call at once, and is passed
// on to nobody; nor is anything else that is no message.
func TestInvalidAnswers(t *testing.T) {
	deep := strings.Repeat("[", 2000) + strings.Repeat("]", 2000)
	for name, value := range map[string]string{
		"text": `{"a":1 oops}`, "number": "nan", "control character": "\"\x01\"", "depth": deep, "escape": `"\x"`,
	} {
		for _, form := range []string{`{"jsonrpc":"2.0","id":%s,"result":%s}`, `{"result":%[2]s,"jsonrpc":"2.0","id":%[1]s}`, `{"jsonrpc":"2.0","id":"%s","error":%s}`} {
			c, s := dial(t, 0)
			h := &recorder{}
			c.Handle(h)
			call, err := c.Start("m", nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			m := <-s.lines
			s.say(`{"jsonrpc":"2.0","id":%s,"method":"roots/list","params":%s}`, m.ID, value) // the server's own ids are others
			s.say(`{"jsonrpc":"2.0","method":"notifications/message","params":%s}`, value)
			s.say(form, m.ID, value)
			<-call.Done()
			var invalid *wire.InvalidError
			if r, err := call.Outcome(); !errors.As(err, &invalid) {
				t.Errorf("%s: the outcome is %.100s, %v; want an InvalidError", name, r.Result, err)
			}
			h.mu.Lock()
			if len(h.seen) > 0 {
				t.Errorf("%s: passed on %q", name, h.seen)
			}
			h.mu.Unlock()
			c.Close()
		}
	}
}

// Bytes that are no UTF-8 reach no client, and what stands around them does.
func TestBytesThatAreNoText(t *testing.T) {
	c, s := dial(t, 0)
	call, err := c.Start("m", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	m := <-s.lines
	s.say(`{"jsonrpc":"2.0","id":%s,"result":"a`+"\xff\xfe"+`é b"}`, m.ID)
	<-call.Done()
	if r, err := call.Outcome(); err != nil || string(r.Result) != "\"a\uFFFDé b\"" {
		t.Errorf("the result is %q, %v", r.Result, err)
	}
}

// A request of a server that is too long, or no JSON, ends no call, though the
// ids of both sides may be equal.
func TestOnlyAnswersEndCalls(t *testing.T) {
	c, s := dial(t, 10_000)
	call, err := c.Start("m", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	m := <-s.lines
	long := strings.Repeat("x", 20_000)
	for _, form := range []string{
		`{"jsonrpc":"2.0","id":%s,"method":"a","params":"` + long + `"}`,
		`{"jsonrpc":"2.0","id":%s,"params":"` + long + `","method":"a"}`,
		`{"params":"` + long + `","jsonrpc":"2.0","id":%s,"method":"a"}`,
		`{"jsonrpc":"2.0","method":"a","params":{"x":"` + long + `","id":%s}}`,
		`{"jsonrpc":"2.0","id":%s,"method":"a","params":nan}`,
	} {
		s.say(form, m.ID)
	}
	s.say(`{"jsonrpc":"2.0","id":%s,"result":"mine"}`, m.ID)
	<-call.Done()
	if r, err := call.Outcome(); err != nil || string(r.Result) != `"mine"` {
		t.Errorf("the call got %s, %v", r.Result, err)
	}
}

// What comes before there is a handler is bounded in bytes too.
func TestEarlyMessagesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := &scripted{in: make(chan string)}
		c := wire.NewConn(tr)
		for range 20 {
			tr.in <- `{"jsonrpc":"2.0","method":"notifications/message","params":{"x":"` + strings.Repeat("x", 1<<20) + `"}}`
		}
		synctest.Wait()
		h := &recorder{}
		c.Handle(h)
		if n := len(h.seen); n == 0 || n > 4 {
			t.Errorf("%d messages of a mebibyte were kept", n)
		}
		c.Close()
		synctest.Wait()
	})
}

// Noise of any length is read with little memory, and is never an error.
func TestNoiseOfAnyLength(t *testing.T) {
	for _, begin := range []string{"x", " \t x", strings.Repeat(" ", 100_000) + "x", strings.Repeat(" ", 2_000_000)} {
		var noise [][]byte
		in := io.MultiReader(strings.NewReader(begin), io.LimitReader(forever('z'), 3_000_000), strings.NewReader("\n  {}\n"))
		if strings.TrimSpace(begin) == "" {
			in = strings.NewReader(begin + "\n  {}\n")
		}
		l := wire.NewLines(in, io.Discard, func() error { return nil }, 500_000, func(b []byte) { noise = append(noise, bytes.Clone(b)) })
		got, err := l.Read()
		if err != nil || string(got) != "{}" {
			t.Errorf("read %.100q, %v after noise; want {}", got, err)
		}
		if len(noise) > 1 || len(noise) == 1 && len(noise[0]) != 1<<10 {
			t.Errorf("%d lines of noise", len(noise))
		}
	}
}

type forever byte

func (f forever) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(f)
	}
	return len(p), nil
}

// FuzzValid compares what is taken for JSON with the standard library.
func FuzzValid(f *testing.F) {
	for _, s := range []string{
		"", " ", "\x00", "{", "[]", "{}", "null", `"`, "7", "-", "1.", "01", "1e", "-0.0e+7", "tru", "\xff", `{"a":1,}`, `{"a":[1,-2.5e-7,"\\\"\u00e9",true]}`,
		"\"a\nb\"", "\"abcdefghijk\x01mnop\"", `"abcdefgh\u12g4"`, `"abcdefgh\`, "\"\x7f\u0080abcdefgh\u00ff\"", "\"abc\xffdefghijk\"",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		depth, deepest := 0, 0
		for _, c := range b {
			switch c {
			case '[', '{':
				depth++
				deepest = max(deepest, depth)
			case ']', '}':
				depth--
			}
		}
		if deepest > 900 {
			return
		}
		if got, want := wire.Valid(b), json.Valid(b); got != want {
			t.Errorf("Valid(%q) = %v, the standard library says %v", b, got, want)
		}
		if valid, text := wire.Check(b); valid != json.Valid(b) || text != utf8.Valid(b) {
			t.Errorf("Check(%q) = %v, %v; the standard library says %v, %v", b, valid, text, json.Valid(b), utf8.Valid(b))
		}
	})
}

// FuzzPieces compares what is found out in pieces with what is as a whole.
func FuzzPieces(f *testing.F) {
	for _, s := range []string{
		`{"a":[1,-2.5e-7,"\\\"\u00e9",true,null,false,{}],"b":{"c":[[]]},"":0}`, "[0.5e+12 , 10]", "\"ab\xffc\"", `{"a":1,}`, `[tru]`, `"\u12g4"`, `-`, `[1 2]`, ` [ ] `,
		`{"jsonrpc":"2.0","id":7,"result":{"content":[{"isError":true}],"isError" : true}}`, `{"jsonrpc":"2.0","result":{"isError":false,"isError":true}, "id" : "x" }`,
		`{"jsonrpc":"2.0","id":1,"result":{"is\u0045rror":true}}`, `{"jsonrpc":"2.0","id":1,"r\u0065sult":{"isError":true}}`, `{"result":{"isError":true},"jsonrpc":"2.0","result":{},"id":1}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"isError":true}}`, `{"jsonrpc":"2.0","a":1,"b":2,"c":3,"d":4,"e":5,"f":6,"id":1,"error":{"code":1}}`, `{"jsonrpc":"2.0","id":null,"result":[{"isError":true}]}`,
	} {
		f.Add([]byte(s), uint16(3), uint16(7))
		f.Add([]byte(s), uint16(40), uint16(12))
	}
	f.Fuzz(func(t *testing.T, b []byte, first, second uint16) {
		b = bytes.TrimSpace(b)
		i := min(int(first), len(b))
		j := min(i+int(second), len(b))
		single := make([][]byte, 0, len(b))
		for k := range b {
			single = append(single, b[k:k+1])
		}
		for _, pieces := range [][][]byte{{b}, {b[:i], b[i:j], b[j:]}, single} {
			m, r, valid, text, err := wire.ParsePieces(pieces...)
			if valid != json.Valid(b) && bytes.Count(b, []byte("["))+bytes.Count(b, []byte("{")) < wire.MaxDepth || text != utf8.Valid(b) {
				t.Fatalf("in pieces %q it is JSON: %v, and text: %v", pieces, valid, text)
			}
			if !valid {
				continue
			}
			want, wantErr := wire.Parse(b)
			if (err == nil) != (wantErr == nil) || err == nil && (m.Method != want.Method || !bytes.Equal(m.ID, want.ID) || !bytes.Equal(m.Params, want.Params) ||
				!bytes.Equal(m.Result, want.Result) || !bytes.Equal(m.Error, want.Error) || (m.ID == nil) != (want.ID == nil) || (m.Result == nil) != (want.Result == nil)) {
				t.Fatalf("in pieces %q it is %+v, %v; as a whole %+v, %v", pieces, m, err, want, wantErr)
			}
			if failed := string(wire.Get(want.Result, "isError")) == "true"; err == nil && r.ToolFailed() != failed {
				t.Fatalf("in pieces %q it says that the tool failed: %v; as a whole: %v", pieces, r.ToolFailed(), failed)
			}
		}
	})
}

// Long answers are checked like short ones, wherever the fault is.
func TestLongInvalidAnswers(t *testing.T) {
	for _, size := range []int{60_000, 70_000, 300_000, 1_000_000} {
		for _, at := range []int{0, 1, size / 2, size - 1} {
			for fault, fine := range map[string]bool{"x": true, "\x01": false, "\xff": true, `"`: false, `\n`: true, `\x`: false} {
				c, s := dial(t, 0)
				c.Handle(nil)
				call, err := c.Start("m", nil, nil)
				if err != nil {
					t.Fatal(err)
				}
				m := <-s.lines
				text := strings.Repeat("a", at) + fault + strings.Repeat("b", size-1-at)
				s.say(`{"jsonrpc":"2.0","id":%s,"result":"%s"}`, m.ID, text)
				<-call.Done()
				r, err := call.Outcome()
				var invalid *wire.InvalidError
				if want := `"` + strings.ToValidUTF8(text, "\uFFFD") + `"`; fine && string(r.Result) != want || !fine && !errors.As(err, &invalid) {
					t.Errorf("%q at %d of %d: %.50s, %v", fault, at, size, r.Result, err)
				}
			}
		}
	}
}

// A byte that is no ASCII is seen wherever it stands in a string, and what ends a
// string too.
func TestCheckSeesEveryByte(t *testing.T) {
	for n := range 100 {
		for at := range n {
			for c, want := range map[byte][2]bool{'a': {true, true}, 0xff: {true, false}, 0x80: {true, false}, '"': {false, true}, 0x1f: {false, true}, 0x7f: {true, true}} {
				b := []byte(`["` + strings.Repeat("x", n) + `"]`)
				b[2+at] = c
				if valid, text := wire.Check(b); [2]bool{valid, text} != want {
					t.Errorf("Check with %#x at %d of %d = %v, %v, want %v", c, at, n, valid, text, want)
				}
			}
		}
	}
}

func BenchmarkCheck(b *testing.B) {
	long := `{"text":"` + strings.Repeat("0123456789abcdef", 10<<20/16) + `"}`
	rows := `[` + strings.Repeat(`{"id":12345,"name":"somebody","tags":["a","b"],"ok":true},`, 10000) + `null]`
	for name, text := range map[string]string{"string": long, "rows": rows, "umlauts": strings.ReplaceAll(long, "a", "\u00e4"), "utf8": strings.ReplaceAll(long, "a", "ä")} {
		b.Run(name, func(b *testing.B) {
			in := []byte(text)
			b.SetBytes(int64(len(in)))
			for b.Loop() {
				if valid, text := wire.Check(in); !valid || !text {
					b.Fatal("it is not valid")
				}
			}
		})
	}
}

// A call may be abandoned while the server reads nothing: nobody waits for that.
func TestAbandonDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newStuck()
		tr.closed = make(chan struct{})
		open := &gated{stuck: tr}
		c := wire.NewConn(open)
		call, err := c.Start("m", nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		call.Abandon(nil)
		synctest.Wait()
		c.Close()
	})
}

// gated lets one message through.
type gated struct {
	*stuck
	once sync.Once
}

func (g *gated) Write(parts ...[]byte) error {
	first := false
	g.once.Do(func() { first = true })
	if first {
		return nil
	}
	return g.stuck.Write(parts...)
}

// A key that is there twice is found, however it is spelled.
func TestTwice(t *testing.T) {
	many := "{"
	for i := range 100 {
		many += fmt.Sprintf(`"k%d":%d,`, i, i)
	}
	for in, want := range map[string]string{
		`{}`: "", `{"a":1}`: "", `{"a":1,"b":{"a":2}}`: "", `[1]`: "", `{"aa":1,"a":2}`: "",
		`{"name":1,"name":2}`: "name", `{"name":1,"Name":2}`: "Name", `{"name":1,"n\u0061me":2}`: "name", `{"NAME":1,"x":0,"name":2}`: "name",
		`{"tasks":1,"task\u017f":2}`: "task\u017f", `{"token":1,"to\u212aen":2}`: "to\u212aen",
		many + `"last":1}`: "", many + `"K99":1}`: "K99", many + `"K3":1}`: "K3",
	} {
		if got := wire.Twice([]byte(in)); got != want {
			t.Errorf("Twice(%.40s…) = %q, want %q", in, got, want)
		}
	}
}
