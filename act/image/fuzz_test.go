package image

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzLabel: an image's label that is read names the image by a digest that is no path, and is the same when it is
// written.
func FuzzLabel(f *testing.F) {
	f.Add([]byte(`{"name":"openmpi","digest":"sha256-` + strings.Repeat("0a", 32) + `","mpi":"openmpi"}`))
	f.Add([]byte(`{"digest":"sha256-../../etc"}`))
	f.Add([]byte(`{"digest":"sha256-` + strings.Repeat("0a", 32) + `\n"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(t.TempDir(), "label")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		img, err := readLabel(path)
		if err != nil {
			return
		}
		if d := string(img.Digest); d != filepath.Base(d) || strings.TrimSpace(d) != d || strings.Contains(d, "..") {
			t.Errorf("the digest is %q", d)
		}
		if err := writeLabel(path, img); err != nil {
			t.Skip(err) // a time that cannot be written
		}
		if again, err := readLabel(path); err != nil || again.Digest != img.Digest || again.Name != img.Name {
			t.Errorf("%+v is %+v when it was written: %v", img, again, err)
		}
	})
}

// FuzzNames: what is taken for a name of an image is no path.
func FuzzNames(f *testing.F) {
	for _, text := range []string{"openmpi", "..", "a/b", "a.json", "a\n", "-a"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if checkName(text) == nil && (text != filepath.Base(text) || text[0] == '.' || strings.ContainsAny(text, "\n /")) {
			t.Errorf("%q is a name", text)
		}
	})
}
