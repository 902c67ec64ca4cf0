package specbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/specbox/specbox/catalog"
	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/control"
	"github.com/specbox/specbox/launcher"
	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/session"
	"github.com/specbox/specbox/tenant"
	"github.com/specbox/specbox/wire"
)

// Control returns what stands behind the operator's door.
func (r *Runtime) Control() control.Runtime {
	return control.Runtime{
		Health:        func(context.Context) (control.Health, error) { return r.health(), nil },
		PS:            func(context.Context) ([]control.Sandbox, error) { return r.ps(), nil },
		Conversations: func(context.Context) ([]control.Conversation, error) { return r.conversations(), nil },
		Activity:      func(context.Context) (control.Activity, error) { return r.recent.Activity(), nil },
		Logs:          r.logs,
		Stop:          r.stop,
		Tools:         func(_ context.Context, t string) ([]control.Tool, error) { return r.tools(t) },
		Call:          r.call,
		Catalog:       func(context.Context) ([]control.CatalogRow, error) { return r.catalogRows(), nil },
		Refresh:       r.refresh,
		Servers:       func(context.Context) ([]control.Server, error) { return r.serverRows(), nil },
		Update:        r.update,
	}
}

func (r *Runtime) health() control.Health {
	st := r.sandboxes.List()
	h := control.Health{
		Version: r.opts.Version, PID: os.Getpid(), Started: r.started,
		Tokens: !r.tenants.Open(), Config: r.opts.Config.File,
		Sandboxes: len(st), Sessions: sum(r.hub.Sessions()), Warnings: r.Warnings(),
	}
	h.URL = r.URL()
	for _, s := range st {
		h.Memory += s.Memory
	}
	h.Servers = len(r.hub.Servers())
	return h
}

func sum(m map[string]int) int {
	n := 0
	for _, v := range m {
		n += v
	}
	return n
}

// Warnings returns what an operator should know: servers without isolation, and
// servers that cannot run.
func (r *Runtime) Warnings() []string {
	var out []string
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, v := range r.servers {
		if v.server.Isolation == config.None {
			out = append(out, fmt.Sprintf("%s: %s", v.server.Name, noIsolation))
		}
		if v.err != nil && !v.missing {
			out = append(out, fmt.Sprintf("%s: %v", v.server.Name, v.err))
		}
	}
	return out
}

const noIsolation = "runs without isolation: it can read and change whatever you can"

func (r *Runtime) ps() []control.Sandbox {
	out := []control.Sandbox{}
	for _, s := range r.sandboxes.List() {
		row := control.Sandbox{
			ID: s.ID, Server: s.Server, Tenant: s.Tenant, Session: s.Session, State: string(s.State), Cause: string(s.Cause),
			Backend: string(s.Backend), PID: s.PID, Memory: s.Memory, Age: time.Since(s.Since).Milliseconds(), Calls: int64(s.Uses),
			P: s.P, Lead: s.Lead.Milliseconds(), Unused: !s.Claimed,
		}
		if !s.Idle.IsZero() {
			row.Idle = time.Since(s.Idle).Milliseconds()
		}
		if s.Backend == config.None {
			row.IsolationWarning = noIsolation
		}
		out = append(out, row)
	}
	return out
}

// conversations tells of those with models, the busy ones first, then those that
// were heard of last.
func (r *Runtime) conversations() []control.Conversation {
	out := []control.Conversation{}
	for _, c := range r.hub.Conversations() {
		out = append(out, control.Conversation{
			Tenant: c.Tenant, Key: c.Key, Hash: c.Hash, Joined: c.Rung, Sessions: append([]string{}, c.Sessions...), Streams: c.Streams, Steps: c.Steps,
			Expects: append([]string{}, c.Expects...), Idle: time.Since(c.Touched).Milliseconds(),
		})
	}
	slices.SortStableFunc(out, func(a, b control.Conversation) int {
		return cmp.Or(cmp.Compare(b.Streams, a.Streams), cmp.Compare(a.Idle, b.Idle))
	})
	return out
}

