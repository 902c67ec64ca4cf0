// Package catalog stores what servers offer: tools, prompts, resources,
// templates, instructions. Lists are answered from it while no sandbox lives.
//
// Its laws:
//
//   - An entry belongs to (tenant, server, configuration, capability
//     fingerprint) and holds each item as the server wrote it.
//   - A name, once given, stays: adding a server changes no other name.
//   - A broken server shows up as its own error and empties nobody's list.
//   - A file is written whole or not at all; many processes may share a folder.
package catalog

import (
	"time"
)

// A Key names an entry.
type Key struct {
	Tenant      string // "" for what was read on nobody's behalf
	Server      string
	Hash        string // of the server's configuration
	Fingerprint string // of the client's capabilities: see Fingerprint
}

// An Entry is what one server offers.
type Entry struct {
	Key       Key
	Filled    time.Time
	Init      []byte // result of initialize, as it came
	Tools     []Item
	Prompts   []Item
	Resources []Item   // Name is the URI
	Templates []Item   // Name is the URI template
	Truncated []string // lists that were cut at the bounds, e.g. "tools/list: the cursor never ends"
	Err       string   // why it could not be filled; the lists may be those of an earlier time
}

// An Item is one tool, prompt, resource or template.
type Item struct {
	Name string
	Raw  []byte // the JSON object as the server wrote it
}
