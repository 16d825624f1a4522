package backup

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func parts() map[string][]byte {
	store := make([]byte, 300_000)
	_, _ = rand.Read(store) // never fails
	return map[string][]byte{
		StorePart: store, AuthorityPart: []byte("certificate"), AuthorityKeyPart: []byte("key"),
		"config/config.toml": nil, "config/conf.d/10-cluster.toml": []byte("[controller]\n"), "images/openmpi.json": []byte("{}"),
	}
}

func archive(t *testing.T, from map[string][]byte) []byte {
	t.Helper()
	var sources []Source
	for name, content := range from {
		sources = append(sources, Source{name, bytes.NewReader(content)})
	}
	var out bytes.Buffer
	if err := Write(&out, Manifest{Version: "1.2", Cluster: "abc", Name: "physics", At: t0, State: "/var/lib/pagurus"}, sources); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// compressed is the file of an archive.
func compressed(t *testing.T, archive []byte) string {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if _, err := z.Write(archive); err != nil || z.Close() != nil {
		t.Fatal("gzip")
	}
	return written(t, out.Bytes())
}

func written(t *testing.T, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "backup")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// All that is written comes back, for nobody else to read.
func TestWholeBackup(t *testing.T) {
	want, dir := parts(), t.TempDir()
	last := int64(0)
	m, err := ReadFile(compressed(t, archive(t, want)), dir, func(done, all int64) {
		if done < last || done > all {
			t.Errorf("progress %d after %d of %d", done, last, all)
		}
		last = done
	})
	if err != nil || m.Cluster != "abc" || m.Name != "physics" || !m.At.Equal(t0) || len(m.Parts) != len(want) || last != m.Bytes() {
		t.Fatalf("%+v, %d read: %v", m, last, err)
	}
	for name, content := range want {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !bytes.Equal(got, content) {
			t.Errorf("%s: %v", name, err)
		}
		if info, _ := os.Stat(filepath.Join(dir, name)); info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %s", name, info.Mode())
		}
	}
}

// taken fails unless a backup is refused or what comes back is what was written.
func taken(t *testing.T, backup string, want map[string][]byte, what string) {
	t.Helper()
	if _, err := ReadFile(backup, "", nil); err != nil {
		return
	}
	dir := t.TempDir()
	if _, err := ReadFile(backup, dir, nil); err != nil {
		t.Errorf("%s: it is right only until it is unpacked: %v", what, err)
		return
	}
	for name, content := range want {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%s: %s is another, %v", what, name, err)
		}
	}
}

// fill is the place of a byte of a compressed file that has bits without a meaning: with it begins a block that is stored as it is.
// The length of the block follows, twice, in whole bytes. The block before it is stored, too, so that it begins with a byte.
func fill(t *testing.T, whole []byte) int {
	t.Helper()
	stored := func(n int) bool {
		return n+5 <= len(whole) && whole[n+1]^whole[n+3] == 0xff && whole[n+2]^whole[n+4] == 0xff
	}
	for n := range whole {
		if next := n + 5; stored(n) {
			if next += int(whole[n+1]) + int(whole[n+2])<<8; stored(next) && whole[next] <= 1 {
				return next
			}
		}
	}
	t.Fatal("all of it was compressed")
	return 0
}

// Wherever a backup is cut off, it is refused. One with a byte altered is refused, too, unless that
// changes nothing.
func TestDamagedBackup(t *testing.T) {
	content := parts()
	whole, err := os.ReadFile(compressed(t, archive(t, content)))
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n < len(whole); n += len(whole)/97 + 1 {
		_, err := ReadFile(written(t, whole[:n]), t.TempDir(), nil)
		if err == nil || !strings.Contains(err.Error(), "is cut off") && !strings.Contains(err.Error(), "is not a backup") {
			t.Errorf("%d of %d bytes: %v", n, len(whole), err)
		}
		bad := bytes.Clone(whole)
		bad[n] ^= 0x10
		taken(t, written(t, bad), content, fmt.Sprintf("byte %d altered", n))
	}
	bad, n := bytes.Clone(whole), fill(t, whole)
	bad[n] ^= 0x10
	if _, err := ReadFile(written(t, bad), "", nil); err != nil {
		t.Errorf("bits without a meaning, of byte %d: %v", n, err)
	}
	taken(t, written(t, bad), content, "bits without a meaning")
	if _, err := ReadFile(written(t, append(whole, "more"...)), t.TempDir(), nil); err == nil {
		t.Error("what follows the end was taken")
	}
	plain := archive(t, content)
	for at := 512; at < len(plain)-2048; at += len(plain)/97 + 1 { // as somebody who makes a new file of it
		bad := bytes.Clone(plain)
		bad[at]++
		taken(t, compressed(t, bad), content, fmt.Sprintf("byte %d altered", at))
	}
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// forged makes an archive with a manifest of one's own.
func forged(t *testing.T, name string, m Manifest, files ...string) string {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for i, f := range append([]string{name}, files...) {
		content := []byte("x")
		if i == 0 {
			content = mustJSON(t, m)
		}
		if err := w.WriteHeader(&tar.Header{Name: f, Size: int64(len(content)), Typeflag: tar.TypeReg, Mode: 0o600}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return compressed(t, out.Bytes())
}

// A file of something else, of a newer form, or that wants to write elsewhere is refused.
func TestForeignBackup(t *testing.T) {
	needed := []Part{{Name: StorePart}, {Name: AuthorityPart}, {Name: AuthorityKeyPart}}
	good := Manifest{Kind: kind, Format: Format, Version: "1", Cluster: "c", Parts: needed}
	newer, other, outside, few, twice := good, good, good, good, good
	newer.Format, newer.Version = Format+1, "9.9"
	other.Kind = "something"
	outside.Parts = append([]Part{{Name: "../evil"}}, needed...)
	few.Parts = needed[:2]
	twice.Parts = append(needed[:3:3], needed[0])
	for path, says := range map[string]string{
		forged(t, manifestName, newer):                      "is of format 2, by pagurus 9.9, and this pagurus knows format 1",
		forged(t, manifestName, other):                      "is not a backup",
		forged(t, "readme.txt", good):                       "is not a backup",
		forged(t, manifestName, outside, "../evil"):         "was altered: manifest.json",
		forged(t, manifestName, few):                        "was altered: manifest.json",
		forged(t, manifestName, twice):                      "was altered: manifest.json",
		forged(t, manifestName, good, "config/config.toml"): "was altered: store.db",
		forged(t, manifestName, good):                       "is cut off",
		written(t, []byte("hello")):                         "is not a backup",
		written(t, nil):                                     "is not a backup",
	} {
		dir := t.TempDir()
		if _, err := ReadFile(path, dir, nil); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("expected %q: %v", says, err)
		}
	}
}
