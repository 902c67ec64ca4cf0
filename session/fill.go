package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/specbox/specbox/catalog"
	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/trace"
	"github.com/specbox/specbox/wire"
)

// A fill is the reading of one entry; who needs it waits for done.
type fill struct {
	done chan struct{}
	err  error
}

var none = []byte(catalog.NoCapabilities)

// catalogSession prefixes the names of the sessions that fill the catalogue.
const catalogSession = "catalog-"

// fillGrace is what a fill may take beyond the start: the lists themselves.
const fillGrace = 30 * time.Second

// slotHold is how long a fill keeps others from starting: the processor is
// busy in the first seconds, and one that hangs must not delay the rest.
const slotHold = 5 * time.Second

// maxFills bounds the fills that wait: a client can make up capabilities that
// no entry was read for, each time it comes.
const maxFills = 1000

// retryFill is how long a server that could not be read is left alone.
const retryFill = time.Minute

// A FillReport tells how the filling of one server went.
type FillReport struct {
	Server string
	Err    error
	Done   int // servers finished so far
	Total  int
}

// Fill reads the lists of the named servers (all, if none is named) that have
// no entry, or with again of all of them, and returns when it is done. One that
// hangs or fails delays nobody. report, which may be nil, is called for each
// server, one call at a time. The error joins those of the servers.
func (h *Hub) Fill(ctx context.Context, names []string, again bool, report func(FillReport)) error {
	var todo []*Server
	for _, srv := range h.Servers() {
		if len(names) > 0 && !slices.Contains(names, srv.Name) {
			continue
		}
		if again || h.unread(srv) {
			todo = append(todo, srv)
		}
	}
	type outcome struct {
		srv *Server
		err error
	}
	ch := make(chan outcome, len(todo))
	for _, srv := range todo {
		go func() { ch <- outcome{srv, h.fillBoth(ctx, srv)} }() // ends with ctx
	}
	var errs []error
	for i := range todo {
		o := <-ch
		if o.err != nil {
			errs = append(errs, o.err)
		}
		if report != nil && h.life.Err() == nil && ctx.Err() == nil { // who stops has no use for what fails of that
			report(FillReport{Server: o.srv.Name, Err: o.err, Done: i + 1, Total: len(todo)})
		}
	}
	return errors.Join(errs...)
}

// Unread returns which of the named servers [Hub.Fill] would read.
func (h *Hub) Unread(names []string) []string {
	var out []string
	for _, srv := range h.Servers() {
		if slices.Contains(names, srv.Name) && h.unread(srv) {
			out = append(out, srv.Name)
		}
	}
	return out
}

// unread reports whether a server lacks what a first fill reads.
func (h *Hub) unread(srv *Server) bool {
	for _, caps := range capabilities(srv) {
		e, exact := h.cfg.Catalog.Lookup(h.key(srv, caps))
		if e == nil || !exact || e.Err != "" {
			return true
		}
	}
	return false
}

// capabilities returns the capability sets that a server is read with. What
// sessions share is told that its client can do nothing.
func capabilities(srv *Server) [][]byte {
	if srv.Spec != nil && srv.Spec.Scope != config.PerSession {
		return [][]byte{none}
	}
	return [][]byte{none, []byte(catalog.FullCapabilities)}
}

func (h *Hub) key(srv *Server, caps []byte) catalog.Key {
	return catalog.Key{Server: srv.Name, Hash: srv.Hash, Fingerprint: catalog.Fingerprint(caps)}
}

