package tap_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// An upstream may answer before it has the whole request: neither is lost.
func TestUpstreamAnswersEarly(t *testing.T) {
	x := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		if err := c.EnableFullDuplex(); err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, event("early"))
		_ = c.Flush()
		body, err := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "data: %d bytes, %v\n\n", len(body), err)
	}))
	conn, err := net.Dial("tcp", strings.TrimPrefix(x.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	const half = 3000
	_, err = fmt.Fprintf(conn, "POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s", 2*half, strings.Repeat("a", half))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	first := make([]byte, len(event("early")))
	if _, err := io.ReadFull(resp.Body, first); err != nil || string(first) != event("early") {
		t.Fatalf("%q, %v", first, err)
	}
	if _, err := io.WriteString(conn, strings.Repeat("b", half)); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(resp.Body)
	if want := fmt.Sprintf("data: %d bytes, <nil>\n\n", 2*half); string(rest) != want || err != nil {
		t.Errorf("%q, %v, want %q", rest, err, want)
	}
}
