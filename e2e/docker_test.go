package e2e_test

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/specbox/specbox/internal/dockertest"
)

// A call through an engine that goes away ends right, or with an error that says
// what became of its server.
var lostInEngine = regexp.MustCompile(`server "?(box|line)"?.*(the server ended|lost: the Docker engine|killed|exit status|cannot be reached|closed the connection)`)

func TestEngineRestartsUnderCalls(t *testing.T) {
	const sessions, calls = 10, 10
	e := &dockertest.Engine{Dir: t.TempDir()}
	if err := e.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Stop)
	if err := dockertest.Image(e.Host(), "nasty:e2e", nasty); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DOCKER_HOST", e.Host())
	x := serve(t, object{
		"box":     object{"image": "nasty:e2e"},
		"line":    object{"command": "docker", "args": []string{"run", "-i", "--rm", "nasty:e2e"}},
		"missing": object{"image": "nasty:missing"},
	})
	x.filled(t, "box", "line", "missing")
	if got := x.catalog(t)["missing"].Error; !strings.Contains(got, "nasty:missing") || !strings.Contains(got, "docker pull") {
		t.Errorf("the error of a missing image is %q", got)
	}
	var clients []*client
	for range sessions {
		clients = append(clients, connect(t, x.url, "{}"))
	}
	var done, right, lost atomic.Int32
	var restarting, all sync.WaitGroup
	for n, c := range clients {
		all.Go(func() {
			for i := range calls {
				tool, args, want := "echo", fmt.Sprintf(`{"n":"%d.%d"}`, n, i), fmt.Sprintf("%d.%d", n, i)
				if i%2 == 1 {
					tool, args, want = "sleep", `{"ms":300}`, ""
				}
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				got, err := c.try(ctx, []string{"box__", "line__"}[n%2]+tool, args)
				cancel()
				switch {
				case err == nil && strings.Contains(got, want):
					right.Add(1)
				case err != nil && lostInEngine.MatchString(err.Error()):
					lost.Add(1)
				default:
					t.Errorf("call %d of session %d: %q, %v", i, n, got, err)
				}
				if done.Add(1) == sessions*calls/3 { // while others are under way
					restarting.Go(func() {
						e.Stop()
						if err := e.Start(); err != nil {
							t.Error(err)
						}
					})
				}
			}
		})
	}
	all.Wait()
	restarting.Wait()
	t.Logf("%d calls ended right, %d with an error", right.Load(), lost.Load())
	if right.Load() < sessions*calls/3 || lost.Load() == 0 {
		t.Error("those before the restart at least should end right, and some of those in it not")
	}
	for n, c := range clients { // the next call starts anew, when the last failed start is some seconds ago
		tool := []string{"box__", "line__"}[n%2] + "echo"
		eventually(t, time.Minute, "a call after the restart", func() string {
			got, err := c.try(t.Context(), tool, `{"n":"again"}`)
			if err != nil || !strings.Contains(got, "again") {
				return fmt.Sprintf("%q, %v", got, err)
			}
			return ""
		})
	}
	x.stop(t)
	if left := dockertest.Labelled(e.Host(), "dev.specbox.instance"); len(left) > 0 {
		t.Errorf("containers left: %v", left)
	}
}
