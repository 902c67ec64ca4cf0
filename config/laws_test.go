package config_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/specbox/specbox/config"
)

// parse reads YAML whose servers are those given.
func parse(t *testing.T, text string, environment ...string) (*config.Config, string) {
	t.Helper()
	c, faults := config.Parse("/srv/specbox.yaml", []byte(text), environ(strings.Join(environment, "\n")))
	var b strings.Builder
	for _, f := range faults {
		fmt.Fprintln(&b, f)
	}
	return c, b.String()
}

func TestVariables(t *testing.T) {
	environment := []string{"SET=value", "EMPTY=", "DOLLAR=${SET}"}
	for _, tt := range []struct{ in, want, fault string }{
		{"plain", "plain", ""},
		{"${SET}", "value", ""},
		{"a${SET}b${SET}c", "avaluebvaluec", ""},
		{"${EMPTY}", "", ""},
		{"${EMPTY:-x}", "x", ""},
		{"${NONE:-}", "", ""},
		{"${NONE:-a:-b}", "a:-b", ""},
		{"${NONE:-${SET}!}", "value!", ""},
		{"${NONE:-${ALSO_NONE:-deep}}", "deep", ""},
		{"${DOLLAR}", "${SET}", ""},
		{"$SET $5 $$ $", "$SET $5 $$ $", ""},
		{"$${SET}", "${SET}", ""},
		{"$$${SET}", "$${SET}", ""},
		{"${env:SET}", "value", ""},
		{"${userHome}/x", "/home/ada/x", ""},
		{"${workspaceFolder}", "/srv", ""},
		{"${workspaceFolderBasename}", "srv", ""},
		{"${NONE}", "", "variable NONE is not set"},
		{"${NONE:-${ALSO_NONE}}", "", "variable ALSO_NONE is not set"},
		{"${SET", "", "never closed"},
		{"${}", "", "no variable"},
		{"${a b}", "", "no variable"},
		{"${input:my-key}", "", "write ${MY_KEY}"},
	} {
		c, faults := parse(t, fmt.Sprintf("servers: {a: {command: x, env: {V: %q}}}", tt.in), environment...)
		if tt.fault != "" {
			if !strings.Contains(faults, tt.fault) || c.Servers[0].Unready == "" {
				t.Errorf("%s: faults %q, unready %q, want %q", tt.in, faults, c.Servers[0].Unready, tt.fault)
			}
			continue
		}
		if got := c.Servers[0].Env["V"]; got != tt.want || faults != "" {
			t.Errorf("%s: %q, want %q; %s", tt.in, got, tt.want, faults)
		}
	}
}

func TestVariablesWorkEverywhere(t *testing.T) {
	c, faults := parse(t, `
servers:
  a: {command: "${V}", args: ["${V}"], env: {E: "${V}"}, dir: "/usr/${V}", mounts: ["/usr/${V}:/in/${V}:rw", "${W:-/usr}:/w"]}
  b: {url: "https://${V}/mcp", headers: {H: "${V}"}}`, "V=share")
	if faults != "" {
		t.Fatal(faults)
	}
	a, b := c.Servers[0], c.Servers[1]
	got := fmt.Sprint(a.Command, a.Args, a.Env, a.Dir, a.Mounts, b.URL, b.Headers)
	want := "share[share] map[E:share]/usr/share[/usr/share:/in/share:rw /usr:/w]https://share/mcpmap[H:share]"
	if got != want {
		t.Errorf(" got %s\nwant %s", got, want)
	}
}

