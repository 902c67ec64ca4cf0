package sandboxtest

import (
	"sync"
	"testing"
	"time"

	"github.com/specbox/specbox/sandbox"
)

// silence is how long nothing is heard of what is frozen. It is no more than a
// sign: a server that was slow would be silent too, so that the same server has
// to answer at once before.
const silence = 200 * time.Millisecond

func testAbilities(t *testing.T, s Suite) {
	if _, ok := s.Backend.(sandbox.Speculator); s.Speculates && !ok {
		t.Error("the backend is no Speculator")
	}
	if _, ok := create(t, s, s.spec(Echo)).inst.(sandbox.Freezer); s.Freezes && !ok {
		t.Error("its instances are no Freezer")
	}
}

func testSpeculate(t *testing.T, s Suite) {
	b, ok := s.Backend.(sandbox.Speculator)
	if !ok {
		return
	}
	p := createBy(t, b.Speculate, s.spec(Echo))
	promoter, ok := p.inst.(sandbox.Promoter)
	if !ok {
		t.Fatal("what Speculate returns is no Promoter")
	}
	var promoting sync.WaitGroup
	for range 3 { // while it starts, and more than once
		promoting.Go(func() {
			if err := promoter.Promote(); err != nil {
				t.Errorf("Promote: %v", err)
			}
		})
	}
	p.initialize()
	promoting.Wait()
	p.echo("10")
	p.close()
	_ = promoter.Promote() // must not panic or hang

	idle := createBy(t, b.Speculate, s.spec(Echo)) // one that nobody comes for does its handshake too
	idle.initialize()
	if err := idle.inst.(sandbox.Promoter).Promote(); err != nil {
		t.Errorf("Promote of one that is ready: %v", err)
	}
	idle.echo("10")
}

func testCancelledSpeculate(t *testing.T, s Suite) {
	if b, ok := s.Backend.(sandbox.Speculator); ok {
		cancelled(t, b.Speculate, s.spec(Echo))
	}
}

func testSpeculateMissing(t *testing.T, s Suite) {
	if b, ok := s.Backend.(sandbox.Speculator); ok {
		missing(t, b.Speculate, s.spec(Missing))
	}
}

// echo has the server answer a request.
func (p *peer) echo(id string) {
	p.t.Helper()
	p.write(`{"jsonrpc":"2.0","id":`, id, `,"method":"echo","params":{}}`)
	if m := p.next(); string(m.ID) != id {
		p.t.Errorf("request %s was answered with %s", id, m.Raw)
	}
}

func testFreeze(t *testing.T, s Suite) {
	p := handshake(t, s, s.spec(Echo))
	f, ok := p.inst.(sandbox.Freezer)
	if !ok {
		return
	}
	do := func(what string, f func() error) {
		t.Helper()
		if err := f(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	p.echo("10")
	do("Thaw of what is not frozen", f.Thaw)
	p.echo("11")
	do("Freeze", f.Freeze)
	do("Freeze again", f.Freeze)
	p.write(`{"jsonrpc":"2.0","id":12,"method":"echo","params":{}}`)
	select {
	case raw := <-p.read:
		t.Errorf("a frozen server says %s", raw)
	case <-time.After(silence):
	}
	if exit := p.inst.Usage().Exit; exit != "" {
		t.Errorf("Usage says of a frozen server that it ended: %q", exit)
	}
	do("Thaw", f.Thaw)
	if m := p.next(); string(m.ID) != "12" {
		t.Errorf("after the thaw came %s", m.Raw)
	}
	var both sync.WaitGroup
	for range 4 {
		both.Go(func() { _ = f.Freeze() })
		both.Go(func() { _ = f.Thaw() })
	}
	both.Wait()
	do("Thaw", f.Thaw)
	p.echo("13")
}

func testCloseFrozen(t *testing.T, s Suite) {
	p := handshake(t, s, s.spec(Echo))
	f, ok := p.inst.(sandbox.Freezer)
	if !ok {
		return
	}
	if err := f.Freeze(); err != nil {
		t.Fatalf("Freeze: %v", err)
	}
	p.close()
	p.ended(time.Second)
	_, _ = f.Freeze(), f.Thaw() // must not panic or hang
}
