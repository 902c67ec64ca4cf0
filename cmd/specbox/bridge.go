package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"time"

	"github.com/specbox/specbox/internal/sse"
)

const (
	// dialPatience is how long a message waits for a specbox that does not
	// listen: long enough for its restart, shorter than clients wait.
	dialPatience = 10 * time.Second
	// lastWords is how long answers may still come when the client has closed
	// its side.
	lastWords = 10 * time.Second
	// retry is the pause between two attempts to reach a specbox.
	retry = 250 * time.Millisecond
)

// A bridge joins an agent that speaks over standard input and output to an MCP
// endpoint that speaks Streamable HTTP. Messages pass as they are. When the
// endpoint no longer knows the session, because it was restarted, the bridge
// opens a new one with the agent's own initialize, unseen by the agent.
type bridge struct {
	url   string
	token string        // "" is none
	wait  time.Duration // for an endpoint that does not listen
	http  *http.Client
	log   *slog.Logger
	out   chan []byte // messages to the agent
	life  context.Context
	end   context.CancelCauseFunc
	work  sync.WaitGroup // messages under way, and the stream

	renew   chan struct{} // held by whoever opens a session
	mu      sync.Mutex
	session session
	opener  []byte             // the agent's initialize
	silence context.CancelFunc // ends the stream of what belongs to no request; nil before there is one
}

// A session is what must be sent along with every message.
type session struct {
	id      string
	version string
}

// An envelope is what the bridge looks at of a message.
type envelope struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
}

func (e envelope) request() bool { return e.Method != "" && len(e.ID) > 0 }

// newBridge returns a bridge to url. Its run may be called once.
func newBridge(url, token string, log *slog.Logger) *bridge {
	return &bridge{
		url: url, token: token, log: log, wait: dialPatience,
		http: &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone()},
		out:  make(chan []byte), renew: make(chan struct{}, 1),
	}
}

// run passes messages until in ends or ctx does. It returns nil if in ended.
// Only a read of in that blocks is left behind.
func (b *bridge) run(ctx context.Context, in io.Reader, out io.Writer) error {
	b.life, b.end = context.WithCancelCause(ctx)
	defer b.http.CloseIdleConnections()
	quiet := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() { b.write(out, quiet) })
	err := b.passAll(in)
	b.hangUp()
	b.end(nil)
	b.work.Wait()
	close(quiet)
	writer.Wait()
	return err
}

// passAll passes on what the agent writes, in its order, and waits for the
// answers.
func (b *bridge) passAll(in io.Reader) error {
	lines, failed := make(chan []byte), make(chan error, 1)
	go func() {
		defer close(lines)
		failed <- b.read(in, lines)
	}()
	for {
		select {
		case line, more := <-lines:
			if !more {
				b.drain()
				return <-failed
			}
			b.pass(line)
		case <-b.life.Done():
			return context.Cause(b.life)
		}
	}
}

// read reads the messages of the agent until the end.
func (b *bridge) read(in io.Reader, lines chan<- []byte) error {
	r := bufio.NewReader(in)
	for {
		line, err := r.ReadBytes('\n')
		if line = bytes.TrimSpace(line); len(line) > 0 {
			select {
			case lines <- line:
			case <-b.life.Done():
				return nil
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read from the client: %w", err)
		}
	}
}

// drain waits, within a bound, for the answers that are under way.
func (b *bridge) drain() {
	b.endStream()
	done := make(chan struct{})
	go func() { b.work.Wait(); close(done) }()
	select {
	case <-done:
	case <-b.life.Done():
	case <-time.After(lastWords):
	}
}

// endStream ends the stream of what belongs to no request.
func (b *bridge) endStream() { b.setStream(nil) }

// setStream puts a stream, which end ends, in place of the one that is there.
func (b *bridge) setStream(end context.CancelFunc) {
	b.mu.Lock()
	old := b.silence
	b.silence = end
	b.mu.Unlock()
	if old != nil {
		old()
	}
}

// hangUp ends the session on the far side.
func (b *bridge) hangUp() {
	s := b.current()
	if s.id == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.life), time.Second)
	defer cancel()
	req, err := b.newRequest(ctx, http.MethodDelete, nil, s)
	if err != nil {
		return
	}
	if resp, err := b.http.Do(req); err == nil {
		resp.Body.Close()
	}
}

func (b *bridge) current() session {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.session
}

// write writes messages to the agent, one a line, until quiet is closed.
func (b *bridge) write(w io.Writer, quiet <-chan struct{}) {
	for {
		select {
		case m := <-b.out:
			if _, err := w.Write(append(m, '\n')); err != nil {
				b.end(fmt.Errorf("write to the client: %w", err))
				return
			}
		case <-quiet:
			return
		}
	}
}

