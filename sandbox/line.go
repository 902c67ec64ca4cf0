package sandbox

import "slices"

// An owner is who a sandbox counts for: a tenant, or all of them.
type owner struct {
	tenant string
	shared bool
}

// A line is where boxes wait for their turn: first come, first served within
// an owner, and round and round among owners, so that one owner's flood does
// not hold up the others. Boxes of a lower rank go first.
type line struct {
	ranks [2]struct {
		owners  []owner // those that have boxes here, in the order of their turns
		waiting map[owner][]*box
	}
	n int
}

func (l *line) push(b *box) { l.insert(b, func(*box) bool { return false }) }

// insert puts b before the first of its owner for which before reports true.
func (l *line) insert(b *box, before func(*box) bool) {
	r := &l.ranks[b.rank]
	if r.waiting == nil {
		r.waiting = map[owner][]*box{}
	}
	if len(r.waiting[b.owner]) == 0 {
		r.owners = append(r.owners, b.owner)
	}
	q := r.waiting[b.owner]
	i := slices.IndexFunc(q, before)
	if i < 0 {
		i = len(q)
	}
	r.waiting[b.owner] = slices.Insert(q, i, b)
	l.n++
}

// of returns the boxes of an owner, of rank 0. It is not to be changed.
func (l *line) of(o owner) []*box { return l.ranks[0].waiting[o] }

// remove takes b out and reports whether it was in.
func (l *line) remove(b *box) bool {
	r := &l.ranks[b.rank]
	i := slices.Index(r.waiting[b.owner], b)
	if i < 0 {
		return false
	}
	l.n--
	r.waiting[b.owner] = slices.Delete(r.waiting[b.owner], i, i+1)
	if len(r.waiting[b.owner]) == 0 {
		delete(r.waiting, b.owner)
		r.owners = slices.DeleteFunc(r.owners, func(o owner) bool { return o == b.owner })
	}
	return true
}

// next takes out the box whose turn it is among those that stand first of
// their owner and fit, or returns nil.
func (l *line) next(fits func(*box) bool) *box {
	for rank := range l.ranks {
		r := &l.ranks[rank]
		for i, o := range r.owners {
			b := r.waiting[o][0]
			if !fits(b) {
				continue
			}
			r.owners = append(slices.Delete(r.owners, i, i+1), o)
			l.remove(b)
			return b
		}
	}
	return nil
}

// heads calls f with the first box of each owner, of rank 0.
func (l *line) heads(f func(*box)) {
	for _, o := range l.ranks[0].owners {
		f(l.ranks[0].waiting[o][0])
	}
}

// all calls f with each box in the order of their turns.
func (l *line) all(f func(*box)) {
	for rank := range l.ranks {
		r := &l.ranks[rank]
		for turn, more := 0, true; more; turn++ {
			more = false
			for _, o := range r.owners {
				if turn < len(r.waiting[o]) {
					f(r.waiting[o][turn])
					more = true
				}
			}
		}
	}
}
