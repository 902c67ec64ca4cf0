package process_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/sandbox/process"
)

func TestOnlyItsOwnProcessesAreVisible(t *testing.T) {
	p := start(t, newBackend(t, ""), spec(config.Process))
	// Process 1 is bubblewrap's, 2 the probe.
	if got, want := p.must("pids", probeArgs{}), "/proc/1 /proc/2"; got != want {
		t.Errorf("processes %q, want %q", got, want)
	}
	if got := p.must("list", probeArgs{Path: "/proc/self/fd"}); !slices.Equal(strings.Fields(got)[:3], []string{"0", "1", "2"}) {
		t.Errorf("descriptors %q", got)
	}
	for _, fd := range strings.Fields(p.must("list", probeArgs{Path: "/proc/self/fd"})) {
		if l, failed := p.call("link", probeArgs{Path: "/proc/self/fd/" + fd}); failed == "" && fd > "2" && !hasAny(l, "anon_inode:[event", "/proc") {
			t.Errorf("descriptor %s of the server is %s: it leaked in", fd, l)
		}
	}
	if got := p.must("link", probeArgs{Path: "/proc/self/exe"}); got != probePath {
		t.Errorf("the program is %q, want %q", got, probePath)
	}
}

// What is private is seen by no server, whatever is mounted: a folder above it, it
// itself, or the folder of the program. What is mounted from inside of it is.
func TestPrivateFoldersAreCovered(t *testing.T) {
	top := t.TempDir()
	private, link := filepath.Join(top, "state"), filepath.Join(t.TempDir(), "link")
	for _, d := range []string{"packages/one/bin", "packages/two", "home/other"} {
		if err := os.MkdirAll(filepath.Join(private, d), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(private, d, "f"), []byte(d), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(top, link); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(top, "beside"), []byte("beside"), 0o644); err != nil {
		t.Fatal(err)
	}
	b, err := process.New(process.Config{Run: filepath.Join(private, "run"), Private: []string{filepath.Join(link, "state")}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	inside := config.Mount{Path: filepath.Join(private, "packages/one")}
	for name, tt := range map[string]struct {
		mounts []config.Mount
		at     string // where the private folder would be
	}{
		"above":           {[]config.Mount{{Path: top}, inside}, private},
		"above, writable": {[]config.Mount{inside, {Path: top, Write: true}}, private},
		"above by a link": {[]config.Mount{{Path: link, At: "/data"}, inside}, "/data/state"},
		"itself":          {[]config.Mount{{Path: private, At: "/data"}, inside}, "/data"},
		"all":             {[]config.Mount{{Path: "/", At: "/host"}, inside}, filepath.Join("/host", private)},
	} {
		s := spec(config.Process)
		s.Mounts = append(s.Mounts, tt.mounts...)
		p := start(t, b, s)
		if got, failed := p.call("list", probeArgs{Path: tt.at}); failed == "" && got != "" && got != "packages" {
			t.Errorf("%s: the private folder shows %q", name, got)
		}
		for _, f := range []string{"packages/two/f", "home/other/f"} {
			if got, failed := p.call("read", probeArgs{Path: filepath.Join(tt.at, f)}); failed == "" {
				t.Errorf("%s: %s can be read: %q", name, f, got)
			}
		}
		if got := p.must("read", probeArgs{Path: filepath.Join(private, "packages/one/bin/f")}); got != "packages/one/bin" {
			t.Errorf("%s: what is mounted from inside holds %q", name, got)
		}
		if name == "above" {
			if got := p.must("read", probeArgs{Path: filepath.Join(top, "beside")}); got != "beside" {
				t.Errorf("beside it stands %q", got)
			}
		}
	}
}

func TestNoFileOfTheHostOutsideMounts(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	ro, rw, at := filepath.Join(dir, "ro"), filepath.Join(dir, "rw"), filepath.Join(dir, "at")
	for _, d := range []string{ro, rw, at} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(d, "f"), []byte(filepath.Base(d)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(secret, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := spec(config.Process)
	s.Mounts = []config.Mount{{Path: ro}, {Path: rw, Write: true}, {Path: at, At: "/data/in"}}
	p := start(t, newBackend(t, ""), s)

	home, _ := os.UserHomeDir()
	for _, path := range []string{secret, home, "/etc/shadow", "/etc/ssh", "/var/log", "/var/lib", "/sys/kernel", "/home/" + os.Getenv("USER") + "/.ssh", "/etc/hostname", at} {
		if text, failed := p.call("read", probeArgs{Path: path}); !hasAny(failed, "no such file", "is a directory") || text != "" {
			t.Errorf("read %s: %q %q", path, text, failed)
		}
		if _, failed := p.call("list", probeArgs{Path: path}); !hasAny(failed, "no such file") && path != "/home/" {
			t.Errorf("list %s: %q", path, failed)
		}
	}
	if got, want := p.must("list", probeArgs{Path: "/"}), "bin data dev etc home lib lib64 proc run sbin tmp usr var"; !subset(got, want+" lib32 libx32 nix gnu") {
		t.Errorf("the root holds %q", got)
	}
	for path, want := range map[string]string{ro + "/f": "ro", rw + "/f": "rw", "/data/in/f": "at"} {
		if got := p.must("read", probeArgs{Path: path}); got != want {
			t.Errorf("read %s: %q, want %q", path, got, want)
		}
	}
	for _, path := range []string{ro + "/f", ro + "/new", "/data/in/new", "/new", "/usr/new", "/etc/passwd", "/etc/new", "/dev/new", "/home/new", "/data/new", filepath.Dir(probePath) + "/new"} {
		if _, failed := p.call("write", probeArgs{Path: path, Data: "y"}); !hasAny(failed, "read-only", "permission denied") {
			t.Errorf("write %s: %q", path, failed)
		}
	}
	for _, path := range []string{rw + "/new", "/tmp/new", "/home/specbox/new", "/dev/shm/new", "/var/tmp/other", "/dev/null"} {
		p.must("write", probeArgs{Path: path, Data: "y"})
	}
	if b, err := os.ReadFile(rw + "/new"); err != nil || string(b) != "y" {
		t.Errorf("the host sees %q, %v of what was written", b, err)
	}
	if _, err := os.Stat("/tmp/new"); err == nil {
		t.Error("the sandbox wrote to the host's /tmp")
	}
}

func subset(got, want string) bool {
	all := strings.Fields(want)
	for _, g := range strings.Fields(got) {
		if !slices.Contains(all, g) {
			return false
		}
	}
	return true
}

func TestStateIsKeptWhereAskedFor(t *testing.T) {
	b := newBackend(t, "")
	for _, isolation := range []config.Isolation{config.Process, config.None} {
		home := t.TempDir()
		s := spec(isolation)
		s.Home = home
		p := start(t, b, s)
		inside := envOf(p)["HOME"]
		p.must("write", probeArgs{Path: inside + "/kept", Data: "k"})
		if err := p.inst.Close(); err != nil {
			t.Error(err)
		}
		if got, err := os.ReadFile(home + "/kept"); err != nil || string(got) != "k" {
			t.Errorf("%s: kept %q, %v", isolation, got, err)
		}
		s.Home = ""
		p = start(t, b, s)
		inside = envOf(p)["HOME"]
		if got := p.must("list", probeArgs{Path: inside}); got != "" {
			t.Errorf("%s: a private HOME holds %q", isolation, got)
		}
		if got := p.must("cwd", probeArgs{}); got != inside {
			t.Errorf("%s: it works in %q, want its HOME %q", isolation, got, inside)
		}
		p.must("write", probeArgs{Path: inside + "/x", Data: "k"})
		p.must("write", probeArgs{Path: envOf(p)["TMPDIR"] + "/x", Data: "k"})
	}
}

func envOf(p *peer) map[string]string {
	env := map[string]string{}
	for line := range strings.Lines(p.must("env", probeArgs{})) {
		k, v, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		env[k] = v
	}
	return env
}

func TestSecretsReachOneServerOnly(t *testing.T) {
	const one, two = "s3cret-of-one", "s3cret-of-two"
	t.Setenv("SPECBOX_TEST_HOST_SECRET", "s3cret-of-host")
	b, root := newBackendIn(t, "")
	sa, sb := spec(config.Process), spec(config.Process)
	sa.Env, sb.Env = map[string]string{"TOKEN": one}, map[string]string{"TOKEN": two}
	pa, pb := start(t, b, sa), start(t, b, sb)
	if got := envOf(pa); got["TOKEN"] != one {
		t.Errorf("its secret is %q", got["TOKEN"])
	} else {
		delete(got, "PWD") // bubblewrap's
		if len(got) != 5 || got["HOME"] != "/home/specbox" || got["TMPDIR"] != "/tmp" || got["LANG"] == "" || got["PATH"] == "" {
			t.Errorf("the environment is %v", got)
		}
	}
	for _, path := range []string{"/proc/1/environ", "/proc/1/cmdline", "/proc/self/environ", "/proc/self/mountinfo"} {
		if text, _ := pb.call("read", probeArgs{Path: path}); hasAny(text, one, "s3cret-of-host") {
			t.Errorf("%s shows another's secret", path)
		}
	}
	seen := 0
	for _, d := range allProc() {
		if b, _ := os.ReadFile(d + "/cmdline"); hasAny(string(b), one, two) {
			t.Errorf("%s/cmdline shows a secret: %q", d, b)
		}
		if b, _ := os.ReadFile(d + "/environ"); strings.Contains(string(b), one) {
			if exe, _ := os.Readlink(d + "/exe"); exe != probePath {
				t.Errorf("%s/environ of %s shows a secret", d, exe)
			}
			seen++
		}
	}
	if seen != 1 {
		t.Errorf("the secret is in the environment of %d processes, want 1", seen)
	}
	_ = filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if b, _ := os.ReadFile(path); hasAny(string(b), one, two) {
			t.Errorf("%s holds a secret", path)
		}
		return nil
	})
}

func allProc() []string {
	all, _ := filepath.Glob("/proc/[0-9]*")
	return all
}

func TestNoCapabilityAndNoNewPrivileges(t *testing.T) {
	b := newBackend(t, "")
	for _, hosts := range [][]string{nil, {"localhost:9"}} {
		s := spec(config.Process)
		s.Network.Hosts = hosts
		p := start(t, b, s)
		status := p.must("read", probeArgs{Path: "/proc/self/status"})
		for _, want := range []string{
			"CapInh:\t0000000000000000", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000",
			"CapBnd:\t0000000000000000", "CapAmb:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2",
			"Uid:\t1000\t1000\t1000\t1000", "Gid:\t1000\t1000\t1000\t1000",
		} {
			if !strings.Contains(status, want+"\n") {
				t.Errorf("hosts %v: /proc/self/status lacks %q:\n%s", hosts, want, status)
			}
		}
		if os.Geteuid() == 0 && !strings.Contains(status, "Groups:\t1000 \n") && !strings.Contains(status, "Groups:\t \n") && !strings.Contains(status, "Groups:\t\n") {
			t.Errorf("it has groups of the host:\n%s", status)
		}
	}
}

func TestDeniedSystemCalls(t *testing.T) {
	p := start(t, newBackend(t, ""), spec(config.Process))
	for name, want := range map[string]string{
		"unshare": "operation not permitted", "clone": "operation not permitted", "clone3": "function not implemented",
		"mount": "operation not permitted", "ptrace": "operation not permitted", "keyctl": "operation not permitted",
		"bpf": "operation not permitted", "userfaultfd": "operation not permitted", "perf_event_open": "operation not permitted",
		"io_uring_setup": "operation not permitted", "vsock": "address family not supported", "tiocsti": "operation not permitted",
		"x32": "function not implemented", "unix": "",
	} {
		if _, failed := p.call("syscall", probeArgs{Name: name}); (want == "" && failed != "") || !strings.Contains(failed, want) {
			t.Errorf("%s: %q, want %q", name, failed, want)
		}
	}
}

func TestKernelSettingsAreNotWritable(t *testing.T) {
	p := start(t, newBackend(t, ""), spec(config.Process))
	// Only opened, never written: they are the host's.
	var paths []string
	for _, pattern := range []string{"/proc/sys/kernel/*", "/proc/sys/vm/*", "/proc/sys/fs/*", "/proc/sys/net/ipv4/*", "/proc/irq/*/smp_affinity", "/proc/sysrq-trigger", "/proc/mtrr", "/proc/fs/*/*", "/proc/pressure/*", "/proc/acpi/*"} {
		found, _ := filepath.Glob(pattern)
		paths = append(paths, found...)
	}
	if len(paths) < 50 {
		t.Fatalf("only %d settings found: the test looks at the wrong places", len(paths))
	}
	for _, path := range paths {
		if st, err := os.Stat(path); err != nil || st.IsDir() {
			continue
		}
		if _, failed := p.call("openwrite", probeArgs{Path: path}); failed == "" {
			t.Errorf("%s can be opened for writing", path)
		}
	}
	for _, path := range []string{"/proc/kmsg", "/proc/kcore", "/proc/kpageflags", "/proc/kpagecount", "/proc/slabinfo", "/proc/vmallocinfo", "/proc/timer_list"} {
		if text, failed := p.call("read", probeArgs{Path: path}); failed == "" && text != "" {
			t.Errorf("%s can be read", path)
		}
	}
}

func TestNetwork(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello "+r.Host) }))
	defer web.Close()
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "other") }))
	defer other.Close()
	abstract, err := net.Listen("unix", "@specbox-test-"+strconv.Itoa(os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	defer abstract.Close()
	addr, otherAddr := web.Listener.Addr().String(), other.Listener.Addr().String()
	_, port, _ := net.SplitHostPort(addr)
	hostname, _ := os.Hostname()

	b := newBackend(t, "")
	refused := func(t *testing.T, p *peer, network, addr string) {
		t.Helper()
		begun := time.Now()
		text, failed := p.call("connect", probeArgs{Network: network, Addr: addr, Data: "GET / HTTP/1.0\r\n\r\n"})
		if failed == "" {
			t.Errorf("%s %s answered %q", network, addr, text)
		}
		if d := time.Since(begun); d > 2*time.Second {
			t.Errorf("%s %s was refused only after %v", network, addr, d)
		}
	}
	outside := func(t *testing.T, p *peer) {
		t.Helper()
		refused(t, p, "tcp", otherAddr)
		refused(t, p, "tcp", "1.1.1.1:443")
		refused(t, p, "udp", "1.1.1.1:53")
		refused(t, p, "tcp", "[2606:4700::1111]:443")
		refused(t, p, "tcp", "169.254.169.254:80")
		refused(t, p, "unix", "@specbox-test-"+strconv.Itoa(os.Getpid()))
		if text, failed := p.call("resolve", probeArgs{Name: "example.org"}); failed == "" {
			t.Errorf("example.org is %q", text)
		} else if strings.Contains(failed, "after") && len(failed) > 6 {
			var ms int
			if _, err := fmt.Sscanf(failed, "after %d ms", &ms); err != nil || ms > 1000 {
				t.Errorf("an unknown name was refused too late: %s", failed)
			}
		}
		if got := p.must("read", probeArgs{Path: "/proc/net/dev"}); strings.Count(got, ":") != 1 {
			t.Errorf("it has more interfaces than lo:\n%s", got)
		}
	}
	t.Run("none", func(t *testing.T) {
		p := start(t, b, spec(config.Process))
		refused(t, p, "tcp", addr)
		outside(t, p)
	})
	t.Run("allow-list", func(t *testing.T) {
		s := spec(config.Process)
		s.Network.Hosts = []string{"localhost:" + port, "allowed.test", "10.1.2.3:" + port, "[fd00::7]:81", addr}
		p := start(t, b, s)
		if got := p.must("get", probeArgs{Addr: "http://localhost:" + port}); got != "hello localhost:"+port {
			t.Errorf("an allowed host answered %q", got)
		}
		if got := p.must("get", probeArgs{Addr: "http://" + addr}); got != "hello "+addr {
			t.Errorf("an allowed address answered %q", got)
		}
		if got := p.must("resolve", probeArgs{Name: "allowed.test"}); got != "127.83.0.2" {
			t.Errorf("allowed.test is %q", got)
		}
		outside(t, p)
		refused(t, p, "tcp", "allowed.test:81")
		// Allowed, and not to be reached from here: the server's log says so.
		refused(t, p, "tcp", "allowed.test:443")
		eventually(t, "a word of the unreachable host", func() string {
			if strings.Contains(p.said.String(), "allowed.test:443") {
				return ""
			}
			return "only " + strconv.Quote(p.said.String())
		})
	})
	t.Run("all", func(t *testing.T) {
		s := spec(config.Process)
		s.Network.All = true
		p := start(t, b, s)
		if got := p.must("get", probeArgs{Addr: "http://" + addr}); got != "hello "+addr {
			t.Errorf("the network answered %q", got)
		}
		if hostname != "" {
			if host, err := os.ReadFile("/etc/hosts"); err == nil && p.must("read", probeArgs{Path: "/etc/hosts"}) != string(host) {
				t.Error("it does not have the host's /etc/hosts")
			}
		}
	})
}

func TestAllowedConnectionsCarryBytesAndEnd(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() { // echoes, after EOF
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b, _ := io.ReadAll(c)
			_, _ = c.Write(b)
			c.Close()
		}
	}()
	s := spec(config.Process)
	s.Network.Hosts = []string{l.Addr().String()}
	p := start(t, newBackend(t, ""), s)
	data := strings.Repeat("0123456789", 50_000)
	for range 3 {
		if got := p.must("connect", probeArgs{Network: "tcp", Addr: l.Addr().String(), Data: data}); got != data {
			t.Errorf("%d bytes came back of %d", len(got), len(data))
		}
	}
}

