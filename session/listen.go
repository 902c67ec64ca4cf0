package session

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"

	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/wire"
)

// A listen is a stream on which a modern client hears what belongs to no call.
type listen struct {
	id     []byte // of the request, which names the subscription
	lists  map[string]bool
	uris   []string // as the client knows them
	stream wire.Sender
}

// listenTo are the members of a listen request, by the notification they ask for.
var listenTo = map[string]string{
	"toolsListChanged":     "notifications/tools/list_changed",
	"promptsListChanged":   "notifications/prompts/list_changed",
	"resourcesListChanged": "notifications/resources/list_changed",
}

// listen serves subscriptions/listen: it returns when ctx ends.
func (s *Session) listen(ctx context.Context, m wire.Message, stream wire.Sender) wire.Reply {
	asked := wire.Get(m.Params, "notifications")
	var want struct {
		URIs []string `json:"resourceSubscriptions,omitempty"`
	}
	if len(asked) == 0 || asked[0] != '{' || json.Unmarshal(asked, &want) != nil {
		return wire.Fail(wire.CodeInvalidParams, "subscriptions/listen does not say which notifications it wants")
	}
	l := &listen{id: bytes.Clone(m.ID), lists: map[string]bool{}, stream: stream}
	granted := []byte("{}")
	for member, method := range listenTo {
		if string(wire.Get(asked, member)) == "true" {
			l.lists[method] = true
			granted = wire.Set(granted, []byte("true"), member)
		}
	}
	for _, uri := range want.URIs {
		stop, err := s.watch(ctx, uri, stream)
		if err != nil {
			s.hub.cfg.Log.Debug("a resource is not watched", "session", s.id, "uri", uri, "err", err)
			continue
		}
		defer stop()
		l.uris = append(l.uris, uri)
	}
	if l.uris != nil {
		uris, err := json.Marshal(l.uris)
		if err != nil {
			return wire.Fail(wire.CodeInternal, "%v", err)
		}
		granted = wire.Set(granted, uris, "resourceSubscriptions")
	}
	v := s.view()
	s.mu.Lock()
	s.listens = append(s.listens, l)
	for list, method := range changes {
		if l.lists[method] && s.seen[list] == nil {
			s.seen[list] = v.View
		}
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.listens = slices.DeleteFunc(s.listens, func(o *listen) bool { return o == l })
		s.mu.Unlock()
	}()
	meta := append(append([]byte(`{`), wire.Quote(wire.MetaSubscription)...), ':')
	meta = append(append(meta, l.id...), '}')
	ack := append(append(append([]byte(`{"_meta":`), meta...), `,"notifications":`...), granted...)
	if err := stream.Send(wire.NotificationParts("notifications/subscriptions/acknowledged", append(ack, '}'))...); err != nil {
		return wire.Fail(wire.CodeServer, "%v", err)
	}
	<-ctx.Done()
	return wire.Reply{Result: append(append([]byte(`{"resultType":"complete","_meta":`), meta...), '}')}
}

// watch subscribes to a resource until stop is called. The sandbox is held so
// long: it could not tell of changes otherwise.
func (s *Session) watch(ctx context.Context, uri string, stream wire.Sender) (stop func(), err error) {
	t, fail := s.lookup(s.view(), wire.Message{Method: "resources/subscribe", Params: append(append([]byte(`{"uri":`), wire.Quote(uri)...), '}')})
	if fail != nil {
		return nil, fail.Err()
	}
	if t.server.Spec == nil {
		return nil, wire.Errorf(wire.CodeServer, "server %q cannot be started: %s", t.server.Name, t.server.Unready)
	}
	lease, err := s.acquire(ctx, t.server, nil, stream)
	if err != nil {
		return nil, err
	}
	if lease.Modern() {
		call, err := s.watchModern(lease, t)
		if err != nil {
			lease.Release()
			return nil, err
		}
		return func() { call.Abandon(nil); lease.Release() }, nil
	}
	r, err := lease.Conn().Call(ctx, "resources/subscribe", t.params)
	if err == nil {
		err = r.Err()
	}
	if err != nil {
		lease.Release()
		return nil, lease.Explain(err)
	}
	s.subscribed(t.server.Name, "resources/subscribe", t.own)
	return func() {
		s.subscribed(t.server.Name, "resources/unsubscribe", t.own)
		s.hub.background(s.hub.life, lease.Conn(), "resources/unsubscribe", t.params)
		lease.Release()
	}, nil
}

// watchModern has a modern server tell when a resource changes.
func (s *Session) watchModern(lease *sandbox.Lease, t target) (*wire.Call, error) {
	uris := append(append([]byte(`{"notifications":{"resourceSubscriptions":[`), wire.Quote(t.own)...), `]}}`...)
	call, err := lease.Conn().Start("subscriptions/listen", s.withMeta(uris), nil)
	if err != nil {
		return nil, lease.Explain(err)
	}
	return call, nil
}

// listeners bring what belongs to no call to the streams of a modern client that
// want it.
type listeners struct{ s *Session }

// Send passes a notification on to who listens to it.
func (l listeners) Send(parts ...[]byte) error {
	m, err := wire.Parse(bytes.Join(parts, nil))
	if err != nil {
		return err
	}
	uri := wire.Str(m.Params, "uri")
	l.s.mu.Lock()
	var to []*listen
	for _, o := range l.s.listens {
		if o.lists[m.Method] || m.Method == "notifications/resources/updated" && slices.Contains(o.uris, uri) {
			to = append(to, o)
		}
	}
	l.s.mu.Unlock()
	params := m.Params
	if params == nil {
		params = []byte("{}")
	}
	meta := wire.Get(params, "_meta")
	if meta == nil {
		meta = []byte("{}")
	}
	for _, o := range to {
		named := wire.Set(params, wire.Set(meta, o.id, wire.MetaSubscription), "_meta")
		if err := o.stream.Send(wire.NotificationParts(m.Method, named)...); err != nil {
			l.s.hub.cfg.Log.Debug("notification not delivered", "session", l.s.id, "method", m.Method, "err", err)
		}
	}
	return nil
}
