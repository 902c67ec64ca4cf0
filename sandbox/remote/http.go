package remote

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/specbox/specbox/internal/sse"
	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/wire"
)

const (
	reconnectMin = 100 * time.Millisecond
	reconnectMax = 30 * time.Second
	steady       = 10 * time.Second // a stream that lived so long was a good one
	maxResumes   = 5                // reconnects in a row that go wrong, of a stream that owes an answer
)

// A sending is one POST.
type sending struct {
	m      wire.Message
	modern string // the revision that the message says it is of, if that has no sessions
	// arguments stand in headers too: name -> value
	arguments map[string]string
	ctx       context.Context

	begin sync.Once
	begun chan struct{} // closed when the message was written, or will not be
	end   sync.Once
	done  chan struct{} // closed when the server has taken it, or will not

	unsent  error // set before begun is closed: why it was not written
	refused error // set before done is closed: why a message that has no answer was not taken
}

// written notes that the message was written, or could not be. It reports
// whether that was not known yet.
func (s *sending) written(err error) (first bool) {
	s.begin.Do(func() {
		first = true
		s.unsent = err
		close(s.begun)
	})
	return first
}

func (s *sending) over(err error) {
	s.end.Do(func() {
		s.refused = err
		close(s.done)
	})
}

// post sends one message. What comes of it is delivered later.
func (i *instance) post(raw []byte) error {
	m, err := wire.Parse(raw)
	if err != nil {
		return fmt.Errorf("%s: what is to be sent is no message: %w", i.where, err)
	}
	ctx, cancel := context.WithCancel(i.ctx)
	s := &sending{m: m, modern: modernVersion(m), ctx: ctx, begun: make(chan struct{}), done: make(chan struct{})}
	s.takeHeaders()
	id := string(m.ID)
	if m.Method == "notifications/cancelled" && i.hangUp(string(wire.Get(m.Params, "requestId"))) {
		cancel()
		return nil
	}
	if m.IsRequest() {
		i.mu.Lock()
		i.calls[id] = underWay{cancel, s.modern != ""}
		if m.Method == "initialize" {
			i.initID = id
		}
		i.mu.Unlock()
	}
	started := i.begin(func() {
		defer cancel()
		i.fail(s, i.send(s))
		s.written(nil)
		s.over(nil)
		if m.IsRequest() {
			i.mu.Lock()
			delete(i.calls, id)
			i.mu.Unlock()
		}
	})
	if !started {
		cancel()
		return i.errClosed()
	}
	wait := s.begun
	if !m.IsRequest() {
		wait = s.done
	}
	select {
	case <-wait:
	case <-i.ctx.Done():
		return i.errClosed()
	}
	if m.IsRequest() {
		return s.unsent
	}
	if m.Method == "notifications/cancelled" {
		// The server was told. Nobody reads what it still says to that call.
		i.mu.Lock()
		if call, ok := i.calls[string(wire.Get(m.Params, "requestId"))]; ok {
			call.cancel()
		}
		i.mu.Unlock()
	}
	return s.refused
}

// An underWay is a request that waits for its answer.
type underWay struct {
	cancel context.CancelFunc
	modern bool
}

// hangUp cancels a request of the modern era as that wants it: by closing its
// stream. It reports whether there was such a one.
func (i *instance) hangUp(id string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	call, ok := i.calls[id]
	if ok && call.modern {
		call.cancel()
	}
	return ok && call.modern
}

// modernVersion returns the revision that a message of the modern era is of.
func modernVersion(m wire.Message) string {
	if v := wire.Str(m.Params, "_meta", wire.MetaVersion); v >= wire.Modern {
		return v
	}
	return ""
}

// nameHeaders says in headers what a message says in its body. The legacy era
// does not ask for it, and does not mind.
func (s *sending) nameHeaders(h http.Header) {
	if s.m.Method != "" {
		h.Set("Mcp-Method", s.m.Method)
	}
	if s.modern != "" {
		h.Del("Mcp-Session-Id")
		h.Set("Mcp-Protocol-Version", s.modern)
	}
	for name, value := range s.arguments {
		h.Set("Mcp-Param-"+name, headerText(value))
	}
	name := ""
	switch s.m.Method {
	case "tools/call", "prompts/get":
		name = wire.Str(s.m.Params, "name")
	case "resources/read":
		name = wire.Str(s.m.Params, "uri")
	}
	if name != "" {
		h.Set("Mcp-Name", headerText(name))
	}
}

