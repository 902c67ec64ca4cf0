// Package sandboxtest checks that a backend keeps the contract of
// [sandbox.Backend] and [sandbox.Instance].
//
// A backend's test provides servers of a few manners ([Echo], [Stubborn], …)
// and runs [TestBackend]. [Serve] and [Answer] are those servers, for a backend
// to put where it runs its servers.
package sandboxtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/wire"
)

const (
	grace   = 300 * time.Millisecond // StopGrace of the servers under test
	patient = 20 * time.Second       // no answer after this means never, on a loaded machine
	slack   = 3 * time.Second        // what KILL and clearing up may take
)

// A Suite is a backend under test.
type Suite struct {
	Backend sandbox.Backend
	// Spec returns how to run a server of that manner, or nil where the
	// backend cannot have one: it has no standard error, say. The tests change
	// a copy.
	Spec func(manner string) *sandbox.Spec
	// Left, which may be nil, returns what instances left behind: processes,
	// files, connections. It is asked after everything was closed, and again
	// for a while, until it returns nothing.
	Left func() []string
	// Speculates and Freezes say that the backend is a [sandbox.Speculator], and
	// that its instances are a [sandbox.Freezer]: it is a fault if it is not.
	// What a backend can do is tested in any case.
	Speculates, Freezes bool
}

// TestBackend runs the contract tests.
func TestBackend(t *testing.T, s Suite) {
	tests := []struct {
		name   string
		manner string // that the test cannot do without
		run    func(*testing.T, Suite)
	}{
		{"handshake", Echo, testHandshake},
		{"bytes pass untouched", Echo, testBytes},
		{"large messages", Echo, testLarge},
		{"over the limit", Echo, testLimit},
		{"concurrent writes", Echo, testConcurrentWrites},
		{"concurrent creates", Echo, testConcurrentCreates},
		{"cancelled create leaves nothing", Echo, testCancelledCreate},
		{"missing", Missing, testMissing},
		{"close", Echo, testClose},
		{"close unblocks", Deaf, testCloseUnblocks},
		{"stubborn", Stubborn, testStubborn},
		{"crash", Crash, testCrash},
		{"noise", Chatty, testNoise},
		{"abilities", Echo, testAbilities},
		{"speculate", Echo, testSpeculate},
		{"cancelled speculate leaves nothing", Echo, testCancelledSpeculate},
		{"speculate what is missing", Missing, testSpeculateMissing},
		{"freeze", Echo, testFreeze},
		{"close of a frozen one", Echo, testCloseFrozen},
	}
	for _, tt := range tests {
		if s.Spec(tt.manner) == nil {
			continue
		}
		t.Run(tt.name, func(t *testing.T) {
			before := runtime.NumGoroutine()
			t.Cleanup(func() { checkLeft(t, s, before) }) // the last cleanup to run
			tt.run(t, s)
		})
	}
}

// checkLeft waits a while until nothing is left of the test's instances.
func checkLeft(t *testing.T, s Suite, goroutines int) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(slack)
	for {
		var left []string
		if s.Left != nil {
			left = s.Left()
		}
		n := runtime.NumGoroutine()
		if len(left) == 0 && n <= goroutines {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			if len(left) > 0 {
				t.Errorf("left behind: %s", strings.Join(left, "; "))
			}
			if n > goroutines {
				buf := make([]byte, 1<<20)
				t.Errorf("%d goroutines before, %d after:\n%s", goroutines, n, buf[:runtime.Stack(buf, true)])
			}
			return
		}
	}
}

var ids = struct {
	sync.Mutex
	n int
}{}

func nextID() string {
	ids.Lock()
	defer ids.Unlock()
	ids.n++
	return fmt.Sprintf("contract-%d-%d", time.Now().UnixNano()%1e9, ids.n)
}

// spec returns a copy of the suite's spec with the test's grace.
func (s Suite) spec(manner string) *sandbox.Spec {
	c := *s.Spec(manner)
	c.StopGrace = grace
	return &c
}

// A peer is an instance and the test's end of its connection.
type peer struct {
	t      *testing.T
	inst   sandbox.Instance
	tr     wire.Transport
	read   chan []byte // closed when reading has ended
	end    chan error  // gets why
	stderr *buffer
}

func create(t *testing.T, s Suite, spec *sandbox.Spec) *peer {
	t.Helper()
	return createBy(t, s.Backend.Create, spec)
}