// send hands one message to the agent. Line breaks between its tokens, the only
// place where JSON has them, become spaces.
func (b *bridge) send(m []byte) {
	m = bytes.TrimSpace(m)
	if len(m) == 0 {
		return
	}
	line := make([]byte, 0, len(m)+1)
	for _, c := range m {
		if c == '\n' || c == '\r' {
			c = ' '
		}
		line = append(line, c)
	}
	select {
	case b.out <- line:
	case <-b.life.Done():
	}
}

// fail answers the request id, if it is one, with an error.
func (b *bridge) fail(e envelope, code int, message string) {
	if !e.request() {
		b.log.Warn("a message did not arrive", "method", e.Method, "why", message)
		return
	}
	text, err := json.Marshal(message)
	if err != nil {
		return
	}
	b.send(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":%s}}`, e.ID, code, text))
}

// pass passes one message of the agent on. It returns when the message is on
// its way, and for those that have no answer when it has arrived.
func (b *bridge) pass(line []byte) {
	var e envelope
	if err := json.Unmarshal(line, &e); err != nil && line[0] != '[' {
		b.send(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":%q}}`, "not JSON: "+err.Error()))
		return
	}
	switch {
	case e.Method == "initialize":
		b.mu.Lock()
		b.opener = line
		b.mu.Unlock()
		b.post(line, e, session{}, func() {})
	case !e.request():
		b.post(line, e, b.current(), func() {})
		if e.Method == "notifications/initialized" {
			b.listen()
		}
	default:
		sent := make(chan struct{})
		var once sync.Once
		s := b.current()
		b.work.Go(func() {
			wrote := func() { once.Do(func() { close(sent) }) }
			defer wrote()
			b.post(line, e, s, wrote)
		})
		<-sent // a cancellation must not overtake its request
	}
}

// newRequest makes an HTTP request that belongs to s.
func (b *bridge) newRequest(ctx context.Context, method string, body []byte, s session) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, b.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if b.token != "" {
		req.Header.Set("Authorization", "Bearer "+b.token)
	}
	if s.id != "" {
		req.Header.Set("Mcp-Session-Id", s.id)
	}
	if s.version != "" {
		req.Header.Set("Mcp-Protocol-Version", s.version)
	}
	req.Header.Set("Accept", "application/json, text/event-stream")
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	return req, nil
}

// post sends one message within s and passes what is answered to the agent.
// sent is called when the message was written.
func (b *bridge) post(line []byte, e envelope, s session, sent func()) {
	resp, err := b.deliver(line, s, sent)
	if err == nil && resp.StatusCode == http.StatusNotFound && s.id != "" {
		resp.Body.Close()
		if s, err = b.reopen(s); err == nil {
			resp, err = b.deliver(line, s, sent)
		}
	}
	switch {
	case err != nil && b.life.Err() != nil:
		b.fail(e, -32000, "it was not answered before the client closed its output, or the bridge was stopped")
		return
	case err != nil:
		b.fail(e, -32000, fmt.Sprintf("specbox at %s does not answer: %v: is it running? specbox serve -f FILE starts it", b.url, err))
		return
	}
	defer resp.Body.Close()
	if err := b.answer(resp, e); err != nil {
		b.fail(e, -32000, fmt.Sprintf("specbox at %s ended in the middle of its answer: %v", b.url, err))
	}
}

// deliver sends one message. It waits a while for an endpoint that does not
// listen, because then nothing has been sent.
func (b *bridge) deliver(line []byte, s session, sent func()) (*http.Response, error) {
	ctx := httptrace.WithClientTrace(b.life, &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { sent() }})
	deadline := time.Now().Add(b.wait)
	for {
		req, err := b.newRequest(ctx, http.MethodPost, line, s)
		if err != nil {
			return nil, err
		}
		resp, err := b.http.Do(req)
		var op *net.OpError
		if err == nil || !errors.As(err, &op) || op.Op != "dial" || time.Now().After(deadline) {
			return resp, err
		}
		select {
		case <-time.After(retry):
		case <-b.life.Done():
			return nil, b.life.Err()
		}
	}
}

