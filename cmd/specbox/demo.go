package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/specbox/specbox"
	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/control"
	"github.com/specbox/specbox/launcher"
)

const (
	demoIdle     = 5 * time.Second // instead of five minutes, so that it is seen
	demoFurther  = 20              // calls of a server after its first
	demoPatience = time.Minute     // for the answer to one request
	demoRounds   = 5               // of calls to have all servers alive together
)

// A demo is one run of `specbox demo`. It tells its story to out.
type demo struct {
	app
	dir     string // state folder of its own
	file    string // configuration
	servers []demoServer
	talk    demoTalk // of the agent with its model
	idle    time.Duration
	figures demoFigures
	calls   []int     // made of each server
	called  time.Time // when the last call of all of them ended
	pids    []int     // of all sandboxes that were seen alive
}

func (a *app) demoCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show SpecBox with six real servers, and measure it",
		Long: `Install six MCP servers written by others, serve them, and call them as a client
does: lists with none of them alive, first and further calls, memory, and what
stays when nobody calls. Then lead a conversation with a model, a replay, in which
they are started before they are called. All figures are measured while you look.

The first time the packages are installed, with network, into the folder demo of
the state folder; later ones need no network and take less than a minute. The
exit status is 0 if everything worked.`,
		Example: `  specbox demo
  specbox demo --json | jq '.servers[] | {server, first_ms, median_ms, memory_bytes}'`,
		Args: exactly(),
	}
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := demoLacks(cmd.Context()); err != nil {
			return err
		}
		dir, err := a.folder()
		if err != nil {
			return err
		}
		d := newDemo(a, filepath.Join(dir, "demo"), demoServers(runtime.GOARCH), demoIdle)
		if *asJSON {
			d.out = io.Discard
		}
		if err := d.run(cmd.Context()); err != nil {
			return err
		}
		if *asJSON {
			err = a.printJSON(d.figures)
		}
		if err == nil && !d.figures.OK {
			a.complain(fmt.Errorf("the demo has %s, the first: %s", plural(len(d.figures.Problems), "problem"), d.figures.Problems[0]), "")
			err = errSaid
		}
		return err
	}
	return cmd
}

// demoLacks tells what this machine lacks for the demo, or nothing.
func demoLacks(ctx context.Context) error {
	var lacks, fixes []string
	for _, f := range specbox.Check(ctx) {
		if required[f.Name] && !f.OK {
			lacks, fixes = append(lacks, f.Name+" ("+f.Detail+")"), append(fixes, f.Fix)
			break // the rest follows from it
		}
	}
	install := ""
	for _, n := range demoNeeds {
		if _, err := exec.LookPath(n.program); err != nil {
			lacks = append(lacks, n.program)
			install += " " + n.packages
		}
	}
	if install != "" {
		fixes = append(fixes, "apt-get install"+install)
	}
	if len(lacks) == 0 {
		return nil
	}
	return &control.Error{
		Message: "the demo cannot run here: this is missing: " + strings.Join(lacks, ", "),
		Hint:    strings.Join(append(fixes, "specbox doctor tells more"), "\n  "),
	}
}

func newDemo(a *app, dir string, servers []demoServer, idle time.Duration) *demo {
	d := &demo{app: *a, dir: dir, servers: servers, talk: usualTalk(), idle: idle, calls: make([]int, len(servers))}
	d.figures.Version, d.figures.State, d.figures.Cores = thisVersion().Version, dir, runtime.NumCPU()
	d.figures.Problems, d.figures.Install.Servers = []string{}, []string{}
	d.figures.Idle.Timeout = ms(idle)
	for _, s := range servers {
		d.figures.Servers = append(d.figures.Servers, demoRow{Server: s.name, Language: s.lang})
	}
	return d
}

// problem notes that something did not work.
func (d *demo) problem(format string, args ...any) {
	text := short(fmt.Sprintf(format, args...), 300)
	d.figures.Problems = append(d.figures.Problems, text)
	d.say("%s", paint(d.out, red, "! "+text))
}

// say tells one line of the story.
func (d *demo) say(format string, args ...any) {
	fmt.Fprintln(d.out, strings.TrimRight("  "+fmt.Sprintf(format, args...), " "))
}

// chapter begins the next part of the story.
func (d *demo) chapter(title string) { fmt.Fprintf(d.out, "\n%s\n\n", paint(d.out, bold, title)) }

