package tap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/specbox/specbox/wire"
)

// A Family is what upstreams have in common that one SDK can talk to.
type Family string

const (
	OpenAI    Family = "openai"    // Chat Completions, Responses and the rest, below /v1
	Anthropic Family = "anthropic" // Messages and the rest, below /anthropic
)

// An Upstream is an LLM service.
type Upstream struct {
	Name string // unique; /v1/@NAME and /anthropic/@NAME lead to it
	API  Family
	// URL is what the service's SDK calls the base URL. One of OpenAI's family
	// that has no path means /v1.
	URL string
	// Models are those that it has: names, or patterns of path.Match, in which
	// * stands for no slash. None means any.
	Models []string
	// Headers are sent with each request, and replace the client's. If there
	// are credentials among them, none of the client's goes to the upstream.
	Headers map[string]string
	// Timeout is how long the upstream may take to begin an answer; 0 means
	// 10 minutes. An answer that has begun may take as long as it takes.
	Timeout time.Duration
}

// A Config says what a [Proxy] does. Upstreams are required.
type Config struct {
	Upstreams []Upstream
	// Tenant tells who sent a request, or why it is turned away. It may remove
	// headers that are for SpecBox alone; those whose names begin with
	// Specbox- or X-Specbox- go to no upstream anyway. Nil means that
	// everybody is "default".
	Tenant func(*http.Request) (tenant string, err error)
	// Observer is told what passes; nil means that nobody is.
	Observer Observer
	Limits   Limits
	Log      *slog.Logger // nil: nowhere
}

// Limits bound what the proxy keeps. A limit of 0 means its default.
type Limits struct {
	Look    int64 // bytes of a request that is looked at; a longer one passes unseen. Default 16 MiB
	Pending int   // bytes of an answer that wait to be looked at; beyond it they are dropped. Default 1 MiB
	Hashes  int   // of conversations that are remembered. Default 256 Ki, some 30 MB
}

// Stats is a snapshot of what a [Proxy] does and did.
type Stats struct {
	Active        int   // exchanges under way
	Exchanges     int64 // that were looked at
	Unread        int64 // requests and answers among them that could not be understood
	Skipped       int64 // events of answers that could not be understood
	Dropped       int64 // bytes of answers that the observer was too slow for
	Failed        int64 // requests whose upstream gave no answer
	Conversations int   // that are remembered
	Hashes        int   // that they are remembered by
}

// A Proxy stands between LLM clients and their upstreams. See the package for
// the paths that it serves. It is safe for concurrent use.
type Proxy struct {
	cfg       Config
	log       *slog.Logger
	upstreams []*upstream
	memory    *memory
	lookers   *lookers

	running chan struct{}   // closed when Run runs
	life    context.Context // ends with Run
	end     context.CancelFunc
	work    sync.WaitGroup // exchanges, and requests under way

	mu     sync.Mutex
	closed bool
	active int

	exchanges, unread, skipped, dropped, failed atomic.Int64
}

// An upstream is one that requests can be sent to.
type upstream struct {
	Upstream
	url   *url.URL
	proxy *httputil.ReverseProxy
	conns *http.Transport
}

const (
	defaultTenant  = "default"
	defaultTimeout = 10 * time.Minute
	dialTimeout    = 15 * time.Second
	idleConns      = 256 // to one upstream
	chunk          = 16 << 10

	sessionHeader = "Specbox-Session"
	sessionKey    = "dev.specbox/session" // in the metadata of a request
)

// credentials are the headers that LLM services take them in.
var credentials = []string{"Authorization", "X-Api-Key", "Api-Key"}

