package specbox

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"
)

// rememberEvery is how often what was learned is written down: a SpecBox that is
// killed forgets this much.
const rememberEvery = 5 * time.Minute

// remember writes down what was learned, now and then and at the end.
func (r *Runtime) remember(ctx context.Context) error {
	tick := time.NewTicker(rememberEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := r.writeDown(); err != nil {
				r.opts.Log.Warn("what was learned could not be written down", "err", err)
			}
		case <-ctx.Done():
			return r.writeDown()
		}
	}
}

func (r *Runtime) estimatesFile() string { return filepath.Join(r.opts.State, "estimates.json") }

// recall reads what an earlier SpecBox wrote down. What cannot be read is learned
// anew.
func (r *Runtime) recall() {
	f, err := os.Open(r.estimatesFile())
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	if err == nil {
		err = errors.Join(r.sandboxes.LoadEstimates(f), f.Close())
	}
	if err != nil {
		r.opts.Log.Warn("what earlier starts took is not known any more", "file", r.estimatesFile(), "err", err)
	}
}

func (r *Runtime) writeDown() error { return writeWhole(r.estimatesFile(), r.sandboxes.SaveEstimates) }

// writeWhole writes a file whole or not at all.
func writeWhole(path string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // gone already if all went well
	err = write(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