func TestBadSpecsAreExplained(t *testing.T) {
	b := newBackend(t, "")
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		argv   []string
		dir    string
		home   string
		mounts []config.Mount
		hosts  []string
		want   string
	}{
		"mount":       {mounts: []config.Mount{{Path: "/no/such"}}, want: `server "probe": mount /no/such does not exist`},
		"root":        {mounts: []config.Mount{{Path: "/"}}, want: "replace the whole root"},
		"proc":        {mounts: []config.Mount{{Path: "/proc/sys", Write: true}}, want: "a /proc"},
		"home's own":  {mounts: []config.Mount{{Path: dir, At: "/home"}}, want: "hide the HOME"},
		"relative":    {mounts: []config.Mount{{Path: "x"}}, want: "not absolute"},
		"program":     {argv: []string{"no-such-program"}, want: `no program "no-such-program" in PATH`},
		"path":        {argv: []string{"/no/such"}, want: "/no/such does not exist"},
		"mode":        {argv: []string{plain}, want: "not executable"},
		"folder":      {argv: []string{dir}, want: "is a folder"},
		"dir":         {dir: "/no/such", want: "not visible"},
		"home":        {home: "/no/such", want: "state is missing"},
		"pattern":     {hosts: []string{"*.example.org"}, want: "patterns"},
		"port":        {hosts: []string{"example.org:http"}, want: "port"},
		"setup fails": {mounts: []config.Mount{{Path: dir, At: "/usr/no/such"}}, want: "could not set the sandbox up"},
	} {
		t.Run(name, func(t *testing.T) {
			s := spec(config.Process)
			if tt.argv != nil {
				s.Argv = tt.argv
			}
			s.Dir, s.Home, s.Mounts, s.Network.Hosts = tt.dir, tt.home, tt.mounts, tt.hosts
			inst, err := b.Create(t.Context(), nextID(), s, nil)
			if err == nil {
				inst.Close()
				t.Fatal("it was started")
			}
			if !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), `"probe"`) {
				t.Errorf("the error is %q, want one with %q", err, tt.want)
			}
		})
	}
}
