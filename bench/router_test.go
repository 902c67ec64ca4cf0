package bench_test

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/specbox/specbox/bench"
	"github.com/specbox/specbox/intent/encoder"
)

func TestRouterMeasuresAllOfThem(t *testing.T) {
	r, err := bench.Router(t.Context(), bench.RouterOptions{Rounds: 2, For: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var figures map[string]any
	if err := json.Unmarshal(b, &figures); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"keyword_ns_per_token_32", "keyword_ns_per_token_1000", "retrieval_us_per_token_640", "retrieval_us_per_token_20000", "encoder_ms", "fasttext_ms"} {
		if v, ok := figures[name].(float64); !ok || v <= 0 {
			t.Errorf("%s is %v", name, figures[name])
		}
	}
	for _, c := range r.Cells {
		if c.Low <= 0 || c.Median < c.Low || c.High < c.Median {
			t.Errorf("%s: low %v, median %v, high %v", c.Name, c.Low, c.Median, c.High)
		}
	}
}

func TestRouterSaysWhatIsWrong(t *testing.T) {
	if _, err := bench.Router(t.Context(), bench.RouterOptions{Encoder: filepath.Join(t.TempDir(), "none")}); !encoder.Missing(err) {
		t.Errorf("without a model: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := bench.Router(ctx, bench.RouterOptions{For: time.Millisecond}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}
