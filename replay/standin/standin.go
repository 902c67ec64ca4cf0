// Package standin is an MCP server that takes the place of any server of a
// catalogue: it offers the same tools, and costs what a start of it should cost.
//
// Its laws:
//
//   - A start is work, never sleep: the process is busy until its own clock of
//     CPU time says that the cost is paid. On a share of a core, as a limit of
//     CPU grants it, that takes the longer the smaller the share is; and it takes
//     longer on a busy machine, as the start of a real server does.
//   - What it says it has of memory, it has touched.
//   - Calls cost nothing and have no effect. Those of tools that are there succeed.
package standin

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// A Cost is what a start takes.
type Cost struct {
	CPU    time.Duration `json:"cpu_ns"`       // of the whole process, from its first instruction on
	Memory int64         `json:"memory_bytes"` // kept until the end
}

// Options say whose place is taken.
type Options struct {
	Catalog string // file: a list of servers with their tools
	Server  string // its name there
	Cost    Cost
	// CostFile holds a [Cost] as JSON that is used instead, if it is not "". It is
	// read at the start: one configuration can so have starts of many costs.
	CostFile string
}

// A tool is passed on as it stands in the catalogue.
type tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	InputSchema json.RawMessage `json:"inputSchema"`
}

// Version is the revision of MCP that a stand-in speaks.
const Version = "2025-11-25"

// Run is the server: it pays the cost of its start and then answers the messages
// of in on out, one after another, until in ends.
func Run(in io.Reader, out io.Writer, o Options) error {
	tools, err := o.tools()
	if err != nil {
		return err
	}
	cost, err := o.cost()
	if err != nil {
		return err
	}
	kept := touch(cost.Memory)
	if err := burn(cost.CPU); err != nil {
		return err
	}
	err = answerAll(in, out, o.Server, tools)
	runtime.KeepAlive(kept)
	return err
}

// tools finds the server in the catalogue.
func (o *Options) tools() ([]tool, error) {
	b, err := os.ReadFile(o.Catalog)
	if err != nil {
		return nil, err
	}
	var all []struct {
		Server string `json:"server"`
		Tools  []tool `json:"tools"`
	}
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, fmt.Errorf("%s: this is no catalogue, which is a list of servers: %w", o.Catalog, err)
	}
	for _, s := range all {
		if s.Server != o.Server {
			continue
		}
		for i := range s.Tools {
			if len(s.Tools[i].InputSchema) == 0 {
				s.Tools[i].InputSchema = json.RawMessage(`{"type":"object"}`)
			}
		}
		return s.Tools, nil
	}
	return nil, fmt.Errorf("%s: there is no server %q", o.Catalog, o.Server)
}

func (o *Options) cost() (Cost, error) {
	if o.CostFile == "" {
		return o.Cost, nil
	}
	b, err := os.ReadFile(o.CostFile)
	if err != nil {
		return Cost{}, err
	}
	var c Cost
	if err := json.Unmarshal(b, &c); err != nil {
		return Cost{}, fmt.Errorf("%s: this is no cost of a start: %w", o.CostFile, err)
	}
	return c, nil
}

// touch returns memory that is really there.
func touch(size int64) []byte {
	if size <= 0 {
		return nil
	}
	b := make([]byte, size)
	for i := 0; i < len(b); i += os.Getpagesize() {
		b[i] = 1
	}
	return b
}

// burn is busy until the process has used so much CPU time.
func burn(until time.Duration) error {
	x := uint64(1)
	for {
		var t unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t); err != nil {
			return fmt.Errorf("read the clock of CPU time: %w", err)
		}
		if time.Duration(t.Nano()) >= until {
			return nil
		}
		for range 20_000 { // some ten microseconds between looks at the clock
			x = x*6364136223846793005 + 1442695040888963407
		}
		runtime.KeepAlive(x)
	}
}

// A message is what a client says.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		Name string `json:"name"`
	} `json:"params"`
}

type object = map[string]any

// answerAll serves until in ends.
func answerAll(in io.Reader, out io.Writer, server string, tools []tool) error {
	if tools == nil {
		tools = []tool{}
	}
	r, w := json.NewDecoder(in), bufio.NewWriter(out)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	for {
		var m message
		if err := r.Decode(&m); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read a message: %w", err)
		}
		if m.Method == "" || len(m.ID) == 0 { // an answer, or a notification
			continue
		}
		reply := object{"jsonrpc": "2.0", "id": m.ID}
		if result := answer(m, server, tools); result != nil {
			reply["result"] = result
		} else {
			reply["error"] = object{"code": -32601, "message": "there is no method " + m.Method}
		}
		if err := errors.Join(enc.Encode(reply), w.Flush()); err != nil {
			return fmt.Errorf("write an answer: %w", err)
		}
	}
}

// answer returns the result of a request, or nil.
func answer(m message, server string, tools []tool) any {
	switch m.Method {
	case "initialize":
		return object{
			"protocolVersion": Version, "capabilities": object{"tools": object{}},
			"serverInfo": object{"name": server, "version": "1"},
		}
	case "tools/list":
		return object{"tools": tools}
	case "tools/call":
		for _, t := range tools {
			if t.Name == m.Params.Name {
				return object{"content": []object{{"type": "text", "text": server + " has done " + t.Name + "."}}}
			}
		}
		return object{"content": []object{{"type": "text", "text": server + " has no tool " + m.Params.Name + "."}}, "isError": true}
	case "ping":
		return object{}
	}
	return nil
}
