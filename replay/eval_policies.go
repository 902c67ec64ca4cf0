package replay

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/specbox/specbox/intent"
)

// Policies that are scored besides those of [intent.Policies], where they are
// asked for by name.
const (
	// Shipped is the calibrated policy with the weights that come with the
	// program, after it has learned from the train sessions.
	Shipped = "shipped"
	// ShippedNew is the same before it has learned anything, as on the first day.
	ShippedNew = "shipped-new"
)

// Contestants returns the policies of the given names, to be scored. o.Encoder
// is what the encoder reads with; without it, that policy is missing. The other
// options are chosen by fitting.
func Contestants(names []string, o intent.Options) ([]Contestant, error) {
	known := append(intent.Policies(), Shipped, ShippedNew)
	var all []Contestant
	for _, name := range names {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("there is no policy %q: the policies are %s", name, strings.Join(known, ", "))
		}
		c := Contestant{Name: name, Fit: func(_ context.Context, f Fitting) (intent.Policy, error) { return fitted(name, f, o) }}
		switch name {
		case "fasttext":
			c.Seeded = true
		case "calibrated":
			c.Seeded, c.Whole = true, true
		case Shipped, ShippedNew:
			c.Fixed = true
		}
		all = append(all, c)
	}
	return all, nil
}

// fitted makes a policy and lets it learn.
func fitted(name string, f Fitting, o intent.Options) (intent.Policy, error) {
	o = intent.Options{Encoder: o.Encoder, Sessions: f.Train, Seed: f.Seed}
	switch name {
	case "retrieval", "fasttext", "encoder":
		if name == "encoder" && o.Encoder == nil {
			return nil, fmt.Errorf("its model is %w: specbox bench router --encoder DIR --install fetches it, and --encoder DIR names it", ErrMissing)
		}
		p, err := taught(name, f, o)
		if err != nil {
			return nil, err
		}
		return thresholded{p, f.Threshold(p)}, nil
	case "union", "intersection":
		p, err := taught("retrieval", f, o)
		if err != nil {
			return nil, err
		}
		o.Threshold = min(f.Threshold(p), math.MaxFloat64)
	case "calibrated":
		m, err := intent.Fit(f.Seed, intent.Corpus{Servers: f.Servers, Sessions: f.Train})
		if err != nil {
			return nil, err
		}
		o.Model = m
	case Shipped:
		name = "calibrated"
	case ShippedNew:
		return intent.NewPolicy("calibrated", f.Servers, o)
	}
	return taught(name, f, o)
}

// taught makes a policy that has learned from the train sessions, as it would
// have live.
func taught(name string, f Fitting, o intent.Options) (intent.Policy, error) {
	p, err := intent.NewPolicy(name, f.Servers, o)
	if err != nil {
		return nil, err
	}
	for _, s := range f.Train {
		for _, step := range s.Steps {
			p.Learn(step)
		}
	}
	return p, nil
}
