package encoder

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
)

// tensors is an open file of the format safetensors: the length of a header, the
// header as JSON, and the numbers.
type tensors struct {
	*os.File
	size   int64
	begin  int64 // of the numbers
	header map[string]struct {
		Type    string   `json:"dtype"`
		Shape   []int    `json:"shape"`
		Offsets [2]int64 `json:"data_offsets"`
	}
}

// longestHeader bounds a header, in bytes.
const longestHeader = 16 << 20

func openTensors(name string) (*tensors, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	t := &tensors{File: f}
	if err := t.readHeader(); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s is no safetensors file: %w", name, err)
	}
	return t, nil
}

func (t *tensors) readHeader() error {
	info, err := t.Stat()
	if err != nil {
		return err
	}
	t.size = info.Size()
	var length [8]byte
	if _, err := t.ReadAt(length[:], 0); err != nil {
		return err
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n > longestHeader || int64(n) > t.size-8 {
		return errors.New("the header is too long")
	}
	b := make([]byte, n)
	if _, err := t.ReadAt(b, 8); err != nil {
		return err
	}
	t.begin = 8 + int64(n)
	var all map[string]json.RawMessage
	if err := json.Unmarshal(b, &all); err != nil {
		return err
	}
	delete(all, "__metadata__")
	if b, err = json.Marshal(all); err != nil {
		return err
	}
	return json.Unmarshal(b, &t.header)
}

// find returns where in the file a tensor of 32-bit floats begins.
func (t *tensors) find(name string, shape ...int) (int64, error) {
	h, ok := t.header[name]
	if !ok {
		return 0, fmt.Errorf("there is no tensor %s; the model must be all-MiniLM-L6-v2", name)
	}
	bytes := int64(4)
	for _, n := range shape {
		bytes *= int64(n)
	}
	switch {
	case h.Type != "F32" || !slices.Equal(h.Shape, shape):
		return 0, fmt.Errorf("tensor %s is %s %v, not F32 %v; the model must be all-MiniLM-L6-v2", name, h.Type, h.Shape, shape)
	case h.Offsets[0] < 0 || h.Offsets[1]-h.Offsets[0] != bytes || h.Offsets[0] > t.size-t.begin-bytes:
		return 0, fmt.Errorf("tensor %s is not in the file as a whole", name)
	}
	return t.begin + h.Offsets[0], nil
}

// read reads a tensor of 32-bit floats.
func (t *tensors) read(name string, shape ...int) ([]float32, error) {
	at, err := t.find(name, shape...)
	if err != nil {
		return nil, err
	}
	n := 1
	for _, k := range shape {
		n *= k
	}
	b := make([]byte, 4*n)
	if _, err := t.ReadAt(b, at); err != nil {
		return nil, err
	}
	out := make([]float32, n)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return out, nil
}
