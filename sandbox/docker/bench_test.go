package docker_test

import (
	"io"
	"testing"

	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/sandbox/docker"
	"github.com/specbox/specbox/sandbox/sandboxtest"
	"github.com/specbox/specbox/wire"
)

// BenchmarkEcho measures a call of a warm container, and one that it is thawed
// for.
func BenchmarkEcho(b *testing.B) {
	back, err := docker.New(docker.Config{Run: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer back.Close()
	inst, err := back.Create(b.Context(), nextID(), spec(sandboxtest.Echo), io.Discard)
	if err != nil {
		b.Fatal(err)
	}
	defer inst.Close()
	c := wire.NewConn(inst.Transport())
	defer c.Close()
	echo := func() {
		if _, err := c.Call(b.Context(), "echo", []byte(`{}`)); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("warm", func(b *testing.B) {
		for b.Loop() {
			echo()
		}
	})
	b.Run("thawed", func(b *testing.B) {
		f := inst.(sandbox.Freezer)
		for b.Loop() {
			b.StopTimer()
			if err := f.Freeze(); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
			if err := f.Thaw(); err != nil {
				b.Fatal(err)
			}
			echo()
		}
	})
}

// BenchmarkStart measures from Create to the first answer, and the taking down
// apart from that.
func BenchmarkStart(b *testing.B) {
	back, err := docker.New(docker.Config{Run: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer back.Close()
	for b.Loop() {
		inst, err := back.Create(b.Context(), nextID(), spec(sandboxtest.Echo), io.Discard)
		if err != nil {
			b.Fatal(err)
		}
		c := wire.NewConn(inst.Transport())
		if _, err := c.Call(b.Context(), "echo", []byte(`{}`)); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		_ = c.Close()
		if err := inst.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