// A creator is Create of a backend, or Speculate.
type creator func(ctx context.Context, id string, spec *sandbox.Spec, stderr io.Writer) (sandbox.Instance, error)

func createBy(t *testing.T, create creator, spec *sandbox.Spec) *peer {
	t.Helper()
	p := &peer{t: t, read: make(chan []byte, 64), end: make(chan error, 1), stderr: &buffer{}}
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	inst, err := create(ctx, nextID(), spec, p.stderr)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	p.inst, p.tr = inst, inst.Transport()
	var reading sync.WaitGroup
	stop := make(chan struct{})
	reading.Go(func() {
		defer close(p.read)
		for {
			raw, err := p.tr.Read()
			var long *wire.TooLongError
			if errors.As(err, &long) {
				raw = append([]byte("too long:"), long.Head...)
			} else if err != nil {
				p.end <- err
				return
			}
			select {
			case p.read <- raw:
			case <-stop:
				p.end <- errors.New("the test stopped reading")
				return
			}
		}
	})
	t.Cleanup(func() {
		close(stop)
		p.close()
		reading.Wait()
	})
	return p
}

// handshake creates an instance and does what a client does first.
func handshake(t *testing.T, s Suite, spec *sandbox.Spec) *peer {
	t.Helper()
	p := create(t, s, spec)
	p.initialize()
	return p
}

