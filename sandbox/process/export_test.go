package process

// The parsers, for their fuzz tests.
var (
	ParseShebang = parseShebang
	Unescape     = unescape
)

// ParseMount returns the mount point and the kind of a line of mountinfo.
func ParseMount(line string) (point, kind string, ok bool) {
	m, ok := parseMount(line)
	return m.point, m.kind, ok
}

// ParseAllowed returns the addresses inside that an allow-list makes, those
// outside, and the lines of /etc/hosts.
func ParseAllowed(entries []string) (inside, outside []string, hosts string, err error) {
	a, err := newAllowList(entries)
	if err != nil {
		return nil, nil, "", err
	}
	for _, w := range a.ways {
		inside, outside = append(inside, w.Inside), append(outside, w.Outside)
	}
	return inside, outside, a.hostsFile(), nil
}

// WithoutVersion2 lets b do without version 2 cgroups. It is false where there
// is no version 1 to do with.
func WithoutVersion2(b *Backend) bool {
	b.groups.v2, b.groups.v2ctl = "", nil
	return b.groups.v1["freezer"] != "" && b.groups.v1["cpu"] != ""
}

// IOIdle reports whether a thread has the idle class of input and output.
func IOIdle(tid int) bool {
	class, err := ioClass(tid)
	return err == nil && class == ioIdle
}

// Demand is what Create does to guesses while it sets a sandbox up.
func Demand(b *Backend) (end func()) { return b.demand() }
