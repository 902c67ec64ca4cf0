package docker_test

import (
	"io"
	"testing"

	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/sandbox/sandboxtest"
)

func TestContract(t *testing.T) {
	b, _ := newBackend(t)
	first, err := b.Create(t.Context(), "first", spec(sandboxtest.Echo), io.Discard) // its connections are kept
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	sandboxtest.TestBackend(t, sandboxtest.Suite{
		Backend: b,
		Spec: func(manner string) *sandbox.Spec {
			s := spec(manner)
			if manner == sandboxtest.Missing {
				s.Program = "specbox-no-such-program"
			}
			return s
		},
		Left: containers,
	})
}