// A value that came from a variable is never printed, whichever way one tries.
func TestSecretsAreNeverPrinted(t *testing.T) {
	const secret = "hunter2-hunter2"
	text := `
tenants: [{name: t, tokens: ["${S}"]}]
servers:
  a: {command: "${S}", args: ["--x=${S}", "${S}"], env: {K: "${S}", L: literal-secret}, dir: "/${S}", mounts: ["/${S}", {path: "/${S}", at: "/${S}"}, "${S}:/b:c"]}
  b: {url: "https://${S}@x.example.com/${S}?k=${S}", headers: {H: "${S}"}}
  c: {url: "${S}", transport: sse}
  d: {command: "./${S}", isolation: none, envFile: "/nowhere/${S}"}
  e: {command: "${S} x y"}
  f: {command: "C:/${S}", args: ["C:/${S}", "--token", "${S}"]}
  g: {command: docker, args: [run, "${S}"]}
  h: {command: x, args: ["literal ghp_abcdefghijklmnop1234567890", "--password=literal-secret"], env: {A: "literal-secret${"}}
  i: {url: "https://u:literal-secret@x.example.com/?token=literal-secret"}`
	c, faults := parse(t, text, "S="+secret)
	var out bytes.Buffer
	fmt.Fprintln(&out, faults)
	enc := json.NewEncoder(&out)
	if err := enc.Encode(c); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(&out, nil))
	jsonLog := slog.New(slog.NewJSONHandler(&out, nil))
	for _, s := range c.Servers {
		fmt.Fprintf(&out, "%v %+v %#v %s %v\n", s, s, s, s, *s)
		r := s.Redacted()
		fmt.Fprintln(&out, r.Env, r.Headers, r.Command, r.Args, r.URL, r.Dir, r.Mounts, r.Network, s.Runs())
		log.Info("x", "server", s, "value", *s)
		jsonLog.Info("x", "server", s, "value", *s)
		if err := enc.Encode([]any{s, *s}); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Fprintf(&out, "%v %+v %s\n", c, c, *c)
	for _, s := range []string{secret, "literal-secret"} {
		for line := range strings.Lines(out.String()) {
			if strings.Contains(line, s) {
				t.Errorf("%s is shown: %s", s, line)
			}
		}
	}
	if c.Servers[0].Env["K"] != secret || c.Servers[0].Args[1] != secret {
		t.Error("the server itself does not get its secret")
	}
}

