package intent

import (
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
)

//go:embed default.json.gz
var defaultModel []byte

// shipped returns the model that comes with the program.
var shipped = sync.OnceValues(func() (*Model, error) { return Load(bytes.NewReader(defaultModel)) })

// calibrated is the policy that weighs all evidence with a [Model].
type calibrated struct {
	ground *ground
	model  *Model
	memory *Memory
}

// Begin watches one step.
func (c *calibrated) Begin(h History) Watch {
	return &judge{watch: c.ground.begin(h, c.memory, 0), model: c.model}
}

// Learn takes in a step that is over.
func (c *calibrated) Learn(s Step) { c.memory.Learn(s) }

// A judge decides what a watch sees.
type judge struct {
	*watch
	model *Model
	view  view
	fires int // so many servers have fired that the session had not used
}

// faint is the probability below which a guess is not worth a word.
const faint = 1e-4

// Intents appends the guesses as of now. What has fired in a step goes on to be
// fired: what was started for it is there.
func (j *judge) Intents(dst []Intent, explain bool) []Intent {
	j.look(&j.view)
	if len(j.view.server) == 0 {
		return dst
	}
	from := len(dst)
	mix := j.model.mix(j.view.row(0), j.memory.amount, j.fires)
	for i, s := range j.view.server {
		x := j.view.row(i)
		excess, z := mix.weigh(x)
		if excess >= 0 && j.standing[s] == unused && !j.fired[s] {
			j.fired[s] = true
			j.fires++
		}
		fired := excess >= 0 || j.fired[s]
		p := logistic(z)
		if p < faint && !fired {
			continue
		}
		in := Intent{Server: j.p.servers[s].Name, P: p, Fired: fired, Source: source(x)}
		if explain {
			in.Why = why(x)
		}
		dst = append(dst, in)
	}
	slices.SortStableFunc(dst[from:], func(a, b Intent) int { return cmp.Compare(b.P, a.P) })
	return dst
}

// source names the strongest kind of evidence that there is.
func source(x []float32) string {
	switch {
	case x[namedTail] > 0 || x[named] > 0 || x[namedTool] > 0:
		return "name"
	case x[found] > 0:
		return "search"
	case x[silentText] == 0:
		return "text"
	case x[promptOwn*views] > 0 || x[learnedPrompt*views] != 0:
		return "prompt"
	}
	return "history"
}

// why says in words what there is to see.
func why(x []float32) string {
	var parts []string
	say := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	for _, c := range []struct {
		of   channel
		what string
	}{
		{textOwn, "text like its description"}, {textTool, "text like one of its tools"}, {queryTool, "search like one of its tools"},
		{recentTool, "last words like one of its tools"}, {promptOwn, "prompt like its description"}, {promptTool, "prompt like one of its tools"},
		{nearest, "text like that before an earlier first call"},
	} {
		f := x[int(c.of)*views:][:views]
		if f[value] <= 0 || f[rank] == 0 {
			continue
		}
		say("%s %.2f (place %.0f)", c.what, f[value], math.Round(1/float64(f[rank])))
	}
	for _, c := range []struct {
		of   int
		what string
	}{
		{named, "named"}, {namedTool, "tool named"}, {namedPrompt, "named in the prompt"}, {found, "found by a search"}, {offered, "found by an earlier search"}, {ownUse, "used before"},
	} {
		if x[c.of] > 0 {
			parts = append(parts, c.what)
		}
	}
	if x[learnedText*views+rank] > 0 {
		say("words that came before earlier calls (place %.0f)", math.Round(1/float64(x[learnedText*views+rank])))
	}
	return strings.Join(parts, "; ")
}
