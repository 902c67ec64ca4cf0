//lint:file-ignore SA1019 the legacy era lives on what the next one deprecates

package gateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/specbox/specbox/gateway"
	"github.com/specbox/specbox/wire"
)

// A sdk is a client of the official SDK, and what it was told.
type sdk struct {
	*mcp.ClientSession
	progress, logs, changes chan string
}

func connect(t *testing.T, tr mcp.Transport) *sdk {
	t.Helper()
	c := &sdk{progress: make(chan string, 100), logs: make(chan string, 100), changes: make(chan string, 100)}
	client := mcp.NewClient(&mcp.Implementation{Name: "sdk", Version: "1"}, &mcp.ClientOptions{
		CreateMessageHandler: func(context.Context, *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
			return &mcp.CreateMessageResult{Model: "m", Role: "assistant", Content: &mcp.TextContent{Text: "sampled"}}, nil
		},
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": "elicited"}}, nil
		},
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			c.progress <- fmt.Sprint(r.Params.ProgressToken, " ", r.Params.Progress)
		},
		LoggingMessageHandler:  func(_ context.Context, r *mcp.LoggingMessageRequest) { c.logs <- fmt.Sprint(r.Params.Data) },
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { c.changes <- "tools" },
	})
	client.AddRoots(&mcp.Root{URI: "file:///rooted"})
	s, err := client.Connect(t.Context(), tr, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.ClientSession = s
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return c
}

// transports are the ways by which the SDK's client reaches a gateway.
func transports(t *testing.T, g *gateway.Gateway) map[string]func() mcp.Transport {
	url := listen(t, g) + "/mcp"
	return map[string]func() mcp.Transport{
		"http": func() mcp.Transport { return &mcp.StreamableClientTransport{Endpoint: url} },
		"a connection a request": func() mcp.Transport {
			return &mcp.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
		},
		"stdio": func() mcp.Transport {
			r, in := io.Pipe()
			out, w := io.Pipe()
			done := make(chan error, 1)
			ctx, stop := context.WithCancel(context.Background())
			go func() {
				done <- g.ServeStdio(ctx, r, w, gateway.Opening{})
				_ = w.Close()
			}()
			t.Cleanup(func() {
				stop()
				if err := <-done; err != nil {
					t.Errorf("ServeStdio: %v", err)
				}
			})
			return &mcp.IOTransport{Reader: out, Writer: in}
		},
	}
}

func hear(t *testing.T, from chan string, want string) {
	t.Helper()
	select {
	case got := <-from:
		if got != want {
			t.Errorf("heard %q, want %q", got, want)
		}
	case <-time.After(10 * time.Second):
		t.Errorf("heard nothing, want %q", want)
	}
}

func TestTheOfficialClient(t *testing.T) {
	srv := &server{}
	g, _ := newGateway(t, srv, nil)
	for name, transport := range transports(t, g) {
		t.Run(name, func(t *testing.T) {
			c := connect(t, transport())
			far := srv.last(t)
			tool := func(ctx context.Context, name string, args any) string {
				t.Helper()
				p := &mcp.CallToolParams{Name: name, Arguments: args}
				p.SetProgressToken("tok")
				r, err := c.CallTool(ctx, p)
				if err != nil {
					return err.Error()
				}
				if len(r.Content) == 0 {
					return ""
				}
				return r.Content[0].(*mcp.TextContent).Text
			}
			if v := c.InitializeResult().ProtocolVersion; v != "2025-11-25" {
				t.Errorf("the client fell back to %s", v)
			}
			if l, err := c.ListTools(t.Context(), nil); err != nil || len(l.Tools) != 1 {
				t.Errorf("tools: %v %v", l, err)
			}
			if got := tool(t.Context(), "progress", map[string]any{"n": 3}); got != "done" {
				t.Errorf("progress: %s", got)
			}
			for i := range 3 {
				hear(t, c.progress, fmt.Sprint("tok ", i+1))
			}
			if got := tool(t.Context(), "log", nil); got != "logged" {
				t.Errorf("log: %s", got)
			}
			hear(t, c.logs, "hello")
			if got := tool(t.Context(), "news", nil); got != "told" {
				t.Errorf("news: %s", got)
			}
			hear(t, c.changes, "tools")
			for method, want := range map[string]string{"sampling/createMessage": "sampled", "elicitation/create": "elicited", "roots/list": "file:///rooted"} {
				params := map[string]any{}
				switch method {
				case "sampling/createMessage":
					params = map[string]any{"maxTokens": 1, "messages": []any{}}
				case "elicitation/create":
					params = map[string]any{"message": "who?", "requestedSchema": map[string]any{"type": "object", "properties": map[string]any{}}}
				}
				if got := tool(t.Context(), method, map[string]any{"params": params}); !strings.Contains(got, want) {
					t.Errorf("%s: %s", method, got)
				}
			}
			ctx, cancel := context.WithCancel(t.Context())
			errc := make(chan string)
			go func() { errc <- tool(ctx, "wait", map[string]any{}) }()
			<-far.waiting
			cancel()
			if got := <-errc; !strings.Contains(got, "canceled") {
				t.Errorf("the cancelled call: %s", got)
			}
			var cancelled wire.Cancelled
			if cause := <-far.ended; !errors.As(cause, &cancelled) {
				t.Errorf("the call ended because %v", cause)
			}
			if got := tool(t.Context(), "echo", map[string]any{"content": []any{}}); got != "" {
				t.Errorf("after all that: %s", got)
			}
		})
	}
}

