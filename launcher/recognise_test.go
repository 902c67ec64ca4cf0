package launcher_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/specbox/specbox/launcher"
)

func TestRecognise(t *testing.T) {
	for _, tt := range []struct{ line, want string }{
		{"npx -y @modelcontextprotocol/server-everything", "npm:@modelcontextprotocol/server-everything [@modelcontextprotocol/server-everything]"},
		{"npx pkg", "npm:pkg [pkg]"},
		{"npx --yes pkg@latest /data --flag", "npm:pkg [pkg] args /data --flag"},
		{"npx -y pkg@1.2.3 -y", "npm:pkg@1.2.3 [pkg@1.2.3] args -y"},
		{"npx -y @s/pkg@next stdio", "npm:@s/pkg@next [@s/pkg@next] args stdio"},
		{"npx -y pkg@^1.0", "npm:pkg@^1.0 [pkg@^1.0]"},
		{"npx -p @s/pkg -p other@2 tool --x", "npm:@s/pkg [@s/pkg other@2] program tool args --x"},
		{"npx --package=pkg@1 -- tool -- a", "npm:pkg@1 [pkg@1] program tool args -- a"},
		{"/usr/local/bin/npx -y pkg", "npm:pkg [pkg]"},
		{`C:\Program_Files\nodejs\npx.cmd -y pkg`, "npm:pkg [pkg]"},
		{"cmd /c npx -y pkg", "npm:pkg [pkg]"},
		{"cmd.exe /C npx.cmd -y pkg a", "npm:pkg [pkg] args a"},
		{"npm exec -y -- pkg -- a", "npm:pkg [pkg] args a"},
		{"npm x --yes --package=pkg -- tool a", "npm:pkg [pkg] program tool args a"},
		{"pnpm dlx pkg a", "npm:pkg [pkg] args a"},
		{"pnpm --package=pkg dlx tool", ""},
		{"pnpm dlx --package=pkg tool", "npm:pkg [pkg] program tool"},
		{"yarn dlx -q pkg", "npm:pkg [pkg]"},
		{"bunx --bun pkg@1 a", "npm:pkg@1 [pkg@1] args a"},
		{"bun x pkg", "npm:pkg [pkg]"},
		{"uvx mcp-server-git --repository /r", "pypi:mcp-server-git [mcp-server-git] args --repository /r"},
		{"uvx mcp-server-git@2025.1.1", "pypi:mcp-server-git@2025.1.1 [mcp-server-git==2025.1.1]"},
		{"uvx mcp-server-git@latest", "pypi:mcp-server-git [mcp-server-git]"},
		{"uvx --from pkg[extra,b]==1.2 tool a", "pypi:pkg@1.2 [pkg[extra,b]==1.2] program tool args a"},
		{"uvx --from=pkg>=1,<2 tool", "pypi:pkg@>=1,<2 [pkg>=1,<2] program tool"},
		{"uvx --with a,b==2 --with c --python 3.12 pkg", "pypi:pkg [pkg a b==2 c] python 3.12"},
		{"uvx -p python3.11 pkg", "pypi:pkg [pkg] python 3.11"},
		{"uv tool run pkg@1", "pypi:pkg@1 [pkg==1]"},
		{"pipx run pkg==1.0 -- a", "pypi:pkg@1.0 [pkg==1.0] args a"},
		{"pipx run --spec pkg[x] tool a", "pypi:pkg [pkg[x]] program tool args a"},
		{"docker run -i --rm -e TOKEN -e K=secret -v /a:/b:ro --mount type=bind,src=/c,dst=/d --network host --name=n img:1 a b", "docker:img:1 [img:1] args a b (image img:1; env TOKEN, K; mounts /a -> /b, read-only; /c -> /d; network host)"},
		{"podman run img", "docker:img [img] (image img)"},

		{"npx", ""}, {"npx -y", ""}, {"npx -p", ""}, {"npx --registry=x pkg", ""}, {"npx -c tool", ""},
		{"npx -y github:user/repo", ""}, {"npx user/repo", ""}, {"npx git+https://x/y.git", ""}, {"npx ./local", ""}, {"npx /srv/pkg", ""},
		{"npx pkg@npm:other", ""}, {"npx pkg@file:../x", ""}, {"npx ../x", ""}, {"npx x.tgz", ""},
		{"npm start", ""}, {"npm", ""}, {"yarn start", ""}, {"bun run x", ""},
		{"uvx", ""}, {"uvx --from git+https://github.com/x/y tool", ""}, {"uvx --from ./x tool", ""}, {"uvx --index-url http://x pkg", ""},
		{"uvx pkg@git+https://x", ""}, {"uvx --python /usr/bin/python3 pkg", ""}, {"uv run server.py", ""}, {"uv", ""}, {"pipx install x", ""},
		{"docker ps", ""}, {"docker run", ""}, {"docker run --what x img", ""}, {"docker run -e", ""},
		{"node server.js", ""}, {"python -m x", ""}, {"cmd /c", ""}, {"", ""},
	} {
		words := strings.Split(tt.line, " ")
		p, ok := launcher.Recognise(words[0], words[1:])
		got := ""
		if ok {
			got = fmt.Sprintf("%s %v", p, p.Specs)
			if p.Python != "" {
				got += " python " + p.Python
			}
			if p.Program != "" {
				got += " program " + p.Program
			}
			if len(p.Args) > 0 {
				got += " args " + strings.Join(p.Args, " ")
			}
			if p.Container != nil {
				got += " (" + p.Container.Explain() + ")"
			}
		}
		if got != tt.want {
			t.Errorf("%s:\n got %s\nwant %s", tt.line, got, tt.want)
		}
	}
}

// Whatever is recognised reaches an installer's command line: no word of it
// may be an option or a path there, and the program's arguments are the tail of
// the line.
func FuzzRecognise(f *testing.F) {
	for _, s := range []string{"npx\n-y\npkg@1\na", "uvx\n--from\na[b]==1\nc\nd", "docker\nrun\n-e\nA=b\nimg", "cmd\n/c\nnpx\nx", "npm\nexec\n--\nx\n--\ny"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		words := strings.Split(line, "\n")
		p, ok := launcher.Recognise(words[0], words[1:])
		if !ok {
			return
		}
		if len(p.Args) > len(words) || !slices.Equal(p.Args, words[len(words)-len(p.Args):]) {
			t.Errorf("args %q of %q", p.Args, words)
		}
		if p.Kind == launcher.Docker {
			return
		}
		if len(p.Specs) == 0 || p.Name == "" {
			t.Fatalf("%q: %+v", words, p)
		}
		for _, s := range p.Specs {
			if strings.HasPrefix(s, "-") || strings.HasPrefix(s, ".") || strings.Contains(s, ":") || strings.Contains(s, "..") && strings.Contains(s, "/..") {
				t.Errorf("%q: spec %q", words, s)
			}
		}
	})
}
