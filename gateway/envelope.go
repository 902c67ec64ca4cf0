package gateway

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/specbox/specbox/wire"
)

// A fault is a message that cannot be served.
type fault struct {
	status int    // of HTTP
	id     []byte // of the request, nil if unknown
	err    *wire.Error
}

func faultf(status int, id []byte, code int, format string, args ...any) *fault {
	return &fault{status: status, id: id, err: wire.Errorf(code, format, args...)}
}

func (f *fault) answer() answer { return answer{f.id, wire.Reply{Error: f.err.JSON()}} }

// check finds out whether b is JSON, the same for every reader: the servers
// behind trust us.
func check(b []byte) *fault {
	switch {
	case len(bytes.TrimSpace(b)) == 0:
		return faultf(http.StatusBadRequest, nil, wire.CodeParse, "the message is empty; send one JSON-RPC message")
	case !utf8.Valid(b):
		return faultf(http.StatusBadRequest, nil, wire.CodeParse, "the message is not UTF-8")
	case !wire.Valid(b):
		return faultf(http.StatusBadRequest, nil, wire.CodeParse, "the message is not JSON, or is nested deeper than %d levels", wire.MaxDepth)
	}
	return nil
}

// envelope splits a message that is JSON.
func envelope(raw []byte) (wire.Message, *fault) {
	m, err := wire.Parse(raw)
	if err != nil {
		id := knownID(m.ID)
		if m.Method == "" && (m.Result != nil || m.Error != nil) {
			id = nil // it names a request of the server
		}
		return m, faultf(http.StatusBadRequest, id, wire.CodeInvalidRequest, "not a JSON-RPC 2.0 message: %s", strings.TrimPrefix(err.Error(), "wire: "))
	}
	if m.ID != nil && knownID(m.ID) == nil {
		return m, faultf(http.StatusBadRequest, nil, wire.CodeInvalidRequest, "the id must be a string or a number")
	}
	if m.IsNotification() && bytes.Contains(raw, []byte(`"id"`)) && wire.Get(raw, "id") != nil {
		return m, faultf(http.StatusBadRequest, nil, wire.CodeInvalidRequest, "the id of a request must be a string or a number, not null")
	}
	if string(m.Params) == "null" { // some clients say so where they have none
		m.Params = nil
	}
	if m.Method == "" || m.Params == nil {
		return m, nil
	}
	if m.Params[0] != '{' {
		return m, faultf(http.StatusBadRequest, m.ID, wire.CodeInvalidParams, "params of %s must be an object", m.Method)
	}
	for _, path := range decisive {
		if key := wire.Twice(wire.Get(m.Params, path...)); key != "" {
			return m, faultf(http.StatusBadRequest, m.ID, wire.CodeInvalidParams, "%q stands twice in %s of %s; say it once", key, strings.Join(append([]string{"params"}, path...), "."), m.Method)
		}
	}
	if m.Method == "initialize" && len(m.Params) > maxAbout { // it is kept as long as the session
		return m, faultf(http.StatusBadRequest, m.ID, wire.CodeInvalidParams, "params of initialize have %d bytes, over the limit of %d", len(m.Params), maxAbout)
	}
	return m, nil
}

// decisive are the objects in a request by which it is decided where it goes and
// whether it may. A server must not read them otherwise than we do.
var decisive = [][]string{nil, {"_meta"}, {"ref"}}

// knownID returns id if it is one, or nil.
func knownID(id []byte) []byte {
	if len(id) == 0 || (id[0] != '"' && id[0] != '-' && (id[0] < '0' || id[0] > '9')) {
		return nil
	}
	return id
}

// sameID reports whether two ids are the same JSON value.
func sameID(a, b []byte) bool {
	return bytes.Equal(a, b) || (len(a) > 0 && len(b) > 0 && canonicalID(a) == canonicalID(b))
}

func canonicalID(id []byte) string {
	if id[0] == '"' {
		var s string
		if bytes.IndexByte(id, '\\') >= 0 && json.Unmarshal(id, &s) == nil {
			return `"` + s + `"`
		}
		return string(id)
	}
	if bytes.ContainsAny(id, ".eE") || id[0] == '-' {
		if f, err := strconv.ParseFloat(string(id), 64); err == nil && f == float64(int64(f)) && f < 1<<53 && f > -1<<53 {
			return strconv.FormatInt(int64(f), 10)
		}
	}
	return string(id)
}

// lostID returns the id of a request of which only both ends are known, or nil.
// It must be certain: an error under a wrong id would answer another request.
func lostID(head, tail []byte) []byte {
	var id, number []byte
	isRequest := false
	err := wire.Members(head, func(key string, value []byte) bool {
		if number != nil { // another member follows, so it was whole
			id, number = number, nil
		}
		switch {
		case key == "id" && value[0] == '"':
			id = value
		case key == "id":
			number = value
		case key == "method":
			isRequest = true
		}
		return true
	})
	if err == nil && number != nil {
		id = number
	}
	for i := len(tail); i > 0 && err != nil; {
		i = bytes.LastIndex(tail[:i], []byte(`"id"`))
		before := bytes.TrimRight(tail[:max(i, 0)], " \t\r\n")
		if i < 0 || len(before) == 0 || before[len(before)-1] != ',' {
			continue
		}
		rest := append([]byte{'{'}, tail[i:]...)
		if !wire.Valid(rest) { // it stood inside of something else
			continue
		}
		id = wire.Get(rest, "id")
		isRequest = isRequest || wire.Get(rest, "method") != nil
		break
	}
	if !isRequest {
		return nil
	}
	return knownID(bytes.Clone(id))
}

// codeOf returns the code of an error object, or 0.
func codeOf(e []byte) int {
	n, _ := strconv.Atoi(string(wire.Get(e, "code"))) // 0 if it is no number
	return n
}
