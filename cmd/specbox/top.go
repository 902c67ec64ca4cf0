package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/specbox/specbox/control"
)

func (a *app) topCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch sandboxes, conversations and what calls find",
		Long: `Show, again and again, the sandboxes that are alive, the conversations that agents
lead with models, and what happened at each server in the last minutes: what calls
found, how long they waited, and what was started for nobody. The key q ends it.

LEAD is how long before its first call the start of a sandbox was asked for, SURE
how sure the guess was that it was started on. WAITED is the sum over all calls,
SAVED what was saved of it by starting ahead, estimated.`,
		Example: `  specbox top
  specbox top --once
  specbox top --json | jq -c '.activity.servers[] | {server, warm, late, cold}'`,
		Args: exactly(),
	}
	asJSON := cmd.Flags().Bool("json", false, "print JSON, one line a frame")
	once := cmd.Flags().Bool("once", false, "show one frame")
	every := cmd.Flags().Duration("every", time.Second, "`time` between two frames")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *every < 50*time.Millisecond {
			return &usageError{"--every is too short", "the shortest is 50ms"}
		}
		c, err := a.client()
		if err != nil {
			return err
		}
		f, err := look(cmd.Context(), c)
		switch {
		case err != nil:
			return err
		case !*once && !*asJSON && isTerminal(a.out):
			return a.watch(cmd.Context(), c, f, *every)
		}
		return a.frames(cmd.Context(), c, f, *every, *once, *asJSON)
	}
	return cmd
}

// A topFrame is what top knows at one moment.
type topFrame struct {
	Time          time.Time              `json:"time"`
	Health        control.Health         `json:"specbox"`
	Sandboxes     []control.Sandbox      `json:"sandboxes"`
	Conversations []control.Conversation `json:"conversations"`
	Activity      control.Activity       `json:"activity"`
}

// look asks the running specbox for a frame.
func look(ctx context.Context, c *control.Client) (f topFrame, err error) {
	f.Time = time.Now()
	if f.Health, err = c.Health(ctx); err != nil {
		return f, err
	}
	if f.Sandboxes, err = c.PS(ctx); err != nil {
		return f, err
	}
	if f.Conversations, err = c.Conversations(ctx); err != nil {
		return f, err
	}
	f.Activity, err = c.Activity(ctx)
	return f, err
}

// frames prints frame after frame, f first, until ctx ends.
func (a *app) frames(ctx context.Context, c *control.Client, f topFrame, every time.Duration, once, asJSON bool) error {
	ticks := time.NewTicker(every)
	defer ticks.Stop()
	for {
		if asJSON {
			if err := a.printLine(f); err != nil {
				return err
			}
		} else if _, err := fmt.Fprintln(a.out, strings.Join(a.frame(&f, 0), "\n")); err != nil {
			return err
		}
		if once {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
		}
		var err error
		if f, err = look(ctx, c); ctx.Err() != nil {
			return nil
		} else if err != nil {
			return err
		}
		if !asJSON {
			fmt.Fprintln(a.out)
		}
	}
}

// What terminals understand.
const (
	screenOpen  = "\x1b[?1049h\x1b[?25l" // the other screen, no cursor
	screenClose = "\x1b[?25h\x1b[?1049l"
	screenHome  = "\x1b[H"
	lineRest    = "\x1b[K" // is erased
	screenRest  = "\x1b[J"
)

// watch shows frames on the terminal, each in the place of the one before, until
// q is pressed or ctx ends. A specbox that ends meanwhile is waited for.
func (a *app) watch(ctx context.Context, c *control.Client, f topFrame, every time.Duration) error {
	quit, stop := a.quitKey()
	defer stop()
	fmt.Fprint(a.out, screenOpen)
	defer fmt.Fprint(a.out, screenClose)
	ticks := time.NewTicker(every)
	defer ticks.Stop()
	for err := error(nil); ; {
		lines := []string{paint(a.out, red, "specbox: ") + f.Time.Local().Format(time.TimeOnly)}
		if err == nil {
			lines = a.frame(&f, height(a.out)-1)
		} else {
			lines[0] += " " + short(err.Error(), width(a.out)-20)
		}
		text := screenHome + strings.Join(lines, lineRest+"\n") + lineRest + "\n" + "q quits" + lineRest + screenRest
		if _, err := io.WriteString(a.out, text); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-quit:
			return nil
		case <-ticks.C:
		}
		f, err = look(ctx, c)
	}
}

// quitKey returns a channel that is closed when the user presses q. stop gives the
// terminal back as it was.
func (a *app) quitKey() (quit <-chan struct{}, stop func()) {
	pressed := make(chan struct{})
	in, ok := a.in.(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) {
		return pressed, func() {}
	}
	fd := int(in.Fd())
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return pressed, func() {}
	}
	// Opened anew, it can be read with a deadline.
	keys, err := os.OpenFile("/proc/self/fd/"+strconv.Itoa(fd), os.O_RDONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return pressed, func() {}
	}
	now := *before
	now.Lflag &^= unix.ICANON | unix.ECHO // each key at once, and none shown; ^C stays what it is
	_ = unix.IoctlSetTermios(fd, unix.TCSETS, &now)
	done := make(chan struct{})
	go func() { // stop waits for it
		defer close(done)
		for b := make([]byte, 1); ; {
			if _, err := keys.Read(b); err != nil {
				return
			}
			if b[0] == 'q' || b[0] == 'Q' {
				close(pressed)
				return
			}
		}
	}()
	return pressed, func() {
		_ = keys.SetReadDeadline(time.Now())
		<-done
		_ = keys.Close()
		_ = unix.IoctlSetTermios(fd, unix.TCSETS, before)
	}
}

