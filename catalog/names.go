package catalog

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	maxExposed = 64 // characters of a tool or prompt name that LLM interfaces take
	hashChars  = 8

	// A name goes to another server only if its owner takes no part in the
	// view and was in none for this long: it was renamed or removed.
	releaseAfter = 7 * 24 * time.Hour

	// A server that gives new names all the time must not fill memory and disk.
	maxClaims = 20_000 // of one server, beside those in use, weighed
	usualName = 256    // bytes: a claim weighs one for each that its name begins

	lockWait   = 2 * time.Second  // a client waits for its list
	retryAfter = 10 * time.Second // when names could not be kept
)

// A kind is a space of names: a name is unique within it.
type kind string

const (
	toolKind     kind = "tool"
	promptKind   kind = "prompt"
	resourceKind kind = "resource"
	templateKind kind = "template"
)

func (k kind) isURI() bool { return k == resourceKind || k == templateKind }

// An owner is what has a name: a thing of a server, under a prefix. Resources
// and templates have no prefix.
type owner struct {
	kind                kind
	server, prefix, own string
}

func (o owner) weight() int { return 1 + len(o.own)/usualName }

// size is about how long a line of the log with a claim of o is.
func (o owner) size() int { return 2*len(o.own) + len(o.server) + len(o.prefix) + 100 }

// A group of names is seen when it takes part in a view.
type nameGroup struct{ server, prefix string }

type nameKey struct {
	kind kind
	name string
}

type claim struct {
	name string
	seq  uint64 // order of arrival
}

// A registry remembers who has which name. The first who asks for a name keeps
// it; later ones get another. Processes share it through a log in the folder.
// It is safe for concurrent use.
type registry struct {
	dir string
	log *slog.Logger

	mu      sync.RWMutex
	owners  map[owner]claim
	names   map[nameKey]owner
	weight  map[string]int       // server -> its claims, weighed
	size    int                  // bytes of all lines that hold, about
	seen    map[nameGroup]string // day of the last view
	seq     uint64
	unsaved []line
	retry   time.Time // no use to try to save before
	at      position  // up to where the log is known
}

func newRegistry(dir string, log *slog.Logger) *registry {
	r := &registry{dir: dir, log: log}
	r.clear()
	return r
}

func (r *registry) clear() {
	r.owners = map[owner]claim{}
	r.names = map[nameKey]owner{}
	r.weight, r.size = map[string]int{}, 0
	r.seen = map[nameGroup]string{}
}

func (r *registry) path() string { return filepath.Join(r.dir, "names.log") }

func today() string { return time.Now().UTC().Format(time.DateOnly) }

// assign returns the name of each owner, in the same order. The names are
// unique. Owners that have none yet get one, in order.
func (r *registry) assign(wants []owner) []string {
	day := today()
	groups := map[nameGroup]bool{}
	for _, o := range wants {
		groups[nameGroup{o.server, o.prefix}] = true
	}
	r.mu.RLock()
	names, known := r.known(wants)
	settled := known && (len(r.unsaved) == 0 || time.Now().Before(r.retry))
	for g := range groups {
		settled = settled && r.seen[g] >= day
	}
	r.mu.RUnlock()
	if settled {
		return names
	}
	return r.claim(wants, groups, day)
}

// known returns the names of the owners if all have one.
func (r *registry) known(wants []owner) ([]string, bool) {
	names := make([]string, len(wants))
	for i, o := range wants {
		c, ok := r.owners[o]
		if !ok {
			return nil, false
		}
		names[i] = c.name
	}
	return names, true
}

// errNotNow says that names could not be kept a moment ago.
var errNotNow = errors.New("not tried again yet")

