// Package remote is the backend of servers that run elsewhere, behind a URL:
// Streamable HTTP, and the HTTP with SSE of revision 2024-11-05.
//
// Its laws:
//
//   - A message passes as the bytes it came in.
//   - A request that was written is answered: by the server, or by an error
//     that says what is wrong with the connection.
//   - The headers of a server, which may be secrets, go to its own scheme and
//     host alone and stand in no error; nor does the query of its URL.
//   - When Close of an instance has returned, no goroutine and no connection
//     of it is left, and the server was told, if it can be told.
package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/wire"
)

// A Backend connects to remote servers. Its zero value is ready.
type Backend struct{}

// New returns a Backend.
func New() *Backend { return &Backend{} }

const (
	dialTimeout = 10 * time.Second
	usualGrace  = 2 * time.Second // for the DELETE, where a spec has no StopGrace
	maxHops     = 10
)

// Create implements [sandbox.Backend]. A server of Streamable HTTP is first
// spoken to by its handshake; the event stream of one of HTTP with SSE is open
// when Create returns.
func (*Backend) Create(ctx context.Context, _ string, spec *sandbox.Spec, stderr io.Writer) (sandbox.Instance, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	u, err := url.Parse(spec.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("server %q: its url is no http:// or https:// URL", spec.Server)
	}
	switch spec.Transport {
	case "", "http", "sse":
	default:
		return nil, fmt.Errorf("server %q: transport %q is not known: use \"http\" (Streamable HTTP), \"sse\", or none to find out", spec.Server, spec.Transport)
	}
	i := newInstance(u, spec, stderr)
	if spec.Transport == "sse" {
		if err := i.openSSE(ctx); err != nil {
			_ = i.Close() // nothing is open that could fail
			return nil, err
		}
	}
	return i, nil
}

// An item is what a Read returns.
type item struct {
	raw []byte
	err error // a *wire.TooLongError
}

// An instance is a connection to a server.
type instance struct {
	spec   *sandbox.Spec
	url    *url.URL
	where  string // "server "x" at https://host/path", for errors
	limit  int64
	pool   *http.Transport
	client *http.Client
	stderr io.Writer

	in     chan item
	ctx    context.Context // the life of the connection
	cancel context.CancelFunc
	work   sync.WaitGroup
	closed chan struct{} // closed when Close is done

	mu       sync.Mutex
	ended    bool // no more work begins
	closing  bool
	exit     string
	endpoint *url.URL // of HTTP with SSE: where messages go
	initID   string   // id of initialize
	session  string
	version  string
	calls    map[string]underWay // by id
}

func newInstance(u *url.URL, spec *sandbox.Spec, stderr io.Writer) *instance {
	i := &instance{
		spec: spec, url: u, where: fmt.Sprintf("server %q at %s", spec.Server, spec.Redact(shown(u))), limit: cmp.Or(spec.Limit, wire.DefaultLimit), stderr: stderr,
		in: make(chan item), closed: make(chan struct{}), calls: map[string]underWay{},
	}
	i.ctx, i.cancel = context.WithCancel(context.Background())
	i.pool = &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
		TLSHandshakeTimeout: dialTimeout,
		ForceAttemptHTTP2:   true,
		MaxIdleConnsPerHost: 16,
		IdleConnTimeout:     time.Minute,
		DisableCompression:  true, // it holds events back
	}
	i.client = &http.Client{Transport: i.pool, CheckRedirect: i.redirect}
	return i
}

// shown returns what errors may show of a URL: no user, no query, and no part
// of its path that looks like a key.
func shown(u *url.URL) string {
	const longest = 24 // a longer part without a dot or hyphen is a key more often than a word
	parts := strings.Split(u.Path, "/")
	for i, p := range parts {
		if len(p) > longest && !strings.ContainsAny(p, ".") {
			parts[i] = "…"
		}
	}
	return u.Scheme + "://" + u.Host + strings.Join(parts, "/")
}

// redirect lets a request follow, without the headers of the spec if it leaves
// the server's scheme and host.
func (i *instance) redirect(r *http.Request, via []*http.Request) error {
	first := via[0]
	if len(via) >= maxHops {
		return fmt.Errorf("it redirects %d times", maxHops)
	}
	if r.Method != first.Method {
		return fmt.Errorf("it redirects to %s, where messages cannot follow: is that the url to configure?", shown(r.URL))
	}
	if r.URL.Scheme != first.URL.Scheme || r.URL.Host != first.URL.Host {
		for name := range i.spec.Headers {
			r.Header.Del(name)
		}
		r.Header.Del("Mcp-Session-Id")
		r.Header.Del("Referer")
		r.Host = ""
	}
	return nil
}

