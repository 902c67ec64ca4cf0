package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"sync"
	"syscall"
	"time"
)

// A program is one that runs until it is stopped.
type program struct {
	cmd   *exec.Cmd
	ended chan struct{}

	mu   sync.Mutex
	text bytes.Buffer
	more chan struct{} // closed when there is more text
}

// start starts a program.
func start(ctx context.Context, name string, args ...string) (*program, error) {
	p := &program{cmd: exec.CommandContext(ctx, name, args...), ended: make(chan struct{}), more: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	p.cmd.WaitDelay = stopTimeout
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { // stop waits for it
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// Write takes what the program prints.
func (p *program) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.more)
	p.more = make(chan struct{})
	return p.text.Write(b)
}

func (p *program) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// find waits until what was printed matches.
func (p *program) find(ctx context.Context, re *regexp.Regexp) ([]string, error) {
	for {
		p.mu.Lock()
		m, more := re.FindStringSubmatch(p.text.String()), p.more
		p.mu.Unlock()
		if m != nil {
			return m, nil
		}
		select {
		case <-more:
		case <-p.ended:
			return nil, fmt.Errorf("it ended, without %s: %s", re, p.said())
		case <-ctx.Done():
			return nil, fmt.Errorf("no %s in: %s", re, p.said())
		}
	}
}

// stop ends the program and waits for that.
func (p *program) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(stopTimeout):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}
