package intent

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
)

// A forest is a sum of small decision trees, each fitted to what those before it
// left over (gradient boosting).
type forest struct {
	Bias  float64 `json:"bias"`
	Trees []tree  `json:"trees"`
}

// A tree is its nodes, the root first.
type tree []node

// A node asks whether a feature is at most a value.
type node struct {
	Feature int16   `json:"f"` // -1: a leaf
	Low     int16   `json:"l,omitempty"`
	High    int16   `json:"h,omitempty"`
	Value   float32 `json:"v"` // what is asked for; of a leaf, what it adds
}

func (f *forest) logit(x []float32) float64 {
	z := f.Bias
	for _, t := range f.Trees {
		n := &t[0]
		for n.Feature >= 0 {
			if x[n.Feature] <= n.Value {
				n = &t[n.Low]
			} else {
				n = &t[n.High]
			}
		}
		z += float64(n.Value)
	}
	return z
}

// How trees are grown. The sets to fit on are small, hence so are the trees.
const (
	bags      = 2 // forests that are averaged: each tree sees part of the steps and features
	trees     = 100
	leaves    = 8
	bins      = 32
	rate      = 0.07
	perLeaf   = 30  // rows
	shrink    = 5   // pulls the leaves towards zero
	someSteps = 0.8 // part of the steps that a tree sees
	someCols  = 0.4 // part of the features
)

// A grower grows trees on one sample.
type grower struct {
	s    *sample
	cols []int
	cuts [][]float32 // of each column: the greatest value of each bin but the last
	bin  [][]uint8   // of each column, by row
	z    []float64   // by row
	grad []float64
	hess []float64
	rng  *rand.Rand
}

// fitForest grows a forest on the features that use allows. The same seed grows
// the same forest.
func fitForest(s *sample, use func(f int) bool, seed uint64) *forest {
	if len(s.y) == 0 {
		return &forest{Bias: -never}
	}
	g := &grower{s: s, rng: rand.New(rand.NewPCG(seed, 7))}
	for f := range features {
		if !use(f) {
			continue
		}
		cuts := cutsOf(s, f)
		if len(cuts) == 0 {
			continue
		}
		bin := make([]uint8, len(s.y))
		for i := range bin {
			b, _ := slices.BinarySearch(cuts, s.row(i)[f])
			bin[i] = uint8(b)
		}
		g.cols, g.cuts, g.bin = append(g.cols, f), append(g.cuts, cuts), append(g.bin, bin)
	}
	yes, total := 0.0, 0.0
	for i, y := range s.y {
		total += float64(s.weight[i])
		if y {
			yes += float64(s.weight[i])
		}
	}
	f := &forest{Bias: math.Log((yes + 0.5) / (total - yes + 0.5))}
	n := len(s.y)
	g.z, g.grad, g.hess = make([]float64, n), make([]float64, n), make([]float64, n)
	if len(g.cols) == 0 {
		return f // there is nothing to tell rows apart by
	}
	for range bags {
		for i := range g.z {
			g.z[i] = f.Bias
		}
		for range trees {
			f.Trees = append(f.Trees, g.grow())
		}
	}
	for _, t := range f.Trees {
		for i := range t {
			if t[i].Feature < 0 {
				t[i].Value /= bags
			}
		}
	}
	return f
}

// cutsOf divides the values of a feature into bins that hold equally many.
func cutsOf(s *sample, f int) []float32 {
	values := make([]float32, 0, len(s.y))
	for i := range s.y {
		values = append(values, s.row(i)[f])
	}
	slices.Sort(values)
	unique := slices.Compact(slices.Clone(values))
	if len(unique) <= bins {
		return unique[:len(unique)-1]
	}
	var cuts []float32
	for b := 1; b < bins; b++ {
		// Half of the bins by rows, half by values: most rows are alike.
		cuts = append(cuts, values[b*len(values)/bins], unique[b*len(unique)/bins])
	}
	slices.Sort(cuts)
	cuts = slices.Compact(cuts)
	if cuts[len(cuts)-1] == unique[len(unique)-1] {
		cuts = cuts[:len(cuts)-1]
	}
	return cuts
}

