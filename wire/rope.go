package wire

import (
	"bytes"
	"runtime"
	"sync"
	"syscall"
)

// blockSize is large enough that a long line needs few blocks, and small enough
// that the last one wastes little.
const blockSize = 256 << 10

// A block is memory outside of the heap. There it would count as live, and for
// each byte of it the garbage collector lets another one of garbage stay; and
// garbage is what results become that were sent.
type block struct{ mem []byte }

var blocks = sync.Pool{New: func() any {
	mem, err := syscall.Mmap(-1, 0, blockSize, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil { // the heap may have some yet
		return &block{make([]byte, blockSize)}
	}
	b := &block{mem}
	runtime.AddCleanup(b, func(mem []byte) { _ = syscall.Munmap(mem) }, mem) // when the pool has let it go
	return b
}}

// A rope is a line that is being read, in blocks that are used again. A slice
// that grows would copy a long line several times, and leave as much garbage.
type rope struct {
	parts []*block
	size  int
}

// room returns up to n bytes of memory behind what the rope holds; [rope.took]
// says how many of them it now holds too.
func (r *rope) room(n int) []byte {
	at := r.size % blockSize
	if r.size == len(r.parts)*blockSize {
		r.parts = append(r.parts, blocks.Get().(*block))
	}
	return r.parts[len(r.parts)-1].mem[at:min(at+n, blockSize)]
}

func (r *rope) took(n int) { r.size += n }

func (r *rope) add(chunk []byte) {
	for len(chunk) > 0 {
		n := copy(r.room(len(chunk)), chunk)
		r.took(n)
		chunk = chunk[n:]
	}
}

// slices returns what the rope holds, in order. They are good until free.
func (r *rope) slices() [][]byte {
	out := make([][]byte, len(r.parts))
	for i, p := range r.parts {
		out[i] = p.mem[:min(blockSize, r.size-i*blockSize)]
	}
	return out
}

// line returns a copy of all that the rope holds.
func (r *rope) line() []byte { return bytes.Join(r.slices(), nil) }

// ends returns copies of the first and the last n bytes, which is at most the
// size of a block.
func (r *rope) ends(n int) (head, tail []byte) {
	all := r.slices()
	if len(all) == 0 {
		return nil, nil
	}
	head = bytes.Clone(all[0][:min(n, len(all[0]))])
	tail = bytes.Join(all[max(0, len(all)-2):], nil)
	return head, bytes.Clone(tail[max(0, len(tail)-n):])
}

// free gives the blocks back.
func (r *rope) free() {
	for _, p := range r.parts {
		blocks.Put(p)
	}
	*r = rope{}
}