// height returns how many lines w has room for; 24 where it does not tell.
func height(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if _, n, err := term.GetSize(int(f.Fd())); err == nil && n > 0 {
			return n
		}
	}
	return 24
}

// A section is a part of a frame.
type section struct {
	title string
	none  string // instead of no rows
	head  []string
	rows  [][]string
	more  int // rows that are left out
}

// frame returns the lines of a frame; of tables, as many rows as room has lines
// for. With no room there is no bound.
func (a *app) frame(f *topFrame, room int) []string {
	h := &f.Health
	lines := []string{fmt.Sprintf("%s %s  %s  up %s", paint(a.out, bold, "specbox"), plain(h.Version), plain(h.URL), ageText(f.Time.Sub(h.Started).Milliseconds())),
		fmt.Sprintf("%s, %s alive with %s, %s", plural(h.Servers, "server"), plural(h.Sandboxes, "sandbox"), bytesText(h.Memory), plural(h.Sessions, "session"))}
	sections := []*section{sandboxSection(f.Sandboxes), conversationSection(f.Conversations), activitySection(&f.Activity)}
	if room > 0 {
		fit(sections, room-len(lines))
	}
	for _, s := range sections {
		lines = append(lines, "", paint(a.out, bold, s.title))
		if len(s.rows) == 0 {
			lines = append(lines, s.none)
			continue
		}
		var b strings.Builder
		_ = (&app{out: &b}).table(s.head, s.rows) // a Builder has no errors
		lines = append(lines, strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")...)
		if s.more > 0 {
			lines = append(lines, fmt.Sprintf("and %d more", s.more))
		}
	}
	wide := width(a.out)
	for i, l := range lines[2:] {
		if !strings.Contains(l, "\x1b") { // titles are short
			lines[2+i] = cut(l, wide)
		}
	}
	return lines
}

// cut cuts a line to n characters.
func cut(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n])
	}
	return s
}

// fit leaves rows out until all sections have room: each may have its share, and
// what one does not need the next ones have.
func fit(sections []*section, room int) {
	const around = 4 // a blank line, the title, the head, what is left out
	byLength := slices.Clone(sections)
	slices.SortStableFunc(byLength, func(a, b *section) int { return cmp.Compare(len(a.rows), len(b.rows)) })
	for i, s := range byLength {
		most := max(1, room/(len(byLength)-i)-around)
		if len(s.rows) > most {
			s.more = len(s.rows) - most
			s.rows = s.rows[:most]
		}
		room -= len(s.rows) + around
	}
}

func sandboxSection(all []control.Sandbox) *section {
	s := &section{title: "Sandboxes", none: "no sandbox is alive", head: []string{"SERVER", "TENANT", "SESSION", "STATE", "CAUSE", "SURE", "LEAD", "AGE", "IDLE", "MEMORY", "CALLS"}}
	for _, b := range all {
		owner, sure := short(b.Session, 12), ""
		if b.Unused {
			owner = "nobody yet"
		}
		if b.P > 0 {
			sure = fmt.Sprintf("%.0f%%", 100*b.P)
		}
		s.rows = append(s.rows, []string{b.Server, b.Tenant, owner, b.State, b.Cause, sure, leadText(b.Lead), ageText(b.Age), ageText(b.Idle), bytesText(b.Memory), strconv.FormatInt(b.Calls, 10)})
	}
	return s
}

// leadText tells a lead to people, "" being none.
func leadText(ms int64) string {
	if ms == 0 {
		return ""
	}
	return ageText(ms)
}

func conversationSection(all []control.Conversation) *section {
	s := &section{title: "Conversations with models", none: "none is known", head: []string{"CONVERSATION", "TENANT", "STREAMS", "JOINED BY", "SESSIONS", "STEPS", "EXPECTS", "QUIET"}}
	for _, c := range all {
		s.rows = append(s.rows, []string{short(cmp.Or(c.Key, c.Hash), 24), c.Tenant, strconv.Itoa(c.Streams), c.Joined, strconv.Itoa(len(c.Sessions)),
			strconv.Itoa(c.Steps), strings.Join(c.Expects, ", "), ageText(c.Idle)})
	}
	return s
}

func activitySection(a *control.Activity) *section {
	s := &section{
		title: fmt.Sprintf("What calls found in the last %d minutes", a.Window/time.Minute.Milliseconds()), none: "nothing was called or started",
		head: []string{"SERVER", "CALLS", "WARM", "LATE", "COLD", "FAILED", "WAITED", "LONGEST", "SAVED", "STARTED BY", "FOR NOBODY"},
	}
	all := control.ServerActivity{Server: "all"}
	rows := slices.Clone(a.Servers)
	for i := range rows {
		all.Add(&rows[i])
	}
	if len(rows) > 1 {
		rows = slices.Insert(rows, 0, all)
	}
	for _, r := range rows {
		s.rows = append(s.rows, []string{r.Server, strconv.Itoa(r.Warm + r.Late + r.Cold + r.Cached), strconv.Itoa(r.Warm), strconv.Itoa(r.Late), strconv.Itoa(r.Cold), strconv.Itoa(r.Failed),
			msText(r.Wait), msText(r.Longest), msText(r.Saved), countsText(r.Starts), countsText(r.Wasted)})
	}
	return s
}

// countsText tells counts by their names: "demand 3, intent 1".
func countsText(m map[string]int) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, fmt.Sprintf("%s %d", cmp.Or(k, "unknown"), m[k]))
	}
	return strings.Join(out, ", ")
}
