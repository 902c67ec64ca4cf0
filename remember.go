package specbox

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
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

// writeDown writes all that was learned.
func (r *Runtime) writeDown() error {
	return errors.Join(writeWhole(r.estimatesFile(), r.sandboxes.SaveEstimates), r.memories.writeDown())
}

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
	dir string // "" keeps nothing
	log *slog.Logger

	mu sync.Mutex
	by map[string]*intent.Memory
}

// of returns the memory of a tenant: what an earlier SpecBox kept of it, at first.
func (m *memories) of(tenant string) *intent.Memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	if memory := m.by[tenant]; memory != nil {
		return memory
	}
	memory := intent.NewMemory(0)
	if m.by == nil {
		m.by = map[string]*intent.Memory{}
	}
	m.by[tenant] = memory
	if m.dir == "" {
		return memory
	}
	file := m.file(tenant)
	f, err := os.Open(file)
	if errors.Is(err, os.ErrNotExist) {
		return memory
	}
	if err == nil {
		err = errors.Join(memory.Load(f), f.Close())
	}
	if err != nil {
		m.log.Warn("what was learned of conversations is not known any more", "tenant", tenant, "file", file, "err", err)
	}
	return memory
}

func (m *memories) file(tenant string) string { return filepath.Join(m.dir, tenant+".json.gz") }

// writeDown writes all memories that hold something.
func (m *memories) writeDown() error {
	if m.dir == "" {
		return nil
	}
	m.mu.Lock()
	all := maps.Clone(m.by)
	m.mu.Unlock()
	var errs []error
	for tenant, memory := range all {
		if memory.Len() == 0 {
			continue
		}
		if err := os.MkdirAll(m.dir, 0o700); err != nil {
			return err
		}
		errs = append(errs, writeWhole(m.file(tenant), memory.Save))
	}
	return errors.Join(errs...)
}
