package specbox

import (
	"path/filepath"
	"strings"

	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/intent"
	"github.com/specbox/specbox/session"
	"github.com/specbox/specbox/tap"
)

// openModel makes the model's door.
func (r *Runtime) openModel() error {
	var upstreams []tap.Upstream
	for _, u := range r.opts.Config.Upstreams {
		upstreams = append(upstreams, tap.Upstream{Name: u.Name, API: tap.Family(u.API), URL: u.URL, Models: u.Models, Headers: u.Headers})
	}
	c := tap.Config{Upstreams: upstreams, Tenant: r.tenants.TakeToken, Log: r.opts.Log}
	if r.opts.Config.Speculation.Policy != config.SpeculationOff {
		c.Observer = r
	}
	var err error
	r.tap, err = tap.New(c)
	return err
}

// modelPaths are those of the model's door. It is guarded like the agent's: with
// credentials behind it, it must not be open to the pages of foreign sites either.
var modelPaths = []string{"/v1/", "/anthropic/", "/s/{key}/v1/", "/s/{key}/anthropic/", "/sessions/{key}/stream"}

// Observe looks ahead in one exchange with a model, for programs that lead it
// themselves: tell the Watcher what the model writes, as it writes, and what its
// calls will need is started meanwhile. The proxy in front of models does just
// this. It returns nil where nothing is to be started ahead.
func (r *Runtime) Observe(q *tap.Request) tap.Watcher {
	t := r.hub.Follow(exchange(q))
	if t == nil {
		return nil
	}
	return turn{t}
}

// exchange says of a request what helps to look ahead.
func exchange(q *tap.Request) session.Exchange {
	x := session.Exchange{Tenant: q.Tenant, Key: q.Key, Conversation: q.Conversation, Parent: q.Parent}
	var prompt []string
	for _, m := range q.New {
		switch m.Role {
		case "user":
			prompt = append(prompt, m.Text)
		case "assistant":
			prompt = nil // what was asked before has had its answer
			var tools []string
			for _, c := range m.Calls {
				tools = append(tools, c.Name)
			}
			x.Past = append(x.Past, tools)
		case "tool":
			x.Results = append(x.Results, m.CallID)
		}
	}
	x.Prompt = strings.Join(prompt, "\n")
	for _, t := range q.Tools {
		x.Tools = append(x.Tools, t.Name)
	}
	return x
}

// A turn leads from the model's door into the hall.
type turn struct{ *session.Turn }

// Delta passes a step of the answer on.
func (t turn) Delta(d tap.Delta) {
	switch d.Kind {
	case tap.Text:
		t.Text(intent.Content, d.Text)
	case tap.Reasoning:
		t.Text(intent.Reasoning, d.Text)
	case tap.ToolName:
		t.Call(d.Index, d.ID, d.Name)
	case tap.Arguments:
		t.Arguments(d.Index, d.Text)
	case tap.ToolDone:
		t.Called(d.Index)
	}
}

// foresight returns what makes the policies of tenants, or nil where nothing is
// to be started ahead.
func (r *Runtime) foresight() func(string, []intent.Server) (intent.Policy, error) {
	c := r.opts.Config.Speculation
	r.memories.log = r.opts.Log
	if c.Learn == config.LearnKept {
		r.memories.dir = filepath.Join(r.opts.State, "learned")
	}
	name := c.Policy
	switch name {
	case config.SpeculationOff:
		return nil
	case config.SpeculationToolName:
		return func(string, []intent.Server) (intent.Policy, error) { return nil, nil }
	case config.SpeculationPaper:
		name = "union"
	}
	return func(tenant string, servers []intent.Server) (intent.Policy, error) {
		p, err := intent.NewPolicy(name, servers, intent.Options{Memory: r.memories.of(tenant)})
		if err != nil {
			return nil, err
		}
		if c.Learn == config.LearnOff {
			return untaught{p}, nil
		}
		return p, nil
	}
}

// likely returns the probability from which on a server is started ahead; 0
// where the policy's are none.
func (r *Runtime) likely() float64 {
	c := r.opts.Config.Speculation
	if c.Policy != "calibrated" {
		return 0
	}
	return map[string]float64{"frugal": 0.4, "balanced": 0.2, "eager": 0.1}[c.Eagerness]
}

// An untaught policy learns nothing.
type untaught struct{ intent.Policy }

// Learn does nothing.
func (untaught) Learn(intent.Step) {}
