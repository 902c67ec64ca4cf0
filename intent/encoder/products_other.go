//go:build !amd64

package encoder

// products computes the products of two rows of a with four rows of b.
func products(a []float32, aStride int, b []float32, bStride, k int, out *[8]float32) {
	plainProducts(a, aStride, b, bStride, k, out)
}