func (r *Runtime) gauges() control.Gauges {
	g := control.Gauges{Version: r.opts.Version, Sessions: r.hub.Sessions()}
	live := map[control.Live]control.Live{}
	for _, s := range r.sandboxes.List() {
		key := control.Live{Server: s.Server, Tenant: s.Tenant, State: string(s.State)}
		sum := live[key]
		sum.Server, sum.Tenant, sum.State = key.Server, key.Tenant, key.State
		sum.Sandboxes++
		sum.Memory += s.Memory
		live[key] = sum
	}
	g.Sandboxes = slices.Collect(maps.Values(live))
	return g
}

func (r *Runtime) logs(ctx context.Context, tenant, server string, follow bool, on func(control.Line) error) error {
	return r.sandboxes.Follow(ctx, tenant, server, follow, func(l sandbox.LogLine) error {
		return on(control.Line{Time: l.Time, Server: l.Server, Tenant: l.Tenant, Sandbox: l.Sandbox, Text: l.Text})
	})
}

func (r *Runtime) stop(ctx context.Context, sel control.Selector) (int, error) {
	return r.sandboxes.Stop(ctx, func(s sandbox.Status) bool {
		return sel.Match(control.Sandbox{ID: s.ID, Server: s.Server, Tenant: s.Tenant, Session: s.Session})
	})
}

// orDefault returns the tenant that a request of the operator is about.
func (r *Runtime) orDefault(name string) (string, error) {
	if name != "" {
		for _, t := range r.opts.Config.Tenants {
			if t.Name == name {
				return name, nil
			}
		}
		if name == tenant.Default && r.tenants.Open() {
			return name, nil
		}
		return "", control.NotFound(fmt.Sprintf("there is no tenant %q", name), "the tenants stand in the configuration file")
	}
	if r.tenants.Open() {
		return tenant.Default, nil
	}
	return "", &control.Error{Message: "whose tools? there are tenants", Hint: "name one with --tenant", Status: http.StatusBadRequest}
}

func (r *Runtime) tools(name string) ([]control.Tool, error) {
	name, err := r.orDefault(name)
	if err != nil {
		return nil, err
	}
	out := []control.Tool{}
	for _, t := range r.hub.Tools(name) {
		out = append(out, control.Tool{
			Name: t.Name, Server: t.Server, Tool: t.Tool,
			Description: wire.Str(t.Raw, "description"), Annotations: wire.Get(t.Raw, "annotations"), InputSchema: wire.Get(t.Raw, "inputSchema"),
		})
	}
	return out, nil
}

