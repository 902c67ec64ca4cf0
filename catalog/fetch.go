package catalog

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/specbox/specbox/wire"
)

// A Caller sends requests to one server that has been initialised. A
// [wire.Conn] is one.
type Caller interface {
	Call(ctx context.Context, method string, params []byte) (wire.Reply, error)
}

// Bounds limit what is read of one list of a server. A zero field means its
// default.
type Bounds struct {
	Pages int           // default 1,000
	Items int           // default 20,000
	Bytes int64         // of the items that are kept; default 32 MiB
	Time  time.Duration // from the first request to the last answer; default 30 s
}

func (b Bounds) withDefaults() Bounds {
	b.Pages = cmp.Or(b.Pages, 1000)
	b.Items = cmp.Or(b.Items, 20_000)
	b.Bytes = cmp.Or(b.Bytes, 32<<20)
	b.Time = cmp.Or(b.Time, 30*time.Second)
	return b
}

const (
	maxCursor = 64 << 10 // bytes of a cursor: it is sent back with the next request
	maxName   = 8 << 10  // bytes of a name or URI
	slack     = 4        // a list may take this many times Bounds.Bytes on the wire: spaces, and items that are dropped
)

// Fetch reads the lists of a server that has been initialised with init as the
// result. It asks for the lists that init declares, and, since some servers
// declare nothing and yet have tools, for the tools of those. A list that
// cannot be read, or is cut at the bounds, is noted in the entry and does not
// lose the others. There is an error only if nothing could be read; it names
// the server. A cancelled ctx ends the reading.
func Fetch(ctx context.Context, c Caller, key Key, init []byte, b Bounds) (*Entry, error) {
	b = b.withDefaults()
	switch {
	case int64(len(init)) > b.Bytes:
		return nil, fmt.Errorf("server %q: its answer to initialize has %d bytes, more than the limit of %d", key.Server, len(init), b.Bytes)
	case !wire.Valid(init) || bytes.TrimSpace(init)[0] != '{':
		return nil, fmt.Errorf("server %q: its answer to initialize is no JSON object: %.80q", key.Server, init)
	}
	e := &Entry{Key: key, Filled: time.Now(), Init: bytes.Clone(init)}
	silent := !slices.ContainsFunc(lists, func(l list) bool { return declares(init, l.capability) })
	var failed error
	read := 0
	for _, l := range lists {
		declared := declares(init, l.capability)
		if !declared && (!silent || l.method != ToolsList) {
			continue
		}
		r := reading{list: l, bounds: b, names: map[string]bool{}, dropped: map[string]int{}}
		err := r.run(ctx, c)
		*e.items(l.method) = r.items
		if r.cut != "" {
			e.Truncated = append(e.Truncated, l.method+": "+r.cut)
		}
		if note := r.note(); note != "" {
			e.Notes = append(e.Notes, l.method+": "+note)
		}
		var refusal *wire.Error
		switch {
		case err == nil:
			read++
		case errors.As(err, &refusal) && refusal.Code == wire.CodeMethodNotFound && len(r.items) == 0:
			read++ // declared, or asked for without that, and not there: it has none
		case !declared && ctx.Err() == nil:
			read++
			e.Notes = append(e.Notes, cut(fmt.Sprintf("%s: asked although it is not declared: %v", l.method, err), maxReason))
		default:
			if e.Errors == nil {
				e.Errors = map[string]string{}
			}
			e.Errors[l.method] = cut(err.Error(), maxReason)
			failed = cmp.Or(failed, fmt.Errorf("server %q: %s: %w", key.Server, l.method, err))
			if len(r.items) > 0 {
				read++
			}
		}
	}
	if read == 0 && failed != nil {
		return nil, failed
	}
	return e, nil
}

// declares reports whether the result of initialize declares a capability.
func declares(init []byte, path ...string) bool {
	v := wire.Get(init, append([]string{"capabilities"}, path...)...)
	return v != nil && string(v) != "null" && string(v) != "false"
}

// A reading is the state of reading one list.
type reading struct {
	list    list
	bounds  Bounds
	items   []Item
	names   map[string]bool
	kept    int64 // bytes of items
	came    int64 // bytes of pages
	cut     string
	dropped map[string]int // why -> how many
}

