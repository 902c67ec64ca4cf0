package config

import (
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
)

// An Upstream is an LLM API that the model's door leads to.
type Upstream struct {
	Name    string
	API     string            // "openai" (Chat Completions and Responses) or "anthropic" (Messages)
	URL     string            // base: what follows /v1, or /anthropic, is added to it
	Models  []string          // names, or patterns of path.Match; empty means all
	Headers map[string]string // sent in place of the client's, for credentials

	shown string // URL as the file has it, without what variables hold
}

// The upstreams of a file that names none: clients bring their own credentials.
var usualUpstreams = []Upstream{
	{Name: "openai", API: "openai", URL: "https://api.openai.com/v1"},
	{Name: "anthropic", API: "anthropic", URL: "https://api.anthropic.com"},
}

// MarshalJSON shows the upstream without the values of its headers.
func (u Upstream) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Name    string            `json:"name"`
		API     string            `json:"api"`
		URL     string            `json:"url"`
		Models  []string          `json:"models,omitempty"`
		Headers map[string]string `json:"headers,omitempty"`
	}{u.Name, u.API, redactURL(or(u.shown, u.URL)), u.Models, hide(u.Headers)})
}

// String returns the upstream's name.
func (u Upstream) String() string { return u.Name }

// GoString returns no more than String does.
func (u Upstream) GoString() string { return "config.Upstream(" + u.Name + ")" }

// Speculation says what is started before it is asked for.
type Speculation struct {
	Policy    string        // one of SpeculationPolicies; default "calibrated"
	Eagerness string        // how likely a call must be, under the policy calibrated: one of Eagernesses; default "balanced"
	Hold      time.Duration // a sandbox that nobody came for is stopped after this; default 30 s
	Sandboxes int           // that nobody has come for, alive at once; default a quarter of Limits.Sandboxes
	Memory    int64         // bytes that these may use; 0 means no limit of their own
	Starts    int           // speculative starts under way at once; default Limits.Starts
	Freeze    string        // "unused" (the default): sandboxes that wait use no CPU; "never"
	Hedge     bool          // a start that takes longer than all but 1 % of its server's is raced by a second one; default false
	Learn     string        // "kept" (the default): what is learned survives a restart; "memory"; "off"
}

// Policies that are more, or less, than routers and an assembly.
const (
	SpeculationOff      = "off"       // nothing is started before it is asked for
	SpeculationToolName = "tool-name" // only what a model names in a call
	SpeculationPaper    = "paper"     // the union of two keywords and retrieval
)

// What becomes of what is learned.
const (
	LearnKept   = "kept"   // it survives a restart
	LearnMemory = "memory" // it ends with the runtime
	LearnOff    = "off"    // nothing is
)

// Eagernesses are the values of Speculation.Eagerness, from least to most.
var Eagernesses = []string{"frugal", "balanced", "eager"}

// SpeculationPolicies are the values of Speculation.Policy, from least to most.
var SpeculationPolicies = []string{SpeculationOff, SpeculationToolName, "keyword-1", "keyword-2", "keyword-3", "retrieval", "union", "intersection", "weighted", "calibrated", SpeculationPaper}

// MarshalJSON shows times in words.
func (s Speculation) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Policy    string `json:"policy"`
		Eagerness string `json:"eagerness"`
		Hold      string `json:"hold"`
		Sandboxes int    `json:"sandboxes"`
		Memory    int64  `json:"memory_bytes,omitempty"`
		Starts    int    `json:"starts"`
		Freeze    string `json:"freeze"`
		Hedge     bool   `json:"hedge,omitempty"`
		Learn     string `json:"learn"`
	}{s.Policy, s.Eagerness, s.Hold.Round(time.Millisecond).String(), s.Sandboxes, s.Memory, s.Starts, s.Freeze, s.Hedge, s.Learn})
}

// llm reads the section about models.
func (r *reader) llm(m member) {
	if !r.is(m, "", object) {
		return
	}
	r.fields(m.value, "", "llm", map[string]field{"upstreams": r.upstreams}, nil)
}

// upstreams reads a list of upstreams, or an object of them by name.
func (r *reader) upstreams(m member) {
	if !r.is(m, "", list, object) {
		return
	}
	r.config.Upstreams = []Upstream{}
	for _, n := range m.value.items {
		if n.kind != object {
			r.fault(Error, n.line, "", "an upstream must be an object, not "+n.kind.String(), "write {name: NAME, api: openai, url: URL}")
			continue
		}
		r.upstream(n, "")
	}
	for _, m := range m.value.members {
		if r.is(m, "", object) {
			r.upstream(m.value, m.key)
		}
	}
}

