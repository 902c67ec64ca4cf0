// Command image makes container images of the real MCP servers, on this machine:
// nothing is pulled. An image holds the server as it is installed, the program
// that runs it, the libraries of that, and nothing else, not even a shell.
//
//	go run ./servers/image                  # those of Node.js and Go
//	go run ./servers/image everything git   # two of them
//
// They are called specbox/NAME:local. The engine is that of DOCKER_HOST, or of
// this machine.
package main

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/moby/moby/client"

	"github.com/specbox/specbox/servers"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := images(ctx, os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "image: %v\n", err)
		os.Exit(1)
	}
}

// able are the languages of servers that are a program, or a folder beside one.
var able = []string{"node", "go"}

func images(ctx context.Context, names []string) error {
	dir, err := servers.Dir()
	if err != nil {
		return err
	}
	all, err := servers.Select(names...)
	if err != nil {
		return err
	}
	api, err := client.New(client.FromEnv)
	if err != nil {
		return err
	}
	defer api.Close()
	for _, s := range all {
		if !slices.Contains(able, s.Language) {
			if len(names) > 0 {
				return fmt.Errorf("server %s is of %s: images are made of those of %s", s.Name, s.Language, strings.Join(able, " and "))
			}
			continue
		}
		began := time.Now()
		if err := servers.Install(ctx, dir, nil, s.Name); err != nil {
			return err
		}
		if err := makeImage(ctx, api, dir, s); err != nil {
			return fmt.Errorf("image of %s: %w", s.Name, err)
		}
		fmt.Printf("made %s in %.1f s\n", imageName(s), time.Since(began).Seconds())
	}
	return nil
}

func imageName(s servers.Server) string { return "specbox/" + s.Name + ":local" }

// makeImage gives the engine the root of an image while it is written.
func makeImage(ctx context.Context, api *client.Client, dir string, s servers.Server) error {
	command, changes, err := recipe(s)
	if err != nil {
		return err
	}
	r, w := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := writeRoot(w, filepath.Join(dir, s.Name), s, command)
		w.CloseWithError(err)
		written <- err
	}()
	res, err := api.ImageImport(ctx, client.ImageImportSource{Source: r, SourceName: "-"}, imageName(s), client.ImageImportOptions{Changes: changes})
	if err == nil {
		_, err = io.Copy(io.Discard, res)
		err = errors.Join(err, res.Close())
	}
	r.Close()
	if werr := <-written; werr != nil && !errors.Is(werr, io.ErrClosedPipe) {
		err = errors.Join(werr, err)
	}
	return err
}

// home is where the server lies in its image.
func home(s servers.Server) string { return "/srv/" + s.Name }

// recipe returns the command of the server in its image, and what else the image
// says.
func recipe(s servers.Server) (command, changes []string, err error) {
	for _, word := range s.Command {
		command = append(command, strings.NewReplacer("{install}", home(s), "{fixtures}", "/fixtures", "{data}", "/tmp").Replace(word))
	}
	entry, err := json.Marshal(command)
	if err != nil {
		return nil, nil, err
	}
	return command, []string{"ENTRYPOINT " + string(entry), "WORKDIR " + home(s), "USER 1000:1000", "ENV PATH=/usr/local/bin:/usr/bin:/bin"}, nil
}

// writeRoot writes the root of an image.
func writeRoot(to io.Writer, install string, s servers.Server, command []string) error {
	w := tar.NewWriter(to)
	root := root{tar: w, seen: map[string]bool{}}
	program := strings.Replace(command[0], home(s), install, 1)
	if !filepath.IsAbs(program) {
		found, err := exec.LookPath(program)
		if err != nil {
			return fmt.Errorf("%s is not in PATH: install it", program)
		}
		if err := root.file(found, "/usr/bin/"+command[0]); err != nil {
			return err
		}
		program = found
	}
	libraries, err := libraries(program)
	if err != nil {
		return err
	}
	for _, l := range libraries {
		if err := root.file(l, l); err != nil {
			return err
		}
	}
	for _, optional := range []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/ld.so.cache"} {
		if err := root.file(optional, optional); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := root.folder(install, home(s)); err != nil {
		return err
	}
	return w.Close()
}

// libraries returns the shared libraries of a program, none if it is static.
func libraries(program string) ([]string, error) {
	out, err := exec.Command("ldd", program).CombinedOutput()
	if err != nil {
		if strings.Contains(string(out), "not a dynamic executable") {
			return nil, nil
		}
		return nil, fmt.Errorf("ldd %s: %w: %s", program, err, out)
	}
	var all []string
	for word := range strings.FieldsSeq(string(out)) {
		if strings.HasPrefix(word, "/") && !slices.Contains(all, word) {
			all = append(all, word)
		}
	}
	return all, nil
}

// A root is the root of an image while it is written.
type root struct {
	tar  *tar.Writer
	seen map[string]bool
}

// file writes a file of this machine, without links, to a place in the image.
func (r *root) file(from, at string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || r.seen[at] {
		return err
	}
	r.seen[at] = true
	err = r.tar.WriteHeader(&tar.Header{Name: strings.TrimPrefix(at, "/"), Mode: int64(info.Mode().Perm() | 0o444), Size: info.Size()})
	if err != nil {
		return err
	}
	_, err = io.Copy(r.tar, f)
	return err
}

// folder writes a folder of this machine to a place in the image.
func (r *root) folder(from, at string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		inside := filepath.Join(at, rel)
		switch {
		case d.Type().IsRegular():
			return r.file(path, inside)
		case d.Type()&fs.ModeSymlink != 0:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return r.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: strings.TrimPrefix(inside, "/"), Linkname: to})
		}
		return nil
	})
}
