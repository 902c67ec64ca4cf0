package process_test

import (
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/specbox/specbox/sandbox/process"
)

func TestAllowLists(t *testing.T) {
	for _, tt := range []struct {
		entries         string
		inside, outside string
		hosts           string
	}{
		{"api.example.org", "127.83.0.2:80 127.83.0.2:443", "api.example.org:80 api.example.org:443", "127.83.0.2 api.example.org\n"},
		{"API.Example.org.:8443 api.example.org:8443", "127.83.0.2:8443", "api.example.org:8443", "127.83.0.2 api.example.org\n"},
		{"localhost:5432", "127.0.0.1:5432 [::1]:5432", "localhost:5432 localhost:5432", ""},
		{"10.0.0.1:22 10.0.0.1", "10.0.0.1:22 10.0.0.1:80 10.0.0.1:443", "10.0.0.1:22 10.0.0.1:80 10.0.0.1:443", ""},
		{"[2001:db8::1]:53", "[2001:db8::1]:53", "[2001:db8::1]:53", ""},
	} {
		inside, outside, hosts, err := process.ParseAllowed(strings.Fields(tt.entries))
		if err != nil || strings.Join(inside, " ") != tt.inside || strings.Join(outside, " ") != tt.outside || hosts != tt.hosts {
			t.Errorf("%s: %q to %q, hosts %q, %v", tt.entries, inside, outside, hosts, err)
		}
	}
	for _, bad := range []string{"", "*.example.org", "a b", "a\nb", "example.org:0", "example.org:70000", "http://example.org", "0.0.0.0:80", "224.0.0.1:80", "fe80::1%eth0", "[::ffff:127.0.0.1]:80", "a/b:1"} {
		if inside, _, _, err := process.ParseAllowed([]string{bad}); err == nil {
			t.Errorf("%q was taken, as %q", bad, inside)
		} else if bad != "" && !strings.Contains(err.Error(), "allowed host") {
			t.Errorf("%q: the error does not say where: %v", bad, err)
		}
	}
}

// Names of an allow-list are distinct and their addresses are their own.
func TestAllowListOfMany(t *testing.T) {
	var entries []string
	for i := range 250 {
		entries = append(entries, "host"+strings.Repeat("x", i)[:min(i, 200)]+string(rune('a'+i%26))+":1")
	}
	inside, _, _, err := process.ParseAllowed(entries[:200])
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(inside)
	if n := len(slices.Compact(inside)); n != 200 {
		t.Errorf("200 names have %d addresses", n)
	}
	for i := range entries {
		entries[i] = "h" + strings.Repeat("y", i%60) + string(rune('a'+i%26)) + strings.Repeat("z", i/60) + ".test"
	}
	if _, _, _, err := process.ParseAllowed(entries); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("500 addresses: %v", err)
	}
}

func FuzzAllowList(f *testing.F) {
	for _, s := range []string{"api.example.org", "localhost:80", "[::1]:5", "1.2.3.4", "a\nb:1", "::1", "[::ffff:1.2.3.4]:1", "x:1,y:2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, list string) {
		entries := strings.Split(list, ",")
		inside, outside, hosts, err := process.ParseAllowed(entries)
		if err != nil {
			return
		}
		for i, in := range inside {
			if _, err := netip.ParseAddrPort(in); err != nil {
				t.Errorf("%q: inside %q: %v", list, in, err)
			}
			if _, _, err := net.SplitHostPort(outside[i]); err != nil {
				t.Errorf("%q: outside %q: %v", list, outside[i], err)
			}
		}
		for line := range strings.Lines(hosts) {
			if f := strings.Split(strings.TrimSuffix(line, "\n"), " "); len(f) != 2 || f[1] == "localhost" || strings.ContainsAny(f[1], "\t\r#") {
				t.Errorf("%q: line %q of hosts", list, line)
			}
		}
	})
}

func FuzzShebang(f *testing.F) {
	for _, s := range []string{"#!/bin/sh", "#! /usr/bin/env -S node --x\n", "#!/usr/bin/env A=b python3", "#!node", "#!", "\x7fELF"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		interpreter, arg := process.ParseShebang(line)
		if interpreter != "" && !filepath.IsAbs(interpreter) {
			t.Errorf("%q: interpreter %q", line, interpreter)
		}
		if env := filepath.Base(interpreter) == "env"; env == (arg == "") && interpreter != "" {
			t.Errorf("%q: interpreter %q, argument %q", line, interpreter, arg)
		}
	})
}

func FuzzMountinfo(f *testing.F) {
	f.Add(`41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:1 - cgroup2 cgroup2 rw`)
	f.Add(`42 31 0:39 /a\040b /mnt/c\134d rw - cgroup cgroup rw,memory`)
	f.Add(`x - y`)
	f.Fuzz(func(t *testing.T, line string) {
		if point, kind, ok := process.ParseMount(line); ok && (point == "" && !strings.Contains(line, "\\") || kind == "") {
			t.Errorf("%q: mount of kind %q at %q", line, kind, point)
		}
	})
}

func TestUnescape(t *testing.T) {
	for in, want := range map[string]string{`/a\040b`: "/a b", `/a\134`: `/a\`, `\`: `\`, `\99`: `\99`, `\1`: `\1`} {
		if got := process.Unescape(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