// headerText encodes what a header cannot hold as it is.
func headerText(s string) string {
	plain := !strings.ContainsFunc(s, func(r rune) bool { return (r < 0x20 && r != '\t') || r > 0x7e })
	if plain && strings.TrimSpace(s) == s && !strings.HasPrefix(s, "=?base64?") {
		return s
	}
	return "=?base64?" + base64.StdEncoding.EncodeToString([]byte(s)) + "?="
}

// takeHeaders takes out of a message which headers its arguments stand in.
func (s *sending) takeHeaders() {
	headers := wire.Get(s.m.Params, "_meta", sandbox.MetaHeaders)
	if headers == nil {
		return
	}
	s.arguments = map[string]string{}
	_ = wire.Members(headers, func(name string, value []byte) bool {
		text := string(value)
		if len(value) > 1 && value[0] == '"' {
			text = wire.Str(headers, name)
		}
		s.arguments[name] = text
		return true
	})
	meta := []byte("{}")
	_ = wire.Members(wire.Get(s.m.Params, "_meta"), func(key string, value []byte) bool {
		if key != sandbox.MetaHeaders {
			meta = wire.Set(meta, value, key)
		}
		return true
	})
	s.m.Raw = wire.Replace(s.m.Raw, meta, "params", "_meta")
}

// send sends a message and delivers what is answered.
func (i *instance) send(s *sending) error {
	i.mu.Lock()
	endpoint := i.endpoint
	i.mu.Unlock()
	if endpoint == nil {
		res, err := i.exchange(s, i.url)
		if err == nil {
			return i.answer(s, res)
		}
		if !i.mayBeLegacy(s, err) || i.openSSE(s.ctx) != nil { // its error would hide the first, which tells more
			return err
		}
		i.mu.Lock()
		endpoint = i.endpoint
		i.mu.Unlock()
	}
	res, err := i.exchange(s, endpoint)
	if err == nil {
		drain(res) // the answer comes on the event stream
	}
	return err
}

// mayBeLegacy reports whether a server that was not told apart refused the
// handshake as one of HTTP with SSE does.
func (i *instance) mayBeLegacy(s *sending, err error) bool {
	var f *fault
	if i.spec.Transport != "" || s.m.Method != "initialize" || !errors.As(err, &f) {
		return false
	}
	return f.status == http.StatusBadRequest || f.status == http.StatusNotFound || f.status == http.StatusMethodNotAllowed
}

// exchange posts a message and returns the response if its status is a success.
func (i *instance) exchange(s *sending, to *url.URL) (*http.Response, error) {
	ctx := httptrace.WithClientTrace(s.ctx, &httptrace.ClientTrace{
		WroteRequest: func(info httptrace.WroteRequestInfo) {
			if info.Err == nil {
				s.written(nil)
			}
		},
	})
	r, err := i.request(ctx, http.MethodPost, to, bytes.NewReader(s.m.Raw))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	s.nameHeaders(r.Header)
	res, err := i.client.Do(r)
	if err != nil {
		return nil, i.fault(err)
	}
	if res.StatusCode/100 != 2 {
		defer drain(res)
		return nil, i.refused(res)
	}
	if id := res.Header.Get("Mcp-Session-Id"); id != "" && s.m.Method == "initialize" {
		i.mu.Lock()
		i.session = id
		i.mu.Unlock()
	}
	return res, nil
}

// fail answers a request with what went wrong. An error of the session ends
// the connection.
func (i *instance) fail(s *sending, err error) {
	if err == nil || i.ctx.Err() != nil || s.ctx.Err() != nil {
		return
	}
	var f *fault
	errors.As(err, &f)
	i.mu.Lock()
	session := i.session
	i.mu.Unlock()
	if f != nil && f.status == http.StatusNotFound && session != "" && s.m.Method != "initialize" {
		i.gone(endedSession)
		s.over(err)
		return
	}
	if s.written(err) { // Write has not returned yet, and says so
		s.over(err)
		return
	}
	if !s.m.IsRequest() {
		s.over(err)
		return
	}
	r := wire.Fail(wire.CodeServer, "%v", err)
	if f != nil && f.reply != nil {
		r = wire.Reply{Error: f.reply}
	}
	i.give(item{raw: bytes.Join(wire.ReplyParts(s.m.ID, r), nil)})
	if f != nil && f.cause != nil {
		i.probe()
	}
}

