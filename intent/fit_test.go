package intent_test

import (
	"bytes"
	"compress/gzip"
	"slices"
	"testing"

	"github.com/specbox/specbox/intent"
)

// outcome counts right and wrong first uses of a policy on sessions.
func outcome(p intent.Policy, ss []intent.Session) (hits, wrong, missed int) {
	for _, s := range ss {
		for _, st := range s.Steps {
			used := map[string]bool{}
			for _, u := range st.Used {
				for _, name := range u {
					used[name] = true
				}
			}
			fired := map[string]bool{}
			w := p.Begin(st.History)
			for _, seg := range st.Text {
				feed(w, seg.Kind, seg.Text, intent.Cadence)
			}
			for _, name := range fires(w.Intents(nil, false)) {
				fired[name] = true
			}
			for _, server := range house() {
				if used[server.Name] {
					continue
				}
				switch called := slices.Contains(st.Called, server.Name); {
				case called && fired[server.Name]:
					hits++
				case called:
					missed++
				case fired[server.Name]:
					wrong++
				}
			}
		}
	}
	return hits, wrong, missed
}

func TestFitHoldsForOtherTasks(t *testing.T) {
	m, err := fitted()
	if err != nil {
		t.Fatal(err)
	}
	hits, wrong, missed := outcome(policy(t, "calibrated", intent.Options{Model: m}), sessions(20, 77))
	if f1 := float64(2*hits) / float64(2*hits+wrong+missed); f1 < 0.8 {
		t.Errorf("%d right, %d wrong, %d missed: F1 %.2f, want 0.8 on such plain sessions", hits, wrong, missed, f1)
	}
}

func TestFitOnWhatNeverContinues(t *testing.T) {
	ss := sessions(6, 2)
	for i := range ss {
		ss[i].Steps = ss[i].Steps[:1]
	}
	ss[0].Steps[0].Candidates = []string{"browser"} // all that is known of searches
	m, err := intent.Fit(1, intent.Corpus{Servers: house(), Sessions: ss})
	if err != nil {
		t.Fatal(err)
	}
	saved(t, m) // NaN could not be
}

func saved(t *testing.T, m *intent.Model) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := m.Save(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestFitIsRepeatable(t *testing.T) {
	ss := sessions(6, 2)
	fit := func(seed uint64) []byte {
		m, err := intent.Fit(seed, intent.Corpus{Servers: house(), Sessions: ss})
		if err != nil {
			t.Fatal(err)
		}
		return saved(t, m)
	}
	one := fit(3)
	if !bytes.Equal(fit(3), one) {
		t.Error("the same seed gives another model")
	}
	if bytes.Equal(fit(4), one) {
		t.Error("another seed gives the same model")
	}
}

func TestFitNeedsTasks(t *testing.T) {
	if _, err := intent.Fit(1, intent.Corpus{Servers: house(), Sessions: sessions(2, 1)}); err == nil {
		t.Error("a model was fitted on two tasks")
	}
}

func TestModelIsSaved(t *testing.T) {
	m, err := fitted()
	if err != nil {
		t.Fatal(err)
	}
	file := saved(t, m)
	again, err := intent.Load(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(saved(t, again), file) {
		t.Error("what was loaded is another model")
	}
	pack := func(json string) []byte {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = z.Write([]byte(json)) // into memory
		_ = z.Close()
		return b.Bytes()
	}
	for _, broken := range [][]byte{nil, []byte("{}"), file[:len(file)/2], pack("{}"), pack(`{"version":1,"stages":[]}`)} {
		if _, err := intent.Load(bytes.NewReader(broken)); err == nil {
			t.Errorf("%.20q is taken for a model", broken)
		}
	}
}

func FuzzLoad(f *testing.F) {
	m, err := intent.Fit(1, intent.Corpus{Servers: house(), Sessions: sessions(5, 2)})
	if err != nil {
		f.Fatal(err)
	}
	var b bytes.Buffer
	if err := m.Save(&b); err != nil {
		f.Fatal(err)
	}
	z, err := gzip.NewReader(&b)
	if err != nil {
		f.Fatal(err)
	}
	var plain bytes.Buffer
	if _, err := plain.ReadFrom(z); err != nil {
		f.Fatal(err)
	}
	f.Add(plain.Bytes())
	f.Fuzz(func(t *testing.T, json []byte) {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = z.Write(json) // into memory
		_ = z.Close()
		m, err := intent.Load(&b)
		if err != nil {
			return
		}
		w := policy(t, "calibrated", intent.Options{Model: m}).Begin(intent.History{Prompt: "weather"})
		feed(w, intent.Content, "Let me get the forecast:", 4)
		w.Intents(nil, true)
	})
}
