package catalog

import (
	"cmp"
	"maps"
)

// An index is what a store knows, immutable: readers take no lock.
type index struct {
	groups map[groupKey]*group
}

type groupKey struct{ tenant, server, hash string }

func (k Key) group() groupKey { return groupKey{k.Tenant, k.Server, k.Hash} }

// A group holds the entries of one configuration, by fingerprint. A nil group
// is empty.
type group struct {
	entries     map[string]*Entry
	independent *Entry // serves every fingerprint exactly, or nil
	nearest     *Entry // serves those that have no entry yet, or nil
	failed      *Entry // says why nothing is served, or nil
}

func newGroup(entries map[string]*Entry) *group {
	g := &group{entries: entries}
	bare, rich := entries[none], entries[full]
	if complete(bare) && complete(rich) && len(differing(bare, rich)) == 0 {
		g.independent = bare
	}
	if bare != nil && !bare.empty() {
		g.nearest = bare
		return g
	}
	for _, e := range entries {
		if !e.empty() && (g.nearest == nil || newer(e, g.nearest)) {
			g.nearest = e
		}
		if e.empty() && e.Err != "" && (g.failed == nil || newer(e, g.failed)) {
			g.failed = e
		}
	}
	return g
}

// why says why the group serves nothing.
func (g *group) why() string {
	if g == nil || g.failed == nil {
		return ""
	}
	return g.failed.Err
}

// newer breaks ties by fingerprint, so that the choice does not change.
func newer(a, b *Entry) bool {
	if !a.Filled.Equal(b.Filled) {
		return a.Filled.After(b.Filled)
	}
	return a.Key.Fingerprint < b.Key.Fingerprint
}

// complete reports whether all lists of e were read.
func complete(e *Entry) bool { return e != nil && !e.empty() && len(e.Errors) == 0 }

func (g *group) exact(fingerprint string) *Entry {
	if g == nil {
		return nil
	}
	return g.entries[fingerprint]
}

func newIndex(entries map[Key]*Entry) *index {
	byGroup := map[groupKey]map[string]*Entry{}
	for k, e := range entries {
		m := byGroup[k.group()]
		if m == nil {
			m = map[string]*Entry{}
			byGroup[k.group()] = m
		}
		m[k.Fingerprint] = e
	}
	x := &index{groups: make(map[groupKey]*group, len(byGroup))}
	for k, m := range byGroup {
		x.groups[k] = newGroup(m)
	}
	return x
}

// with returns an index in which e is at its key and the entries at the
// dropped keys, which are of the same group, are gone.
func (x *index) with(e *Entry, dropped []Key) *index {
	entries := map[string]*Entry{}
	if g := x.groups[e.Key.group()]; g != nil {
		entries = maps.Clone(g.entries)
	}
	entries[e.Key.Fingerprint] = e
	for _, k := range dropped {
		delete(entries, k.Fingerprint)
	}
	groups := maps.Clone(x.groups)
	groups[e.Key.group()] = newGroup(entries)
	return &index{groups: groups}
}

// at returns the entry at exactly that key, or nil.
func (x *index) at(k Key) *Entry { return x.groups[k.group()].exact(k.Fingerprint) }

func (x *index) lookup(k Key) (e *Entry, exact bool) {
	base := x.groups[groupKey{"", k.Server, k.Hash}]
	var own *group
	if k.Tenant != "" {
		own = x.groups[k.group()]
	}
	if e := own.exact(k.Fingerprint); e != nil && !e.empty() {
		return e, true
	}
	if e := base.exact(k.Fingerprint); e != nil && !e.empty() {
		return e, true
	}
	switch {
	case base != nil && base.independent != nil:
		return base.independent, true
	case base != nil && base.nearest != nil:
		return base.nearest, false
	case own != nil && own.nearest != nil:
		return own.nearest, false
	}
	return nil, false
}

// problem returns why what lookup finds is not what the server offers now.
func (x *index) problem(k Key) string {
	tenant := k.Tenant
	if e := x.at(k); e != nil {
		return e.Problem()
	}
	if k.Tenant != "" {
		k.Tenant = ""
		if e := x.at(k); e != nil {
			return e.Problem()
		}
	}
	if e, _ := x.lookup(k); e != nil {
		return e.Problem()
	}
	// It was never read, for whatever capabilities: what hindered that hinders
	// these too.
	return cmp.Or(x.groups[groupKey{tenant, k.Server, k.Hash}].why(), x.groups[groupKey{"", k.Server, k.Hash}].why())
}
