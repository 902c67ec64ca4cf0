package launcher_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/launcher"
)

func TestDockerRunLines(t *testing.T) {
	t.Setenv("FROM_OUTSIDE", "outer")
	for _, tt := range []struct {
		server string
		want   string // the program
		notes  string // stand in its notes, parted by |
	}{
		{"{command: docker, args: [run, -i, --rm, img]}", "img [] env map[]", ""},
		{"{command: docker, args: [run, -i, --rm, --init, --name, n, --pull=always, -l, a=b, img:1, a, -b]}", "img:1 [a -b] env map[]", ""},
		{"{command: podman, args: [container, run, -it, img]}", "img [] env map[]", ""},
		{"{command: docker, args: [run, -e, A, -e, B=c=d, --env=FROM_OUTSIDE, img], env: {A: x, UNNAMED: y, PATH: /bin}}", "img [] env map[A:x B:c=d FROM_OUTSIDE:outer]", ""},
		{"{command: docker, args: [run, -e, NOWHERE, img]}", "img [] env map[]", "wants NOWHERE, which is not set"},
		{"{command: docker, args: [run, -v, /a:/b, --volume=/c:/d:ro, -v, /e:/f:z, img]}", "img [] env map[] mounts [/a:/b:rw /c:/d /e:/f:rw]", ""},
		{"{command: docker, args: [run, --mount, 'type=bind,src=/a,dst=/b', --mount, 'type=bind,source=/c,target=/d,readonly', img]}", "img [] env map[] mounts [/a:/b:rw /c:/d]", ""},
		{"{command: docker, args: [run, -v, data:/data, -v, /anonymous, -v, '/var/run/docker.sock:/s', --mount, 'src=vol,dst=/x', img]}", "img [] env map[]",
			"data is not mounted|/anonymous is not mounted|whoever"},
		{"{command: docker, args: [run, -u, 7:8, -w, /app, --runtime=runsc, --entrypoint, node, img, x.js]}", "img [x.js] env map[] entrypoint node user 7:8 dir /app runtime runsc", ""},
		{"{command: docker, args: [run, -u, 7, --runtime=runc, img], user: '9', runtime: kata}", "img [] env map[] user 9 runtime kata", ""},
		{"{command: docker, args: [run, --privileged, --cap-add=ALL, -p, '80:80', --device, /dev/x, --security-opt, seccomp=unconfined, img]}", "img [] env map[]",
			"--privileged is not given|--cap-add is not given|-p is not given|--device is not given|--security-opt seccomp=unconfined is not given"},
		{"{command: docker, args: [run, --network, host, -m, 1g, --cpus=2, --pids-limit, '5', --env-file, f, img]}", "img [] env map[]",
			"--network has no effect: write network|-m has no effect: write memory|--cpus has no effect: write cpus|write pids|write env_file"},
		{"{command: docker, args: [run, --network=none, --security-opt, no-new-privileges, --cap-drop, ALL, --read-only, img]}", "img [] env map[]", ""},

		{"{image: 'a:1'}", "a:1 [] env map[]", ""},
		{"{image: a, command: node, args: [x.js, /etc], dir: /app, user: u, runtime: runsc, env: {A: b}}", "a [x.js /etc] env map[] entrypoint node user u dir /app runtime runsc", ""},
	} {
		p, err := resolve(t, t.TempDir(), tt.server)
		if err != nil {
			t.Errorf("%s: %v", tt.server, err)
			continue
		}
		if got := container(p); got != tt.want {
			t.Errorf("%s:\n got %s\nwant %s", tt.server, got, tt.want)
		}
		notes := strings.Join(p.Notes, "; ")
		for want := range strings.SplitSeq(strings.ReplaceAll(tt.notes, "whoever", "who reaches such a socket"), "|") {
			if !strings.Contains(notes, want) || want == "" && notes != "" {
				t.Errorf("%s: notes %q, want %q", tt.server, notes, want)
			}
		}
	}
}

// container writes down what a program is as a container.
func container(p *launcher.Program) string {
	out := fmt.Sprintf("%s %v env %v", p.Image, p.Argv, p.Env)
	if p.Env == nil {
		out = fmt.Sprintf("%s %v env map[]", p.Image, p.Argv)
	}
	for _, f := range [][2]string{{"entrypoint", p.Entrypoint}, {"user", p.User}, {"dir", p.Dir}, {"runtime", p.Runtime}} {
		if f[1] != "" {
			out += " " + f[0] + " " + f[1]
		}
	}
	if len(p.Mounts) > 0 {
		var all []string
		for _, m := range p.Mounts {
			all = append(all, m.String())
		}
		out += fmt.Sprintf(" mounts %v", all)
	}
	return out
}

// A docker run line that is to run as written is a program like any other.
func TestDockerRunLineWithoutIsolation(t *testing.T) {
	c, _ := config.Parse("/srv/x.yaml", []byte("servers: {s: {command: docker, args: [run, -i, img], isolation: none}}"), func(string) (string, bool) { return "", false })
	p, err := launcher.Resolve(c.Servers[0], launcher.New(t.TempDir()))
	if err != nil { // there is no docker here
		if !strings.Contains(err.Error(), "docker") {
			t.Error(err)
		}
		return
	}
	if p.Image != "" || !slices.Equal(p.Argv[1:], []string{"run", "-i", "img"}) {
		t.Errorf("%+v", p)
	}
}