func TestTheOfficialClientInParallel(t *testing.T) {
	g, _ := newGateway(t, &server{}, nil)
	for name, transport := range transports(t, g) {
		t.Run(name, func(t *testing.T) {
			var clients sync.WaitGroup
			for k := range 4 {
				c := connect(t, transport())
				for i := range 25 {
					clients.Go(func() {
						want := fmt.Sprintf("%d/%d", k, i)
						r, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "echo", Arguments: map[string]any{
							"content": []any{map[string]any{"type": "text", "text": want}}}})
						if err != nil || r.Content[0].(*mcp.TextContent).Text != want {
							t.Errorf("got %v %v, want %s", r, err, want)
						}
					})
				}
			}
			clients.Wait()
		})
	}
}

func TestTheOfficialClientMeetsAnEndedSession(t *testing.T) {
	g, _ := newGateway(t, &server{}, nil)
	url := listen(t, g) + "/mcp"
	client := mcp.NewClient(&mcp.Implementation{Name: "sdk", Version: "1"}, nil)
	s, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: url, DisableStandaloneSSE: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	g.CloseSessions(func(gateway.SessionInfo) bool { return true })
	if _, err := s.ListTools(t.Context(), nil); !errors.Is(err, mcp.ErrSessionMissing) {
		t.Errorf("the client cannot tell that it must begin anew: %v", err)
	}
	_ = s.Close()
}

// TestBytesPass holds the first law, with what typed proxies lose.
func TestBytesPass(t *testing.T) {
	g, _ := newGateway(t, &server{}, nil)
	url := listen(t, g) + "/mcp"
	key := open(t, url)
	for _, value := range []string{
		`{"n":9007199254740993,"m":-0,"x":1.0,"y":1,"e":1E400,"f":0.10}`,
		`{"z":1,"a":2,"a":3,"":{}}`,
		`{"s":"\u00e9 é \ud83d\ude00 😀 \/ / \u0000 \ud800"}`,
		`{ "spaced" :	[ ] , "null":null }`,
		`{"content":[{"type":"hologram","unknown":{"deep":[1,2,{}]}}],"_meta":{"k":1},"task":{},"isError":false}`,
		`{}`,
	} {
		for _, accept := range []string{"application/json", "text/event-stream"} {
			body := send(t, url, key, accept, `{"jsonrpc":"2.0","id":12345678901234567890,"method":"raw","params":{"value":`+value+`}}`)
			if accept == "text/event-stream" {
				body = []byte(messages(body)[0])
			}
			if want := `{"jsonrpc":"2.0","id":12345678901234567890,"result":` + value + `}`; string(body) != want {
				t.Errorf("got %s, want %s", body, want)
			}
		}
	}
}

func open(t testing.TB, url string) (key string) {
	t.Helper()
	r, err := http.Post(url, "application/json", strings.NewReader(initializeBody))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		t.Fatal(err)
	}
	return r.Header.Get("Mcp-Session-Id")
}

func send(t testing.TB, url, key, accept, body string) []byte {
	t.Helper()
	q, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	q.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {accept}, "Mcp-Session-Id": {key}}
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

var sizes = []int{63 << 10, 65 << 10, 1_100_000, 17_000_000, 64_000_000}

func TestSizes(t *testing.T) {
	g, _ := newGateway(t, &server{}, nil)
	url := listen(t, g) + "/mcp"
	key := open(t, url)
	for _, n := range sizes {
		want := `{"jsonrpc":"2.0","id":1,"result":` + string(big(n)) + `}`
		if got := send(t, url, key, "application/json", call("1", "size", fmt.Sprintf(`{"n":%d}`, n))); string(got) != want {
			t.Errorf("JSON of %d bytes: got %d", n, len(got))
		}
		if got := send(t, url, key, "text/event-stream", call("1", "size", fmt.Sprintf(`{"n":%d}`, n))); !bytes.HasSuffix(got, []byte("\ndata: "+want+"\n\n")) {
			t.Errorf("event of %d bytes: got %d", n, len(got))
		}
		if n > 20_000_000 {
			continue // the same again, only slow
		}
		args := `{"x":"` + string(bigText()[:n]) + `"}`
		if got := send(t, url, key, "*/*", call("1", "echo", args)); string(got) != `{"jsonrpc":"2.0","id":1,"result":`+args+`}` {
			t.Errorf("arguments of %d bytes: got %d", n, len(got))
		}
	}
}

func TestSizesOverStdio(t *testing.T) {
	g, _ := newGateway(t, &server{}, nil)
	p := newPipe(t, g)
	p.initialize("2025-11-25")
	for _, n := range sizes {
		p.say(call("1", "size", fmt.Sprintf(`{"n":%d}`, n)))
		if got := p.hear(); got != `{"jsonrpc":"2.0","id":1,"result":`+string(big(n))+`}` {
			t.Errorf("%d bytes: got %d", n, len(got))
		}
	}
	p.close()
}

func TestTheOfficialClientAndALargeResult(t *testing.T) {
	g, _ := newGateway(t, &server{}, nil)
	c := connect(t, transports(t, g)["http"]())
	r, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "size", Arguments: json.RawMessage(`{"n":17000000}`)})
	if err != nil || len(r.Content[0].(*mcp.TextContent).Text) < 16_999_000 {
		t.Errorf("%v", err)
	}
}
