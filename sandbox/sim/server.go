package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/specbox/specbox/wire"
)

// serve reads what the client sends. Each request has a goroutine of its own.
func (i *instance) serve() {
	for {
		select {
		case <-i.ctx.Done():
			return
		case raw := <-i.toServer:
			i.running()
			m, err := wire.Parse(raw)
			if err != nil {
				continue
			}
			switch {
			case m.IsRequest():
				ctx, cancel := context.WithCancel(i.ctx)
				i.mu.Lock()
				i.calls++
				i.pending[string(m.ID)] = cancel
				i.mu.Unlock()
				i.work.Go(func() { i.request(ctx, m) })
			case m.Method == "notifications/initialized" && i.life.Greeted != nil:
				i.work.Go(func() { i.life.Greeted(i.ctx, &Peer{i: i}) })
			case m.Method == "notifications/cancelled":
				i.mu.Lock()
				if cancel := i.pending[string(wire.Get(m.Params, "requestId"))]; cancel != nil {
					cancel()
				}
				i.mu.Unlock()
			case m.IsResponse():
				i.mu.Lock()
				if c := i.asked[string(m.ID)]; c != nil {
					c <- m // has room for the one answer
					delete(i.asked, string(m.ID))
				}
				i.mu.Unlock()
			}
		}
	}
}

func (i *instance) request(ctx context.Context, m wire.Message) {
	p := &Peer{i: i, token: wire.Get(m.Params, "_meta", "progressToken")}
	defer func() {
		i.mu.Lock()
		i.pending[string(m.ID)]()
		delete(i.pending, string(m.ID))
		i.mu.Unlock()
	}()
	var r wire.Reply
	switch {
	case m.Method == "initialize" && i.life.Modern:
		r = wire.Fail(wire.CodeVersion, "this server speaks revision %s alone", wire.Modern)
	case m.Method == "initialize":
		if i.b.cores.run(ctx, i.job, i.life.Handshake, nil) != nil {
			return
		}
		if i.life.Mute {
			<-ctx.Done()
			return
		}
		r.Result = i.life.Init
		if r.Result == nil {
			r.Result = []byte(DefaultInit)
			if v := wire.Get(m.Params, "protocolVersion"); v != nil {
				r.Result = wire.Set(r.Result, v, "protocolVersion")
			}
		}
	case m.Method == "ping":
		r.Result = []byte("{}")
	case i.life.Serve != nil:
		r = i.life.Serve(ctx, p, m)
	default:
		r = Tools(ctx, p, m)
	}
	if ctx.Err() == nil { // a cancelled request has no answer
		p.send(wire.ReplyParts(m.ID, r)...)
	}
}

// A Peer is what a server that answers a request may use. It is safe for
// concurrent use.
type Peer struct {
	i     *instance
	token []byte
}

// ID returns the id of the instance.
func (p *Peer) ID() string { return p.i.id }

// Server returns the name of the server.
func (p *Peer) Server() string { return p.i.server }

// Die ends the server as a crash does.
func (p *Peer) Die(exit string) { p.i.die(exit) }

// Stderr returns the server's stderr.
func (p *Peer) Stderr() io.Writer { return p.i.stderr }

// Say prints a line on the server's stderr.
func (p *Peer) Say(line string) { say(p.i.stderr, line) }

// Notify sends a notification. The params are JSON.
func (p *Peer) Notify(method string, params []byte) {
	p.send(wire.NotificationParts(method, params)...)
}

// Progress tells the caller of the request how far it is, if it asked for that.
func (p *Peer) Progress(done, total int) {
	if p.token != nil {
		p.Notify("notifications/progress", fmt.Appendf(nil, `{"progressToken":%s,"progress":%d,"total":%d}`, p.token, done, total))
	}
}

