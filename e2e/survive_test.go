package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/specbox/specbox/internal/sse"
	"github.com/specbox/specbox/wire"
)

// idleLimit is how long proxies that people run let a connection be silent.
const idleLimit = 30 * time.Second

// A proxy passes connections on, and cuts those on which the far side is silent
// for too long while somebody waits.
type proxy struct {
	listener net.Listener
	target   atomic.Value // string: host and port
	cut      atomic.Int64 // connections that were cut
	work     sync.WaitGroup
}

func startProxy(t *testing.T, url string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l}
	p.lead(url)
	p.work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.work.Go(func() { p.pass(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.work.Wait()
	})
	return p
}

// lead sets where new connections go.
func (p *proxy) lead(url string) {
	p.target.Store(strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/mcp"))
}

func (p *proxy) url() string { return "http://" + p.listener.Addr().String() + "/mcp" }

func (p *proxy) pass(near net.Conn) {
	far, err := net.Dial("tcp", p.target.Load().(string))
	if err != nil {
		near.Close()
		return
	}
	var both sync.WaitGroup
	both.Go(func() {
		defer far.Close()
		_, _ = io.Copy(far, near)
	})
	defer both.Wait()
	defer near.Close()
	defer far.Close()
	buf := make([]byte, 64<<10)
	for {
		_ = far.SetReadDeadline(time.Now().Add(idleLimit))
		n, err := far.Read(buf)
		if n > 0 {
			if _, err := near.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			if e, ok := err.(net.Error); ok && e.Timeout() {
				p.cut.Add(1)
			}
			return
		}
	}
}

// Streams that are silent for longer than a proxy allows stay alive: a long call
// of each era, the stream that a legacy client listens on, and the one of a
// modern client that subscribed.
func TestIdleStreamsSurviveAProxy(t *testing.T) {
	t.Parallel()
	x := serve(t, object{"nasty": with(bad(), object{"prefix": "", "timeout": "2m"})})
	x.filled(t, "nasty")
	p := startProxy(t, x.url)
	legacy, now := connect(t, p.url(), "{}"), modern(t, p.url(), "{}")
	legacy.listen(t)
	legacy.tools(t)
	listening, cancel := context.WithCancel(t.Context())
	defer cancel()
	heard := make(chan string, 16)
	resp, err := now.post(listening, "7", "subscriptions/listen", `{"notifications":{"toolsListChanged":true}}`)
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() {
		defer close(heard)
		defer resp.Body.Close()
		for events := sse.NewReader(resp.Body, 0); ; {
			e, err := events.Next()
			if err != nil {
				return
			}
			if m, err := wire.Parse(e.Data); err == nil {
				heard <- m.Method
			}
		}
	})
	args := fmt.Sprintf(`{"ms":%d}`, (idleLimit + 2*time.Second).Milliseconds())
	work.Go(func() {
		if got, err := legacy.try(t.Context(), "sleep", args); err != nil || got != "slept" {
			t.Errorf("a long call of the legacy era: %q, %v", got, err)
		}
	})
	if got := now.call(t, "sleep", args); got != "slept" {
		t.Errorf("a long call of the modern era: %q", got)
	}
	now.call(t, "add-tool", `{"name":"late"}`)
	legacy.noted(t, "notifications/tools/list_changed", "")
	for method := range heard {
		if method == "notifications/tools/list_changed" {
			break
		}
		if method != "notifications/subscriptions/acknowledged" {
			t.Errorf("heard %s", method)
		}
	}
	cancel()
	work.Wait()
	if n := p.cut.Load(); n > 0 {
		t.Errorf("the proxy cut %d connections that were silent for %v", n, idleLimit)
	}
}

