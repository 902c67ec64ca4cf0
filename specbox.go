// Package specbox is a serving runtime between LLM agents and MCP tool servers.
//
// A walk through the house, in the order in which a call passes:
//
//	config    what people write about their servers
//	launcher  npx, uvx and their kin become programs that run offline
//	gateway   the agent's door: MCP over HTTP and standard input and output
//	tap       the model's door: a reverse proxy that reports what passes
//	tenant    whose token is it
//	session   the hall: which server, which sandbox, whose message
//	intent    from what a model writes to the servers that it will call
//	catalog   lists are answered from here, with no sandbox alive
//	sandbox   a sandbox is started, lent out, taken down; by a backend:
//	          process (bubblewrap), docker, remote (a URL), sim (for tests)
//	wire      all messages pass as the bytes they came in
//	trace     all of it is written down, once; metrics are readers of that
//	control   the operator's door: ps, logs, stop, metrics
//
// The rooms do not know one another. They open onto one hall, session, and
// this package, the house, decides which room stands behind which door.
package specbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/specbox/specbox/catalog"
	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/control"
	"github.com/specbox/specbox/gateway"
	"github.com/specbox/specbox/launcher"
	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/sandbox/docker"
	"github.com/specbox/specbox/sandbox/process"
	"github.com/specbox/specbox/sandbox/remote"
	"github.com/specbox/specbox/session"
	"github.com/specbox/specbox/tap"
	"github.com/specbox/specbox/tenant"
	"github.com/specbox/specbox/trace"
	"github.com/specbox/specbox/wire"
)

// Options configure a [Runtime]. Config and State are required.
type Options struct {
	Config  *config.Config
	State   string // folder that holds the catalogue, installed packages, kept state and sockets
	Offline bool   // install nothing
	Version string
	Log     *slog.Logger
	Trace   io.Writer      // events as JSON lines go here; nil: nowhere
	Report  func(Progress) // told of installs and of the catalogue, one call at a time; may be nil
}

// Progress tells of work in the background.
type Progress struct {
	Server  string
	Phase   string // "install" or "catalog"
	Done    int    // servers that are through with Phase
	Total   int
	Message string
	Err     error // this server failed; the others go on
}

// A Runtime is the whole house.
type Runtime struct {
	opts      Options
	started   time.Time
	tenants   *tenant.Tenants
	packages  *launcher.Store
	processes *process.Backend
	container *docker.Backend
	sandboxes *sandbox.Manager
	hub       *session.Hub
	gateway   *gateway.Gateway
	tap       *tap.Proxy
	events    *trace.Writer // nil where no trace is written
	metrics   http.Handler
	memories  memories
	recent    *control.Recent
	hashKey   []byte

	reports   sync.Mutex // one report at a time
	resolving sync.Mutex // one resolveAll at a time

	mu      sync.Mutex
	addr    net.Addr
	servers []resolved // in the order of the configuration

	ready, prepared chan struct{}
}

// New builds a Runtime and opens its folders. It starts nothing; call
// [Runtime.Run] or [Runtime.ServeStdio], once.
func New(o Options) (*Runtime, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Report == nil {
		o.Report = func(Progress) {}
	}
	if err := control.MakeFolder(o.State); err != nil {
		return nil, err
	}
	if len(o.Config.Tenants) == 0 && !loopback(o.Config.Listen) {
		return nil, fmt.Errorf("listen on %s: others can reach that address, and there are no tenants: add one with a token (specbox token makes it), or listen on 127.0.0.1", o.Config.Listen)
	}
	r := &Runtime{opts: o, started: time.Now(), ready: make(chan struct{}), prepared: make(chan struct{}), packages: launcher.New(filepath.Join(o.State, "packages"))}
	var err error
	if r.hashKey, err = hashKey(filepath.Join(o.State, "hash.key")); err != nil {
		return nil, err
	}
	if r.tenants, err = tenant.New(o.Config.Tenants); err != nil {
		return nil, err
	}
	return r, r.build()
}

