// Command nasty is an MCP server on standard input and output that misbehaves
// on request: the fixture of all tests of faults. It speaks its own small
// JSON-RPC, because a library would not let it do wrong.
//
// What it does at its start, or throughout, is said by flags (-help lists
// them): it starts late, exits with words on stderr, prints junk between
// messages, ignores EOF and SIGTERM, leaves grandchildren, has lists whose
// cursor never ends, names that are equal or too long. What it does in mid-call
// is a tool: see tools.go. probe.go looks at the sandbox from inside. It speaks
// the era of initialize, the one without sessions (modern.go), or both.
//
// Where it is asked to behave it does so exactly: echo and raw give back bytes
// as they came, size makes a result of exactly so many bytes, and cancelled
// tells which request ids were cancelled and whether they named a call.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// Manners are how the server behaves, as the flags say. The zero value behaves.
type manners struct {
	name         string
	era          string
	version      string
	instructions string

	startDelay time.Duration
	initDelay  time.Duration
	exit       int
	say        string
	banner     int
	junk       bool

	ignoreEOF  bool
	ignoreTerm bool
	grandchild bool
	neverRead  bool
	silent     bool

	tools        int
	page         int
	endless      bool
	stuck        bool
	equalNames   bool
	longNames    bool
	listError    string
	crashAt      string
	undeclared   bool
	bySampling   bool
	listChanged  bool
	rootsAtStart bool
	muteAt       string
	noAck        bool
	ttl          int
	cacheScope   string

	inits   string
	sleeper time.Duration
}

func parse(args []string) (manners, error) {
	var m manners
	f := flag.NewFlagSet("nasty", flag.ContinueOnError)
	f.StringVar(&m.name, "name", "nasty", "name of the server, and first word of its tools' descriptions")
	f.StringVar(&m.era, "era", "legacy", "era that the server speaks: legacy, modern, both")
	f.StringVar(&m.version, "version", "", "protocol version to answer with; empty agrees to what is asked for")
	f.StringVar(&m.instructions, "instructions", "", "instructions of the server")

	f.DurationVar(&m.startDelay, "start-delay", 0, "do nothing for so long, not even read")
	f.DurationVar(&m.initDelay, "init-delay", 0, "answer initialize after so long")
	f.IntVar(&m.exit, "exit", -1, "exit at start with this status")
	f.StringVar(&m.say, "say", "", "print this on stderr at start")
	f.IntVar(&m.banner, "banner", 0, "print so many lines of junk on stdout at start")
	f.BoolVar(&m.junk, "junk", false, "print junk on stdout before each message")

	f.BoolVar(&m.ignoreEOF, "ignore-eof", false, "go on when stdin ends")
	f.BoolVar(&m.ignoreTerm, "ignore-term", false, "ignore SIGTERM")
	f.BoolVar(&m.grandchild, "grandchild", false, "leave a grandchild in a session of its own, which holds stdout open")
	f.BoolVar(&m.neverRead, "never-read", false, "never read stdin")
	f.BoolVar(&m.silent, "silent", false, "read, but answer nothing")

	f.IntVar(&m.tools, "tools", 0, "have so many tools more, tool-001 and so on")
	f.IntVar(&m.page, "page", 0, "give lists in pages of so many items")
	f.BoolVar(&m.endless, "endless-cursor", false, "tools/list gives a new page, and a new cursor, for ever")
	f.BoolVar(&m.stuck, "stuck-cursor", false, "tools/list gives the same page and the same cursor for ever")
	f.BoolVar(&m.equalNames, "equal-names", false, "have two tools of the name twin")
	f.BoolVar(&m.longNames, "long-names", false, "have two tools of 120 characters that differ in the last one")
	f.StringVar(&m.listError, "list-error", "", "answer this method with an error")
	f.StringVar(&m.crashAt, "crash-at", "", "exit with status 3 when this method is asked for")
	f.StringVar(&m.muteAt, "mute-at", "", "never answer this method")
	f.BoolVar(&m.noAck, "no-ack", false, "do not acknowledge subscriptions/listen")
	f.IntVar(&m.ttl, "ttl", 0, "ttlMs of what may be cached, in the modern era")
	f.StringVar(&m.cacheScope, "cache-scope", "private", "cacheScope of what may be cached, in the modern era")
	f.BoolVar(&m.undeclared, "undeclared", false, "declare no capability, but answer")
	f.BoolVar(&m.bySampling, "by-sampling", false, "have the tool sampler only for clients that can sample")
	f.BoolVar(&m.listChanged, "list-changed", false, "send notifications/tools/list_changed right after the start")
	f.BoolVar(&m.rootsAtStart, "roots", false, "send roots/list right after initialized")

	f.StringVar(&m.inits, "inits", "", "append a line to this file for each initialize")
	f.DurationVar(&m.sleeper, "sleeper", 0, "be no server: sleep so long, deaf to SIGTERM")
	if err := f.Parse(args); err != nil {
		return m, err
	}
	if m.era != "legacy" && m.era != "modern" && m.era != "both" {
		return m, fmt.Errorf("-era %q is none of legacy, modern, both", m.era)
	}
	if f.NArg() > 0 {
		return m, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	return m, nil
}

func main() {
	m, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(0)
	}
	if err != nil {
		os.Exit(2)
	}
	os.Exit(live(m))
}

// live runs from start to end and returns the exit status.
func live(m manners) int {
	if m.sleeper > 0 {
		signal.Ignore(syscall.SIGTERM, syscall.SIGHUP)
		time.Sleep(m.sleeper)
		return 0
	}
	if m.say != "" {
		fmt.Fprintln(os.Stderr, m.say)
	}
	if m.ignoreTerm {
		signal.Ignore(syscall.SIGTERM)
	}
	if m.grandchild {
		if _, err := grandchild(time.Hour); err != nil {
			fmt.Fprintln(os.Stderr, "nasty:", err)
			return 1
		}
	}
	if m.exit >= 0 {
		return m.exit
	}
	for i := range m.banner {
		fmt.Println(banners[i%len(banners)])
	}
	time.Sleep(m.startDelay)
	s := newServer(m, os.Stdout)
	if m.neverRead {
		rest()
	}
	if err := s.serve(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "nasty:", err)
		return 1
	}
	if m.ignoreEOF {
		rest()
	}
	return 0
}

// rest is what is left to do for a server that will not go.
func rest() {
	for {
		time.Sleep(time.Hour)
	}
}

// banners are lines that servers print where only messages belong. The last
// ones look like JSON, or like the beginning of it.
var banners = []string{
	"Server running on stdio",
	"",
	"\x1b[32m✔\x1b[0m ready in 12 ms",
	"[info] listening",
	"{not json",
	strings.Repeat("=", 200),
	"42",
	`"quoted"`,
	"null",
	`{"level":"info","msg":"a log line in JSON"}`,
	"[]",
}
