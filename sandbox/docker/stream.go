package docker

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/moby/moby/client"
)

// A stream is what a container prints, in which the engine puts a header of eight
// bytes before each piece: which output it is of, and how long it is. Standard
// output goes to the reader without a copy in between, standard error aside.
type stream struct {
	in     *bufio.Reader
	turn   chan struct{} // holds one value while somebody reads
	errs   io.Writer
	left   int // of the piece of standard output that is being read
	buffer [4 << 10]byte
}

// errStream tells of bytes that no engine sends.
var errStream = errors.New("the output of the container does not follow the engine's protocol")

func newStream(in *bufio.Reader, errs io.Writer) *stream {
	return &stream{in: in, errs: errs, turn: make(chan struct{}, 1)}
}

// Read reads standard output. One goroutine reads; another one may drain.
func (s *stream) Read(p []byte) (int, error) {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	return s.read(p)
}

func (s *stream) read(p []byte) (int, error) {
	for s.left == 0 {
		kind, size, err := s.header()
		if err != nil {
			return 0, err
		}
		switch kind {
		case 1:
			s.left = size
		case 0, 2, 3: // 0 is standard input, which is not echoed; 3 is an error of the engine
			if err := s.aside(size); err != nil {
				return 0, err
			}
		default:
			return 0, errStream
		}
	}
	if len(p) == 0 {
		return 0, nil
	}
	n, err := s.in.Read(p[:min(len(p), s.left)])
	s.left -= n
	return n, err
}

func (s *stream) header() (kind byte, size int, err error) {
	var h [8]byte
	if _, err := io.ReadFull(s.in, h[:]); err != nil {
		return 0, 0, err
	}
	return h[0], int(binary.BigEndian.Uint32(h[4:])), nil
}

// aside hands on a piece of standard error. A log that is full must not stop the
// server.
func (s *stream) aside(size int) error {
	for size > 0 {
		n, err := s.in.Read(s.buffer[:min(len(s.buffer), size)])
		_, _ = s.errs.Write(s.buffer[:n])
		if size -= n; err != nil {
			return err
		}
	}
	return nil
}

// drain reads to the end, for the sake of standard error.
func (s *stream) drain() {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	buf := make([]byte, 4<<10)
	for {
		if _, err := s.read(buf); err != nil {
			return
		}
	}
}

// A pipe is the attached connection as a server's standard input and output.
type pipe struct {
	conn *client.HijackedResponse
	*stream
}

// Read turns every end of the connection into io.EOF: a cut is an end too.
func (p pipe) Read(b []byte) (int, error) {
	n, err := p.stream.Read(b)
	if err != nil {
		err = io.EOF
	}
	return n, err
}

// closeInput lets the server see the end of its input, and lets go of who writes.
func (p pipe) closeInput() {
	_ = p.conn.CloseWrite()
	_ = p.conn.Conn.SetWriteDeadline(time.Unix(1, 0))
}

// letGo lets go of who reads. What comes from then on is for drain.
func (p pipe) letGo() {
	_ = p.conn.Conn.SetReadDeadline(time.Unix(1, 0))
	p.turn <- struct{}{} // nobody is in Read
	_ = p.conn.Conn.SetReadDeadline(time.Time{})
	<-p.turn
}

// A log is the writer that a server's words go to. When the instance is closed
// nobody writes.
type log struct {
	mu sync.Mutex // held while w writes: it orders the writes
	w  io.Writer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = l.w.Write(p)
	return len(p), nil
}

func (l *log) noise(line []byte) { _, _ = l.Write(append([]byte("stdout: "), append(line, '\n')...)) }

func (l *log) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.w = io.Discard
}