// What is said of a server is cleared of what came from variables, and of what
// looks like a secret; of ordinary words it is not.
func TestHidden(t *testing.T) {
	env := filepath.Join(t.TempDir(), "env")
	if err := os.WriteFile(env, []byte("FROM_FILE=file-secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, faults := parse(t, `
servers:
  a:
    command: ${PROGRAM}
    args: ["--root=${ROOT}", --token, literal-token, "--api-key=literal-key", plain-word, "${HOME}/docs"]
    env: {X: "${PAT}", GITHUB_PAT: literal-pat, MODE: production, Y: ghp_0123456789abcdefghij, Z: "${NONE:-default-value}"}
    env_file: `+env+`
    dir: ${ROOT}/work
    mounts: ["${MOUNT}"]
  b: {url: "https://u:url-pass@host/${PATH_KEY}/mcp?key=query-secret&other=${PAT}", headers: {Authorization: Bearer header-secret}}
`, "PROGRAM=/bin/program-secret", "ROOT=/root-secret", "PAT=pat-secret", "MOUNT=/mount-secret", "PATH_KEY=path-secret")
	if c == nil {
		t.Fatal(faults)
	}
	want := map[string]string{
		"/bin/program-secret": "${PROGRAM}", "/root-secret": "${ROOT}", "pat-secret": "${PAT}", "/mount-secret": "${MOUNT}",
		"file-secret": config.Hidden, "literal-token": config.Hidden, "literal-key": config.Hidden, "literal-pat": config.Hidden,
		"ghp_0123456789abcdefghij": config.Hidden,
	}
	if got := c.Servers[0].Hidden(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("of a local server is hidden\n%v, want\n%v", got, want)
	}
	want = map[string]string{
		"url-pass": config.Hidden, "query-secret": config.Hidden, "key=query-secret&other=pat-secret": config.Hidden,
		"path-secret": "${PATH_KEY}", "pat-secret": "${PAT}", "Bearer header-secret": config.Hidden, "header-secret": config.Hidden,
	}
	if got := c.Servers[1].Hidden(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("of a remote server is hidden\n%v, want\n%v", got, want)
	}
}

// A command line is visible to every process, also where a secret came into it
// from a variable.
func TestSecretsInArgumentsAreToldOf(t *testing.T) {
	for _, arg := range []string{"${API_KEY}", "x=${MY_TOKEN}", "${env:GITHUB_PAT}", "${DB_PASSWORD:-x}", "${SECRET_1}"} {
		_, faults := parse(t, fmt.Sprintf("servers: {a: {command: x, args: [%q]}}", arg),
			"API_KEY=v", "MY_TOKEN=v", "GITHUB_PAT=v", "DB_PASSWORD=v", "SECRET_1=v")
		if !strings.Contains(faults, "looks like a secret") {
			t.Errorf("%s: faults %q, want a warning", arg, faults)
		}
	}
	for _, arg := range []string{"${KEYBOARD}", "${HOME}/x", "${PATTERN}", "${MONKEY_ISLAND}"} {
		if _, faults := parse(t, fmt.Sprintf("servers: {a: {command: x, args: [%q]}}", arg), "KEYBOARD=v", "PATTERN=v", "MONKEY_ISLAND=v"); strings.Contains(faults, "secret") {
			t.Errorf("%s: faults %q", arg, faults)
		}
	}
}

// A tenant's name names a folder: none may lead out of it, or to that of others.
func TestTenantsNamesAreFolders(t *testing.T) {
	hash := "sha256:" + strings.Repeat("0", 64)
	for _, name := range []string{".", "..", ".shared", "a/b", ""} {
		if _, faults := parse(t, fmt.Sprintf("servers: {a: {command: x}}\ntenants: [{name: %q, tokens: [%q]}]", name, hash)); !strings.Contains(faults, "name") {
			t.Errorf("tenant %q: faults %q", name, faults)
		}
	}
}

func TestOneServersFaultIsItsOwn(t *testing.T) {
	c, _ := parse(t, "servers: {bad: {command: '${NONE}'}, good: {command: x}, box: {command: docker, args: [run, -i, img]}, plain: {command: docker, args: [run, img], isolation: none}}")
	var ready []string
	for _, s := range c.Servers {
		if s.Unready == "" {
			ready = append(ready, s.Name)
		}
	}
	if got := strings.Join(ready, " "); got != "good box plain" {
		t.Errorf("ready: %s", got)
	}
	_, faults := config.Parse("x.json", []byte(`{"mcpServers": {"bad": {"command": "${NONE}"}}}`), environ(""))
	if f := config.Fatal(faults); len(f) != 0 {
		t.Errorf("fatal: %v", f)
	}
	_, faults = config.Parse("x.yaml", []byte("listen: 0.0.0.0:80\nservers: {a: {command: x}}"), environ(""))
	if f := config.Fatal(faults); len(f) != 1 || f[0].Place.Line != 1 {
		t.Errorf("fatal: %v", f)
	}
}

func TestDefaults(t *testing.T) {
	c, faults := parse(t, "servers: {a: {command: x}, b: {url: 'https://x.example.com'}}")
	if faults != "" {
		t.Fatal(faults)
	}
	a, b := c.Servers[0], c.Servers[1]
	if c.Listen != "127.0.0.1:8484" || c.Limits.Request != 64<<20 || c.Limits.Message != 256<<20 || c.Limits.Sandboxes != 64 || c.Limits.Starts < 2 || c.Limits.Session != time.Hour {
		t.Errorf("%s %+v", c.Listen, c.Limits)
	}
	if a.Isolation != config.Process || b.Isolation != config.Remote || a.Scope != config.PerSession || a.Memory != 2<<30 || a.Pids != 512 ||
		a.StartTimeout != time.Minute || a.CallTimeout != 10*time.Minute || a.IdleTimeout != 5*time.Minute || a.StopGrace != 2*time.Second || a.Prefix != nil {
		t.Errorf("%+v", a.Policy)
	}
}

func TestSizesAndTimes(t *testing.T) {
	for in, want := range map[string]int64{
		"1048576000": 1048576000, "512MiB": 512 << 20, "512m": 512 << 20, "512M": 512 << 20, "1.5g": 3 << 29, "2 GiB": 2 << 30,
		"512MB": 512_000_000, "1TB": 1e12, "0": 0, "-1": 0, "MiB": 0, "1x": 0, "1mm": 0, "1e99": 0, "999999T": 0, "1.": 0, "": 0,
	} {
		c, faults := parse(t, fmt.Sprintf("servers: {a: {command: x, memory: %q}}", in))
		if got := c.Servers[0].Memory; want > 0 && (got != want || faults != "") || want == 0 && !strings.Contains(faults, "is no size") {
			t.Errorf("memory %q: %d, want %d; %s", in, got, want, faults)
		}
	}
	for in, want := range map[string]time.Duration{
		"30s": 30 * time.Second, "1h30m": 90 * time.Minute, "250ms": 250 * time.Millisecond,
		"30": 0, "0s": 0, "-1s": 0, "1d": 0, "": 0, "999999h": 0,
	} {
		c, faults := parse(t, fmt.Sprintf("servers: {a: {command: x, call_timeout: %q}}", in))
		if got := c.Servers[0].CallTimeout; want > 0 && (got != want || faults != "") || want == 0 && faults == "" {
			t.Errorf("call_timeout %q: %s, want %s; %s", in, got, want, faults)
		}
	}
	for in, want := range map[string]time.Duration{"60000": time.Minute, "60": time.Minute, "1000": time.Second, "'5m'": 5 * time.Minute} {
		c, faults := parse(t, fmt.Sprintf("mcpServers: {a: {command: x, timeout: %s}}", in))
		if got := c.Servers[0].CallTimeout; got != want || faults != "" {
			t.Errorf("timeout %s: %s, want %s; %s", in, got, want, faults)
		}
	}
}

func TestHosts(t *testing.T) {
	for in, want := range map[string]string{
		"API.Example.com": "api.example.com", "db.example.com:5432": "db.example.com:5432", "10.0.0.1": "10.0.0.1", "10.0.0.1:80": "10.0.0.1:80",
		"[::1]:80": "[::1]:80", "::1": "[::1]", "localhost:8080": "localhost:8080", "example.com.": "example.com", "my_host": "my_host",
		"": "", "a b": "", "*.x.com": "", "https://x.com": "", "x.com/path": "", "x.com:0": "", "x.com:http": "", "10.0.0.0/8": "", "-x.com": "", "[x]:1": "",
		"x..com": "", "none": "",
	} {
		c, faults := parse(t, fmt.Sprintf("servers: {a: {command: x, network: [%q]}}", in))
		got := strings.Join(c.Servers[0].Network.Hosts, " ")
		if got != want || (want == "") != strings.Contains(faults, "is no host") {
			t.Errorf("%q: %q, want %q; %s", in, got, want, faults)
		}
	}
}

func TestAllows(t *testing.T) {
	c, _ := parse(t, "servers: {a: {command: x, tools: [read_*, list, 'odd[name'], except: [read_secret]}, b: {command: x}}")
	for tool, want := range map[string]bool{"read_file": true, "list": true, "lists": false, "read_secret": false, "": false} {
		if got := c.Servers[0].Allows(tool); got != want {
			t.Errorf("%s: %v", tool, got)
		}
	}
	if !c.Servers[1].Allows("anything") {
		t.Error("no list must allow all")
	}
}

// Equal servers have equal hashes whatever their names; each thing that
// matters changes it, and so does the key.
func TestHash(t *testing.T) {
	key := []byte("0123456789abcdef")
	hash := func(s string) string {
		c, faults := parse(t, "servers: {"+s+"}", "S=one", "T=two")
		if strings.Contains(faults, "error") {
			t.Fatal(faults)
		}
		return c.Servers[0].Hash(key)
	}
	base := hash("a: {command: x, args: [b, c], env: {K: '${S}'}}")
	if len(base) != 32 || base != hash("other: {env: {K: one}, args: [b, c], command: x, idle_timeout: 1s, tools: [q], prefix: p}") {
		t.Error("equal servers differ")
	}
	seen := map[string]string{base: "base"}
	for _, s := range []string{
		"a: {command: x, args: [b, c], env: {K: '${T}'}}", "a: {command: x, args: [bc], env: {K: one}}", "a: {command: x, args: [b, c]}",
		"a: {command: y, args: [b, c], env: {K: one}}", "a: {command: x, args: [b, c], env: {K: one}, network: all}",
		"a: {command: x, args: [b, c], env: {K: one}, network: [h]}", "a: {command: x, args: [b, c], env: {K: one}, mounts: [/usr]}",
		"a: {command: x, args: [b, c], env: {K: one}, dir: /usr}", "a: {command: x, args: [b, c], env: {K: one}, isolation: none}",
		"a: {url: 'https://x.example.com', headers: {H: a}}", "a: {url: 'https://x.example.com', headers: {H: b}}",
	} {
		h := hash(s)
		if seen[h] != "" {
			t.Errorf("%s has the hash of %s", s, seen[h])
		}
		seen[h] = s
	}
	c, _ := parse(t, "servers: {a: {command: x}}")
	s := c.Servers[0]
	if s.Hash(key) == s.Hash([]byte("another")) || s.Hash(key) == s.Hash(key, "1.0") || s.Hash(key, "a", "b") == s.Hash(key, "ab") {
		t.Error("key and version must count")
	}
}

func TestEnvFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, ".vscode"), 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(".env", "# comment\nA=1\nexport B = \"two words\"\nC='x'\nHERE=file\n\nsecretline\n")
	write("server.py", "")
	write(".vscode/mcp.json", `{"servers": {"a": {"command": "python", "args": ["server.py"], "envFile": "${workspaceFolder}/.env", "env": {"HERE": "own"}}}}`)
	c, faults := config.Load(filepath.Join(dir, ".vscode/mcp.json"), environ(""))
	if c == nil {
		t.Fatal(faults)
	}
	if got := fmt.Sprint(c.Servers[0].Env); got != "map[A:1 B:two words C:x HERE:own]" {
		t.Error(got)
	}
	text := fmt.Sprint(faults)
	if len(faults) != 2 || !strings.Contains(text, "line 7 of envFile") || strings.Contains(text, "secretline") || !strings.Contains(text, "add dir: "+dir) {
		t.Error(text)
	}
}

func TestLoadSaysWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "empty"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "none"):  "no such file",
		dir:                         "is not a file",
		filepath.Join(dir, "empty"): "there are no servers here",
	} {
		c, faults := config.Load(path, environ(""))
		if c != nil || len(faults) != 1 || !strings.Contains(faults[0].String(), want) || len(config.Fatal(faults)) != 1 {
			t.Errorf("%s: %v, want %q", path, faults, want)
		}
	}
}

// A small file must not become a large one, nor a deep one.
func TestHostileFiles(t *testing.T) {
	bomb := "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
	for i := range 9 {
		bomb += fmt.Sprintf("a%d: &a%d [%s]\n", i+1, i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i), 10), ","))
	}
	for name, text := range map[string]string{
		"aliases":  bomb + "servers: {}",
		"brackets": strings.Repeat(`{"a":[`, 100_000),
		"flow":     strings.Repeat("[", 100_000),
		"loop":     "servers: &s {a: *s}",
		"tabs":     "servers:\n\ta: {}",
		"two":      "servers: {}\n---\nservers: {}",
		"keys":     "servers: {? [a] : b}",
	} {
		c, faults := config.Parse("x", []byte(text), environ(""))
		if c != nil || len(faults) != 1 || faults[0].Severity != config.Error || len(faults[0].Message) > 200 {
			t.Errorf("%s: %v", name, faults)
		}
	}
}

func FuzzParse(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.txtar")
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		_, data, _ = bytes.Cut(data, []byte(" --\n"))
		data, _, _ = bytes.Cut(data, []byte("\n-- "))
		f.Add(data)
	}
	f.Add([]byte(`{"mcpServers": {"a": {"command": "${S}", "args": ["${S}"], "url": "${S}"}}}`))
	f.Add([]byte("servers: {a: {mounts: ['${S}:/x', {path: '${S}'}], dir: '${S}', command: './${S}'}}"))
	const secret = "qZ7-secret/value of a:variable"
	getenv := func(string) (string, bool) { return secret, true }
	f.Fuzz(func(t *testing.T, data []byte) {
		c, faults := config.Parse("/srv/x", data, func(name string) (string, bool) {
			if name == "HOME" {
				return "/home/ada", true
			}
			return getenv(name)
		})
		var b bytes.Buffer
		for _, f := range faults {
			if f.Message == "" || f.Severity == "" || f.Place.File == "" {
				t.Errorf("a fault without content: %+v", f)
			}
			fmt.Fprintln(&b, f)
		}
		if c == nil && len(config.Fatal(faults)) == 0 {
			t.Error("no configuration and no reason")
		}
		if c != nil {
			if err := json.NewEncoder(&b).Encode(c); err != nil {
				t.Error(err)
			}
		}
		if strings.Contains(b.String(), secret) || strings.Contains(b.String(), "qZ7-secret") {
			t.Errorf("a value is shown: %s", b.String())
		}
		names := map[string]bool{}
		if c != nil {
			for _, s := range c.Servers {
				if names[s.Name] || config.Name(s.Name) != s.Name || s.Name == "" || len(s.Name) > 40 {
					t.Errorf("name %q", s.Name)
				}
				names[s.Name] = true
			}
		}
	})
}

func TestRuns(t *testing.T) {
	c, _ := parse(t, `
servers:
  a: {command: npx, args: [-y, "pkg name", "", "${S}", --token, hunter2hunter2]}
  b: {url: "https://x.example.com/mcp?key=hunter2", network: all}
  c: {command: x, network: [b.example.com, "a.example.com:1"]}`, "S=secret")
	for i, want := range []string{`npx -y "pkg name" "" ${S} --token •••`, "https://x.example.com/mcp?hidden", "x"} {
		if got := c.Servers[i].Runs(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if got := c.Servers[2].Network.String(); got != "b.example.com, a.example.com:1" {
		t.Error(got)
	}
}
