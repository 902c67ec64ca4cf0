package replay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/specbox/specbox/intent"
)

// ErrMissing is what a policy fails with that needs something which is not
// there, such as the weights of a model. It is reported, and the others go on.
var ErrMissing = errors.New("not there")

// A Fitting is all that a policy may learn from before it is scored.
type Fitting struct {
	Servers []intent.Server
	Train   []intent.Session // to fit on
	Tune    []intent.Session // to choose thresholds on, and for nothing else
	Seed    uint64
	// Threshold returns the score from which on p should fire, for the best F1 on
	// first uses in Tune, streamed as in life.
	Threshold func(p intent.Policy) float64
}

// A Contestant is a policy that is to be scored.
type Contestant struct {
	Name   string
	Seeded bool // fitting draws random numbers
	Fixed  bool // it was fitted before, on what may be train sessions: cross-validation would say too much of it
	Whole  bool // it chooses thresholds on parts of Train: in cross-validation, Tune belongs to that
	// Fit makes the policy. An error that wraps ErrMissing leaves it out.
	Fit func(context.Context, Fitting) (intent.Policy, error)
}

// An Evaluation says what to score on what.
type Evaluation struct {
	Train, Validation, Test []Trajectory
	Servers                 []intent.Server
	Contestants             []Contestant

	// Folds asks for cross-validation over the tasks of Train and Validation
	// together, in so many folds. Test is not touched then. 0: policies are fitted
	// on Train, tuned on Validation, and scored on Test, or, where there is none,
	// on Validation.
	Folds int
	Seeds int // how often all is repeated that draws random numbers; 0: once

	Masked     bool // the names of servers are hidden in what users and models say
	Candidates bool // policies are told what searches for tools return

	Every int           // bytes of text between decisions; 0: as in life
	Rate  float64       // tokens a second
	First time.Duration // from a request to its first token
	Hold  time.Duration // after which a sandbox is stopped that nobody used; 0: never
	Cold  []float64     // seconds that a start takes; waits are told for each

	// From adds to each policy, as POLICY@FROM, what it would be if it fired from
	// that P on. A wrong start may cost less than a wait: this shows the choices.
	From []float64

	Mistakes bool // wrong decisions are listed

	Progress func(string) // told what is being done; may be nil
}

// An arm is one way to divide the sessions.
type arm struct {
	seed               uint64
	train, tune, score []recorded
}

// Evaluate scores all contestants. What they are scored on they are never
// shown, neither to fit nor to learn: only streamed, without its outcome.
func Evaluate(ctx context.Context, e Evaluation) (*Report, error) {
	if e.Every == 0 {
		e.Every = intent.Cadence
	}
	if e.Progress == nil {
		e.Progress = func(string) {}
	}
	catalogue := make(map[string]bool)
	for _, s := range e.Servers {
		catalogue[s.Name] = true
	}
	arms, err := e.arms()
	if err != nil {
		return nil, err
	}
	r := e.report(arms, catalogue)
	for _, c := range e.Contestants {
		accounts := make([]*account, 1+len(e.From))
		for i := range accounts {
			accounts[i] = newAccount()
		}
		err := e.contest(ctx, c, arms, catalogue, accounts)
		switch {
		case errors.Is(err, ErrMissing):
			r.Missing[c.Name] = err.Error()
		case err != nil:
			return nil, fmt.Errorf("policy %s: %w", c.Name, err)
		default:
			r.enter(c.Name, accounts[0], e.Cold)
			for i, from := range e.From {
				r.enter(fmt.Sprintf("%s@%g", c.Name, from), accounts[1+i], e.Cold)
			}
		}
	}
	return r, nil
}

// contest fits a contestant on each arm, and scores it there: as it decides, and
// as it would with each threshold that is asked for.
func (e *Evaluation) contest(ctx context.Context, c Contestant, arms []arm, catalogue map[string]bool, accounts []*account) error {
	if c.Fixed && e.Folds > 0 {
		return errors.New("its weights were fitted on train sessions already: it cannot be cross-validated on them")
	}
	for i, arm := range arms {
		if i > 0 && e.Folds == 0 && !c.Seeded {
			return nil // it would be the same again
		}
		e.Progress(fmt.Sprintf("%s: %d of %d", c.Name, i+1, len(arms)))
		train := arm.train
		if c.Whole && e.Folds > 0 {
			train = slices.Concat(train, arm.tune)
		}
		p, err := c.Fit(ctx, Fitting{
			Servers: e.Servers, Train: sessions(train), Tune: sessions(arm.tune), Seed: arm.seed,
			Threshold: func(p intent.Policy) float64 {
				return threshold(p, arm.tune, catalogue, &player{every: e.Every})
			},
		})
		if err != nil {
			return err
		}
		policies := []intent.Policy{p}
		for _, from := range e.From {
			policies = append(policies, thresholded{p, from})
		}
		for j, p := range policies {
			if err := e.play(ctx, p, arm, catalogue, accounts[j]); err != nil {
				return err
			}
		}
	}
	return nil
}

