package pages

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// CRIU's images (criu/include/magic.h, images/pagemap.proto): two numbers that say
// what it is, then messages, each after its length. The first names the file with
// the pages, which has them in the order of the others.
const (
	commonMagic  = 0x54564319
	pagemapMagic = 0x56084025

	fieldPagesID    = 1
	fieldAddress    = 1
	fieldFewPages   = 2
	fieldFlags      = 4
	fieldPages      = 5
	flagParent      = 1 << 0
	flagLazy        = 1 << 1
	flagPresent     = 1 << 2
	mostMessage     = 1 << 10
	completionBytes = 1 << 20
)

// Complete puts the memory received into the images of a dump that was made with
// --lazy-pages, so that a plain `criu restore` has all it needs, and gives it back
// as it goes. After an error the images are of no use. It copies all memory, and
// CRIU reads it all before the processes run, so it is the better way only for some
// tens of MiB, where it spares a program to watch over and the slow first touch of
// each page.
func (s *Store) Complete(images string) error {
	names, err := filepath.Glob(filepath.Join(images, "pagemap-*.img"))
	if err != nil {
		return err
	}
	for _, name := range names {
		text := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(name), "pagemap-"), ".img")
		number, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			continue // of shared memory
		}
		if err := s.complete(name, uint32(number)); err != nil {
			return fmt.Errorf("put the received memory into %s: %w", name, err)
		}
	}
	return nil
}

func (s *Store) complete(name string, process uint32) (err error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	m, err := parsePagemap(text)
	if err != nil || !m.lazy() {
		return err
	}
	pages := filepath.Join(filepath.Dir(name), fmt.Sprintf("pages-%d.img", m.pagesID))
	from, err := os.Open(pages)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	to, err := os.OpenFile(pages+".new", os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	err = s.fill(m, process, from, to)
	if err == nil {
		err = os.Rename(to.Name(), pages)
	}
	if err == nil {
		err = os.WriteFile(name, m.text(), 0o600)
	}
	return err
}

// fill writes all pages of a process, in order: those that the dump has, and those
// that were received.
func (s *Store) fill(m *pagemap, process uint32, from, to *os.File) error {
	buffer := make([]byte, completionBytes)
	in, out := int64(0), int64(0)
	for i := range m.entries {
		e := &m.entries[i]
		switch {
		case e.flags&flagPresent != 0:
			size := int64(e.bytes())
			n, err := io.CopyBuffer(io.NewOffsetWriter(to, out), io.NewSectionReader(from, in, size), buffer)
			if err == nil && n < size {
				err = io.ErrUnexpectedEOF
			}
			if err != nil {
				return err
			}
			in, out = in+n, out+n
		case e.flags&flagLazy != 0:
			for at := e.address; at < e.address+e.bytes(); {
				content, err := s.read(process, at, buffer[:min(uint64(len(buffer)), e.address+e.bytes()-at)])
				if err != nil {
					return err
				}
				if _, err := to.WriteAt(content, out); err != nil {
					return err
				}
				end := at + uint64(len(content))
				if err := s.give(process, area{at, end}); err != nil {
					return err
				}
				at, out = end, out+int64(len(content))
			}
			e.flags |= flagPresent
		}
	}
	return nil
}

// pagemap is the image of that name.
type pagemap struct {
	pagesID uint32
	head    []byte
	entries []entry
}

// entry is pages in a row.
type entry struct {
	address, pages, flags uint64
	others                []byte // its other fields
}

func (e entry) bytes() uint64 { return e.pages * PageBytes }

// lazy reports whether pages are missing.
func (m *pagemap) lazy() bool {
	for _, e := range m.entries {
		if e.flags&flagLazy != 0 && e.flags&flagPresent == 0 {
			return true
		}
	}
	return false
}

func parsePagemap(text []byte) (*pagemap, error) {
	if len(text) < 8 || binary.LittleEndian.Uint32(text) != commonMagic || binary.LittleEndian.Uint32(text[4:]) != pagemapMagic {
		return nil, errors.New("it is not as CRIU writes it")
	}
	m := &pagemap{}
	for rest := text[8:]; len(rest) > 0; {
		if len(rest) < 4 {
			return nil, errors.New("it is cut off")
		}
		size := binary.LittleEndian.Uint32(rest)
		if rest = rest[4:]; size > mostMessage || int(size) > len(rest) {
			return nil, errors.New("it is cut off")
		}
		message := rest[:size]
		rest = rest[size:]
		if m.head == nil {
			id, _, err := field(message, fieldPagesID)
			if err != nil {
				return nil, err
			}
			m.head, m.pagesID = bytes.Clone(message), uint32(id)
			continue
		}
		e, err := parseEntry(message)
		if err != nil {
			return nil, err
		}
		m.entries = append(m.entries, e)
	}
	if m.head == nil {
		return nil, errors.New("it is empty")
	}
	return m, nil
}

func parseEntry(message []byte) (e entry, err error) {
	var errs [4]error
	var few uint64
	e.address, _, errs[0] = field(message, fieldAddress)
	few, _, errs[1] = field(message, fieldFewPages)
	e.pages, _, errs[2] = field(message, fieldPages)
	e.flags, e.others, errs[3] = field(message, fieldFlags)
	if e.pages == 0 {
		e.pages = few
	}
	if err := errors.Join(errs[:]...); err != nil {
		return e, err
	}
	if e.address%PageBytes != 0 || e.address > spaceEnd || e.pages == 0 || e.pages > (spaceEnd-e.address)/PageBytes {
		return e, fmt.Errorf("%d pages at %#x cannot be", e.pages, e.address)
	}
	if e.flags&flagParent != 0 {
		return e, errors.New("it refers to an earlier dump")
	}
	return e, nil
}

// field gives a number in a message, 0 if it has none, and the message without it.
func field(message []byte, number protowire.Number) (value uint64, others []byte, err error) {
	for len(message) > 0 {
		n, kind, size := protowire.ConsumeField(message)
		if size < 0 {
			return 0, nil, fmt.Errorf("it is not as CRIU writes it: %w", protowire.ParseError(size))
		}
		if n != number {
			others = append(others, message[:size]...)
		} else {
			if kind != protowire.VarintType {
				return 0, nil, errors.New("it is not as CRIU writes it")
			}
			_, _, tag := protowire.ConsumeTag(message)
			value, _ = protowire.ConsumeVarint(message[tag:])
		}
		message = message[size:]
	}
	return value, others, nil
}

// text is the image again.
func (m *pagemap) text() []byte {
	out := binary.LittleEndian.AppendUint32(nil, commonMagic)
	out = binary.LittleEndian.AppendUint32(out, pagemapMagic)
	add := func(message []byte) {
		out = binary.LittleEndian.AppendUint32(out, uint32(len(message)))
		out = append(out, message...)
	}
	add(m.head)
	for _, e := range m.entries {
		message := protowire.AppendTag(bytes.Clone(e.others), fieldFlags, protowire.VarintType)
		add(protowire.AppendVarint(message, e.flags))
	}
	return out
}