func (h *Hub) fillBoth(ctx context.Context, srv *Server) error {
	if srv.Spec == nil {
		return fmt.Errorf("server %q cannot be started: %s", srv.Name, srv.Unready)
	}
	for _, caps := range capabilities(srv) {
		f := h.startFill(srv, caps)
		select {
		case <-f.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if f.err != nil {
			return f.err
		}
	}
	return nil
}

// startFill begins the reading of one entry, or joins the one under way.
func (h *Hub) startFill(srv *Server, caps []byte) *fill {
	key := h.key(srv, caps)
	h.mu.Lock()
	defer h.mu.Unlock()
	if f := h.fills[key]; f != nil {
		return f
	}
	f := &fill{done: make(chan struct{})}
	switch {
	case h.closed:
		f.err = ErrClosed
	case len(h.fills) >= maxFills:
		f.err = fmt.Errorf("server %q is not read now: %d readings wait already", srv.Name, maxFills)
	}
	if f.err != nil {
		close(f.done)
		return f
	}
	h.fills[key] = f
	h.work.Go(func() {
		begin := time.Now()
		f.err = h.read(srv, caps, key)
		e := trace.Event{Kind: trace.CatalogFill, Server: srv.Name, Provision: time.Since(begin)}
		if f.err != nil && h.life.Err() == nil {
			e.Err = f.err.Error()
			if err := h.cfg.Catalog.SetError(key, f.err); err != nil {
				h.cfg.Log.Warn("catalogue: an error was not stored", "server", srv.Name, "err", err)
			}
			h.cfg.Log.Debug("catalogue: server not read", "server", srv.Name, "err", f.err)
		}
		h.cfg.Recorder.Record(e)
		h.mu.Lock()
		delete(h.fills, key)
		delete(h.failed, key)
		if f.err != nil {
			h.forgetFailed()
			h.failed[key] = time.Now()
		}
		h.mu.Unlock()
		close(f.done)
	})
	return f
}

// read starts a sandbox on nobody's behalf and stores what it offers.
func (h *Hub) read(srv *Server, caps []byte, key catalog.Key) error {
	select {
	case h.slot <- struct{}{}:
	case <-h.life.Done():
		return ErrClosed
	}
	free := time.AfterFunc(slotHold, func() { <-h.slot })
	defer func() {
		if free.Stop() {
			<-h.slot
		}
	}()
	ctx, cancel := context.WithTimeout(h.life, srv.Spec.StartTimeout+fillGrace)
	defer cancel()
	client := sandbox.Client{Version: Latest, Capabilities: caps, Info: h.clientInfo()}
	if srv.remote() { // it costs a remote server nothing to be asked in the newer era first
		client.Version = wire.Modern
		if e, err := h.fetch(ctx, srv, client, key); err == nil && len(e.Errors) == 0 {
			_, err = h.cfg.Catalog.Put(e)
			return err
		}
		client.Version = Latest
	}
	e, err := h.fetch(ctx, srv, client, key)
	if err == nil {
		_, err = h.cfg.Catalog.Put(e)
	}
	return err
}

// fetch starts a sandbox that is met as client says and reads its lists.
func (h *Hub) fetch(ctx context.Context, srv *Server, client sandbox.Client, key catalog.Key) (*catalog.Entry, error) {
	session := catalogSession + NewID()
	defer h.cfg.Sandboxes.EndSession("", session)
	demand, err := h.demand(srv, session, client)
	if err != nil {
		return nil, err
	}
	lease, err := h.cfg.Sandboxes.Acquire(ctx, demand)
	if err != nil {
		return nil, err
	}
	defer lease.Release()
	var caller catalog.Caller = lease.Conn()
	eras := catalog.Legacy
	if lease.Modern() {
		caller, eras = metaCaller{lease.Conn(), client}, catalog.Modern
	}
	e, err := catalog.Fetch(ctx, caller, key, lease.Init(), catalog.Bounds{})
	if err != nil {
		return nil, srv.Spec.RedactError(lease.Explain(err))
	}
	for list, why := range e.Errors {
		e.Errors[list] = srv.Spec.Redact(why)
	}
	if eras == catalog.Legacy && !srv.remote() && speaksModern(ctx, lease.Conn(), client) {
		eras = catalog.Both
	}
	e.Eras = eras
	return e, nil
}

// demand says which sandbox a reading needs: one of its own, that goes when it
// has been read, save where all share one. That one stays for those who come
// later, and must be theirs from the beginning.
func (h *Hub) demand(srv *Server, session string, client sandbox.Client) (sandbox.Demand, error) {
	d := sandbox.Demand{Session: session, Cause: trace.Catalog, Handler: reader{h}, Client: client}
	if srv.Spec.Scope == config.Shared && !srv.remote() {
		var err error
		d.Handler = &sharedLink{h: h, server: srv}
		d.Spec, err = srv.at("")
		return d, err
	}
	own := *srv.Spec
	own.Scope = config.PerSession
	d.Spec = &own
	return d, nil
}

func (h *Hub) clientInfo() []byte {
	return []byte(`{"name":"specbox","version":` + string(wire.Quote(h.cfg.Version)) + `}`)
}

// A reader answers servers that ask for something while they are only read.
type reader struct{ h *Hub }

func (reader) Notified(*wire.Conn, wire.Message) {}

func (r reader) Requested(c *wire.Conn, m wire.Message) {
	if m.Method == "roots/list" {
		_ = c.Respond(m.ID, wire.Reply{Result: []byte(`{"roots":[]}`)}) // a dead connection says so elsewhere
		return
	}
	r.h.refuse(c, m.ID, wire.CodeInternal, "nobody is there to answer %s: the catalogue is being read", m.Method)
}

// complete waits, at most for bound, until what the view lacks has been read,
// and reports whether there may be more to see.
func (s *Session) complete(ctx context.Context, v view, bound time.Duration) bool {
	var waits []*fill
	need := func(members []catalog.Member, caps []byte) {
		for _, m := range members {
			srv := s.hub.Server(s.tenant, m.Server)
			if srv == nil || srv.Spec == nil {
				continue
			}
			switch since, failed := s.hub.failedSince(s.hub.key(srv, caps)); {
			case !failed:
				waits = append(waits, s.hub.startFill(srv, caps))
			case since > retryFill: // nobody waits for it again
				s.hub.startFill(srv, caps)
			}
		}
	}
	need(v.Missing(), none)
	need(slices.DeleteFunc(v.Inexact(), func(m catalog.Member) bool {
		srv := s.hub.Server(s.tenant, m.Server)
		return srv == nil || srv.Spec == nil || srv.Spec.Scope != config.PerSession
	}), s.caps)
	if len(waits) == 0 {
		return false
	}
	timer := time.NewTimer(bound)
	defer timer.Stop()
	for _, f := range waits {
		select {
		case <-f.done:
		case <-timer.C:
			return true
		case <-ctx.Done():
			return true
		}
	}
	return true
}

// forgetFailed makes room among the failures, since clients can make up
// capabilities without end: what failed longest ago may be tried again. The
// caller holds the lock.
func (h *Hub) forgetFailed() {
	if len(h.failed) < maxFills {
		return
	}
	var oldest catalog.Key
	var at time.Time
	for key, t := range h.failed {
		if at.IsZero() || t.Before(at) {
			oldest, at = key, t
		}
	}
	delete(h.failed, oldest)
}

// failedSince returns how long ago the reading of an entry failed, if its last
// one did.
func (h *Hub) failedSince(key catalog.Key) (time.Duration, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at, ok := h.failed[key]
	return time.Since(at), ok
}

// How long lists are left alone after they were read again. It grows while the
// server goes on to announce changes: some do so without end.
const (
	relistMin = 250 * time.Millisecond
	relistMax = 10 * time.Second
)

// maxAnnounced bounds the kinds of announcements that wait for one reading: the
// protocol has three.
const maxAnnounced = 8

// relist reads the lists of a server again, through the sandbox that announced
// by method that they have changed, and stores them for its tenant, as the
// sandbox's client sees them. Then it calls read with whether anything changed.
// What is announced meanwhile makes it read once more, after a rest; of what is
// announced again read is not told if nothing changed.
func (h *Hub) relist(c *wire.Conn, srv *Server, tenant string, client sandbox.Client, method string, read func(changed bool)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if waiting, running := h.refetch[c]; running {
		if len(waiting) < maxAnnounced {
			waiting[method] = read
		}
		return
	}
	if h.closed {
		return
	}
	announced := map[string]func(bool){method: read}
	h.refetch[c] = map[string]func(bool){}
	key := h.key(srv, none)
	key.Tenant = tenant
	key.Fingerprint = catalog.Fingerprint(client.Capabilities)
	h.work.Go(func() {
		var before map[string]func(bool)
		for pause := relistMin; len(announced) > 0; pause = min(2*pause, relistMax) {
			changed := h.reread(c, key, client)
			for method, read := range announced {
				if h.life.Err() == nil && (changed || before[method] == nil) {
					read(changed)
				}
			}
			rest(h.life, c, pause)
			before = announced
			h.mu.Lock()
			announced = h.refetch[c]
			if len(announced) == 0 || c.Err() != nil || h.closed {
				announced = nil
				delete(h.refetch, c)
			} else {
				h.refetch[c] = map[string]func(bool){}
			}
			h.mu.Unlock()
		}
	})
}

// rest waits, but not longer than the hall and the connection live.
func rest(life context.Context, c *wire.Conn, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-c.Done():
	case <-life.Done():
	}
}

func (h *Hub) reread(c *wire.Conn, key catalog.Key, client sandbox.Client) (changed bool) {
	ctx, cancel := context.WithTimeout(h.life, fillGrace)
	defer cancel()
	old, _ := h.cfg.Catalog.Lookup(key)
	if old == nil {
		return false // it is being read for the first time, by who saw the change already
	}
	var caller catalog.Caller = c
	if old.Eras != catalog.Legacy { // it may have been met in the modern era
		caller = metaCaller{c, client}
	}
	e, err := catalog.Fetch(ctx, caller, key, old.Init, catalog.Bounds{})
	if err == nil {
		e.Eras = old.Eras
		changed = !sameLists(old, e)
		_, err = h.cfg.Catalog.Put(e)
	}
	if err != nil && c.Err() == nil && h.life.Err() == nil {
		h.cfg.Log.Warn("catalogue: lists that have changed were not read", "server", key.Server, "err", err)
	}
	return changed
}

func sameLists(a, b *catalog.Entry) bool {
	for list := range changes {
		if !slices.EqualFunc(a.List(list), b.List(list), func(x, y catalog.Item) bool { return bytes.Equal(x.Raw, y.Raw) }) {
			return false
		}
	}
	return true
}