// play scores a policy on what an arm has to score.
func (e *Evaluation) play(ctx context.Context, p intent.Policy, arm arm, catalogue map[string]bool, a *account) error {
	for _, rec := range arm.score {
		if err := ctx.Err(); err != nil {
			return err
		}
		pl := &player{every: e.Every}
		var turns []*played
		for i := range rec.steps {
			turns = append(turns, pl.play(p, &rec.steps[i]))
		}
		s := scored(turns, catalogue)
		s.waits = e.wait(turns, rec.flow)
		a.enter(arm.seed, rec.task, s, pl.cost)
		if e.Mistakes {
			for _, m := range mistakes(turns, catalogue) {
				m.Session, m.Seed = rec.id, arm.seed
				a.mistakes = append(a.mistakes, m)
			}
		}
	}
	return nil
}

// sessions returns what may be learned from.
func sessions(rs []recorded) []intent.Session {
	var all []intent.Session
	for _, r := range rs {
		all = append(all, intent.Session{Task: r.task, Steps: r.steps})
	}
	return all
}

// arms divides the sessions by tasks.
func (e *Evaluation) arms() ([]arm, error) {
	var m *mask
	if e.Masked {
		m = newMask(e.Servers)
	}
	ready := func(ts []Trajectory) []recorded {
		var all []recorded
		for i := range ts {
			if len(ts[i].Steps) > 0 { // else it is a task without a run
				all = append(all, record(&ts[i], e.Candidates, m))
			}
		}
		return all
	}
	train, validation, test := ready(e.Train), ready(e.Validation), ready(e.Test)
	if err := apart(train, validation, test); err != nil {
		return nil, err
	}
	var arms []arm
	for seed := range uint64(max(1, e.Seeds)) {
		if e.Folds > 0 {
			folded, err := folds(slices.Concat(train, validation), e.Folds, seed)
			if err != nil {
				return nil, err
			}
			arms = append(arms, folded...)
			continue
		}
		score := test
		if len(score) == 0 {
			score = validation
		}
		if len(score) == 0 {
			return nil, errors.New("there is nothing to score on: name sessions for test or validation, or ask for cross-validation")
		}
		arms = append(arms, arm{seed, train, validation, score})
	}
	return arms, nil
}

// apart checks that no task is on two sides.
func apart(sides ...[]recorded) error {
	where := make(map[string]int)
	for i, side := range sides {
		for _, r := range side {
			if j, ok := where[r.task]; ok && j != i {
				names := []string{"train", "validation", "test"}
				return fmt.Errorf("task %s is in %s and in %s: what is fitted on a task cannot be scored on it", r.task, names[j], names[i])
			}
			where[r.task] = i
		}
	}
	return nil
}

// folds divides sessions into k arms. Each task is scored in one of them. The
// tasks of the next fold are there to tune on, the others to fit on.
func folds(all []recorded, k int, seed uint64) ([]arm, error) {
	tasks := make(map[string]int)
	for _, r := range all {
		tasks[r.task] = 0
	}
	if k < 3 || k > len(tasks) {
		return nil, fmt.Errorf("%d folds cannot be made of %d tasks: ask for 3 or more (one is scored, one tuned on, the rest fitted on), and for no more than there are tasks", k, len(tasks))
	}
	names := slices.Sorted(maps.Keys(tasks))
	rng := rand.New(rand.NewPCG(seed, 1))
	rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for i, name := range names {
		tasks[name] = i % k
	}
	arms := make([]arm, k)
	for i := range arms {
		arms[i].seed = seed
		for _, r := range all {
			switch tasks[r.task] {
			case i:
				arms[i].score = append(arms[i].score, r)
			case (i + 1) % k:
				arms[i].tune = append(arms[i].tune, r)
			default:
				arms[i].train = append(arms[i].train, r)
			}
		}
	}
	return arms, nil
}
