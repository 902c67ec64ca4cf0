package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/specbox/specbox"
	"github.com/specbox/specbox/control"
)

// A visit is what the demo's client does while SpecBox runs.
type visit struct {
	*demo
	house  *specbox.Runtime
	trace  *demoTrace
	client *mcpClient
}

// sandboxes returns those that are alive, but not of servers that have failed:
// these may be tried again at any time.
func (v *visit) sandboxes(ctx context.Context) ([]control.Sandbox, error) {
	live, err := v.house.Control().PS(ctx)
	return slices.DeleteFunc(live, func(l control.Sandbox) bool { return v.failed(l.Server) }), err
}

// failed reports whether a server has failed so far.
func (v *visit) failed(server string) bool {
	return slices.ContainsFunc(v.figures.Servers, func(r demoRow) bool { return r.Server == server && r.Error != "" })
}

// lists asks for all lists, and looks whether a sandbox was needed.
func (v *visit) lists(ctx context.Context) error {
	v.say("SpecBox was stopped, and started anew on what it has stored: %s.", msText(v.figures.Open))
	v.say("A client connects and asks for everything:")
	v.say("")
	total := 0.0
	for _, l := range []struct{ method, member string }{
		{"initialize", ""}, {"tools/list", "tools"}, {"prompts/list", "prompts"},
		{"resources/list", "resources"}, {"resources/templates/list", "resourceTemplates"},
	} {
		began, n := time.Now(), 0
		err := v.patient(ctx, func(ctx context.Context) (err error) {
			if l.member == "" {
				return v.client.initialize(ctx)
			}
			n, err = v.client.list(ctx, l.method, l.member)
			return err
		})
		if err != nil {
			return err
		}
		took := ms(time.Since(began))
		total += took
		v.figures.Lists = append(v.figures.Lists, demoList{l.method, n, took})
		what := ""
		if l.member != "" {
			what = plural(n, strings.TrimSuffix(strings.TrimPrefix(l.member, "resource"), "s"))
		}
		if l.method == "resources/list" {
			what = plural(n, "resource")
		}
		v.say("%-26s %9s   %s", l.method, msText(took), strings.ToLower(what))
	}
	live, err := v.sandboxes(ctx)
	if err != nil {
		return err
	}
	for _, s := range live {
		v.figures.Memory.Before += s.Memory
	}
	starts := len(v.trace.of(func(e demoEvent) bool { return e.Kind == "start" && !v.failed(e.Server) }))
	v.say("")
	v.say("%s in all. Sandboxes alive: %d, started: %d.", msText(total), len(live), starts)
	if len(live)+starts > 0 {
		v.problem("lists are to be answered with no sandbox alive")
	}
	if v.figures.Lists[1].Items == 0 {
		v.problem("there are no tools")
	}
	return nil
}

// patient runs ask, but not for ever.
func (v *visit) patient(ctx context.Context, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, demoPatience, fmt.Errorf("no answer within %v", demoPatience))
	defer cancel()
	err := ask(ctx)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return err
}

// able calls f with each server that has worked so far.
func (v *visit) able(f func(i int, s demoServer, row *demoRow)) {
	for i, s := range v.servers {
		if row := &v.figures.Servers[i]; row.Error == "" {
			f(i, s, row)
		}
	}
}

// ask calls a tool of the i-th server, and returns the answer and how long it
// took. It may be called concurrently for different servers.
func (v *visit) ask(ctx context.Context, i int, c demoCall) (said string, took time.Duration, err error) {
	v.calls[i]++
	args := strings.ReplaceAll(c.args, "FOLDER", v.dir)
	began := time.Now()
	err = v.patient(ctx, func(ctx context.Context) (err error) {
		said, err = v.client.call(ctx, v.servers[i].name+"__"+c.tool, args)
		return err
	})
	took = time.Since(began)
	if err == nil && !strings.Contains(said, c.want) {
		err = fmt.Errorf("%s answered %q, which lacks %q", c.tool, short(said, 200), c.want)
	}
	return said, took, err
}

// call calls each server for the first time, and then some more.
func (v *visit) call(ctx context.Context) error {
	v.chapter("4. Call each of them")
	v.say("The first call finds no sandbox: one is started, and answers. %d more", demoFurther)
	v.say("calls, one after the other, find it running.")
	v.say("")
	v.able(func(i int, s demoServer, row *demoRow) {
		if err := v.callServer(ctx, i, s, row); err != nil && ctx.Err() == nil {
			row.Error = err.Error()
			v.problem("server %s: %v", s.name, err)
		}
	})
	return ctx.Err()
}

