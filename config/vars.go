package config

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
)

// A value is a string of a file with its variables expanded.
type value struct {
	raw  string // as written: safe to print unless it stands in env or headers
	text string // expanded
	vars bool   // something came from a variable
}

var (
	variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	bareVariable = regexp.MustCompile(`^\$[A-Z_][A-Z0-9_]*$`)
	windowsVar   = regexp.MustCompile(`^%[A-Za-z_][A-Za-z0-9_]*%$`)
)

// An expander replaces variables in the strings of one file.
type expander struct {
	getenv    func(string) (string, bool)
	workspace string            // the project's folder
	home      string            // "" if unknown
	used      map[string]string // what variables held that were looked up; nil keeps none
}

// A varFault is a variable that cannot be expanded.
type varFault struct{ message, suggestion string }

// expand replaces ${VAR} and ${VAR:-default}. A $ that no { follows stays, and
// $${ is a literal ${. What a variable holds is not expanded again.
func (e *expander) expand(s string) (value, []varFault) {
	v := value{raw: s, text: s}
	if !strings.Contains(s, "${") {
		return v, nil
	}
	var faults []varFault
	v.text, v.vars = e.replace(s, 0, &faults)
	return v, faults
}

const maxDefaults = 16 // of defaults within defaults

func (e *expander) replace(s string, depth int, faults *[]varFault) (string, bool) {
	var b strings.Builder
	vars := false
	for {
		i := strings.Index(s, "${")
		if i < 0 {
			b.WriteString(s)
			return b.String(), vars
		}
		if i > 0 && s[i-1] == '$' {
			b.WriteString(s[:i-1])
			b.WriteString("${")
			s = s[i+2:]
			continue
		}
		b.WriteString(s[:i])
		end := closing(s[i+2:])
		if end < 0 || depth > maxDefaults {
			*faults = append(*faults, varFault{"${ is never closed by }", "write $${ for a literal ${"})
			return b.String(), vars
		}
		b.WriteString(e.variable(s[i+2:i+2+end], depth, &vars, faults))
		s = s[i+2+end+1:]
	}
}

// closing returns where the brace closes that was opened before s, or -1.
func closing(s string) int {
	open := 0
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '$' && i+1 < len(s) && s[i+1] == '{':
			open++
			i++
		case s[i] == '}':
			if open == 0 {
				return i
			}
			open--
		}
	}
	return -1
}

// variable returns what ${inner} stands for.
func (e *expander) variable(inner string, depth int, vars *bool, faults *[]varFault) string {
	switch inner {
	case "workspaceFolder", "workspaceRoot":
		return e.workspace
	case "workspaceFolderBasename":
		return filepath.Base(e.workspace)
	case "pathSeparator", "/":
		return string(filepath.Separator)
	case "userHome":
		if e.home == "" {
			*faults = append(*faults, varFault{"${userHome} is used, but HOME is not set", "set HOME"})
		}
		return e.home
	}
	if id, ok := strings.CutPrefix(inner, "input:"); ok && inputID.MatchString(id) {
		name := strings.Trim(notWord.ReplaceAllString(strings.ToUpper(id), "_"), "_")
		*faults = append(*faults, varFault{
			fmt.Sprintf("${input:%s} asks a person, and nobody is there to answer", id),
			fmt.Sprintf("write ${%s} and set that variable where specbox runs", name)})
		return ""
	}
	name, def, hasDefault := strings.Cut(strings.TrimPrefix(inner, "env:"), ":-")
	if !variableName.MatchString(name) {
		// What stands there may be part of a secret.
		*faults = append(*faults, varFault{"what stands between ${ and } is no variable",
			"write ${NAME} or ${NAME:-default}, and $${ for a literal ${"})
		return ""
	}
	got, ok := e.getenv(name)
	if ok && (got != "" || !hasDefault) {
		*vars = true
		if e.used != nil {
			e.used[name] = got
		}
		return got
	}
	if hasDefault {
		s, v := e.replace(def, depth+1, faults)
		*vars = *vars || v
		return s
	}
	*faults = append(*faults, varFault{
		fmt.Sprintf("variable %s is not set", name),
		fmt.Sprintf("set it where specbox runs, or write ${%s:-default}", name)})
	return ""
}

var inputID = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

var notWord = regexp.MustCompile(`[^A-Z0-9]+`)

// path makes a path absolute: a leading ~/ is HOME, and anything else that is
// relative is taken from the project's folder.
func (e *expander) path(p string) string {
	if e.home != "" && (p == "~" || strings.HasPrefix(p, "~/")) {
		return filepath.Join(e.home, p[1:])
	}
	if p == "" || filepath.IsAbs(p) || strings.HasPrefix(p, "~") {
		return p
	}
	return filepath.Join(e.workspace, p)
}
