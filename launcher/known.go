package launcher

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/specbox/specbox/config"
)

// knowledge is what a package does by default that does not fit a sandbox: it
// writes into its own folder, or it is there to remember.
type knowledge struct {
	home map[string]string // variable -> path in the sandbox's HOME
	keep bool              // HOME has to be kept
}

var known = map[string]knowledge{
	"npm:@modelcontextprotocol/server-memory": {home: map[string]string{"MEMORY_FILE_PATH": "memory.jsonl"}, keep: true},
	"npm:mcp-shrimp-task-manager":             {home: map[string]string{"DATA_DIR": "shrimp"}, keep: true},
	"npm:mcp-memory-keeper":                   {keep: true}, // ~/mcp-data
	"npm:mcp-memory-libsql":                   {keep: true}, // memory-tool.db in its working directory, which is HOME
}

// apply adds what is known of a package, as far as the configuration leaves it
// open.
func (k knowledge) apply(out *Program, s *config.Server, name string) {
	var sets []string
	for _, v := range slices.Sorted(maps.Keys(k.home)) {
		if _, said := s.Env[v]; said {
			continue
		}
		sets = append(sets, fmt.Sprintf(`%s="$HOME/%s"; export %s; `, v, k.home[v], v))
		out.Notes = append(out.Notes, fmt.Sprintf("%s writes into its own folder by default, which is read-only here; %s is set to $HOME/%s", name, v, k.home[v]))
	}
	if len(sets) > 0 {
		// Where HOME is, only the sandbox knows.
		out.Argv = append([]string{"/bin/sh", "-c", strings.Join(sets, "") + `exec "$@"`, "sh"}, out.Argv...)
	}
	if k.keep && !s.StateSet {
		out.KeepState = true
		out.Notes = append(out.Notes, name+" is there to remember, so that its HOME is kept; add state: private to throw it away with each sandbox")
	}
}
