package tap_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/specbox/specbox/tap"
)

var apis = []tap.API{tap.Chat, tap.Responses, tap.Messages}

// A delta is told the same, wherever the stream was split, and the deltas keep
// their order: a call begins, is filled, and ends, and nothing comes after Done.
func FuzzStream(f *testing.F) {
	for _, rec := range recordings(f) {
		for i := range apis {
			f.Add([]byte(rec.response), i, 7)
			f.Add([]byte(strings.ReplaceAll(rec.response, "\n", "\r")), i, 1)
		}
	}
	f.Add([]byte("data: {\"choices\":[{\"delta\":{\"content\":\"\\ud83d\"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"\\ude00\"}}]}\n\n"), 0, 3)
	f.Fuzz(func(t *testing.T, stream []byte, api, piece int) {
		a := apis[uint(api)%3]
		var pieces [][]byte
		for rest := stream; len(rest) > 0; {
			n := min(len(rest), 1+int(uint(piece)%64))
			pieces = append(pieces, bytes.Clone(rest[:n]))
			rest = rest[n:]
		}
		whole, split := told(t, a, [][]byte{stream}), told(t, a, pieces)
		if whole != split {
			t.Errorf("as one:\n%s\nin pieces:\n%s", whole, split)
		}
	})
}

func told(t *testing.T, api tap.API, pieces [][]byte) string {
	var b strings.Builder
	done := false
	open := map[int]bool{}
	tap.Deltas(api, pieces, func(d tap.Delta) {
		fmt.Fprintln(&b, kinds[d.Kind], d.Index, d.ID, d.Name, string(d.Text))
		if done {
			t.Errorf("after the end: %+v", d)
		}
		switch d.Kind {
		case tap.ToolName:
			if _, twice := open[d.Index]; twice || d.Index != len(open) {
				t.Errorf("call %d begins as the %d-th", d.Index, len(open))
			}
			open[d.Index] = true
		case tap.Arguments, tap.ToolDone:
			if !open[d.Index] {
				t.Errorf("%v of call %d, which is not open", kinds[d.Kind], d.Index)
			}
			open[d.Index] = d.Kind == tap.Arguments
		case tap.Done:
			done = true
		}
	})
	return b.String()
}

func FuzzWhole(f *testing.F) {
	for _, rec := range recordings(f) {
		for i := range apis {
			f.Add([]byte(rec.response), i)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, api int) {
		tap.Whole(apis[uint(api)%3], b, func(d tap.Delta) {
			if (d.Kind == tap.Text || d.Kind == tap.Reasoning) && !utf8.Valid(d.Text) {
				t.Errorf("no text: %q", d.Text)
			}
		})
	})
}

// Whatever comes, it is bounded, and nothing of it is new a second time.
func FuzzRequest(f *testing.F) {
	for _, rec := range recordings(f) {
		for i := range apis {
			f.Add([]byte(rec.request), i)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, api int) {
		const most = 200
		m := tap.NewMemory(most)
		id, _, first, _ := m.Read(apis[uint(api)%3], b)
		for _, msg := range first {
			if len(msg.Text) > tap.MaxMessage {
				t.Errorf("a message of %d bytes", len(msg.Text))
			}
		}
		if _, n := m.Size(); n > most {
			t.Errorf("%d hashes are kept", n)
		}
		again, continued, second, _ := m.Read(apis[uint(api)%3], b)
		if n, _ := m.Size(); n > 0 && continued && (again != id || len(second) > 0) {
			t.Errorf("the second time: %q after %q, new %+v", again, id, second)
		}
	})
}

// A string is what the standard library says that it is, also in two pieces.
func FuzzUnquote(f *testing.F) {
	for _, s := range []string{`""`, `"a\n\"\\\/\b\f\r\t"`, `"\ud83d\ude00"`, `"\ud83dx"`, `"\ude00"`, `"é😀"`, "\"\xff\"", `"\u00e9\uD83D\uD83D\uDE00"`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var want string
		if json.Unmarshal([]byte(s), &want) != nil || !strings.HasPrefix(s, `"`) || !strings.HasSuffix(s, `"`) {
			_, _ = tap.AppendUnquoted(nil, []byte(s), 0) // it may not panic
			return
		}
		got, high := tap.AppendUnquoted(nil, []byte(s), 0)
		if high != 0 {
			got = append(got, "\uFFFD"...)
		}
		if string(got) != want {
			t.Errorf("%s is %s, not %s", s, strconv.Quote(string(got)), strconv.Quote(want))
		}
	})
}

func TestHalvesOfACharacterMeet(t *testing.T) {
	for _, test := range []struct{ first, second, want string }{
		{`"content":"a\ud83d"`, `"content":"\ude00b"`, "a😀b"},
		{`"content":"a\ud83d"`, `"content":"b"`, "a\uFFFDb"},
		{`"content":"a\ud83d"`, `"content":""`, "a\uFFFD"},
		{`"content":"\ude00"`, `"content":"b"`, "\uFFFDb"},
		{`"reasoning":"a\ud83d"`, `"content":"\ude00b"`, "a\uFFFD\uFFFDb"}, // of two texts
	} {
		stream := fmt.Sprintf("data: {\"choices\":[{\"delta\":{%s}}]}\n\ndata: {\"choices\":[{\"delta\":{%s},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n", test.first, test.second)
		var got []byte
		tap.Deltas(tap.Chat, [][]byte{[]byte(stream)}, func(d tap.Delta) { got = append(got, d.Text...) })
		if string(got) != test.want {
			t.Errorf("%s and %s are %q, not %q", test.first, test.second, got, test.want)
		}
	}
}

// An event that is too long is skipped, and what follows it is told. The end of
// an answer is known by its name, though it repeats all of it.
func TestLongEvents(t *testing.T) {
	long := strings.Repeat("x", 2<<20)
	stream := "data: {\"type\":\"response.output_text.delta\",\"delta\":\"" + long + "\"}\n\n" +
		"data: {\"type\":\"response.output_text.delta\",\"delta\":\"short\"}\n\n" +
		"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"output\":\"" + long + "\"}}\n\n"
	if got := told(t, tap.Responses, [][]byte{[]byte(stream)}); got != "text 0   short\ndone 0   \n" {
		t.Errorf("told %.200q", got)
	}
}