// probe asks a server whose connection broke whether it still knows the
// session. One that does not, or that is not there, ends the connection.
func (i *instance) probe() {
	const ping = `{"jsonrpc":"2.0","id":"specbox","method":"ping"}` // no call has such an id
	ctx, cancel := context.WithTimeout(i.ctx, dialTimeout)
	defer cancel()
	s := &sending{ctx: ctx, begun: make(chan struct{}), done: make(chan struct{})}
	s.m.Raw = []byte(ping)
	i.mu.Lock()
	session := i.session
	i.mu.Unlock()
	res, err := i.exchange(s, i.url)
	var f *fault
	switch {
	case err == nil:
		drain(res)
	case i.ctx.Err() != nil || !errors.As(err, &f):
	case f.status == http.StatusNotFound && session != "":
		i.gone(endedSession)
	case errors.Is(f.cause, syscall.ECONNREFUSED):
		i.gone(nobodyThere)
	}
}

// How a server that runs elsewhere ends.
const (
	endedSession = "the server has ended the session (404)"
	nobodyThere  = "the server is not there any more (connection refused)"
)

// answer delivers what a response holds.
func (i *instance) answer(s *sending, res *http.Response) error {
	kind := mediaType(res.Header)
	switch {
	case !s.m.IsRequest(): // whatever it is, it was taken
		drain(res)
		i.taken(s)
		return nil
	case kind == "text/event-stream":
		return i.stream(s, res)
	case res.StatusCode != http.StatusOK:
		drain(res)
		return &fault{text: fmt.Sprintf("%s: it answered %s, and gave no result", i.where, res.Status)}
	case kind != "application/json":
		defer drain(res)
		return i.strange(res, nil)
	}
	defer res.Body.Close()
	raw, err := i.body(res.Body)
	var long *wire.TooLongError
	switch {
	case errors.As(err, &long):
		i.give(item{err: long})
		if string(long.Answers()) == string(s.m.ID) {
			return nil // that fails the call
		}
		return i.tooLong()
	case err != nil:
		return i.fault(err)
	case !isMessage(raw):
		return i.strange(res, raw)
	}
	i.deliver(raw)
	if !answers(raw, s.m.ID) {
		return &fault{text: i.where + ": it answered with a message that is no answer to the request", status: res.StatusCode}
	}
	return nil
}

// tooLong is the error of a request whose answer was dropped, for the case that
// what is left of that does not tell which request it answered.
func (i *instance) tooLong() *fault {
	return &fault{text: fmt.Sprintf("%s: its answer is over the limit of %d bytes", i.where, i.limit)}
}

// answers reports whether raw is the answer to the request of that id, or a batch
// with it.
func answers(raw, id []byte) bool {
	m, err := wire.Parse(raw)
	found := err == nil && m.IsResponse() && string(m.ID) == string(id)
	if err != nil {
		_ = wire.Each(raw, func(elem []byte) bool { // isMessage holds
			found = answers(elem, id)
			return !found
		})
	}
	return found
}

// isMessage reports whether raw is a message, or a batch of them, and whole.
func isMessage(raw []byte) bool {
	_, err := wire.Parse(raw)
	if err != nil {
		_, err = wire.Elements(raw)
	}
	return err == nil
}

// body reads a message that is a whole body.
func (i *instance) body(r io.Reader) ([]byte, error) {
	raw, err := io.ReadAll(io.LimitReader(r, i.limit+1))
	if err != nil || int64(len(raw)) <= i.limit {
		return bytes.TrimSpace(raw), err
	}
	const ends = 4 << 10
	size := int64(len(raw))
	long := &wire.TooLongError{Limit: i.limit, Head: bytes.Clone(raw[:min(len(raw), ends)])}
	tail := bytes.Clone(raw[max(0, len(raw)-ends):])
	buf := make([]byte, 32<<10)
	for err == nil {
		var n int
		n, err = r.Read(buf)
		size += int64(n)
		tail = append(tail, buf[:n]...)
		tail = append(tail[:0], tail[max(0, len(tail)-ends):]...)
	}
	long.Size, long.Tail = size, tail
	return nil, long
}

// taken does what follows when the server has taken a message: after the
// handshake it may speak on its own accord.
func (i *instance) taken(s *sending) {
	if s.m.Method != "notifications/initialized" {
		return
	}
	heard := make(chan struct{})
	if !i.begin(func() { i.listen(sync.OnceFunc(func() { close(heard) })) }) {
		return
	}
	// Some servers drop what they would say there while nobody listens, such as
	// a question of the first call.
	t := time.NewTimer(listenPatience)
	defer t.Stop()
	select {
	case <-heard:
	case <-t.C:
	case <-i.ctx.Done():
	}
}

// listenPatience is how long a first call waits for the event stream.
const listenPatience = time.Second