// New checks cfg and returns a Proxy. It starts nothing: until [Proxy.Run] runs,
// requests wait.
func New(cfg Config) (*Proxy, error) {
	if len(cfg.Upstreams) == 0 {
		return nil, errors.New("llm: there is no upstream: name one with its url and its api")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Limits.Look == 0 {
		cfg.Limits.Look = 16 << 20
	}
	if cfg.Limits.Pending == 0 {
		cfg.Limits.Pending = 1 << 20
	}
	if cfg.Limits.Hashes == 0 {
		cfg.Limits.Hashes = 256 << 10
	}
	p := &Proxy{cfg: cfg, log: cfg.Log, memory: newMemory(cfg.Limits.Hashes), lookers: newLookers(), running: make(chan struct{})}
	p.life, p.end = context.WithCancel(context.Background())
	names := map[string]bool{}
	for i, u := range cfg.Upstreams {
		if u.Name == "" || strings.ContainsAny(u.Name, "/?#%@ ") || names[u.Name] {
			return nil, fmt.Errorf("llm upstream %d: the name %q must not be empty, have one of / ? # %% @ or a space, or be that of another", i+1, u.Name)
		}
		names[u.Name] = true
		made, err := p.upstream(u)
		if err != nil {
			return nil, fmt.Errorf("llm upstream %q: %w", u.Name, err)
		}
		p.upstreams = append(p.upstreams, made)
	}
	return p, nil
}

// upstream checks u and makes what sends requests to it.
func (p *Proxy) upstream(u Upstream) (*upstream, error) {
	if u.API != OpenAI && u.API != Anthropic {
		return nil, fmt.Errorf("the api %q is none of %s and %s", u.API, OpenAI, Anthropic)
	}
	target, err := url.Parse(u.URL)
	if err != nil || target.Scheme != "http" && target.Scheme != "https" || target.Host == "" || target.RawQuery != "" || target.User != nil {
		return nil, errors.New("the url must be http:// or https:// with a host, without user and query: credentials belong into headers")
	}
	target.Path = strings.TrimRight(target.Path, "/")
	if u.API == OpenAI && target.Path == "" {
		target.Path = "/v1"
	}
	target.RawPath = ""
	for _, m := range u.Models {
		if _, err := path.Match(m, ""); err != nil {
			return nil, fmt.Errorf("the model %q is no pattern: brackets must be closed", m)
		}
	}
	if u.Timeout == 0 {
		u.Timeout = defaultTimeout
	}
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}
	up := &upstream{Upstream: u, url: target, conns: &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           dialer.DialContext,
		ForceAttemptHTTP2:     true,
		DisableCompression:    true,
		MaxIdleConnsPerHost:   idleConns,
		IdleConnTimeout:       90 * time.Second,
		TLSHandshakeTimeout:   dialTimeout,
		ResponseHeaderTimeout: u.Timeout,
		ExpectContinueTimeout: time.Second,
	}}
	up.proxy = &httputil.ReverseProxy{
		Rewrite:        up.rewrite,
		Transport:      up.conns,
		FlushInterval:  -1, // at once
		BufferPool:     &buffers{},
		ErrorLog:       slog.NewLogLogger(p.log.Handler(), slog.LevelDebug),
		ModifyResponse: p.answerBegins,
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			p.unreachable(w, r, up, err)
		},
	}
	return up, nil
}

// buffers keeps memory for chunks.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, chunk)
}

func (b *buffers) Put(p []byte) { b.pool.Put(&p) }

// Run owns what the proxy does in the background, until ctx ends. Requests that
// are under way then are cut off. When it returns, nothing of the proxy is alive.
// It is called once.
func (p *Proxy) Run(ctx context.Context) error {
	p.lookers.work.Go(func() { p.lookers.run(0) })
	close(p.running)
	<-ctx.Done()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.end()
	p.work.Wait()
	close(p.lookers.stop)
	p.lookers.work.Wait()
	for _, u := range p.upstreams {
		u.conns.CloseIdleConnections()
	}
	return nil
}

