// Command specbox serves MCP tool servers in sandboxes, on demand, and talks
// to a specbox that does.
//
// Its laws: data goes to standard output, everything else to standard error;
// what a command prints with --json is one JSON document that scripts may rely
// on; the exit status is 0 if it was done, 1 if it failed, 2 if it was asked
// for in a wrong way.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/specbox/specbox"
)

func main() {
	specbox.Init() // in a helper of the sandboxes, it does not return
	// A reader that leaves (specbox serve | head) is an error of writing, and not
	// the end of this process with all its sandboxes still to be taken down. It
	// is taken and not ignored, which servers would inherit.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	os.Exit(interruptible(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// interruptible runs a command whose context ends with the first signal to
// stop. The second one then acts as if nobody had asked for it: at once.
func interruptible(args []string, in io.Reader, out, errs io.Writer) int {
	ctx, restore := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer restore()
	defer context.AfterFunc(ctx, restore)()
	return run(ctx, args, in, out, errs)
}
