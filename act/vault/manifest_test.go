package vault

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
)

const digestA = digestPrefix + "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

func TestManifestsThatAreRefused(t *testing.T) {
	good := `{"version":1,"checkpoint":"j1c1","guest":"j1g0","files":[{"path":"d","mode":493,"folder":true},{"path":"d/f","mode":384,"bytes":3,"chunks":[{"digest":"` + digestA + `","bytes":3}]},{"path":"d/l","mode":511,"link":"f"}]}`
	m, err := ParseManifest([]byte(good))
	if err != nil {
		t.Fatal(err)
	}
	if text, err := m.Text(); err != nil || string(text) != good {
		t.Errorf("it became %s, %v", text, err)
	}
	for _, more := range []string{"x", "{}", good} {
		if _, err := ParseManifest([]byte(good + more)); err == nil {
			t.Errorf("accepted what %q follows", more)
		}
	}
	for _, change := range [][2]string{
		{`"version":1`, `"version":2`}, {`"j1c1"`, `"../j1"`}, {`"j1g0"`, `""`}, {`"d/f"`, `"d/../f"`}, {`"d/f"`, `"/f"`}, {`"d/f"`, `"../f"`},
		{`"d/f"`, `"e/f"`}, {`"d/f"`, `"d"`}, {`"d/f"`, `""`}, {`"d/f"`, `"."`}, {`"d/f"`, `"d//f"`}, {`"mode":384`, `"mode":2432`}, {`"mode":384`, `"mode":-1`}, {`"bytes":3,`, `"bytes":4,`},
		{`"bytes":3}`, `"bytes":-3}`}, {`"bytes":3}`, `"bytes":99999999999}`}, {`"link":"f"`, `"link":"../../x"`}, {`"link":"f"`, `"link":"/x"`},
		{`"link":"f"`, `"link":"f","folder":true`}, {`"link":"f"`, `"link":"f","bytes":1`}, {digestA, "sha256-xx"}, {`"guest"`, `"extra":1,"guest"`},
	} {
		text := strings.Replace(good, change[0], change[1], 1)
		if text == good {
			t.Fatalf("%q is not in it", change[0])
		}
		if _, err := ParseManifest([]byte(text)); err == nil {
			t.Errorf("accepted %s", text)
		}
	}
}

// FuzzManifest: no text makes the parser panic, and what it accepts stays below its folder and has one form.
func FuzzManifest(f *testing.F) {
	f.Add([]byte(`{"version":1,"checkpoint":"j1c1","guest":"j1g0","files":[{"path":"d","mode":493,"folder":true},{"path":"d/f","mode":384,"bytes":3,"chunks":[{"digest":"` + digestA + `","bytes":3}]},{"path":"d/l","mode":511,"link":"f"}]}`))
	f.Add([]byte(`{"version":1,"checkpoint":"j1c1","guest":"g","files":null}`))
	f.Add([]byte(`{`))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := ParseManifest(text)
		if err != nil {
			return
		}
		sum := int64(0)
		for _, file := range m.Files {
			if !filepath.IsLocal(file.Path) || file.Link != "" && !filepath.IsLocal(filepath.Join(filepath.Dir(file.Path), file.Link)) {
				t.Errorf("%+v leads outside", file)
			}
			sum += file.Bytes
		}
		if sum != m.Bytes() || sum < 0 {
			t.Errorf("%d bytes", sum)
		}
		once, err := m.Text()
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseManifest(once)
		if err != nil {
			t.Fatalf("its own form is refused: %v", err)
		}
		if twice, _ := again.Text(); !bytes.Equal(once, twice) {
			t.Errorf("%s became %s", once, twice)
		}
	})
}
