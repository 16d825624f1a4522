package initrd

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/cavaliergopher/cpio"
)

func TestMake(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if err := os.Mkdir(filepath.Join(dir, "initrd"), 0o755); err != nil {
		t.Fatal(err)
	}
	put("initrd/.new-7", "half")
	agent := put("agent", "I am init")
	f, err := Open(filepath.Join(dir, "initrd"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Make(dir, agent); err == nil {
		t.Error("an initrd was made without modules")
	}
	put("modules.cpio", "12345") // not a multiple of four bytes
	path, err := f.Make(dir, agent)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil || !bytes.HasPrefix(text, []byte("12345\x00\x00\x00070701")) {
		t.Fatalf("it begins %.20q: %v", text, err)
	}
	found := map[string]string{}
	for r := cpio.NewReader(bytes.NewReader(text[8:])); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(r)
		found[h.Name] = string(body)
	}
	if found["init"] != "I am init" {
		t.Errorf("init is %q in %v", found["init"], found)
	}
	if again, err := f.Make(dir, agent); err != nil || again != path {
		t.Errorf("the same is at %s and then at %s: %v", path, again, err)
	}
	for range kept + 2 {
		os.Remove(filepath.Join(dir, "agent"))
		put("agent", "another")
		if _, err := f.Make(dir, agent); err != nil {
			t.Fatal(err)
		}
	}
	files, err := os.ReadDir(filepath.Join(dir, "initrd"))
	if err != nil || len(files) > kept {
		t.Errorf("%d are kept: %v", len(files), err)
	}
}