func (v *visit) callServer(ctx context.Context, i int, s demoServer, row *demoRow) error {
	_, took, err := v.ask(ctx, i, s.calls[0])
	if err != nil {
		return err
	}
	row.First = ms(took)
	last := s.calls[len(s.calls)-1]
	var times []time.Duration
	for range demoFurther {
		said, took, err := v.ask(ctx, i, last)
		if err != nil {
			return err
		}
		times = append(times, took)
		row.Answer = lineWith(said, last.want)
	}
	row.Further, row.Median = len(times), ms(median(times))
	calls := v.callsOf(ctx, i)
	if len(calls) < v.calls[i] {
		return fmt.Errorf("the trace has %d of %d calls", len(calls), v.calls[i])
	}
	row.Outcome, row.Start = calls[0].Outcome, ms(calls[0].Provision)
	for _, e := range calls[1:] {
		if e.Outcome == "warm" {
			row.Warm++
		}
	}
	v.say("%-*s  %s %s", v.longest(), s.name, last.tool, strings.ReplaceAll(last.args, "FOLDER", v.dir))
	v.say("%-*s  %s", v.longest(), "", short(row.Answer, 90))
	return nil
}

// callsOf returns what the trace has of the calls of the i-th server.
func (v *visit) callsOf(ctx context.Context, i int) []demoEvent {
	ctx, cancel := context.WithTimeout(ctx, demoPatience)
	defer cancel()
	return v.trace.await(ctx, v.calls[i], func(e demoEvent) bool { return e.Kind == "call" && e.Server == v.servers[i].name })
}

// lineWith returns the line of s that has want in it.
func lineWith(s, want string) string {
	for line := range strings.Lines(s) {
		if strings.Contains(line, want) {
			return strings.Trim(line, " \t\r\n,")
		}
	}
	return strings.TrimSpace(s)
}

