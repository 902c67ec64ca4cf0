// Package docker runs servers in containers, through the API of a Docker engine
// or of Podman's service.
//
// Its laws:
//
//   - A container has no capability, no new privileges, a read-only root, a user
//     that is not root, bounds on memory, processes and processors, and the
//     network that its spec names. None is privileged, whatever is configured.
//   - Nothing is pulled. An image that is missing is an error at once, of the
//     servers that need it, and of nothing else.
//   - Messages pass through the attached standard streams alone. A secret of a
//     server is in its environment, and in no argument list, log and error; who
//     may use the engine can read it there.
//   - What an instance took is removed when it is gone. While the engine does not
//     answer that waits, until the engine is back or, at the latest, for the next
//     [Backend.Reap].
//   - A container that the engine lost is a server that has ended.
//
// Containers are found again by their labels, which name the SpecBox instance,
// the server and the sandbox.
package docker

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"
	"github.com/specbox/specbox/sandbox"
)

// Labels of the containers.
const (
	LabelInstance = "dev.specbox.instance" // of the SpecBox that made it
	LabelServer   = "dev.specbox.server"
	LabelSandbox  = "dev.specbox.sandbox" // the id that Create was given
)

// Config says how a [Backend] works.
type Config struct {
	// Run is the folder in which a Backend that has containers keeps a locked
	// file, by which [Backend.Reap] finds out whether it lives. It must be set,
	// and is made if it is missing.
	Run string
	// Host is the engine: "unix:///run/docker.sock", "tcp://host:2376". "" means
	// DOCKER_HOST, and where that is not set the first socket there is, of
	// Docker, of Docker without root, of Podman without root, of Podman.
	Host string
	// Private are host folders that no container sees, whatever is mounted: what
	// a mount shows of them is an empty folder, save for mounts inside of them.
	Private []string
	// Log takes what an operator should know. nil means that nobody does.
	Log *slog.Logger
}

// A Backend makes instances of isolation docker. It is safe for concurrent use.
type Backend struct {
	log    *slog.Logger
	hidden []string // Config.Private, without symbolic links
	dir    string
	host   string
	name   string // of this SpecBox instance, of a-z and 0-9
	api    *client.Client
	broken error // why there is no api

	life context.Context // ended by Close
	end  context.CancelFunc
	lock chan *os.File // holds the locked file, or nil before there is one

	mu     sync.Mutex
	closed bool
	// Programs that were found in images. As many as there are servers.
	programs map[string]bool
	live     map[string]*instance // nil while Create is about it
	doomed   map[string]string    // container -> server, of those that could not be removed
	reaping  bool                 // somebody sees to the doomed
	work     sync.WaitGroup       // what was begun, and is not gone
}

// ErrClosed is the error of Create on a Backend that was closed.
var ErrClosed = errors.New("the docker backend is closed")

// How long the engine may take for what it does at once, and for a start; and
// how long output may take to arrive of which no more is made.
const (
	patience      = 10 * time.Second
	startPatience = time.Minute
	drainPatience = 500 * time.Millisecond
)

// New returns a Backend. It starts nothing, and does not speak to the engine,
// which may be absent. [Backend.Close] ends it.
func New(c Config) (*Backend, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Run == "" {
		return nil, errors.New("docker backend: Config.Run names no folder")
	}
	host := cmp.Or(c.Host, os.Getenv("DOCKER_HOST"), firstSocket())
	// No connection is kept: a new one takes microseconds, and an old one may be
	// to an engine that is no more.
	http := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, CheckRedirect: client.CheckRedirect}
	opts := []client.Opt{client.WithHTTPClient(http), client.FromEnv, client.WithHost(host), client.WithUserAgent("specbox")}
	if os.Getenv(client.EnvOverrideCertPath) == "" {
		opts = append(opts, client.WithScheme("http"))
	}
	// An engine that cannot be is an error of who needs it, as one that is absent.
	api, err := client.New(opts...)
	b := &Backend{
		log: c.Log, dir: c.Run, host: host, api: api, name: strings.ToLower(rand.Text()[:12]),
		lock: make(chan *os.File, 1), live: map[string]*instance{}, doomed: map[string]string{}, programs: map[string]bool{},
	}
	for _, p := range c.Private {
		b.hidden = append(b.hidden, realPath(p))
	}
	b.lock <- nil
	b.life, b.end = context.WithCancel(context.Background())
	if err != nil {
		b.broken = fmt.Errorf("the Docker engine at %s cannot be spoken to: correct DOCKER_HOST and what belongs to it (%w)", host, err)
	}
	return b, nil
}

// firstSocket returns the socket of the engine of this machine.
func firstSocket() string {
	sockets := []string{"/var/run/docker.sock"}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		sockets = append(sockets, filepath.Join(dir, "docker.sock"), filepath.Join(dir, "podman", "podman.sock"))
	}
	sockets = append(sockets, "/run/podman/podman.sock")
	for _, s := range sockets {
		if _, err := os.Stat(s); err == nil {
			return "unix://" + s
		}
	}
	return "unix://" + sockets[0]
}

// Create makes an instance; see [sandbox.Backend].
func (b *Backend) Create(ctx context.Context, id string, spec *sandbox.Spec, stderr io.Writer) (sandbox.Instance, error) {
	return b.begin(ctx, id, spec, stderr, false)
}

