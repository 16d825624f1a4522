package memory

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// CRIU's images (criu/include/magic.h, images/pagemap.proto): two magic numbers, then messages,
// each after its length. The first message names the file with the pages, which are in the order
// of the other messages.
const (
	commonMagic  = 0x54564319
	pagemapMagic = 0x56084025

	fieldPagesID  = 1
	fieldAddress  = 1
	fieldFewPages = 2
	fieldFlags    = 4
	fieldPages    = 5
	flagParent    = 1 << 0
	flagLazy      = 1 << 1
	flagPresent   = 1 << 2
	mostMessage   = 1 << 10

	pagemapPageBytes = 4096
	pagemapSpaceEnd  = 1 << 56 // above every address a process can have
)

// pagemapImage is the image of one process.
type pagemapImage struct {
	PagesID uint32 // the number of the file that has the pages
	Entries []pagemapEntry
	head    []byte
}

// pagemapEntry describes consecutive pages.
type pagemapEntry struct {
	Address, Pages uint64
	Present        bool // they are in the file with the pages
	flags          uint64
	others         []byte // its other fields
}

// Bytes returns the pages' size.
func (e pagemapEntry) Bytes() uint64 { return e.Pages * pagemapPageBytes }

// Missing reports whether the pages exist but are not in the image.
func (e pagemapEntry) Missing() bool { return e.flags&flagLazy != 0 && !e.Present }

// Missing reports whether any pages are missing.
func (m *pagemapImage) Missing() bool { return slices.ContainsFunc(m.Entries, pagemapEntry.Missing) }

// parsePagemap parses an image.
func parsePagemap(text []byte) (*pagemapImage, error) {
	if len(text) < 8 || binary.LittleEndian.Uint32(text) != commonMagic || binary.LittleEndian.Uint32(text[4:]) != pagemapMagic {
		return nil, errors.New("it is not as CRIU writes it")
	}
	m := &pagemapImage{}
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
			m.head, m.PagesID = bytes.Clone(message), uint32(id)
			continue
		}
		e, err := parseEntry(message)
		if err != nil {
			return nil, err
		}
		m.Entries = append(m.Entries, e)
	}
	if m.head == nil {
		return nil, errors.New("it is empty")
	}
	return m, nil
}

func parseEntry(message []byte) (e pagemapEntry, err error) {
	var errs [4]error
	var few uint64
	e.Address, _, errs[0] = field(message, fieldAddress)
	few, _, errs[1] = field(message, fieldFewPages)
	e.Pages, _, errs[2] = field(message, fieldPages)
	e.flags, e.others, errs[3] = field(message, fieldFlags)
	if e.Pages == 0 {
		e.Pages = few
	}
	if err := errors.Join(errs[:]...); err != nil {
		return e, err
	}
	if e.Address%pagemapPageBytes != 0 || e.Address > pagemapSpaceEnd || e.Pages == 0 || e.Pages > (pagemapSpaceEnd-e.Address)/pagemapPageBytes {
		return e, fmt.Errorf("%d pages at %#x cannot be", e.Pages, e.Address)
	}
	if e.flags&flagParent != 0 {
		return e, errors.New("it refers to an earlier dump")
	}
	e.Present = e.flags&flagPresent != 0
	return e, nil
}

// field returns a number in a message, or 0 if it has none, and the message without it.
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

// Text returns the encoded image, with the flags that Present says.
func (m *pagemapImage) Text() []byte {
	out := binary.LittleEndian.AppendUint32(nil, commonMagic)
	out = binary.LittleEndian.AppendUint32(out, pagemapMagic)
	add := func(message []byte) {
		out = binary.LittleEndian.AppendUint32(out, uint32(len(message)))
		out = append(out, message...)
	}
	add(m.head)
	for _, e := range m.Entries {
		e.flags &^= flagPresent
		if e.Present {
			e.flags |= flagPresent
		}
		message := protowire.AppendTag(bytes.Clone(e.others), fieldFlags, protowire.VarintType)
		add(protowire.AppendVarint(message, e.flags))
	}
	return out
}
