package keyword

// A cue is some words that say that what follows is not wanted.
type cue struct {
	text  string
	reach int // how many words it reaches; 0: it ends what reaches here
}

// cues are what negates, as far as a stream can know it: a negation that comes
// after the keyword is out of its sight. Only what speaks of an intent counts:
// "I could not find the weather" wants the weather.
var cues = func() []cue {
	const far, near = 6, 3
	var cs []cue
	add := func(reach int, texts ...string) {
		for _, t := range texts {
			cs = append(cs, cue{t, reach})
		}
	}
	verbs := []string{
		"use", "using", "need", "needing", "call", "calling", "require", "requires", "open", "opening", "run", "running", "start", "starting",
		"launch", "invoke", "invoking", "touch", "involve", "want", "access", "want to use", "need to use", "have to use", "going to use", "bother with", "rely on", "go through",
	}
	for _, not := range []string{
		"not", "dont", "doesnt", "wont", "shouldnt", "mustnt", "neednt", "needn t", "don t", "cannot", "cant", "never", "no longer", "no need to", "not necessary to", "unnecessary to",
	} {
		for _, verb := range verbs {
			add(far, not+" "+verb)
		}
	}
	for _, verb := range verbs {
		add(0, "why not "+verb)
	}
	add(far, "no need for", "no need of", "no need", "without", "without using", "without needing", "without the need for", "without the use of", "without calling",
		"without opening", "avoid", "avoids", "avoiding", "avoid using", "skip", "skipping", "skip using", "refrain from", "other than", "except", "except for", "not necessary", "free of")
	add(near, "instead of", "instead of using", "instead of calling", "rather than", "rather than using", "rather than calling", "not with", "not via", "not through", "not by", "not in", "not the", "not a", "not an")
	add(1, "no")
	add(far, "不需要", "无需", "不用", "不使用", "不要", "不要使用", "而不是", "没有必要")
	add(0, "not only", "not just", "but", "however", "instead", "let", "lets", "i", "ill", "im", "we", "well", "then", "therefore", "so", "because",
		"dont forget", "do not forget", "dont hesitate", "do not hesitate", "not without", "no doubt", "no problem", "no matter", "no more than", "但", "而是")
	return cs
}()

// cue takes the cue that has just ended. A negation within one is none: "cannot
// be done without the browser" needs it.
func (s *Stream) cue(c cue) {
	active := s.words <= s.reach
	switch {
	case c.reach == 0, active && c.text == "without":
		s.reach = 0
	default:
		s.reach = max(s.reach, s.words+c.reach)
	}
}
