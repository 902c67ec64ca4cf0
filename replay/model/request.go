package model

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

const maxBody = 64 << 20 // of a request, in bytes

func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return nil, fmt.Errorf("read the request: %w", err)
	}
	return b, nil
}

// A request is what a request of any API says.
type request struct {
	model  string
	stream bool
	usage  bool   // wanted at the end of a stream
	key    string // of the conversation, where the request continues a response
	prompt string // the first words of the user
	turn   int    // how many turns of the assistant there were
	tokens int    // of the request, about
}

// A message is a member of messages or input.
type message struct {
	Type    string          `json:"type"`
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

// text returns what a message says: a text, or the texts of its parts.
func (m *message) text() string {
	var s string
	if json.Unmarshal(m.Content, &s) == nil {
		return s
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if json.Unmarshal(m.Content, &parts) != nil {
		return ""
	}
	for _, p := range parts {
		s += p.Text
	}
	return s
}

// count takes in the messages: which turn it is, and what the user said first.
// Messages of the assistant that follow one another are one turn.
func (r *request) count(all []message, assistant func(*message) bool) {
	before := false
	for i := range all {
		m := &all[i]
		is := assistant(m)
		if is && !before {
			r.turn++
		}
		before = is
		if r.prompt == "" && m.Role == "user" {
			r.prompt = m.text()
		}
	}
}

func byRole(m *message) bool { return m.Role == "assistant" }

func decode(body []byte, to any) error {
	if err := json.Unmarshal(body, to); err != nil {
		return fmt.Errorf("the request is no JSON of this API: %w", err)
	}
	return nil
}

func parseChat(body []byte) (*request, error) {
	var b struct {
		Model         string    `json:"model"`
		Stream        bool      `json:"stream"`
		Messages      []message `json:"messages"`
		StreamOptions struct {
			IncludeUsage bool `json:"include_usage"`
		} `json:"stream_options"`
	}
	if err := decode(body, &b); err != nil {
		return nil, err
	}
	if len(b.Messages) == 0 {
		return nil, errors.New("the request has no messages")
	}
	r := &request{model: b.Model, stream: b.Stream, usage: b.StreamOptions.IncludeUsage, tokens: len(body) / TokenChars}
	r.count(b.Messages, byRole)
	return r, nil
}

func parseMessages(body []byte) (*request, error) {
	var b struct {
		Model    string    `json:"model"`
		Stream   bool      `json:"stream"`
		Messages []message `json:"messages"`
		Max      int       `json:"max_tokens"`
	}
	if err := decode(body, &b); err != nil {
		return nil, err
	}
	if len(b.Messages) == 0 || b.Max <= 0 {
		return nil, errors.New("the request needs messages and max_tokens")
	}
	r := &request{model: b.Model, stream: b.Stream, tokens: len(body) / TokenChars}
	r.count(b.Messages, byRole)
	return r, nil
}

func parseResponses(body []byte) (*request, error) {
	var b struct {
		Model    string          `json:"model"`
		Stream   bool            `json:"stream"`
		Input    json.RawMessage `json:"input"`
		Previous string          `json:"previous_response_id"`
	}
	if err := decode(body, &b); err != nil {
		return nil, err
	}
	r := &request{model: b.Model, stream: b.Stream, tokens: len(body) / TokenChars}
	if b.Previous != "" {
		var err error
		if r.key, r.turn, err = parseResponseID(b.Previous); err != nil {
			return nil, err
		}
	}
	var text string
	if json.Unmarshal(b.Input, &text) == nil {
		r.prompt = text
		return r, nil
	}
	var items []message
	if err := decode(b.Input, &items); err != nil {
		return nil, err
	}
	r.count(items, func(m *message) bool {
		switch m.Type {
		case "function_call", "reasoning", "custom_tool_call":
			return true
		case "", "message":
			return m.Role == "assistant"
		}
		return false
	})
	return r, nil
}

// responseID names a response so that a request that continues it tells the
// conversation and the turn: nothing is kept here.
func responseID(key string, turn int, serial uint64) string {
	return fmt.Sprintf("resp_%s_%d_%x", hex.EncodeToString([]byte(key)), turn, serial)
}

// parseResponseID returns the conversation of a response and the number of the
// turn that follows it.
func parseResponseID(id string) (key string, next int, err error) {
	parts := strings.Split(id, "_")
	if len(parts) == 4 && parts[0] == "resp" {
		k, keyErr := hex.DecodeString(parts[1])
		n, numberErr := strconv.Atoi(parts[2])
		if keyErr == nil && numberErr == nil && n >= 0 && n < 1<<20 {
			return string(k), n + 1, nil
		}
	}
	return "", 0, fmt.Errorf("previous_response_id %q is none of this server", id)
}