// Ask sends a request to the client and waits for its answer.
func (p *Peer) Ask(ctx context.Context, method string, params []byte) (wire.Reply, error) {
	answer := make(chan wire.Message, 1)
	p.i.mu.Lock()
	p.i.last++
	id := "s" + strconv.FormatInt(p.i.last, 10)
	quoted := wire.Quote(id)
	p.i.asked[string(quoted)] = answer
	p.i.mu.Unlock()
	defer func() {
		p.i.mu.Lock()
		delete(p.i.asked, string(quoted))
		p.i.mu.Unlock()
	}()
	p.send(wire.RequestParts(quoted, method, params)...)
	select {
	case m := <-answer:
		return wire.Reply{Result: m.Result, Error: m.Error}, nil
	case <-ctx.Done():
		return wire.Reply{}, context.Cause(ctx)
	}
}

func (p *Peer) send(parts ...[]byte) {
	var raw []byte
	for _, part := range parts {
		raw = append(raw, part...)
	}
	p.i.running()
	select {
	case p.i.toClient <- raw:
	case <-p.i.ctx.Done():
	case <-p.i.cut:
	}
}

// ToolsList is the result of tools/list of [Tools].
const ToolsList = `{"tools":[` +
	`{"name":"echo","description":"returns its arguments","inputSchema":{"type":"object"}},` +
	`{"name":"count","description":"counts its calls","inputSchema":{"type":"object"}},` +
	`{"name":"whoami","description":"names the sandbox","inputSchema":{"type":"object"}},` +
	`{"name":"sleep","description":"takes ms milliseconds, with progress at each tenth","inputSchema":{"type":"object"}},` +
	`{"name":"crash","description":"ends the server","inputSchema":{"type":"object"}},` +
	`{"name":"ask","description":"sends the client the request method with params and returns its answer","inputSchema":{"type":"object"}},` +
	`{"name":"emit","description":"sends the client the notification method with params","inputSchema":{"type":"object"}}]}`

// Tools is a small MCP server: it answers tools/list with [ToolsList], and
// tools/call of these tools.
func Tools(ctx context.Context, p *Peer, m wire.Message) wire.Reply {
	switch m.Method {
	case "tools/list":
		return wire.Reply{Result: []byte(ToolsList)}
	case "tools/call":
		return call(ctx, p, wire.Str(m.Params, "name"), wire.Get(m.Params, "arguments"))
	case "logging/setLevel":
		return wire.Reply{Result: []byte("{}")}
	}
	return wire.Fail(wire.CodeMethodNotFound, "no method %s", m.Method)
}

func call(ctx context.Context, p *Peer, tool string, args []byte) wire.Reply {
	switch tool {
	case "echo":
		return Text(string(args))
	case "count":
		p.i.mu.Lock()
		p.i.state++
		n := p.i.state
		p.i.mu.Unlock()
		return Text(strconv.Itoa(n))
	case "whoami":
		return Text(p.i.id)
	case "sleep":
		ms, _ := strconv.Atoi(string(wire.Get(args, "ms")))
		for step := range 10 {
			if pause(ctx, time.Duration(ms)*time.Millisecond/10) != nil {
				break
			}
			p.Progress(step+1, 10)
		}
		return Text("slept")
	case "crash":
		p.Die("exit status 2")
		return wire.Reply{}
	case "ask":
		r, err := p.Ask(ctx, wire.Str(args, "method"), wire.Get(args, "params"))
		if err != nil {
			return wire.Fail(wire.CodeInternal, "%v", err)
		}
		if r.Error != nil {
			return Text(string(r.Error))
		}
		return Text(string(r.Result))
	case "emit":
		p.Notify(wire.Str(args, "method"), wire.Get(args, "params"))
		return Text("sent")
	}
	return wire.Fail(wire.CodeInvalidParams, "no tool %q", tool)
}

// Text returns the result of a tool that says s.
func Text(s string) wire.Reply {
	quoted, err := json.Marshal(s)
	if err != nil {
		return wire.Fail(wire.CodeInternal, "%v", err)
	}
	return wire.Reply{Result: fmt.Appendf(nil, `{"content":[{"type":"text","text":%s}]}`, quoted)}
}
