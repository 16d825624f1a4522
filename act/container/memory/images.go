package memory

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const (
	completionBytes = 1 << 20 // copied at a time
	givenBytes      = 2 << 20 // copied before it is freed: freeing a few pages takes as long as copying them, and small hosts lack room for much more
)

// Complete copies the received memory into the images of a dump made with --lazy-pages,
// so that a plain `criu restore` suffices. It frees the memory as it goes. After an error
// the images are useless. Complete copies all memory, and CRIU reads all of it before the
// processes run. So it is the better way only for some tens of MiB, where it avoids
// another process to watch and slow first accesses.
func (s *Store) Complete(images string) error {
	names, err := filepath.Glob(filepath.Join(images, "pagemap-*.img"))
	if err != nil {
		return err
	}
	buffer := make([]byte, completionBytes)
	for _, name := range names {
		text := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(name), "pagemap-"), ".img")
		number, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			continue // shared memory
		}
		if err := s.complete(name, uint32(number), buffer); err != nil {
			return fmt.Errorf("put the received memory into %s: %w", name, err)
		}
	}
	return nil
}

func (s *Store) complete(name string, process uint32, buffer []byte) (err error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	m, err := parsePagemap(text)
	if err != nil || !m.Missing() {
		return err
	}
	pages := filepath.Join(filepath.Dir(name), fmt.Sprintf("pages-%d.img", m.PagesID))
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
	err = s.fill(m, process, from, to, buffer)
	if err == nil {
		err = os.Rename(to.Name(), pages)
	}
	if err == nil {
		err = os.WriteFile(name, m.Text(), 0o600)
	}
	return err
}

// fill writes all pages of a process in order: dumped ones and received ones.
func (s *Store) fill(m *pagemapImage, process uint32, from, to *os.File, buffer []byte) error {
	in, out := int64(0), int64(0)
	last, kept := area{}, 0 // copied since the last freeing; addresses only rise
	for i := range m.Entries {
		e := &m.Entries[i]
		switch {
		case e.Present:
			size := int64(e.Bytes())
			n, err := io.CopyBuffer(io.NewOffsetWriter(to, out), io.NewSectionReader(from, in, size), buffer)
			if err == nil && n < size {
				err = io.ErrUnexpectedEOF
			}
			if err != nil {
				return err
			}
			in, out = in+n, out+n
		case e.Missing():
			for at := e.Address; at < e.Address+e.Bytes(); {
				content, err := s.read(process, at, buffer[:min(uint64(len(buffer)), e.Address+e.Bytes()-at)])
				if err != nil {
					return err
				}
				if _, err := to.WriteAt(content, out); err != nil {
					return err
				}
				at, out, kept = at+uint64(len(content)), out+int64(len(content)), kept+len(content)
				if last.end = at; kept < givenBytes {
					continue
				}
				if err := s.give(process, last); err != nil {
					return err
				}
				last, kept = area{at, at}, 0
			}
			e.Present = true
		}
	}
	return s.give(process, last)
}
