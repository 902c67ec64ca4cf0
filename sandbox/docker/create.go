package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"
	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/sandbox"
)

// What a container looks like from inside.
const (
	homeDir  = "/home/specbox"
	userID   = 1000 // of who runs where neither the spec nor the image names somebody else than root
	baseLang = "C.UTF-8"
	// scratch bounds each of /tmp, HOME and /dev/shm, together with the memory
	// limit, which holds for all.
	scratch = 1 << 30
)

// Weights of the processor.
const (
	leastShares = 2
	usualShares = 1024
)

// create makes a container and starts it. It leaves nothing behind when it
// fails.
func (b *Backend) create(ctx context.Context, id string, spec *sandbox.Spec, stderr io.Writer, idle bool) (*instance, error) {
	if err := b.hold(); err != nil {
		return nil, err
	}
	image, err := b.image(ctx, spec.Image)
	if err != nil {
		return nil, err
	}
	options, err := b.options(id, spec, image)
	if err != nil {
		return nil, err
	}
	if idle {
		options.HostConfig.CPUShares = leastShares
	}
	// What was asked of the engine it does, also when nobody waits for it any
	// more. So it is waited for, unless that takes long.
	asked, cancel := b.lenient(ctx)
	defer cancel()
	made, err := b.api.ContainerCreate(asked, options)
	if err != nil && strings.Contains(err.Error(), "mount option") { // Podman knows no owner of a tmpfs
		for at := range options.HostConfig.Tmpfs {
			options.HostConfig.Tmpfs[at], _, _ = strings.Cut(options.HostConfig.Tmpfs[at], ownerOption)
		}
		made, err = b.api.ContainerCreate(asked, options)
	}
	if err != nil {
		if !errdefs.IsConflict(err) && !errdefs.IsInvalidArgument(err) && !errdefs.IsNotFound(err) {
			_ = b.remove(options.Name, spec.Server) // it may have been made all the same
		}
		return nil, b.explainCreate(err, spec)
	}
	if err := b.checkProgram(asked, made.ID, spec, image); err != nil {
		_ = b.remove(made.ID, spec.Server)
		return nil, err
	}
	i := newInstance(b, id, spec, made.ID, stderr, idle)
	if err := i.start(asked); err != nil {
		i.abandon()
		return nil, b.explainCreate(err, spec)
	}
	if err := context.Cause(ctx); err != nil {
		i.abandon()
		return nil, err
	}
	go i.run()
	return i, nil
}

// lenient returns a context that ends some time after ctx does.
func (b *Backend) lenient(ctx context.Context) (context.Context, context.CancelFunc) {
	out, cancel := context.WithTimeout(context.WithoutCancel(ctx), startPatience)
	late := make(chan *time.Timer, 1)
	stop := context.AfterFunc(ctx, func() { late <- time.AfterFunc(patience, cancel) })
	return out, func() {
		if !stop() {
			(<-late).Stop()
		}
		cancel()
	}
}

// An image is what is used of one.
type image struct {
	id   string
	user string
	path string // PATH, as it sets it
	own  bool   // it has a program of its own

	checked bool // the engine would start programs in it to see how it is
}

// image looks an image up.
func (b *Backend) image(ctx context.Context, name string) (image, error) {
	found, err := b.api.ImageInspect(ctx, name)
	switch {
	case errdefs.IsNotFound(err):
		return image{}, fmt.Errorf("image %s is not on the Docker engine at %s, and SpecBox pulls none: docker pull %s, or build it, or correct the server's image", name, b.host, name)
	case err != nil:
		return image{}, fmt.Errorf("image %s: %w", name, b.explain(err))
	}
	out := image{id: found.ID, path: basePath}
	if c := found.Config; c != nil {
		out.user, out.own, out.checked = c.User, len(c.Entrypoint) > 0, c.Healthcheck != nil
		for _, v := range c.Env {
			if path, ok := strings.CutPrefix(v, "PATH="); ok {
				out.path = path
			}
		}
	}
	return out, nil
}