// claim gives names to owners and keeps them on disk. If that cannot be done
// the names still hold within this process.
func (r *registry) claim(wants []owner, groups map[nameGroup]bool, day string) []string {
	r.mu.RLock()
	off := time.Now().Before(r.retry)
	r.mu.RUnlock()
	err := errNotNow
	var at position
	var read logRead
	if !off {
		var unlock func()
		unlock, err = lockFile(filepath.Join(r.dir, "names.lock"), lockWait)
		if err == nil {
			defer unlock()
			r.mu.RLock()
			at = r.at // read behind the lock: another goroutine may have had it
			r.mu.RUnlock()
			read, err = readNames(r.path(), at, r.log)
		}
	}

	r.mu.Lock()
	if err == nil {
		r.takeIn(read)
	}
	names, lines, dropped := r.decide(wants, groups, day)
	r.unsaved = r.current(append(r.unsaved, lines...))
	out := r.unsaved
	whole := read.fresh || dropped || r.at.lines+len(out) > 2*len(r.owners)+1000 || r.at.offset > int64(3*r.size)+1<<20
	if whole {
		out = r.snapshot()
	}
	at = r.at
	r.mu.Unlock()

	if off {
		return names
	}
	if err == nil {
		at, err = writeNames(r.path(), at, out, whole)
	}
	if err != nil {
		r.log.Warn("names of tools are not kept on disk: they may change at a restart", "folder", r.dir, "err", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.retry = time.Now().Add(retryAfter)
		return names
	}
	saved := make(map[line]bool, len(out))
	for _, l := range out {
		saved[l] = true
	}
	r.unsaved = slices.DeleteFunc(slices.Clone(r.unsaved), func(l line) bool { return saved[l] }) // others may have come meanwhile
	r.at = at
	return names
}

// takeIn applies what other processes wrote. A line overrules what this
// process could not save.
func (r *registry) takeIn(read logRead) {
	if read.reset {
		r.clear()
	}
	for _, l := range read.lines {
		r.apply(l)
	}
	r.at = read.at
}

func (r *registry) apply(l line) {
	if l.Seen != "" {
		g := nameGroup{l.Server, l.Prefix}
		r.seen[g] = max(r.seen[g], l.Seen)
		return
	}
	r.set(owner{l.Kind, l.Server, l.Prefix, l.Own}, l.Name)
}

// set gives a name to an owner and takes it from who had it.
func (r *registry) set(o owner, name string) {
	r.unset(o)
	k := nameKey{o.kind, name}
	if other, taken := r.names[k]; taken {
		r.unset(other)
	}
	r.seq++
	r.owners[o] = claim{name, r.seq}
	r.names[k] = o
	r.weight[o.server] += o.weight()
	r.size += o.size()
}

func (r *registry) unset(o owner) {
	c, ok := r.owners[o]
	if !ok {
		return
	}
	delete(r.owners, o)
	delete(r.names, nameKey{o.kind, c.name})
	r.weight[o.server] -= o.weight()
	r.size -= o.size()
}

// decide gives names to those who have none. It returns the lines that say so,
// and whether claims were dropped.
func (r *registry) decide(wants []owner, groups map[nameGroup]bool, day string) (names []string, lines []line, dropped bool) {
	for _, o := range wants {
		c, ok := r.owners[o]
		if !ok {
			c.name = r.free(o, groups, day)
			r.set(o, c.name)
			lines = append(lines, line{Kind: o.kind, Server: o.server, Prefix: o.prefix, Own: o.own, Name: c.name})
		}
		names = append(names, c.name)
	}
	for g := range groups {
		if r.seen[g] < day {
			r.seen[g] = day
			lines = append(lines, line{Server: g.server, Prefix: g.prefix, Seen: day})
		}
	}
	return names, lines, r.forget(wants)
}

// free returns the first choice of o that nobody has.
func (r *registry) free(o owner, groups map[nameGroup]bool, day string) string {
	for n := 0; ; n++ {
		name := candidate(o, n)
		other, taken := r.names[nameKey{o.kind, name}]
		if !taken || (n > 0 && o.kind.isURI()) { // a wrapped URI is nobody else's
			return name
		}
		g := nameGroup{other.server, other.prefix}
		if groups[g] {
			continue
		}
		last, err := time.Parse(time.DateOnly, r.seen[g])
		now, _ := time.Parse(time.DateOnly, day) // day is formatted so
		if err != nil || now.Sub(last) > releaseAfter {
			return name
		}
	}
}

// forget drops the oldest claims of servers that have too many, save those
// that are in use now.
func (r *registry) forget(wants []owner) bool {
	inUse := map[string]map[owner]bool{}
	for _, o := range wants {
		if r.weight[o.server] > maxClaims {
			if inUse[o.server] == nil {
				inUse[o.server] = map[owner]bool{}
			}
			inUse[o.server][o] = true
		}
	}
	dropped := false
	for server, used := range inUse {
		var idle []owner
		weight := 0
		for o := range r.owners {
			if o.server == server && !used[o] {
				idle = append(idle, o)
				weight += o.weight()
			}
		}
		if weight <= maxClaims {
			continue
		}
		slices.SortFunc(idle, func(a, b owner) int { return cmp.Compare(r.owners[a].seq, r.owners[b].seq) })
		for _, o := range idle {
			if weight <= maxClaims/2 { // half, so that it is not done again at once
				break
			}
			r.unset(o)
			weight -= o.weight()
			dropped = true
		}
	}
	return dropped
}

// current returns the lines that still hold, as a new slice.
func (r *registry) current(lines []line) []line {
	return slices.DeleteFunc(slices.Clone(lines), func(l line) bool {
		return l.Seen == "" && r.owners[owner{l.Kind, l.Server, l.Prefix, l.Own}].name != l.Name
	})
}

// snapshot returns lines that say all that is known.
func (r *registry) snapshot() []line {
	lines := make([]line, 0, len(r.owners)+len(r.seen))
	for o, c := range r.owners {
		lines = append(lines, line{Kind: o.kind, Server: o.server, Prefix: o.prefix, Own: o.own, Name: c.name})
	}
	seq := func(l line) uint64 { return r.owners[owner{l.Kind, l.Server, l.Prefix, l.Own}].seq }
	slices.SortFunc(lines, func(a, b line) int { return cmp.Compare(seq(a), seq(b)) })
	for g, day := range r.seen {
		lines = append(lines, line{Server: g.server, Prefix: g.prefix, Seen: day})
	}
	return lines
}

// candidate returns the nth choice of a name: of a tool or prompt with its
// prefix, of a resource or template as it is, and else one that is unlikely,
// or for URIs impossible, to be another's.
func candidate(o owner, n int) string {
	if o.kind.isURI() {
		if n == 0 && !strings.HasPrefix(o.own, wrapScheme) { // that form is ours, so that nobody can imitate it
			return o.own
		}
		return wrap(o.kind, o.server, o.own)
	}
	clean := sanitise(o.own)
	name := sanitise(o.prefix) + clean
	if n == 0 && clean == o.own && len(name) <= maxExposed {
		return name
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%d:%s%s", len(o.server), o.server, o.own))
	if n > 1 { // n of 0 and 1 are the same wherever the name came from
		sum = sha256.Sum256(fmt.Appendf(nil, "%d:%s%s %d", len(o.server), o.server, o.own, n))
	}
	return name[:min(len(name), maxExposed-1-hashChars)] + "_" + hex.EncodeToString(sum[:])[:hashChars]
}

// sanitise replaces what must not be in a name.
func sanitise(s string) string {
	return strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' {
			return c
		}
		return '_'
	}, s)
}