// A conversation goes on though its client connects anew for every call.
func TestClientsMayReconnectForEveryCall(t *testing.T) {
	x := serve(t, object{"nasty": with(bad(), object{"prefix": ""})})
	x.filled(t, "nasty")
	legacy, now := connect(t, x.url, "{}"), modern(t, x.url, "{}")
	once := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	legacy.http, now.http = once, once
	for i := range 10 {
		value := fmt.Sprint(i)
		legacy.call(t, "set", `{"key":"k","value":"legacy `+value+`"}`)
		now.call(t, "set", `{"key":"k","value":"modern `+value+`"}`)
		if got, want := legacy.call(t, "get", `{"key":"k"}`), `"legacy `+value+`"`; got != want {
			t.Errorf("legacy: got %s, want %s", got, want)
		}
		if got, want := now.call(t, "get", `{"key":"k"}`), `"modern `+value+`"`; got != want {
			t.Errorf("modern: got %s, want %s", got, want)
		}
	}
	if rows := x.ps(t); len(rows) != 2 {
		t.Errorf("two conversations have %d sandboxes: %+v", len(rows), rows)
	}
}

// A conversation goes on though its server dies, in each pairing.
func TestConversationsSurviveTheirServer(t *testing.T) {
	pairings(t, func(t *testing.T, client, server string) {
		x := serve(t, object{"nasty": with(bad("-era", server), object{"prefix": ""})})
		x.filled(t, "nasty")
		var through peer = modern(t, x.url, "{}")
		if client == "legacy" {
			through = connect(t, x.url, "{}")
		}
		for range 3 {
			began := time.Now()
			if got, err := through.request(t.Context(), "tools/call", callParams("crash", `{"status":3,"say":"last words"}`)); err == nil || !strings.Contains(err.Error(), "last words") {
				t.Errorf("a call whose server died: %s, %v", got, err)
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("it failed after %v", took)
			}
			got, err := through.request(t.Context(), "tools/call", callParams("echo", `{"n":1.0}`))
			if err != nil || !bytes.Contains(got, []byte(`"arguments":{"n":1.0}`)) {
				t.Errorf("the call after it: %s, %v", got, err)
			}
		}
	})
}

// When SpecBox was restarted a legacy client learns by a 404 that it has to
// begin anew, and a modern one notices nothing.
func TestClientsSurviveARestart(t *testing.T) {
	state, config := t.TempDir(), object{"servers": object{"nasty": with(bad(), object{"prefix": ""})}}
	x := serveFile(t, state, config)
	x.filled(t, "nasty")
	p := startProxy(t, x.url)
	legacy, now := connect(t, p.url(), "{}"), modern(t, p.url(), "{}")
	legacy.call(t, "echo", "{}")
	now.call(t, "echo", "{}")
	x.stop(t)
	legacy.http.CloseIdleConnections()
	now.http.CloseIdleConnections()
	x = serveFile(t, state, config)
	p.lead(x.url)
	if got := now.call(t, "echo", `{"after":"restart"}`); got != `{"after":"restart"}` {
		t.Errorf("modern: got %s", got)
	}
	resp, err := legacy.post(t.Context(), callBody("1", "echo", "{}"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusNotFound {
		t.Errorf("legacy: status %d, want 404", resp.StatusCode)
	}
	legacy.session = ""
	legacy.open(t, "{}")
	if got := legacy.call(t, "echo", `{"after":"restart"}`); got != `{"after":"restart"}` {
		t.Errorf("legacy: got %s", got)
	}
}

// specbox bench hop prints the figures that scripts rely on.
func TestBenchHopPrintsItsFigures(t *testing.T) {
	x := start(t, t.TempDir(), "bench", "hop", "--json", "--rounds", "1", "--for", "1ms")
	select {
	case <-x.ended:
	case <-time.After(2 * time.Minute):
		t.Fatal("it takes too long")
	}
	var figures map[string]any
	decode(t, x.output.String(), &figures)
	for _, name := range []string{"added_p50_us", "calls_per_s_32", "ratio_10mb", "peak_mb_over_payload"} {
		if f, ok := figures[name].(float64); !ok || f <= 0 {
			t.Errorf("%s is %v", name, figures[name])
		}
	}
}