// basePath is where programs are looked for, unless somebody says otherwise.
const basePath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// checkProgram looks for the program that the spec names. The container's process
// 1 would start in any case, and end without a word in the protocol.
func (b *Backend) checkProgram(ctx context.Context, container string, spec *sandbox.Spec, im image) error {
	name := spec.Program
	if name == "" && !im.own && len(spec.Argv) > 0 {
		name = spec.Argv[0]
	}
	path := cmp.Or(spec.Env["PATH"], im.path)
	key := strings.Join([]string{im.id, name, path, spec.Dir}, "\x00")
	b.mu.Lock()
	known := b.programs[key]
	b.mu.Unlock()
	if name == "" || known {
		return nil
	}
	dirs := strings.Split(path, ":")
	if strings.Contains(name, "/") {
		dirs = []string{cmp.Or(spec.Dir, "/")}
		if filepath.IsAbs(name) {
			dirs = []string{"/"}
		}
	}
	for _, dir := range dirs {
		_, err := b.api.ContainerStatPath(ctx, container, client.ContainerStatPathOptions{Path: filepath.Join(dir, name)})
		if err == nil {
			b.mu.Lock()
			b.programs[key] = true
			b.mu.Unlock()
			return nil
		}
		if !errdefs.IsNotFound(err) {
			return b.explain(err)
		}
	}
	return fmt.Errorf("there is no program %q in image %s: correct the server's command, or leave it out if the image has one of its own", name, spec.Image)
}

// explainCreate says what to do about an error of creating or starting.
func (b *Backend) explainCreate(err error, spec *sandbox.Spec) error {
	text := strings.ToLower(err.Error())
	switch {
	case spec.Runtime != "" && strings.Contains(text, strings.ToLower(spec.Runtime)) && (strings.Contains(text, "unknown runtime") || strings.Contains(text, "invalid runtime")):
		return fmt.Errorf("the Docker engine at %s does not know the runtime %q: add it to the engine's daemon.json, or correct the server's runtime (%w)", b.host, spec.Runtime, err)
	case strings.Contains(text, "docker-init"):
		return fmt.Errorf("the Docker engine at %s has no docker-init, which ends what a server leaves running: install tini (%w)", b.host, err)
	}
	return b.explain(err)
}

// options returns the whole container.
func (b *Backend) options(id string, spec *sandbox.Spec, im image) (client.ContainerCreateOptions, error) {
	var out client.ContainerCreateOptions
	network, err := networkMode(spec.Network)
	if err != nil {
		return out, err
	}
	user, err := userOf(spec, im)
	if err != nil {
		return out, err
	}
	mounts, err := b.mounts(spec, user)
	if err != nil {
		return out, err
	}
	size := int64(scratch)
	if spec.Memory > 0 {
		size = min(size, spec.Memory)
	}
	yes := true
	host := &container.HostConfig{
		Init:           &yes,
		ReadonlyRootfs: true,
		CapDrop:        []string{"ALL"},
		SecurityOpt:    []string{"no-new-privileges"},
		NetworkMode:    network,
		IpcMode:        "private",
		CgroupnsMode:   "private",
		Runtime:        spec.Runtime,
		LogConfig:      container.LogConfig{Type: "none"},
		RestartPolicy:  container.RestartPolicy{Name: "no"},
		Mounts:         mounts,
		ShmSize:        size,
		Tmpfs:          map[string]string{"/tmp": tmpfs(size, user)},
		Resources: container.Resources{
			Memory: spec.Memory, MemorySwap: spec.Memory,
			NanoCPUs: int64(spec.CPUs * 1e9),
			Ulimits:  []*container.Ulimit{{Name: "core", Soft: 0, Hard: 0}},
		},
	}
	if spec.Home == "" {
		host.Tmpfs[homeDir] = tmpfs(size, user)
	}
	if network == "none" {
		host.DNS = []netip.Addr{netip.MustParseAddr("127.0.0.1")} // where nobody listens: refused at once
	}
	if spec.Pids > 0 {
		pids := int64(spec.Pids) + 1 // the engine's own process 1
		host.PidsLimit = &pids
	}
	env := map[string]string{"HOME": homeDir, "TMPDIR": "/tmp", "LANG": baseLang}
	maps.Copy(env, spec.Env)
	c := &container.Config{
		Image: spec.Image, Cmd: spec.Argv, User: user, WorkingDir: spec.Dir, Hostname: "specbox",
		OpenStdin: true, StdinOnce: true, AttachStdin: true, AttachStdout: true, AttachStderr: true,
		NetworkDisabled: network == "none",
		Labels:          map[string]string{LabelInstance: b.name, LabelServer: spec.Server, LabelSandbox: id},
	}
	for _, k := range slices.Sorted(maps.Keys(env)) {
		c.Env = append(c.Env, k+"="+env[k])
	}
	if im.checked {
		c.Healthcheck = &container.HealthConfig{Test: []string{"NONE"}}
	}
	if spec.Program != "" {
		c.Entrypoint = []string{spec.Program}
	}
	return client.ContainerCreateOptions{Name: "specbox-" + b.name + "-" + id, Config: c, HostConfig: host}, nil
}

