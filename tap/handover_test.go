package tap_test

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/specbox/specbox/tap"
)

func TestHandOver(t *testing.T) {
	x := newRig(t, http.NotFoundHandler())
	resp, b := x.post("/sessions/my-key/stream", strings.Join([]string{
		`{"model":"m"}`,
		`{"tools":[{"name":"look","description":"Looks."},{"type":"function","function":{"name":"go"}}]}`,
		`{"system":"be"}`,
		``,
		`{"prompt":"one"}`,
		`{"begin":true}`,
		`{"reasoning":"Hm"}`,
		`{"text":"I \"look\""}`,
		`{"tool":"look","id":"c1"}`,
		`{"tool":"go","id":"c2"}`,
		`{"arguments":"{\"a\":","id":"c1"}`,
		`{"arguments":"{}"}`,
		`{"arguments":"1}","id":"c1"}`,
		`{"end":true}`,
		`{"result":"seen","id":"c1"}`,
		`{"text":"done"}`,
		`{"prompt":"next"}`,
	}, "\n"))
	if resp.StatusCode != http.StatusOK || string(b) != "{\"lines\":16}\n" {
		t.Fatalf("%d %s", resp.StatusCode, b)
	}
	x.diary.ended(t, 3)
	want := []string{
		"model m\ntool look: Looks.\ntool go: \nsystem \"be\"\nuser \"one\"\n\n" +
			"reasoning \"Hm\"\ntext \"I \\\"look\\\"\"\ncall 0 c1 look\ncall 1 c2 go\narguments 0 c1 look \"{\\\"a\\\":\"\narguments 1 c2 go \"{}\"\narguments 0 c1 look \"1}\"\ncalled 0 c1 look\ncalled 1 c2 go\ndone\n",
		"tool c1 \"seen\"\n\ntext \"done\"\ndone\n",
		"user \"next\"\n\n",
	}
	for i, p := range x.diary.pages {
		if p.told() != want[i] {
			t.Errorf("turn %d:\n%s\nnot\n%s", i+1, p.told(), want[i])
		}
		if r := p.req; r.API != tap.Stream || r.Key != "my-key" || r.Conversation != x.diary.pages[0].req.Conversation || r.Continued != (i > 0) {
			t.Errorf("turn %d: %+v", i+1, r)
		}
	}
	_, b = x.post("/sessions/my-key/stream", "some ", "Content-Type", "text/plain; charset=utf-8")
	if p := x.diary.ended(t, 4); !slices.Equal(p.lines, []string{`text "some "`, "done"}) || !p.req.Continued {
		t.Errorf("plain text, %s: told %q", b, p.lines)
	}
}

// A line counts as soon as it has come.
func TestHandOverAsItComes(t *testing.T) {
	x := newRig(t, http.NotFoundHandler())
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		resp, err := client.Post(x.url+"/sessions/k/stream", "application/x-ndjson", r)
		if err == nil {
			err = resp.Body.Close()
		}
		done <- err
	}()
	for i := range 10 {
		if _, err := fmt.Fprintf(w, "{\"text\":\"%d\"}\n", i); err != nil {
			t.Fatal(err)
		}
		x.diary.wait(t, "the line is told", func(pages []*page) bool { return len(pages) == 1 && len(pages[0].lines) == i+1 })
	}
	_ = w.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
	x.diary.ended(t, 1)
}

func TestHandOverRefuses(t *testing.T) {
	x := newRig(t, http.NotFoundHandler())
	for body, part := range map[string]string{
		`{"text":"a"}` + "\n" + `{"text":1}`: "line 2 is no JSON object with one of",
		`{"word":"a"}`:                       "line 1 is no JSON object with one of",
		`hello`:                              "line 1 is no JSON object with one of",
		`{"end":false}`:                      "line 1 is no JSON object with one of",
		`{"text":"` + strings.Repeat("x", 2<<20) + `"}`: "line 1 has more than",
	} {
		resp, b := x.post("/sessions/k/stream", body)
		if resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(b), part) {
			t.Errorf("%.50s: %d %s", body, resp.StatusCode, b)
		}
	}
	resp, err := http.Get(x.url + "/sessions/k/stream")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusMethodNotAllowed || resp.Header.Get("Allow") != http.MethodPost {
		t.Errorf("GET: %d, allowed is %q", resp.StatusCode, resp.Header.Get("Allow"))
	}
}
