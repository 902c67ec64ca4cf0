// Package sim is a backend that runs no program: each of its instances is a
// small MCP server in this process that takes a modelled time to start, to
// answer and to stop, and fails and dies as it is told. In a bubble of
// [testing/synctest] its time is virtual and exact.
//
// Its laws: it keeps the contract of [sandbox.Backend]; when Close of an
// instance has returned, no goroutine of it is left; all that is random about
// an instance is in the [Life] that it was given; a start in the idle class goes
// on only with what the starts in the ordinary class leave of the processor.
package sim

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/wire"
)

// A Life says how one instance fares. The zero value starts at once, answers
// as [Tools] does, and lives until it is closed.
type Life struct {
	Create    time.Duration // until Create returns
	Err       error         // what Create then returns
	Handshake time.Duration // until initialize is answered
	Mute      bool          // initialize is never answered
	Modern    bool          // initialize is refused; Serve answers server/discover
	Deaf      bool          // it never reads what it is sent
	Dies      time.Duration // it dies this long after Create has returned; 0 means never
	Exit      string        // how it dies; "" means "exit status 1"
	LastWords string        // on stderr, before it dies or Create fails
	Close     time.Duration // until Close of the living instance returns
	Freeze    time.Duration // until Freeze returns
	FreezeErr error         // what Freeze then returns; it is not frozen
	Thaw      time.Duration // until Thaw of the frozen instance returns
	ThawErr   error         // what Thaw then returns; it stays frozen
	Reclaim   time.Duration // until Reclaim of the frozen instance returns
	Spare     int64         // bytes of Memory that Reclaim takes back, until Thaw

	Init   []byte // result of initialize; nil means [DefaultInit] with the version asked for
	Memory func(age time.Duration, calls int) int64
	// Serve answers all but initialize and ping; nil means [Tools]. It runs
	// on a goroutine of its own; ctx ends when the request is cancelled and
	// when the instance dies.
	Serve func(ctx context.Context, p *Peer, m wire.Message) wire.Reply
	// Greeted is what it does when it is told that the handshake is over; nil
	// means nothing. It runs as Serve does.
	Greeted func(ctx context.Context, p *Peer)
}