// run shows all of it. What does not work of one server is a problem among the
// figures and not an error.
func (d *demo) run(ctx context.Context) error {
	began := time.Now()
	if err := control.MakeFolder(d.dir); err != nil {
		return err
	}
	var err error
	if d.file, err = layDemo(ctx, d.dir, d.servers); err != nil {
		return err
	}
	d.figures.Config = d.file
	fmt.Fprintf(d.out, "%s\n", paint(d.out, bold, fmt.Sprintf("SpecBox demo: %s, written by others, behind one door", plural(len(d.servers), "real MCP server"))))
	d.introduce()
	if err := d.install(ctx); err != nil {
		return err
	}
	if err := d.use(ctx); err != nil {
		return err
	}
	if err := d.foresee(ctx); err != nil {
		return err
	}
	d.figures.Took = ms(time.Since(began))
	d.figures.OK = len(d.figures.Problems) == 0
	d.conclude()
	return nil
}

// introduce tells what would run, as validate does.
func (d *demo) introduce() {
	d.chapter("1. What will run")
	d.say("%s", d.file)
	d.say("names them as Claude, Cursor and others have it in their files:")
	d.say("")
	var lines, policies []string
	longest := d.longest()
	for i, p := range examine(d.file, d.dir).Servers {
		d.figures.Servers[i].Runs = p.Runs
		lines = append(lines, fmt.Sprintf("%-*s  %s", longest, p.Name, plain(p.Runs)))
		policies = append(policies, fmt.Sprintf("isolation %s; network %s; scope %s.", isolationText(p.Isolation), p.Network, scopeText(p.Scope)))
	}
	same := len(slices.Compact(slices.Clone(policies))) == 1
	for i, line := range lines {
		d.say("%s", line)
		if !same {
			d.say("%-*s  %s", longest, "", policies[i])
		}
	}
	if same {
		d.say("")
		d.say("None of them says how it is to be isolated, so that the defaults hold:")
		for p := range strings.SplitSeq(strings.TrimSuffix(policies[0], "."), "; ") {
			what, text, _ := strings.Cut(p, " ")
			d.say("%-9s  %s", what, text)
		}
	}
}

func (d *demo) longest() int {
	n := 0
	for _, s := range d.servers {
		n = max(n, len(s.name))
	}
	return n
}

// install lets a SpecBox install what is missing and read what is offered, and
// stops it again.
func (d *demo) install(ctx context.Context) error {
	for _, p := range examine(d.file, d.dir).Servers {
		if p.Installed != nil && !*p.Installed {
			d.figures.Install.Servers = append(d.figures.Install.Servers, p.Name)
		}
	}
	d.chapter("2. Install them, once")
	if n := len(d.figures.Install.Servers); n > 0 {
		d.say("%s to install, with network, into a folder of its own each.", plural(n, "package"))
		d.say("What each server offers is read then, and stored. From now on the")
		d.say("programs run directly and offline, without npx or uvx asking a registry.")
		d.say("")
	}
	began := time.Now()
	r := newReporter(d.errs)
	failed := make(map[string]string)
	_, err := d.inside(ctx, specbox.Options{Report: func(p specbox.Progress) {
		if errors.Is(p.Err, context.Canceled) {
			return
		}
		if p.Err != nil {
			failed[p.Server] = fmt.Sprintf("%s: %v", p.Phase, p.Err)
		}
		r.report(progressOf(p))
	}}, nil, r, func(ctx context.Context, h *specbox.Runtime) error {
		select {
		case <-h.Prepared():
		case <-ctx.Done():
		}
		return ctx.Err()
	})
	r.close()
	if err != nil {
		return err
	}
	d.figures.Install.Took = ms(time.Since(began))
	entries, err := launcher.New(filepath.Join(d.dir, "packages")).List()
	if err != nil {
		return err
	}
	for _, e := range entries {
		d.figures.Install.Bytes += e.Size
	}
	d.tellInstalled(failed)
	if !slices.ContainsFunc(d.figures.Servers, func(r demoRow) bool { return r.Error == "" }) {
		return &control.Error{Message: "none of the demo's servers can run, the first because of " + short(d.figures.Servers[0].Error, 300), Hint: "without network they cannot be installed"}
	}
	return nil
}

