// Package encoder turns a text into a vector that says what it means, with the
// model all-MiniLM-L6-v2 (a BERT of 6 layers and 384 dimensions). The more two
// texts mean the same the greater is the product of their vectors.
//
// The package keeps to these laws:
//
//   - It is Go and, on amd64, a few lines of assembly: no C library, no other
//     program. It computes with 32-bit floats, on the caller's goroutine alone.
//   - The weights are the operator's to bring: [Install] fetches them, by digest,
//     once. Nothing is fetched by itself.
//   - Vectors are those of the reference implementation, to a thousandth.
package encoder

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
)

// Dim is how many numbers a vector has.
const Dim = 384

// MaxTokens is how many tokens of a text count, the marks at its beginning and
// end among them. Others than these are not looked at.
const MaxTokens = 256

// Shape of the model.
const (
	layers = 6
	heads  = 12
	head   = Dim / heads
	inner  = 4 * Dim
	vocab  = 30522
	places = 512 // positions that have a vector
)

// An Encoder is an opened model. It is safe for concurrent use, except for
// Close.
type Encoder struct {
	words     *words
	embedding func(id int32, dst []float32) error
	position  []float32 // with the vector of token type 0 in it
	norm      scaling
	layers    [layers]layer
	close     func() error

	scratch sync.Pool // of *scratch
}

// A scaling is what a normalisation is followed by.
type scaling struct{ gain, bias []float32 }

// A layer is one of the model's.
type layer struct {
	attention, output, up, down linear // attention: queries, keys and values in one
	first, second               scaling
}

// A linear is a matrix, a row for each output, and a vector that is added.
type linear struct{ weight, bias []float32 }

// Open opens the model in a folder that [Install] has filled: model.safetensors
// and vocab.txt. It reads about 45 MB into memory; the vectors of words stay in
// the file, which is open until [Encoder.Close].
func Open(dir string) (*Encoder, error) {
	w, err := readWords(filepath.Join(dir, "vocab.txt"))
	if err != nil {
		return nil, fmt.Errorf("open the encoder's vocabulary: %w", err)
	}
	f, err := openTensors(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		return nil, fmt.Errorf("open the encoder's model: %w", err)
	}
	e, err := load(f)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("read the encoder's model %s: %w", f.Name(), err)
	}
	e.words = w
	return e, nil
}

// Missing reports whether an error of [Open] says that there is no model.
func Missing(err error) bool { return errors.Is(err, os.ErrNotExist) }

// load reads the weights.
func load(f *tensors) (*Encoder, error) {
	e := &Encoder{close: f.Close}
	table, err := f.find("embeddings.word_embeddings.weight", vocab, Dim)
	if err != nil {
		return nil, err
	}
	e.embedding = func(id int32, dst []float32) error {
		var row [4 * Dim]byte
		if _, err := f.ReadAt(row[:], table+int64(id)*int64(len(row))); err != nil {
			return err
		}
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(row[4*i:]))
		}
		return nil
	}
	get := func(name string, shape ...int) []float32 {
		t, readErr := f.read(name, shape...)
		err = errors.Join(err, readErr)
		return t
	}
	scaled := func(name string) scaling {
		return scaling{get(name+".LayerNorm.weight", Dim), get(name+".LayerNorm.bias", Dim)}
	}
	dense := func(name string, out, in int) linear {
		return linear{get(name+".weight", out, in), get(name+".bias", out)}
	}
	e.position = get("embeddings.position_embeddings.weight", places, Dim)
	types := get("embeddings.token_type_embeddings.weight", 2, Dim)
	e.norm = scaled("embeddings")
	for i := range e.layers {
		name := fmt.Sprintf("encoder.layer.%d.", i)
		l := &e.layers[i]
		for _, part := range []string{"query", "key", "value"} {
			d := dense(name+"attention.self."+part, Dim, Dim)
			l.attention.weight = append(l.attention.weight, d.weight...)
			l.attention.bias = append(l.attention.bias, d.bias...)
		}
		l.output, l.first = dense(name+"attention.output.dense", Dim, Dim), scaled(name+"attention.output")
		l.up = dense(name+"intermediate.dense", inner, Dim)
		l.down, l.second = dense(name+"output.dense", Dim, inner), scaled(name+"output")
	}
	if err != nil {
		return nil, err
	}
	for i := range e.position {
		e.position[i] += types[i%Dim]
	}
	return e, nil
}

