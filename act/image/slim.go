package image

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// Sections of modules that guests do not use, but the kernel processes at loading. Under
// emulation that is most of the loading time: the modules for the job's files take 2.4 s
// with them and 0.4 s without.
var dropped = []string{
	".BTF", ".BTF.base", // types, for BPF programs
	"__mcount_loc",       // list of traceable functions
	"_ftrace_events",     // traceable events
	"__tracepoints_ptrs", // their hooks
	".call_sites",        // for a mitigation that mitigations=off disables
}

// signatureMark ends a signed module.
const signatureMark = "~Module signature appended~\n"

// unsigned removes a module's signature: checking it is slow, and the image's digest
// already covers it.
func unsigned(code []byte) []byte {
	body, ok := bytes.CutSuffix(code, []byte(signatureMark))
	if !ok || len(body) < 12 {
		return code
	}
	// The last 12 bytes describe the signature before them; the last word is its length.
	n := int(binary.BigEndian.Uint32(body[len(body)-4:])) + 12
	if n > len(body) {
		return code
	}
	return body[:len(body)-n]
}

// slim returns the module with the dropped sections empty. Sections keep their numbers,
// so that references stay valid.
func slim(code []byte) ([]byte, error) {
	code = slices.Clone(unsigned(code))
	f, err := elf.NewFile(bytes.NewReader(code))
	if err != nil {
		return nil, err
	}
	if f.Class != elf.ELFCLASS64 || f.Data != elf.ELFDATA2LSB || f.Type != elf.ET_REL {
		return nil, errors.New("not a 64-bit kernel module")
	}
	const headerSize, sectionSize = 64, 64
	headers := binary.LittleEndian.Uint64(code[40:])
	if !within(code, headers, uint64(len(f.Sections))*sectionSize) {
		return nil, errors.New("its section table is damaged")
	}
	for _, s := range f.Sections {
		if hasBytes(s) && !within(code, s.Offset, s.FileSize) {
			return nil, fmt.Errorf("its section %s is damaged", s.Name)
		}
		if s.Addralign > mostAlign {
			return nil, fmt.Errorf("its section %s is aligned to %d", s.Name, s.Addralign)
		}
	}
	// In a damaged module sections may overlap the header and the table, which silence is not to change.
	out := bytes.NewBuffer(slices.Clone(code[:headerSize]))
	table := slices.Clone(code[headers : headers+uint64(len(f.Sections))*sectionSize])
	if err := silence(f, code); err != nil {
		return nil, err
	}
	for i, s := range f.Sections {
		entry := table[i*sectionSize : (i+1)*sectionSize]
		align(out, max(s.Addralign, 1))
		binary.LittleEndian.PutUint64(entry[24:], uint64(out.Len()))
		switch {
		case isDropped(f, s):
			binary.LittleEndian.PutUint64(entry[32:], 0) // size
		case hasBytes(s):
			out.Write(code[s.Offset : s.Offset+s.FileSize])
		}
	}
	align(out, 8)
	at := out.Len()
	out.Write(table)
	binary.LittleEndian.PutUint64(out.Bytes()[40:], uint64(at))
	return out.Bytes(), nil
}

// mostAlign is a page, the largest useful alignment in a module.
const mostAlign = 4096

// hasBytes reports whether the file has the section's contents.
func hasBytes(s *elf.Section) bool { return s.Type != elf.SHT_NULL && s.Type != elf.SHT_NOBITS }

// within reports whether size bytes from offset exist.
func within(code []byte, offset, size uint64) bool {
	return offset <= uint64(len(code)) && size <= uint64(len(code))-offset
}

func align(b *bytes.Buffer, to uint64) {
	for uint64(b.Len())%to != 0 {
		b.WriteByte(0)
	}
}

// isDropped also covers the relocations of dropped sections.
func isDropped(f *elf.File, s *elf.Section) bool {
	if s.Type == elf.SHT_RELA && int(s.Info) < len(f.Sections) {
		s = f.Sections[s.Info]
	}
	return slices.Contains(dropped, s.Name)
}

// silence turns the tracer call at the start of each function into a no-op, as the kernel
// does for the calls in __mcount_loc.
func silence(f *elf.File, code []byte) error {
	symbols, err := f.Symbols()
	if err != nil {
		return err
	}
	var nop = []byte{0x0f, 0x1f, 0x44, 0x00, 0x00}
	const entrySize, call = 24, 0xe8
	for _, s := range f.Sections {
		if s.Type != elf.SHT_RELA || int(s.Info) >= len(f.Sections) {
			continue
		}
		text := f.Sections[s.Info]
		if text.Flags&elf.SHF_EXECINSTR == 0 || !hasBytes(text) {
			continue
		}
		for at := s.Offset; at+entrySize <= s.Offset+s.FileSize; at += entrySize {
			where := binary.LittleEndian.Uint64(code[at:])
			symbol := binary.LittleEndian.Uint64(code[at+8:]) >> 32
			// debug/elf omits symbol 0.
			if symbol == 0 || symbol > uint64(len(symbols)) || symbols[symbol-1].Name != "__fentry__" {
				continue
			}
			if where < 1 || where >= text.FileSize || text.FileSize-where < 4 || code[text.Offset+where-1] != call {
				return fmt.Errorf("unexpected reference to the function tracer in %s", text.Name)
			}
			copy(code[text.Offset+where-1:], nop)
			clear(code[at+8 : at+16]) // R_X86_64_NONE
		}
	}
	return nil
}
