// Package catalog stores what servers offer: tools, prompts, resources,
// templates, instructions. Lists are answered from it while no sandbox lives.
//
// [Fetch] reads one server, a [Store] keeps what was read, and a [View] is what
// one session sees of it. Its laws:
//
//   - An entry belongs to (tenant, server, configuration, capability
//     fingerprint) and holds each item as the server wrote it, byte for byte.
//   - A name, once given, stays: adding a server changes no other name.
//   - A broken server shows up as its own error and empties nobody's list.
//   - Whatever a server sends, reading it is bounded in time and size.
//   - A file is written whole or not at all; many processes may share a folder.
package catalog

import (
	"bytes"
	"slices"
	"strings"
	"time"
)

// The methods whose results a catalogue answers.
const (
	ToolsList     = "tools/list"
	PromptsList   = "prompts/list"
	ResourcesList = "resources/list"
	TemplatesList = "resources/templates/list"
)

// A Key names an entry.
type Key struct {
	Tenant      string // "" for what was read on nobody's behalf
	Server      string
	Hash        string // of the server's configuration
	Fingerprint string // of the client's capabilities: see Fingerprint
}

// An Entry is what one server offers. Once it is in a [Store] it is immutable.
type Entry struct {
	Key       Key
	Filled    time.Time
	Init      []byte // result of initialize, or of server/discover if Eras is Modern, as it came; nil if the server was never read
	Eras      Eras   // in which the server can be met
	Tools     []Item
	Prompts   []Item
	Resources []Item            // Name is the URI
	Templates []Item            // Name is the URI template
	Truncated []string          // lists that were cut at the bounds, e.g. "tools/list: the cursor never ends"
	Notes     []string          // items that were left out and why
	Errors    map[string]string // by method: why that list could not be read; what is there may be of an earlier time
	Err       string            // why it could not be filled; the lists may be those of an earlier time
}

// Eras says in which eras of the protocol a server can be met.
type Eras string

const (
	Legacy Eras = ""       // it wants initialize
	Modern Eras = "modern" // it knows no initialize
	Both   Eras = "both"
)

// An Item is one tool, prompt, resource or template.
type Item struct {
	Name string
	Raw  []byte // the JSON object as the server wrote it
}

// A list is one of the four lists of a server.
type list struct {
	method     string
	member     string // of the result that holds the items
	name       string // member of an item that names it
	capability string // that declares the list
}

var lists = []list{
	{ToolsList, "tools", "name", "tools"},
	{PromptsList, "prompts", "name", "prompts"},
	{ResourcesList, "resources", "uri", "resources"},
	{TemplatesList, "resourceTemplates", "uriTemplate", "resources"},
}

// List returns the items that answer a list method, nil for other methods. The
// caller must not change them.
func (e *Entry) List(method string) []Item {
	if p := e.items(method); p != nil {
		return *p
	}
	return nil
}

func (e *Entry) items(method string) *[]Item {
	switch method {
	case ToolsList:
		return &e.Tools
	case PromptsList:
		return &e.Prompts
	case ResourcesList:
		return &e.Resources
	case TemplatesList:
		return &e.Templates
	}
	return nil
}

// Problem returns why the entry is not what the server offers now, in one
// line, or "".
func (e *Entry) Problem() string {
	var all []string
	if e.Err != "" {
		all = append(all, e.Err)
	}
	for _, l := range lists {
		if why := e.Errors[l.method]; why != "" {
			all = append(all, l.method+": "+why)
		}
	}
	return strings.Join(all, "; ")
}

// empty reports whether nothing is known of the server but, maybe, an error.
func (e *Entry) empty() bool { return e.Init == nil }

// differing returns the methods whose items differ. The order of items does
// not count: some servers give their tools in a new order every time.
func differing(a, b *Entry) []string {
	var out []string
	for _, l := range lists {
		if !sameItems(a.List(l.method), b.List(l.method)) {
			out = append(out, l.method)
		}
	}
	return out
}

func sameItems(a, b []Item) bool {
	if len(a) != len(b) {
		return false
	}
	same := func(x, y Item) bool { return x.Name == y.Name && bytes.Equal(x.Raw, y.Raw) }
	if slices.EqualFunc(a, b, same) {
		return true
	}
	raws := make(map[string][]byte, len(a))
	for _, it := range a {
		raws[it.Name] = it.Raw
	}
	for _, it := range b {
		raw, ok := raws[it.Name]
		if !ok || !bytes.Equal(raw, it.Raw) {
			return false
		}
		delete(raws, it.Name)
	}
	return true
}
