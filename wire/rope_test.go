package wire_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/specbox/specbox/wire"
)

// Lines of any length, at the sizes where buffers and blocks end, come whole and
// own their memory.
func TestLongLines(t *testing.T) {
	var in bytes.Buffer
	var want []string
	for _, around := range []int{1, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 5 << 20} {
		for d := -3; d <= 3; d++ {
			n := max(9, around+d)
			line := fmt.Sprintf(`{"a":"%s"}`, strings.Repeat("0123456789", n/10+1)[:n-8])
			want = append(want, line)
			in.WriteString(line + "\n")
		}
	}
	for name, r := range map[string]io.Reader{"whole": bytes.NewReader(in.Bytes()), "halves": iotest.HalfReader(bytes.NewReader(in.Bytes()))} {
		l := wire.NewLines(r, io.Discard, func() error { return nil }, 0, nil)
		var got [][]byte
		for range want {
			line, err := l.Read()
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, line)
		}
		for i := range want {
			if string(got[i]) != want[i] {
				t.Errorf("%s: a line of %d bytes came as another of %d", name, len(want[i]), len(got[i]))
			}
		}
		if _, err := l.Read(); !errors.Is(err, io.EOF) {
			t.Errorf("%s: at the end: %v", name, err)
		}
	}
}

// Of a line over the limit both ends are kept, wherever the limit lies.
func TestTooLongLinesKeepTheirEnds(t *testing.T) {
	for _, limit := range []int64{100, 64 << 10, 256 << 10, 256<<10 + 5, 1 << 20} {
		line := `{"head":1,` + strings.Repeat(" ", 3<<20) + `"tail":2}`
		l := wire.NewLines(strings.NewReader(line+"\n{}\n"), io.Discard, func() error { return nil }, limit, nil)
		_, err := l.Read()
		var long *wire.TooLongError
		if !errors.As(err, &long) || long.Size < int64(len(line)) || !strings.HasPrefix(string(long.Head), `{"head":1,`) || !strings.HasSuffix(string(long.Tail), `"tail":2}`) {
			t.Errorf("limit %d: %v", limit, err)
		}
		if next, err := l.Read(); string(next) != "{}" || err != nil {
			t.Errorf("limit %d: the line after it is %q, %v", limit, next, err)
		}
	}
}

func BenchmarkLongLine(b *testing.B) {
	for _, n := range []int{1 << 10, 1 << 20, 10 << 20} {
		line := append(bytes.Repeat([]byte("{"), n), '\n')
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := bytes.NewReader(nil)
			l := wire.NewLines(r, io.Discard, func() error { return nil }, 0, nil)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				r.Reset(line)
				if _, err := l.Read(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
