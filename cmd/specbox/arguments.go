package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// arguments makes the arguments of a call, a JSON object, of what stands on
// the command line. whole is "", an object, or @FILE with one. Each of pairs
// is KEY=VALUE or KEY:=JSON and overrides whole. A VALUE that is JSON is taken
// as that, unless schema, of the tool's input, says that KEY is a string.
// Numbers keep the form in which they were written.
func arguments(whole string, pairs []string, schema json.RawMessage) (json.RawMessage, error) {
	object := []byte("{}")
	if file, ok := strings.CutPrefix(whole, "@"); ok {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, &usageError{fmt.Sprintf("--args: %v", err), ""}
		}
		object = b
	} else if whole != "" {
		object = []byte(whole)
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(object, &members); err != nil || members == nil {
		return nil, &usageError{"--args is no JSON object", `write --args '{"key": "value"}', or --args @FILE`}
	}
	if len(pairs) == 0 {
		return bytes.TrimSpace(object), nil // as it was written
	}
	given := make(map[string]bool)
	for _, p := range pairs {
		key, value, ok := strings.Cut(p, "=")
		key, forced := strings.CutSuffix(key, ":")
		if !ok || key == "" {
			return nil, &usageError{fmt.Sprintf("%q is no argument", p), "write KEY=VALUE, or KEY:=JSON"}
		}
		if given[key] {
			return nil, &usageError{fmt.Sprintf("the argument %q is given twice", key), `for a list write KEY:='["a", "b"]'`}
		}
		given[key] = true
		isJSON := json.Valid([]byte(value))
		if forced && !isJSON {
			return nil, &usageError{fmt.Sprintf("the argument %s:= is no JSON: %s", key, value), "write text with KEY=VALUE"}
		}
		if forced || isJSON && !saysString(schema, key) {
			members[key] = json.RawMessage(strings.TrimSpace(value))
			continue
		}
		text, err := compact(value)
		if err != nil {
			return nil, err
		}
		members[key] = text
	}
	return compact(members)
}

// compact is v as JSON on one line, without the escapes of HTML.
func compact(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSpace(b.Bytes()), err
}

// saysString reports whether schema says that the property called key may be a
// string.
func saysString(schema json.RawMessage, key string) bool {
	var s struct {
		Properties map[string]struct {
			Type  json.RawMessage `json:"type"`
			Enum  []any           `json:"enum"`
			Const any             `json:"const"`
		} `json:"properties"`
	}
	if len(schema) == 0 || json.Unmarshal(schema, &s) != nil {
		return false
	}
	p, ok := s.Properties[key]
	if !ok {
		return false
	}
	if len(p.Type) == 0 { // a list of words needs no type
		for _, v := range append(p.Enum, p.Const) {
			if _, ok := v.(string); ok {
				return true
			}
		}
		return false
	}
	var types []string
	if json.Unmarshal(p.Type, &types) != nil {
		var one string
		if json.Unmarshal(p.Type, &one) != nil {
			return false
		}
		types = []string{one}
	}
	for _, t := range types {
		if t == "string" {
			return true
		}
	}
	return false
}
