package intent

// A negation follows the words of a text and says which of them are said not to
// be wanted. It looks at what comes before a word alone: it works on streams.
type negation struct {
	reach  int  // so many more words are negated
	before kind // of the last word
}

// A kind says what a word does to a negation.
type kind uint8

const (
	plain   kind = iota
	cue          // negates what follows
	no           // negates the next word; with "need", what follows
	not          // negates what follows if a verb of use is next
	verb         // of use
	instead      // negates what follows if "of" is next
	rather       // negates what follows if "than" is next
	of
	than
	turn // ends a negation
)

// far is how many words a negation reaches, if nothing ends it before.
const far = 6

var kinds = func() map[string]kind {
	m := map[string]kind{"no": no, "instead": instead, "rather": rather, "of": of, "than": than}
	for k, words := range map[kind]string{
		cue:  "without avoid avoiding avoids skip skipping",
		not:  "not dont doesnt wont shouldnt mustnt neednt cannot cant never",
		verb: "use using need needs needing call calling require requires requiring open opening run running start starting launch launching want involve involving touch",
		turn: "but however let lets i ill im we well then therefore so because only just",
	} {
		for w := range setOf(words) {
			m[w] = k
		}
	}
	return m
}()

// word reads a word and reports whether it is negated.
func (n *negation) word(w []byte) bool {
	k := kinds[string(w)]
	before := n.before
	n.before = k
	negated := n.reach > 0
	if negated {
		n.reach--
	}
	switch k {
	case cue:
		n.reach = far
	case no:
		n.reach = max(n.reach, 1)
	case verb:
		if before == no || before == not {
			n.reach = far
		}
	case of:
		if before == instead {
			n.reach = far
		}
	case than:
		if before == rather {
			n.reach = far
		}
	case turn:
		n.reach, negated = 0, false
	}
	return negated
}

// mark reads a character between words.
func (n *negation) mark(r rune) {
	switch r {
	case '.', ',', ';', ':', '!', '?', '\n', '(', ')':
		n.reach, n.before = 0, plain
	}
}
