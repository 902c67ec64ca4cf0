package encoder

import "golang.org/x/sys/cpu"

// fast says that the processor has what productsFMA needs.
var fast = cpu.X86.HasAVX2 && cpu.X86.HasFMA

// products computes the products of two rows of a with four rows of b. k is a
// multiple of 8.
func products(a []float32, aStride int, b []float32, bStride, k int, out *[8]float32) {
	if !fast {
		plainProducts(a, aStride, b, bStride, k, out)
		return
	}
	_, _ = a[aStride+k-1], b[3*bStride+k-1]
	productsFMA(&a[0], aStride, &b[0], bStride, k, out)
}

// productsFMA is products, with eight sums of eight numbers each at once.
//
//go:noescape
func productsFMA(a *float32, aStride int, b *float32, bStride, k int, out *[8]float32)