// build makes the rooms and joins them.
func (r *Runtime) build() error {
	o := r.opts
	meter, metrics, err := control.NewMetrics(r.gauges)
	if err != nil {
		return err
	}
	r.metrics = metrics
	r.recent = control.NewRecent()
	recorders := []trace.Recorder{meter, r.recent}
	if o.Trace != nil {
		r.events = trace.NewWriter(o.Trace)
		recorders = append(recorders, r.events)
	}
	rec := trace.Tee(recorders...)

	store, err := catalog.Open(filepath.Join(o.State, "catalog"), o.Log)
	if err != nil {
		return err
	}
	run := filepath.Join(o.State, "run")
	if report, err := process.Reap(run); err != nil {
		return err
	} else if len(report.Instances) > 0 {
		o.Log.Warn("took away what an earlier SpecBox left behind", "sandboxes", report.Sandboxes, "processes", report.Processes, "cgroups", report.Cgroups)
	}
	if r.processes, err = process.New(process.Config{Run: run, Private: []string{o.State}, Log: o.Log}); err != nil {
		return err
	}
	if r.container, err = docker.New(docker.Config{Run: run, Private: []string{o.State}, Log: o.Log}); err != nil {
		return errors.Join(err, r.processes.Close())
	}
	starts := o.Config.Limits.Starts
	if starts == 0 {
		starts = max(2, runtime.NumCPU())
	}
	r.sandboxes, err = sandbox.New(sandbox.Config{
		Backends: map[config.Isolation]sandbox.Backend{
			config.Process: r.processes,
			config.None:    r.processes,
			config.Docker:  r.container,
			config.Remote:  remote.New(),
		},
		Recorder:  rec,
		Sandboxes: o.Config.Limits.Sandboxes,
		Starts:    starts,
		Quota:     r.quota,
		Log:       o.Log,
		Speculation: sandbox.Speculation{
			Sandboxes: o.Config.Speculation.Sandboxes,
			Memory:    o.Config.Speculation.Memory,
			Starts:    o.Config.Speculation.Starts,
			Hold:      o.Config.Speculation.Hold,
			Freeze:    sandbox.Freeze(o.Config.Speculation.Freeze),
			Hedge:     o.Config.Speculation.Hedge,
		},
	})
	if err != nil {
		return err
	}
	r.recall()
	r.hub = session.New(session.Config{
		Catalog: store, Sandboxes: r.sandboxes, Recorder: rec, Log: o.Log, Version: o.Version,
		Allowed: r.tenants.Allows,
		Fills:   max(1, starts-1), // so that a call finds a free start
		Foresee: r.foresight(), Likely: r.likely(), Hold: o.Config.Speculation.Hold,
	})
	r.resolveAll()
	r.gateway, err = gateway.New(gateway.Config{
		Open:     r.open,
		Tenant:   r.tenants.Authenticate,
		Known:    func(tenant, server string) bool { return r.hub.Server(tenant, server) != nil },
		Names:    r.hub.Names,
		Loopback: loopback(o.Config.Listen),
		Hosts:    o.Config.Hosts,
		Origins:  o.Config.Origins,
		Limits:   gateway.Limits{Body: o.Config.Limits.Request, Idle: o.Config.Limits.Session},
		Log:      o.Log,
		Version:  o.Version,
	})
	if err != nil {
		return err
	}
	return r.openModel()
}

// loopback reports whether an address is reached from this machine alone.
func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// open leads from the agent's door into the hall.
func (r *Runtime) open(_ context.Context, o gateway.Opening, background wire.Sender) (gateway.Session, error) {
	s, err := r.hub.Open(session.Opening{Tenant: o.Tenant, Session: o.Session, Server: o.Server, Params: o.Params, Modern: o.Modern, Conversation: o.Conversation}, background)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (r *Runtime) quota(name string) sandbox.Quota {
	for _, t := range r.opts.Config.Tenants {
		if t.Name == name {
			return sandbox.Quota{Sandboxes: t.Sandboxes, Memory: t.Memory}
		}
	}
	return sandbox.Quota{}
}

// Ready is closed when Run listens; [Runtime.Addr] then says where.
func (r *Runtime) Ready() <-chan struct{} { return r.ready }

// Prepared is closed when every server that lacked its package or its entry in
// the catalogue has it or was reported with an error, or when Run is ending.
func (r *Runtime) Prepared() <-chan struct{} { return r.prepared }

// Addr returns the address of the agent's door, or "" before Ready.
func (r *Runtime) Addr() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.addr == nil {
		return ""
	}
	return r.addr.String()
}

// URL returns where clients of this machine find the agent's door, or "" before
// Ready.
func (r *Runtime) URL() string {
	host, port, err := net.SplitHostPort(r.Addr())
	if err != nil {
		return ""
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, port) + "/mcp"
}

// Run serves agents over HTTP, and the operator on the socket of the state
// folder, until ctx ends. When it returns, nothing of the runtime is alive.
func (r *Runtime) Run(ctx context.Context) (err error) {
	operator, err := control.Listen(r.opts.State)
	if err != nil {
		return errors.Join(err, r.closeRooms())
	}
	defer func() { err = errors.Join(err, operator.Close()) }()
	agent, err := net.Listen("tcp", r.opts.Config.Listen)
	if err != nil {
		err := &control.Error{Message: fmt.Sprintf("listen for agents: %v", err), Cause: err, Hint: "name another address with --listen HOST:PORT"}
		if errors.Is(err, syscall.EADDRINUSE) {
			err.Hint = "something listens there already, perhaps another specbox: stop it, or name another address with --listen HOST:PORT"
		}
		return errors.Join(err, r.closeRooms())
	}
	r.mu.Lock()
	r.addr = agent.Addr()
	r.mu.Unlock()
	doors := []func(context.Context) error{
		func(ctx context.Context) error { return serveHTTP(ctx, agent, r.agentHandler()) },
		func(ctx context.Context) error {
			return control.Serve(ctx, operator, control.Handler(r.Control()), r.opts.Log)
		},
	}
	if addr := r.opts.Config.Metrics; addr != "" {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return errors.Join(fmt.Errorf("listen for metrics: %w", err), agent.Close(), r.closeRooms())
		}
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", r.metrics)
		mux.Handle("GET /healthz", r.healthz())
		doors = append(doors, func(ctx context.Context) error { return serveHTTP(ctx, l, mux) })
	}
	close(r.ready)
	return r.house(ctx, doors...)
}