// tmpfs returns the options of a file system in memory that everybody may write
// to. The engine gives it the mode of the folder that it finds there, so that it
// is the user's own besides, if the user is a number.
func tmpfs(size int64, user string) string {
	out := "rw,nosuid,nodev,exec,mode=1777,size=" + strconv.FormatInt(size, 10)
	if uid, gid, ok := numbers(user); ok {
		out += fmt.Sprintf("%s%d,gid=%d", ownerOption, uid, gid)
	}
	return out
}

// ownerOption begins what a tmpfs is told of its owner, which stands last.
const ownerOption = ",uid="

// numbers reads "uid" and "uid:gid". A name is none: only the image knows whose
// it is.
func numbers(user string) (uid, gid int, ok bool) {
	name, group, _ := strings.Cut(user, ":")
	uid, err := strconv.Atoi(name)
	if err != nil {
		return 0, 0, false
	}
	if gid, err = strconv.Atoi(group); err != nil {
		gid = uid
	}
	return uid, gid, true
}

func networkMode(n config.Network) (container.NetworkMode, error) {
	switch {
	case n.All:
		return "bridge", nil
	case len(n.Hosts) > 0:
		return "", errors.New("isolation docker cannot allow single hosts of the network: write network: none or network: all, or run the server with isolation process")
	}
	return "none", nil
}

// userOf says who runs the server: whom the spec names, or the image if that is
// not root, or nobody's number.
func userOf(spec *sandbox.Spec, im image) (string, error) {
	user := cmp.Or(spec.User, im.user)
	name, _, _ := strings.Cut(user, ":")
	root := name == "root" || strings.Trim(name, "0") == ""
	switch {
	case !root:
		return user, nil
	case spec.User != "":
		return "", fmt.Errorf("user %q is root, which no server is: name another one, or leave user out", spec.User)
	case os.Getuid() > 0: // whoever has the mounts
		return strconv.Itoa(os.Getuid()) + ":" + strconv.Itoa(os.Getgid()), nil
	}
	return strconv.Itoa(userID) + ":" + strconv.Itoa(userID), nil
}

// mounts returns what is mounted, and what covers what of that is hidden.
func (b *Backend) mounts(spec *sandbox.Spec, user string) ([]mount.Mount, error) {
	var out []mount.Mount
	for _, m := range spec.Mounts {
		at := filepath.Clean(cmp.Or(m.At, m.Path))
		switch _, err := os.Stat(m.Path); {
		case !filepath.IsAbs(m.Path) || !filepath.IsAbs(at):
			return nil, fmt.Errorf("mount %q: the path is not absolute: give the full path", cmp.Or(m.At, m.Path))
		case at == "/" || at == homeDir || at == "/tmp":
			return nil, fmt.Errorf("mount %q: it would hide what every sandbox needs at %s: give it another place", m.Path, at)
		case errors.Is(err, os.ErrNotExist):
			return nil, fmt.Errorf("mount %s does not exist: create it, or correct the mount", m.Path)
		case err != nil:
			return nil, fmt.Errorf("mount: %w", err)
		}
		out = append(out, mount.Mount{Type: mount.TypeBind, Source: m.Path, Target: at, ReadOnly: !m.Write})
		from := realPath(m.Path)
		for _, h := range b.hidden {
			if rel, err := filepath.Rel(from, h); err == nil && rel != ".." && !strings.HasPrefix(rel, "../") {
				out = append(out, mount.Mount{Type: mount.TypeTmpfs, Target: filepath.Join(at, rel), TmpfsOptions: &mount.TmpfsOptions{SizeBytes: 4096, Mode: 0o555}})
			}
		}
	}
	if spec.Home != "" {
		if err := own(spec.Home, user); err != nil {
			return nil, fmt.Errorf("the folder %s for its state: %w", spec.Home, err)
		}
		out = append(out, mount.Mount{Type: mount.TypeBind, Source: spec.Home, Target: homeDir})
	}
	return out, nil
}

// realPath returns a path without symbolic links, as far as it exists.
func realPath(p string) string {
	if real, err := filepath.EvalSymlinks(p); err == nil {
		return real
	}
	return filepath.Clean(p)
}

// own gives a folder to a user, where root made it for a number.
func own(dir, user string) error {
	info, err := os.Stat(dir)
	if err != nil || os.Geteuid() != 0 {
		return err
	}
	if !info.IsDir() {
		return errors.New("it is not a folder")
	}
	uid, gid, ok := numbers(user)
	if !ok {
		return nil
	}
	return os.Chown(dir, uid, gid)
}
