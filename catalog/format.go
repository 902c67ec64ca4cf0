package catalog

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

// A file holds one entry: a line with the format and the digest of all that
// follows, a line of JSON with what SpecBox knows, and then blocks of bytes as
// the server wrote them, each under a line with its kind and length. JSON as a
// whole would not do: encoders compact and escape what they embed.
const (
	magic   = "specbox-catalog"
	version = "1"
	initTag = "initialize"
	endLine = "end\n"
)

// maxFile bounds what is read into memory of a file that may be anything. It
// is over what four lists at their default bounds take.
const maxFile = 512 << 20

// errNewer says that a later SpecBox wrote the file: it is not ours to touch.
var errNewer = errors.New("it has a newer format")

// A head is the JSON line of a file.
type head struct {
	Server      string            `json:"server"`
	Tenant      string            `json:"tenant,omitempty"`
	Hash        string            `json:"hash"`
	Fingerprint string            `json:"fingerprint"`
	Filled      time.Time         `json:"filled"`
	Eras        Eras              `json:"eras,omitempty"`
	Err         string            `json:"err,omitempty"`
	Errors      map[string]string `json:"errors,omitempty"`
	Truncated   []string          `json:"truncated,omitempty"`
	Notes       []string          `json:"notes,omitempty"`
}

func encode(e *Entry) ([]byte, error) {
	h, err := json.Marshal(head{
		Server: e.Key.Server, Tenant: e.Key.Tenant, Hash: e.Key.Hash, Fingerprint: e.Key.Fingerprint,
		Filled: e.Filled, Eras: e.Eras, Err: e.Err, Errors: e.Errors, Truncated: e.Truncated, Notes: e.Notes,
	})
	if err != nil {
		return nil, err
	}
	var body bytes.Buffer
	body.Write(h)
	body.WriteByte('\n')
	block := func(tag string, b []byte) {
		fmt.Fprintf(&body, "%s %d\n", tag, len(b))
		body.Write(b)
		body.WriteByte('\n')
	}
	if e.Init != nil {
		block(initTag, e.Init)
	}
	for _, l := range lists {
		for _, it := range e.List(l.method) {
			block(l.method, it.Raw)
		}
	}
	body.WriteString(endLine)
	sum := sha256.Sum256(body.Bytes())
	first := fmt.Sprintf("%s %s sha256:%s\n", magic, version, hex.EncodeToString(sum[:]))
	return append([]byte(first), body.Bytes()...), nil
}

// decode reads what encode wrote. The entry's bytes are slices of b.
func decode(b []byte) (*Entry, error) {
	line, body, ok := bytes.Cut(b, []byte("\n"))
	words := strings.Fields(string(line[:min(len(line), 200)]))
	switch {
	case !ok || len(words) != 3 || words[0] != magic:
		return nil, errors.New("it does not begin like a catalogue file")
	case words[1] != version:
		return nil, errNewer
	}
	sum := sha256.Sum256(body)
	if words[2] != "sha256:"+hex.EncodeToString(sum[:]) {
		return nil, errors.New("its checksum is wrong")
	}
	return decodeBody(body)
}

func decodeBody(b []byte) (*Entry, error) {
	line, b, _ := bytes.Cut(b, []byte("\n"))
	var h head
	if err := json.Unmarshal(line, &h); err != nil {
		return nil, fmt.Errorf("its head: %w", err)
	}
	if h.Server == "" {
		return nil, errors.New("its head names no server")
	}
	e := &Entry{
		Key:    Key{Tenant: h.Tenant, Server: h.Server, Hash: h.Hash, Fingerprint: h.Fingerprint},
		Filled: h.Filled, Eras: h.Eras, Err: h.Err, Errors: h.Errors, Truncated: h.Truncated, Notes: h.Notes,
	}
	for string(b) != endLine {
		line, rest, ok := bytes.Cut(b, []byte("\n"))
		tag, size, _ := bytes.Cut(line, []byte(" "))
		n, err := strconv.Atoi(string(size))
		if !ok || err != nil || n < 0 || n >= len(rest) || rest[n] != '\n' {
			return nil, errors.New("a block in it is cut")
		}
		raw := rest[:n:n]
		b = rest[n+1:]
		if string(tag) == initTag {
			e.Init = raw
			continue
		}
		items := e.items(string(tag))
		if items == nil {
			return nil, fmt.Errorf("a block in it is of unknown kind %.40q", tag)
		}
		name, why := identify(raw, nameMember(string(tag)))
		if why != "" {
			return nil, fmt.Errorf("an item of %s in it is %s", tag, why)
		}
		*items = append(*items, Item{Name: name, Raw: raw})
	}
	return e, nil
}

// readKey reads no more of a file than it takes to know whose it is.
func readKey(path string) (Key, error) {
	f, err := os.Open(path)
	if err != nil {
		return Key{}, err
	}
	defer f.Close()
	r := bufio.NewReader(io.LimitReader(f, 1<<20))
	first, err := r.ReadString('\n')
	if err != nil || !strings.HasPrefix(first, magic+" "+version+" ") {
		return Key{}, errors.New("it does not begin like a catalogue file")
	}
	line, err := r.ReadBytes('\n')
	if err != nil {
		return Key{}, err
	}
	var h head
	if err := json.Unmarshal(line, &h); err != nil {
		return Key{}, err
	}
	return Key{Tenant: h.Tenant, Server: h.Server, Hash: h.Hash, Fingerprint: h.Fingerprint}, nil
}

func nameMember(method string) string {
	for _, l := range lists {
		if l.method == method {
			return l.name
		}
	}
	return ""
}
