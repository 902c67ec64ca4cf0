package wire

// Modern is the revision from which on there are no sessions: each request says
// which version it speaks and what its client can do.
const Modern = "2026-07-28"

// Members of _meta by which the modern era says what initialize said before.
const (
	MetaVersion      = "io.modelcontextprotocol/protocolVersion"
	MetaClientInfo   = "io.modelcontextprotocol/clientInfo"
	MetaCapabilities = "io.modelcontextprotocol/clientCapabilities"
	MetaServerInfo   = "io.modelcontextprotocol/serverInfo"
	MetaLogLevel     = "io.modelcontextprotocol/logLevel"
	MetaSubscription = "io.modelcontextprotocol/subscriptionId"
)

// MetaSession is our own member of _meta, by which a client without sessions
// says which requests belong to one conversation.
const MetaSession = "dev.specbox/session"

// Error codes of the modern era.
const (
	CodeHeader     = -32020 // a header is missing, or says something else than the body
	CodeCapability = -32021 // the request needs a capability that the client did not declare
	CodeVersion    = -32022 // the revision is not served
)

// Codes that the modern era must not send.
const CodeURLElicitation = -32042 // legacy: the user must visit a URL first
