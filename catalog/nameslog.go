package catalog

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"time"
)

// A line of the log of names: a claim, or the day on which a group was seen
// last. A later claim of a name overrules an earlier one.
type line struct {
	Kind   kind   `json:"kind,omitempty"`
	Server string `json:"server"`
	Prefix string `json:"prefix,omitempty"`
	Own    string `json:"own,omitempty"`
	Name   string `json:"name,omitempty"`
	Seen   string `json:"seen,omitempty"`
}

func (l line) valid() bool {
	if l.Seen != "" {
		_, err := time.Parse(time.DateOnly, l.Seen)
		return err == nil && l.Kind == ""
	}
	switch l.Kind {
	case toolKind, promptKind:
		return l.Own != "" && l.Name != "" && len(l.Name) <= maxExposed && sanitise(l.Name) == l.Name
	case resourceKind, templateKind:
		return l.Own != "" && (l.Name == l.Own || l.Name == wrap(l.Kind, l.Server, l.Own))
	}
	return false
}

// A logHead is the first line. The generation tells one file from the one that
// replaced it.
type logHead struct {
	Format     string `json:"format"`
	Generation string `json:"generation"`
}

const (
	logFormat = "specbox-names 1"
	maxLog    = 256 << 20 // bytes of a file that may be anything
)

// A position is a place in a log.
type position struct {
	generation string
	offset     int64
	lines      int  // before it
	torn       bool // what follows is a line that a crash cut
}

// A logRead is what a log says beyond a position.
type logRead struct {
	lines []line
	at    position // the end
	reset bool     // the lines are all there are, not what was added
	fresh bool     // there is no usable file
}

// readNames reads the log beyond from, or all of it if it is another file than
// from is of. A file that is no such log is set aside. The caller holds the lock.
func readNames(path string, from position, log *slog.Logger) (logRead, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return logRead{fresh: true}, nil
	}
	if err != nil {
		return logRead{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return logRead{}, err
	}
	first := make([]byte, 256)
	n, err := f.ReadAt(first, 0)
	if err != nil && err != io.EOF {
		return logRead{}, err
	}
	text, _, whole := bytes.Cut(first[:n], []byte("\n"))
	var head logHead
	if !whole || json.Unmarshal(text, &head) != nil || head.Format != logFormat || head.Generation == "" || info.Size() > maxLog {
		aside(log, path, errors.New("it is no log of names"))
		return logRead{fresh: true}, nil
	}
	read := logRead{at: from}
	if head.Generation != from.generation || info.Size() < from.offset {
		read = logRead{reset: true, at: position{generation: head.Generation, offset: int64(len(text)) + 1}}
	}
	read.at.torn = false
	rest := make([]byte, info.Size()-read.at.offset)
	if _, err := f.ReadAt(rest, read.at.offset); err != nil && err != io.EOF {
		return logRead{}, err
	}
	bad := 0
	for len(rest) > 0 {
		text, after, whole := bytes.Cut(rest, []byte("\n"))
		if !whole {
			read.at.torn = true
			break
		}
		rest = after
		read.at.offset += int64(len(text)) + 1
		read.at.lines++
		var l line
		if json.Unmarshal(text, &l) != nil || !l.valid() {
			bad++
			continue
		}
		read.lines = append(read.lines, l)
	}
	if bad > 0 {
		log.Warn("lines in the log of names cannot be used and are ignored", "file", path, "lines", bad)
	}
	return read, nil
}

// writeNames adds lines at the end of the log, which at is, or writes the log
// anew. It returns the new end. The caller holds the lock.
func writeNames(path string, at position, lines []line, whole bool) (position, error) {
	if len(lines) == 0 && !whole {
		return at, nil
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if whole {
		at = position{generation: rand.Text()}
		if err := enc.Encode(logHead{Format: logFormat, Generation: at.generation}); err != nil {
			return at, err
		}
	} else if at.torn {
		buf.WriteByte('\n') // ends the cut line, which is then ignored
		at.lines++
	}
	for _, l := range lines {
		if err := enc.Encode(l); err != nil {
			return at, err
		}
	}
	at.lines += len(lines)
	if whole {
		at.offset = int64(buf.Len())
		return at, writeFile(path, buf.Bytes())
	}
	end, err := appendFile(path, buf.Bytes())
	at.offset, at.torn = end, false
	return at, err
}

func appendFile(path string, b []byte) (end int64, err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.Write(b); err != nil {
		return 0, err
	}
	if err := f.Sync(); err != nil {
		return 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return 0, fmt.Errorf("size: %w", err)
	}
	return info.Size(), nil
}