func (p *peer) initialize() {
	p.t.Helper()
	p.write(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"` + Version +
		`","capabilities":{},"clientInfo":{"name":"sandboxtest","version":"1"}}}`)
	m := p.next()
	if got := wire.Str(m.Result, "protocolVersion"); string(m.ID) != "1" || got != Version {
		p.t.Fatalf("initialize was answered with %s", m.Raw)
	}
	p.write(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
}

func (p *peer) write(parts ...string) {
	p.t.Helper()
	var b [][]byte
	for _, s := range parts {
		b = append(b, []byte(s))
	}
	if err := p.tr.Write(b...); err != nil {
		p.t.Fatalf("Write: %v", err)
	}
}

// next returns the next message.
func (p *peer) next() wire.Message {
	p.t.Helper()
	select {
	case raw, ok := <-p.read:
		if !ok {
			p.t.Fatalf("the connection ended (%v), stderr %q", <-p.end, p.stderr.String())
		}
		if bytes.HasPrefix(raw, []byte("too long:")) {
			return wire.Message{Raw: raw}
		}
		m, err := wire.Parse(raw)
		if err != nil {
			p.t.Fatalf("message %q: %v", raw, err)
		}
		return m
	case <-time.After(patient):
		p.t.Fatalf("no message in %v, stderr %q", patient, p.stderr.String())
	}
	return wire.Message{}
}

// close closes the instance and reports what is wrong with that.
func (p *peer) close() {
	p.t.Helper()
	done := make(chan error, 1)
	go func() { done <- p.inst.Close() }()
	select {
	case err := <-done:
		if err != nil {
			p.t.Errorf("Close: %v", err)
		}
	case <-time.After(2*grace + slack):
		p.t.Errorf("Close did not return in %v", 2*grace+slack)
		<-done
	}
}

// ended checks that reading ends with io.EOF within d.
func (p *peer) ended(d time.Duration) {
	p.t.Helper()
	timeout := time.After(d)
	for {
		select {
		case _, ok := <-p.read:
			if ok {
				continue
			}
			if err := <-p.end; !errors.Is(err, io.EOF) {
				p.t.Errorf("reading ended with %v, want io.EOF", err)
			}
			return
		case <-timeout:
			p.t.Errorf("reading did not end within %v of the end", d)
			return
		}
	}
}

func testHandshake(t *testing.T, s Suite) {
	p := handshake(t, s, s.spec(Echo))
	if exit := p.inst.Usage().Exit; exit != "" {
		t.Errorf("Usage says of a live server that it ended: %q", exit)
	}
}

func testBytes(t *testing.T, s Suite) {
	p := handshake(t, s, s.spec(Echo))
	for i, params := range []string{
		`{"n":9007199254740993,"m":12345678901234567890123}`,
		`{"z":1,"a":[ 1.0 , 1e2,-0.0 ],"z ":{ }}`,
		`{"s":"\u00e9 é \ud83d\ude00 😀 \/ \\ \" <>&\u2028"}`,
		`{"id":99,"method":"echo","jsonrpc":"1.0"}`,
	} {
		id := strconv.Itoa(10 + 2*i)
		p.write(`{"jsonrpc":"2.0","id":`, id, `,"method":"echo","params":`, params, `}`)
		if m := p.next(); string(m.ID) != id || string(m.Result) != params {
			t.Errorf("echo of %s came back as %s", params, m.Raw)
		}
		id = strconv.Itoa(11 + 2*i)
		raw := `{"params":` + params + `, "id":` + id + `,"method":"raw","jsonrpc":"2.0","extra":[1.50]}`
		p.write(raw)
		if m := p.next(); string(m.Result) != string(wire.Quote(raw)) {
			t.Errorf("%s arrived as %s", raw, m.Raw)
		}
	}
	p.write(`{"jsonrpc":"2.0","id":90,"method":"push","params":{"k":1.10}}`)
	if m, want := p.next(), `{"jsonrpc":"2.0","method":"notifications/pushed","params":{"k":1.10}}`; string(m.Raw) != want {
		t.Errorf("the notification is %s, want %s", m.Raw, want)
	}
	if m := p.next(); string(m.ID) != "90" {
		t.Errorf("after the notification came %s", m.Raw)
	}
}

func testLarge(t *testing.T, s Suite) {
	p := handshake(t, s, s.spec(Echo))
	for i, size := range []int{63 << 10, 65 << 10, 1100 << 10, 4 << 20} {
		params := `{"d":"` + strings.Repeat("0123456789abcdef", size/16) + `"}`
		id := strconv.Itoa(10 + i)
		p.write(`{"jsonrpc":"2.0","id":`+id+`,"method":"echo","params":`, params, `}`)
		if m := p.next(); string(m.ID) != id || string(m.Result) != params {
			t.Errorf("%d bytes came back as %d bytes", len(params), len(m.Result))
		}
	}
}

func testLimit(t *testing.T, s Suite) {
	spec := s.spec(Echo)
	spec.Limit = 64 << 10
	p := handshake(t, s, spec)
	p.write(`{"jsonrpc":"2.0","id":10,"method":"echo","params":{"d":"`, strings.Repeat("x", 100<<10), `"}}`)
	if m := p.next(); !bytes.HasPrefix(m.Raw, []byte("too long:")) || !bytes.Contains(m.Raw, []byte(`"id":10`)) {
		t.Errorf("a message over the limit was read as %.80s, want a wire.TooLongError with its head", m.Raw)
	}
	p.write(`{"jsonrpc":"2.0","id":11,"method":"echo","params":{}}`)
	if m := p.next(); string(m.ID) != "11" {
		t.Errorf("after a message over the limit came %s", m.Raw)
	}
}

func testConcurrentWrites(t *testing.T, s Suite) {
	const writers, each = 8, 25
	p := handshake(t, s, s.spec(Echo))
	var writing sync.WaitGroup
	for w := range writers {
		writing.Go(func() {
			for i := range each {
				id := strconv.Itoa(1000*(w+1) + i)
				err := p.tr.Write([]byte(`{"jsonrpc":"2.0","id":`), []byte(id),
					[]byte(`,"method":"echo","params":{"of":`), []byte(id), []byte(`,"pad":"`+strings.Repeat("p", 5000)+`"}}`))
				if err != nil {
					t.Errorf("Write: %v", err)
				}
			}
		})
	}
	seen := map[string]bool{}
	for range writers * each {
		m := p.next()
		if of := string(wire.Get(m.Result, "of")); of != string(m.ID) || seen[of] {
			t.Fatalf("request %s got the answer %.80s", m.ID, m.Raw)
		}
		seen[string(m.ID)] = true
	}
	writing.Wait()
}

func testConcurrentCreates(t *testing.T, s Suite) {
	const n = 6
	var creating sync.WaitGroup
	for i := range n {
		creating.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), patient)
			defer cancel()
			inst, err := s.Backend.Create(ctx, nextID(), s.spec(Echo), io.Discard)
			if err != nil {
				t.Errorf("Create: %v", err)
				return
			}
			defer inst.Close()
			c := wire.NewConn(inst.Transport())
			defer c.Close()
			if _, err := c.Call(ctx, "initialize", []byte(`{"protocolVersion":"`+Version+`","capabilities":{}}`)); err != nil {
				t.Errorf("initialize: %v", err)
				return
			}
			r, err := c.Call(ctx, "echo", fmt.Appendf(nil, `{"me":%d}`, i))
			if want := fmt.Sprintf(`{"me":%d}`, i); err != nil || string(r.Result) != want {
				t.Errorf("instance %d answered %s, %v", i, r.Result, err)
			}
		})
	}
	creating.Wait()
}

