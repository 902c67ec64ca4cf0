package model_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/specbox/specbox/replay/model"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// talk is a conversation with everything in it.
var talk = model.Script{
	Key: "talk", Prompt: "What is the weather in Bern?",
	Turns: []model.Turn{
		{
			Parts: []model.Part{{Text: "Two places.", Reasoning: true}, {Text: "I look at both."}},
			Calls: []model.Call{{Name: "weather__now", Arguments: `{"at":"Bern"}`}, {Name: "clock"}},
		},
		{Parts: []model.Part{{Text: "Rain, at nöön."}}},
	},
}

func server(t *testing.T, c model.Config) *model.Server {
	t.Helper()
	s, err := model.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A pipes is a listener without a network, for bubbles of virtual time.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// serve runs h behind pipes and returns a client of it; stop ends both.
func serve(h http.Handler) (c *http.Client, stop func()) {
	l := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
	srv := &http.Server{Handler: h, ErrorLog: nil}
	var work sync.WaitGroup
	work.Go(func() { _ = srv.Serve(l) })
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		near, far := net.Pipe()
		select {
		case l.conns <- far:
			return near, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}}
	return &http.Client{Transport: tr}, func() {
		tr.CloseIdleConnections()
		_ = srv.Close()
		work.Wait()
	}
}

// paths of the three APIs, and a request of each for turn n of the talk.
var paths = map[string]string{"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}

func request(api, name string, turn int, stream bool) string {
	said := map[string]string{
		"chat":      `,{"role":"assistant","content":null,"tool_calls":[]},{"role":"tool","tool_call_id":"x","content":"rain"}`,
		"responses": `,{"type":"reasoning","summary":[]},{"type":"function_call","call_id":"a","name":"b","arguments":"{}"},{"type":"function_call_output","call_id":"a","output":"rain"}`,
		"messages":  `,{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"b","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"rain"}]}`,
	}[api]
	all := `[{"role":"user","content":"What is the weather in Bern?"}` + strings.Repeat(said, turn) + `]`
	key, more := "messages", ""
	switch api {
	case "responses":
		key = "input"
	case "messages":
		more = `,"max_tokens":100`
	case "chat":
		more = `,"stream_options":{"include_usage":true}`
	}
	return fmt.Sprintf(`{"model":%q,"stream":%t,%q:%s%s}`, name, stream, key, all, more)
}

func post(t *testing.T, c *http.Client, path, body string) *http.Response {
	t.Helper()
	r, err := c.Post("http://model"+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Each API says the talk as its golden file has it, at exact times.
func TestGoldenStreams(t *testing.T) {
	for api, path := range paths {
		t.Run(api, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, stop := serve(server(t, model.Config{Scripts: []model.Script{talk}, Rate: 10, First: 800 * time.Millisecond}))
				defer stop()
				var got bytes.Buffer
				for turn := range 2 {
					began := time.Now()
					r := post(t, c, path, request(api, "replay/talk", turn, true))
					if r.StatusCode != http.StatusOK || !strings.HasPrefix(r.Header.Get("Content-Type"), "text/event-stream") {
						t.Fatalf("status %s, type %s", r.Status, r.Header.Get("Content-Type"))
					}
					for lines := bufio.NewScanner(r.Body); lines.Scan(); {
						if lines.Text() != "" {
							fmt.Fprintf(&got, "%d ms  %s\n", time.Since(began).Milliseconds(), lines.Text())
						}
					}
					_ = r.Body.Close()
				}
				for turn := range 2 {
					began := time.Now()
					r := post(t, c, path, request(api, "replay/talk", turn, false))
					b, err := io.ReadAll(r.Body)
					if err != nil {
						t.Fatal(err)
					}
					_ = r.Body.Close()
					fmt.Fprintf(&got, "%d ms  %s", time.Since(began).Milliseconds(), b)
				}
				golden(t, api+".golden", got.Bytes())
			})
		})
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what came:\n%s", file, got)
	}
}

// what collects what a stream of Chat Completions says.
func what(t *testing.T, body io.Reader) (text, finish string) {
	t.Helper()
	for lines := bufio.NewScanner(body); lines.Scan(); {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var c struct {
			Choices []struct {
				Delta  struct{ Content string }
				Finish string `json:"finish_reason"`
			}
		}
		if err := json.Unmarshal([]byte(data), &c); err != nil {
			t.Fatal(err)
		}
		for _, ch := range c.Choices {
			text += ch.Delta.Content
			finish += ch.Finish
		}
	}
	return text, finish
}

