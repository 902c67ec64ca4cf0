package intent

import (
	"math"
	"slices"
)

// A channel is one way to score all servers.
type channel int

const (
	promptOwn  channel = iota // likeness of the prompt to what the server says of itself
	promptTool                // and to the nearest of its tools
	textOwn                   // of the text
	textTool
	queryOwn // of the last search for tools
	queryTool
	firstQueryOwn // of the first search of the step
	firstQueryTool
	anyQueryTool // of the search that is most like it
	headOwn      // of the prompt, its first words most
	headTool
	restOwn // of the prompt, less what the used servers are there for
	restTool
	recentOwn // of the text, the last words most
	recentTool
	learnedText   // words of the text that came before calls
	learnedFirst  // before first uses
	learnedTail   // words of the current piece of text
	learnedPrompt // words of the prompt
	nearest       // likeness to the text before the nearest first use
	nearSum       // and to those of the nearest
	nearKin       // and to those of servers that are like this one
	kinFirst
	channels
)

// learns reports whether a channel says nothing before anything was learned.
func (c channel) learns() bool { return c >= learnedText }

// What is taken of a channel: how a server stands among those that the session
// has not used, and against those that it has.
const (
	value    = iota
	gap      // to the best
	lead     // of the best before the second; 0 for all others
	rank     // 1, 1/2, 1/3, …; 0 beyond the ranks that are looked at
	overUsed // above the best of the used servers
	views
)

// ranks is how many servers of a channel are looked at more closely.
const ranks = 6

// Features besides those of channels. Those from popular to follows are learned;
// those from found on tell of searches for tools.
const (
	named      = int(channels)*views + iota // by the text: its own name
	namedTool                               // the name of one of its tools
	namedOther                              // names of so many other servers
	namedTail                               // in the current piece of text
	namedToolTail
	namedUsedTail // a used server is named there
	namedPrompt
	popular
	popularGap // to the most popular unused server
	beside
	follows
	first // the session has used no server
	usedServers
	stepNumber
	searching   // the text has searched for tools
	searches    // how often
	silentText  // there is no text yet
	length      // of the text
	tailLength  // of its current piece
	inSearch    // the current piece is a search
	atColon     // it ends with a colon
	atStop      // it ends with the end of a sentence
	closing     // it has words of a final answer
	markup      // lines, as a final answer has many
	turningBack // words such as "again"
	seeking     // words such as "tools", in the current piece
	lookingFor  // words such as "find", in the current piece
	regretting  // words such as "unfortunately"
	steady      // so many steps called the last used server, the last ones in a row
	textVotes   // sum of the ranks in the channels of the text
	textVotesGap
	textVotesRank
	promptVotes // and in those of the prompt
	promptVotesGap
	promptVotesRank
	ownUse      // the server was used in the session
	ownLast     // and was the last one
	found       // by a search in this step
	foundShare  // of the searches
	foundFirst  // rank in the first search that found it
	foundLast   // rank in the last search
	foundAlone  // part that it is of all that were found and are unused
	foundAny    // something was found
	foundMany   // how many servers
	foundUsed   // a used server was found
	offered     // by an earlier search of the session
	offeredRank // of the last such search
	offeredAny
	offeredAlone
	knownText // rank of the text's likeness among those that were ever found
	knownRecent
	knownLearned
	features
)

// learnedFeature reports whether a feature says nothing before anything was
// learned.
func learnedFeature(f int) bool {
	if f < int(channels)*views {
		return channel(f / views).learns()
	}
	return f >= popular && f <= follows || f == knownLearned
}

// situationFeature reports whether a feature is the same for all servers, and
// tells how far the model is with its text.
func situationFeature(f int) bool { return f >= first && f <= steady }

// searchFeature reports whether a feature tells what searches for tools found.
func searchFeature(f int) bool { return f >= found }

// A view is what is known to be scored at one moment: rows of features, one for
// each server that anything speaks for, and for each that was used.
type view struct {
	server []int32
	x      []float32 // features of the first row, then of the second
}

// row returns the features of row i.
func (v *view) row(i int) []float32 { return v.x[i*features : (i+1)*features] }

