// Package tap is the model's door: a reverse proxy in front of LLM APIs that
// reports what passes.
//
// Its laws:
//
//   - A response is never altered, buffered, delayed or failed by the tap. What it
//     cannot understand flows on; a chunk is looked at after it was flushed.
//   - Old words never fire again: of a request, which repeats the whole
//     conversation, only what is new in it is reported.
//   - Nothing of a conversation is kept but hashes, and these are bounded.
//   - Credentials go to the upstream that they are for, and nowhere else; what is
//     meant for SpecBox goes to no upstream.
//
// [Proxy] serves these paths, and the same below /s/KEY, where KEY names the
// conversation, as it does at the agent's door:
//
//	/v1/chat/completions      OpenAI Chat Completions
//	/v1/responses             OpenAI Responses
//	/anthropic/v1/messages    Anthropic Messages
//	/v1/..., /anthropic/...   everything else of these APIs, not looked at
//	/v1/@NAME/...             the same, at the upstream NAME
//	/anthropic/@NAME/...
//	/sessions/KEY/stream      for those who hand tokens over themselves
//
// So an SDK's base URL is http://HOST/v1 for OpenAI's and http://HOST/anthropic
// for Anthropic's. The upstream is the one that the path names, else the first of
// that API that has the request's model.
//
// A program that embeds SpecBox and has the model's stream in its hands needs
// neither: it calls the [Observer] itself, with a [Request] for each turn, and
// tells the [Watcher] that it gets what comes.
package tap

// An API is a wire format of LLMs.
type API string

const (
	Chat      API = "chat"      // OpenAI Chat Completions
	Responses API = "responses" // OpenAI Responses
	Messages  API = "messages"  // Anthropic Messages
	Stream    API = "stream"    // handed over at /sessions/KEY/stream
)

// A Request is what one LLM request tells. It is the observer's to keep.
type Request struct {
	Tenant       string
	Key          string // session key that the client named by path, header or body; "" if none
	Conversation string // hash that stays the same while a conversation grows; "" if unknown
	Continued    bool   // the conversation was seen before: New holds what was added
	Parent       string // of a new conversation that branched off another: that one, to which what they share was said
	API          API
	Model        string
	Tools        []Tool    // that the model may call
	New          []Message // what was not seen before, oldest first
}

// A Tool is an entry of a request's list of tools, by the name that the model
// knows.
type Tool struct{ Name, Description string }

// A Message is one message, or item, of a conversation.
type Message struct {
	Role   string // "system", "user", "assistant", "tool"
	Text   string // bounded: the beginning and the end of what is very long
	CallID string // of a tool's result: the call that it answers
	Calls  []Call // of the assistant
}

// A Call is a tool call that a model has made.
type Call struct{ ID, Name, Arguments string }

// A Kind says what a [Delta] brings.
type Kind int

const (
	Text      Kind = iota // of the answer
	Reasoning             // thoughts, or their summary
	ToolName              // a call begins: ID and Name are set
	Arguments             // of the call of that Index
	ToolDone              // the call of that Index is complete
	Done                  // the answer is complete
)

// A Delta is one step of a model's answer.
type Delta struct {
	Kind  Kind
	Index int    // of the tool call within the answer
	ID    string // of the tool call
	Name  string // of the tool
	Text  []byte // unescaped; valid until the observer returns
}

// An Observer is told of one exchange after another. Its methods are called
// concurrently for different exchanges, and never between a chunk and the client:
// they may take their time, up to a bound beyond which deltas are dropped.
type Observer interface {
	// Observe begins an exchange, and returns what is told of its answer; nil
	// means that nobody wants to know.
	Observe(*Request) Watcher
}

// A Watcher is told of one answer, in order, by one goroutine at a time.
type Watcher interface {
	Delta(Delta)
	// End is the last call: the answer is over, wholly or not.
	End()
}