// Speculate is [Backend.Create] with the least weight for the processor; see
// [sandbox.Speculator]. What the engine does for a start has the engine's own
// weight.
func (b *Backend) Speculate(ctx context.Context, id string, spec *sandbox.Spec, stderr io.Writer) (sandbox.Instance, error) {
	return b.begin(ctx, id, spec, stderr, true)
}

// begin is Create, with the least weight or not.
func (b *Backend) begin(ctx context.Context, id string, spec *sandbox.Spec, stderr io.Writer, idle bool) (sandbox.Instance, error) {
	fail := func(err error) (sandbox.Instance, error) { return nil, fmt.Errorf("server %q: %w", spec.Server, err) }
	if err := context.Cause(ctx); err != nil {
		return fail(err)
	}
	if id == "" || len(id) > 100 || strings.Trim(id, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return fail(fmt.Errorf("sandbox id %q is not made of a-z, 0-9 and '-'", id))
	}
	if b.broken != nil {
		return fail(b.broken)
	}
	if spec.Image == "" {
		return fail(errors.New("isolation docker needs an image: add image: NAME to the server"))
	}
	if err := b.enter(id); err != nil {
		return fail(err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(b.life, func() { cancel(ErrClosed) })()
	i, err := b.create(ctx, id, spec, stderr, idle)
	if err != nil {
		b.leave(id)
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return fail(err)
	}
	b.mu.Lock()
	closed := b.closed
	if _, ok := b.live[id]; ok { // else it is gone already
		b.live[id] = i
	}
	b.mu.Unlock()
	if closed {
		return nil, errors.Join(fmt.Errorf("server %q: %w", spec.Server, ErrClosed), i.Close())
	}
	return i, nil
}

// enter begins what leave ends, for each id.
func (b *Backend) enter(id string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return ErrClosed
	}
	if _, ok := b.live[id]; ok {
		return fmt.Errorf("sandbox id %q is in use", id)
	}
	b.live[id] = nil
	b.work.Add(1)
	return nil
}

func (b *Backend) leave(id string) {
	b.mu.Lock()
	delete(b.live, id)
	b.mu.Unlock()
	b.work.Done()
}

// explain says what to do about an error of the engine.
func (b *Backend) explain(err error) error {
	if !client.IsErrConnectionFailed(err) {
		return err
	}
	var op *net.OpError // without what was asked, and where, once more
	if errors.As(err, &op) {
		err = op.Err
	}
	return fmt.Errorf("the Docker engine at %s cannot be reached: start it, or name another one in DOCKER_HOST (%w)", b.host, err)
}

// Close takes down the instances that are left and waits until all are gone. What
// the engine does not remove by then is removed by [Backend.Reap] of the next
// Backend. Create fails from then on. It may be called more than once; later
// calls return at once.
func (b *Backend) Close() error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	var left []*instance
	for _, i := range b.live {
		if i != nil {
			left = append(left, i)
		}
	}
	b.mu.Unlock()
	b.end() // what Create is about ends itself
	failed := make(chan error, len(left))
	for _, i := range left {
		go func() { failed <- i.Close() }()
	}
	var errs []error
	for range left {
		errs = append(errs, <-failed)
	}
	b.work.Wait()
	b.mu.Lock()
	doomed := len(b.doomed)
	b.mu.Unlock()
	if f := <-b.lock; f != nil {
		if doomed == 0 {
			errs = append(errs, os.Remove(b.lockPath()))
		}
		errs = append(errs, f.Close())
	}
	if doomed > 0 {
		errs = append(errs, fmt.Errorf("%d containers are left until the Docker engine at %s answers: the next start of SpecBox removes them", doomed, b.host))
	}
	if b.api != nil {
		errs = append(errs, b.api.Close())
	}
	return errors.Join(errs...)
}

// remove removes a container, however it is, and what it holds. Where the engine
// does not do it now it is tried again later.
func (b *Backend) remove(container, server string) error {
	if err := b.tryRemove(container); err != nil {
		b.log.Warn("a container is removed later", "server", server, "container", container, "error", err)
		b.mu.Lock()
		defer b.mu.Unlock()
		b.doomed[container] = server
		if !b.reaping && !b.closed {
			b.reaping = true
			b.work.Go(b.removeDoomed)
		}
		return err
	}
	return nil
}

func (b *Backend) tryRemove(container string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := b.api.ContainerRemove(ctx, container, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	if err == nil || errdefs.IsNotFound(err) {
		return nil
	}
	// Somebody else removes it, or the engine is not done with its death.
	if errdefs.IsConflict(err) {
		wait := b.api.ContainerWait(ctx, container, client.ContainerWaitOptions{Condition: "removed"})
		select {
		case <-wait.Result:
			return nil
		case werr := <-wait.Error:
			if errdefs.IsNotFound(werr) {
				return nil
			}
		}
	}
	return b.explain(err)
}

// removeDoomed removes what could not be removed, until all is gone or the
// Backend is closed.
func (b *Backend) removeDoomed() {
	for delay := time.Second; ; delay = min(2*delay, 15*time.Second) {
		select {
		case <-b.life.Done():
		case <-time.After(delay):
		}
		b.mu.Lock()
		var all []string
		for c := range b.doomed {
			all = append(all, c)
		}
		b.mu.Unlock()
		for _, c := range all {
			if b.tryRemove(c) == nil {
				b.mu.Lock()
				delete(b.doomed, c)
				b.mu.Unlock()
			}
		}
		b.mu.Lock()
		done := len(b.doomed) == 0 || b.closed
		if done {
			b.reaping = false
		}
		b.mu.Unlock()
		if done {
			return
		}
	}
}