// A ranking is how unused servers stand in a channel.
type ranking struct {
	best, second, used float32
	top                [ranks]int32
	n                  int
}

// order ranks the servers that were not used by a score.
func order(score []float32, standing []standing, any bool) ranking {
	r := ranking{best: float32(math.Inf(-1)), second: float32(math.Inf(-1)), used: float32(math.Inf(-1))}
	for s, v := range score {
		switch standing[s] {
		case used:
			r.used = max(r.used, v)
			continue
		case barred:
			continue
		}
		if r.n == ranks && v <= score[r.top[ranks-1]] {
			continue
		}
		if r.n < ranks {
			r.n++
		}
		i := r.n - 1
		for ; i > 0 && score[r.top[i-1]] < v; i-- {
			r.top[i] = r.top[i-1]
		}
		r.top[i] = int32(s)
	}
	if r.n > 0 {
		r.best = score[r.top[0]]
		r.second = r.best
	}
	if r.n > 1 {
		r.second = score[r.top[1]]
	}
	if r.n == 0 {
		r.best, r.second = 0, 0
	}
	if math.IsInf(float64(r.used), -1) {
		r.used = 0
	}
	if !any {
		r.n = 0
	}
	return r
}

// look fills v with what w sees as of now.
func (w *watch) look(v *view) {
	w.score()
	n := len(w.p.servers)
	pick := w.pick
	clear(pick)
	var rs [channels]ranking
	for c := range channels {
		score := w.scores[c]
		any := slices.ContainsFunc(score, func(x float32) bool { return x != 0 })
		rs[c] = order(score, w.standing, any)
		for _, s := range rs[c].top[:rs[c].n] {
			pick[s] = true
		}
	}
	var pop ranking
	if w.memory.amount > 0 {
		pop = order(w.memory.popular, w.standing, true)
		for _, s := range pop.top[:pop.n] {
			pick[s] = true
		}
	}
	for s, is := range w.standing {
		if is == used || w.fired[s] || w.found[s].times > 0 || w.offeredAt[s] > 0 || w.names.Distinct(2*s) > 0 || w.names.Distinct(2*s+1) > 0 || w.promptNames[s] > 0 {
			pick[s] = true
		}
	}
	v.server = v.server[:0]
	for s := range n {
		if pick[s] && w.standing[s] != barred {
			v.server = append(v.server, int32(s))
		}
	}
	v.x = slices.Grow(v.x[:0], len(v.server)*features)[:len(v.server)*features]
	clear(v.x)
	var shared [features]float32
	w.situation(&shared)
	for i, s := range v.server {
		x := v.row(i)
		copy(x, shared[:])
		for c := range channels {
			f := x[int(c)*views:][:views]
			val := w.scores[c][s]
			f[value] = val
			f[gap] = val - rs[c].best
			f[overUsed] = val - rs[c].used
		}
		w.own(x, int(s), &pop)
	}
	at := w.at
	for i, s := range v.server {
		at[s] = int32(i)
	}
	for c := range channels {
		for i, s := range rs[c].top[:rs[c].n] {
			f := v.row(int(at[s]))[int(c)*views:]
			f[rank] = 1 / float32(1+i)
			if i == 0 {
				f[lead] = rs[c].best - rs[c].second
			}
		}
	}
	w.vote(v, textVotes, textOwn, textTool, recentOwn, recentTool, learnedText, learnedFirst, learnedTail, nearSum)
	w.vote(v, promptVotes, promptOwn, promptTool, headOwn, headTool, restOwn, restTool, learnedPrompt)
	w.known(v)
}

// vote sums up how servers rank in some channels: three features from f on.
func (w *watch) vote(v *view, f int, of ...channel) {
	best := float32(0)
	for i, s := range v.server {
		x := v.row(i)
		for _, c := range of {
			x[f] += x[int(c)*views+rank]
		}
		if w.standing[s] == unused {
			best = max(best, x[f])
		}
	}
	for i, s := range v.server {
		x := v.row(i)
		x[f+1] = x[f] - best
		if x[f] == 0 || w.standing[s] != unused {
			continue
		}
		better := 0
		for j, t := range v.server {
			if w.standing[t] == unused && v.row(j)[f] > x[f] {
				better++
			}
		}
		x[f+2] = 1 / float32(1+better)
	}
}

