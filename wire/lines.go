package wire

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"
)

// A Transport carries whole messages to and from one peer.
type Transport interface {
	// Read returns the next message, which the caller owns. It returns io.EOF
	// when the peer has closed. Only one goroutine may read. A *TooLongError
	// tells of a message that was dropped; reading may go on.
	Read() ([]byte, error)
	// Write sends one message given in parts. It is safe for concurrent use
	// and does not keep the parts.
	Write(parts ...[]byte) error
	// Close ends both directions. It may be called more than once.
	Close() error
}

// A TooLongError tells of a message over the limit. Head and Tail are its first
// and last bytes: enough to find out which request it answers.
type TooLongError struct {
	Size, Limit int64
	Head, Tail  []byte
}

func (e *TooLongError) Error() string {
	return fmt.Sprintf("message of %d bytes is over the limit of %d", e.Size, e.Limit)
}

// Answers returns the id of the request that the message answers, as far as its
// ends tell, or nil.
func (e *TooLongError) Answers() []byte {
	id, isResponse := lostID(e.Head, e.Tail)
	if !isResponse {
		return nil
	}
	return id
}

// An InvalidError tells of something that was sent as a message, and is not
// JSON.
type InvalidError struct {
	Text []byte // the beginning of it
}

func (e *InvalidError) Error() string {
	return fmt.Sprintf("not JSON, or nested deeper than %d levels: %.100q", MaxDepth, e.Text)
}

// DefaultLimit is the size of the largest message that a peer may send unless
// configured otherwise.
const DefaultLimit = 256 << 20

// Lines is a [Transport] of newline-delimited JSON: MCP's stdio transport.
// What is neither an object nor an array is noise: it is skipped and handed on.
type Lines struct {
	r     *bufio.Reader
	w     io.Writer
	close func() error
	limit int64
	noise func(line []byte)

	wmu sync.Mutex
	buf []byte
}

// NewLines returns a Transport that reads from r and writes to w. Close calls
// closeFn once. A limit of 0 means [DefaultLimit]. Noise, which may be nil, is
// called with each line that is no message (cut to a kilobyte).
func NewLines(r io.Reader, w io.Writer, closeFn func() error, limit int64, noise func([]byte)) *Lines {
	if limit == 0 {
		limit = DefaultLimit
	}
	if noise == nil {
		noise = func([]byte) {}
	}
	return &Lines{r: bufio.NewReaderSize(r, 64<<10), w: w, close: sync.OnceValue(closeFn), limit: limit, noise: noise}
}

const (
	peekSize  = 4 << 10 // enough to hold an id at either end of a message
	noiseSize = 1 << 10 // of a line that is no message
)

// Read returns the next line that holds a JSON object or array.
func (l *Lines) Read() ([]byte, error) {
	for {
		line, err := l.line()
		if line = bytes.TrimSpace(line); len(line) > 0 {
			if line[0] == '{' || line[0] == '[' {
				return line, nil
			}
			l.Noise(line)
		}
		if err != nil {
			return nil, err
		}
	}
}

// Noise hands on what turned out to be no message.
func (l *Lines) Noise(line []byte) { l.noise(line[:min(len(line), noiseSize)]) }

// line reads to the end of the line. Over the limit it reads on without keeping
// anything but both ends; of noise, only the beginning is kept.
func (l *Lines) line() ([]byte, error) {
	var long rope
	defer long.free()
	noise := false
	for {
		chunk, err := l.r.ReadSlice('\n')
		if long.size == 0 {
			chunk = bytes.TrimLeft(chunk, " \t\r\n")
			noise = len(chunk) > 0 && chunk[0] != '{' && chunk[0] != '['
		} else if noise && long.size >= noiseSize {
			chunk = nil
		}
		over := int64(long.size+len(chunk)) > l.limit
		more := errors.Is(err, bufio.ErrBufferFull)
		if long.size == 0 && !over && !more {
			return bytes.Clone(chunk), err
		}
		long.add(chunk)
		if over {
			return nil, l.discard(&long, err)
		}
		if !more {
			return long.line(), err
		}
	}
}

// discard reads the rest of a line that is too long, and keeps its ends.
func (l *Lines) discard(seen *rope, err error) error {
	size := int64(seen.size)
	head, tail := seen.ends(peekSize)
	for errors.Is(err, bufio.ErrBufferFull) {
		var chunk []byte
		chunk, err = l.r.ReadSlice('\n')
		size += int64(len(chunk))
		tail = append(tail, chunk...)
		tail = append(tail[:0], tail[max(0, len(tail)-peekSize):]...)
	}
	return &TooLongError{Size: size, Limit: l.limit, Head: head, Tail: bytes.TrimSpace(tail)}
}

// Write sends one message as one line: newlines between tokens become spaces.
func (l *Lines) Write(parts ...[]byte) error {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	b := l.buf[:0]
	for _, p := range parts {
		b = append(b, p...)
	}
	for i := bytes.IndexAny(b, "\n\r"); i >= 0 && i < len(b); i++ {
		if b[i] == '\n' || b[i] == '\r' {
			b[i] = ' '
		}
	}
	b = append(b, '\n')
	if cap(b) <= 1<<20 { // do not keep the room of a rare large message
		l.buf = b
	}
	_, err := l.w.Write(b)
	return err
}

// Close ends the transport.
func (l *Lines) Close() error { return l.close() }
