package catalog

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	fileExt    = ".catalog"
	corruptExt = ".corrupt"

	// Clients choose their capabilities, so they must not be able to fill the
	// disk with entries for invented ones.
	maxFingerprints = 8

	keptHashes = 3                    // configurations of a server that are kept however old
	oldAge     = 30 * 24 * time.Hour  // the others go when unused this long
	deadAge    = 180 * 24 * time.Hour // and all go when unused this long
	tmpAge     = time.Hour            // a file half-written that long ago was left by a crash
	touchEvery = 24 * time.Hour       // how exactly use is known
)

// A Store is a folder of entries with the whole of it in memory. It is safe
// for concurrent use, and several processes may have a Store on one folder. It
// has nothing to close.
type Store struct {
	dir   string
	log   *slog.Logger
	index atomic.Pointer[index]
	names *registry
	views views

	// turn is held, as its one token, by who changes files: it keeps files and
	// index in step. Readers never wait for it.
	turn chan struct{}

	mu       sync.Mutex
	files    map[Key]fs.FileInfo // as they were read or written
	watchers map[*func(Change)]struct{}
}

// A Change says that what a server offers, or why it cannot be read, is not
// what it was.
type Change struct {
	Key   Key
	Lists []string // methods whose items differ; none if only the error does
}

// Open returns a Store on a folder, which is made if it does not exist. Files
// in it that cannot be used are set aside, with a line in the log, and entries
// of configurations long unused are removed. A nil log discards.
func Open(dir string, log *slog.Logger) (*Store, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("catalogue folder: %w; choose another folder for state", err)
	}
	s := &Store{
		dir: dir, log: log,
		names:    newRegistry(dir, log),
		turn:     make(chan struct{}, 1),
		files:    map[Key]fs.FileInfo{},
		watchers: map[*func(Change)]struct{}{},
	}
	s.index.Store(newIndex(nil))
	if err := s.sweep(); err != nil {
		return nil, fmt.Errorf("catalogue folder: %w; choose another folder for state", err)
	}
	if err := s.Refresh(); err != nil {
		return nil, err
	}
	return s, nil
}

// Lookup returns the entry that serves a key, and whether it holds exactly
// what the server offers to that tenant and those capabilities. In this order:
// the tenant's own entry, the one that all share, one of a server that does
// not look at capabilities, and then, not exact, the nearest one of the same
// configuration. It returns nil if there is none.
func (s *Store) Lookup(k Key) (e *Entry, exact bool) { return s.index.Load().lookup(k) }

// Entries returns all entries, ordered by server, tenant and time, the newest
// last. Those of servers that could never be read hold only an error.
func (s *Store) Entries() []*Entry {
	var all []*Entry
	for _, g := range s.index.Load().groups {
		all = slices.AppendSeq(all, maps.Values(g.entries))
	}
	slices.SortFunc(all, func(a, b *Entry) int {
		return cmp.Or(
			cmp.Compare(a.Key.Server, b.Key.Server),
			cmp.Compare(a.Key.Tenant, b.Key.Tenant),
			a.Filled.Compare(b.Filled),
			cmp.Compare(a.Key.Hash, b.Key.Hash),
			cmp.Compare(a.Key.Fingerprint, b.Key.Fingerprint),
		)
	})
	return all
}

// Put stores what was read of a server and takes ownership of e. A list that
// could not be read keeps the items of the entry that was there, and a list
// that differs only in order keeps that order. Changed says whether a client
// can see a difference. On an error the entry is in use but not on disk.
func (s *Store) Put(e *Entry) (changed bool, err error) {
	if e.Key.Server == "" || e.empty() {
		return false, fmt.Errorf("catalogue: an entry of server %q without an answer to initialize cannot be stored", e.Key.Server)
	}
	merge := func(old *Entry) *Entry {
		if old != nil {
			keepOld(e, old)
		}
		return e
	}
	lists, first, err := s.change(e.Key, merge)
	return first || len(lists) > 0, err
}

// keepOld takes over from old what e could not read, and the order of what is
// the same.
func keepOld(e, old *Entry) {
	for _, l := range lists {
		was, is := old.List(l.method), e.items(l.method)
		if (e.Errors[l.method] != "" && len(was) > 0) || sameItems(was, *is) {
			*is = was
		}
	}
}

// maxReason is how much is kept of an error, in bytes: servers write them too.
const maxReason = 4 << 10

// SetError stores why a server cannot be read; what was read before stays. A
// nil cause clears the error. On an error the cause is known but not on disk.
func (s *Store) SetError(k Key, cause error) error {
	text := ""
	if cause != nil {
		text = cut(cause.Error(), maxReason)
	}
	_, _, err := s.change(k, func(old *Entry) *Entry {
		switch {
		case old == nil && text == "", old != nil && old.Err == text:
			return old
		case old == nil:
			return &Entry{Key: k, Err: text}
		}
		e := *old
		e.Err = text
		return &e
	})
	return err
}