// situation fills in what is the same for all servers.
func (w *watch) situation(x *[features]float32) {
	yes := func(f int, b bool) {
		if b {
			x[f] = 1
		}
	}
	log := func(f int, n int) { x[f] = float32(math.Log1p(float64(n))) }
	yes(first, len(w.used) == 0)
	x[usedServers] = float32(min(len(w.used), 5))
	log(stepNumber, w.steps)
	yes(searching, w.queries > 0)
	x[searches] = float32(min(w.queries, 4))
	yes(silentText, w.visible == 0)
	log(length, w.bytes)
	log(tailLength, w.tailBytes)
	yes(inSearch, w.visible > 0 && w.kind == Query)
	yes(atColon, w.ending == ':')
	yes(atStop, w.ending == '.' || w.ending == '!' || w.ending == '?')
	log(closing, w.closings)
	log(markup, w.lines)
	log(turningBack, w.backs)
	log(seeking, w.seekings)
	log(lookingFor, w.lookings)
	log(regretting, w.regretful)
	x[steady] = float32(min(w.same, 6))
	yes(foundAny, w.searched > 0)
	for _, u := range w.used {
		if w.namesTail.Distinct(2*int(u)) > 0 || w.namesTail.Distinct(2*int(u)+1) > 0 {
			x[namedUsedTail] = 1
		}
		if w.found[u].times > 0 {
			x[foundUsed] = 1
		}
	}
	log(foundMany, w.foundServers)
	yes(offeredAny, w.offeredServers > 0)
}

// own fills in what is a server's own, besides channels.
func (w *watch) own(x []float32, s int, pop *ranking) {
	x[named] = float32(w.names.Best(2 * s))
	x[namedTool] = float32(min(w.names.Distinct(2*s+1), 2))
	others := w.namedServers
	if x[named] > 0 {
		others--
	}
	x[namedOther] = float32(min(others, 3))
	x[namedTail] = float32(w.namesTail.Best(2 * s))
	x[namedToolTail] = float32(min(w.namesTail.Distinct(2*s+1), 2))
	x[namedPrompt] = w.promptNames[s]
	if w.memory.amount > 0 {
		x[popular] = w.memory.popular[s]
		x[popularGap] = w.memory.popular[s] - pop.best
		x[beside] = w.memory.beside[s]
		x[follows] = w.memory.follows[s]
	}
	if w.standing[s] == used {
		x[ownUse] = 1
		if int32(s) == w.used[len(w.used)-1] {
			x[ownLast] = 1
		}
	}
	if f := &w.found[s]; f.times > 0 {
		x[found] = 1
		x[foundShare] = float32(f.times) / float32(w.searched)
		x[foundFirst] = 1 / float32(f.firstRank)
		if f.lastSearch == w.searched {
			x[foundLast] = 1 / float32(f.lastRank)
		}
		if w.standing[s] == unused {
			x[foundAlone] = 1 / float32(w.foundServers)
		}
	}
	if at := w.offeredAt[s]; at > 0 {
		x[offered] = 1
		x[offeredRank] = 1 / float32(at)
		if w.standing[s] == unused {
			x[offeredAlone] = 1 / float32(w.offeredServers)
		}
	}
}

// known fills in ranks among the unused servers that searches have ever found.
func (w *watch) known(v *view) {
	for _, k := range [...]struct {
		f  int
		of channel
	}{{knownText, textOwn}, {knownRecent, recentOwn}, {knownLearned, learnedText}} {
		if k.of == learnedText && w.memory.amount == 0 {
			continue
		}
		score := w.scores[k.of]
		is := func(s int32) bool { return w.standing[s] == unused && (w.found[s].times > 0 || w.offeredAt[s] > 0) }
		for i, s := range v.server {
			if !is(s) {
				continue
			}
			better := 0
			for _, t := range v.server {
				if is(t) && (score[t] > score[s] || score[t] == score[s] && t < s) {
					better++
				}
			}
			v.row(i)[k.f] = 1 / float32(1+better)
		}
	}
}
