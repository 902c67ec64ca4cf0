package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/tailscale/hujson"
	"go.yaml.in/yaml/v3"
)

// A kind is what a value of a file is.
type kind int

const (
	null kind = iota
	boolean
	number
	text
	list
	object
)

func (k kind) String() string {
	return [...]string{"null", "true or false", "a number", "a string", "a list", "an object"}[k]
}

// A node is a value of a file, JSON or YAML, with the line it stands on.
type node struct {
	kind    kind
	line    int
	text    string   // of booleans, numbers and strings: as written, unquoted
	items   []*node  // of lists
	members []member // of objects, in their order, equal keys included
}

// A member is one key of an object with its value.
type member struct {
	key   string
	line  int
	value *node
}

// find returns the value of a key, or nil.
func (n *node) find(key string) *node {
	if n == nil {
		return nil
	}
	for _, m := range n.members {
		if m.key == key {
			return m.value
		}
	}
	return nil
}

const (
	maxDepth = 200     // of nesting: far beyond any real file, harmless to a stack
	maxNodes = 200_000 // of one file with its YAML aliases resolved
)

// A syntaxError says where a file cannot be read as what it seems to be.
type syntaxError struct {
	line    int
	message string
	hint    string
}

func (e *syntaxError) Error() string { return e.message }

// parse reads JSON, with comments and trailing commas, or YAML; the content
// decides which.
func parse(data []byte) (*node, error) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if i, ok := nestedTooDeep(data); ok {
		return nil, &syntaxError{line: lineOf(data, i), message: fmt.Sprintf("more than %d brackets are open", maxDepth)}
	}
	if isJSON(data) {
		return parseJSON(data)
	}
	return parseYAML(data)
}

// nestedTooDeep guards the parsers below, which recurse. It does not know of
// strings, so that nothing can be hidden from it.
func nestedTooDeep(data []byte) (int, bool) {
	depth := 0
	for i, c := range data {
		switch c {
		case '[', '{':
			if depth++; depth > maxDepth {
				return i, true
			}
		case ']', '}':
			depth = max(depth-1, 0)
		}
	}
	return 0, false
}

// isJSON reports whether data begins as a JSON object does. A YAML document
// in braces whose first key is bare is not JSON.
func isJSON(data []byte) bool {
	rest := skipSpace(data)
	if len(rest) == 0 || rest[0] != '{' {
		return false
	}
	rest = skipSpace(rest[1:])
	return len(rest) == 0 || rest[0] == '"' || rest[0] == '}'
}

// skipSpace skips white space and the comments of JSON with comments.
func skipSpace(b []byte) []byte {
	for {
		b = bytes.TrimLeft(b, " \t\r\n")
		switch {
		case bytes.HasPrefix(b, []byte("//")):
			_, b, _ = bytes.Cut(b, []byte("\n"))
		case bytes.HasPrefix(b, []byte("/*")):
			_, after, ok := bytes.Cut(b[2:], []byte("*/"))
			if !ok {
				return nil
			}
			b = after
		default:
			return b
		}
	}
}

func lineOf(data []byte, offset int) int { return 1 + bytes.Count(data[:offset], []byte("\n")) }

var hujsonPlace = regexp.MustCompile(`^hujson: line (\d+), column (\d+): `)

func parseJSON(data []byte) (*node, error) {
	v, err := hujson.Parse(data)
	if err != nil {
		e := &syntaxError{message: err.Error()}
		if m := hujsonPlace.FindStringSubmatch(e.message); m != nil {
			e.line, _ = strconv.Atoi(m[1])
			e.message = fmt.Sprintf("not valid JSON at column %s: %s", m[2], e.message[len(m[0]):])
		}
		// The word itself may be a secret without its quotes.
		e.message, _, _ = strings.Cut(e.message, " literal: ")
		switch {
		case errors.Is(err, io.ErrUnexpectedEOF):
			e.message, e.hint = "the JSON ends too early", "close what is open: }, ] or \""
		case strings.Contains(e.message, "after object value"), strings.Contains(e.message, "after array value"):
			e.hint = "a comma or a closing bracket is missing before this"
		case strings.Contains(e.message, "escape"):
			e.hint = `write a backslash as \\`
		}
		return nil, e
	}
	var lines []int // offsets of the line ends
	for i, c := range data {
		if c == '\n' {
			lines = append(lines, i)
		}
	}
	line := func(offset int) int {
		i, _ := slices.BinarySearch(lines, offset)
		return i + 1
	}
	return fromJSON(v, line), nil
}

