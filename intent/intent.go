// Package intent turns what a model writes into guesses of which tool servers it
// is about to call.
//
// Routers read the text of one step as it arrives and say what they see; an
// assembly makes one decision of what they say. The package holds to these laws:
//
//   - Pure: text and history in, guesses out. No clock, no I/O, no goroutine, so
//     that the same code runs live, in replay and in simulation.
//   - Learning from a file and learning online are the same call.
//   - No guess is a valid answer; a router has no error to report.
//   - What a watch is told it does not keep: it may be told bytes that change
//     when the call returns.
package intent

// A Server is what routers know of a tool server before anybody has used it. It
// is not changed after it was handed over.
type Server struct {
	Name        string
	Description string // instructions, or what the catalogue says of it
	Tools       []Tool
	Keywords    []string // of the operator, besides those that are derived; "-word" takes one away
	Templates   []string // utterances of users that need this server
}

// A Tool is one tool of a server, by the server's own name of it.
type Tool struct {
	Name        string
	Description string
	Params      []Param
}

// A Param is a parameter of a tool.
type Param struct{ Name, Description string }

// A Step is one turn of a model as it went: what was known before, what it
// wrote, and which servers it called then.
type Step struct {
	History
	Text   []Segment
	Called []string // servers, each once; none: a turn that called nothing
}

// A History is what is known when a step begins.
type History struct {
	Prompt     string     // the user's latest words
	Used       [][]string // servers that each earlier step of the session called, oldest first
	Tools      []string   // servers whose tools stand in the model's request; nil: unknown
	Candidates []string   // servers that a search for tools returned since the last call, best first; nil: none
	Offered    []string   // servers that searches returned before that in the session, those of the last search first; nil: none
}

// A Session is what policies are fitted on: the steps of one session, in order.
// Sessions of one task are not independent.
type Session struct {
	Task  string
	Steps []Step
}

// A Kind says what a piece of a model's text is.
type Kind int

const (
	Content   Kind = iota // said to the user
	Reasoning             // thought aloud
	Query                 // what the model searches a tool with
)

// A Segment is a piece of text of one kind.
type Segment struct {
	Kind  Kind
	Text  string
	Found []string // of a Query: servers that the search returned, best first; nil: unknown
}

// An Intent is a guess that the model will call a server in this step.
type Intent struct {
	Server string
	P      float64 // how sure, in [0, 1]; a probability where the assembly is calibrated, else a score that ranks
	Fired  bool    // the assembly decides for it
	Source string  // what says so: "keyword", "retrieval", "tool name", "prompt", …
	Why    string  // the evidence in words, such as the keywords that were met; "" where it was not asked for
}

// A Policy decides, with the routers and the assembly that it is made of. It is
// safe for concurrent use.
type Policy interface {
	// Begin watches one step.
	Begin(History) Watch
	// Learn takes in a step that is over. What it teaches shows in steps that
	// begin later.
	Learn(Step)
}

// A Watch follows one step. It is used by one goroutine.
type Watch interface {
	// Text takes the next piece of what the model writes, split anywhere.
	Text(k Kind, p []byte)
	// Candidates says that a search for tools has returned servers, best first.
	Candidates(servers []string)
	// Intents appends the guesses as of now to dst, surest first, every server
	// at most once, and returns it. Why is filled in if explain is set.
	Intents(dst []Intent, explain bool) []Intent
}
