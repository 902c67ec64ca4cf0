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
type era uint8

const (
	legacy era = iota // initialize, sessions, requests of the server
	modern            // from 2026-07-28 on: no sessions, a version with every request
)

// revisions are those of the legacy era that are served, newest first.
var revisions = []string{"2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"}

// served are the revisions of both eras.
var served = append([]string{wire.Modern}, revisions...)

// The revisions that something depends on.
const (
	batches     = "2025-03-26" // the only one in which a client may send arrays
	primed      = "2025-11-25" // the first in which an event may have no data
	firstModern = "2026"
)

// eraOf tells the era of a message from the version that its HTTP header names,
// if any, from whether it names a session, and from its params. An initialize is
// legacy by its nature, whatever the header says, for its answer settles the
// version; but not one that says what only modern requests say. A response is
// legacy: modern servers send no requests.
func eraOf(header string, session bool, m wire.Message) era {
	switch {
	case m.Method == "":
		return legacy
	case m.Method == "initialize":
		if saysVersion(m) {
			return modern
		}
		return legacy
	case isModern(header):
		return modern
	case session:
		return legacy
	case m.Method == "server/discover" || saysVersion(m):
		return modern
	}
	return legacy
}

// saysVersion reports whether a message names its revision itself.
func saysVersion(m wire.Message) bool {
	return bytes.Contains(m.Params, []byte(wire.MetaVersion)) && wire.Get(m.Params, "_meta", wire.MetaVersion) != nil
}

func isModern(version string) bool {
	return len(version) == len(wire.Modern) && version >= firstModern && version[0] == '2'
}

func isServed(version string) bool { return slices.Contains(revisions, version) }

// unserved is the answer to a message of a revision that is not served. Its code
// and data are those by which modern clients choose another.
func unserved(id []byte, requested string) *fault {
	f := faultf(http.StatusBadRequest, id, wire.CodeVersion, "revision %q of the protocol is not served; choose one of %s", requested, strings.Join(served, ", "))
	f.err.Data = map[string]any{"supported": served, "requested": requested}
	return f
}

// isRemoved reports whether a method exists in the legacy era alone.
func isRemoved(method string) bool {
	switch method {
	case "initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe":
		return true
	}
	return false
}

// removed is the answer to a modern request that belongs to the legacy era.
func removed(m wire.Message) *fault {
	return faultf(http.StatusNotFound, m.ID, wire.CodeMethodNotFound, "revision %s has no %s", wire.Modern, m.Method)
}

// statusOf returns the HTTP status that the modern era wants for an error.
func statusOf(code int) int {
	switch code {
	case wire.CodeMethodNotFound:
		return http.StatusNotFound
	case wire.CodeInvalidParams, wire.CodeHeader, wire.CodeCapability, wire.CodeVersion:
		return http.StatusBadRequest
	}
	return http.StatusOK
}