// answer passes the answer to a message to the agent.
func (b *bridge) answer(resp *http.Response, e envelope) error {
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil {
		kind = ""
	}
	switch {
	case resp.StatusCode == http.StatusAccepted || resp.StatusCode == http.StatusNoContent:
		return nil
	case resp.StatusCode != http.StatusOK:
		b.refused(resp, e)
		return nil
	}
	answered := false
	take := func(m []byte) {
		var reply envelope
		if json.Unmarshal(m, &reply) == nil && reply.Method == "" {
			answered = true
			if e.Method == "initialize" {
				b.opened(resp.Header.Get("Mcp-Session-Id"), m)
			}
		}
		b.send(m)
	}
	if kind == "text/event-stream" {
		if _, err := readEvents(resp.Body, take); err != nil && !answered {
			return err
		}
		return nil // an answer that is missing was cancelled
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	take(body)
	return nil
}

// refused tells the agent why the endpoint did not take its message.
func (b *bridge) refused(resp *http.Response, e envelope) {
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20)) // what can be read of it explains
	var known struct {
		Error struct {
			Code    int    `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	switch {
	case resp.StatusCode == http.StatusUnauthorized:
		b.fail(e, -32001, fmt.Sprintf("specbox at %s wants a token: set SPECBOX_TOKEN in the environment of specbox stdio", b.url))
	case json.Unmarshal(body, &known) == nil && known.Error.Message != "":
		b.fail(e, known.Error.Code, known.Error.Message)
	default:
		b.fail(e, -32000, fmt.Sprintf("%s answered %s: %s", b.url, resp.Status, short(string(body), 200)))
	}
}

// opened remembers the session that reply, to initialize, has opened.
func (b *bridge) opened(id string, reply []byte) session {
	var r struct {
		Result struct {
			Version string `json:"protocolVersion"`
		} `json:"result"`
	}
	if err := json.Unmarshal(reply, &r); err != nil {
		b.log.Warn("the answer to initialize has no version", "err", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.session = session{id: id, version: r.Result.Version}
	return b.session
}

// reopen opens a new session in place of old, once for all that ask.
func (b *bridge) reopen(old session) (session, error) {
	select {
	case b.renew <- struct{}{}:
		defer func() { <-b.renew }()
	case <-b.life.Done():
		return old, b.life.Err()
	}
	if now := b.current(); now.id != old.id {
		return now, nil
	}
	b.log.Info("the session is no longer known; opening a new one", "url", b.url)
	b.endStream()
	b.mu.Lock()
	opener := b.opener
	b.mu.Unlock()
	resp, err := b.deliver(opener, session{}, func() {})
	if err != nil {
		return old, err
	}
	defer resp.Body.Close()
	var reply []byte
	if resp.StatusCode == http.StatusOK && strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		_, err = readEvents(resp.Body, func(m []byte) { reply = m })
	} else if resp.StatusCode == http.StatusOK {
		reply, err = io.ReadAll(resp.Body)
	} else {
		err = errors.New(resp.Status)
	}
	if err != nil {
		return old, err
	}
	s := b.opened(resp.Header.Get("Mcp-Session-Id"), reply)
	ready, err := b.deliver([]byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`), s, func() {})
	if err != nil {
		return s, err
	}
	ready.Body.Close()
	b.listen()
	return s, nil
}

// listen passes on what belongs to no request, until the session ends.
func (b *bridge) listen() {
	ctx, end := context.WithCancel(b.life)
	b.setStream(end)
	s := b.current()
	b.work.Go(func() {
		defer end()
		last := ""
		for ctx.Err() == nil {
			again, id := b.stream(ctx, s, last)
			if !again {
				return
			}
			last = id
			select {
			case <-time.After(retry):
			case <-ctx.Done():
			}
		}
	})
}

// readEvents hands the data of each event of a stream to on. It returns the id
// of the last one that had an id, and why the stream ended before its end.
func readEvents(r io.Reader, on func(data []byte)) (last string, err error) {
	events := sse.NewReader(r, 0)
	for {
		e, err := events.Next()
		if errors.Is(err, io.EOF) {
			return events.LastID(), nil
		}
		if err != nil {
			return events.LastID(), err
		}
		on(e.Data)
	}
}

// stream reads the stream of s once, after the event called last. It reports
// whether to try again, after which event.
func (b *bridge) stream(ctx context.Context, s session, last string) (again bool, id string) {
	req, err := b.newRequest(ctx, http.MethodGet, nil, s)
	if err != nil {
		return false, last
	}
	req.Header.Set("Accept", "text/event-stream")
	if last != "" {
		req.Header.Set("Last-Event-Id", last)
	}
	resp, err := b.http.Do(req)
	if err != nil {
		return true, last
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return false, last // not offered, or the session is gone: the next message finds out
	}
	id, err = readEvents(resp.Body, b.send)
	if err != nil && ctx.Err() == nil {
		b.log.Debug("the stream broke", "err", err)
	}
	if id == "" {
		id = last
	}
	return true, id
}
