package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestArguments(t *testing.T) {
	file := filepath.Join(t.TempDir(), "args.json")
	if err := os.WriteFile(file, []byte("{\"a\": 1.0}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	schema := json.RawMessage(`{"properties": {
		"id": {"type": "string"}, "n": {"type": "integer"}, "maybe": {"type": ["null", "string"]},
		"word": {"enum": ["1", "2"]}, "any": {}, "odd": {"type": 7}}}`)
	for _, c := range []struct {
		name  string
		whole string
		pairs []string
		want  string
	}{
		{"nothing", "", nil, `{}`},
		{"a string that looks like a number", "", []string{"id=007", "id2=7"}, `{"id":"007","id2":7}`},
		{"a string that looks like a list", "", []string{"id=[1]"}, `{"id":"[1]"}`},
		{"a number keeps its form", "", []string{"n=9007199254740993", "x=1.0"}, `{"n":9007199254740993,"x":1.0}`},
		{"values with =", "", []string{"q=a=b"}, `{"q":"a=b"}`},
		{"no value", "", []string{"q="}, `{"q":""}`},
		{"no JSON is text", "", []string{"n=many", "q=it's <b>"}, `{"n":"many","q":"it's <b>"}`},
		{"a string or null", "", []string{"maybe=12"}, `{"maybe":"12"}`},
		{"a list of words", "", []string{"word=1"}, `{"word":"1"}`},
		{"no type", "", []string{"any=true", "odd=2"}, `{"any":true,"odd":2}`},
		{"forced", "", []string{`id:={"a":[1, 2]}`}, `{"id":{"a":[1,2]}}`},
		{"whole as written", `{ "z": 1.0, "a":2 }`, nil, `{ "z": 1.0, "a":2 }`},
		{"from a file", "@" + file, nil, `{"a": 1.0}`},
		{"a pair overrides", "@" + file, []string{"a=2", "b=3"}, `{"a":2,"b":3}`},
	} {
		got, err := arguments(c.whole, c.pairs, schema)
		if err != nil || string(got) != c.want {
			t.Errorf("%s: got %s, %v, want %s", c.name, got, err, c.want)
		}
	}
	for _, c := range []struct {
		name  string
		whole string
		pairs []string
	}{
		{"no pair", "", []string{"value"}},
		{"no key", "", []string{"=value"}},
		{"no key, forced", "", []string{":=1"}},
		{"twice", "", []string{"a=1", "a:=2"}},
		{"forced text", "", []string{"a:=text"}},
		{"a list", "[1]", nil},
		{"null", "null", nil},
		{"no JSON", "{", nil},
		{"no file", "@" + file + ".none", nil},
	} {
		got, err := arguments(c.whole, c.pairs, nil)
		if usage := new(usageError); !errors.As(err, &usage) {
			t.Errorf("%s: got %s, %v, want a usage error", c.name, got, err)
		}
	}
}

func FuzzArguments(f *testing.F) {
	f.Add("", "a=1", `{"properties":{"a":{"type":"string"}}}`)
	f.Add(`{"b":2}`, "a:=[1]", `{}`)
	f.Add("{", "a", "[")
	f.Fuzz(func(t *testing.T, whole, pair, schema string) {
		if len(whole) > 0 && whole[0] == '@' {
			return // no files
		}
		got, err := arguments(whole, []string{pair}, json.RawMessage(schema))
		var object map[string]json.RawMessage
		if err == nil && (json.Unmarshal(got, &object) != nil || len(object) == 0) {
			t.Fatalf("arguments(%q, %q, %q) = %s", whole, pair, schema, got)
		}
	})
}
