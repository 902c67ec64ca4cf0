package process_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/sandbox/process"
	"golang.org/x/sys/unix"
)

// cached makes a file that is in nobody's memory, and returns its path.
func cached(t *testing.T, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, size, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	return path
}

// What a frozen server has of files is taken back, and it goes on.
func TestReclaim(t *testing.T) {
	const size = 32 << 20
	hierarchies(t, func(t *testing.T, b *process.Backend, _ string) {
		for _, isolation := range isolations {
			s := spec(isolation)
			path := cached(t, size)
			s.Mounts = []config.Mount{{Path: path}}
			p := start(t, b, s)
			r, ok := p.inst.(sandbox.Reclaimer)
			if !ok {
				t.Fatal("it is no Reclaimer")
			}
			if err := r.Reclaim(); err == nil || errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("%s: Reclaim of what is not frozen: %v", isolation, err)
			}
			for range 2 { // what is read twice counts as used
				p.must("read", probeArgs{Path: path})
			}
			before := p.inst.Usage().Memory
			if err := p.inst.(sandbox.Freezer).Freeze(); err != nil {
				t.Fatal(err)
			}
			err := r.Reclaim()
			after := p.inst.Usage().Memory
			can := reclaims(p.inst.Usage().PID) && !strings.HasSuffix(t.Name(), "none")
			switch {
			case !can && !errors.Is(err, errors.ErrUnsupported):
				t.Errorf("%s: Reclaim where the kernel has no means for it: %v", isolation, err)
			case can && err != nil:
				t.Errorf("%s: Reclaim: %v", isolation, err)
			case can && before-after < size/2:
				t.Errorf("%s: of %d MiB it has %d, and %d MiB were of a file", isolation, before>>20, after>>20, size>>20)
			}
			if err := p.inst.(sandbox.Freezer).Thaw(); err != nil {
				t.Fatal(err)
			}
			p.must("read", probeArgs{Path: path})
			if err := p.inst.Close(); err != nil {
				t.Error(err)
			}
			if err := r.Reclaim(); err == nil {
				t.Errorf("%s: Reclaim of what is gone is no error", isolation)
			}
		}
	})
}

// reclaims reports whether the kernel has means to take back memory of a process.
func reclaims(pid int) bool {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		for _, mount := range []string{"/sys/fs/cgroup/memory", "/sys/fs/cgroup"} {
			for _, file := range []string{"memory.force_empty", "memory.reclaim"} {
				if _, err := os.Stat(filepath.Join(mount, f[2], file)); err == nil && strings.Contains(f[2], "specbox") {
					return true
				}
			}
		}
	}
	return false
}