// DefaultInit is the result of initialize where a [Life] has none.
const DefaultInit = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"logging":{}},"serverInfo":{"name":"sim","version":"1"}}`

// A Backend makes simulated instances. It is safe for concurrent use; Life is
// set before the first use.
type Backend struct {
	// Life returns how the n-th instance of a server fares, n from 1. It is
	// called concurrently. Nil means the zero [Life] for all.
	Life func(spec *sandbox.Spec, n int) Life
	// Cores is how many starts can go on at full speed at once; with more of
	// them each is slower. 0 means any number in the ordinary class, and none in
	// the idle class beside them.
	Cores int

	cores cores
	mu    sync.Mutex
	made  map[string]int // server -> attempts
	live  map[string]*instance
	count Count
}

// A Count tells what a backend has done so far.
type Count struct {
	Created int // instances that ran
	Guessed int // of these, those whose Create was a Speculate
	Failed  int // calls of Create that returned an error
	Live    int // created, or being created, and not closed yet
	MaxLive int // the most there were of these at any time
}

// Count returns a snapshot.
func (b *Backend) Count() Count {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.count
}

// Live returns the ids of the instances that are created and not closed, sorted.
func (b *Backend) Live() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Sorted(maps.Keys(b.live))
}

// Kill makes the instance with that id die at once, and reports whether it was
// there.
func (b *Backend) Kill(id string) bool {
	b.mu.Lock()
	i := b.live[id]
	b.mu.Unlock()
	if i == nil {
		return false
	}
	i.die("killed by signal 9")
	return true
}

// Frozen returns the ids of the instances that are frozen, sorted.
func (b *Backend) Frozen() []string {
	return b.which(func(i *instance) bool { return i.isFrozen() })
}

// Lowly returns the ids of the instances that are in the idle class, sorted.
func (b *Backend) Lowly() []string {
	return b.which(func(i *instance) bool { return b.cores.isIdle(i.job) })
}

func (b *Backend) which(match func(*instance) bool) []string {
	b.mu.Lock()
	live := slices.Collect(maps.Values(b.live))
	b.mu.Unlock()
	var ids []string
	for _, i := range live {
		if match(i) {
			ids = append(ids, i.id)
		}
	}
	slices.Sort(ids)
	return ids
}

// Create implements [sandbox.Backend].
func (b *Backend) Create(ctx context.Context, id string, spec *sandbox.Spec, stderr io.Writer) (sandbox.Instance, error) {
	return b.create(ctx, id, spec, stderr, false)
}

// Speculate implements [sandbox.Speculator].
func (b *Backend) Speculate(ctx context.Context, id string, spec *sandbox.Spec, stderr io.Writer) (sandbox.Instance, error) {
	return b.create(ctx, id, spec, stderr, true)
}

func (b *Backend) create(ctx context.Context, id string, spec *sandbox.Spec, stderr io.Writer, idle bool) (sandbox.Instance, error) {
	b.mu.Lock()
	if b.made == nil {
		b.made, b.live = map[string]int{}, map[string]*instance{}
		b.cores.n = b.Cores
	}
	b.made[spec.Server]++
	n := b.made[spec.Server]
	b.count.Live++
	b.count.MaxLive = max(b.count.MaxLive, b.count.Live)
	b.mu.Unlock()

	var l Life
	if b.Life != nil {
		l = b.Life(spec, n)
	}
	j := newJob(idle)
	err := b.cores.run(ctx, j, l.Create, sandbox.Demanded(ctx))
	if err == nil && l.Err != nil {
		say(stderr, l.LastWords)
		err = l.Err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		b.count.Live--
		b.count.Failed++
		return nil, fmt.Errorf("server %q: %w", spec.Server, err)
	}
	b.count.Created++
	if idle {
		b.count.Guessed++
	}
	i := start(b, id, spec, l, j, stderr)
	b.live[id] = i
	return i, nil
}

func (b *Backend) gone(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.live, id)
	b.count.Live--
}

func pause(ctx context.Context, d time.Duration) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func say(w io.Writer, s string) {
	if s != "" {
		_, _ = io.WriteString(w, s+"\n")
	}
}

// An instance is the server and the transport to it.
type instance struct {
	b      *Backend
	id     string
	server string
	life   Life
	job    *job // of its start
	limit  int64
	born   time.Time
	stderr io.Writer

	toServer, toClient chan []byte
	cut                chan struct{} // closed when the client has closed its transport

	ctx    context.Context // the life of the instance
	cancel context.CancelFunc
	work   sync.WaitGroup
	dying  *time.Timer
	closed chan struct{} // closed when Close is done

	mu      sync.Mutex
	closing bool
	spare   int64         // bytes that were taken back
	frozen  chan struct{} // closed when it goes on; nil while it does
	isCut   bool
	exit    string
	calls   int
	state   int // of the tool "count"
	last    int64
	pending map[string]context.CancelFunc // requests under way, by id
	asked   map[string]chan wire.Message  // requests to the client, by id
}

func start(b *Backend, id string, spec *sandbox.Spec, l Life, j *job, stderr io.Writer) *instance {
	i := &instance{
		b: b, id: id, server: spec.Server, life: l, job: j, limit: cmp.Or(spec.Limit, wire.DefaultLimit), born: time.Now(), stderr: stderr,
		toServer: make(chan []byte), toClient: make(chan []byte),
		pending: map[string]context.CancelFunc{}, asked: map[string]chan wire.Message{}, closed: make(chan struct{}), cut: make(chan struct{}),
	}
	i.ctx, i.cancel = context.WithCancel(context.Background())
	if l.Dies > 0 {
		i.dying = time.AfterFunc(l.Dies, func() { i.die(cmp.Or(l.Exit, "exit status 1")) })
	}
	if !l.Deaf {
		i.work.Go(i.serve)
	}
	return i
}

// die ends the server, the first time it is called.
func (i *instance) die(exit string) {
	i.mu.Lock()
	first := i.exit == ""
	if first {
		i.exit = exit
	}
	i.mu.Unlock()
	if first {
		say(i.stderr, i.life.LastWords)
		i.cancel()
	}
}

// Close implements [sandbox.Instance].
func (i *instance) Close() error {
	i.mu.Lock()
	first := !i.closing
	i.closing = true
	i.mu.Unlock()
	if !first {
		<-i.closed // no sync.Once: time would stand still in a bubble while one waits for it
		return nil
	}
	defer close(i.closed)
	_ = pause(i.ctx, i.life.Close)
	i.mu.Lock()
	if i.exit == "" {
		i.exit = "stopped"
	}
	i.mu.Unlock()
	i.cancel()
	if i.dying != nil {
		i.dying.Stop()
	}
	i.work.Wait()
	i.b.gone(i.id)
	return nil
}

// Promote implements [sandbox.Promoter].
func (i *instance) Promote() error {
	i.b.cores.promote(i.job)
	return nil
}

// Freeze implements [sandbox.Freezer].
func (i *instance) Freeze() error {
	_ = pause(i.ctx, i.life.Freeze)
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case i.life.FreezeErr != nil:
		return fmt.Errorf("server %q: sandbox %s is not frozen: %w", i.server, i.id, i.life.FreezeErr)
	case i.exit != "" || i.closing:
		return fmt.Errorf("server %q: sandbox %s is not frozen: it is at its end", i.server, i.id)
	case i.frozen == nil:
		i.frozen = make(chan struct{})
	}
	return nil
}

// Reclaim implements [sandbox.Reclaimer].
func (i *instance) Reclaim() error {
	_ = pause(i.ctx, i.life.Reclaim)
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.frozen == nil {
		return fmt.Errorf("server %q: memory of sandbox %s is not taken back: it is not frozen", i.server, i.id)
	}
	i.spare = i.life.Spare
	return nil
}

// Thaw implements [sandbox.Freezer].
func (i *instance) Thaw() error {
	if !i.isFrozen() {
		return nil
	}
	err := cmp.Or(pause(i.ctx, i.life.Thaw), i.life.ThawErr)
	if err != nil {
		return fmt.Errorf("server %q: sandbox %s is not thawed: %w", i.server, i.id, err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.frozen != nil {
		close(i.frozen)
		i.frozen, i.spare = nil, 0
	}
	return nil
}

func (i *instance) isFrozen() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.frozen != nil
}

// running returns when the instance is not frozen, or is gone.
func (i *instance) running() {
	i.mu.Lock()
	frozen := i.frozen
	i.mu.Unlock()
	if frozen != nil {
		select {
		case <-frozen:
		case <-i.ctx.Done():
		}
	}
}

// Transport implements [sandbox.Instance].
func (i *instance) Transport() wire.Transport { return transport{i} }

// Usage implements [sandbox.Instance].
func (i *instance) Usage() sandbox.Usage {
	i.mu.Lock()
	calls, exit, spare := i.calls, i.exit, i.spare
	i.mu.Unlock()
	u := sandbox.Usage{Exit: exit}
	if i.life.Memory != nil {
		u.Peak = i.life.Memory(time.Since(i.born), calls)
	}
	if exit == "" {
		u.Memory = max(0, u.Peak-spare)
	}
	return u
}

// A transport is the client's end.
type transport struct{ i *instance }

func (t transport) Read() ([]byte, error) {
	select {
	case raw := <-t.i.toClient:
		if size := int64(len(raw)); size > t.i.limit {
			const peek = 4 << 10 // as wire.Lines keeps
			return nil, &wire.TooLongError{Size: size, Limit: t.i.limit, Head: raw[:min(peek, size)], Tail: raw[max(0, size-peek):]}
		}
		return raw, nil
	case <-t.i.ctx.Done():
		return nil, io.EOF
	case <-t.i.cut:
		return nil, io.EOF
	}
}

func (t transport) Write(parts ...[]byte) error {
	select {
	case t.i.toServer <- bytes.Join(parts, nil):
		return nil
	case <-t.i.ctx.Done():
		return io.ErrClosedPipe
	case <-t.i.cut:
		return io.ErrClosedPipe
	}
}

// Close is EOF to the server: one that takes no time to stop ends.
func (t transport) Close() error {
	t.i.mu.Lock()
	if !t.i.isCut {
		t.i.isCut = true
		close(t.i.cut)
	}
	t.i.mu.Unlock()
	if t.i.life.Close == 0 {
		t.i.die("exit status 0")
	}
	return nil
}
