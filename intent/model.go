package intent

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"math"
)

// A Model weighs the evidence of a calibrated policy. It knows of no server: it
// is fitted on the sessions of some catalogues and holds for others. It is
// immutable.
type Model struct {
	// One stage for each of: nothing was learned, or something was; searches for
	// tools are unknown, or known.
	stages [2][2]*stage
}

// A stage is a model for one kind of situation.
type stage struct {
	Linear *linear `json:"linear"`
	Forest *forest `json:"forest"`
	// Log odds are Slope times the mean of both, plus Shift.
	Slope     float64 `json:"slope"`
	Shift     float64 `json:"shift"`
	Threshold float64 `json:"threshold"` // log odds from which on it fires
	// Again is for servers that the session has used.
	Again          *linear `json:"again"`
	AgainThreshold float64 `json:"again_threshold"`
}

func (s *stage) raw(x []float32) float64 { return (s.Linear.logit(x) + s.Forest.logit(x)) / 2 }

// beyond returns by how much the log odds of a row exceed those from which on it
// fires, and the log odds.
func (s *stage) beyond(x []float32) (excess, logit float64) {
	if x[ownUse] > 0 {
		z := s.Again.logit(x)
		return z - s.AgainThreshold, z
	}
	z := s.Slope*s.raw(x) + s.Shift
	return z - s.Threshold, z
}

// trained is how many steps must have been learned before what was learned is
// trusted in full.
const trained = 200

// weigh returns by how much a row exceeds what makes it fire, and its log odds,
// when so many steps have been learned.
func (m *Model) weigh(x []float32, learned int) (excess, logit float64) {
	known := 0
	if x[foundAny] > 0 || x[offeredAny] > 0 {
		known = 1
	}
	trust := min(1, float64(learned)/trained)
	if trust > 0 {
		excess, logit = m.stages[1][known].beyond(x)
	}
	if trust < 1 {
		e, z := m.stages[0][known].beyond(x)
		excess = trust*excess + (1-trust)*e
		logit = trust*logit + (1-trust)*z
	}
	return excess, logit
}

func logistic(z float64) float64 { return 1 / (1 + math.Exp(-z)) }

// version is that of what Save writes. It changes when features do.
const version = 1

type savedModel struct {
	Version  int          `json:"version"`
	Features int          `json:"features"`
	Stages   [2][2]*stage `json:"stages"`
}

// Save writes the model so that Load can read it.
func (m *Model) Save(w io.Writer) error {
	z := gzip.NewWriter(w)
	if err := json.NewEncoder(z).Encode(savedModel{version, features, m.stages}); err != nil {
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
	return &Model{s.Stages}, nil
}

// check says what is wrong with a stage that was read.
func (s *stage) check() error {
	if s == nil || s.Linear == nil || s.Again == nil || s.Forest == nil {
		return fmt.Errorf("a part is missing")
	}
	if len(s.Linear.Weights) != features || len(s.Again.Weights) != features {
		return fmt.Errorf("it does not have one weight for each feature")
	}
	for _, t := range s.Forest.Trees {
		for i, n := range t {
			// Children stand after their parent: the way down ends.
			if int(n.Feature) >= features || n.Feature >= 0 && (int(n.Low) <= i || int(n.High) <= i || int(n.Low) >= len(t) || int(n.High) >= len(t)) {
				return fmt.Errorf("one of its trees is broken")
			}
		}
		if len(t) == 0 {
			return fmt.Errorf("one of its trees is empty")
		}
	}
	return nil
}

func loadBytes(b []byte) (*Model, error) { return Load(bytes.NewReader(b)) }