var upstreamName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,39}$`)

func (r *reader) upstream(n *node, name string) {
	u := Upstream{Name: name, API: "openai"}
	r.fields(n, "", "an upstream", map[string]field{
		"name": func(m member) {
			if r.is(m, "", text, number) {
				u.Name = m.value.text
			}
		},
		"api":     func(m member) { u.API = r.word(m, "", "openai", "anthropic") },
		"url":     func(m member) { u.URL, u.shown = r.upstreamURL(m), m.value.text },
		"models":  func(m member) { r.texts(m, "", &u.Models) },
		"headers": func(m member) { u.Headers = r.headerValues(m, "") },
	}, []string{"description"})
	switch {
	case u.Name == "":
		r.fault(Error, n.line, "", "an upstream has no name", "add name: NAME")
	case !upstreamName.MatchString(u.Name):
		r.fault(Error, n.line, "", fmt.Sprintf("upstream %q: a name has 1 to 40 of A-Z a-z 0-9 _ . - and begins with a letter or a digit", u.Name), "give it another name")
	case slices.ContainsFunc(r.config.Upstreams, func(o Upstream) bool { return o.Name == u.Name }):
		r.fault(Error, n.line, "", fmt.Sprintf("there are two upstreams named %s", u.Name), "give one of them another name")
	case n.find("url") == nil:
		r.fault(Error, n.line, "", fmt.Sprintf("upstream %s has no url", u.Name), "add url: https://...")
	}
	r.config.Upstreams = append(r.config.Upstreams, u)
}

// upstreamURL reads the base of an LLM API.
func (r *reader) upstreamURL(m member) string {
	if !r.is(m, "", text) {
		return ""
	}
	v := r.expand(m.value.text, m.value.line, "", "url of an upstream")
	u, err := url.Parse(strings.TrimRight(v.text, "/"))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		r.fault(Error, m.value.line, "", "the url of an upstream must be http:// or https:// with a host, and have no query", "write https://api.example.com/v1")
		return ""
	}
	if u.User != nil {
		r.fault(Error, m.value.line, "", "the url of an upstream holds a password", `put credentials into headers: {Authorization: "Bearer ${API_KEY}"}`)
		return ""
	}
	return u.String()
}

// speculation reads what may be started before it is asked for.
func (r *reader) speculation(m member) {
	s := &r.config.Speculation
	if m.value.kind == text || m.value.kind == boolean { // speculation: off
		s.Policy = r.policyWord(m)
		return
	}
	if !r.is(m, "", object) {
		return
	}
	r.fields(m.value, "", "speculation", map[string]field{
		"policy":    func(m member) { s.Policy = r.policyWord(m) },
		"eagerness": func(m member) { s.Eagerness = r.word(m, "", Eagernesses...) },
		"hold":      func(m member) { r.duration(m, "", &s.Hold) },
		"sandboxes": func(m member) { r.count(m, "", 1, &s.Sandboxes) },
		"memory":    func(m member) { r.size(m, "", &s.Memory) },
		"starts":    func(m member) { r.count(m, "", 1, &s.Starts) },
		"freeze":    func(m member) { s.Freeze = r.word(m, "", "unused", "never") },
		"hedge": func(m member) {
			if r.is(m, "", boolean) {
				s.Hedge = strings.EqualFold(m.value.text, "true")
			}
		},
		"learn": func(m member) { s.Learn = r.word(m, "", LearnKept, LearnMemory, LearnOff) },
	}, nil)
}

// policyWord reads the name of a policy, or on or off.
func (r *reader) policyWord(m member) string {
	switch strings.ToLower(m.value.text) {
	case "on", "true":
		return ""
	case "off", "false":
		return SpeculationOff
	}
	return r.word(m, "", SpeculationPolicies...)
}

// word reads one of some words; "" if it is none of them.
func (r *reader) word(m member, server string, words ...string) string {
	if !r.is(m, server, text) {
		return ""
	}
	if slices.Contains(words, m.value.text) {
		return m.value.text
	}
	suggestion := or(didYouMean(m.value.text, words), "write "+strings.Join(words, " or "))
	r.fault(Error, m.value.line, server, fmt.Sprintf("%q is %q, which is not known", m.key, m.value.text), suggestion)
	return ""
}

// texts reads a list of texts, or a single one.
func (r *reader) texts(m member, server string, to *[]string) {
	if !r.is(m, server, list, text) {
		return
	}
	items := m.value.items
	if m.value.kind == text {
		items = []*node{m.value}
	}
	for _, n := range items {
		if (n.kind != text && n.kind != number) || strings.TrimSpace(n.text) == "" {
			r.fault(Error, n.line, server, fmt.Sprintf("%q holds something that is no text", m.key), "put each in quotes")
			continue
		}
		*to = append(*to, n.text)
	}
}

// finishForesight fills in the defaults of both sections.
func (r *reader) finishForesight() {
	c := r.config
	if c.Upstreams == nil {
		c.Upstreams = slices.Clone(usualUpstreams)
	}
	s := &c.Speculation
	setDefault(&s.Policy, "calibrated")
	setDefault(&s.Eagerness, "balanced")
	setDefault(&s.Hold, 30*time.Second)
	setDefault(&s.Sandboxes, max(1, c.Limits.Sandboxes/4))
	setDefault(&s.Starts, c.Limits.Starts) // the calls of a parallel turn are named at once
	setDefault(&s.Freeze, "unused")
	setDefault(&s.Learn, LearnKept)
}