// Random returns an encoder of the same shape whose weights are made up. What it
// costs is what the model costs; what it says means nothing. All words are the
// same to it: see [Encoder.EncodeTokens].
func Random(seed uint64) *Encoder {
	r := rand.New(rand.NewPCG(seed, 0))
	fill := func(n int, scale float32) []float32 {
		t := make([]float32, n)
		for i := range t {
			t[i] = (2*r.Float32() - 1) * scale
		}
		return t
	}
	ones := func() scaling {
		s := scaling{make([]float32, Dim), make([]float32, Dim)}
		for i := range s.gain {
			s.gain[i] = 1
		}
		return s
	}
	dense := func(out, in int) linear {
		return linear{fill(out*in, float32(1/math.Sqrt(float64(in)))), fill(out, 0.1)}
	}
	const rows = 1024 // many tokens share a vector
	table := fill(rows*Dim, 1)
	e := &Encoder{words: &words{}, position: fill(places*Dim, 0.1), norm: ones(), close: func() error { return nil }}
	e.embedding = func(id int32, dst []float32) error {
		copy(dst, table[int(id)%rows*Dim:])
		return nil
	}
	for i := range e.layers {
		e.layers[i] = layer{dense(3*Dim, Dim), dense(Dim, Dim), dense(inner, Dim), dense(Dim, inner), ones(), ones()}
	}
	return e
}

// Close closes the model's file. Nothing may be encoded meanwhile or later.
func (e *Encoder) Close() error { return e.close() }

// Encode returns the vector of a text, which has length 1. Of a long text the
// beginning counts.
func (e *Encoder) Encode(text string) ([]float32, error) {
	return e.EncodeTokens(e.Tokens(text))
}

// EncodeEnd returns the vector of a text of which the last n tokens count: what
// a model wrote last. n is at most what [MaxTokens] leaves.
func (e *Encoder) EncodeEnd(text string, n int) ([]float32, error) {
	n = max(1, min(n, MaxTokens-2))
	const most = 1 << 14 // bytes that the last tokens are looked for in
	ids := e.words.tokens(text[max(0, len(text)-most):])
	return e.EncodeTokens(e.words.framed(ids[max(0, len(ids)-n):]))
}

// Tokens returns the tokens of a text with the marks of its beginning and end,
// as [Encoder.EncodeTokens] takes them.
func (e *Encoder) Tokens(text string) []int32 {
	ids := e.words.tokens(text)
	return e.words.framed(ids[:min(len(ids), MaxTokens-2)])
}

// EncodeTokens returns the vector of tokens, of which the first [MaxTokens] count.
func (e *Encoder) EncodeTokens(ids []int32) ([]float32, error) {
	ids = ids[:min(len(ids), MaxTokens)]
	for _, id := range ids {
		if id < 0 || id >= vocab {
			return nil, fmt.Errorf("encode: there is no token %d", id)
		}
	}
	if len(ids) == 0 {
		return nil, errors.New("encode: no tokens")
	}
	s, _ := e.scratch.Get().(*scratch)
	if s == nil {
		s = &scratch{}
	}
	defer e.scratch.Put(s)
	s.size(len(ids))
	for i, id := range ids {
		if err := e.embedding(id, s.x[i*Dim:(i+1)*Dim]); err != nil {
			return nil, fmt.Errorf("read the encoder's vector of token %d: %w", id, err)
		}
	}
	return e.forward(s, len(ids)), nil
}

// Similarity returns how much two vectors of the encoder mean the same, in
// [-1, 1].
func Similarity(a, b []float32) float64 {
	sum := 0.0
	for i := range min(len(a), len(b)) {
		sum += float64(a[i]) * float64(b[i])
	}
	return sum
}
