package model

import (
	"bytes"
	"encoding/json"
	"net/http"
)

// An event is one event of a stream.
type event struct {
	name string // "" where the API names none
	data any    // JSON, or a text as it is
}

// events writes them. After its first error it does nothing.
type events struct {
	w     http.ResponseWriter
	flush *http.ResponseController
	buf   bytes.Buffer
	err   error
}

func (e *events) write(all []event) {
	for _, ev := range all {
		if ev.name != "" {
			e.buf.WriteString("event: " + ev.name + "\n")
		}
		e.buf.WriteString("data: ")
		if text, ok := ev.data.(string); ok {
			e.buf.WriteString(text + "\n")
		} else if err := json.NewEncoder(&e.buf).Encode(ev.data); err != nil && e.err == nil {
			e.err = err
		}
		e.buf.WriteByte('\n')
	}
}

// send hands over what was written since the last send.
func (e *events) send() {
	if e.err != nil || e.buf.Len() == 0 {
		return
	}
	if _, e.err = e.w.Write(e.buf.Bytes()); e.err == nil {
		e.err = e.flush.Flush()
	}
	e.buf.Reset()
}
