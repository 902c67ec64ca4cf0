package intent

import "strings"

// Cadence is how many bytes of text pass between two looks at the intents of a
// [Watch]: some 16 tokens.
const Cadence = 64

// Names says which server a tool belongs to by the name that a model knows it
// by. Agents rename tools: AgentScope 2 and Claude Code write mcp__SERVER__TOOL,
// where SERVER is what the agent calls its connection, others the name as it was
// listed, or the server's own. Once it is filled it is safe for concurrent use.
type Names struct {
	listed map[string]tool   // as SpecBox lists them
	own    map[string][]tool // by the server's own name
}

type tool struct{ server, name string }

// NewNames returns Names that know no tool.
func NewNames() *Names { return &Names{listed: map[string]tool{}, own: map[string][]tool{}} }

// Add makes a tool known: as clients see it listed, and the server's own name of
// it.
func (n *Names) Add(listed, server, own string) {
	n.listed[listed] = tool{server, own}
	n.own[own] = append(n.own[own], tool{server, own})
}

// strong separators stand between the names of a server and of its tool; weak
// ones within either as well.
var (
	strong = []string{"__", ".", "/", ":"}
	weak   = []string{"_", "-"}
)

// Server returns the server, and its own name of the tool, that a model means by
// name. A tool of the agent's own belongs to none.
func (n *Names) Server(name string) (server, own string, ok bool) {
	t, ok := n.find(name)
	return t.server, t.name, ok
}

func (n *Names) find(name string) (tool, bool) {
	if t, ok := n.listed[name]; ok {
		return t, true
	}
	if ts := n.own[name]; len(ts) == 1 {
		return ts[0], true
	}
	for _, sep := range append(strong, weak...) {
		for rest := name; ; {
			_, after, more := strings.Cut(rest, sep)
			if !more {
				break
			}
			if t, ok := n.listed[after]; ok {
				return t, true
			}
			rest = after
		}
	}
	for _, sep := range strong {
		for i := strings.Index(name, sep); i >= 0; {
			head, rest := name[:i], name[i+len(sep):]
			ts := n.own[rest]
			for _, t := range ts {
				if len(ts) == 1 || head == t.server || strings.HasSuffix(head, sep+t.server) {
					return t, true
				}
			}
			next := strings.Index(rest, sep)
			if next < 0 {
				break
			}
			i += len(sep) + next
		}
	}
	return tool{}, false
}
