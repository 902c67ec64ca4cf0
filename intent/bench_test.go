package intent_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/specbox/specbox/intent"
)

// many makes up so many servers of eight tools each.
func many(n int) []intent.Server {
	nouns := strings.Fields("page forecast sheet domain track quote ticket invoice branch issue pod image route hotel chart note task event mail file cluster bucket query table chess video recipe map ship patient gene paper price")
	verbs := strings.Fields("get list create update delete search read write convert merge export import")
	var all []intent.Server
	for i := range n {
		s := intent.Server{Name: fmt.Sprintf("%s-%d", nouns[i%len(nouns)], i), Description: fmt.Sprintf("A server for each %s of vendor%d and its %s.", nouns[i%len(nouns)], i, nouns[(i*7+3)%len(nouns)])}
		for j := range 8 {
			verb, noun := verbs[(i+j)%len(verbs)], nouns[(i+j*5)%len(nouns)]
			s.Tools = append(s.Tools, intent.Tool{
				Name:        fmt.Sprintf("%s_%s_%d", verb, noun, j),
				Description: fmt.Sprintf("Use this to %s the %s with all of its fields, of vendor%d.", verb, noun, i),
				Params:      []intent.Param{{Name: noun + "_id"}, {Name: "limit"}},
			})
		}
		all = append(all, s)
	}
	return all
}

// taught is a calibrated policy that has learned from so many steps.
func taught(b *testing.B, servers []intent.Server, steps int) intent.Policy {
	p, err := intent.NewPolicy("calibrated", servers, intent.Options{})
	if err != nil {
		b.Fatal(err)
	}
	for i := range steps {
		s := servers[i*31%len(servers)]
		p.Learn(intent.Step{
			History: intent.History{Prompt: "Please work on the " + s.Name + " and then tell me."}, Called: []string{s.Name},
			Text: []intent.Segment{{Text: "I will look at it. Let me " + s.Tools[i%8].Description}},
		})
	}
	return p
}

const said = "I'll help you with that report. First I look at the forecast of the city, then I write the cells into the sheet, and at last I export the chart to a file:\n"

func BenchmarkCalibrated(b *testing.B) {
	for _, n := range []int{70, 1000} {
		servers := many(n)
		p := taught(b, servers, 2000)
		h := intent.History{Prompt: "Write a report on the weather and put it into a sheet with a chart.", Used: [][]string{{servers[3].Name}}}
		b.Run(fmt.Sprintf("begin/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				p.Begin(h)
			}
		})
		b.Run(fmt.Sprintf("token/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			text := []byte(strings.Repeat(said, 4))
			w := p.Begin(h)
			at := 0
			for b.Loop() {
				if at+4 > len(text) { // another answer begins: nothing of it has been read
					b.StopTimer()
					w, at = p.Begin(h), 0
					b.StartTimer()
				}
				w.Text(intent.Content, text[at:at+4])
				at += 4
			}
		})
		b.Run(fmt.Sprintf("intents/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			w := p.Begin(h)
			w.Text(intent.Content, []byte(said))
			var dst []intent.Intent
			for b.Loop() {
				dst = w.Intents(dst[:0], false)
			}
		})
		b.Run(fmt.Sprintf("learn/%d", n), func(b *testing.B) {
			st := intent.Step{History: h, Called: []string{servers[5].Name}, Text: []intent.Segment{{Text: said}}}
			for b.Loop() {
				p.Learn(st)
			}
		})
		b.Run(fmt.Sprintf("make/%d", n), func(b *testing.B) {
			memory := intent.NewMemory(0)
			for b.Loop() {
				if _, err := intent.NewPolicy("calibrated", servers, intent.Options{Memory: memory}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