func testCancelledCreate(t *testing.T, s Suite) { cancelled(t, s.Backend.Create, s.spec(Echo)) }

func cancelled(t *testing.T, create creator, spec *sandbox.Spec) {
	for _, after := range []time.Duration{0, 100 * time.Microsecond, time.Millisecond, 3 * time.Millisecond, 10 * time.Millisecond, 30 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		begun := time.Now()
		inst, err := create(ctx, nextID(), spec, io.Discard)
		if took := time.Since(begun); took > 2*grace+slack {
			t.Errorf("Create returned %v after its ctx had ended", took-after)
		}
		cancel()
		switch {
		case err == nil: // it was quicker
			if err := inst.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		case after == 0 && inst != nil:
			t.Errorf("Create returned an instance with the error %v", err)
		}
	}
}

func testMissing(t *testing.T, s Suite) { missing(t, s.Backend.Create, s.spec(Missing)) }

func missing(t *testing.T, create creator, spec *sandbox.Spec) {
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	inst, err := create(ctx, nextID(), spec, io.Discard)
	if err == nil { // its peer may be spoken to first by the handshake
		c := wire.NewConn(inst.Transport())
		var r wire.Reply
		r, err = c.Call(ctx, "initialize", []byte(`{"protocolVersion":"`+Version+`","capabilities":{}}`))
		if err == nil {
			err = r.Err()
		}
		_ = c.Close()
		if err := inst.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	switch {
	case err == nil:
		t.Error("a server that is not there was started")
	case ctx.Err() != nil:
		t.Errorf("a server that is not there was waited for: %v", err)
	case !strings.Contains(err.Error(), spec.Server):
		t.Errorf("the error does not name the server %q: %v", spec.Server, err)
	}
}

func testClose(t *testing.T, s Suite) {
	p := handshake(t, s, s.spec(Echo))
	var closing sync.WaitGroup
	for range 4 {
		closing.Go(p.close)
	}
	closing.Wait()
	p.close()
	p.ended(time.Second)
	if err := p.tr.Write([]byte(`{"jsonrpc":"2.0","id":2,"method":"echo","params":{}}`)); err == nil {
		t.Error("Write after Close has no error")
	}
	if err := p.tr.Close(); err != nil {
		t.Errorf("Close of the transport after that of the instance: %v", err)
	}
	p.inst.Usage() // must not panic
}

func testCloseUnblocks(t *testing.T, s Suite) {
	p := create(t, s, s.spec(Deaf))
	wrote := make(chan error, 1)
	go func() {
		var err error
		for range 64 { // more than any pipe or socket holds
			if err = p.tr.Write([]byte(`{"jsonrpc":"2.0","id":1,"method":"echo","params":{"d":"` + strings.Repeat("x", 1<<20) + `"}}`)); err != nil {
				break
			}
		}
		wrote <- err
	}()
	p.close()
	select {
	case <-wrote:
	case <-time.After(slack):
		t.Error("Write still waits for a server that was closed")
	}
	p.ended(time.Second)
}

func testStubborn(t *testing.T, s Suite) {
	p := handshake(t, s, s.spec(Stubborn))
	p.close()
	p.ended(time.Second)
}

func testCrash(t *testing.T, s Suite) {
	spec := s.spec(Crash)
	p := handshake(t, s, spec)
	p.write(`{"jsonrpc":"2.0","id":2,"method":"crash"}`)
	p.ended(time.Second)
	p.close()
	if exit := p.inst.Usage().Exit; exit == "" {
		t.Error("Usage does not say how the server ended")
	}
	if s.Spec(Chatty) != nil && !strings.Contains(p.stderr.String(), LastWords) {
		t.Errorf("the last words are missing: stderr is %q", p.stderr.String())
	}
	handshake(t, s, spec).close() // another one is not disturbed
}

func testNoise(t *testing.T, s Suite) {
	p := handshake(t, s, s.spec(Chatty))
	p.write(`{"jsonrpc":"2.0","id":2,"method":"push","params":{}}`)
	if m := p.next(); m.Method != "notifications/pushed" {
		t.Errorf("the notification is %s", m.Raw)
	}
	p.next()
	p.close()
	if got := p.stderr.String(); strings.Count(got, Banner) < 2 {
		t.Errorf("what the server printed on stderr and stdout did not arrive: %q", got)
	}
}

// A buffer is a bytes.Buffer for concurrent use.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