func TestConversationIsFoundByKeyPromptAndResponse(t *testing.T) {
	other := model.Script{Key: "other", Prompt: "Hello", Turns: []model.Turn{{Parts: []model.Part{{Text: "one"}}}, {Parts: []model.Part{{Text: "two"}}}, {Parts: []model.Part{{Text: "three"}}}}}
	h := server(t, model.Config{Scripts: []model.Script{talk, other}})
	ask := func(path, body string) (int, string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)))
		return w.Code, w.Body.String()
	}
	for _, c := range []struct {
		path, body string
		code       int
		want       string
	}{
		{"/v1/chat/completions", `{"model":"replay/other","messages":[{"role":"user","content":"x"}]}`, 200, `"content":"one"`},
		{"/s/key/v1/chat/completions", `{"model":"gpt-9","messages":[{"role":"system","content":"y"},{"role":"user","content":[{"type":"text","text":"Hello"}]}]}`, 200, `"content":"one"`},
		{"/v1/chat/completions", `{"model":"replay/other","messages":[{"role":"user","content":"x"},{"role":"assistant","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"y"}]}`, 200, `"content":"two"`},
		{"/anthropic/v1/messages", `{"model":"replay/other","max_tokens":9,"messages":[{"role":"user","content":"x"},{"role":"assistant","content":"a"},{"role":"user","content":"y"},{"role":"assistant","content":"b"},{"role":"user","content":"z"}]}`, 200, `"text":"three"`},
		{"/v1/responses", `{"model":"other-name","input":"Hello"}`, 200, `"text":"one"`},
		{"/v1/responses", `{"model":"any","previous_response_id":"resp_6f74686572_0_9","input":[{"role":"user","content":"y"}]}`, 200, `"text":"two"`},
		{"/v1/responses", `{"model":"any","previous_response_id":"resp_6f74686572_0_9","input":[{"role":"assistant","content":"two"},{"role":"user","content":"y"}]}`, 200, `"text":"three"`},
		{"/v1/responses", `{"model":"any","previous_response_id":"resp_zz_0_9","input":"y"}`, 400, "is none of this server"},
		{"/v1/responses", `{"model":"any","previous_response_id":"resp_7a_0_9","input":"y"}`, 404, "there is no script"},
		{"/v1/chat/completions", `{"model":"replay/none","messages":[{"role":"user","content":"Hello"}]}`, 404, "there is no script"},
		{"/v1/messages", `{"model":"claude","max_tokens":1,"messages":[{"role":"user","content":"Bye"}]}`, 404, `{"error":{"message":`},
		{"/v1/messages", `{"model":"replay/other","messages":[{"role":"user","content":"Bye"}]}`, 400, "max_tokens"},
		{"/v1/chat/completions", `{"model":"replay/other","messages":[]}`, 400, "no messages"},
		{"/v1/chat/completions", `[]`, 400, "no JSON of this API"},
		{"/v1/responses", `{"model":"replay/other","input":[{"role":"assistant","content":"1"},{"role":"user","content":"2"},{"role":"assistant","content":"3"},{"role":"user","content":"4"},{"role":"assistant","content":"5"}]}`, 400, "has 3 turns"},
		{"/v1/embeddings", `{}`, 404, "there is nothing at POST"},
	} {
		code, got := ask(c.path, c.body)
		if code != c.code || !strings.Contains(got, c.want) {
			t.Errorf("%s %s: %d %s, want %d and %s", c.path, c.body, code, got, c.code, c.want)
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/models", nil))
	if !strings.Contains(w.Body.String(), `"id":"replay/other"`) {
		t.Errorf("models: %s", w.Body)
	}
	w = httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/responses", nil))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d", w.Code)
	}
}

func TestFailures(t *testing.T) {
	for api, path := range paths {
		for _, c := range []struct {
			name   string
			fail   model.Failure
			stream bool
			code   int
			want   string
		}{
			{"instead of the answer", model.Failure{Status: 529, Type: "overloaded_error", Message: "come again"}, true, 529, "overloaded_error"},
			{"without a status", model.Failure{Message: "come again"}, true, 500, "server_error"},
			{"in the stream", model.Failure{Type: "overloaded_error", Message: "come again", After: 2}, true, 200, "overloaded_error"},
			{"in an answer that is none", model.Failure{Status: 503, Message: "come again", After: 2}, false, 503, "come again"},
		} {
			h := server(t, model.Config{Scripts: []model.Script{{Key: "talk", Turns: []model.Turn{{Parts: []model.Part{{Text: "abcdefghijkl"}}, Fail: &c.fail}}}}})
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, strings.NewReader(request(api, "replay/talk", 0, c.stream))))
			got := w.Body.String()
			if w.Code != c.code || !strings.Contains(got, c.want) || !strings.Contains(got, "come again") {
				t.Errorf("%s, %s: %d %s", api, c.name, w.Code, got)
			}
			if inStream := c.code == 200; strings.Contains(got, "efgh") != inStream || strings.Contains(got, "ijkl") {
				t.Errorf("%s, %s: after two tokens came %s", api, c.name, got)
			}
		}
	}
}

