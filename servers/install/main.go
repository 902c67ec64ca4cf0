// Command install installs the real MCP servers that tests and demo run.
//
//	go run ./servers/install            # all, into .cache/servers
//	go run ./servers/install git time   # two of them
//
// It is idempotent. $SPECBOX_SERVERS names another folder.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/specbox/specbox/servers"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := install(ctx, os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "install: %v\n", err)
		os.Exit(1)
	}
}

func install(ctx context.Context, names []string) error {
	dir, err := servers.Dir()
	if err != nil {
		return err
	}
	all, err := servers.Select(names...)
	if err != nil {
		return err
	}
	began, n := time.Now(), 0
	err = servers.Install(ctx, dir, func(s servers.Server, took time.Duration) {
		n++
		fmt.Printf("installed %-10s %s %s in %.1f s\n", s.Name, s.Package, s.Version, took.Seconds())
	}, names...)
	if err != nil {
		return err
	}
	fmt.Printf("%d servers in %s: %d new, %d were there (%.1f s)\n", len(all), dir, n, len(all)-n, time.Since(began).Seconds())
	return nil
}
