package intent

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

// A Model weighs the evidence of a calibrated policy. It knows of no server: it
// is fitted on the sessions of some catalogues and holds for others. It is
// immutable.
type Model struct {
	// One stage for each of: nothing was learned, or something was; searches for
	// tools are unknown, or known.
	stages [2][2]*stage
	common *common
}

// A stage is a model for one kind of situation.
type stage struct {
	Linear *linear `json:"linear"`
	Forest *forest `json:"forest"`
	// Log odds are what both say, weighed, plus Shift.
	OfLinear float64 `json:"of_linear"`
	OfForest float64 `json:"of_forest"`
	Shift    float64 `json:"shift"`
	// Over says how likely the text of a step is over, by the situation alone.
	Over      *forest `json:"over"`
	Threshold float64 `json:"threshold"` // log odds from which on it fires when the text is over
	// Again is for servers that the session has used.
	Again          *linear `json:"again"`
	AgainThreshold float64 `json:"again_threshold"`
}

// logit returns the log odds of a row about a server that was not used.
func (s *stage) logit(x []float32) float64 {
	return s.OfLinear*s.Linear.logit(x) + s.OfForest*s.Forest.logit(x) + s.Shift
}

const (
	// haste is what must be added to the log odds to fire while the model is sure
	// to go on writing: what it is about to say will tell more.
	haste = 3
	// further is what must be added for each server that has fired in the step:
	// nearly all steps call one server.
	further = 1
)

// bar returns from which log odds on a server fires that the session has not
// used, where so many others have fired in the step. x is any row of the moment.
func (s *stage) bar(x []float32, fired int) float64 {
	return s.Threshold + haste*(1-logistic(s.Over.logit(x))) + further*float64(fired)
}

// beyond returns by how much the log odds of a row exceed those from which on it
// fires, and the log odds.
func (s *stage) beyond(x []float32, bar float64) (excess, logit float64) {
	if x[ownUse] > 0 {
		z := s.Again.logit(x)
		return z - s.AgainThreshold, z
	}
	z := s.logit(x)
	return z - bar, z
}

const (
	// trained is how many steps must have been learned before what was learned is
	// trusted as far as it ever is.
	trained = 100
	// fully is that: each of the two models errs where the other does not.
	fully = 0.5
)

// A mixture is what of a model fits a situation: the stage for who has learned
// nothing, and in part that for who has learned much.
type mixture struct {
	stages [2]*stage
	bars   [2]float64
	trust  float64 // in the second one
}

// mix returns what fits a moment when so many steps have been learned. x is any
// row of the moment; so many servers have fired.
func (m *Model) mix(x []float32, learned, fired int) mixture {
	known := 0
	if x[foundAny] > 0 || x[offeredAny] > 0 {
		known = 1
	}
	mix := mixture{trust: fully * min(1, float64(learned)/trained)}
	for i := range mix.stages {
		if mix.part(i) > 0 {
			mix.stages[i] = m.stages[i][known]
			mix.bars[i] = mix.stages[i].bar(x, fired)
		}
	}
	return mix
}

func (m *mixture) part(i int) float64 {
	if i == 0 {
		return 1 - m.trust
	}
	return m.trust
}

// weigh returns by how much a row exceeds what makes it fire, and its log odds.
func (m *mixture) weigh(x []float32) (excess, logit float64) {
	for i, s := range m.stages {
		if s != nil {
			e, z := s.beyond(x, m.bars[i])
			excess += m.part(i) * e
			logit += m.part(i) * z
		}
	}
	return excess, logit
}

func logistic(z float64) float64 { return 1 / (1 + math.Exp(-z)) }

// version is that of what Save writes. It changes when features do.
const version = 1

type savedModel struct {
	Version  int          `json:"version"`
	Features int          `json:"features"`
	Common   *common      `json:"common"`
	Stages   [2][2]*stage `json:"stages"`
}

// Save writes the model so that Load can read it.
func (m *Model) Save(w io.Writer) error {
	z := gzip.NewWriter(w)
	if err := json.NewEncoder(z).Encode(savedModel{version, features, m.common, m.stages}); err != nil {
		return err
	}
	return z.Close()
}

// Load reads a model that Save wrote. A model of another version, or one that
// makes no sense, is an error.
func Load(r io.Reader) (*Model, error) {
	z, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	var s savedModel
	if err := json.NewDecoder(io.LimitReader(z, 64<<20)).Decode(&s); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	if s.Version != version || s.Features != features {
		return nil, fmt.Errorf("model: it is of version %d with %d features, this program needs version %d with %d: fit it again", s.Version, s.Features, version, features)
	}
	for _, row := range s.Stages {
		for _, st := range row {
			if err := st.check(); err != nil {
				return nil, fmt.Errorf("model: %w", err)
			}
		}
	}
	return &Model{s.Stages, s.Common}, nil
}

// check says what is wrong with a stage that was read.
func (s *stage) check() error {
	if s == nil || s.Linear == nil || s.Again == nil || s.Forest == nil || s.Over == nil {
		return errors.New("a part is missing")
	}
	if len(s.Linear.Weights) != features || len(s.Again.Weights) != features {
		return errors.New("it does not have one weight for each feature")
	}
	for _, t := range slices.Concat(s.Forest.Trees, s.Over.Trees) {
		if len(t) == 0 {
			return errors.New("one of its trees is empty")
		}
		for i, n := range t {
			// Children stand after their parent: the way down ends.
			if int(n.Feature) >= features || n.Feature >= 0 && (int(n.Low) <= i || int(n.High) <= i || int(n.Low) >= len(t) || int(n.High) >= len(t)) {
				return errors.New("one of its trees is broken")
			}
		}
	}
	return nil
}
