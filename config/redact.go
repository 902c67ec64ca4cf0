package config

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"
)

// written is what a file says before its variables are expanded.
type written struct {
	command, dir, url string
	args              []string
	mounts            []string // beside Mounts; "" where there is no variable
}

// Hidden stands for a value that is not shown.
const Hidden = "•••"

// Redacted returns a copy that may be shown to people: values of env and
// headers are [Hidden], what came from variables is as the file has it, such as
// "${HOME}/docs", arguments that look like secrets are hidden, and a URL has
// neither password nor query.
func (s *Server) Redacted() *Server {
	c := *s
	c.Env, c.Headers = hide(s.Env), hide(s.Headers)
	c.Args = slices.Clone(s.Args)
	if w := s.written; w != nil {
		c.Command, c.URL, c.Dir = or(w.command, s.Command), or(w.url, s.URL), or(w.dir, s.Dir)
		if len(w.args) == len(s.Args) {
			c.Args = slices.Clone(w.args)
		}
	}
	for i, arg := range c.Args {
		before := ""
		if i > 0 {
			before = c.Args[i-1]
		}
		if !looksSecret(before, arg) {
			continue
		}
		flag, _, ok := strings.Cut(arg, "=")
		if ok && strings.HasPrefix(flag, "-") {
			c.Args[i] = flag + "=" + Hidden
		} else {
			c.Args[i] = Hidden
		}
	}
	c.URL = redactURL(c.URL)
	c.Mounts, c.Tools, c.Except = slices.Clone(s.Mounts), slices.Clone(s.Tools), slices.Clone(s.Except)
	if w := s.written; w != nil && len(w.mounts) == len(c.Mounts) {
		for i, raw := range w.mounts {
			if raw != "" {
				c.Mounts[i].Path = raw
			}
		}
	}
	c.Network.Hosts = slices.Clone(s.Network.Hosts)
	c.written = nil
	return &c
}

func hide(m map[string]string) map[string]string {
	if m == nil {
		return nil
	}
	out := make(map[string]string, len(m))
	for k := range m {
		out[k] = Hidden
	}
	return out
}

func redactURL(s string) string {
	if s == "" || strings.Contains(s, "${") && !strings.ContainsAny(s, "?@") {
		return s
	}
	u, err := url.Parse(s)
	if err != nil {
		return Hidden
	}
	if u.User != nil {
		u.User = url.User("user")
	}
	if u.RawQuery != "" {
		u.RawQuery = "hidden"
	}
	u.Fragment = ""
	return u.String()
}

// String returns the server's name. That is all that %v prints of it.
func (s Server) String() string { return s.Name }

// Runs returns what the server runs on one line, as [Server.Redacted] shows it:
// the command with its arguments, or the URL.
func (s *Server) Runs() string {
	c := s.Redacted()
	if c.URL != "" {
		return c.URL
	}
	words := append([]string{c.Command}, c.Args...)
	if c.Image != "" {
		words[0] = c.Image
		if c.Command != "" {
			words = slices.Insert(words, 1, c.Command)
		}
	}
	for i, w := range words {
		if w == "" || strings.ContainsAny(w, " \t\r\n\"'\\|&;<>*?") {
			words[i] = fmt.Sprintf("%q", w)
		}
	}
	return strings.Join(words, " ")
}

// String returns "none", "all", or the hosts with commas between them.
func (n Network) String() string {
	switch {
	case n.All:
		return "all"
	case len(n.Hosts) == 0:
		return "none"
	}
	return strings.Join(n.Hosts, ", ")
}

// GoString returns what String does: %#v prints no secret either.
func (s Server) GoString() string { return "config.Server(" + s.Name + ")" }

// LogValue makes logs show the name alone.
func (s Server) LogValue() slog.Value { return slog.StringValue(s.Name) }

// A serverJSON is how a server is shown. Its names stay.
type serverJSON struct {
	Name      string    `json:"name"`
	Label     string    `json:"label,omitempty"`
	Line      int       `json:"line,omitempty"`
	Command   string    `json:"command,omitempty"`
	Args      []string  `json:"args,omitempty"`
	Dir       string    `json:"dir,omitempty"`
	URL       string    `json:"url,omitempty"`
	Transport string    `json:"transport,omitempty"`
	Env       []string  `json:"env,omitempty"`     // keys
	Headers   []string  `json:"headers,omitempty"` // keys
	Disabled  bool      `json:"disabled,omitempty"`
	Unready   string    `json:"unready,omitempty"`
	Isolation Isolation `json:"isolation"`
	Image     string    `json:"image,omitempty"`
	Runtime   string    `json:"runtime,omitempty"`
	User      string    `json:"user,omitempty"`
	Network   any       `json:"network,omitempty"` // "none", "all" or the hosts
	Mounts    []string  `json:"mounts,omitempty"`
	Memory    int64     `json:"memory_bytes,omitempty"`
	Pids      int       `json:"pids,omitempty"`
	CPUs      float64   `json:"cpus,omitempty"`
	Scope     Scope     `json:"scope"`
	AtOnce    int       `json:"concurrency,omitempty"`
	Start     string    `json:"start_timeout"`
	Call      string    `json:"call_timeout"`
	Idle      string    `json:"idle_timeout"`
	Grace     string    `json:"stop_grace"`
	Tools     []string  `json:"tools,omitempty"`
	Except    []string  `json:"except,omitempty"`
	Prefix    string    `json:"prefix"`
	Trust     bool      `json:"trust_annotations,omitempty"`
	State     string    `json:"state,omitempty"`
	OnCancel  bool      `json:"stop_on_cancel,omitempty"`
	Scripts   bool      `json:"install_scripts,omitempty"`
}

