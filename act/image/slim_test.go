package image

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cavaliergopher/cpio"
	"pgregory.net/rapid"
)

// section is a section of an artificial module. Relocations name their section in info,
// and link to the symbols.
type section struct {
	name       string
	kind       elf.SectionType
	flags      elf.SectionFlag
	link, info uint32
	entry      uint64
	data       []byte
}

// makeModule is a kernel module with all that this package reads: a function that starts
// with a call to the tracer, the list of such calls, and dependencies.
func makeModule(t testing.TB, depends ...string) []byte {
	t.Helper()
	rela := func(offset, symbol uint64) []byte {
		var b []byte
		b = binary.LittleEndian.AppendUint64(b, offset)
		b = binary.LittleEndian.AppendUint64(b, symbol<<32|uint64(elf.R_X86_64_PLT32))
		return binary.LittleEndian.AppendUint64(b, ^uint64(3))
	}
	names := []byte("\x00__fentry__\x00printk\x00")
	symbols := make([]byte, 24)
	for _, name := range []string{"__fentry__", "printk"} {
		b := make([]byte, 24)
		binary.LittleEndian.PutUint32(b, uint32(bytes.Index(names, []byte(name))))
		b[4] = byte(elf.STB_GLOBAL) << 4
		symbols = append(symbols, b...)
	}
	const symtab, text = 1, 3
	return makeELF([]section{
		{},
		{name: ".symtab", kind: elf.SHT_SYMTAB, link: 2, info: 1, entry: 24, data: symbols},
		{name: ".strtab", kind: elf.SHT_STRTAB, data: names},
		{name: ".text", kind: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC | elf.SHF_EXECINSTR, data: []byte{0xe8, 0, 0, 0, 0, 0xe8, 0, 0, 0, 0, 0xc3}},
		{name: ".rela.text", kind: elf.SHT_RELA, link: symtab, info: text, entry: 24, data: slices.Concat(rela(1, 1), rela(6, 2))},
		{name: "__mcount_loc", kind: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC, data: make([]byte, 8)},
		{name: ".rela__mcount_loc", kind: elf.SHT_RELA, link: symtab, info: 5, entry: 24, data: rela(0, 1)},
		{name: ".BTF", kind: elf.SHT_PROGBITS, data: []byte("types")},
		{name: ".modinfo", kind: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC, data: []byte("license=GPL\x00depends=" + strings.Join(depends, ",") + "\x00name=x\x00")},
		{name: ".bss", kind: elf.SHT_NOBITS, flags: elf.SHF_ALLOC, data: make([]byte, 100)},
	})
}

func makeELF(sections []section) []byte {
	const own = ".shstrtab"
	names := []byte{}
	for _, s := range append(slices.Clone(sections), section{name: own}) {
		names = append(append(names, s.name...), 0)
	}
	sections = append(sections, section{name: own, kind: elf.SHT_STRTAB, data: names})
	out := make([]byte, 64)
	copy(out, "\x7fELF\x02\x01\x01")
	binary.LittleEndian.PutUint16(out[16:], uint16(elf.ET_REL))
	binary.LittleEndian.PutUint16(out[18:], uint16(elf.EM_X86_64))
	binary.LittleEndian.PutUint32(out[20:], 1)
	binary.LittleEndian.PutUint16(out[52:], 64)
	binary.LittleEndian.PutUint16(out[58:], 64)
	binary.LittleEndian.PutUint16(out[60:], uint16(len(sections)))
	binary.LittleEndian.PutUint16(out[62:], uint16(len(sections)-1))
	var table []byte
	at := 0
	for _, s := range sections {
		h := make([]byte, 64)
		binary.LittleEndian.PutUint32(h, uint32(at))
		at += len(s.name) + 1
		binary.LittleEndian.PutUint32(h[4:], uint32(s.kind))
		binary.LittleEndian.PutUint64(h[8:], uint64(s.flags))
		binary.LittleEndian.PutUint64(h[24:], uint64(len(out)))
		binary.LittleEndian.PutUint64(h[32:], uint64(len(s.data)))
		binary.LittleEndian.PutUint32(h[40:], s.link)
		binary.LittleEndian.PutUint32(h[44:], s.info)
		binary.LittleEndian.PutUint64(h[48:], 8)
		binary.LittleEndian.PutUint64(h[56:], s.entry)
		table = append(table, h...)
		if s.kind != elf.SHT_NOBITS {
			out = append(out, s.data...)
		}
	}
	binary.LittleEndian.PutUint64(out[40:], uint64(len(out)))
	return append(out, table...)
}

func sign(code []byte) []byte {
	out := append(slices.Clone(code), "a signature"...)
	out = append(out, 0, 0, 2, 0, 0, 0, 0, 0)
	out = binary.BigEndian.AppendUint32(out, uint32(len("a signature")))
	return append(out, signatureMark...)
}