func (r *reading) run(ctx context.Context, c Caller) error {
	ctx, cancel := context.WithTimeoutCause(ctx, r.bounds.Time, fmt.Errorf("no complete answer within %v", r.bounds.Time))
	defer cancel()
	seen := map[[sha256.Size]byte]bool{}
	var params []byte
	for page := 1; ; page++ {
		reply, err := c.Call(ctx, r.list.method, params)
		if err == nil {
			err = reply.Err()
		}
		var cursor []byte
		if err == nil {
			cursor, err = r.page(reply.Result)
		}
		if err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			if page > 1 {
				err = fmt.Errorf("page %d: %w", page, err)
			}
			return err
		}
		sum := sha256.Sum256(cursor)
		switch {
		case r.cut != "" || cursor == nil:
			return nil
		case seen[sum]:
			r.cut = fmt.Sprintf("the cursor never ends: page %d gave one that came before", page)
			return nil
		case page == r.bounds.Pages:
			r.cut = fmt.Sprintf("the cursor never ends: cut after %d pages", page)
			return nil
		}
		seen[sum] = true
		params = slices.Concat([]byte(`{"cursor":`), cursor, []byte(`}`))
	}
}

// page takes one page and returns the cursor of the next, as the server wrote
// it, or nil if this is the last.
func (r *reading) page(result []byte) ([]byte, error) {
	r.came += int64(len(result))
	if r.came > slack*r.bounds.Bytes {
		r.cut = fmt.Sprintf("cut after %d bytes", r.came)
	}
	var array, cursor []byte
	err := wire.Members(result, func(key string, v []byte) bool {
		switch key {
		case r.list.member:
			array = v
		case "nextCursor":
			cursor = v
		}
		return true
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("the answer is no JSON object: %.80q", result)
	case array == nil:
		return nil, fmt.Errorf("the answer has no %q", r.list.member)
	case string(array) != "null":
		if err := wire.Each(array, r.add); err != nil {
			return nil, fmt.Errorf("%q is no JSON array: %.80q", r.list.member, array)
		}
	}
	switch {
	case len(cursor) > maxCursor:
		r.cut = fmt.Sprintf("cut at a cursor of %d bytes", len(cursor))
		return nil, nil
	case cursor == nil || string(cursor) == "null" || string(cursor) == `""`:
		return nil, nil
	case !wire.Valid(cursor):
		return nil, fmt.Errorf("the cursor is no JSON: %.80q", cursor)
	}
	return cursor, nil
}

// add takes one item and reports whether there is room for more.
func (r *reading) add(raw []byte) bool {
	name, why := identify(raw, r.list.name)
	if why == "" && r.names[name] {
		why = "named like one before"
	}
	switch {
	case why != "":
		r.dropped[why]++
		return true
	case len(r.items) == r.bounds.Items:
		r.cut = fmt.Sprintf("cut after %d items", len(r.items))
		return false
	case r.kept+int64(len(raw)) > r.bounds.Bytes:
		r.cut = fmt.Sprintf("cut after %d items: more would be over %d bytes", len(r.items), r.bounds.Bytes)
		return false
	}
	r.kept += int64(len(raw))
	r.names[name] = true
	r.items = append(r.items, Item{Name: name, Raw: bytes.Clone(raw)}) // the page may be much larger than what is kept of it
	return true
}

// identify returns the name of an item, or why it cannot be listed. An item
// that is named twice would be called by one name and listed under another.
func identify(raw []byte, member string) (name, why string) {
	if !wire.Valid(raw) || raw[0] != '{' {
		return "", "no JSON object"
	}
	var value []byte
	count := 0
	_ = wire.Members(raw, func(key string, v []byte) bool { // raw is valid
		if key == member {
			value = v
			count++
		}
		return true
	})
	switch {
	case count > 1:
		return "", "with two members " + member
	case count == 0 || value[0] != '"' || string(value) == `""`:
		return "", "without a " + member
	}
	name = wire.Str(raw, member)
	switch {
	case len(name) > maxName:
		return "", fmt.Sprintf("with a %s of more than %d bytes", member, maxName)
	case !utf8.ValidString(name):
		return "", "with a " + member + " that is no UTF-8"
	}
	return name, ""
}

func (r *reading) note() string {
	var parts []string
	for why, n := range r.dropped {
		parts = append(parts, fmt.Sprintf("%d %s", n, why))
	}
	slices.Sort(parts)
	if parts == nil {
		return ""
	}
	return "left out: " + strings.Join(parts, ", ")
}
