package gateway

import (
	"bytes"
	"net/http"
	"slices"
	"strings"

	"github.com/specbox/specbox/wire"
)

// An era is a family of protocol revisions that are served alike. Every message
// passes [eraOf] once; the next era gets its case here.
type era int

const (
	legacy era = iota // initialize, sessions, requests of the server
	modern            // from 2026-07-28 on: no sessions, a version with every request
)

// revisions are those that are served, newest first.
var revisions = []string{"2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"}

// The revisions that something depends on.
const (
	batches     = "2025-03-26" // the only one in which a client may send arrays
	firstModern = "2026"
)

// codeVersion is the error code for a revision that is not served.
const codeVersion = -32022

const metaVersion = "io.modelcontextprotocol/protocolVersion"

// eraOf tells the era of a message from the version that its HTTP header names,
// if any, and from its params. An initialize is legacy by its nature, whatever
// the header says: its answer settles the version.
func eraOf(header string, m wire.Message) era {
	switch {
	case m.Method == "initialize":
		return legacy
	case m.Method == "server/discover" || isModern(header):
		return modern
	case bytes.Contains(m.Params, []byte(metaVersion)) && isModern(wire.Str(m.Params, "_meta", metaVersion)):
		return modern
	}
	return legacy
}

func isModern(version string) bool {
	return len(version) == len("2026-07-28") && version >= firstModern && version[0] == '2'
}

func isServed(version string) bool { return slices.Contains(revisions, version) }

// refuseModern is the answer to a message of the modern era. Its code and data
// are those by which modern clients know that they must begin with initialize.
func (g *Gateway) refuseModern(header string, m wire.Message) *fault {
	requested := wire.Str(m.Params, "_meta", metaVersion)
	if requested == "" {
		requested = header
	}
	id := m.ID
	if !m.IsRequest() {
		id = nil
	}
	f := faultf(http.StatusBadRequest, id, codeVersion, "protocol version %q is not served by SpecBox%s; begin with initialize and one of %s",
		requested, strings.TrimRight(" "+g.cfg.Version, " "), strings.Join(revisions, ", "))
	f.err.Data = map[string]any{"supported": revisions, "requested": requested}
	return f
}
