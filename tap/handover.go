package tap

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"

	"github.com/specbox/specbox/wire"
)

// maxLine bounds a line of tokens that are handed over.
const maxLine = 1 << 20

// handOver serves POST /sessions/KEY/stream, for frameworks that have the
// model's stream in their hands. The body is text/plain, all of it the model's
// words, or lines of JSON, each an object with one of
//
//	{"system": TEXT}                     the system's words
//	{"prompt": TEXT}                     the user's words
//	{"result": TEXT, "id": ID}           what the call ID returned
//	{"tools": [{"name", "description"}]} what the model may call
//	{"model": NAME}
//	{"begin": true}                      the request is complete; what the model says says so too
//	{"text": TEXT}                       the model says
//	{"reasoning": TEXT}                  the model thinks
//	{"tool": NAME, "id": ID}             a call begins
//	{"arguments": TEXT, "id": ID}        a piece of the arguments of the call ID, or, without it, of the last one
//	{"end": true}                        the turn is over; the next line begins another
//
// A line counts as soon as it has come, so that the body may be written while the
// model writes. The answer says how many lines there were. A line that is none of
// these ends the request with status 400; those before it have counted.
func (p *Proxy) handOver(w http.ResponseWriter, r *http.Request, rt route, tenant string) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		refuse(w, rt, http.StatusMethodNotAllowed, "tokens are handed over with POST")
		return
	}
	rt.api = Stream
	x := p.open(rt, tenant, func(x *exchange) reader { return newTurn(x) })
	f := lines
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind == "text/plain" {
		f = plain
	}
	x.listen(f)
	defer x.end()
	n, err := 0, error(nil)
	if f == plain {
		err = x.copy(r.Body)
	} else {
		n, err = x.copyLines(r.Body)
	}
	if err != nil {
		refuse(w, rt, http.StatusBadRequest, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, "{\"lines\":%d}\n", n) // a client that has left does not read it
}

// copy hands plain text over as it comes.
func (x *exchange) copy(r io.Reader) error {
	buf := make([]byte, chunk)
	for {
		n, err := r.Read(buf)
		x.hold(buf[:n])
		x.p.lookers.look(x)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("the text came to no good end: %w", err)
		}
	}
}

// copyLines hands lines over as they come, and returns how many there were.
func (x *exchange) copyLines(r io.Reader) (n int, err error) {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, 4<<10), maxLine)
	for s.Scan() {
		line := bytes.TrimSpace(s.Bytes())
		if len(line) == 0 {
			continue
		}
		n++
		if kind, _ := lineOf(line); kind == "" {
			return n, fmt.Errorf("line %d is no JSON object with one of system, prompt, result, tools, model, begin, text, reasoning, tool, arguments and end, each with a value of its kind", n)
		}
		x.hold(append(line, '\n'))
		x.p.lookers.look(x)
	}
	if err := s.Err(); errors.Is(err, bufio.ErrTooLong) {
		return n, fmt.Errorf("line %d has more than %d bytes: hand over less at once", n+1, maxLine)
	} else if err != nil {
		return n, fmt.Errorf("the lines came to no good end: %w", err)
	}
	return n, nil
}

// lineOf returns what a line brings, and its value; "" if it is none.
func lineOf(line []byte) (kind string, value []byte) {
	if !wire.Valid(line) || !isObject(line) {
		return "", nil
	}
	for _, name := range []string{"text", "reasoning", "arguments", "tool", "prompt", "system", "result", "model"} {
		if v := wire.Get(line, name); isString(v) {
			return name, v
		}
	}
	if v := wire.Get(line, "tools"); isArray(v) {
		return "tools", v
	}
	for _, name := range []string{"begin", "end"} {
		if string(wire.Get(line, name)) == "true" {
			return name, nil
		}
	}
	return "", nil
}

// A turn is what has come of a request and its answer.
type turn struct {
	x      *exchange
	req    *Request
	watch  Watcher // nil before the answer begins, or if nobody wants to know
	begun  bool
	answer answer
}

func newTurn(x *exchange) *turn {
	t := &turn{x: x}
	t.reset()
	return t
}

func (t *turn) feed(f form, b []byte) {
	if f == plain {
		t.begin()
		t.tell(Delta{Kind: Text, Text: b})
		return
	}
	for line := range bytes.Lines(b) { // each was held as a whole
		t.line(line)
	}
}

func (t *turn) lose(form) {} // lines are lost as a whole, and text has no parts

func (t *turn) finish(f form) { t.end(f == plain) }

// reset makes a turn ready for the next request.
func (t *turn) reset() {
	x := t.x
	conversation := x.p.memory.session(x.tenant, x.route.key)
	*t = turn{x: x, req: &Request{Tenant: x.tenant, Key: x.route.key, API: Stream, Conversation: conversation.id, Continued: conversation.continued}}
	t.answer = answer{tell: t.tell, called: func(string) {}}
}

func (t *turn) tell(d Delta) {
	if t.watch != nil {
		t.watch.Delta(d)
	}
}

// begin tells of the request, when the answer begins.
func (t *turn) begin() {
	if t.begun {
		return
	}
	t.begun = true
	if t.x.p.cfg.Observer != nil {
		t.watch = t.x.p.cfg.Observer.Observe(t.req)
	}
}

// end ends a turn that has begun.
func (t *turn) end(whole bool) {
	if !t.begun && (len(t.req.New) > 0 || len(t.req.Tools) > 0) {
		t.begin()
	}
	if !t.begun {
		return
	}
	if whole {
		t.answer.complete()
	}
	if t.watch != nil {
		t.watch.End()
	}
	t.reset()
}

// line takes one line, which was found to be sound.
func (t *turn) line(line []byte) {
	kind, v := lineOf(line)
	switch kind {
	case "end":
		t.end(true)
		return
	case "system", "prompt", "result", "tools", "model":
		if t.begun { // the turn before was not ended
			t.end(true)
		}
	default:
		t.begin()
	}
	switch kind {
	case "system":
		t.req.New = append(t.req.New, Message{Role: "system", Text: clip(text(v))})
	case "prompt":
		t.req.New = append(t.req.New, Message{Role: "user", Text: clip(text(v))})
	case "result":
		t.req.New = append(t.req.New, Message{Role: "tool", Text: clip(text(v)), CallID: text(wire.Get(line, "id"))})
	case "tools":
		t.req.Tools = toolList(v)
	case "model":
		t.req.Model = text(v)
	case "text":
		t.answer.say(Text, v)
	case "reasoning":
		t.answer.say(Reasoning, v)
	case "tool":
		t.answer.begin(0, strconv.Itoa(len(t.answer.calls)), wire.Get(line, "id"), v)
	case "arguments":
		t.answer.fill(t.answer.byID(text(wire.Get(line, "id"))), v)
	}
}

// byID returns the call of an id, or the last one.
func (a *answer) byID(id string) *toolCall {
	for i := len(a.calls) - 1; i >= 0; i-- {
		if id == "" || a.calls[i].id == id {
			return a.calls[i]
		}
	}
	return nil
}
