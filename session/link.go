package session

import (
	"strings"

	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/wire"
)

// A link brings what the server of a session's own sandbox says to the session.
type link struct {
	s      *Session
	server *Server
}

// Notified takes a notification that belongs to no call.
func (l *link) Notified(c *wire.Conn, m wire.Message) {
	switch {
	case strings.HasSuffix(m.Method, "/list_changed"):
		saw := l.s.saw(m.Method)
		l.s.hub.relist(c, l.server, l.s.tenant, sandbox.Client{Capabilities: l.s.caps, Info: l.s.info}, m.Method, func(changed bool) {
			l.s.forwardChange(m.Method, changed, saw)
		})
	case m.Method == "notifications/subscriptions/acknowledged":
		l.s.hub.acknowledged(c)
	case m.Method == "notifications/cancelled":
		l.s.withdraw(c, l.server.Name, m)
	case m.Method == "notifications/resources/updated":
		l.s.updated(l.server.Name, m)
	default:
		if err := l.s.tell(l.server.Name, wire.NotificationParts(m.Method, m.Params)); err != nil {
			l.s.hub.cfg.Log.Debug("notification not delivered", "session", l.s.id, "method", m.Method, "err", err)
		}
	}
}

// Requested takes a request of the server.
func (l *link) Requested(c *wire.Conn, m wire.Message) { l.s.ask(c, l.server.Name, m) }

// updated passes on that a resource changed, under the URI that the client
// knows it by.
func (s *Session) updated(server string, m wire.Message) {
	params := m.Params
	own := wire.Str(params, "uri")
	if uri := s.view().Shown(server, own); uri != own {
		params = wire.Replace(params, wire.Quote(uri), "uri")
	}
	if err := s.background.Send(wire.NotificationParts(m.Method, params)...); err != nil {
		s.hub.cfg.Log.Debug("notification not delivered", "session", s.id, "method", m.Method, "err", err)
	}
}

// A sharedLink stands behind a sandbox that several sessions use. The server
// was told that its client can do nothing, so it has nothing to ask.
type sharedLink struct {
	h      *Hub
	server *Server
	tenant string // "" for all
}

// Notified brings a notification to the sessions that it is meant for, as far
// as that can be told.
func (l *sharedLink) Notified(c *wire.Conn, m wire.Message) {
	switch {
	case strings.HasSuffix(m.Method, "/list_changed"):
		l.h.relist(c, l.server, l.tenant, sandbox.Client{Info: l.h.clientInfo()}, m.Method, func(bool) {})
	case m.Method == "notifications/subscriptions/acknowledged":
		l.h.acknowledged(c)
	case m.Method == "notifications/resources/updated":
		uri := wire.Str(m.Params, "uri")
		for _, s := range l.h.each(func(s *Session) bool { return l.mine(s) && s.subscribedTo(l.server.Name, uri) }) {
			s.updated(l.server.Name, m)
		}
	default: // it names no call: it is for the only session that is calling, or for nobody
		calling := l.h.each(func(s *Session) bool { return l.mine(s) && s.calling(l.server.Name) })
		if len(calling) == 1 && calling[0].tell(l.server.Name, wire.NotificationParts(m.Method, m.Params)) == nil {
			return
		}
		l.h.cfg.Log.Debug("a shared server said something that may be anyone's", "server", l.server.Name, "method", m.Method)
	}
}

// Requested refuses: whose client would answer?
func (l *sharedLink) Requested(c *wire.Conn, m wire.Message) {
	l.h.refuse(c, m.ID, wire.CodeMethodNotFound,
		"the sandbox of %q is shared by sessions, so no client can be asked; scope: session allows %s", l.server.Name, m.Method)
}

func (l *sharedLink) mine(s *Session) bool { return l.tenant == "" || l.tenant == s.tenant }

func (s *Session) subscribedTo(server, uri string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.subs[server] {
		if u == uri {
			return true
		}
	}
	return false
}

func (s *Session) calling(server string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls {
		if c.server == server {
			return true
		}
	}
	return false
}