// change replaces the entry at k by what edit makes of it. It reports the
// lists that differ, and whether there were none before.
func (s *Store) change(k Key, edit func(old *Entry) *Entry) (lists []string, first bool, err error) {
	old, e, lists, err := s.apply(k, edit)
	if old == e {
		return nil, false, nil
	}
	first = !e.empty() && (old == nil || old.empty())
	if first || len(lists) > 0 || old == nil || old.Problem() != e.Problem() {
		s.notify(Change{Key: k, Lists: lists})
	}
	return lists, first, err
}

func (s *Store) apply(k Key, edit func(old *Entry) *Entry) (old, e *Entry, lists []string, err error) {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	x := s.index.Load()
	old = x.at(k)
	e = edit(old)
	if e == old {
		return old, e, nil, nil
	}
	before := old
	if before == nil {
		before = &Entry{}
	}
	lists = differing(before, e)
	dropped := surplus(x.groups[k.group()], k)
	s.index.Store(x.with(e, dropped))

	info, err := s.write(e)
	if err != nil {
		err = fmt.Errorf("catalogue of server %q is not kept on disk: %w; make room, or choose another folder for state", k.Server, err)
	}
	for _, d := range dropped {
		if rmErr := os.Remove(s.path(d)); rmErr != nil && !errors.Is(rmErr, fs.ErrNotExist) {
			s.log.Warn("a catalogue file cannot be removed", "server", d.Server, "err", rmErr)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.files, k)
	if err == nil {
		s.files[k] = info
	}
	for _, d := range dropped {
		delete(s.files, d)
	}
	return old, e, lists, err
}

// surplus returns what must go so that k has room in its group: the entries
// filled longest ago, save those of the two sets of a first fill.
func surplus(g *group, k Key) []Key {
	if g == nil {
		return nil
	}
	var others []*Entry
	for fp, e := range g.entries {
		if fp != k.Fingerprint && fp != none && fp != full {
			others = append(others, e)
		}
	}
	slices.SortFunc(others, func(a, b *Entry) int {
		return cmp.Or(a.Filled.Compare(b.Filled), cmp.Compare(a.Key.Fingerprint, b.Key.Fingerprint))
	})
	var out []Key
	for _, e := range others[:max(0, len(others)-maxFingerprints+1)] {
		out = append(out, e.Key)
	}
	return out
}

func (s *Store) write(e *Entry) (fs.FileInfo, error) {
	b, err := encode(e)
	if err != nil {
		return nil, err
	}
	if err := writeFile(s.path(e.Key), b); err != nil {
		return nil, err
	}
	return os.Stat(s.path(e.Key))
}

func (s *Store) path(k Key) string { return filepath.Join(s.dir, fileName(k)) }

// fileName is readable and, by its digest, unique.
func fileName(k Key) string {
	h := sha256.New()
	for _, part := range []string{k.Tenant, k.Server, k.Hash, k.Fingerprint} {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	name := sanitise(k.Server)
	return name[:min(len(name), 60)] + "-" + hex.EncodeToString(h.Sum(nil)[:8]) + fileExt
}

// Watch has f called after each change, from the goroutine that made it, until
// stop is called. f must not block.
func (s *Store) Watch(f func(Change)) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watchers[&f] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watchers, &f)
	}
}

func (s *Store) notify(changes ...Change) {
	s.mu.Lock()
	all := slices.Collect(maps.Keys(s.watchers))
	s.mu.Unlock()
	for _, c := range changes {
		for _, f := range all {
			(*f)(c)
		}
	}
}

// Refresh takes in what other processes have changed in the folder since it
// was last read.
func (s *Store) Refresh() error {
	changes, err := s.refresh()
	s.notify(changes...)
	return err
}

func (s *Store) refresh() ([]Change, error) {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	dirents, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("catalogue folder: %w", err)
	}
	x := s.index.Load()
	s.mu.Lock()
	known := make(map[string]Key, len(s.files))
	files := maps.Clone(s.files)
	s.mu.Unlock()
	for k := range files {
		known[fileName(k)] = k
	}
	entries := map[Key]*Entry{}
	for _, g := range x.groups {
		for _, e := range g.entries {
			if _, onDisk := files[e.Key]; !onDisk {
				entries[e.Key] = e // could not be written, and is in use all the same
			}
		}
	}
	now := map[Key]fs.FileInfo{}
	for _, d := range dirents {
		if !strings.HasSuffix(d.Name(), fileExt) {
			continue
		}
		info, err := d.Info()
		if err != nil { // it has just been removed
			continue
		}
		if k, ok := known[d.Name()]; ok && unchanged(files[k], info) {
			now[k], entries[k] = info, x.at(k)
			continue
		}
		if e := s.load(d.Name(), info); e != nil {
			now[e.Key], entries[e.Key] = info, e
		}
	}
	s.mu.Lock()
	s.files = now
	s.mu.Unlock()
	next := newIndex(entries)
	s.index.Store(next)
	return changed(x, next, entries), nil
}

