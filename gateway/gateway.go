// Package gateway is the door to the agent: MCP over Streamable HTTP and over
// standard input and output.
//
// It owns what belongs to a transport: HTTP, event streams, session ids, the
// envelope, limits, Host and Origin, tokens. It knows nothing of servers and
// sandboxes: behind the door stands a [Session], which the house provides. Its
// laws:
//
//   - A message passes as the bytes it came in.
//   - Every request is answered, exactly once: with a reply, or with an error
//     that says what was wrong. A limit never ends a connection silently.
//   - A client that leaves leaves nothing behind.
package gateway

import (
	"context"

	"github.com/specbox/specbox/wire"
)

// An Opening says who opens a session.
type Opening struct {
	Tenant  string
	Session string // unique, unguessable
	Server  string // of /mcp/NAME; "" for all servers
	Version string // protocol version that was asked for
	Params  []byte // of initialize: capabilities, clientInfo
}

// A Session is the far side of one conversation.
type Session interface {
	// Request answers one request. What belongs to it (progress, log messages,
	// requests to the client) goes to stream before Request returns. A
	// cancelled ctx means that the client gave the request up: the reply is
	// then thrown away. It is called concurrently.
	Request(ctx context.Context, m wire.Message, stream wire.Sender) wire.Reply
	// Post takes a notification, or a response to a request of the server. It
	// must not block for long.
	Post(m wire.Message)
	// Close ends the session; it returns at once.
	Close()
}

// An OpenFunc opens a session. What belongs to no request goes to background.
// An error is told to the client as it is.
type OpenFunc func(ctx context.Context, o Opening, background wire.Sender) (Session, error)
