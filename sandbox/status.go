package sandbox

import (
	"cmp"
	"slices"
	"time"

	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/trace"
	"github.com/specbox/specbox/wire"
)

// A Status is a snapshot of one sandbox.
type Status struct {
	ID      string
	Server  string
	Hash    string // of the configuration that it runs
	Tenant  string // "" for scope shared
	Session string // "" where sessions share it
	Scope   config.Scope
	Backend config.Isolation
	State   State
	Cause   trace.Cause
	P       float64       // how sure the guess was that it was started on; 0 if it was none
	Asked   time.Time     // when its start was asked for
	Lead    time.Duration // how long after that the first call came for it; 0 if none has
	Claimed bool          // somebody has come for it, or it was no guess
	PID     int           // 0 where the backend has none
	Memory  int64         // bytes in use
	Peak    int64
	Since   time.Time // when its State began, where ready, leased and frozen are one
	Uses    int       // calls under way, or waiting for it
	Idle    time.Time // since when no call uses it; zero if one does
}

// List returns all sandboxes, those that wait for their start included, oldest
// state first.
func (m *Manager) List() []Status {
	m.sample(func(*box) bool { return true })
	var out []Status
	m.update(func(s *state, _ time.Time) {
		for b := range s.boxes {
			st := Status{
				ID: b.id, Server: b.server, Hash: b.hash, Tenant: b.tenant, Session: b.session, Scope: cmp.Or(b.spec.Scope, config.PerSession),
				Backend: b.spec.Isolation, State: b.state, Cause: b.cause, P: b.p, Asked: b.asked, Lead: b.lead, Claimed: !b.guess,
				PID: b.usage.PID, Memory: b.usage.Memory, Peak: b.usage.Peak, Since: b.since, Uses: b.uses + b.waiters,
			}
			if b.state == Ready || b.state == Frozen {
				st.Idle = b.idle
			}
			out = append(out, st)
		}
	})
	slices.SortFunc(out, func(a, b Status) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.ID, b.ID)) })
	return out
}

// A Peer is the live connection to one server of a session.
type Peer struct {
	Server  string
	Sandbox string
	Conn    *wire.Conn
	Init    []byte // result of initialize or server/discover; not to be changed
	Modern  bool   // see [Lease.Modern]
}

// Live returns the ready sandboxes that belong to one session alone. It starts
// nothing and keeps nothing alive.
func (m *Manager) Live(tenant, session string) []Peer {
	var out []Peer
	m.update(func(s *state, _ time.Time) {
		for b := range s.boxes {
			if b.state.live() && b.session == session && session != "" && b.owner == (owner{tenant: tenant}) {
				out = append(out, Peer{Server: b.server, Sandbox: b.id, Conn: b.conn, Init: b.init, Modern: b.modern})
			}
		}
	})
	slices.SortFunc(out, func(a, b Peer) int { return cmp.Compare(a.Server, b.Server) })
	return out
}

// Stats counts sandboxes.
type Stats struct {
	States    map[State]int
	Idle      int   // ready or frozen: used by no call
	Uses      int   // leases
	Live      int   // count in the budget
	Limit     int   // of Live
	Unclaimed int   // of Live, those that were started on a guess and that nobody has come for
	Memory    int64 // bytes in use when they were last looked at, see [Manager.List]
}

// Stats returns a snapshot.
func (m *Manager) Stats() Stats {
	st := Stats{States: map[State]int{}, Limit: m.cfg.Sandboxes}
	m.update(func(s *state, _ time.Time) {
		st.Live, st.Unclaimed = s.live, s.guesses
		for b := range s.boxes {
			st.States[b.state]++
			st.Uses += b.uses
			st.Memory += b.usage.Memory
			if b.state == Ready || b.state == Frozen {
				st.Idle++
			}
		}
	})
	return st
}