// enter says that a request is served, until leave is called; ok is false if
// none is.
func (p *Proxy) enter(ctx context.Context) (leave func(), ok bool) {
	select {
	case <-p.running:
	case <-ctx.Done():
		return nil, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, false
	}
	p.work.Add(1)
	return p.work.Done, true
}

// Stats returns a snapshot.
func (p *Proxy) Stats() Stats {
	p.mu.Lock()
	active := p.active
	p.mu.Unlock()
	s := Stats{
		Active: active, Exchanges: p.exchanges.Load(), Unread: p.unread.Load(),
		Skipped: p.skipped.Load(), Dropped: p.dropped.Load(), Failed: p.failed.Load(),
	}
	s.Conversations, s.Hashes = p.memory.size()
	return s
}

// A route is where a request goes, as its path says.
type route struct {
	family Family
	api    API    // "" if it is not looked at
	key    string // of the session
	name   string // of the upstream; "" if the path names none
	rest   string // of the path, at the upstream; escaped
	stream bool   // /sessions/KEY/stream
}

// routeOf reads a path; text says what is wrong with it.
func routeOf(escaped string) (rt route, text string) {
	rest := escaped
	if s, ok := strings.CutPrefix(rest, "/sessions/"); ok {
		key, tail, _ := strings.Cut(s, "/")
		if tail != "stream" || !isKey(key) {
			return rt, "the path for tokens is /sessions/KEY/stream, where KEY has 1 to 128 letters, digits and characters of -._~:@+="
		}
		return route{key: key, stream: true}, ""
	}
	if s, ok := strings.CutPrefix(rest, "/s/"); ok {
		rt.key, rest, _ = strings.Cut(s, "/")
		rest = "/" + rest
		if !isKey(rt.key) {
			return rt, "KEY of /s/KEY/ names a session by 1 to 128 letters, digits and characters of -._~:@+="
		}
	}
	switch {
	case strings.HasPrefix(rest, "/v1/"):
		rt.family, rest = OpenAI, rest[len("/v1"):]
	case strings.HasPrefix(rest, "/anthropic/"):
		rt.family, rest = Anthropic, rest[len("/anthropic"):]
	default:
		return rt, "the paths here begin with /v1/ for OpenAI's APIs and with /anthropic/ for Anthropic's"
	}
	if s, ok := strings.CutPrefix(rest, "/@"); ok {
		rt.name, rest, _ = strings.Cut(s, "/")
		rest = "/" + rest
	}
	for part := range strings.SplitSeq(rest, "/") {
		if plain, err := url.PathUnescape(part); err != nil || plain == ".." || plain == "." {
			return rt, "a path must not have the parts . and .."
		}
	}
	rt.rest = rest
	switch {
	case rt.family == OpenAI && rest == "/chat/completions":
		rt.api = Chat
	case rt.family == OpenAI && rest == "/responses":
		rt.api = Responses
	case rt.family == Anthropic && rest == "/v1/messages":
		rt.api = Messages
	}
	return rt, ""
}

// isKey reports whether s can name a session, as at the agent's door.
func isKey(s string) bool {
	for _, c := range s {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("-._~:@+=", c)) {
			return false
		}
	}
	return s != "" && len(s) <= 128
}

// ServeHTTP serves the paths of the package. It is meant for an [http.Server]
// without WriteTimeout and ReadTimeout, which would cut streams.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rt, wrong := routeOf(r.URL.EscapedPath())
	if wrong != "" {
		refuse(w, rt, http.StatusNotFound, "not found: "+wrong)
		return
	}
	leave, ok := p.enter(r.Context())
	if !ok {
		refuse(w, rt, http.StatusServiceUnavailable, "SpecBox is stopping: try again in a moment")
		return
	}
	defer leave()
	tenant := defaultTenant
	if p.cfg.Tenant != nil {
		var err error
		if tenant, err = p.cfg.Tenant(r); err != nil {
			refuse(w, rt, http.StatusUnauthorized, err.Error())
			return
		}
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	client := http.NewResponseController(w)
	defer context.AfterFunc(p.life, func() {
		cancel()
		_ = client.SetReadDeadline(time.Now())  // a client may send, or not read, for ever;
		_ = client.SetWriteDeadline(time.Now()) // not all that serve have deadlines
	})()
	if rt.key == "" {
		if key := r.Header.Get(sessionHeader); isKey(key) {
			rt.key = key
		}
	}
	if rt.stream {
		p.handOver(w, r.WithContext(ctx), rt, tenant)
		return
	}
	p.forward(w, r.WithContext(ctx), rt, tenant)
}

