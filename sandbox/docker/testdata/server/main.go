// Command server is the server of the tests, in an image of its own. Besides what
// the contract's servers answer, it says what it may do.
package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/specbox/specbox/sandbox/sandboxtest"
	"github.com/specbox/specbox/wire"
)

func main() {
	if manner := os.Getenv("MANNER"); manner != "probe" {
		sandboxtest.Main(manner)
	}
	t := wire.NewLines(os.Stdin, os.Stdout, func() error { return nil }, 0, nil)
	for {
		raw, err := t.Read()
		if err != nil {
			return
		}
		m, err := wire.Parse(raw)
		if err != nil || !m.IsRequest() {
			continue
		}
		var a struct {
			Path string
			N    int
		}
		_ = json.Unmarshal(m.Params, &a)
		text, err := do(m.Method, a.Path, a.N)
		if err != nil {
			text = "error: " + err.Error()
		}
		if t.Write([]byte(`{"jsonrpc":"2.0","id":`), m.ID, []byte(`,"result":`), wire.Quote(text), []byte(`}`)) != nil {
			return
		}
	}
}

var kept [][]byte

func do(what, path string, n int) (string, error) {
	switch what {
	case "read":
		b, err := os.ReadFile(path)
		return string(b), err
	case "write":
		return "", os.WriteFile(path, []byte("x"), 0o600)
	case "env":
		return strings.Join(os.Environ(), "\n"), nil
	case "args":
		dir, _ := os.Getwd()
		return dir + " " + strings.Join(os.Args, " "), nil
	case "networks":
		all, err := net.Interfaces()
		return strconv.Itoa(len(all)), err
	case "alloc": // n MiB
		for range n {
			b := make([]byte, 1<<20)
			for i := 0; i < len(b); i += 4096 {
				b[i] = 1
			}
			kept = append(kept, b)
		}
		return "", nil
	case "burn": // without end
		go func() {
			for {
			}
		}()
		return "", nil
	case "flood": // n KiB on both outputs, in lines
		line := strings.Repeat("x", 1023) + "\n"
		for range n {
			fmt.Fprint(os.Stdout, line)
			fmt.Fprint(os.Stderr, line)
		}
		return "", nil
	case "exit":
		os.Exit(n)
	case "sleep":
		time.Sleep(time.Duration(n) * time.Millisecond)
		return "", nil
	}
	return "", fmt.Errorf("no request %s", what)
}
