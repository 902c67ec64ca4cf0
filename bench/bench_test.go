package bench

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/specbox/specbox/wire"
)

func TestResultHasItsSize(t *testing.T) {
	for _, size := range []int{100, 1 << 10, 1 << 20} {
		b := result(size)
		if len(b) != size || !wire.Valid(b) {
			t.Errorf("a result of %d bytes has %d: %.100s", size, len(b), b)
		}
	}
}

func TestEcho(t *testing.T) {
	in := strings.Join([]string{
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"fill","arguments":{"bytes":200}}}`,
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
		`{"jsonrpc":"2.0","id":"two","method":"tools/call","params":{"name":"fill","arguments":{"bytes":100000}}}`,
		`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"fill","arguments":{"bytes":-1}}}`,
		`{"jsonrpc":"2.0","id":4,"method":"server/discover","params":{}}`,
		`{"jsonrpc":"2.0","id":5,"method":"none"}`,
	}, "\n") + "\n"
	var out bytes.Buffer
	if err := Echo(strings.NewReader(in), &out); err != nil {
		t.Fatal(err)
	}
	l := wire.NewLines(&out, io.Discard, func() error { return nil }, 0, nil)
	var got []wire.Message
	for range 5 {
		line, err := l.Read()
		if err != nil {
			t.Fatal(err)
		}
		m, err := wire.Parse(line)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, m)
	}
	if string(got[0].ID) != "1" || !bytes.Equal(got[0].Result, result(200)) {
		t.Errorf("the first answer is %s", got[0].Raw)
	}
	if string(got[1].ID) != `"two"` || !bytes.Equal(got[1].Result, result(100000)) {
		t.Errorf("the second answer is %.200s", got[1].Raw)
	}
	if got[2].Error == nil || got[3].Result == nil || got[4].Error == nil {
		t.Errorf("got %s, %s, %s", got[2].Raw, got[3].Raw, got[4].Raw)
	}
}

// The figures stand for the era that is worse.
func TestSum(t *testing.T) {
	r := &Report{}
	add := func(way string, bytes, callers int, took time.Duration, rate, over float64) {
		r.Cells = append(r.Cells, &Cell{Way: way, Bytes: bytes, Callers: callers, OverMB: over, cpu: took, rates: []float64{rate}, times: []time.Duration{took}})
	}
	for _, n := range callers {
		for _, size := range sizes {
			add(Direct, size, n, 10*time.Microsecond, 50000, 0)
			add(Legacy, size, n, 110*time.Microsecond, 12000, 20)
			add(Modern, size, n, 130*time.Microsecond, 11000, 30)
		}
	}
	r.sum()
	if r.CPUus != 130 || r.CPUus32 != 130 || r.CPUms10MB != 0.13 {
		t.Errorf("CPU time is that of the worse era too: %+v", r)
	}
	if r.AddedP50us != 120 || r.CallsPerS32 != 11000 || r.Ratio10MB != 13 || r.PeakMBOverResult != 30 {
		t.Errorf("got %+v", r)
	}
}