// forward sends a request to its upstream, and the answer back.
func (p *Proxy) forward(w http.ResponseWriter, r *http.Request, rt route, tenant string) {
	looks := rt.api != "" && r.Method == http.MethodPost
	choices := p.choices(rt)
	var read []byte // the whole body, or nil
	var model string
	if looks || len(choices) > 1 && isJSON(r.Header) {
		var err error
		if read, err = p.readBody(r); err != nil {
			refuse(w, rt, http.StatusBadRequest, "the request's body came to no good end: "+err.Error())
			return
		}
		model = text(wire.Get(read, "model"))
	}
	up := choose(choices, model)
	if up == nil {
		refuse(w, rt, http.StatusNotFound, p.nowhere(rt, model))
		return
	}
	out := &sending{route: rt, up: up, body: read}
	if looks {
		out.exchange = p.open(rt, tenant, func(x *exchange) reader { return x.observe(read) })
		defer out.exchange.end()
		w = &writer{w, http.NewResponseController(w), out.exchange}
	}
	// An upstream may answer while the body is still on its way: net/http would
	// close it then, and with it the connection to the upstream. HTTP/2 is
	// duplex in any case.
	_ = http.NewResponseController(w).EnableFullDuplex()
	up.proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), sendingKey{}, out)))
}

// A sending is a request on its way to its upstream.
type sending struct {
	route    route
	up       *upstream
	body     []byte    // the whole body, or nil
	exchange *exchange // nil if it is not looked at
}

type sendingKey struct{}

func sendingOf(ctx context.Context) *sending {
	s, _ := ctx.Value(sendingKey{}).(*sending)
	return s
}

// readBody reads the body of r, and returns it if it is all of it. What it has
// read of a longer one is put back.
func (p *Proxy) readBody(r *http.Request) ([]byte, error) {
	if r.ContentLength > p.cfg.Limits.Look {
		return nil, nil
	}
	var b bytes.Buffer
	if r.ContentLength > 0 {
		b.Grow(int(r.ContentLength) + bytes.MinRead)
	}
	n, err := io.Copy(&b, io.LimitReader(r.Body, p.cfg.Limits.Look+1))
	if err != nil {
		return nil, err
	}
	if n > p.cfg.Limits.Look {
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(&b, r.Body), r.Body}
		return nil, nil
	}
	return b.Bytes(), nil
}

func isJSON(h http.Header) bool {
	kind, _, _ := mime.ParseMediaType(h.Get("Content-Type"))
	return kind == "application/json"
}

// choices returns the upstreams that a path may mean.
func (p *Proxy) choices(rt route) []*upstream {
	var out []*upstream
	for _, u := range p.upstreams {
		if u.API == rt.family && (rt.name == "" || rt.name == u.Name) {
			out = append(out, u)
		}
	}
	return out
}

// choose returns the first that has the model. One that the path names, or that
// is the only one that could be meant, gets what is said of no model.
func choose(choices []*upstream, model string) *upstream {
	for _, u := range choices {
		if model == "" || len(u.Models) == 0 {
			return u
		}
		for _, m := range u.Models {
			if ok, _ := path.Match(m, model); ok { // New has checked the pattern
				return u
			}
		}
	}
	return nil
}