// alive calls all servers at once and looks at what is alive then.
func (v *visit) alive(ctx context.Context) error {
	v.chapter("5. What is alive now")
	for round, warm := 0, false; !warm && round < demoRounds; round++ { // on a slow machine the first ones may be idle and gone
		warm = v.atOnce(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	live, err := v.sandboxes(ctx)
	if err != nil {
		return err
	}
	v.able(func(_ int, s demoServer, row *demoRow) {
		for _, l := range live {
			if l.Server == s.name {
				v.look(row, l)
			}
		}
		if row.PID == 0 {
			row.Error = "its sandbox is not alive after a call"
			v.problem("server %s: %s", s.name, row.Error)
		}
	})
	if status, err := os.ReadFile("/proc/self/status"); err == nil {
		if kb, err := strconv.ParseInt(strings.TrimSuffix(statusField(status, "VmRSS"), " kB"), 10, 64); err == nil {
			v.figures.Memory.SpecBox = kb << 10
		}
	}
	v.tellAlive()
	return nil
}

// atOnce calls all servers at the same time. It reports whether all were ready.
func (v *visit) atOnce(ctx context.Context) (warm bool) {
	errs := make([]error, len(v.servers))
	var work sync.WaitGroup
	began := time.Now()
	v.able(func(i int, s demoServer, _ *demoRow) {
		work.Go(func() { _, _, errs[i] = v.ask(ctx, i, s.calls[len(s.calls)-1]) })
	})
	work.Wait()
	v.called = time.Now()
	v.figures.AtOnce = ms(v.called.Sub(began))
	warm = true
	v.able(func(i int, s demoServer, row *demoRow) {
		if errs[i] != nil && ctx.Err() == nil {
			row.Error = errs[i].Error()
			v.problem("server %s: %v", s.name, errs[i])
			return
		}
		calls := v.callsOf(ctx, i)
		warm = warm && len(calls) > 0 && calls[len(calls)-1].Outcome == "warm"
	})
	return warm
}

// look notes what is to be known of a sandbox that is alive.
func (v *visit) look(row *demoRow, l control.Sandbox) {
	v.pids = append(v.pids, l.PID)
	row.PID, row.Memory, row.Backend = l.PID, l.Memory, l.Backend
	v.figures.Memory.All += l.Memory
	kept, err := keptApart(l.PID)
	if err != nil {
		return // another user may look
	}
	row.Kept = kept
	for _, lack := range kept.lacks() {
		v.problem("server %s %s", row.Server, lack)
	}
}

func (v *visit) tellAlive() {
	var rows [][]string
	n, seen := 0, 0
	for _, r := range v.figures.Servers {
		if r.Error != "" {
			rows = append(rows, []string{r.Server, r.Language, "failed", "", "", "", "", ""})
			continue
		}
		n++
		further := msText(r.Median)
		if r.Warm < r.Further {
			further += fmt.Sprintf(" (%d not warm)", r.Further-r.Warm)
		}
		isolation := r.Backend
		if r.Kept != nil {
			seen++
			isolation += ", " + plural(len(r.Kept.Namespaces), "namespace")
		}
		rows = append(rows, []string{r.Server, r.Language, msText(r.First) + " " + r.Outcome, msText(r.Start), further, bytesText(r.Memory), strconv.Itoa(r.PID), isolation})
	}
	v.print([]string{"SERVER", "WRITTEN IN", "FIRST CALL", "ITS START", "NEXT CALLS", "MEMORY", "PID", "ISOLATION"}, rows)
	v.say("")
	v.say("First call: cold means that no sandbox was there. The program's files were in")
	v.say("the page cache, since they were read before. Next calls: the median of %d, all", demoFurther)
	v.say("warm unless said. Calls are timed by the client, starts by the trace; memory")
	v.say("and pid are those of specbox ps.")
	if seen > 0 && seen == n && len(v.figures.Problems) == 0 {
		v.say("Linux says of each process: user, mount, pid, ipc, uts and network namespaces")
		v.say("of its own, no capabilities, none to gain, system calls filtered.")
	}
	v.say("")
	v.say("One more call of each, all at once: %s.", msText(v.figures.AtOnce))
	v.say("%s alive together: %s. Kept resident they take that all the time, for", plural(n, "server"), bytesText(v.figures.Memory.All))
	v.say("each session. Before the first call it was %s.", bytesText(v.figures.Memory.Before))
	if v.figures.Memory.SpecBox > 0 {
		v.say("SpecBox itself, with the demo's client in it, takes %s.", bytesText(v.figures.Memory.SpecBox))
	}
}

// idleness waits until nobody has called for long enough.
func (v *visit) idleness(ctx context.Context) error {
	v.chapter("6. Nothing stays")
	v.say("Nobody calls. The demo stops a server after %v of that (usually 5 min) ...", v.idle)
	f := &v.figures.Idle
	patience, cancel := context.WithTimeout(ctx, v.idle+demoPatience)
	defer cancel()
	ends := v.trace.await(patience, len(v.pids), func(e demoEvent) bool {
		return e.Kind == "stop" && e.Detail == "idle" && e.Time.After(v.called) && !v.failed(e.Server)
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	f.Stopped = len(ends)
	for _, e := range ends {
		f.Last = max(f.Last, ms(e.Time.Sub(v.called)))
	}
	live, err := v.sandboxes(ctx)
	if err != nil {
		return err
	}
	f.Alive, f.Left = len(live), processesLeft(v.pids)
	for _, l := range live {
		v.figures.Memory.After += l.Memory
	}
	v.say("%s stopped after %.1f s. Sandboxes alive: %d, processes left: %d, memory: %s.", plural(f.Stopped, "sandbox"), f.Last/1000, f.Alive, f.Left, bytesText(v.figures.Memory.After))
	if f.Alive+f.Left > 0 || f.Stopped < len(v.pids) {
		v.problem("what is idle is to be stopped: of %d, %d were; %d sandboxes and %d processes are left", len(v.pids), f.Stopped, f.Alive, f.Left)
	}
	return nil
}

// again calls a server once more, so that SpecBox ends with a sandbox alive.
func (v *visit) again(ctx context.Context) error {
	i := -1
	v.able(func(n int, _ demoServer, _ *demoRow) { i = n })
	if i < 0 {
		return nil
	}
	s := v.servers[i]
	_, took, err := v.ask(ctx, i, s.calls[len(s.calls)-1])
	if err != nil {
		v.problem("server %s, called again: %v", s.name, err)
		return ctx.Err()
	}
	f := &v.figures.Again
	f.Server, f.Took = s.name, ms(took)
	if calls := v.callsOf(ctx, i); len(calls) > 0 {
		f.Outcome = calls[len(calls)-1].Outcome
	}
	v.say("The next call, of %s, is %s again: %s.", s.name, f.Outcome, msText(f.Took))
	live, err := v.sandboxes(ctx)
	if err != nil {
		return err
	}
	v.figures.Shutdown.Alive = len(live)
	for _, l := range live {
		v.pids = append(v.pids, l.PID)
	}
	return nil
}