// A leaf is a leaf that may yet be split.
type leaf struct {
	rows  []int32
	node  int
	sums  [][2 * bins]bucket // by column, by bin
	total bucket
	gain  float64
	col   int // index into the columns that this tree sees
	cut   int
}

// A bucket sums rows.
type bucket struct {
	grad, hess float64
	n          int
}

func (b *bucket) add(o bucket, sign float64) {
	b.grad += sign * o.grad
	b.hess += sign * o.hess
	b.n += int(sign) * o.n
}

// grow grows the next tree.
func (g *grower) grow() tree {
	in := make(map[int32]bool)
	for _, st := range g.s.step {
		if _, ok := in[st]; !ok {
			in[st] = g.rng.Float64() < someSteps
		}
	}
	var rows []int32
	for i, y := range g.s.y {
		p := 1 / (1 + math.Exp(-g.z[i]))
		c := float64(g.s.weight[i])
		t := 0.0
		if y {
			t = 1
		}
		g.grad[i], g.hess[i] = c*(p-t), c*p*(1-p)
		if in[g.s.step[i]] {
			rows = append(rows, int32(i))
		}
	}
	cols := g.rng.Perm(len(g.cols))[:max(1, int(someCols*float64(len(g.cols))))]
	slices.Sort(cols)
	t := tree{{Feature: -1}}
	root := &leaf{rows: rows, sums: g.sums(rows, cols)}
	root.find(g, cols)
	open := []*leaf{root}
	for len(open) < leaves {
		best := slices.MaxFunc(open, func(a, b *leaf) int { return cmp.Compare(a.gain, b.gain) })
		if best.gain <= 1e-9 {
			break
		}
		l, h := &leaf{node: len(t)}, &leaf{node: len(t) + 1}
		c := cols[best.col]
		for _, i := range best.rows {
			if int(g.bin[c][i]) <= best.cut {
				l.rows = append(l.rows, i)
			} else {
				h.rows = append(h.rows, i)
			}
		}
		g.share(best, l, h, cols)
		t[best.node] = node{Feature: int16(g.cols[c]), Low: int16(len(t)), High: int16(len(t) + 1), Value: g.cuts[c][best.cut]}
		t = append(t, node{Feature: -1}, node{Feature: -1})
		open[slices.Index(open, best)] = l
		open = append(open, h)
	}
	for _, l := range open {
		t[l.node].Value = float32(-rate * l.total.grad / (l.total.hess + shrink))
	}
	one := forest{Trees: []tree{t}}
	for i := range g.z {
		g.z[i] += one.logit(g.s.row(i))
	}
	return t
}

// sums sums rows by column and bin.
func (g *grower) sums(rows []int32, cols []int) [][2 * bins]bucket {
	all := make([][2 * bins]bucket, len(cols))
	for j, c := range cols {
		bin, h := g.bin[c], &all[j]
		for _, i := range rows {
			b := &h[bin[i]]
			b.grad += g.grad[i]
			b.hess += g.hess[i]
			b.n++
		}
	}
	return all
}

// share divides the sums of a leaf among its halves. Only the smaller one is
// summed anew.
func (g *grower) share(parent, low, high *leaf, cols []int) {
	small, large := low, high
	if len(small.rows) > len(large.rows) {
		small, large = large, small
	}
	small.sums = g.sums(small.rows, cols)
	large.sums = parent.sums
	for j := range large.sums {
		for b := range large.sums[j] {
			large.sums[j][b].add(small.sums[j][b], -1)
		}
	}
	parent.rows, parent.sums = nil, nil
	low.find(g, cols)
	high.find(g, cols)
}

// find finds how to split a leaf best.
func (l *leaf) find(g *grower, cols []int) {
	for _, b := range l.sums[0] {
		l.total.add(b, 1)
	}
	worth := func(b bucket) float64 { return b.grad * b.grad / (b.hess + shrink) }
	for j, c := range cols {
		var low bucket
		for b := range g.cuts[c] {
			low.add(l.sums[j][b], 1)
			high := l.total
			high.add(low, -1)
			if low.n < perLeaf || high.n < perLeaf {
				continue
			}
			if gain := worth(low) + worth(high) - worth(l.total); gain > l.gain {
				l.gain, l.col, l.cut = gain, j, b
			}
		}
	}
}