// nowhere says why there is no upstream for a request.
func (p *Proxy) nowhere(rt route, model string) string {
	var names []string
	for _, u := range p.upstreams {
		if u.API == rt.family {
			names = append(names, u.Name)
		}
	}
	switch {
	case len(names) == 0:
		return fmt.Sprintf("no upstream of SpecBox speaks %s's API: add one to llm.upstreams of its configuration", rt.family)
	case rt.name != "" && len(p.choices(rt)) == 0:
		return fmt.Sprintf("no upstream of SpecBox that speaks %s's API is named %q: there are %s", rt.family, rt.name, strings.Join(names, ", "))
	}
	return fmt.Sprintf("no upstream of SpecBox has the model %q: name it in the models of one of %s, or name another model", model, strings.Join(names, ", "))
}

// rewrite makes the request that the upstream gets.
func (u *upstream) rewrite(pr *httputil.ProxyRequest) {
	s := sendingOf(pr.In.Context())
	target := *u.url
	rest := s.route.rest
	if strings.HasSuffix(target.Path, "/v1") && strings.HasPrefix(rest, "/v1/") {
		rest = rest[len("/v1"):] // some write the base URL of Anthropic's API so
	}
	plain, _ := url.PathUnescape(rest) // routeOf has checked it
	target.RawPath, target.Path = target.EscapedPath()+rest, target.Path+plain
	target.RawQuery = pr.In.URL.RawQuery
	pr.Out.URL, pr.Out.Host = &target, target.Host
	pr.Out.Trailer = pr.In.Trailer // its values come with the end of the body
	for name := range pr.Out.Header {
		if strings.HasPrefix(name, "Specbox-") || strings.HasPrefix(name, "X-Specbox-") {
			pr.Out.Header.Del(name)
		}
	}
	if s.exchange != nil {
		pr.Out.Header.Set("Accept-Encoding", "identity") // what is packed cannot be read
	}
	u.authorize(pr.Out.Header)
	if s.body == nil {
		return
	}
	// With a body that can be had again, a request of which nothing was written
	// to a connection that has just been closed goes over another.
	pr.Out.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(s.body)), nil }
	pr.Out.Body, _ = pr.Out.GetBody()
	if len(pr.Out.Trailer) == 0 {
		pr.Out.ContentLength = int64(len(s.body))
	}
}

// authorize puts the headers of the configuration in the place of the client's.
func (u *upstream) authorize(h http.Header) {
	for name := range u.Headers {
		for _, c := range credentials {
			if strings.EqualFold(name, c) {
				for _, c := range credentials {
					h.Del(c)
				}
			}
		}
	}
	for name, value := range u.Headers {
		h.Set(name, value)
	}
}

// answerBegins looks at the head of a response.
func (p *Proxy) answerBegins(r *http.Response) error {
	s := sendingOf(r.Request.Context())
	if s.exchange == nil {
		return nil
	}
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	packed := r.Header.Get("Content-Encoding")
	switch {
	case r.StatusCode != http.StatusOK || packed != "" && packed != "identity":
		s.exchange.listen(unreadable)
	case kind == "text/event-stream":
		s.exchange.listen(events)
	case kind == "application/json":
		s.exchange.listen(document)
	default:
		s.exchange.listen(unreadable)
	}
	return nil
}

// A writer passes what it is given on to the client, and then to an exchange.
type writer struct {
	http.ResponseWriter
	client *http.ResponseController
	x      *exchange
}

// Write writes to the client, and keeps a copy to look at after the flush.
func (w *writer) Write(b []byte) (int, error) {
	n, err := w.ResponseWriter.Write(b)
	w.x.hold(b[:n])
	return n, err
}

// FlushError sends to the client what was written, and then lets it be looked at.
func (w *writer) FlushError() error {
	err := w.client.Flush()
	w.x.p.lookers.look(w.x)
	return err
}

// Unwrap returns the writer of the client, for what else it can do.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }
