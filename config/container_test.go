package config_test

import (
	"strings"
	"testing"

	"github.com/specbox/specbox/config"
)

func TestContainers(t *testing.T) {
	for _, tt := range []struct {
		server string
		want   config.Isolation
		fault  string // "" means none
	}{
		{"{image: 'a/b:1'}", config.Docker, ""},
		{"{image: a, command: node, args: [x.js], dir: /app, runtime: runsc, user: 1000}", config.Docker, ""},
		{"{isolation: docker, image: '${IMAGE}'}", config.Docker, ""},
		{"{command: docker, args: [run, -i, --rm, a]}", config.Docker, ""},
		{"{command: /usr/bin/podman, args: [run, a], runtime: runsc}", config.Docker, ""},
		{"{command: docker, args: [run, a], isolation: none}", config.None, "without isolation"},
		{"{command: docker, args: [compose, up]}", config.Process, ""},
		{"{image: a, network: all}", config.Docker, "note: server a: it may reach every host"},

		{"{command: x, isolation: docker}", config.Docker, "needs an image; add image: NAME:TAG"},
		{"{command: x, image: a, isolation: process}", config.Process, `"image" is for isolation docker, not process`},
		{"{command: x, runtime: runsc}", config.Process, `"runtime" is for isolation docker, not process`},
		{"{command: docker, args: [run, a], isolation: process}", config.Process, "does not run with isolation process"},
		{"{command: docker, args: [run, a], image: b}", config.Docker, "keep one of them"},
		{"{image: a, network: [example.org]}", config.Docker, "cannot allow single hosts"},
		{"{image: a, user: '0:0'}", config.Docker, "is root"},
		{"{image: a, user: root}", config.Docker, "is root"},
		{"{image: 'a b'}", config.Docker, `"image" must be one word`},
		{"{url: 'https://x.org/mcp', image: a}", config.Remote, `"image" has no effect on a remote server`},
	} {
		c, faults := parse(t, "servers: {a: "+tt.server+"}", "IMAGE=x")
		if tt.fault == "" && faults != "" || !strings.Contains(faults, tt.fault) {
			t.Errorf("%s: faults %q, want %q", tt.server, faults, tt.fault)
		}
		if got := c.Servers[0].Isolation; got != tt.want {
			t.Errorf("%s: isolation %s, want %s", tt.server, got, tt.want)
		}
	}
}

// The catalogue entry of a server is that of its image.
func TestHashOfContainers(t *testing.T) {
	seen := map[string]string{}
	for _, server := range []string{"{image: a}", "{image: b}", "{image: a, runtime: runsc}", "{image: a, user: u}", "{image: a, command: x}"} {
		c, _ := parse(t, "servers: {a: "+server+"}")
		hash := c.Servers[0].Hash([]byte("key"))
		if other, ok := seen[hash]; ok {
			t.Errorf("%s and %s have one hash", server, other)
		}
		seen[hash] = server
	}
}