// MarshalJSON shows the server as [Server.Redacted] does, with the keys of env
// and headers alone. It cannot be read back.
func (s Server) MarshalJSON() ([]byte, error) {
	c := s.Redacted()
	j := serverJSON{
		Name: c.Name, Line: c.Place.Line, Command: c.Command, Args: c.Args, Dir: c.Dir, URL: c.URL, Transport: c.Transport,
		Env: slices.Sorted(maps.Keys(c.Env)), Headers: slices.Sorted(maps.Keys(c.Headers)), Disabled: c.Disabled, Unready: c.Unready,
		Isolation: c.Isolation, Scope: c.Scope, AtOnce: c.Concurrency, Start: c.StartTimeout.String(), Call: c.CallTimeout.String(), Idle: c.IdleTimeout.String(),
		Grace: c.StopGrace.String(), Tools: c.Tools, Except: c.Except, Prefix: c.Name + "__", Trust: c.TrustAnnotations, OnCancel: c.StopOnCancel,
		Scripts: c.InstallScripts, Image: c.Image, Runtime: c.Runtime, User: c.User,
	}
	if c.Label != c.Name {
		j.Label = c.Label
	}
	if c.Prefix != nil {
		j.Prefix = *c.Prefix
	}
	if c.IdleTimeout >= forever {
		j.Idle = "never"
	}
	if c.Isolation != Remote {
		j.Memory, j.Pids, j.CPUs, j.Network, j.State = c.Memory, c.Pids, c.CPUs, "none", "private"
		if c.Network.All {
			j.Network = "all"
		} else if len(c.Network.Hosts) > 0 {
			j.Network = c.Network.Hosts
		}
		if c.KeepState {
			j.State = "kept"
		}
		for _, m := range c.Mounts {
			j.Mounts = append(j.Mounts, m.String())
		}
	}
	return json.Marshal(j)
}

// String returns the mount as a file has it: "/path:/at:rw".
func (m Mount) String() string {
	s := m.Path
	if m.At != "" {
		s += ":" + m.At
	}
	if m.Write {
		s += ":rw"
	}
	return s
}

// MarshalJSON shows the tenant with the number of its tokens.
func (t Tenant) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Name      string   `json:"name"`
		Tokens    int      `json:"tokens"`
		Servers   []string `json:"servers,omitempty"`
		Sandboxes int      `json:"sandboxes,omitempty"`
		Memory    int64    `json:"memory_bytes,omitempty"`
	}{t.Name, len(t.TokenHashes), t.Servers, t.Sandboxes, t.Memory})
}

// String returns the tenant's name.
func (t Tenant) String() string { return t.Name }

// MarshalJSON shows the limits with times in words.
func (l Limits) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Request   int64  `json:"request_bytes"`
		Message   int64  `json:"message_bytes"`
		Sandboxes int    `json:"sandboxes"`
		Starts    int    `json:"starts"`
		Session   string `json:"session"`
	}{l.Request, l.Message, l.Sandboxes, l.Starts, l.Session.Round(time.Millisecond).String()})
}

// MarshalJSON shows the configuration without its secrets.
func (c Config) MarshalJSON() ([]byte, error) {
	servers := c.Servers
	if servers == nil {
		servers = []*Server{}
	}
	return json.Marshal(struct {
		File    string    `json:"file"`
		Listen  string    `json:"listen"`
		Hosts   []string  `json:"hosts,omitempty"`
		Origins []string  `json:"origins,omitempty"`
		Metrics string    `json:"metrics,omitempty"`
		Tenants []Tenant  `json:"tenants,omitempty"`
		Limits  Limits    `json:"limits"`
		Servers []*Server `json:"servers"`

		Upstreams   []Upstream  `json:"llm"`
		Speculation Speculation `json:"speculation"`
	}{c.File, c.Listen, c.Hosts, c.Origins, c.Metrics, c.Tenants, c.Limits, servers, c.Upstreams, c.Speculation})
}

// String returns one line about the configuration, without secrets.
func (c Config) String() string {
	return fmt.Sprintf("%s: %d servers, %d tenants, listens on %s", c.File, len(c.Servers), len(c.Tenants), c.Listen)
}

// Hash returns 32 hex digits that name what runs: command, arguments, env with
// its values, headers, URL, and those policies that can change what the server
// offers. A changed secret changes the hash; without key, which should be
// random and stay with the stored state, the hash says nothing about it. More
// names further things that matter, such as the installed version.
func (s *Server) Hash(key []byte, more ...string) string {
	// A struct of strings, lists and sorted maps has one JSON form.
	data, err := json.Marshal(struct {
		Run, Args, More    []string
		Env, Headers       map[string]string
		Isolation          Isolation
		Network            Network
		Mounts             []Mount
		KeepState, Scripts bool
		Container          []string
	}{exact([]string{s.Command, s.Dir, s.URL, s.Transport}), exact(s.Args), exact(more), exactMap(s.Env), exactMap(s.Headers),
		s.Isolation, s.Network, s.Mounts, s.KeepState, s.InstallScripts, exact([]string{s.Image, s.Runtime, s.User})})
	if err != nil {
		panic("config: hash of a server: " + err.Error()) // nothing in it can fail
	}
	mac := hmac.New(sha256.New, key)
	mac.Write(data)
	return hex.EncodeToString(mac.Sum(nil))[:32]
}

// exact makes strings distinct in JSON, which would replace invalid UTF-8.
func exact(in []string) []string {
	out := make([]string, len(in))
	for i, s := range in {
		out[i] = hex.EncodeToString([]byte(s))
	}
	return out
}

func exactMap(in map[string]string) map[string]string {
	out := make(map[string]string, len(in))
	for k, v := range in {
		out[hex.EncodeToString([]byte(k))] = hex.EncodeToString([]byte(v))
	}
	return out
}
