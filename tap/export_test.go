package tap

import "github.com/specbox/specbox/internal/sse"

// AppendUnquoted is appendUnquoted.
var AppendUnquoted = appendUnquoted

// Deltas returns what is told of a stream that comes in pieces.
func Deltas(api API, pieces [][]byte, tell func(Delta)) {
	a := answer{api: api, tell: tell, called: func(string) {}, answered: func(string) {}}
	p := sse.Parser{Limit: maxEvent}
	for _, b := range pieces {
		p.Feed(b, a.event)
	}
	p.End(a.event)
	a.end()
}

// Whole returns what is told of an answer that is no stream.
func Whole(api API, b []byte, tell func(Delta)) {
	a := answer{api: api, tell: tell, called: func(string) {}, answered: func(string) {}}
	a.whole(b)
}

// A Memory recognizes requests.
type Memory struct{ m *memory }

// NewMemory returns a memory of so many hashes.
func NewMemory(most int) Memory { return Memory{newMemory(most)} }

// Read reads a request, and returns what is new in it.
func (m Memory) Read(api API, raw []byte) (conversation string, continued bool, messages []Message, tools []Tool) {
	b, ok := m.m.read(api, raw)
	if !ok {
		return "", false, nil, nil
	}
	r := m.m.recognize("tenant", "", b)
	for _, i := range r.fresh {
		messages = append(messages, b.items[i].messages(api)...)
	}
	return r.id, r.continued, messages, toolList(b.tools)
}

// Size returns how many conversations and hashes are kept.
func (m Memory) Size() (conversations, hashes int) { return m.m.size() }

// MaxMessage bounds the text of a message.
const MaxMessage = headOfText + tailOfText + len(" … ")