func TestFailureCutsTheConnection(t *testing.T) {
	h := server(t, model.Config{Scripts: []model.Script{{Key: "talk", Turns: []model.Turn{{Parts: []model.Part{{Text: "abcdefghijkl"}}, Fail: &model.Failure{After: 1, Cut: true}}}}}})
	srv := httptest.NewServer(h)
	defer srv.Close()
	r, err := srv.Client().Post(srv.URL+"/v1/chat/completions", "application/json", strings.NewReader(request("chat", "replay/talk", 0, true)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	b, err := io.ReadAll(r.Body)
	if !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(string(b), "abcd") {
		t.Errorf("read %q, %v", b, err)
	}
}

// A client that goes ends the answer at once: the bubble finds what stays.
func TestClientGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan time.Time, 1)
		h := server(t, model.Config{Scripts: []model.Script{talk}, Rate: 1, First: time.Second})
		c, stop := serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h.ServeHTTP(w, r)
			ended <- time.Now()
		}))
		defer stop()
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://model/v1/chat/completions", strings.NewReader(request("chat", "replay/talk", 0, true)))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		if _, err := io.ReadAll(resp.Body); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the stream ended with %v", err)
		}
		if took := (<-ended).Sub(began); took != 2500*time.Millisecond {
			t.Errorf("the answer ended after %v", took)
		}
	})
}

func TestJitterIsBoundedAndRepeats(t *testing.T) {
	run := func(seed uint64) (times []time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			c, stop := serve(server(t, model.Config{
				Scripts: []model.Script{{Key: "talk", Turns: []model.Turn{{Parts: []model.Part{{Text: strings.Repeat("word", 50)}}}}}},
				Rate:    10, First: time.Second, Jitter: 0.5, Seed: seed,
			}))
			defer stop()
			last := time.Now()
			r := post(t, c, "/v1/chat/completions", request("chat", "replay/talk", 0, true))
			defer func() { _ = r.Body.Close() }()
			for lines := bufio.NewScanner(r.Body); lines.Scan(); {
				if strings.Contains(lines.Text(), `"word"`) {
					times = append(times, time.Since(last))
					last = time.Now()
				}
			}
		})
		return times
	}
	one, again, other := run(1), run(1), run(2)
	if len(one) != 50 || fmt.Sprint(one) != fmt.Sprint(again) || fmt.Sprint(one) == fmt.Sprint(other) {
		t.Errorf("seed 1: %v\nagain: %v\nseed 2: %v", one, again, other)
	}
	if one[0] < 500*time.Millisecond || one[0] > 1500*time.Millisecond {
		t.Errorf("the first token came after %v", one[0])
	}
	for _, gap := range one[1:] {
		if gap < 50*time.Millisecond || gap > 150*time.Millisecond {
			t.Errorf("a gap of %v", gap)
		}
	}
}

func TestManyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, stop := serve(server(t, model.Config{Scripts: []model.Script{talk}, Rate: 20, First: time.Second}))
		defer stop()
		began := time.Now()
		var work sync.WaitGroup
		for range 50 {
			work.Go(func() {
				r := post(t, c, "/v1/chat/completions", request("chat", "replay/talk", 1, true))
				text, finish := what(t, r.Body)
				_ = r.Body.Close()
				if text != "Rain, at nöön." || finish != "stop" {
					t.Errorf("got %q, %q", text, finish)
				}
			})
		}
		work.Wait()
		if took := time.Since(began); took != time.Second+3*50*time.Millisecond {
			t.Errorf("fifty answers of four tokens took %v", took)
		}
	})
}

func TestNewChecks(t *testing.T) {
	for want, c := range map[string]model.Config{
		"its key":          {Scripts: []model.Script{{Key: "a"}, {Key: "a"}}},
		"script 1":         {Scripts: []model.Script{{}}},
		"arguments that":   {Scripts: []model.Script{{Key: "a", Turns: []model.Turn{{Calls: []model.Call{{Name: "b", Arguments: "{"}}}}}}},
		"a call needs":     {Scripts: []model.Script{{Key: "a", Turns: []model.Turn{{Calls: []model.Call{{}}}}}}},
		"a part needs":     {Scripts: []model.Script{{Key: "a", Turns: []model.Turn{{Parts: []model.Part{{}}}}}}},
		"jitter is 2":      {Jitter: 2},
		"must not be nega": {Rate: -1},
	} {
		if _, err := model.New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func FuzzRequest(f *testing.F) {
	for api := range paths {
		f.Add(api, request(api, "replay/talk", 1, true))
	}
	f.Add("responses", `{"previous_response_id":"resp_74616c6b_0_1","input":[]}`)
	f.Add("chat", `{"messages":[{"role":"user","content":{}}]}`)
	h, err := model.New(model.Config{Scripts: []model.Script{talk}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, api, body string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, paths["chat"][:4]+strings.TrimPrefix(paths[api], "/v1/"), strings.NewReader(body)))
		if w.Code != 200 && !json.Valid(w.Body.Bytes()) {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}