func TestSlimKeepsWhatTheKernelNeeds(t *testing.T) {
	code := makeModule(t, "sunrpc", "lockd")
	out, err := slim(sign(code))
	if err != nil {
		t.Fatal(err)
	}
	f, err := elf.NewFile(bytes.NewReader(out))
	if err != nil {
		t.Fatal(err)
	}
	before, _ := elf.NewFile(bytes.NewReader(code))
	if len(f.Sections) != len(before.Sections) {
		t.Fatalf("%d sections, before %d: their numbers have changed", len(f.Sections), len(before.Sections))
	}
	for _, s := range f.Sections {
		gone := slices.Contains([]string{"__mcount_loc", ".rela__mcount_loc", ".BTF"}, s.Name)
		if gone != (s.Type != elf.SHT_NULL && s.Size == 0) {
			t.Errorf("section %q has %d bytes", s.Name, s.Size)
		}
	}
	text, err := f.Section(".text").Data()
	if err != nil {
		t.Fatal(err)
	}
	if want := []byte{0x0f, 0x1f, 0x44, 0, 0, 0xe8, 0, 0, 0, 0, 0xc3}; !bytes.Equal(text, want) {
		t.Errorf("text is % x, want % x: only the call to the tracer goes", text, want)
	}
	rela, err := f.Section(".rela.text").Data()
	if err != nil {
		t.Fatal(err)
	}
	if first, second := binary.LittleEndian.Uint64(rela[8:]), binary.LittleEndian.Uint64(rela[32:]); first != 0 || second != 2<<32|uint64(elf.R_X86_64_PLT32) {
		t.Errorf("relocations are %#x and %#x", first, second)
	}
	needs, err := moduleNeeds(out)
	if err != nil || !slices.Equal(needs, []string{"sunrpc", "lockd"}) {
		t.Errorf("needs %v, %v", needs, err)
	}
	again, err := slim(out)
	if err != nil || !bytes.Equal(again, out) {
		t.Errorf("slimming twice is not slimming once: %v", err)
	}
}

func TestDamagedModulesAreErrors(t *testing.T) {
	whole := sign(makeModule(t, "a"))
	rapid.Check(t, func(t *rapid.T) {
		code := slices.Clone(whole)
		for range rapid.IntRange(1, 8).Draw(t, "changes") {
			code[rapid.IntRange(0, len(code)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
		}
		code = code[:rapid.IntRange(0, len(code)).Draw(t, "length")]
		_, _ = slim(code) // must not panic
		_, _ = moduleNeeds(code)
	})
}

func TestDamagedKernelsAreErrors(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		code := rapid.SliceOfN(rapid.Byte(), 0x250, 0x400).Draw(t, "kernel")
		copy(code[0x202:], "HdrS")
		hasPVH(code)
		if _, err := unpackKernel(t.Context(), code); err == nil {
			t.Skip("a payload of a kind that is not known")
		}
	})
}

// makeTree is a kernel package's modules; the value lists dependencies.
func makeTree(t *testing.T, lib string, modules map[string][]string, builtin string) string {
	t.Helper()
	root := t.TempDir()
	dir := filepath.Join(root, lib, "modules", "6.1")
	for name, needs := range modules {
		path := filepath.Join(dir, "kernel", name+".ko")
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, sign(makeModule(t, needs...)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "modules.builtin"), []byte(builtin), 0o644); err != nil {
		t.Fatal(err)
	}
	return root
}

func TestModulesComeAfterWhatTheyNeed(t *testing.T) {
	for _, lib := range []string{"lib", "usr/lib"} {
		root := makeTree(t, lib, map[string][]string{
			"fs/nfsv4": {"nfs", "dns_resolver"}, "fs/nfs": {"lockd"}, "fs/lockd": nil,
			"net/dns-resolver": nil, "char/virtio-rng": nil, "other": nil,
		}, "kernel/drivers/block/virtio-blk.ko\n")
		tree, err := openModules(root, "6.1")
		if err != nil {
			t.Fatal(err)
		}
		got, err := tree.order([]string{"virtio_blk", "nfsv4"}, []string{"virtio_rng", "missing"})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, m := range got {
			names = append(names, m.name)
		}
		if want := []string{"lockd", "nfs", "dns_resolver", "nfsv4", "virtio_rng"}; !slices.Equal(names, want) {
			t.Errorf("order %v, want %v", names, want)
		}
		if got[0].path != "/lib/modules/6.1/kernel/fs/lockd.ko" {
			t.Errorf("path in the guest is %s", got[0].path)
		}
		if _, err := tree.order([]string{"missing"}, nil); err == nil || !strings.Contains(err.Error(), "no module missing") {
			t.Errorf("a missing module: %v", err)
		}
		checkArchive(t, got)
		more, err := tree.withDrivers(got, []string{"other", "nfs", "missing"})
		if err != nil || len(more) != len(got)+1 || more[len(got)].name != "other" || !more[len(got)].driver {
			t.Errorf("with drivers there are %d modules, %v", len(more), err)
		}
		var archive bytes.Buffer
		if err := writeModules(&archive, more, nil); err != nil || !strings.Contains(archive.String(), "\ndevice /lib/modules/6.1/kernel/other.ko\n") {
			t.Errorf("a driver is not listed as one: %v", err)
		}
	}
	if _, err := openModules(t.TempDir(), "6.1"); err == nil {
		t.Error("no modules at all are no error")
	}
}

// checkArchive reads the archive as the guest agent does.
func checkArchive(t *testing.T, modules []module) {
	t.Helper()
	var one, two bytes.Buffer
	if err := writeModules(&one, modules, nil); err != nil {
		t.Fatal(err)
	}
	if err := writeModules(&two, modules, nil); err != nil || !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Error("the same modules give different archives")
	}
	if one.Len()%4 != 0 {
		t.Errorf("%d bytes: the next archive would not be aligned", one.Len())
	}
	files := map[string]string{}
	in := cpio.NewReader(&one)
	for {
		h, err := in.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		if parent := filepath.Dir(h.Name); parent != "." {
			if _, ok := files[parent]; !ok {
				t.Errorf("%s comes before its folder", h.Name)
			}
		}
		files[h.Name] = string(b)
	}
	for i, line := range strings.Fields(files[OrderFile[1:]]) {
		if line != modules[i].path || files[line[1:]] != string(modules[i].code) {
			t.Errorf("line %d of the order is %s", i, line)
		}
	}
}
