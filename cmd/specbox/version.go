package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/specbox/specbox/tenant"
)

// version is set by the linker in releases.
var version = ""

// A versionInfo is what `specbox version --json` prints.
type versionInfo struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"` // of the source
	Modified bool   `json:"modified,omitempty"` // the source was changed after it
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// thisVersion tells what this program was built from.
func thisVersion() versionInfo {
	v := versionInfo{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if b, ok := debug.ReadBuildInfo(); ok {
		if v.Version == "" {
			v.Version = b.Main.Version
		}
		for _, s := range b.Settings {
			switch s.Key {
			case "vcs.revision":
				v.Revision = s.Value
			case "vcs.modified":
				v.Modified = s.Value == "true"
			}
		}
	}
	if v.Version == "" || v.Version == "(devel)" {
		v.Version = "devel"
	}
	return v
}

func (a *app) versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Tell which version this is",
		Example: "  specbox version --json",
		Args:    exactly(),
	}
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		v := thisVersion()
		if *asJSON {
			return a.printJSON(v)
		}
		fmt.Fprintf(a.out, "specbox %s (%s, %s)\n", v.Version, v.Go, v.Platform)
		return nil
	}
	return cmd
}

func (a *app) tokenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Make a bearer token for a tenant",
		Long: `Make a random bearer token and the hash that the configuration keeps of it. The
token itself is stored nowhere: give it to the tenant now.`,
		Example: `  specbox token
  specbox token --json`,
		Args: exactly(),
	}
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		token, hash := tenant.NewToken()
		if *asJSON {
			return a.printJSON(map[string]string{"token": token, "hash": hash})
		}
		fmt.Fprintf(a.out, `token, for the client (Authorization: Bearer TOKEN):
  %s
hash, for the configuration:
  tenants:
    - name: NAME
      tokens: ["%s"]
`, token, hash)
		return nil
	}
	return cmd
}
