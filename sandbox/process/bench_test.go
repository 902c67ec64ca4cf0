package process_test

import (
	"bufio"
	"io"
	"os/exec"
	"testing"

	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/sandbox/process"
)

// BenchmarkStart measures from Create to the first answer of a static Go
// server, and the taking down apart from that.
func BenchmarkStart(b *testing.B) {
	const ask = `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	b.Run("exec", func(b *testing.B) {
		for b.Loop() {
			c := exec.Command(probePath)
			in, err := c.StdinPipe()
			if err != nil {
				b.Fatal(err)
			}
			out, err := c.StdoutPipe()
			if err != nil {
				b.Fatal(err)
			}
			if err := c.Start(); err != nil {
				b.Fatal(err)
			}
			_, _ = io.WriteString(in, ask+"\n")
			if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			in.Close()
			_ = c.Wait()
			b.StartTimer()
		}
	})
	for name, s := range map[string]*sandbox.Spec{
		"none":       spec(config.None),
		"process":    spec(config.Process),
		"allow-list": spec(config.Process),
	} {
		if name == "allow-list" {
			s.Network.Hosts = []string{"example.org"}
		}
		b.Run(name, func(b *testing.B) {
			back, err := process.New(process.Config{Run: b.TempDir()})
			if err != nil {
				b.Fatal(err)
			}
			defer back.Close()
			for b.Loop() {
				inst, err := back.Create(b.Context(), nextID(), s, nil)
				if err != nil {
					b.Fatal(err)
				}
				if err := inst.Transport().Write([]byte(ask)); err != nil {
					b.Fatal(err)
				}
				if _, err := inst.Transport().Read(); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := inst.Close(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}
