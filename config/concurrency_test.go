package config_test

import (
	"strings"
	"testing"
)

func TestConcurrency(t *testing.T) {
	for _, tt := range []struct {
		server string
		want   int
		fault  string // "" means none
	}{
		{"{command: x}", 0, ""},
		{"{command: x, scope: shared, concurrency: 4}", 4, ""},
		{"{concurrency: 1, command: x, scope: tenant}", 1, ""},
		{"{command: x, scope: shared, concurrency: 0}", 0, ""},
		{"{url: 'https://x.org/mcp', scope: shared, concurrency: 2}", 2, ""},
		{"{command: x, concurrency: 4}", 4, `warning: server a: "concurrency" has no effect where each session has a sandbox of its own`},
		{"{command: x, scope: shared, concurrency: -1}", 0, `"concurrency" must be a whole number from 0`},
		{"{command: x, scope: shared, concurrency: many}", 0, `"concurrency" must be a whole number from 0`},
	} {
		c, faults := parse(t, "servers: {a: "+tt.server+"}")
		if tt.fault == "" && faults != "" || !strings.Contains(faults, tt.fault) {
			t.Errorf("%s: faults %q, want %q", tt.server, faults, tt.fault)
		}
		if got := c.Servers[0].Concurrency; got != tt.want {
			t.Errorf("%s: concurrency %d, want %d", tt.server, got, tt.want)
		}
	}
}