func unchanged(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

func changed(was, is *index, entries map[Key]*Entry) []Change {
	var out []Change
	compare := func(k Key, a, b *Entry) {
		if a == b {
			return
		}
		a, b = cmp.Or(a, &Entry{}), cmp.Or(b, &Entry{})
		diff := differing(a, b)
		if len(diff) > 0 || a.Problem() != b.Problem() || a.empty() != b.empty() {
			out = append(out, Change{Key: k, Lists: diff})
		}
	}
	for k, e := range entries {
		compare(k, was.at(k), e)
	}
	for _, g := range was.groups {
		for _, e := range g.entries {
			if is.at(e.Key) == nil {
				compare(e.Key, e, nil)
			}
		}
	}
	return out
}

// load reads one file. What is no entry is set aside, so that it is neither
// lost nor met again at every start.
func (s *Store) load(name string, info fs.FileInfo) *Entry {
	path := filepath.Join(s.dir, name)
	var e *Entry
	why := error(nil)
	switch {
	case !info.Mode().IsRegular():
		why = errors.New("it is no regular file")
	case info.Size() > maxFile:
		why = fmt.Errorf("it has %d bytes, more than %d", info.Size(), maxFile)
	default:
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			s.log.Warn("a catalogue file cannot be read: its server will be asked again", "file", path, "err", err)
			return nil
		}
		e, why = decode(b)
		if why == nil && fileName(e.Key) != name {
			why = fmt.Errorf("it holds the entry of another file, %s", fileName(e.Key))
		}
	}
	switch {
	case why == nil:
		return e
	case errors.Is(why, errNewer):
		s.log.Warn("a catalogue file is left alone: its server will be asked again", "file", path, "why", why)
	default:
		aside(s.log, path, why)
	}
	return nil
}

func aside(log *slog.Logger, path string, why error) {
	to := path + corruptExt
	if err := os.Rename(path, to); err != nil {
		log.Warn("a catalogue file cannot be used, nor set aside", "file", path, "why", why, "err", err)
		return
	}
	log.Warn("a catalogue file cannot be used and is set aside", "file", path, "why", why, "now", to)
}

// used notes that entries are in use, so that sweep leaves them.
func (s *Store) used(entries []*Entry) {
	now := time.Now()
	var stale []Key
	s.mu.Lock()
	for _, e := range entries {
		if e == nil {
			continue
		}
		if info := s.files[e.Key]; info != nil && now.Sub(info.ModTime()) > touchEvery {
			stale = append(stale, e.Key)
		}
	}
	s.mu.Unlock()
	for _, k := range stale {
		_ = os.Chtimes(s.path(k), now, now) // it is gone: then another process has replaced it
		info, err := os.Stat(s.path(k))
		if err != nil {
			continue
		}
		s.mu.Lock()
		if was := s.files[k]; was != nil && os.SameFile(was, info) {
			s.files[k] = info
		}
		s.mu.Unlock()
	}
}

// sweep removes what crashes left, and the entries of configurations that are
// gone.
func (s *Store) sweep() error {
	dirents, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	type file struct {
		path string
		used time.Time
		hash string
	}
	servers := map[[2]string][]file{} // of (tenant, server)
	for _, d := range dirents {
		info, err := d.Info()
		if err != nil {
			continue
		}
		path := filepath.Join(s.dir, d.Name())
		age := time.Since(info.ModTime())
		switch {
		case strings.HasPrefix(d.Name(), tmpPrefix) && age > tmpAge:
			_ = os.Remove(path)
		case strings.HasSuffix(d.Name(), fileExt) && info.Mode().IsRegular():
			if k, err := readKey(path); err == nil {
				at := [2]string{k.Tenant, k.Server}
				servers[at] = append(servers[at], file{path, info.ModTime(), k.Hash})
			}
		}
	}
	for at, files := range servers {
		slices.SortFunc(files, func(a, b file) int { return b.used.Compare(a.used) })
		var hashes []string
		for _, f := range files {
			if !slices.Contains(hashes, f.hash) {
				hashes = append(hashes, f.hash)
			}
			age := time.Since(f.used)
			if age > deadAge || (age > oldAge && slices.Index(hashes, f.hash) >= keptHashes) {
				s.log.Info("a catalogue file long unused is removed", "server", at[1], "file", f.path)
				_ = os.Remove(f.path)
			}
		}
	}
	return nil
}
