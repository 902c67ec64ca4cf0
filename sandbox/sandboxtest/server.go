package sandboxtest

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/specbox/specbox/wire"
)

// The manners of a server. Every one but Deaf and Missing answers requests as
// [Answer] does.
const (
	Echo     = "echo"     // well-behaved: it ends at EOF
	Stubborn = "stubborn" // ignores EOF and SIGTERM
	Crash    = "crash"    // says [LastWords] on stderr and dies, exit status 3, when it is sent the request "crash"
	Chatty   = "chatty"   // prints Banner on stdout, and Banner on stderr, before each message and at its start
	Deaf     = "deaf"     // never reads what it is sent; it ignores EOF, and SIGTERM ends it
	Missing  = "missing"  // there is no such server: nothing to run, nobody listens
)

// Banner is what a chatty server prints.
const Banner = "chatty is listening on stdio"

// LastWords is what a crashing server says on stderr.
const LastWords = "no space left in the tests"

// Version is the protocol version that test servers answer with.
const Version = "2025-11-25"

// ErrCrash is returned by [Serve] for a server that is to die.
var ErrCrash = errors.New("the test server was told to crash")

// Answer returns the messages that a test server sends when it is sent raw:
//
//   - initialize: a handshake.
//   - echo: the params as the result, byte for byte.
//   - raw: the whole request as a JSON string, as the result.
//   - push: a notification "notifications/pushed" with the same params, then
//     an empty result.
//   - any other request: an error, method not found.
func Answer(raw []byte) [][]byte {
	m, err := wire.Parse(raw)
	if err != nil || !m.IsRequest() {
		return nil
	}
	reply := func(r wire.Reply) []byte { return bytes.Join(wire.ReplyParts(m.ID, r), nil) }
	switch m.Method {
	case "initialize":
		return [][]byte{reply(wire.Reply{Result: []byte(
			`{"protocolVersion":"` + Version + `","capabilities":{"tools":{}},"serverInfo":{"name":"sandboxtest","version":"1"}}`)})}
	case "echo":
		return [][]byte{reply(wire.Reply{Result: m.Params})}
	case "raw":
		return [][]byte{reply(wire.Reply{Result: wire.Quote(string(raw))})}
	case "push":
		return [][]byte{
			bytes.Join(wire.NotificationParts("notifications/pushed", m.Params), nil),
			reply(wire.Reply{Result: []byte("{}")}),
		}
	}
	return [][]byte{reply(wire.Fail(wire.CodeMethodNotFound, "no method %s", m.Method))}
}

// Serve is a server of that manner on lines of JSON. It returns nil at EOF and
// [ErrCrash] where it is to die. Stubborn and deaf servers return never.
func Serve(manner string, in io.Reader, out, errs io.Writer) error {
	if manner == Deaf {
		select {}
	}
	say := func() {
		if manner == Chatty {
			_, _ = io.WriteString(errs, Banner+"\n")
			_, _ = io.WriteString(out, Banner+"\n")
		}
	}
	say()
	t := wire.NewLines(in, out, func() error { return nil }, 0, nil)
	for {
		raw, err := t.Read()
		if err != nil {
			if manner == Stubborn {
				select {}
			}
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if m, _ := wire.Parse(raw); m.Method == "crash" && manner == Crash {
			_, _ = io.WriteString(errs, LastWords+"\n")
			return ErrCrash
		}
		for _, answer := range Answer(raw) {
			say()
			if err := t.Write(answer); err != nil {
				return err
			}
		}
	}
}

// Main runs [Serve] on the standard streams of this process and exits. A
// backend that runs programs calls it from its TestMain, when the test binary
// finds itself run as a server.
func Main(manner string) {
	if manner == Stubborn {
		signal.Ignore(syscall.SIGTERM)
	}
	if manner == Stubborn || manner == Deaf {
		// Without another goroutine a blocked main would be a deadlock that
		// the runtime ends.
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGUSR2)
		go func() {
			for range c {
				continue
			}
		}()
	}
	switch err := Serve(manner, os.Stdin, os.Stdout, os.Stderr); {
	case errors.Is(err, ErrCrash):
		os.Exit(3)
	case err != nil:
		os.Exit(1)
	}
	os.Exit(0)
}
