package process_test

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/sandbox/sandboxtest"
)

func TestContract(t *testing.T) {
	for _, isolation := range []config.Isolation{config.Process, config.None} {
		t.Run(string(isolation), func(t *testing.T) {
			b, root := newBackendIn(t, "")
			first, err := b.Create(t.Context(), "first", spec(isolation), io.Discard) // its thread has begun
			if err != nil {
				t.Fatal(err)
			}
			if err := first.Close(); err != nil {
				t.Fatal(err)
			}
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			sandboxtest.TestBackend(t, sandboxtest.Suite{
				Backend: b,
				Spec: func(manner string) *sandbox.Spec {
					s := spec(isolation)
					s.Server = manner
					s.Argv = []string{self}
					s.Env = map[string]string{mannerVar: manner}
					if manner == sandboxtest.Missing {
						s.Argv = []string{"specbox-no-such-program"}
					}
					return s
				},
				Left: func() []string {
					left, _ := filepath.Glob(filepath.Join(root, "*", "*"))
					return slices.DeleteFunc(left, func(f string) bool { return filepath.Base(f) == "lock" })
				},
			})
		})
	}
}
