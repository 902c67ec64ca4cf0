package encoder_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/specbox/specbox/intent/encoder"
)

// model opens the model, which it installs beside the real servers of the tests.
func model(t *testing.T) *encoder.Encoder {
	t.Helper()
	dir := filepath.Join("..", "..", ".cache", "encoder")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if err := encoder.Install(ctx, dir); err != nil {
		t.Fatal(err)
	}
	e, err := encoder.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func TestVectorsAreThoseOfTheReference(t *testing.T) {
	b, err := os.ReadFile("testdata/reference.json")
	if err != nil {
		t.Fatal(err)
	}
	var reference struct {
		Texts []struct {
			Text   string
			Tokens []int32
			Vector []float32
		}
	}
	if err := json.Unmarshal(b, &reference); err != nil {
		t.Fatal(err)
	}
	e := model(t)
	if len(reference.Texts) == 0 {
		t.Fatal("there is no reference")
	}
	for _, want := range reference.Texts {
		name := want.Text[:min(len(want.Text), 40)]
		if got := e.Tokens(want.Text); !slices.Equal(got, want.Tokens) {
			t.Errorf("%q: tokens %v, want %v", name, got, want.Tokens)
		}
		got, err := e.Encode(want.Text)
		if err != nil || len(got) != encoder.Dim {
			t.Fatalf("%q: %d numbers, %v", name, len(got), err)
		}
		for i := range got {
			if d := math.Abs(float64(got[i] - want.Vector[i])); d > 1e-3 {
				t.Fatalf("%q: number %d is %v, want %v", name, i, got[i], want.Vector[i])
			}
		}
	}
}

func TestLikeTextsHaveLikeVectors(t *testing.T) {
	e := model(t)
	vector := func(text string) []float32 {
		v, err := e.Encode(text)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	query := vector("Will I need an umbrella tomorrow?")
	near, far := encoder.Similarity(query, vector("Get the weather forecast")), encoder.Similarity(query, vector("Read cells of a spreadsheet"))
	if near < far+0.2 {
		t.Errorf("the umbrella is like the forecast by %.3f, like the spreadsheet by %.3f", near, far)
	}
}

func TestEndOfALongText(t *testing.T) {
	e := model(t)
	long := strings.Repeat("Nothing of interest is said here. ", 2000) + "the weather in the city"
	got, err := e.EncodeEnd(long, 5)
	if err != nil {
		t.Fatal(err)
	}
	want, err := e.Encode("the weather in the city")
	if err != nil {
		t.Fatal(err)
	}
	if s := encoder.Similarity(got, want); s < 0.9999 {
		t.Errorf("the last five tokens alone are like themselves by %v", s)
	}
	if whole, err := e.EncodeEnd(long, 1<<30); err != nil || len(whole) != encoder.Dim {
		t.Errorf("all tokens: %v", err)
	}
}

func TestEncoderIsSafeForConcurrentUse(t *testing.T) {
	e := encoder.Random(1)
	long, short := make([]int32, 20), []int32{5, 6, 7}
	for i := range long {
		long[i] = int32(100 + i)
	}
	wantShort, err := e.EncodeTokens(short)
	if err != nil {
		t.Fatal(err)
	}
	wantLong, err := e.EncodeTokens(long)
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	for range 3 {
		work.Go(func() {
			for range 3 {
				if got, err := e.EncodeTokens(long); err != nil || !slices.Equal(got, wantLong) {
					t.Errorf("the long text has another vector, %v", err)
				}
				// The memory of a longer text must leave no trace.
				if got, err := e.EncodeTokens(short); err != nil || !slices.Equal(got, wantShort) {
					t.Errorf("the short text has another vector, %v", err)
				}
			}
		})
	}
	work.Wait()
}

func TestTokensThatAreNone(t *testing.T) {
	e := encoder.Random(1)
	for _, ids := range [][]int32{nil, {-1}, {1, 1 << 20}} {
		if _, err := e.EncodeTokens(ids); err == nil {
			t.Errorf("tokens %v have a vector", ids)
		}
	}
	if v, err := e.EncodeTokens(make([]int32, 1000)); err != nil || len(v) != encoder.Dim {
		t.Errorf("too many tokens: %v", err)
	}
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	open := func(want string) {
		t.Helper()
		_, err := encoder.Open(dir)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("open: %v, want an error with %q", err, want)
		}
		if missing := errors.Is(err, os.ErrNotExist); encoder.Missing(err) != missing {
			t.Errorf("missing is %v for %v", !missing, err)
		}
	}
	write := func(name string, b []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	open("no such file")
	write("vocab.txt", []byte("one\ntwo\n"))
	open("has 2 tokens")
	b, err := os.ReadFile(filepath.Join("..", "..", ".cache", "encoder", "vocab.txt"))
	if err != nil {
		model(t)
		if b, err = os.ReadFile(filepath.Join("..", "..", ".cache", "encoder", "vocab.txt")); err != nil {
			t.Fatal(err)
		}
	}
	write("vocab.txt", b)
	open("model.safetensors")
	header := func(text string, more int) []byte {
		return append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...), make([]byte, more)...)
	}
	for text, want := range map[string]string{
		"":   "is no safetensors file",
		"{}": "no tensor embeddings.word_embeddings.weight",
		`{"__metadata__":{"format":"pt"},"embeddings.word_embeddings.weight":{"dtype":"F16","shape":[30522,384],"data_offsets":[0,8]}}`:                  "is F16",
		`{"embeddings.word_embeddings.weight":{"dtype":"F32","shape":[30522,384],"data_offsets":[0,46881792]}}`:                                          "not in the file as a whole",
		`{"embeddings.word_embeddings.weight":{"dtype":"F32","shape":[30522,384],"data_offsets":[-46881792,0]}}`:                                         "not in the file as a whole",
		`{"embeddings.word_embeddings.weight":{"dtype":"F32","shape":[30522,384],"data_offsets":[9223372036854775000,9223372036901656792]}}`:             "no safetensors file",
		`{"embeddings.word_embeddings.weight":{"dtype":"F32","shape":[30522,384],"data_offsets":[9223372036800000000,9223372036846881792]},"z":{"a":1}}`: "not in the file as a whole",
	} {
		write("model.safetensors", header(text, 8))
		open(want)
	}
	write("model.safetensors", binary.LittleEndian.AppendUint64(nil, math.MaxUint64))
	open("header is too long")
}

func BenchmarkEncode64Tokens(b *testing.B) {
	e := encoder.Random(1)
	ids := make([]int32, 64)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := e.EncodeTokens(ids); err != nil {
			b.Fatal(err)
		}
	}
}
