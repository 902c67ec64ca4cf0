package session

import (
	"encoding/json"
	"slices"

	"github.com/specbox/specbox/catalog"
	"github.com/specbox/specbox/wire"
)

// A view is what a session sees of the catalogue at one moment.
type view struct {
	*catalog.View
	only    string
	servers []string
}

// view returns what the session sees now. It is kept until something changes.
func (s *Session) view() view {
	version := s.hub.version.Load()
	if k := s.kept.Load(); k != nil && k.version == version {
		return k.view
	}
	v := s.hub.view(s.tenant, s.only, s.fingerprint)
	s.kept.Store(&keptView{v, version})
	return v
}

// A keptView is a view with the version of the hall's world that it shows.
type keptView struct {
	view    view
	version int64
}

func (h *Hub) view(tenant, only, fingerprint string) view {
	var members []catalog.Member
	var names []string
	for _, srv := range h.visible(tenant, only) {
		names = append(names, srv.Name)
		members = append(members, catalog.Member{Server: srv.Name, Hash: srv.Hash, Prefix: srv.Prefix, Allowed: srv.Tools, Except: srv.Except})
	}
	if only != "" && len(members) == 1 {
		return view{h.cfg.Catalog.Single(tenant, fingerprint, members[0]), only, names}
	}
	return view{h.cfg.Catalog.View(tenant, fingerprint, members), only, names}
}

// capabilities returns what the session's client may rely on. While a server is
// unread, nothing is ruled out.
func (v view) capabilities() []byte {
	if e := v.Entry(v.only); e != nil && v.only != "" {
		return v.own(wire.Get(e.Init, "capabilities"))
	}
	c := v.Capabilities()
	open := len(v.Missing()) > 0
	out := map[string]any{}
	listed := map[string]any{"listChanged": true}
	if c.Tools || open {
		out["tools"] = listed
	}
	if c.Prompts || open {
		out["prompts"] = listed
	}
	if c.Resources || open {
		out["resources"] = map[string]any{"listChanged": true, "subscribe": c.Subscribe || open}
	}
	if c.Completions || open {
		out["completions"] = map[string]any{}
	}
	out["logging"] = map[string]any{} // SpecBox itself has something to say
	for _, name := range v.servers {
		if e := v.Entry(name); e != nil {
			if tasks := wire.Get(e.Init, "capabilities", "tasks"); tasks != nil {
				out["tasks"] = json.RawMessage(tasks)
				break
			}
		}
	}
	b, err := json.Marshal(out)
	if err != nil {
		panic(err) // maps of constants
	}
	return b
}

// own returns the capabilities of a server that is alone at its endpoint: as it
// wrote them, but that its lists may change, since the catalogue can learn more.
func (v view) own(caps []byte) []byte {
	if len(caps) == 0 || caps[0] != '{' {
		return []byte("{}")
	}
	for _, list := range []string{"tools", "prompts", "resources"} {
		if c := wire.Get(caps, list); len(c) > 0 && c[0] == '{' {
			caps = wire.Set(caps, wire.Set(c, []byte("true"), "listChanged"), list)
		}
	}
	if wire.Get(caps, "logging") == nil {
		caps = wire.Set(caps, []byte("{}"), "logging")
	}
	return caps
}

func (v view) serverInfo(version string) []byte {
	if e := v.Entry(v.only); e != nil && v.only != "" {
		if info := wire.Get(e.Init, "serverInfo"); info != nil {
			return info
		}
	}
	return []byte(`{"name":"specbox","title":"SpecBox","version":` + string(wire.Quote(version)) + `}`)
}

// A Tool is a tool as a tenant sees it at the combined endpoint.
type Tool struct {
	Name   string // as clients see it
	Server string
	Tool   string // the server's own name of it
	Raw    []byte // as the server wrote it
}

// Tools returns the tools of a tenant, as a client without capabilities sees
// them.
func (h *Hub) Tools(tenant string) []Tool {
	v := h.view(tenant, "", catalog.Fingerprint(nil))
	var out []Tool
	for _, r := range v.Tools() {
		_, _, raw, _ := v.Tool(r.Name)
		out = append(out, Tool{r.Name, r.Server, r.Tool, raw})
	}
	return out
}

// Entries returns what the catalogue holds of the configured servers.
func (h *Hub) Entries() []*catalog.Entry {
	hashes := map[string]string{}
	for _, s := range h.Servers() {
		hashes[s.Name] = s.Hash
	}
	return slices.DeleteFunc(h.cfg.Catalog.Entries(), func(e *catalog.Entry) bool { return hashes[e.Key.Server] != e.Key.Hash })
}

// Schema returns the input schema of a tool as the client knows it, or nil.
func (s *Session) Schema(tool string) []byte {
	_, _, raw, ok := s.view().Tool(tool)
	if !ok {
		return nil
	}
	return wire.Get(raw, "inputSchema")
}
