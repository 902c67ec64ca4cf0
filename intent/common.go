package intent

import (
	"maps"
	"math"
)

// common says how common words are in what users and models write, whatever the
// task. A word that hardly any server says of itself tells little all the same
// if everybody uses it.
type common struct {
	Tasks int          `json:"tasks"`
	In    map[term]int `json:"in"` // tasks that have the word; words of a single task are left out
}

// commonIn counts words in sessions. A task is counted once, whatever runs it has.
func commonIn(corpora []Corpus) *common {
	byTask := map[string]map[term]bool{}
	for _, co := range corpora {
		for _, se := range co.Sessions {
			words := byTask[se.Task]
			if words == nil {
				words = map[term]bool{}
				byTask[se.Task] = words
			}
			for i := range se.Steps {
				st := &se.Steps[i]
				for _, t := range termsOf(excerpt(st.Prompt)) {
					words[t] = true
				}
				for _, seg := range st.Text {
					for _, t := range termsOf(seg.Text) {
						words[t] = true
					}
				}
			}
		}
	}
	c := &common{Tasks: len(byTask), In: map[term]int{}}
	for _, words := range byTask {
		for t := range words {
			c.In[t]++
		}
	}
	maps.DeleteFunc(c.In, func(_ term, n int) bool { return n < 2 })
	return c
}

// telling returns how much a word tells, in (0, 1]: 1 if nobody uses it.
func (c *common) telling(t term) float32 {
	if c == nil || c.Tasks == 0 {
		return 1
	}
	// One of the tasks may be the one that asks: it does not count.
	n := max(0, c.In[t]-1)
	return float32(math.Log(1+float64(c.Tasks)/float64(1+n)) / math.Log(1+float64(c.Tasks)))
}