// stream delivers the events of the response to a POST until it holds the
// answer and ends. One that breaks off before is resumed where the server can.
func (i *instance) stream(s *sending, res *http.Response) error {
	var at position
	answered, dropped := false, false
	failures := 0
	for {
		err := i.events(res, &at, func(m wire.Message) {
			dropped = dropped || m.Raw == nil // over the limit: the answer, rather than anything else
			answered = answered || (m.IsResponse() || m.Raw == nil) && string(m.ID) == string(s.m.ID)
		})
		switch {
		case answered:
			return nil
		case dropped:
			return i.tooLong()
		}
		if at.id == "" {
			if err == nil {
				err = io.EOF
			}
			return i.fault(err)
		}
		for {
			if !pause(s.ctx, max(at.retry, reconnectMin<<min(failures, 8))) {
				return nil
			}
			if res, err = i.get(s.ctx, at.id); err == nil {
				failures = 0
				break
			}
			var f *fault
			if errors.As(err, &f) && f.status/100 == 4 {
				return err
			}
			if failures++; failures >= maxResumes {
				return err
			}
		}
	}
}

// A position is where a stream was left.
type position struct {
	id    string
	retry time.Duration
}

// events delivers the messages of an event stream until it ends, and calls see
// with each. It returns nil for an end in good order.
func (i *instance) events(res *http.Response, at *position, see func(wire.Message)) error {
	defer res.Body.Close()
	r := sse.NewReader(res.Body, i.limit)
	for {
		e, err := r.Next()
		if id := r.LastID(); id != "" {
			at.id = id
		}
		at.retry = r.Retry()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if m, ok := i.event(e); ok {
			see(m)
		}
	}
}

// event delivers the message of an event, if it holds one. Of one over the
// limit the Message has at most the ID of the request that it answers.
func (i *instance) event(e sse.Event) (wire.Message, bool) {
	if e.Type != "" && e.Type != "message" {
		return wire.Message{}, false
	}
	if e.Size > 0 {
		long := &wire.TooLongError{Size: e.Size, Limit: i.limit, Head: e.Head, Tail: e.Tail}
		i.give(item{err: long})
		return wire.Message{ID: long.Answers()}, true
	}
	raw := bytes.TrimSpace(e.Data)
	if !isMessage(raw) { // the first event of a stream may be empty, the last one may be cut
		return wire.Message{}, false
	}
	m, _ := wire.Parse(raw) // a batch has no envelope
	i.deliver(raw)
	return m, true
}

// get opens an event stream, after the event with that id if it is not "".
func (i *instance) get(ctx context.Context, after string) (*http.Response, error) {
	r, err := i.request(ctx, http.MethodGet, i.url, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", "text/event-stream")
	if after != "" {
		r.Header.Set("Last-Event-Id", after)
	}
	res, err := i.client.Do(r)
	if err != nil {
		return nil, i.fault(err)
	}
	if res.StatusCode != http.StatusOK {
		defer drain(res)
		return nil, i.refused(res)
	}
	if mediaType(res.Header) != "text/event-stream" {
		defer drain(res)
		return nil, i.strange(res, nil)
	}
	return res, nil
}

// listen keeps the stream open on which the server speaks on its own accord,
// if it offers one.
func (i *instance) listen(settled func()) {
	defer settled()
	var at position
	opened := false
	refused := 0 // in a row
	delay := reconnectMin
	for {
		res, err := i.get(i.ctx, at.id)
		settled()
		var f *fault
		switch {
		case i.ctx.Err() != nil:
			if err == nil {
				_ = res.Body.Close()
			}
			return
		case errors.As(err, &f) && f.status == http.StatusNotFound && opened:
			i.gone(endedSession)
			return
		case errors.As(err, &f) && (f.status/100 == 4 || f.status == http.StatusNotImplemented || f.status == http.StatusOK):
			return // it offers none
		case errors.As(err, &f) && errors.Is(f.cause, syscall.ECONNREFUSED):
			if refused++; refused > 2 { // it does not come back soon, and if, without the session
				i.gone(nobodyThere)
				return
			}
		case err == nil:
			refused = 0
			begun := time.Now()
			heard := false
			opened = true
			_ = i.events(res, &at, func(wire.Message) { heard = true }) // it ends one way or another
			if heard || time.Since(begun) > steady {
				delay = reconnectMin
			}
		}
		if !pause(i.ctx, max(at.retry, delay)) {
			return
		}
		delay = min(2*delay, reconnectMax)
	}
}

// pause waits, and reports whether ctx still lives then.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
