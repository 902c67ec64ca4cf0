package launcher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// An installer runs the tools that install one package.
type installer struct {
	ctx  context.Context
	dir  string
	lock *os.File // handed on: it is held as long as a tool lives, even one whose SpecBox was killed
}

// passed are the variables that installers get. SpecBox's own environment may
// hold the secrets of all servers.
var passed = []string{
	"PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "LANG", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE",
	"CURL_CA_BUNDLE", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "NPM_TOKEN", "NODE_AUTH_TOKEN",
}

var passedPrefixes = []string{"LC_", "NPM_CONFIG_", "PIP_", "UV_", "XDG_", "PYENV_", "NVM_", "FNM_", "VOLTA_", "ASDF_", "MISE_"}

func passedEnv() []string {
	var env []string
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		name = strings.ToUpper(name)
		if slices.Contains(passed, name) || slices.ContainsFunc(passedPrefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
			env = append(env, kv)
		}
	}
	return env
}

// toolLimit bounds one run of an installer: large packages on slow networks take
// some minutes.
const toolLimit = 10 * time.Minute

// impatient has installers give up on a network that is not there within a
// minute or so, where they would try for several. What the user's environment
// says counts more.
var impatient = []string{"npm_config_fetch_retries=1", "npm_config_fetch_timeout=60000", "PIP_RETRIES=1", "PIP_DEFAULT_TIMEOUT=30", "UV_HTTP_TIMEOUT=60"}

// run runs one tool to its end, or kills it with its children. Env is beside
// what every installer gets. The error has the tail of what the tool said.
func (i *installer) run(env []string, tool string, args ...string) (string, error) {
	path, err := exec.LookPath(tool)
	if err != nil {
		return "", fmt.Errorf("%s is not installed: %s", tool, howToGet(tool))
	}
	late := fmt.Errorf("%s took longer than %v and was ended: is the network there?", programName(tool), toolLimit)
	ctx, cancel := context.WithTimeoutCause(i.ctx, toolLimit, late)
	defer cancel()
	var out tail
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir, cmd.Env = i.dir, slices.Concat(impatient, passedEnv(), env)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.ExtraFiles = []*os.File{i.lock}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 2 * time.Second // for children of it that keep its output open
	err = cmd.Run()
	if err == nil || errors.Is(err, exec.ErrWaitDelay) {
		return out.String(), nil
	}
	if i.ctx.Err() != nil {
		return "", context.Cause(i.ctx)
	}
	if ctx.Err() != nil {
		err = late
	}
	said := out.String()
	return said, &toolError{tool: programName(tool), err: err, said: said}
}

// howToGet says where a missing tool comes from.
func howToGet(tool string) string {
	switch programName(tool) {
	case "npm", "node", "npx":
		return "apt-get install nodejs npm, or get Node.js from nodejs.org"
	case "uv", "uvx":
		return "pip install uv, or see docs.astral.sh/uv"
	case "pipx":
		return "apt-get install pipx"
	case "bun", "bunx":
		return "npm install -g bun"
	case "deno":
		return "see docs.deno.com"
	case "python", "python3":
		return "apt-get install python3 python3-venv"
	case "docker":
		return "apt-get install docker.io"
	case "java":
		return "apt-get install default-jre-headless"
	case "go":
		return "apt-get install golang"
	case "ruby":
		return "apt-get install ruby"
	}
	return "install it, or write its whole path"
}

// A tail keeps the end of what is written to it.
type tail struct{ buf []byte }

func (t *tail) Write(p []byte) (int, error) {
	const most = 64 << 10
	t.buf = append(t.buf, p...)
	if len(t.buf) > 2*most {
		t.buf = append(t.buf[:0], t.buf[len(t.buf)-most:]...)
	}
	return len(p), nil
}

func (t *tail) String() string { return string(bytes.ToValidUTF8(t.buf, []byte("?"))) }

// A toolError is an installer that gave up.
type toolError struct {
	tool string
	err  error
	said string
}

var (
	login   = regexp.MustCompile(`://[^/@\s]+@`)
	logPath = regexp.MustCompile(`(?m)^npm (?:error|ERR!) A complete log of this run.*\n.*$`)
	control = regexp.MustCompile(`\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]`)
)

// Error says what the tool said last, and what that means.
func (e *toolError) Error() string {
	const most = 12 // lines
	text := control.ReplaceAllString(logPath.ReplaceAllString(e.said, ""), "")
	text = login.ReplaceAllString(text, "://")
	var lines []string
	for line := range strings.SplitSeq(text, "\n") {
		if line = strings.TrimRight(line, " \t\r"); line != "" {
			lines = append(lines, line)
		}
	}
	lines = lines[max(0, len(lines)-most):]
	message := fmt.Sprintf("%s: %v", e.tool, e.err)
	if hint := hint(e.said); hint != "" {
		message = fmt.Sprintf("%s (%s: %v)", hint, e.tool, e.err)
	}
	if len(lines) > 0 {
		message += "\n  " + strings.Join(lines, "\n  ")
	}
	return message
}

func (e *toolError) Unwrap() error { return e.err }

// hints are what the words of installers mean for the person who reads them.
var hints = []struct {
	words *regexp.Regexp
	means string
}{
	{regexp.MustCompile(`E404|404 Not Found|was not found in the package registry`), "there is no such package: check its name"},
	{regexp.MustCompile(`ETARGET|No matching version`), "there is no such version of it: check the version"},
	{regexp.MustCompile(`E401|E403|ENEEDAUTH|401 (?:Client )?Error|403 (?:Client )?Error`), "the registry does not let you have it: check the login in .npmrc or pip.conf"},
	{regexp.MustCompile(`ENOSPC|No space left`), "the disk is full: make room"},
	{regexp.MustCompile(`ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|name resolution|Connection refused|NewConnectionError|Failed to establish a new connection|dns error|Failed to fetch|error sending request`), "the registry cannot be reached: check the network and the proxy variables"},
	{regexp.MustCompile(`ensurepip|python3-venv`), "Python cannot make environments: apt-get install python3-venv"},
	{regexp.MustCompile(`from versions: none|has no usable wheels|no wheels`), "there is no such package, or it has no wheel and would have to build itself: check its name, or add install_scripts: true to the server to let it build"},
	{regexp.MustCompile(`No matching distribution|No solution found|no version of`), "there is no such version of it for this Python: check name and version"},
	{regexp.MustCompile(`EACCES|Permission denied`), "a file or folder may not be written: check who owns the state folder"},
	{regexp.MustCompile(`EBADENGINE|Unsupported engine|requires a different Python|Requires-Python`), "it needs another version of Node.js or Python: update that, or ask for an older version of the package"},
}

func hint(said string) string {
	for _, h := range hints {
		if h.words.MatchString(said) {
			return h.means
		}
	}
	return ""
}
