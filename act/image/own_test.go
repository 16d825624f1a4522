package image

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pagurus/act/host/initrd"
	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// pvhKernel is an ELF file with nothing but the note by which QEMU starts a kernel, and what a Linux says of itself.
func pvhKernel() []byte {
	const headers, note = 64 + 56, 4 + 4 + 4 + 4 + 8
	var b bytes.Buffer
	w := func(v any) { _ = binary.Write(&b, binary.LittleEndian, v) }
	b.WriteString("\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 9))
	w([]uint16{2, 62})
	w(uint32(1))
	w([]uint64{0, 64, 0})
	w(uint32(0))
	w([]uint16{64, 56, 1, 64, 0, 0})
	w([]uint32{4, 4}) // PT_NOTE, readable
	w([]uint64{headers, 0, 0, note, note, 4})
	w([]uint32{4, 8, 18})
	b.WriteString("Xen\x00" + strings.Repeat("\x00", 8))
	b.WriteString("\x00Linux version 6.12.1-own (me@here) #1\x00")
	return b.Bytes()
}

func packed(code []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write(code)
	_ = w.Close()
	return b.Bytes()
}

func TestOwnKernels(t *testing.T) {
	dir := t.TempDir()
	put := func(name string, code []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, code, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	plain := put("vmlinux", pvhKernel())
	k, err := ReadKernel(t.Context(), plain, "  nosmt   nox2apic ")
	if err != nil || k.Release != "6.12.1-own" || k.Words != "nosmt nox2apic" {
		t.Fatalf("%+v, %v", k, err)
	}
	if p, err := ReadKernel(t.Context(), put("vmlinux.gz", packed(pvhKernel())), ""); err != nil || p.Sum != k.Sum {
		t.Errorf("packed it is another: %+v, %v", p, err)
	}
	for name, c := range map[string]struct {
		path, words, want string
	}{
		"none":      {filepath.Join(dir, "none"), "", "no such file"},
		"a folder":  {dir, "", "not a file"},
		"text":      {put("text", []byte("#!/bin/sh\n")), "", "neither an ELF file"},
		"empty":     {put("empty", nil), "", "neither an ELF file"},
		"packed":    {put("packed", packed([]byte("text"))), "", "neither an ELF file"},
		"half":      {put("half", packed(pvhKernel())[:40]), "", "unpack it with gzip"},
		"no PVH":    {"/proc/self/exe", "", "CONFIG_PVH=y"},
		"not Linux": {put("bsd", bytes.ReplaceAll(pvhKernel(), []byte("Linux"), []byte("Minix"))), "", "a Linux"},
		"words":     {plain, "console=tty0", "Pagurus's own"},
	} {
		if name == "no PVH" { // the kernel's file system has no sizes to go by
			c.path, _ = os.Readlink(c.path)
		}
		if _, err := ReadKernel(t.Context(), c.path, c.words); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// bzImage is one with this in it, that says this version in its header.
func bzImage(payload []byte, version string) []byte {
	const start, words = 512, 0x300 // of 16-bit code: no sectors but the first, and its header's length
	code := make([]byte, 2*start)
	copy(code[0x202:], "HdrS")
	binary.LittleEndian.PutUint16(code[0x20e:], words-0x200)
	binary.LittleEndian.PutUint32(code[0x248:], start)
	binary.LittleEndian.PutUint32(code[0x24c:], uint32(len(payload)))
	copy(code[words:], version)
	return append(code, payload...)
}

// A small file may hold a kernel that does not end, also inside a bzImage.
func TestKernelWithoutEnd(t *testing.T) {
	defer func(was int64) { largestKernel = was }(largestKernel)
	largestKernel = 1 << 20
	large := append(pvhKernel(), make([]byte, 1<<20)...)
	for name, code := range map[string][]byte{"packed": packed(large), "in a bzImage": bzImage(packed(large), ""), "packed twice": packed(bzImage(packed(large), ""))} {
		path := filepath.Join(t.TempDir(), "vmlinuz")
		if err := os.WriteFile(path, code, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadKernel(t.Context(), path, ""); err == nil || !strings.Contains(err.Error(), "larger than 1 MiB") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if plain, err := unpackKernel(t.Context(), bzImage(packed(pvhKernel()), "")); err != nil || !bytes.Equal(plain, pvhKernel()) {
		t.Errorf("a small one: %d bytes, %v", len(plain), err)
	}
}

// A release is a word for people, tables and paths of modules, whoever wrote the header that says it.
func TestReleaseOf(t *testing.T) {
	long := strings.Repeat("6", 64)
	for said, want := range map[string]string{
		"6.12.1-own (me@here) #1": "6.12.1-own", long + " (me)": long, long + "6 (me)": "",
		"": "", " ": "", "linux 6": "", "6.1\x1b[31m (me)": "", "6.1\n0 (me)": "", "6.1\x00 (me)": "", "../../etc (me)": "",
	} {
		if got := releaseOf(t.Context(), bzImage([]byte("packed by what nobody knows"), said)); got != want {
			t.Errorf("%q: %q", said, got)
		}
	}
}

// What is started and its words count for recipe and image.
func TestOwnKernelCounts(t *testing.T) {
	r := Recipe{Name: "x", Suite: DefaultSuite, Packages: []string{"make"}}
	seen := map[fleet.Digest]string{r.Digest(): "Debian's"}
	for name, own := range map[string]OwnKernel{"one": {Sum: "1"}, "two": {Sum: "2"}, "words": {Sum: "1", Words: "nosmt"}} {
		r.Own = &own
		if before := seen[r.Digest()]; before != "" {
			t.Errorf("%s is the same as %s", name, before)
		}
		seen[r.Digest()] = name
	}
	sums := map[string]string{}
	for _, words := range []string{"", "nosmt", "nosmt nox2apic"} {
		dir := t.TempDir()
		var b bytes.Buffer
		if err := writeModules(&b, nil, &OwnKernel{Words: words}); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, ModulesFile), b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, own, err := initrd.Words(dir); err != nil || !own || got != words {
			t.Errorf("%q comes back as %q, %v, %v", words, got, own, err)
		}
		if before, has := sums[b.String()]; has {
			t.Errorf("with %q as with %q", words, before)
		}
		sums[b.String()] = words
	}
}

func TestKernelFlag(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("here", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("cloud", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for word, file := range map[string]bool{"": false, "cloud": false, "generic": false, "here": true, "./cloud": true, "no/such": true, "rt": false} {
		if IsKernelFile(word) != file {
			t.Errorf("%q is a file: %v", word, !file)
		}
	}
}

// An image with a kernel of one's own has the root of one with Debian's, as its files say, and goes on without that one.
func TestOwnKernelTakesTheRoot(t *testing.T) {
	testkit.Root(t, tools...)
	s := openStore(t)
	r := Recipe{Name: "plain", Suite: DefaultSuite, Packages: []string{"make"}}
	plain := put(t, s, "plain", "make") // of that recipe
	own, err := ReadKernel(t.Context(), writeKernelFile(t), "nosmt")
	if err != nil {
		t.Fatal(err)
	}
	r.Name, r.Own = "mine", own
	said := ""
	img, err := s.Build(context.Background(), r, func(step string, _ float64) { said += step })
	if err != nil || !img.OwnKernel || img.KernelWords != "nosmt" || img.Kernel != "6.12.1-own" || img.Digest == plain.Digest || !strings.Contains(said, "root of image plain") {
		t.Fatalf("%+v, %v, %q", img, err, said)
	}
	if err := s.Remove("plain", unused); err != nil {
		t.Fatal(err)
	}
	if got, err := checkFolder(s.Folder(img.Digest), img.Digest); err != nil || got.Digest != img.Digest {
		t.Errorf("%+v, %v", got, err)
	}
}

func writeKernelFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "vmlinux")
	if err := os.WriteFile(path, pvhKernel(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