func fromJSON(v hujson.Value, line func(offset int) int) *node {
	n := &node{line: line(v.StartOffset)}
	switch v := v.Value.(type) {
	case *hujson.Object:
		n.kind = object
		for _, m := range v.Members {
			name, _ := m.Name.Value.(hujson.Literal)
			n.members = append(n.members, member{name.String(), line(m.Name.StartOffset), fromJSON(m.Value, line)})
		}
	case *hujson.Array:
		n.kind = list
		for _, e := range v.Elements {
			n.items = append(n.items, fromJSON(e, line))
		}
	case hujson.Literal:
		switch v.Kind() {
		case 'n':
			n.kind = null
		case 't', 'f':
			n.kind, n.text = boolean, string(v)
		case '0':
			n.kind, n.text = number, string(v)
		default:
			n.kind, n.text = text, v.String()
		}
	}
	return n
}

var yamlPlace = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

func parseYAML(data []byte) (*node, error) {
	d := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := d.Decode(&doc); errors.Is(err, io.EOF) {
		return &node{kind: object, line: 1}, nil
	} else if err != nil {
		return nil, yamlError(err)
	}
	var next yaml.Node
	if err := d.Decode(&next); err == nil {
		return nil, &syntaxError{line: next.Line, message: "a second YAML document begins here", hint: "write one document in a file"}
	} else if !errors.Is(err, io.EOF) {
		return nil, yamlError(err)
	}
	c := yamlReader{left: maxNodes}
	n := c.node(&doc, 0)
	if c.err != nil {
		return nil, c.err
	}
	return n, nil
}

func yamlError(err error) error {
	e := &syntaxError{message: err.Error()}
	if m := yamlPlace.FindStringSubmatch(e.message); m != nil {
		e.line, _ = strconv.Atoi(m[1])
		e.message = "not valid YAML: " + e.message[len(m[0]):]
	}
	// What stands in quotes is a piece of the file.
	e.message, _, _ = strings.Cut(e.message, " '")
	if strings.Contains(e.message, "cannot start any token") {
		e.hint = "indent with spaces, not with tabs, and quote values that begin with @, ` or %"
	}
	return e
}

// A yamlReader turns YAML's nodes into ours. Aliases can make a small file
// endless, so that what it makes is counted.
type yamlReader struct {
	left int
	err  *syntaxError
}

func (c *yamlReader) node(y *yaml.Node, depth int) *node {
	n := &node{line: y.Line}
	if c.left--; c.err == nil && (c.left < 0 || depth > maxDepth) {
		c.err = &syntaxError{line: y.Line, message: "nested too deeply, or too much by aliases"}
	}
	if c.err != nil {
		return n
	}
	switch y.Kind {
	case yaml.DocumentNode:
		if len(y.Content) == 1 {
			return c.node(y.Content[0], depth+1)
		}
	case yaml.AliasNode:
		return c.node(y.Alias, depth+1)
	case yaml.SequenceNode:
		n.kind = list
		for _, e := range y.Content {
			n.items = append(n.items, c.node(e, depth+1))
		}
	case yaml.MappingNode:
		n.kind = object
		c.members(n, y, depth)
	case yaml.ScalarNode:
		n.text = y.Value
		switch y.ShortTag() {
		case "!!null":
			n.kind, n.text = null, ""
		case "!!bool":
			n.kind = boolean
		case "!!int", "!!float":
			n.kind = number
		default:
			n.kind = text
		}
	}
	return n
}

func (c *yamlReader) members(n *node, y *yaml.Node, depth int) {
	var merged []*node
	for i := 0; i+1 < len(y.Content); i += 2 {
		k, v := y.Content[i], y.Content[i+1]
		if k.Kind == yaml.AliasNode {
			k = k.Alias
		}
		if k.ShortTag() == "!!merge" {
			m := c.node(v, depth+1)
			if m.kind == list {
				merged = append(merged, m.items...)
			} else {
				merged = append(merged, m)
			}
			continue
		}
		if k.Kind != yaml.ScalarNode {
			c.err = &syntaxError{line: k.Line, message: "a key that is not a word", hint: "write KEY: VALUE"}
			return
		}
		n.members = append(n.members, member{k.Value, k.Line, c.node(v, depth+1)})
	}
	if merged == nil {
		return
	}
	own := map[string]bool{} // keys that are there already: they win
	for _, m := range n.members {
		own[m.key] = true
	}
	for _, m := range merged {
		for _, m := range m.members {
			if !own[m.key] {
				own[m.key] = true
				n.members = append(n.members, m)
			}
		}
	}
}