// call opens a session for one call of the operator and closes it again.
func (r *Runtime) call(ctx context.Context, name, tool string, args json.RawMessage, on func(control.Progress) error) (json.RawMessage, error) {
	name, err := r.orDefault(name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	told := sender(func(msg []byte) error {
		m, err := wire.Parse(msg)
		if err != nil || m.Method != "notifications/progress" {
			return err
		}
		var p struct {
			Progress, Total float64
			Message         string
		}
		if err := json.Unmarshal(m.Params, &p); err != nil {
			return err
		}
		err = on(control.Progress{Phase: "call", Done: p.Progress, Total: p.Total, Message: p.Message})
		if err != nil {
			cancel(err)
		}
		return err
	})
	s, err := r.hub.Open(session.Opening{Tenant: name, Session: session.NewID(), Params: []byte(`{"capabilities":{},"clientInfo":{"name":"specbox tools call","version":` + string(wire.Quote(r.opts.Version)) + `}}`)}, told)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	if len(args) == 0 {
		args = json.RawMessage("{}")
	}
	params := slices.Concat([]byte(`{"name":`), wire.Quote(tool), []byte(`,"arguments":`), args, []byte(`,"_meta":{"progressToken":0}}`))
	reply := s.Request(ctx, wire.Message{ID: []byte("1"), Method: "tools/call", Params: params, Raw: params}, told)
	if err := reply.Err(); err != nil {
		e := &control.Error{Message: err.Error(), Cause: err}
		var known *wire.Error
		if errors.As(err, &known) && known.Code == wire.CodeInvalidParams && strings.HasPrefix(known.Message, "unknown tool") {
			e.Status, e.Hint = http.StatusNotFound, "specbox tools ls shows the names"
		}
		return nil, e
	}
	return reply.Result, nil
}

// A sender is a func as a [wire.Sender].
type sender func(msg []byte) error

func (f sender) Send(parts ...[]byte) error { return f(slices.Concat(parts...)) }

func (r *Runtime) catalogRows() []control.CatalogRow {
	stored := map[string][]*catalog.Entry{}
	for _, e := range r.hub.Entries() {
		stored[e.Key.Server] = append(stored[e.Key.Server], e)
	}
	rows := []control.CatalogRow{}
	for _, s := range r.hub.Servers() {
		if len(stored[s.Name]) == 0 {
			rows = append(rows, control.CatalogRow{Server: s.Name, Error: s.Unready})
		}
		for _, e := range stored[s.Name] {
			rows = append(rows, control.CatalogRow{
				Server: s.Name, Tenant: e.Key.Tenant, Fingerprint: e.Key.Fingerprint,
				Tools: len(e.Tools), Prompts: len(e.Prompts), Resources: len(e.Resources), Templates: len(e.Templates),
				Filled: e.Filled, Truncated: e.Truncated, Error: e.Problem(),
			})
		}
	}
	return rows
}

func (r *Runtime) refresh(ctx context.Context, names []string, on func(control.Progress) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	err := r.hub.Fill(ctx, names, true, func(f session.FillReport) {
		p := control.Progress{Server: f.Server, Phase: "catalog", Done: float64(f.Done), Total: float64(f.Total)}
		if f.Err != nil {
			p.Error = f.Err.Error()
		}
		if err := on(p); err != nil {
			cancel(err)
		}
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	_ = err // each server's error was reported, and ends nothing
	return nil
}

func (r *Runtime) update(ctx context.Context, names []string, on func(control.Progress) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r.install(ctx, names, true, func(p Progress) {
		c := control.Progress{Server: p.Server, Phase: p.Phase, Done: float64(p.Done), Total: float64(p.Total), Message: p.Message}
		if p.Err != nil {
			c.Error = p.Err.Error()
		}
		if err := on(c); err != nil {
			cancel(err)
		}
	}, nil)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return r.refreshUnread(ctx, names, on)
}

// refreshUnread reads what an update has made unknown.
func (r *Runtime) refreshUnread(ctx context.Context, names []string, on func(control.Progress) error) error {
	var gone error
	_ = r.hub.Fill(ctx, names, false, func(f session.FillReport) { // errors are reported
		p := control.Progress{Server: f.Server, Phase: "catalog", Done: float64(f.Done), Total: float64(f.Total)}
		if f.Err != nil {
			p.Error = f.Err.Error()
		}
		gone = cmp.Or(gone, on(p))
	})
	return gone
}

func (r *Runtime) serverRows() []control.Server {
	r.mu.Lock()
	byName := map[string]resolved{}
	for _, v := range r.servers {
		byName[v.server.Name] = v
	}
	r.mu.Unlock()
	rows := []control.Server{}
	for _, s := range r.opts.Config.Servers {
		v, enabled := byName[s.Name]
		row := control.Server{
			Name: s.Name, Runs: s.Runs(), Isolation: string(s.Isolation), Network: s.Network.String(), Scope: string(s.Scope), Disabled: !enabled,
		}
		if pkg, ok := launcher.For(s); ok {
			row.Package = pkg.String()
			if v.program != nil {
				row.Version = v.program.Version
			}
		}
		if s.Isolation == config.None {
			row.Warnings = append(row.Warnings, noIsolation)
		}
		if v.err != nil {
			row.Warnings = append(row.Warnings, v.err.Error())
		}
		if v.program != nil {
			row.Notes = v.program.Notes
		}
		rows = append(rows, row)
	}
	return rows
}
