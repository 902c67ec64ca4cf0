package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// reclaimStep is how much is taken back at once where the kernel lets one say:
// between the steps it is seen whether the instance goes on.
const reclaimStep = 4 << 20

// Reclaim has the kernel take back memory of the frozen instance: pages of files,
// and others where the machine has swap; see [sandbox.Reclaimer].
func (i *instance) Reclaim() error {
	if !i.still() {
		return fmt.Errorf("server %q: memory of sandbox %s is not taken back: it is not frozen", i.spec.Server, i.id)
	}
	if err := i.group.reclaim(i.still); err != nil {
		return fmt.Errorf("server %q: memory of sandbox %s is not taken back: %w", i.spec.Server, i.id, err)
	}
	return nil
}

// still reports whether the instance is frozen.
func (i *instance) still() bool {
	i.turn <- struct{}{}
	defer func() { <-i.turn }()
	return i.frozen && !i.closing && !i.over()
}

// reclaim takes back memory while goOn reports true. Version 1 of cgroups takes
// back all that it can in one go, which is bounded by what there is.
func (g *group) reclaim(goOn func() bool) error {
	if d := g.v1["memory"]; d != "" {
		return supported(write(d, "memory.force_empty", "0"))
	}
	if !g.has2("memory") {
		return errors.ErrUnsupported
	}
	for goOn() {
		left, ok := number(g.v2, "memory.current")
		if !ok || left == 0 {
			return nil
		}
		switch err := write(g.v2, "memory.reclaim", strconv.Itoa(reclaimStep)); {
		case errors.Is(err, unix.EAGAIN): // there is no more that it can take
			return nil
		case err != nil:
			return supported(err)
		}
	}
	return nil
}

// supported turns the error of a file that this kernel does not have, or that
// this user may not write, into [errors.ErrUnsupported].
func supported(err error) error {
	var p *os.PathError
	if errors.As(err, &p) && (errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission)) {
		return fmt.Errorf("%s: %w", filepath.Base(p.Path), errors.ErrUnsupported)
	}
	return err
}
