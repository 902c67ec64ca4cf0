package gateway_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/specbox/specbox/gateway"
)

// A sink is a response writer that forgets.
type sink struct{ h http.Header }

func (s *sink) Header() http.Header         { return s.h }
func (s *sink) Write(p []byte) (int, error) { return len(p), nil }
func (s *sink) WriteHeader(int)             {}

// A connection takes deadlines; to refuse them costs more.
func (s *sink) SetReadDeadline(time.Time) error  { return nil }
func (s *sink) SetWriteDeadline(time.Time) error { return nil }

type body struct{ bytes.Reader }

func (*body) Close() error { return nil }

// BenchmarkHop is what the gateway adds to a call, without the network.
func BenchmarkHop(b *testing.B) {
	for _, n := range []int{100, 1 << 10, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			g, _ := newGateway(b, &server{instant: true}, nil)
			c := newClient(b, g).initialize("2025-11-25")
			msg := []byte(call("1", "echo", `{"x":"`+strings.Repeat("x", n)+`"}`))
			r := c.request(b.Context(), http.MethodPost, "")
			r.ContentLength = int64(len(msg))
			rd := new(body)
			r.Body = rd
			w := &sink{http.Header{}}
			b.SetBytes(int64(len(msg)))
			b.ReportAllocs()
			for b.Loop() {
				rd.Reset(msg)
				clear(w.h)
				g.ServeHTTP(w, r)
			}
		})
	}
}

// BenchmarkModernHop is the same in the era without sessions.
func BenchmarkModernHop(b *testing.B) {
	for _, n := range []int{100, 1 << 20} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			g, _ := newGateway(b, &server{instant: true}, nil)
			msg := []byte(use("1", "echo", `{"x":"`+strings.Repeat("x", n)+`"}`))
			r := newClient(b, g).modern(b.Context(), string(msg))
			rd := new(body)
			r.Body = rd
			w := &sink{http.Header{}}
			b.SetBytes(int64(len(msg)))
			b.ReportAllocs()
			for b.Loop() {
				rd.Reset(msg)
				clear(w.h)
				g.ServeHTTP(w, r)
			}
		})
	}
}

// BenchmarkHTTP is a call through net/http on the loopback, beside an
// http.Handler that only echoes: the difference is the gateway's.
func BenchmarkHTTP(b *testing.B) {
	g, _ := newGateway(b, &server{instant: true}, nil)
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write(body)
	})
	for _, test := range []struct {
		name string
		h    http.Handler
	}{{"bare", echo}, {"gateway", g}} {
		b.Run(test.name, func(b *testing.B) {
			url := listen(b, test.h) + "/mcp"
			key := "none"
			if _, ok := test.h.(*gateway.Gateway); ok {
				key = open(b, url)
			}
			msg := call("1", "echo", `{"x":"`+strings.Repeat("x", 200)+`"}`)
			b.ReportAllocs()
			for b.Loop() {
				send(b, url, key, "application/json, text/event-stream", msg)
			}
		})
	}
}