// tellInstalled tells what is installed now, and what it is shown of the host.
func (d *demo) tellInstalled(failed map[string]string) {
	var rows [][]string
	for i, p := range examine(d.file, d.dir).Servers {
		row := &d.figures.Servers[i]
		row.Version = p.Version
		if row.Error = failed[p.Name]; row.Error == "" {
			row.Error = p.Error
		}
		shown := slices.DeleteFunc(p.Mounts, func(m string) bool { return strings.HasPrefix(m, filepath.Join(d.dir, "packages")+"/") })
		if len(shown) == 0 {
			shown = []string{"nothing"}
		}
		rows = append(rows, []string{p.Name, p.Version, strings.ReplaceAll(strings.Join(shown, ", "), "${workspaceFolder}", d.dir)})
	}
	if n := len(d.figures.Install.Servers); n > 0 {
		d.say("")
		d.say("That took %.1f s; the packages are %s.", d.figures.Install.Took/1000, bytesText(d.figures.Install.Bytes))
	} else {
		d.say("Everything is installed and read already (%s).", bytesText(d.figures.Install.Bytes))
	}
	d.say("What each is shown of this machine besides its programs, read-only:")
	d.say("")
	d.print([]string{"SERVER", "VERSION", "IS SHOWN"}, rows)
	for _, row := range d.figures.Servers {
		if row.Error != "" {
			d.problem("server %s: %s", row.Server, row.Error)
		}
	}
}

// print prints a table within the story.
func (d *demo) print(head []string, rows [][]string) {
	var b strings.Builder
	t := app{out: &b}
	if err := t.table(head, rows); err != nil {
		d.problem("%v", err)
	}
	for line := range strings.Lines(b.String()) {
		d.say("%s", strings.TrimRight(line, "\n"))
	}
}

// inside runs a SpecBox over the demo's configuration, with what change makes of
// it, and use with it. When it returns nothing of that SpecBox is alive; stopping it
// took so long.
func (d *demo) inside(ctx context.Context, o specbox.Options, change func(*config.Config), log io.Writer, use func(context.Context, *specbox.Runtime) error) (stopping time.Duration, err error) {
	c, faults := config.Load(d.file, os.LookupEnv)
	if fatal := config.Fatal(faults); len(fatal) > 0 {
		return 0, errors.New(fatal[0].String())
	}
	c.Listen = "127.0.0.1:0"
	if change != nil {
		change(c)
	}
	o.Config, o.State, o.Version = c, d.dir, thisVersion().Version
	if o.Log, err = d.logger(log); err != nil {
		return 0, err
	}
	h, err := specbox.New(o)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { // inside waits for it
		defer cancel()
		done <- h.Run(ctx)
	}()
	select {
	case err := <-done:
		return 0, err
	case <-h.Ready():
	}
	err = use(ctx, h)
	began := time.Now()
	cancel()
	err = errors.Join(err, <-done)
	return time.Since(began), err
}

// use starts SpecBox anew and is its client.
func (d *demo) use(ctx context.Context) error {
	d.chapter("3. Ask what there is, with nothing running")
	trace := newDemoTrace()
	began := time.Now()
	soon := func(c *config.Config) {
		for _, s := range c.Servers {
			s.IdleTimeout = d.idle
		}
	}
	stopping, err := d.inside(ctx, specbox.Options{Offline: true, Trace: trace}, soon, d.errs, func(ctx context.Context, h *specbox.Runtime) error {
		d.figures.Open = ms(time.Since(began))
		v := &visit{demo: d, house: h, trace: trace, client: newMCPClient(h.URL())}
		defer v.client.http.CloseIdleConnections()
		for _, part := range []func(context.Context) error{v.lists, v.call, v.alive, v.idleness, v.again} {
			if err := part(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	f := &d.figures.Shutdown
	f.Took, f.Left = ms(stopping), processesLeft(d.pids)
	files, err := os.ReadDir(filepath.Join(d.dir, "run"))
	f.Files = len(files)
	d.say("Then SpecBox was stopped, with %s alive: %s. Processes left: %d, files: %d.", plural(f.Alive, "sandbox"), msText(f.Took), f.Left, f.Files)
	if f.Left+f.Files > 0 {
		d.problem("%d processes and %d files of sandboxes are left after the end of SpecBox", f.Left, f.Files)
	}
	return err
}

// conclude tells how it went, and how to go on.
func (d *demo) conclude() {
	d.chapter("And now")
	if d.figures.OK {
		d.say("%s, in %.1f s.", paint(d.out, green, "Everything worked"), d.figures.Took/1000)
	} else {
		d.say("%s, told above, in %.1f s.", paint(d.out, red, plural(len(d.figures.Problems), "problem")), d.figures.Took/1000)
	}
	d.say("Serve the same servers yourself, and ask about them in another terminal:")
	d.say("")
	self := os.Args[0]
	d.say("%s --state %s serve -f %s", self, d.dir, d.file)
	d.say("%s --state %s tools ls", self, d.dir)
}
