package sandbox_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/specbox/specbox/sandbox"
	"github.com/specbox/specbox/sandbox/sim"
	"github.com/specbox/specbox/trace"
)

// What a spec hides stands in no log, no error and no event, whoever says it.
func TestHiddenTextsAreSaidNowhere(t *testing.T) {
	const key, path, lines = "key-0123", "/secret/place", "-----BEGIN\nprivate-1\nprivate-2\n"
	words := fmt.Sprintf("%s at %s, longer %s-and-more\nprivate-2\n", key, path, key)
	b := lives(func(_ *sandbox.Spec, n int, l *sim.Life) {
		l.LastWords = words
		if n == 1 {
			l.Err = fmt.Errorf("mount %s does not exist: %s", path, key)
		} else {
			l.Dies = 2 * shake
		}
	})
	bubble(t, b, sandbox.Config{}, func(t *testing.T, h *house) {
		d := demand("t", "s", "a")
		d.Spec.Hide = map[string]string{key: "${KEY}", key + "-and-more": "***", path: "${PLACE}", lines: "***"}
		d.Spec.Env = map[string]string{"GITHUB_PAT": "pat-secret"}
		var said []string
		_, err := h.Acquire(t.Context(), d)
		said = append(said, fmt.Sprint(err))
		if err == nil || !strings.Contains(err.Error(), "mount ${PLACE} does not exist: ${KEY}") {
			t.Errorf("a start went wrong with %v", err)
		}
		time.Sleep(time.Minute) // until it is tried again
		l := h.acquire(d)
		<-l.Conn().Done()
		_, err = h.call(l, "echo", "{}")
		said = append(said, fmt.Sprint(err))
		l.Release()
		synctest.Wait()
		for _, line := range h.Logs("t", "a") {
			said = append(said, line.Text)
		}
		for _, e := range h.trace.Events() {
			said = append(said, e.Err, e.Detail)
		}
		all := strings.Join(said, "\n")
		for _, secret := range []string{"key-0123", "secret/place", "private-", "and-more", "pat-secret"} {
			if strings.Contains(all, secret) {
				t.Errorf("%q is said in\n%s", secret, all)
			}
		}
		if !strings.Contains(all, "${KEY} at ${PLACE}, longer ***") {
			t.Errorf("what stands around it is not said:\n%s", all)
		}
	})
}

// A server whose errors have megabytes fills neither log nor trace.
func TestReasonsAreCut(t *testing.T) {
	b := lives(func(_ *sandbox.Spec, _ int, l *sim.Life) { l.Err = errors.New(strings.Repeat("é", 1<<20)) })
	bubble(t, b, sandbox.Config{}, func(t *testing.T, h *house) {
		_, err := h.Acquire(t.Context(), demand("t", "s", "a"))
		if err == nil || len(err.Error()) > 4<<10 {
			t.Errorf("an error of %d bytes", len(fmt.Sprint(err)))
		}
		for _, e := range h.events(trace.Start) {
			if len(e) > 4<<10 {
				t.Errorf("an event of %d bytes", len(e))
			}
		}
	})
}

// What errors are told apart by survives.
func TestRedactedErrorsWrap(t *testing.T) {
	s := &sandbox.Spec{Hide: map[string]string{"secret": "***"}}
	cause := errors.New("cause")
	err := s.RedactError(fmt.Errorf("the secret: %w", cause))
	if !errors.Is(err, cause) || err.Error() != "the ***: cause" {
		t.Errorf("got %v", err)
	}
	if s.RedactError(nil) != nil || s.RedactError(cause) != cause {
		t.Error("an error without secrets is another one")
	}
}
