package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/specbox/specbox/wire"
)

// A caller makes one call after another.
type caller interface {
	// call calls the tool for a result of size bytes and returns the length of
	// the one that came.
	call(size int) (int, error)
}

// A reader is a caller whose last answer can be looked at.
type reader interface {
	caller
	answer() wire.Message
}

// meta is the _meta of the modern era.
const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"` + wire.Modern + `","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"bench","version":"1"}}`

const initialize = `{"protocolVersion":"` + legacyVersion + `","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}`

func request(id int, params string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":%s}`, id, params)
}

func params(size int, modern bool) string {
	if modern {
		return fmt.Sprintf(`{"name":"fill","arguments":{"bytes":%d},%s}`, size, meta)
	}
	return fmt.Sprintf(`{"name":"fill","arguments":{"bytes":%d}}`, size)
}

// A pipeClient talks to a server directly.
type pipeClient struct {
	cmd *exec.Cmd
	*wire.Lines

	turns []chan int // id -> the lengths of its answers
	ended chan error
}

// startPipe starts the program and initialises it.
func startPipe(program string, args []string) (*pipeClient, error) {
	p := &pipeClient{cmd: exec.Command(program, args...)}
	p.cmd.Stderr = os.Stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.Lines = wire.NewLines(out, in, in.Close, 0, nil)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	if err = p.Write([]byte(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":` + initialize + `}`)); err == nil {
		_, err = p.Read()
	}
	if err == nil {
		err = p.Write([]byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("begin with the echo server: %w", err), p.close())
	}
	return p, nil
}

func (p *pipeClient) close() error { return errors.Join(p.Close(), p.cmd.Wait()) }

// next reads the next answer.
func (p *pipeClient) next() (wire.Message, error) {
	line, err := p.Read()
	if err != nil {
		return wire.Message{}, err
	}
	return wire.Parse(line)
}

// A single is the only caller of a pipe: it reads the answer itself.
type single struct {
	p    *pipeClient
	last wire.Message
}

func (s *single) call(size int) (int, error) {
	if err := s.p.Write([]byte(request(1, params(size, false)))); err != nil {
		return 0, err
	}
	var err error
	s.last, err = s.p.next()
	return len(s.last.Result), err
}

func (s *single) answer() wire.Message { return s.last }

// One of many callers of a pipe: a goroutine reads for all of them.
type oneOfMany struct {
	p  *pipeClient
	id int
}

// share starts to read for n callers, until unshare.
func (p *pipeClient) share(n int) []caller {
	p.turns = nil
	p.ended = make(chan error, 1)
	var all []caller
	for i := range n {
		p.turns = append(p.turns, make(chan int, 1))
		all = append(all, &oneOfMany{p: p, id: i})
	}
	go func() { // unshare waits for it
		for {
			m, err := p.next()
			if err != nil {
				p.ended <- err
				for _, c := range p.turns {
					close(c)
				}
				return
			}
			id, err := strconv.Atoi(string(m.ID))
			if err != nil || id >= n {
				p.ended <- nil // the ping of unshare
				return
			}
			p.turns[id] <- len(m.Result)
		}
	}()
	return all
}

func (p *pipeClient) unshare() error {
	if err := p.Write([]byte(`{"jsonrpc":"2.0","id":99999,"method":"ping"}`)); err != nil {
		return err
	}
	return <-p.ended
}

func (o *oneOfMany) call(size int) (int, error) {
	if err := o.p.Write([]byte(request(o.id, params(size, false)))); err != nil {
		return 0, err
	}
	n, ok := <-o.p.turns[o.id]
	if !ok {
		return 0, io.ErrUnexpectedEOF
	}
	return n, nil
}

// An httpCaller has a connection of its own to SpecBox. It writes HTTP/1.1 by
// itself: a client library costs more than what is to be measured.
type httpCaller struct {
	conn   net.Conn
	r      *bufio.Reader
	head   string // of a request, up to the value of Content-Length
	modern bool
	out    []byte
	last   wire.Message
}

func (h *httpCaller) answer() wire.Message { return h.last }

// A door is the agent's door of a SpecBox.
type door struct {
	host    string // and port
	session string // of the legacy era
}

// open opens a session at the door.
func open(ctx context.Context, url string) (*door, error) {
	d := &door{host: strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/mcp")}
	for _, body := range []string{
		`{"jsonrpc":"2.0","id":0,"method":"initialize","params":` + initialize + `}`,
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
	} {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
		if err != nil {
			return nil, err
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		if d.session != "" {
			r.Header.Set("Mcp-Session-Id", d.session)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			return nil, err
		}
		_ = resp.Body.Close()
		if resp.StatusCode/100 != 2 {
			return nil, fmt.Errorf("initialize: status %d", resp.StatusCode)
		}
		if d.session == "" {
			d.session = resp.Header.Get("Mcp-Session-Id")
		}
	}
	return d, nil
}

// dial connects one caller.
func (d *door) dial(modern bool) (*httpCaller, error) {
	conn, err := net.Dial("tcp", d.host)
	if err != nil {
		return nil, err
	}
	h := &httpCaller{conn: conn, r: bufio.NewReaderSize(conn, 64<<10), modern: modern}
	h.head = "Host: " + d.host + "\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
	if modern {
		h.head = "POST /mcp HTTP/1.1\r\n" + h.head + "Specbox-Session: bench\r\nMcp-Protocol-Version: " + wire.Modern + "\r\nMcp-Method: tools/call\r\nMcp-Name: fill\r\n"
	} else {
		h.head = "POST /mcp HTTP/1.1\r\n" + h.head + "Mcp-Protocol-Version: " + legacyVersion + "\r\nMcp-Session-Id: " + d.session + "\r\n"
	}
	h.head += "Content-Length: "
	return h, nil
}

func (h *httpCaller) call(size int) (int, error) {
	body := request(1, params(size, h.modern))
	h.out = append(h.out[:0], h.head...)
	h.out = strconv.AppendInt(h.out, int64(len(body)), 10)
	h.out = append(append(h.out, "\r\n\r\n"...), body...)
	if _, err := h.conn.Write(h.out); err != nil {
		return 0, err
	}
	status, err := h.r.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	ok := bytes.HasPrefix(status, []byte("HTTP/1.1 200"))
	said := string(bytes.TrimSpace(status))
	length, chunked := -1, false
	for {
		line, err := h.r.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			break
		}
		chunked = chunked || string(line) == "Transfer-Encoding: chunked"
		if v, found := bytes.CutPrefix(line, []byte("Content-Length: ")); found {
			if length, err = strconv.Atoi(string(v)); err != nil {
				return 0, err
			}
		}
	}
	if length < 0 && ok && chunked {
		return h.stream()
	}
	if length < 0 {
		return 0, fmt.Errorf("%s, and neither length nor chunks", said)
	}
	got := make([]byte, length)
	if _, err := io.ReadFull(h.r, got); err != nil {
		return 0, err
	}
	if !ok {
		return 0, fmt.Errorf("%s: %.300s", said, got)
	}
	h.last, err = wire.Parse(got)
	return len(h.last.Result), err
}

// stream reads the answer out of an event stream, which SpecBox begins when an
// answer is long in coming.
func (h *httpCaller) stream() (int, error) {
	body, err := io.ReadAll(httputil.NewChunkedReader(h.r))
	if err != nil {
		return 0, err
	}
	if _, err := h.r.Discard(len("\r\n")); err != nil { // behind the last chunk
		return 0, err
	}
	for line := range bytes.Lines(body) {
		data, found := bytes.CutPrefix(line, []byte("data: "))
		if !found || len(bytes.TrimSpace(data)) == 0 {
			continue
		}
		if h.last, err = wire.Parse(bytes.TrimSpace(data)); err != nil || h.last.IsResponse() {
			return len(h.last.Result), err
		}
	}
	return 0, fmt.Errorf("an event stream ended without an answer: %.300s", body)
}

// A box is a SpecBox that serves the echo server, in a process of its own.
type box struct {
	cmd   *exec.Cmd
	url   string
	ended chan struct{}
}

// pid returns the process of the box.
func (b *box) pid() int { return b.cmd.Process.Pid }

const stopTimeout = 10 * time.Second

func (b *box) stop() {
	_ = b.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-b.ended:
	case <-time.After(stopTimeout):
		_ = b.cmd.Process.Kill()
		<-b.ended
	}
}
