// Package dockertest starts Docker engines for tests, and gives them images.
package dockertest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"
)

// Connect returns a client of an engine that answers. An empty host is that of
// DOCKER_HOST, or of this machine.
func Connect(host string) (*client.Client, error) {
	opts := []client.Opt{client.FromEnv}
	if host != "" {
		opts = append(opts, client.WithHost(host))
	}
	api, err := client.New(opts...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if _, err = api.Ping(ctx, client.PingOptions{}); err != nil {
		return nil, errors.Join(err, api.Close())
	}
	return api, nil
}

// Labelled returns the containers with a label ("name" or "name=value"), each
// with its state. An engine that does not answer is one entry that says so.
func Labelled(host, label string) []string {
	api, err := Connect(host)
	if err != nil {
		return []string{err.Error()}
	}
	defer api.Close()
	found, err := api.ContainerList(context.Background(), client.ContainerListOptions{All: true, Filters: client.Filters{}.Add("label", label)})
	if err != nil {
		return []string{err.Error()}
	}
	var out []string
	for _, c := range found.Items {
		out = append(out, fmt.Sprint(c.Names, " ", c.State))
	}
	return out
}

// An Engine is a dockerd of a test's own, with all that it has in one folder. It
// can be stopped and started again.
type Engine struct {
	Dir  string
	Args []string // besides its own

	cmd  *exec.Cmd
	said bytes.Buffer
}

// Host returns what DOCKER_HOST is to be.
func (e *Engine) Host() string { return "unix://" + filepath.Join(e.Dir, "docker.sock") }

// Start starts the engine and waits until it answers. It needs dockerd, and root.
func (e *Engine) Start() error {
	path, err := exec.LookPath("dockerd")
	if err != nil {
		path = "/usr/sbin/dockerd" // which is in root's PATH alone, and not always there
	}
	e.cmd = exec.Command(path, append([]string{
		"--host", e.Host(), "--data-root", filepath.Join(e.Dir, "data"), "--exec-root", filepath.Join(e.Dir, "exec"),
		"--pidfile", filepath.Join(e.Dir, "pid"), "--storage-driver", "vfs", "--iptables=false", "--ip6tables=false",
	}, e.Args...)...)
	e.said.Reset()
	e.cmd.Stdout, e.cmd.Stderr = &e.said, &e.said
	if err := e.cmd.Start(); err != nil {
		return fmt.Errorf("dockerd (apt-get install docker.io, and be root): %w", err)
	}
	for deadline := time.Now().Add(time.Minute); ; <-time.After(50 * time.Millisecond) {
		api, err := Connect(e.Host())
		if err == nil {
			return api.Close()
		}
		if time.Now().After(deadline) {
			e.Stop()
			return fmt.Errorf("dockerd: %w: %s", err, e.said.String())
		}
	}
}

// Stop ends the engine. Its containers end with it, unless it was started with
// --live-restore.
func (e *Engine) Stop() {
	_ = e.cmd.Process.Signal(os.Interrupt)
	done := make(chan error, 1)
	go func() { done <- e.cmd.Wait() }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		_ = e.cmd.Process.Kill()
		<-done
	}
	_ = unix.Unmount(filepath.Join(e.Dir, "data"), unix.MNT_DETACH) // left by --live-restore
}

// Image gives an engine an image of one static program, as /server.
func Image(host, name, program string) error {
	b, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	var root bytes.Buffer
	w := tar.NewWriter(&root)
	err = w.WriteHeader(&tar.Header{Name: "server", Mode: 0o755, Size: int64(len(b))})
	if err == nil {
		_, err = w.Write(b)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return err
	}
	api, err := Connect(host)
	if err != nil {
		return err
	}
	defer api.Close()
	res, err := api.ImageImport(context.Background(), client.ImageImportSource{Source: &root, SourceName: "-"}, name,
		client.ImageImportOptions{Changes: []string{`ENTRYPOINT ["/server"]`, "WORKDIR /"}})
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, res)
	return errors.Join(err, res.Close())
}
