// Package wire carries MCP messages as the bytes they came in.
//
// Only the envelope of a JSON-RPC message is read: id, method, and where a
// caller asks for it a name or a progress token. Everything else passes
// untouched, so that integers over 2^53, unknown fields, key order and number
// forms survive. Its laws:
//
//   - A message that is not rewritten leaves as it came, byte for byte. What is
//     no JSON leaves not at all, and bytes that are no UTF-8 are replaced: a
//     server's fault must not end the session of a client that is strict.
//   - A [Conn] never confuses two callers: every request gets an id of its own,
//     every progress token is unique, both are mapped back, and a cancellation
//     names the id that the server knows.
//   - A caller that leaves, or a peer that dies, leaves no entry behind.
//   - A peer that does not read, or talks without end, takes bounded memory.
package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// A Message is one JSON-RPC message, split but not decoded. The fields are
// slices of Raw; absent ones are nil.
type Message struct {
	Raw    []byte
	ID     []byte // nil for a notification
	Method string // "" for a response
	Params []byte
	Result []byte
	Error  []byte

	failed verdict // what Result says
}

// IsRequest reports whether m wants an answer.
func (m Message) IsRequest() bool { return m.Method != "" && m.ID != nil }

// IsNotification reports whether m is a notification.
func (m Message) IsNotification() bool { return m.Method != "" && m.ID == nil }

// IsResponse reports whether m answers a request.
func (m Message) IsResponse() bool { return m.Method == "" && (m.Result != nil || m.Error != nil) }

// Parse splits a message. It checks the structure that it walks over, not the
// values inside: see [Valid] for input from untrusted peers. An id of null
// counts as none.
func Parse(raw []byte) (Message, error) {
	m := Message{Raw: raw}
	version := false
	err := members(raw, func(key []byte, s, e int) bool {
		m.set(key, raw[s:e:e], &version)
		return true
	})
	if err != nil {
		return m, err
	}
	return m, m.check(version)
}

// parsed is Parse of a message that c has seen, and has found to be JSON.
func (c *checker) parsed(raw []byte) (Message, error) {
	if c.members == 0 || c.members > maxSpans {
		return Parse(raw)
	}
	m := Message{Raw: raw}
	version := false
	for _, s := range c.spans[:c.members] {
		keyEnd, err := skipString(raw, s.key)
		if err != nil {
			return m, err
		}
		value := bytes.TrimSpace(raw[s.value:s.end])
		m.set(unescape(raw[s.key:keyEnd]), value[:len(value):len(value)], &version)
	}
	m.failed = c.failed(raw)
	return m, m.check(version)
}

// set takes a member of a message.
func (m *Message) set(key, v []byte, version *bool) {
	switch string(key) {
	case "jsonrpc":
		*version = string(v) == `"2.0"`
	case "id":
		if string(v) != "null" {
			m.ID = v
		}
	case "method":
		if len(v) >= 2 && v[0] == '"' {
			m.Method = method(unescape(v))
		}
	case "params":
		m.Params = v
	case "result":
		m.Result = v
	case "error":
		m.Error = v
	}
}

// check says what is missing in a message.
func (m *Message) check(version bool) error {
	switch {
	case !version:
		return fmt.Errorf("wire: not a JSON-RPC 2.0 message")
	case m.Method == "" && m.Result == nil && m.Error == nil:
		return fmt.Errorf("wire: neither method nor result nor error")
	}
	return nil
}

// method returns the name of a method. Those that come often take no memory.
func method(name []byte) string {
	switch string(name) {
	case "tools/call":
		return "tools/call"
	case "notifications/progress":
		return "notifications/progress"
	case "notifications/message":
		return "notifications/message"
	}
	return string(name)
}

// JSON-RPC and MCP error codes.
const (
	CodeParse          = -32700
	CodeInvalidRequest = -32600
	CodeMethodNotFound = -32601
	CodeInvalidParams  = -32602
	CodeInternal       = -32603
	CodeServer         = -32000 // a server could not be started, died, or timed out
	CodeNotFound       = -32002 // resource not found, legacy era only
)

// An Error is a JSON-RPC error object. It is also a Go error.
type Error struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	Data    any    `json:"data,omitempty"`
}

// Errorf returns an Error with a formatted message.
func Errorf(code int, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

func (e *Error) Error() string { return e.Message }

// JSON returns e as a JSON-RPC error object.
func (e *Error) JSON() []byte {
	b, err := json.Marshal(e)
	if err != nil {
		b, _ = json.Marshal(&Error{Code: e.Code, Message: e.Message})
	}
	return b
}

// A Reply is the outcome of a request: exactly one of Result and Error is set.
type Reply struct {
	Result []byte
	Error  []byte

	failed verdict // what Result says, where that was seen when it came
}

// A verdict is an answer to a question, or none.
type verdict uint8

const (
	unknown verdict = iota
	no
	yes
)

// ToolFailed reports whether Result says so: by a member isError that is true. Of
// a reply as it came this is known, however large it is.
func (r Reply) ToolFailed() bool {
	if r.failed == unknown {
		return string(Get(r.Result, "isError")) == "true"
	}
	return r.failed == yes
}

// Fail returns a Reply with an error of that code.
func Fail(code int, format string, args ...any) Reply {
	return Reply{Error: Errorf(code, format, args...).JSON()}
}

// Err returns the reply's error as an [*Error], or nil.
func (r Reply) Err() error {
	if r.Error == nil {
		return nil
	}
	e := new(Error)
	if json.Unmarshal(r.Error, e) != nil || e.Message == "" {
		return fmt.Errorf("%s", bytes.TrimSpace(r.Error))
	}
	return e
}

// A Sender takes whole messages towards a peer. Send joins its parts to one
// message and does not keep them; it is safe for concurrent use.
type Sender interface {
	Send(parts ...[]byte) error
}

// What stands in every message. Who sends parts does not change them.
var (
	headID     = []byte(`{"jsonrpc":"2.0","id":`)
	headMethod = []byte(`{"jsonrpc":"2.0","method":`)
	midMethod  = []byte(`,"method":`)
	midParams  = []byte(`,"params":`)
	midResult  = []byte(`,"result":`)
	midError   = []byte(`,"error":`)
	tailObject = []byte(`}`)
	nullID     = []byte("null")
)

// RequestParts returns the parts of a request.
func RequestParts(id []byte, method string, params []byte) [][]byte {
	if params == nil {
		return [][]byte{headID, id, midMethod, Quote(method), tailObject}
	}
	return [][]byte{headID, id, midMethod, Quote(method), midParams, params, tailObject}
}

// NotificationParts returns the parts of a notification.
func NotificationParts(method string, params []byte) [][]byte {
	if params == nil {
		return [][]byte{headMethod, Quote(method), tailObject}
	}
	return [][]byte{headMethod, Quote(method), midParams, params, tailObject}
}

// ReplyParts returns the parts of a response. A nil id stands for null.
func ReplyParts(id []byte, r Reply) [][]byte {
	if id == nil {
		id = nullID
	}
	if r.Error != nil {
		return [][]byte{headID, id, midError, r.Error, tailObject}
	}
	return [][]byte{headID, id, midResult, r.Result, tailObject}
}

// Cancelled is the cause of a request's context when its client cancelled it.
type Cancelled struct {
	Reason []byte // the JSON string that the client gave, or nil
}

func (Cancelled) Error() string { return "the client cancelled the request" }
