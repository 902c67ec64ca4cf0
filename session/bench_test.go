package session_test

import (
	"context"
	"testing"

	"github.com/specbox/specbox/catalog"
	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/sandbox/sim"
	"github.com/specbox/specbox/session"
	"github.com/specbox/specbox/wire"
)

type silent struct{}

func (silent) Send(...[]byte) error { return nil }

// BenchmarkCall is what the hall adds to a warm call: both eras, beside 70
// servers, with the simulated server's own work in it.
func BenchmarkCall(b *testing.B) {
	for _, modern := range []bool{false, true} {
		name := "legacy"
		if modern {
			name = "modern"
		}
		b.Run(name, func(b *testing.B) {
			store, err := catalog.Open(b.TempDir(), nil)
			if err != nil {
				b.Fatal(err)
			}
			m, err := sandbox.New(sandbox.Config{Backends: map[config.Isolation]sandbox.Backend{config.Process: new(sim.Backend)}, Sandboxes: 200})
			if err != nil {
				b.Fatal(err)
			}
			hub := session.New(session.Config{Catalog: store, Sandboxes: m, Version: "1", Fills: 8})
			var servers []*session.Server
			for i := range 70 {
				n := "s" + string(rune('a'+i/26)) + string(rune('a'+i%26))
				servers = append(servers, &session.Server{Name: n, Hash: "h", CallTimeout: 1e12, Spec: &sandbox.Spec{Server: n, Hash: "h", Isolation: config.Process, Argv: []string{"sim"}, StartTimeout: 1e12, IdleTimeout: 1e12}})
			}
			hub.SetServers(servers)
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			go func() { _ = m.Run(ctx) }()
			go func() { _ = hub.Run(ctx) }()
			if err := hub.Fill(ctx, nil, false, nil); err != nil {
				b.Fatal(err)
			}
			s, err := hub.Open(session.Opening{Tenant: "t", Session: "s", Modern: modern, Params: []byte(`{"capabilities":{}}`)}, silent{})
			if err != nil {
				b.Fatal(err)
			}
			msg, err := wire.Parse([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"saa__whoami","arguments":{}}}`))
			if err != nil {
				b.Fatal(err)
			}
			if r := s.Request(ctx, msg, silent{}); r.Error != nil {
				b.Fatalf("%s", r.Error)
			}
			b.ReportAllocs()
			for b.Loop() {
				s.Request(ctx, msg, silent{})
			}
		})
	}
}
