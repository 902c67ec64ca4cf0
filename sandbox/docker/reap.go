package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"
)

// lockPrefix and lockSuffix stand around the name of an instance in that of its
// file.
const lockPrefix, lockSuffix = "docker-", ".lock"

// hold makes and locks the file by which others find out that this Backend
// lives, once. The kernel drops the lock when the process ends.
func (b *Backend) hold() error {
	f := <-b.lock
	defer func() { b.lock <- f }()
	if f != nil {
		return nil
	}
	if err := os.MkdirAll(b.dir, 0o700); err != nil {
		return fmt.Errorf("run folder: %w", err)
	}
	// It gets its name when it is locked, so that no reaper takes it for a dead one's.
	young, err := os.CreateTemp(b.dir, ".docker-*")
	if err != nil {
		return fmt.Errorf("run folder: %w", err)
	}
	err = unix.Flock(int(young.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		err = os.Rename(young.Name(), b.lockPath())
	}
	if err != nil {
		os.Remove(young.Name())
		young.Close()
		return fmt.Errorf("run folder: %w", err)
	}
	f = young
	return nil
}

// lockPath is where the file is.
func (b *Backend) lockPath() string { return filepath.Join(b.dir, lockPrefix+b.name+lockSuffix) }

// Run reaps until all that dead SpecBox instances left behind is removed, which
// waits for the engine, or until ctx ends. It returns nil.
func (b *Backend) Run(ctx context.Context) error {
	for delay := time.Second; ; delay = min(2*delay, time.Minute) {
		rep, err := b.Reap(ctx)
		if rep.Containers > 0 {
			b.log.Warn("took away what an earlier SpecBox left behind", "containers", rep.Containers)
		}
		if err == nil || ctx.Err() != nil {
			return nil
		}
		b.log.Warn("containers of an earlier SpecBox are removed later", "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(delay):
		}
	}
}

// A Report says what [Backend.Reap] found and removed.
type Report struct {
	Instances  []string // names of dead SpecBox instances
	Containers int      // removed
}

// Reap removes the containers of dead SpecBox instances whose files are in
// Config.Run. Living instances are left alone. Where there is no such file the
// engine is not asked. What cannot be removed now, because the engine does not
// answer, is tried again by the next Reap.
func (b *Backend) Reap(ctx context.Context) (Report, error) {
	var rep Report
	files, err := filepath.Glob(filepath.Join(b.dir, lockPrefix+"*"+lockSuffix))
	if err != nil {
		return rep, err
	}
	var errs []error
	for _, f := range files {
		name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(f), lockPrefix), lockSuffix)
		if name != b.name {
			errs = append(errs, b.reap(ctx, f, name, &rep))
		}
	}
	return rep, errors.Join(errs...)
}

func (b *Backend) reap(ctx context.Context, file, name string, rep *Report) error {
	lock, err := os.OpenFile(file, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil // another reaper was faster
	}
	if err != nil {
		return fmt.Errorf("run folder: %w", err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil // it lives, or another reaper is at it
	}
	if b.broken != nil {
		return b.broken
	}
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	found, err := b.api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: client.Filters{}.Add("label", LabelInstance+"="+name)})
	if err != nil {
		return fmt.Errorf("containers of an earlier SpecBox: %w", b.explain(err))
	}
	rep.Instances = append(rep.Instances, name)
	for _, c := range found.Items {
		if in, err := b.api.ContainerInspect(ctx, c.ID, client.ContainerInspectOptions{}); err == nil && in.Container.State != nil {
			findCgroup(in.Container.State.Pid, c.ID).thaw() // what is frozen does not die everywhere
		}
		if err := b.tryRemove(c.ID); err != nil {
			return fmt.Errorf("container %s of an earlier SpecBox (server %q): %w", c.ID, c.Labels[LabelServer], err)
		}
		rep.Containers++
	}
	return os.Remove(file)
}
