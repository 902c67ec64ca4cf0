package wire_test

import (
	"slices"
	"testing"

	"github.com/specbox/specbox/wire"
)

// TestEachStopsAndReports holds what callers with bounds rely on: nothing is
// read past the element at which they stop, and a fault later in the array
// does not take away what came before it.
func TestEachStopsAndReports(t *testing.T) {
	for _, c := range []struct {
		in   string
		stop int // elements after which f returns false; 0 means never
		want []string
		ok   bool
	}{
		{`[]`, 0, nil, true},
		{` [ 1 , {"a":[2]} , "],[" ] `, 0, []string{`1`, `{"a":[2]}`, `"],["`}, true},
		{`[1,2,oh}`, 2, []string{`1`, `2`}, true},
		{`[1,{"a":`, 0, []string{`1`}, false},
		{`[1`, 0, []string{`1`}, false},
		{`{"a":1}`, 0, nil, false},
		{``, 0, nil, false},
	} {
		var got []string
		err := wire.Each([]byte(c.in), func(e []byte) bool {
			got = append(got, string(e))
			return len(got) != c.stop
		})
		if !slices.Equal(got, c.want) || (err == nil) != c.ok {
			t.Errorf("Each(%q) = %q, %v; want %q, ok %v", c.in, got, err, c.want, c.ok)
		}
	}
}
