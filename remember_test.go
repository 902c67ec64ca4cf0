package specbox_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/specbox/specbox/tap"
)

// speak leads one turn, in which the model says text and calls echo of the server
// one.
func (r *running) speak(text string) {
	w := r.Observe(&tap.Request{Tenant: "default", Conversation: "c", New: []tap.Message{{Role: "user", Text: "please look"}}})
	w.Delta(tap.Delta{Kind: tap.Text, Text: []byte(text)})
	w.Delta(tap.Delta{Kind: tap.ToolName, ID: "1", Name: "one__echo"})
	w.Delta(tap.Delta{Kind: tap.Done})
	w.End()
}

// What is learned of conversations survives a restart, without the words that it
// was learned from, and a file that is damaged is in nobody's way.
func TestWhatIsLearnedIsKept(t *testing.T) {
	const servers = "\nservers: {one: {command: NASTY}}"
	state := t.TempDir()
	file := filepath.Join(state, "learned", "default.json.gz")
	size := func() int {
		t.Helper()
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		z, err := gzip.NewReader(f)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(z)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(b, []byte("zanzibar")) || !bytes.Contains(b, []byte("one")) {
			t.Errorf("what is kept: %s", b)
		}
		if info, err := f.Stat(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the file is open to others: %v %v", info.Mode(), err)
		}
		return len(b)
	}
	run := func(yaml string) {
		t.Helper()
		r := serve(t, state, yaml+servers)
		<-r.Prepared()
		r.speak("I will ask about zanzibar and other places")
		r.stop()
	}
	run("speculation: {learn: off}")
	run("speculation: {learn: memory}")
	if _, err := os.Stat(file); err == nil {
		t.Error("something is kept that is not to be")
	}
	run("")
	first := size()
	run("")
	if size() <= first {
		t.Error("a restart forgets what was learned")
	}
	for _, f := range []string{file, filepath.Join(state, "estimates.json")} {
		if err := os.WriteFile(f, []byte("{damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run("")
	if size() != first {
		t.Error("a damaged file is not replaced")
	}
	b, err := os.ReadFile(filepath.Join(state, "estimates.json"))
	if err != nil || !strings.HasPrefix(string(b), "[") {
		t.Errorf("the estimates: %s %v", b, err)
	}
}
