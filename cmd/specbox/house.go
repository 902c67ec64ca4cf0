package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/specbox/specbox"
	"github.com/specbox/specbox/config"
	"github.com/specbox/specbox/control"
)

// A house is a runtime with what must be closed after it.
type house struct {
	*specbox.Runtime
	config *config.Config
	trace  *os.File // nil where none is written
}

// An opening says how to build a house.
type opening struct {
	file    string // configuration
	listen  string // "" is the address of the configuration
	trace   string // file; "" is none
	offline bool
}

// open builds a house that logs and reports to r. It starts nothing. The
// caller closes it after it ran.
func (a *app) open(r *reporter, o opening) (*house, error) {
	log, err := a.logger(r)
	if err != nil {
		return nil, err
	}
	c, err := a.load(r, o.file)
	if err != nil {
		return nil, err
	}
	if o.listen != "" {
		if c.Listen, err = address(o.listen, len(c.Tenants) > 0); err != nil {
			return nil, err
		}
	}
	dir, err := a.folder()
	if err != nil {
		return nil, err
	}
	if err := control.MakeFolder(dir); err != nil { // before the trace, which may be in it
		return nil, err
	}
	h := &house{config: c}
	opts := specbox.Options{
		Config: c, State: dir, Offline: o.offline, Log: log, Version: thisVersion().Version,
		Report: func(p specbox.Progress) {
			if !errors.Is(p.Err, context.Canceled) { // nobody failed: the house is closing
				r.report(progressOf(p))
			}
		},
	}
	if o.trace != "" {
		if h.trace, err = os.OpenFile(o.trace, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600); err != nil {
			return nil, &control.Error{Message: fmt.Sprintf("write the trace: %v", err), Hint: "name another file with --trace FILE", Cause: err}
		}
		opts.Trace = h.trace
	}
	if h.Runtime, err = specbox.New(opts); err != nil {
		return nil, h.close(err)
	}
	return h, nil
}

// close closes what open opened, after the house ended with err.
func (h *house) close(err error) error {
	if h.trace == nil {
		return err
	}
	if cerr := h.trace.Close(); err == nil {
		err = cerr
	}
	return err
}

// address checks an address to listen on. One that others can reach needs
// tokens.
func address(s string, tokens bool) (string, error) {
	host, _, err := net.SplitHostPort(s)
	if err != nil {
		return "", &usageError{fmt.Sprintf("--listen %s is no address: %v", s, err), "write HOST:PORT, for instance 127.0.0.1:8484"}
	}
	ip, err := netip.ParseAddr(host)
	if host == "localhost" || err == nil && ip.Unmap().IsLoopback() || tokens {
		return s, nil
	}
	return "", &control.Error{
		Message: fmt.Sprintf("--listen %s can be reached by others, and there are no tenants", s),
		Hint:    "make a token with specbox token and add a tenant to the configuration, or listen on 127.0.0.1",
	}
}

// progressOf is p as the operator's door tells it.
func progressOf(p specbox.Progress) control.Progress {
	c := control.Progress{Server: p.Server, Phase: p.Phase, Done: float64(p.Done), Total: float64(p.Total), Message: p.Message}
	if p.Err != nil {
		c.Error = p.Err.Error()
	}
	return c
}

// load reads the configuration file. Its errors and warnings go to w; with an
// error that concerns no single server it cannot be used.
func (a *app) load(w *reporter, file string) (*config.Config, error) {
	if file == "" {
		return nil, &usageError{"no configuration is named", "name one with -f FILE: an mcpServers JSON, or SpecBox's YAML"}
	}
	c, faults := config.Load(file, os.LookupEnv)
	for _, f := range faults {
		if f.Severity != config.Note {
			fmt.Fprintln(w, a.faultText(f))
		}
	}
	if fatal := config.Fatal(faults); len(fatal) > 0 || c == nil {
		return nil, &control.Error{Message: fmt.Sprintf("%s cannot be served because of %s, told above", file, plural(len(fatal), "error")), Hint: "specbox validate " + file + " tells more"}
	}
	return c, nil
}

// faultText is f for people.
func (a *app) faultText(f config.Fault) string {
	switch f.Severity {
	case config.Error:
		return paint(a.errs, red, f.String())
	case config.Warning:
		return paint(a.errs, yellow, f.String())
	}
	return f.String()
}
