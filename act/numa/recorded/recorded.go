// Package recorded has recordings of sysfs on machines of other shapes, for tests: nodes,
// their cores and distances.
//
// A recording has a line for each file, "path: text"; comments after # describe the
// machine and where it was recorded.
package recorded

import (
	"embed"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

//go:embed machines
var machines embed.FS

// Machine writes a machine's sysfs to a temporary folder and returns that.
func Machine(t *testing.T, name string) string {
	t.Helper()
	text, err := machines.ReadFile("machines/" + name + ".sys")
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	for line := range strings.Lines(string(text)) {
		path, content, ok := strings.Cut(line, ": ")
		if !ok || strings.HasPrefix(line, "#") {
			// An empty file is valid, too.
			if path, ok = strings.CutSuffix(strings.TrimSpace(line), ":"); !ok || strings.HasPrefix(line, "#") {
				continue
			}
			content = ""
		}
		file := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}
