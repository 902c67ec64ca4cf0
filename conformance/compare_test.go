package main

import (
	"fmt"
	"testing"
)

func TestCompare(t *testing.T) {
	for _, tt := range []struct {
		name            string
		direct, through []check
		worse, other    int
	}{
		{name: "equal", direct: []check{{ID: "a", Status: success}}, through: []check{{ID: "a", Status: success}}},
		{name: "better", direct: []check{{ID: "a", Status: failure}}, through: []check{{ID: "a", Status: success}}},
		{name: "fails", direct: []check{{ID: "a", Status: success}}, through: []check{{ID: "a", Status: failure}}, worse: 1},
		{name: "warns", direct: []check{{ID: "a", Status: success}}, through: []check{{ID: "a", Status: warning}}, worse: 1},
		{name: "warned and fails", direct: []check{{ID: "a", Status: warning}}, through: []check{{ID: "a", Status: failure}}, worse: 1},
		{name: "is skipped", direct: []check{{ID: "a", Status: success}}, through: []check{{ID: "a", Status: skipped}}, worse: 1},
		{name: "is absent", direct: []check{{ID: "a", Status: success}}, worse: 1},
		{name: "fails alone", through: []check{{ID: "a", Status: failure}}, worse: 1},
		{name: "one of two fails", direct: []check{{ID: "a", Status: success}, {ID: "a", Status: success}},
			through: []check{{ID: "a", Status: success}, {ID: "a", Status: failure}}, worse: 1},
		{name: "of another scenario", direct: []check{{Scenario: "s", ID: "a", Status: success}},
			through: []check{{Scenario: "o", ID: "a", Status: success}}, worse: 1},
		{name: "is not graded", direct: []check{{ID: "a", Status: success}}, through: []check{{ID: "a", Status: info}}, other: 1},
		{name: "does not apply", direct: []check{{ID: "a", Status: success}}, through: []check{{ID: "type", Status: info}}, other: 1},
		{name: "absent beside an INFO that was there", direct: []check{{ID: "a", Status: success}, {ID: "type", Status: info}},
			through: []check{{ID: "type", Status: info}}, worse: 1},
	} {
		worse, other := compare(tt.direct, tt.through)
		if len(worse) != tt.worse || len(other) != tt.other {
			t.Errorf("%s: worse %v, other %v; want %d, %d", tt.name, worse, other, tt.worse, tt.other)
		}
	}
}

func TestTally(t *testing.T) {
	got := tally([]check{{Status: failure}, {Status: success}, {Status: success}, {Status: "NEW"}})
	if want := "2 success, 1 failure, 1 new"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := fmt.Sprint(difference{"s", "i", success, failure, "m"}), "s / i: SUCCESS -> FAILURE: m"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
