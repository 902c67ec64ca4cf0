package encoder

import "math"

// scratch is memory for one text.
type scratch struct {
	rows   int       // of the matrices: its tokens, and some of no meaning up to a multiple of 8
	x      []float32 // rows × Dim: what goes from layer to layer
	qkv    []float32 // rows × 3·Dim
	mixed  []float32 // rows × Dim
	wide   []float32 // rows × inner
	scores []float32 // rows × rows, of one head
	values []float32 // head × rows: of one head, turned
}

// size makes room for n tokens.
func (s *scratch) size(n int) {
	s.rows = (n + 7) &^ 7
	fit := func(t []float32, n int) []float32 {
		if cap(t) < n {
			return make([]float32, n)
		}
		return t[:n]
	}
	s.x, s.qkv, s.mixed = fit(s.x, s.rows*Dim), fit(s.qkv, s.rows*3*Dim), fit(s.mixed, s.rows*Dim)
	s.wide, s.scores, s.values = fit(s.wide, s.rows*inner), fit(s.scores, s.rows*s.rows), fit(s.values, head*s.rows)
}

// forward computes the vector of the n tokens whose vectors are in s.x.
func (e *Encoder) forward(s *scratch, n int) []float32 {
	for i := range n {
		row := s.x[i*Dim : (i+1)*Dim]
		addTo(row, e.position[i*Dim:(i+1)*Dim])
		e.norm.apply(row)
	}
	for i := range e.layers {
		l := &e.layers[i]
		l.attention.apply(s.qkv, s.x, s.rows)
		s.attend(n)
		l.output.apply(s.qkv, s.mixed, s.rows) // queries, keys and values are done with
		s.add(s.qkv, n, l.first)
		l.up.apply(s.wide, s.x, s.rows)
		for j, v := range s.wide[:n*inner] {
			s.wide[j] = gelu(v)
		}
		l.down.apply(s.mixed, s.wide, s.rows)
		s.add(s.mixed, n, l.second)
	}
	sum := make([]float32, Dim)
	for i := range n {
		addTo(sum, s.x[i*Dim:(i+1)*Dim])
	}
	norm := 0.0
	for _, v := range sum {
		norm += float64(v) * float64(v)
	}
	inverse := float32(1 / max(math.Sqrt(norm), 1e-12))
	for i := range sum {
		sum[i] *= inverse
	}
	return sum
}

// attend mixes the values of all tokens into each, head by head.
func (s *scratch) attend(n int) {
	const width = 3 * Dim
	scale := float32(1 / math.Sqrt(head))
	for h := range heads {
		q, k, v := s.qkv[h*head:], s.qkv[Dim+h*head:], s.qkv[2*Dim+h*head:]
		multiply(s.scores, s.rows, q, width, k, width, s.rows, s.rows, head)
		for i := range n {
			softmax(s.scores[i*s.rows:(i+1)*s.rows], n, scale)
		}
		for j := range n {
			for d := range head {
				s.values[d*s.rows+j] = v[j*width+d]
			}
		}
		multiply(s.mixed[h*head:], Dim, s.scores, s.rows, s.values, s.rows, s.rows, head, s.rows)
	}
}

// add adds what a part of a layer has made to what went into it.
func (s *scratch) add(made []float32, n int, norm scaling) {
	for i := range n {
		row := s.x[i*Dim : (i+1)*Dim]
		addTo(row, made[i*Dim:(i+1)*Dim])
		norm.apply(row)
	}
}

// apply computes the outputs of rows inputs; rows is even.
func (l *linear) apply(out, in []float32, rows int) {
	n := len(l.bias)
	k := len(l.weight) / n
	multiply(out, n, in, k, l.weight, k, rows, n, k)
	for i := range rows {
		addTo(out[i*n:(i+1)*n], l.bias)
	}
}

// apply normalises a row.
func (s scaling) apply(row []float32) {
	var sum, squares float64
	for _, v := range row {
		sum += float64(v)
		squares += float64(v) * float64(v)
	}
	mean := sum / float64(len(row))
	inverse := 1 / math.Sqrt(max(squares/float64(len(row))-mean*mean, 0)+1e-12)
	m, k := float32(mean), float32(inverse)
	gain, bias := s.gain[:len(row)], s.bias[:len(row)]
	for i, v := range row {
		row[i] = (v-m)*k*gain[i] + bias[i]
	}
}

// softmax turns the first n scores of a row into shares, and the rest, which
// are of no token, into 0.
func softmax(row []float32, n int, scale float32) {
	most := row[0]
	for _, v := range row[:n] {
		most = max(most, v)
	}
	sum := float32(0)
	for i, v := range row[:n] {
		row[i] = float32(math.Exp(float64((v - most) * scale)))
		sum += row[i]
	}
	for i := range row[:n] {
		row[i] /= sum
	}
	clear(row[n:])
}

// gelu is x times the share of a normal distribution that is below x, from a
// table: the exact one would be a third of all work. It is right to 2e-6.
func gelu(x float32) float32 {
	at := (x + geluReach) * geluSteps
	if at <= 0 {
		return 0
	}
	if at >= 2*geluReach*geluSteps {
		return x
	}
	i := int(at)
	part := at - float32(i)
	return gelus[i] + part*(gelus[i+1]-gelus[i])
}

const (
	geluReach = 6   // beyond it, gelu is 0 or x
	geluSteps = 256 // for each 1
)

var gelus = func() (t [2*geluReach*geluSteps + 1]float32) {
	for i := range t {
		x := float64(i)/geluSteps - geluReach
		t[i] = float32(x / 2 * (1 + math.Erf(x/math.Sqrt2)))
	}
	return
}()

func addTo(dst, x []float32) {
	x = x[:len(dst)]
	for i := range dst {
		dst[i] += x[i]
	}
}

// multiply computes the products of the rows of a with the rows of b, all of k
// numbers: out[i][j] is the product of row i of a and row j of b. The rows of
// each matrix are its stride apart. rows is a multiple of 2, cols of 4, k of 8.
func multiply(out []float32, outStride int, a []float32, aStride int, b []float32, bStride, rows, cols, k int) {
	var block [8]float32
	for j := 0; j < cols; j += 4 {
		four := b[j*bStride : (j+3)*bStride+k] // stays in the nearest cache for all rows of a
		for i := 0; i < rows; i += 2 {
			products(a[i*aStride:(i+1)*aStride+k], aStride, four, bStride, k, &block)
			copy(out[i*outStride+j:i*outStride+j+4], block[:4])
			copy(out[(i+1)*outStride+j:(i+1)*outStride+j+4], block[4:])
		}
	}
}

// plainProducts computes the products of two rows of a with four rows of b.
func plainProducts(a []float32, aStride int, b []float32, bStride, k int, out *[8]float32) {
	for i := range 2 {
		x := a[i*aStride:][:k]
		b0, b1, b2, b3 := b[:k], b[bStride:][:k], b[2*bStride:][:k], b[3*bStride:][:k]
		var s0, s1, s2, s3 float32
		for d, v := range x {
			s0 += v * b0[d]
			s1 += v * b1[d]
			s2 += v * b2[d]
			s3 += v * b3[d]
		}
		out[4*i], out[4*i+1], out[4*i+2], out[4*i+3] = s0, s1, s2, s3
	}
}
