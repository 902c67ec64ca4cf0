package encoder

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// The lines of assembly are compared with Go's.
func TestProductsAreThoseOfPlainGo(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, k := range []int{8, 16, 24, 32, 384, 1536} {
		aStride, bStride := k+r.IntN(9), k+r.IntN(9)
		a, b := make([]float32, aStride+k), make([]float32, 3*bStride+k)
		for _, m := range [][]float32{a, b} {
			for i := range m {
				m[i] = r.Float32()*2 - 1
			}
		}
		var got, want [8]float32
		products(a, aStride, b, bStride, k, &got)
		plainProducts(a, aStride, b, bStride, k, &want)
		for i := range got {
			if d := math.Abs(float64(got[i] - want[i])); d > 1e-4 {
				t.Errorf("k %d: product %d is %v, want %v", k, i, got[i], want[i])
			}
		}
	}
}

func TestGelu(t *testing.T) {
	for x := -8.0; x < 8; x += 0.0007 {
		want := x / 2 * (1 + math.Erf(x/math.Sqrt2))
		if got := gelu(float32(x)); math.Abs(float64(got)-want) > 4e-6 {
			t.Fatalf("gelu of %v is %v, want %v", x, got, want)
		}
	}
}

func FuzzWords(f *testing.F) {
	w := &words{ids: map[string]int32{"a": 1, "##a": 2, "##b": 3, "é": 4, "搜": 5, ".": 6}, unknown: 9}
	f.Add("aab a.B é搜索 x\x00\xff")
	f.Add(strings.Repeat("a", 300))
	f.Fuzz(func(t *testing.T, text string) {
		ids := w.tokens(text)
		if len(ids) > 4*utf8.RuneCountInString(text)+4 {
			t.Errorf("%d characters have %d tokens", utf8.RuneCountInString(text), len(ids))
		}
		for _, word := range split(text) {
			if word == "" || strings.ContainsAny(word, " \t\n\x00") {
				t.Errorf("%q is a word", word)
			}
		}
	})
}

func FuzzTensors(f *testing.F) {
	header := `{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"__metadata__":{"format":"pt"}}`
	f.Add(append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...), 0, 0, 128, 63, 0, 0, 0, 64))
	f.Add([]byte{255, 255, 255, 255, 255, 255, 255, 127, '{', '}'})
	f.Fuzz(func(t *testing.T, b []byte) {
		name := filepath.Join(t.TempDir(), "model")
		if err := os.WriteFile(name, b, 0o644); err != nil {
			t.Fatal(err)
		}
		file, err := openTensors(name)
		if err != nil {
			return
		}
		defer file.Close()
		if got, err := file.read("a", 2); err == nil && len(got) != 2 {
			t.Errorf("read %v", got)
		}
	})
}
