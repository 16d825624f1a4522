package backup

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzArchive: whatever is taken for a backup has parts of known names, inside its folder, and can be written again.
func FuzzArchive(f *testing.F) {
	var good bytes.Buffer
	err := Write(&good, Manifest{Version: "1", Cluster: "c"}, []Source{
		{StorePart, strings.NewReader("store")}, {AuthorityPart, strings.NewReader("crt")}, {AuthorityKeyPart, strings.NewReader("key")},
		{ConfigFolder + "/config.toml", strings.NewReader("")},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good.Bytes())
	f.Add(good.Bytes()[:1000])
	f.Add([]byte("no archive"))
	f.Fuzz(func(t *testing.T, archive []byte) {
		outside := t.TempDir()
		dir := filepath.Join(outside, "in")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		m, err := Read(bytes.NewReader(archive), dir, nil)
		if all, _ := os.ReadDir(outside); len(all) != 1 {
			t.Errorf("beside its folder there is %v", all)
		}
		if err != nil {
			return
		}
		var sources []Source
		for _, p := range m.Parts {
			text, err := os.ReadFile(filepath.Join(dir, p.Name))
			if err != nil || int64(len(text)) != p.Bytes || !MayBe(p.Name) {
				t.Fatalf("part %q has %d bytes and not %d: %v", p.Name, len(text), p.Bytes, err)
			}
			sources = append(sources, Source{p.Name, bytes.NewReader(text)})
		}
		var again bytes.Buffer
		if err := Write(&again, m, sources); err != nil {
			t.Skip(err) // a time that cannot be written
		}
		if back, err := Read(io.Reader(&again), "", nil); err != nil || len(back.Parts) != len(m.Parts) {
			t.Errorf("written again it is none: %v", err)
		}
	})
}
