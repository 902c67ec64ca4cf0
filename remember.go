package specbox

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/specbox/specbox/intent"
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

// memories hold what was learned of each tenant's conversations. They are safe
// for concurrent use.
type memories struct {
	mu sync.Mutex
	by map[string]*intent.Memory
}

// of returns the memory of a tenant.
func (m *memories) of(tenant string) *intent.Memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.by[tenant] == nil {
		if m.by == nil {
			m.by = map[string]*intent.Memory{}
		}
		m.by[tenant] = intent.NewMemory(0)
	}
	return m.by[tenant]
}
