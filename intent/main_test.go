package intent_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/specbox/specbox/intent"
	"github.com/specbox/specbox/replay"
)

// The model that comes with the program is made from recorded sessions:
//
//	go test ./intent -fit TRACES/livemcpbench.train.jsonl.gz -catalog TRACES/catalog.json
var (
	fitOn      = flag.String("fit", "", "fit default.json.gz on the sessions of these `globs`, and test nothing")
	fitCatalog = flag.String("catalog", "", "`files` with the servers of these sessions")
)

func TestMain(m *testing.M) {
	flag.Parse()
	if *fitOn == "" {
		os.Exit(m.Run())
	}
	if err := fitShipped(strings.Split(*fitOn, ","), strings.Split(*fitCatalog, ",")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// fitShipped fits the model that comes with the program.
func fitShipped(sessions, catalogs []string) error {
	ts, err := replay.Read(sessions...)
	if err != nil {
		return err
	}
	servers, err := replay.ReadCatalog(catalogs...)
	if err != nil {
		return err
	}
	m, err := intent.Fit(1, intent.Corpus{Servers: servers, Sessions: replay.Sessions(ts, true)})
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(".", "default-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // gone already if all went well
	if err := m.Save(f); err != nil {
		return err
	}
	if err := errors.Join(f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), "default.json.gz")
}
