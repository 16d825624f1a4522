// Package recorded has what sysfs showed on machines of other shapes, for tests:
// how many nodes, which cores are in them, how far they are apart.
//
// A recording is a line for each file, "path: text"; what begins with # says what
// the machine is and where it was recorded.
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

// Machine writes a machine's sysfs to a folder of the test's and gives that.
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
			// An empty file is one, too.
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
