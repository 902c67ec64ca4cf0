package gateway

import (
	"bytes"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"

	"github.com/specbox/specbox/wire"
)

// The headers that repeat what the body of a modern request says, for those on
// the way who do not read bodies. That both say the same is checked: somebody on
// the way may have let the request pass for what its headers say.
const (
	methodHeader = "Mcp-Method"
	nameHeader   = "Mcp-Name"
	paramHeader  = "Mcp-Param-"
)

func mismatch(id []byte, format string, args ...any) *fault {
	return faultf(http.StatusBadRequest, id, wire.CodeHeader, format, args...)
}

// one returns the value of a header that may stand once.
func one(h http.Header, name string) (value string, ok bool) {
	v := h[name]
	if len(v) != 1 {
		return "", len(v) == 0
	}
	return v[0], true
}

// checkVersion compares the header that names the revision with the body's _meta.
func checkVersion(h http.Header, id, meta []byte) *fault {
	header, ok := one(h, versionHeader)
	version := wire.Get(meta, wire.MetaVersion)
	switch {
	case !ok:
		return mismatch(id, "the header MCP-Protocol-Version stands more than once")
	case header == "":
		return mismatch(id, "the header MCP-Protocol-Version is missing; it must name the revision, as %q in params._meta does", wire.MetaVersion)
	case len(version) > 0 && version[0] == '"' && !says(version, header):
		return mismatch(id, "the header MCP-Protocol-Version says %q, and %q in params._meta says %q", header, wire.MetaVersion, wire.Str(version))
	}
	return nil
}

// says reports whether a JSON string is text.
func says(quoted []byte, text string) bool {
	if n := len(quoted) - 2; n == len(text) && quoted[0] == '"' && string(quoted[1:n+1]) == text && strings.IndexByte(text, '\\') < 0 {
		return true // without taking memory for it
	}
	return wire.Str(quoted) == text
}

// checkMethod compares the headers that name the method and what it is about
// with the body.
func checkMethod(h http.Header, m wire.Message) *fault {
	switch v, once := one(h, methodHeader); {
	case !once:
		return mismatch(m.ID, "the header %s stands more than once", methodHeader)
	case v == "":
		return mismatch(m.ID, "the header %s is missing; it must say %q", methodHeader, m.Method)
	case v != m.Method:
		return mismatch(m.ID, "the header %s says %q, and the body says %q", methodHeader, v, m.Method)
	}
	switch m.Method {
	case "tools/call", "prompts/get":
		return checkName(h, m, wire.Get(m.Params, "name"))
	case "resources/read":
		return checkName(h, m, wire.Get(m.Params, "uri"))
	}
	return nil
}

// checkName compares the header that names what a request is about with want.
func checkName(h http.Header, m wire.Message, want []byte) *fault {
	v, once := one(h, nameHeader)
	switch {
	case !once:
		return mismatch(m.ID, "the header %s stands more than once", nameHeader)
	case v == "":
		return mismatch(m.ID, "the header %s is missing; %s needs it", nameHeader, m.Method)
	case says(want, v): // also what should be encoded, and is not by every client
		return nil
	}
	got, ok := decoded(v)
	if !ok {
		return mismatch(m.ID, "the header %s is no text: characters outside of ASCII are sent as =?base64?...?=", nameHeader)
	}
	if !says(want, got) {
		return mismatch(m.ID, "the header %s says %q, and the body says %.100q", nameHeader, got, wire.Str(want))
	}
	return nil
}

// decoded returns the text of a header, which may be given in base64.
func decoded(v string) (string, bool) {
	if inner, ok := strings.CutPrefix(v, "=?base64?"); ok {
		if inner, ok = strings.CutSuffix(inner, "?="); ok {
			b, err := base64.StdEncoding.DecodeString(inner)
			return string(b), err == nil
		}
	}
	for i := range len(v) {
		if v[i] != '\t' && (v[i] < ' ' || v[i] > '~') {
			return "", false
		}
	}
	return v, true
}

// checkParams compares the headers that repeat arguments with the body. Which
// they are stands in the schema of the tool.
func (c *conversation) checkParams(h http.Header, m wire.Message) (f *fault) {
	s, ok := c.far.(Schemas)
	if !ok {
		return nil
	}
	defer c.g.recovered("look up a schema", func() {
		f = faultf(http.StatusOK, m.ID, wire.CodeInternal, "checking the headers met a fault in SpecBox; its log says more")
	})
	schema := s.Schema(wire.Str(m.Params, "name"))
	if !bytes.Contains(schema, []byte(annotation)) {
		return nil
	}
	return checkArguments(h, m.ID, schema, wire.Get(m.Params, "arguments"), 0)
}

// annotation is the member of a property's schema that names its header.
const annotation = "x-mcp-header"

// maxSchema bounds how deep annotations are looked for.
const maxSchema = 32

func checkArguments(h http.Header, id, schema, args []byte, depth int) (f *fault) {
	if depth == maxSchema {
		return nil
	}
	_ = wire.Members(wire.Get(schema, "properties"), func(key string, property []byte) bool { // no members if it is no object
		arg := wire.Get(args, key)
		if name := wire.Str(property, annotation); name != "" {
			f = checkArgument(h, http.CanonicalHeaderKey(paramHeader+name), id, key, arg)
		}
		if f == nil {
			f = checkArguments(h, id, property, arg, depth+1)
		}
		return f == nil
	})
	return f
}

func checkArgument(h http.Header, header string, id []byte, key string, arg []byte) *fault {
	v, once := one(h, header)
	absent := arg == nil || string(arg) == "null"
	switch {
	case !once:
		return mismatch(id, "the header %s stands more than once", header)
	case absent && len(h[header]) > 0:
		return mismatch(id, "the header %s says %q, and the body has no argument %s", header, v, key)
	case absent:
		return nil
	case len(h[header]) == 0:
		return mismatch(id, "the header %s is missing; it must repeat the argument %s", header, key)
	}
	got, ok := decoded(v)
	if !ok {
		return mismatch(id, "the header %s is no text: characters outside of ASCII are sent as =?base64?...?=", header)
	}
	if !sameArgument(got, arg) {
		return mismatch(id, "the header %s says %q, and the argument %s says something else", header, got, key)
	}
	return nil
}

// sameArgument compares the text of a header with a string, a boolean or a whole
// number.
func sameArgument(text string, arg []byte) bool {
	switch arg[0] {
	case '"':
		return says(arg, text)
	case '{', '[':
		return false
	}
	if text == string(arg) {
		return true
	}
	const exact = 1 << 53 // beyond, different numbers look the same
	a, errA := strconv.ParseFloat(text, 64)
	b, errB := strconv.ParseFloat(string(arg), 64)
	return errA == nil && errB == nil && a == b && a < exact && a > -exact
}
