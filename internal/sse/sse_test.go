package sse_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/specbox/specbox/internal/sse"
)

// parse returns the events of a stream that comes in pieces of n bytes; 0
// means in one.
func parse(p *sse.Parser, s string, n int) []string {
	var out []string
	emit := func(e sse.Event) {
		text := fmt.Sprintf("%s|%s", e.Type, e.Data)
		if e.Size > 0 {
			text = fmt.Sprintf("%s|%d %.4s…%s", e.Type, e.Size, e.Head, e.Tail[max(0, len(e.Tail)-4):])
		}
		out = append(out, text)
	}
	for len(s) > 0 {
		m := len(s)
		if n > 0 {
			m = min(n, m)
		}
		piece := []byte(s[:m])
		p.Feed(piece, emit)
		clear(piece) // it must not be kept
		s = s[m:]
	}
	p.End(emit)
	return out
}

func TestStreamsMeanTheSameHoweverTheyAreSplit(t *testing.T) {
	for _, tt := range []struct {
		name, stream string
		want         []string
		id           string
		retry        time.Duration
	}{
		{"one", "data: a\n\n", []string{"|a"}, "", 0},
		{"CRLF", "event: x\r\ndata: a\r\n\r\ndata: b\r\n\r\n", []string{"x|a", "|b"}, "", 0},
		{"CR", "data: a\r\rdata: b\r\r", []string{"|a", "|b"}, "", 0},
		{"mixed", "data: a\r\n\ndata: b\n\r\ndata: c\r\n\r\n", []string{"|a", "|b", "|c"}, "", 0},
		{"lines of data", "data: a\ndata:b\ndata\ndata:  c\n\n", []string{"|a\nb\n\n c"}, "", 0},
		{"no final newline", "data: a\n\ndata: b", []string{"|a", "|b"}, "", 0},
		{"no final empty line", "data: a\n\ndata: b\n", []string{"|a", "|b"}, "", 0},
		{"cut in a field's name", "data: a\n\ndat", []string{"|a"}, "", 0},
		{"comments and unknown fields", ": ping\n\ndata: a\nfoo: bar\n:x\n\n", []string{"|a"}, "", 0},
		{"no data, no event", "event: x\n\ndata: a\n\n", []string{"|a"}, "", 0},
		{"empty data", "id: 1\ndata:\n\nid: 2\ndata\n\n", []string{"|", "|"}, "2", 0},
		{"the id stays", "id: 7\ndata: a\n\ndata: b\n\n", []string{"|a", "|b"}, "7", 0},
		{"an id without data counts", "id: 8\n\n", nil, "8", 0},
		{"an id that did not end does not", "id: 7\n\nid: 8\n", nil, "7", 0},
		{"an id with NUL is ignored", "id: 7\n\nid: 8\x00\n\n", nil, "7", 0},
		{"retry", "retry: 1500\nretry: x\nretry: -1\nretry: 99999999999999999999\n\n", nil, "", 1500 * time.Millisecond},
		{"byte order mark", "\uFEFFdata: a\n\n", []string{"|a"}, "", 0},
		{"half of it", "\xef\xbbdata: a\n\n", nil, "", 0},
		{"colon at the start of data", "data: : a\ndata::b\n\n", []string{"|: a\n:b"}, "", 0},
		{"a name that begins like data", "datax: a\ndata:b\n\n", []string{"|b"}, "", 0},
		{"long", "data: " + strings.Repeat("0123456789", 10000) + "\n\ndata: b\n\n", []string{"|" + strings.Repeat("0123456789", 10000), "|b"}, "", 0},
		{"long comment", ": " + strings.Repeat("0123456789", 10000) + "\ndata: b\n\n", []string{"|b"}, "", 0},
		{"nothing", "", nil, "", 0},
	} {
		for n := range 9 {
			var p sse.Parser
			got := parse(&p, tt.stream, n)
			if !slices.Equal(got, tt.want) || p.LastID() != tt.id || p.Retry() != tt.retry {
				t.Errorf("%s, in pieces of %d: got %.60q, id %q, retry %v, want %.60q, %q, %v", tt.name, n, got, p.LastID(), p.Retry(), tt.want, tt.id, tt.retry)
			}
		}
	}
}

func TestLongEventsKeepTheirEnds(t *testing.T) {
	long := "head" + strings.Repeat("x", 50000) + "tail"
	for _, stream := range []string{
		"data: " + long + "\n\ndata: b\n\n",
		"data: " + long[:100] + "\ndata: " + long[101:] + "\n\ndata: b\n\n",
	} {
		for _, n := range []int{0, 1, 7, 4096, 9999, 50000} {
			p := sse.Parser{Limit: 50007}
			got := parse(&p, stream, n)
			if want := []string{"|50008 head…tail", "|b"}; !slices.Equal(got, want) {
				t.Errorf("in pieces of %d: %.80q, want %q", n, got, want)
			}
		}
	}
	p := sse.Parser{Limit: 50008}
	if got := parse(&p, "data: "+long+"\n\n", 0); len(got) != 1 || got[0] != "|"+long {
		t.Errorf("an event of the size of the limit: %.80q", got)
	}
}

func TestReaderReturnsTheErrorAfterTheEvents(t *testing.T) {
	broken := errors.New("broken")
	for _, tt := range []struct {
		end  error
		want []string
	}{
		{io.EOF, []string{"a", "b"}},
		{broken, []string{"a"}}, // what was cut is not an event
	} {
		r := sse.NewReader(io.MultiReader(iotest.OneByteReader(strings.NewReader("id: 3\ndata: a\n\ndata: b")), iotest.ErrReader(tt.end)), 0)
		var got []string
		var err error
		for {
			var e sse.Event
			if e, err = r.Next(); err != nil {
				break
			}
			got = append(got, string(e.Data))
		}
		if !slices.Equal(got, tt.want) || !errors.Is(err, tt.end) || r.LastID() != "3" {
			t.Errorf("got %q, %v, id %q, want %q, %v", got, err, r.LastID(), tt.want, tt.end)
		}
	}
}

func FuzzParser(f *testing.F) {
	f.Add([]byte("event: x\r\ndata: a\rdata: b\n\nid: 1\nretry: 5\n\ndata"), 3)
	f.Add([]byte("\uFEFF: c\n\ndata:"+strings.Repeat("x", 300)+"\n\n"), 1)
	f.Fuzz(func(t *testing.T, stream []byte, n int) {
		if n < 1 {
			n = 1
		}
		var whole, pieces sse.Parser
		whole.Limit, pieces.Limit = 200, 200
		a, b := parse(&whole, string(stream), 0), parse(&pieces, string(stream), n)
		if !slices.Equal(a, b) || whole.LastID() != pieces.LastID() || whole.Retry() != pieces.Retry() {
			t.Errorf("in one piece %q, in pieces of %d %q", a, n, b)
		}
		if !bytes.ContainsAny(stream, "\r") {
			crlf := bytes.ReplaceAll(stream, []byte("\n"), []byte("\r\n"))
			var other sse.Parser
			other.Limit = 200
			if c := parse(&other, string(crlf), n); !slices.Equal(a, c) {
				t.Errorf("with LF %q, with CRLF %q", a, c)
			}
		}
	})
}

func BenchmarkParser(b *testing.B) {
	stream := []byte(strings.Repeat("data: {\"choices\":[{\"delta\":{\"content\":\"token\"}}]}\n\n", 100))
	b.SetBytes(int64(len(stream)))
	b.ReportAllocs()
	var p sse.Parser
	for b.Loop() {
		p.Feed(stream, func(sse.Event) {})
	}
}
