package intent

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/specbox/specbox/intent/encoder"
)

// Policies returns the names that [NewPolicy] knows: single routers, the
// assemblies of keywords and retrieval, and the model that weighs all evidence.
func Policies() []string {
	return []string{"keyword-1", "keyword-2", "keyword-3", "retrieval", "encoder", "fasttext", "union", "intersection", "weighted", "calibrated"}
}

// ErrNoEncoder is what [NewPolicy] fails with when the encoder is asked for and
// its model is not there.
var ErrNoEncoder = errors.New("the encoder's model is not there")

// Options say how a policy is made. The zero value is good for life.
type Options struct {
	// Model is that of calibrated; nil: the one that comes with the program.
	Model *Model
	// Memory is where calibrated keeps what it learns. A policy that is made anew
	// because the catalogue has changed goes on with the memory of the old one.
	// nil: an empty one.
	Memory *Memory
	// Encoder is needed by encoder. It belongs to the caller, who closes it when
	// the policy is no longer used.
	Encoder *encoder.Encoder
	// Sessions are what fasttext is trained on, besides what servers say of
	// themselves. The others learn by Learn.
	Sessions []Session
	// Threshold is the score from which on retrieval, encoder and fasttext fire;
	// 0: one that did well on recorded sessions.
	Threshold float64
	Seed      uint64 // of what is trained
}

// NewPolicy makes a policy for servers, whose names differ. The names of
// policies are those of [Policies]. Servers are not changed afterwards.
func NewPolicy(name string, servers []Server, o Options) (Policy, error) {
	or := func(usual float64) float64 { return cmp.Or(o.Threshold, usual) }
	words := func(gamma int) *routed { return newRouted(servers, alone, newKeywords(servers, gamma)) }
	switch name {
	case "keyword-1":
		return words(1), nil
	case "keyword-2":
		return words(2), nil
	case "keyword-3":
		return words(3), nil
	case "retrieval":
		return newRouted(servers, alone, newRetriever(servers, or(alike))), nil
	case "fasttext":
		return newRouted(servers, alone, newClassifier(servers, o.Sessions, or(probable), o.Seed)), nil
	case "encoder":
		if o.Encoder == nil {
			return nil, ErrNoEncoder
		}
		e, err := newMeaning(servers, o.Encoder, or(synonymous))
		if err != nil {
			return nil, err
		}
		return newRouted(servers, alone, e), nil
	case "union":
		return newRouted(servers, union, newKeywords(servers, 2), newRetriever(servers, or(alike))), nil
	case "intersection":
		return newRouted(servers, intersection, newKeywords(servers, 2), newRetriever(servers, or(alike))), nil
	case "weighted":
		return newRouted(servers, weighted, newKeywords(servers, 2), newRetriever(servers, or(alike))), nil
	case "calibrated":
		m := o.Model
		if m == nil {
			var err error
			if m, err = shipped(); err != nil {
				return nil, err
			}
		}
		memory := o.Memory
		if memory == nil {
			memory = NewMemory(0)
		}
		return &calibrated{newGround(servers, m.common), m, memory}, nil
	}
	return nil, fmt.Errorf("policy %q: there is none of that name; the policies are %s", name, strings.Join(Policies(), ", "))
}

// Thresholds that did well on recorded sessions.
const (
	alike      = 0.3  // of retrieval's similarity
	probable   = 0.35 // of fasttext's probability
	synonymous = 0.4  // of the encoder's similarity
)

// A router scores all servers by one kind of evidence.
type router interface {
	// begin reads one step's text.
	begin() reader
	learn(Step)
	source() string
}

// A reader is a router that reads one text. It is used by one goroutine.
type reader interface {
	text(p []byte)
	turn() // another piece of text begins
	// read fills dst, which has one for each server.
	read(dst []opinion)
	// why says what speaks for a server.
	why(server int) string
}

// An opinion is what a router says of a server.
type opinion struct {
	score float64 // in [0, 1]; ranks
	part  float64 // what the weighted assembly takes of it, in [0, 1]
	fired bool
}

// An assembly makes one opinion of those of the routers.
type assembly func(os []opinion) opinion

func alone(os []opinion) opinion { return os[0] }

func union(os []opinion) opinion {
	o := os[0]
	for _, p := range os[1:] {
		o.score = max(o.score, p.score)
		o.fired = o.fired || p.fired
	}
	return o
}

func intersection(os []opinion) opinion {
	o := os[0]
	for _, p := range os[1:] {
		o.score = min(o.score, p.score)
		o.fired = o.fired && p.fired
	}
	return o
}

// enough is the weighted score that the paper fires at.
const enough = 0.5

func weighted(os []opinion) opinion {
	sum := 0.0
	for _, p := range os {
		sum += p.part / float64(len(os))
	}
	return opinion{score: sum, part: sum, fired: sum >= enough}
}

// A routed is the policy of some routers and an assembly.
type routed struct {
	servers  []Server
	routers  []router
	assembly assembly
}

func newRouted(servers []Server, a assembly, routers ...router) *routed {
	return &routed{servers: servers, routers: routers, assembly: a}
}

// Begin watches one step. Routers look at its text alone.
func (r *routed) Begin(h History) Watch {
	w := &routedWatch{r: r, barred: make([]bool, len(r.servers))}
	for _, ro := range r.routers {
		w.readers = append(w.readers, ro.begin())
		w.opinions = append(w.opinions, make([]opinion, len(r.servers)))
	}
	w.each = make([]opinion, len(r.routers))
	if h.Tools != nil {
		for i, s := range r.servers {
			w.barred[i] = !slices.Contains(h.Tools, s.Name)
		}
	}
	return w
}

// Learn takes in a step that is over.
func (r *routed) Learn(s Step) {
	for _, ro := range r.routers {
		ro.learn(s)
	}
}

type routedWatch struct {
	r        *routed
	readers  []reader
	opinions [][]opinion // by router, by server
	each     []opinion
	barred   []bool
	kind     Kind
	begun    bool
}

// Text takes the next piece of what the model writes.
func (w *routedWatch) Text(k Kind, p []byte) {
	if len(p) == 0 {
		return
	}
	for _, r := range w.readers {
		if w.begun && k != w.kind {
			r.turn()
		}
		r.text(p)
	}
	w.kind, w.begun = k, true
}

// Candidates is no evidence to these routers.
func (w *routedWatch) Candidates([]string) {}

// Intents appends the guesses as of now.
func (w *routedWatch) Intents(dst []Intent, explain bool) []Intent {
	from := len(dst)
	for i, r := range w.readers {
		r.read(w.opinions[i])
	}
	for s := range w.r.servers {
		if w.barred[s] {
			continue
		}
		best := 0
		for i := range w.readers {
			w.each[i] = w.opinions[i][s]
			if w.each[i].score > w.each[best].score {
				best = i
			}
		}
		o := w.r.assembly(w.each)
		if o.score <= 0 && !o.fired {
			continue
		}
		in := Intent{Server: w.r.servers[s].Name, P: o.score, Fired: o.fired, Source: w.r.routers[best].source()}
		if explain {
			var why []string
			for _, r := range w.readers {
				if y := r.why(s); y != "" {
					why = append(why, y)
				}
			}
			in.Why = strings.Join(why, "; ")
		}
		dst = append(dst, in)
	}
	slices.SortStableFunc(dst[from:], func(a, b Intent) int { return cmp.Compare(b.P, a.P) })
	return dst
}