// request returns a request with the headers that every one has.
func (i *instance) request(ctx context.Context, method string, u *url.URL, body io.Reader) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return nil, i.fault(err)
	}
	r.Header.Set("User-Agent", "specbox")
	for name, value := range i.spec.Headers {
		if strings.EqualFold(name, "Host") {
			r.Host = value
			continue
		}
		r.Header.Set(name, value)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.session != "" {
		r.Header.Set("Mcp-Session-Id", i.session)
	}
	if i.version != "" {
		r.Header.Set("Mcp-Protocol-Version", i.version)
	}
	return r, nil
}

// begin runs f on a goroutine of the instance, unless that has ended.
func (i *instance) begin(f func()) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ended {
		return false
	}
	i.work.Go(f)
	return true
}

// deliver hands a message to the reader, and notes what the handshake has
// agreed upon.
func (i *instance) deliver(raw []byte) {
	i.mu.Lock()
	agreed := i.version != "" || i.initID == ""
	i.mu.Unlock()
	if !agreed {
		if m, err := wire.Parse(raw); err == nil && m.IsResponse() {
			i.mu.Lock()
			if string(m.ID) == i.initID {
				i.version = wire.Str(m.Result, "protocolVersion")
			}
			i.mu.Unlock()
		}
	}
	i.give(item{raw: raw})
}

func (i *instance) give(it item) {
	select {
	case i.in <- it:
	case <-i.ctx.Done():
	}
}

// gone ends the connection because the server is not there any more.
func (i *instance) gone(exit string) {
	i.end(exit)
	fmt.Fprintf(i.stderr, "specbox: %s: %s\n", i.where, exit)
}

func (i *instance) end(exit string) {
	i.mu.Lock()
	if i.exit == "" {
		i.exit = exit
	}
	i.ended = true
	i.mu.Unlock()
	i.cancel()
}

// Transport implements [sandbox.Instance].
func (i *instance) Transport() wire.Transport { return transport{i} }

// closedByUs is how a connection ended that Close ended.
const closedByUs = "closed"

// Usage implements [sandbox.Instance]. Of what runs elsewhere it knows only
// how it ended.
func (i *instance) Usage() sandbox.Usage {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.exit == closedByUs { // which is no end of the server's
		return sandbox.Usage{}
	}
	return sandbox.Usage{Exit: i.exit}
}

// Close implements [sandbox.Instance]. The server is told that its session has
// ended, and has the spec's StopGrace to take note.
func (i *instance) Close() error {
	i.mu.Lock()
	first := !i.closing
	i.closing = true
	session, lost := i.session, i.exit != ""
	i.mu.Unlock()
	if !first {
		<-i.closed
		return nil
	}
	defer close(i.closed)
	i.end(closedByUs)
	i.work.Wait()
	if session != "" && !lost {
		i.forgetSession()
	}
	i.pool.CloseIdleConnections()
	return nil
}

// forgetSession sends the DELETE. A server may refuse it, or be gone.
func (i *instance) forgetSession() {
	ctx, cancel := context.WithTimeout(context.Background(), cmp.Or(i.spec.StopGrace, usualGrace))
	defer cancel()
	r, err := i.request(ctx, http.MethodDelete, i.url, nil)
	if err != nil {
		return
	}
	if res, err := i.client.Do(r); err == nil {
		drain(res)
	}
}

// drain ends a response whose body does not matter.
func drain(res *http.Response) {
	const little = 64 << 10 // more is not worth keeping the connection
	_, _ = io.CopyN(io.Discard, res.Body, little)
	_ = res.Body.Close()
}

// A transport is the client's end.
type transport struct{ i *instance }

func (t transport) Read() ([]byte, error) {
	select {
	case it := <-t.i.in:
		return it.raw, it.err
	case <-t.i.ctx.Done():
		return nil, io.EOF
	}
}

// Write returns when the message was sent; notifications and answers, which
// servers take at once, when they were taken.
func (t transport) Write(parts ...[]byte) error {
	var raw []byte
	for _, p := range parts {
		raw = append(raw, p...)
	}
	return t.i.post(raw)
}

// Close does not wait, and leaves the server to [instance.Close].
func (t transport) Close() error {
	t.i.mu.Lock()
	t.i.ended = true
	t.i.mu.Unlock()
	t.i.cancel()
	return nil
}

// errClosed is what Write returns of a connection that has ended.
func (i *instance) errClosed() error {
	if exit := i.Usage().Exit; exit != "" {
		return fmt.Errorf("%s: %s", i.where, exit)
	}
	return fmt.Errorf("%s: %w", i.where, errors.New("the connection is closed"))
}