// ServeStdio serves one agent over in and out until in ends or ctx does. When
// it returns, nothing of the runtime is alive.
func (r *Runtime) ServeStdio(ctx context.Context, in io.Reader, out io.Writer) error {
	if !r.tenants.Open() {
		return errors.Join(errors.New("standard input and output bring no token, and the configuration has tenants: run specbox serve with it, and connect to that"), r.closeRooms())
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return r.house(ctx, func(ctx context.Context) error {
		defer cancel()
		return r.gateway.ServeStdio(ctx, in, out, gateway.Opening{Tenant: tenant.Default})
	})
}

func (r *Runtime) agentHandler() http.Handler {
	mux := http.NewServeMux()
	for _, path := range []string{"/mcp", "/mcp/{server}", "/s/{key}/mcp", "/s/{key}/mcp/{server}"} {
		mux.Handle(path, r.gateway)
	}
	mux.Handle("/mcp/{$}", r.gateway)
	for _, path := range modelPaths {
		mux.Handle(path, r.gateway.Guard(r.tap))
	}
	mux.Handle("GET /healthz", r.gateway.Guard(r.healthz()))
	if r.tenants.Open() && r.opts.Config.Metrics == "" {
		mux.Handle("GET /metrics", r.gateway.Guard(r.metrics))
	}
	return mux
}

func (r *Runtime) healthz() http.Handler {
	return control.Healthz(func(context.Context) error { return nil })
}

// house runs the rooms and the doors until ctx ends or a door fails, then
// closes them in the order in which a call passes: doors, hall, sandboxes.
func (r *Runtime) house(ctx context.Context, doors ...func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	sandboxes := start(r.sandboxes.Run)
	hall := start(r.hub.Run)
	door, model := start(r.gateway.Run), start(r.tap.Run)
	memory, reaper := start(r.remember), start(r.container.Run)
	prepare := start(func(ctx context.Context) error { r.prepare(ctx); close(r.prepared); return nil })
	var open sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for _, d := range doors {
		open.Go(func() {
			if err := d(ctx); err != nil && ctx.Err() == nil {
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
				cancel(err)
			}
		})
	}
	<-ctx.Done()
	begin := time.Now()
	errs = append(errs, prepare.stop(), door.stop(), model.stop(), memory.stop(), reaper.stop())
	open.Wait()
	errs = append(errs, hall.stop(), sandboxes.stop(), r.closeRooms())
	r.opts.Log.Debug("closed", "took", time.Since(begin))
	return errors.Join(errs...)
}

// closeRooms closes what New opened.
func (r *Runtime) closeRooms() error {
	var errs []error
	errs = append(errs, r.processes.Close(), r.container.Close())
	if r.events != nil {
		errs = append(errs, r.events.Close())
		if n := r.events.Dropped(); n > 0 {
			r.opts.Log.Warn("the trace is not complete: it could not be written fast enough", "events lost", n)
		}
	}
	return errors.Join(errs...)
}

// A room is something that runs until it is stopped.
type room struct {
	cancel context.CancelFunc
	done   chan error
}

func start(run func(context.Context) error) *room {
	ctx, cancel := context.WithCancel(context.Background())
	r := &room{cancel, make(chan error, 1)}
	go func() { r.done <- run(ctx) }() // stop waits for it
	return r
}

func (r *room) stop() error {
	r.cancel()
	return <-r.done
}

// What those take who have shown no token yet.
const (
	idleConnection = 2 * time.Minute
	maxHeader      = 64 << 10 // bytes
)

// hangUp is how long requests under way may still answer at shutdown.
const hangUp = 2 * time.Second

func serveHTTP(ctx context.Context, l net.Listener, h http.Handler) error {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: idleConnection, MaxHeaderBytes: maxHeader, ConnContext: gateway.ConnContext}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(gateway.Listener(l)) }() // ends with the server
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), hangUp)
	defer cancel()
	if srv.Shutdown(late) != nil { // streams stay open for ever otherwise
		_ = srv.Close()
	}
	<-done
	return nil
}

// hashKey returns the key that configuration hashes are made with, so that they
// reveal no secret. It is made at first use.
func hashKey(path string) ([]byte, error) {
	for {
		b, err := os.ReadFile(path)
		if err == nil && len(b) == 32 {
			return b, nil
		}
		if err == nil {
			return nil, fmt.Errorf("%s is damaged: remove it, and the catalogue is read anew", path)
		}
		if !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		if err := writeKey(path); err != nil {
			return nil, err
		}
	}
}

// Init must be called first thing in main: sandboxes are made by processes of
// this very program, which Init does not return from.
func Init() { process.Init() }

// Check tells what this machine can do for the isolation of servers, and what
// to install where it cannot. It tries, and cleans up after itself.
func Check(ctx context.Context) []process.Finding { return process.Check(ctx) }
