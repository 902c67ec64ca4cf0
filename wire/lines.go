package wire

import (
	"bytes"
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
	r     io.Reader
	w     io.Writer
	close func() error
	limit int64
	noise func(line []byte)

	// Owned by the reader.
	in         []byte
	begin, end int   // of what was read into in, and not taken yet
	broken     error // what r ended with

	wmu sync.Mutex
	out []byte
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
	return &Lines{r: r, in: make([]byte, readSize), w: w, close: sync.OnceValue(closeFn), limit: limit, noise: noise}
}

const (
	readSize  = 64 << 10 // how much is read at once: what a pipe holds
	peekSize  = 4 << 10  // enough to hold an id at either end of a message
	noiseSize = 1 << 10  // of a line that is no message
)

// Read returns the next line that holds a JSON object or array.
func (l *Lines) Read() ([]byte, error) { return l.read(nil) }

// receive is Read, but shows the line to seen; a long one while it is read.
func (l *Lines) receive(seen *checker) ([]byte, error) {
	line, err := l.read(seen)
	if seen.before == 0 {
		seen.feed(line)
	}
	return line, err
}

// read is Read; c, which may be nil, is fed with long lines.
func (l *Lines) read(c *checker) ([]byte, error) {
	for {
		line, err := l.line(c)
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

// line reads to the end of the line, which it returns in memory of its own.
func (l *Lines) line(c *checker) ([]byte, error) {
	for seen := 0; ; { // bytes behind begin that do not end the line
		if seen == 0 {
			l.begin = l.end - len(bytes.TrimLeft(l.in[l.begin:l.end], " \t\r\n"))
		}
		have := l.in[l.begin:l.end]
		i := bytes.IndexByte(have[seen:], '\n')
		switch {
		case i >= 0:
			have = have[:seen+i+1]
		case l.broken == nil && len(have) == len(l.in):
			return l.long(c)
		case l.broken == nil:
			seen = len(have)
			l.fill()
			continue
		}
		l.begin += len(have)
		if int64(len(have)) > l.limit {
			return nil, tooLong(int64(len(have)), l.limit, have[:min(len(have), peekSize)], have)
		}
		if i >= 0 {
			return bytes.Clone(have), nil
		}
		return bytes.Clone(have), l.broken
	}
}

// fill reads more behind what is there, which it moves to the front.
func (l *Lines) fill() {
	if l.begin > 0 {
		l.end = copy(l.in, l.in[l.begin:l.end])
		l.begin = 0
	}
	n, err := l.r.Read(l.in[l.end:])
	l.end += n
	l.broken = err
}

// long reads the rest of a line that begins with all that is there.
func (l *Lines) long(c *checker) ([]byte, error) {
	if l.in[0] != '{' && l.in[0] != '[' {
		return l.skip()
	}
	var line rope
	defer line.free()
	line.add(l.in)
	c.feed(l.in)
	l.begin, l.end = 0, 0
	for l.broken == nil {
		room := line.room(readSize)
		n, err := l.r.Read(room)
		l.broken = err
		end := bytes.IndexByte(room[:n], '\n')
		if end >= 0 {
			l.end = copy(l.in, room[end+1:n])
			n = end + 1
		}
		line.took(n)
		c.feed(room[:n])
		switch {
		case int64(line.size) > l.limit && end >= 0:
			head, tail := line.ends(peekSize)
			return nil, tooLong(int64(line.size), l.limit, head, tail)
		case int64(line.size) > l.limit:
			return nil, l.discard(&line)
		case end >= 0:
			return line.line(), nil
		}
	}
	return line.line(), l.broken
}

// skip reads the rest of a line that is no message, and returns its beginning.
func (l *Lines) skip() ([]byte, error) {
	head := bytes.Clone(l.in[:noiseSize])
	for l.broken == nil {
		l.begin, l.end = 0, 0
		l.fill()
		if i := bytes.IndexByte(l.in[:l.end], '\n'); i >= 0 {
			l.begin = i + 1
			return head, nil
		}
	}
	l.begin = l.end
	return head, l.broken
}

// discard reads the rest of a line that is too long, and keeps its ends.
func (l *Lines) discard(seen *rope) error {
	size := int64(seen.size)
	head, tail := seen.ends(peekSize)
	for ended := false; !ended && l.broken == nil; {
		l.begin, l.end = 0, 0
		l.fill()
		chunk := l.in[:l.end]
		if i := bytes.IndexByte(chunk, '\n'); i >= 0 {
			chunk, ended = chunk[:i+1], true
		}
		l.begin = len(chunk)
		size += int64(len(chunk))
		tail = append(tail, chunk...)
		tail = append(tail[:0], tail[max(0, len(tail)-peekSize):]...)
	}
	return tooLong(size, l.limit, head, tail)
}

func tooLong(size, limit int64, head, tail []byte) error {
	tail = bytes.TrimSpace(tail[max(0, len(tail)-peekSize):])
	return &TooLongError{Size: size, Limit: limit, Head: bytes.Clone(head), Tail: bytes.Clone(tail)}
}

// Write sends one message as one line: newlines between tokens become spaces.
func (l *Lines) Write(parts ...[]byte) error {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	b := l.out[:0]
	for _, p := range parts {
		b = append(b, p...)
	}
	for _, end := range [...]byte{'\n', '\r'} {
		for i := bytes.IndexByte(b, end); i >= 0 && i < len(b); i++ {
			if b[i] == end {
				b[i] = ' '
			}
		}
	}
	b = append(b, '\n')
	if cap(b) <= 1<<20 { // do not keep the room of a rare large message
		l.out = b
	}
	_, err := l.w.Write(b)
	return err
}

// Close ends the transport.
func (l *Lines) Close() error { return l.close() }
