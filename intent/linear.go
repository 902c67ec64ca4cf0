package intent

import "math"

// A linear is a logistic model: the log odds are a weighted sum of features.
type linear struct {
	Bias    float64   `json:"bias"`
	Weights []float64 `json:"weights"`
}

func (l *linear) logit(x []float32) float64 {
	z := l.Bias
	for i, w := range l.Weights {
		z += w * float64(x[i])
	}
	return z
}

// ridge is how hard weights are pulled towards zero, for features of unit
// variance.
const ridge = 300

// A sample is what a model is fitted on: rows of features, what came true, and
// how much each row counts.
type sample struct {
	x      []float32
	y      []bool
	weight []float32
	step   []int32 // of each row: the step it is of; rows of one step are not independent
	server []int32 // of each row: the server
	point  []int32 // of each row: the moment that it is of
}

func (s *sample) row(i int) []float32 { return s.x[i*features : (i+1)*features] }

// fitLinear fits weights of the features that use allows, by L-BFGS.
func fitLinear(s *sample, use func(f int) bool, pull float64) *linear {
	if len(s.y) == 0 {
		return &linear{Bias: -never, Weights: make([]float64, features)}
	}
	var cols []int
	for f := range features {
		if use(f) {
			cols = append(cols, f)
		}
	}
	mean, scale := moments(s, cols)
	n := len(cols)
	z := make([]float32, len(s.y)*n)
	for i := range s.y {
		row := s.row(i)
		for j, f := range cols {
			z[i*n+j] = float32((float64(row[f]) - mean[j]) * scale[j])
		}
	}
	rate := 0.0
	total := 0.0
	for i, y := range s.y {
		total += float64(s.weight[i])
		if y {
			rate += float64(s.weight[i])
		}
	}
	start := make([]float64, n+1)
	start[n] = math.Log((rate + 0.5) / (total - rate + 0.5))
	w := minimize(start, func(w, grad []float64) float64 {
		return logLoss(s, z, w, grad, pull)
	})
	l := &linear{Bias: w[n], Weights: make([]float64, features)}
	for j, f := range cols {
		l.Weights[f] = w[j] * scale[j]
		l.Bias -= w[j] * scale[j] * mean[j]
	}
	return l
}

// logLoss returns the loss of weights, the bias last, and its gradient.
func logLoss(s *sample, z []float32, w, grad []float64, pull float64) float64 {
	n := len(w) - 1
	clear(grad)
	loss := 0.0
	for j := range n {
		loss += 0.5 * pull * w[j] * w[j]
		grad[j] = pull * w[j]
	}
	for i, y := range s.y {
		row := z[i*n:][:n]
		t := w[n]
		for j, v := range row {
			t += w[j] * float64(v)
		}
		if !y {
			t = -t
		}
		c := float64(s.weight[i])
		loss += c * softplus(-t)
		d := -c / (1 + math.Exp(t))
		if !y {
			d = -d
		}
		for j, v := range row {
			grad[j] += d * float64(v)
		}
		grad[n] += d
	}
	return loss
}

// softplus is log(1+exp(t)), also of a large t.
func softplus(t float64) float64 { return max(t, 0) + math.Log1p(math.Exp(-math.Abs(t))) }

// moments returns the means of columns, and one by their deviations; 0 of a
// column that never changes.
func moments(s *sample, cols []int) (mean, scale []float64) {
	mean, scale = make([]float64, len(cols)), make([]float64, len(cols))
	total := 0.0
	for i := range s.y {
		c := float64(s.weight[i])
		total += c
		row := s.row(i)
		for j, f := range cols {
			v := float64(row[f])
			mean[j] += c * v
			scale[j] += c * v * v
		}
	}
	for j := range cols {
		mean[j] /= total
		if v := scale[j]/total - mean[j]*mean[j]; v > 1e-9 {
			scale[j] = 1 / math.Sqrt(v)
		} else {
			scale[j] = 0
		}
	}
	return mean, scale
}

// minimize finds the minimum of a smooth convex function by L-BFGS.
func minimize(x []float64, f func(x, grad []float64) float64) []float64 {
	const (
		memory = 8
		rounds = 120
	)
	n := len(x)
	g := make([]float64, n)
	fx := f(x, g)
	var ss, ys [][]float64
	var rho []float64
	for range rounds {
		d := make([]float64, n)
		copy(d, g)
		alpha := make([]float64, len(ss))
		for i := len(ss) - 1; i >= 0; i-- {
			alpha[i] = rho[i] * dot(ss[i], d)
			axpy(d, -alpha[i], ys[i])
		}
		if k := len(ss); k > 0 {
			scaleBy(d, dot(ss[k-1], ys[k-1])/dot(ys[k-1], ys[k-1]))
		} else {
			scaleBy(d, 1/math.Max(1, math.Sqrt(dot(g, g))))
		}
		for i := range ss {
			axpy(d, alpha[i]-rho[i]*dot(ys[i], d), ss[i])
		}
		slope := -dot(d, g)
		if slope > -1e-9*(1+math.Abs(fx)) {
			break
		}
		next, ng := make([]float64, n), make([]float64, n)
		t, fn := 1.0, 0.0
		for {
			copy(next, x)
			axpy(next, -t, d)
			if fn = f(next, ng); fn <= fx+1e-4*t*slope || t < 1e-8 {
				break
			}
			t /= 2
		}
		s, y := make([]float64, n), make([]float64, n)
		for i := range n {
			s[i], y[i] = next[i]-x[i], ng[i]-g[i]
		}
		if sy := dot(s, y); sy > 1e-12 {
			ss, ys, rho = append(ss, s), append(ys, y), append(rho, 1/sy)
			if len(ss) > memory {
				ss, ys, rho = ss[1:], ys[1:], rho[1:]
			}
		}
		x, g, fx = next, ng, fn
	}
	return x
}

func dot(a, b []float64) float64 {
	sum := 0.0
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}

func axpy(dst []float64, a float64, x []float64) {
	for i := range dst {
		dst[i] += a * x[i]
	}
}

func scaleBy(x []float64, a float64) {
	for i := range x {
		x[i] *= a
	}
}
