package bench

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/specbox/specbox/wire"
)

const (
	legacyVersion = "2025-11-25"
	listResult    = `"tools":[{"name":"fill","description":"Gives a result of so many bytes.","inputSchema":{"type":"object","properties":{"bytes":{"type":"integer"}}}}]`
	maxFill       = 256 << 20
)

// result is the result of the tool fill: size bytes of it in all.
func result(size int) []byte {
	const head, tail = `{"resultType":"complete","content":[{"type":"text","text":"`, `"}]}`
	n := max(0, size-len(head)-len(tail))
	b := make([]byte, 0, len(head)+n+len(tail))
	b = append(b, head...)
	for len(b) < len(head)+n {
		b = append(b, "0123456789abcdef"[:min(16, len(head)+n-len(b))]...)
	}
	return append(b, tail...)
}

// Echo is the server that [Hop] measures: one tool, fill, whose results of any
// size are made once. It serves both eras until in ends.
func Echo(in io.Reader, out io.Writer) error {
	r, w := bufio.NewReaderSize(in, 64<<10), bufio.NewWriterSize(out, 64<<10)
	results := map[string][]byte{} // the argument bytes -> the result
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			return ignoreEOF(err)
		}
		if err := serveLine(line, results, w); err != nil {
			return err
		}
		line = line[:0]
		if r.Buffered() == 0 { // nobody waits behind this one
			if err := w.Flush(); err != nil {
				return err
			}
		}
	}
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func serveLine(line []byte, results map[string][]byte, w *bufio.Writer) error {
	m, err := wire.Parse(bytes.TrimSpace(line))
	if err != nil || !m.IsRequest() {
		return nil
	}
	var reply []byte
	switch m.Method {
	case "tools/call":
		size := wire.Get(m.Params, "arguments", "bytes")
		if reply = results[string(size)]; reply == nil {
			n, err := strconv.Atoi(string(size))
			if err != nil || n < 0 || n > maxFill {
				return answer(w, m.ID, `,"error":{"code":-32602,"message":"bytes must be a number up to 256 MiB"}`, nil)
			}
			reply = result(n)
			results[string(size)] = reply
		}
	case "tools/list":
		reply = []byte(`{"resultType":"complete","ttlMs":0,"cacheScope":"private",` + listResult + `}`)
	case "initialize":
		reply = fmt.Appendf(nil, `{"protocolVersion":%q,"capabilities":{"tools":{}},"serverInfo":{"name":"bench","version":"1"}}`, legacyVersion)
	case "server/discover":
		reply = fmt.Appendf(nil, `{"resultType":"complete","supportedVersions":[%q,%q],"capabilities":{"tools":{}},"ttlMs":0,"cacheScope":"private"}`, wire.Modern, legacyVersion)
	case "ping":
		reply = []byte("{}")
	default:
		return answer(w, m.ID, `,"error":{"code":-32601,"message":"no such method"}`, nil)
	}
	return answer(w, m.ID, `,"result":`, reply)
}

// answer writes one message: what follows the id is given in two parts.
func answer(w *bufio.Writer, id []byte, text string, value []byte) error {
	_, _ = w.WriteString(`{"jsonrpc":"2.0","id":`) // the writer keeps its first error
	_, _ = w.Write(id)
	_, _ = w.WriteString(text)
	_, _ = w.Write(value)
	_, err := w.WriteString("}\n")
	return err
}
