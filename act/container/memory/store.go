package memory

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Store keeps the received memory of processes until CRIU has it. It uses nameless memory
// files, which vanish however this process ends. Its methods may be called concurrently.
type Store struct {
	mu       sync.Mutex
	memories map[uint32]*processMemory // by the process's number in its own pid namespace
	rest     Rest                      // fetches lazy pages; nil: there is no source for them
	closed   bool
}

// Rest fetches lazy pages.
type Rest interface {
	// Fetch fills content with a process's memory from an address on, in whole pages.
	Fetch(process uint32, address uint64, content []byte) error
}

// NewStore returns an empty Store.
func NewStore() *Store { return &Store{memories: map[uint32]*processMemory{}} }

// errClosed is what the methods of a closed Store return.
var errClosed = errors.New("the received memory was given back already")

// Put stores a piece. The piece replaces earlier content. After an error that memory
// counts as gone.
func (s *Store) Put(p Piece, content []byte) error {
	if err := p.check(content); err != nil {
		return fmt.Errorf("receive memory: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	m := s.memories[p.Process]
	if m == nil {
		if p.What == Gone {
			return nil
		}
		var err error
		if m, err = newMemory(p.Process); err != nil {
			return err
		}
		s.memories[p.Process] = m
	}
	if err := m.put(p, content); err != nil {
		return fmt.Errorf("keep memory of process %d: %w", p.Process, err)
	}
	return nil
}

// HeldBytes returns how many bytes of received memory are held.
func (s *Store) HeldBytes() int64 {
	return s.count(func(b *block, word int) uint64 { return b.filled[word] })
}

// LazyBytes returns how many bytes are still to be fetched.
func (s *Store) LazyBytes() int64 {
	return s.count(func(b *block, word int) uint64 { return b.lazy[word] })
}

// count adds up pages, 64 at a time.
func (s *Store) count(which func(b *block, word int) uint64) (total int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.memories {
		for _, b := range m.blocks {
			for word := range b.filled {
				total += int64(bits.OnesCount64(which(b, word))) * PageBytes
			}
		}
	}
	return total
}

// Close frees the memory. It may be called again.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	var errs []error
	for number, m := range s.memories {
		errs = append(errs, m.file.Close())
		delete(s.memories, number)
	}
	return errors.Join(errs...)
}

// read fills content with the stored memory of a process from an address on: as many
// consecutive pages as are stored, at least one. Lazy pages are fetched.
func (s *Store) read(process uint32, address uint64, content []byte) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	m := s.memories[process]
	if m == nil {
		return nil, fmt.Errorf("no memory of process %d was received", process)
	}
	return m.read(address, content, s.rest)
}

// give frees memory that is not needed any more.
func (s *Store) give(process uint32, a area) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.memories[process]
	if m == nil {
		return nil
	}
	return m.drop(a)
}

// processMemory is the memory of one process: a file as large as an address space, in
// which the offset is the address, and the state of each page.
type processMemory struct {
	number uint32
	file   *os.File
	blocks map[uint64]*block // by address / blockBytes
}

const (
	blockPages = 512
	blockBytes = blockPages * PageBytes
)

// block records which of its pages are stored, which contain only zeros, and which are
// lazy.
type block struct{ filled, zero, lazy [blockPages / 64]uint64 }

// errNobody says that there is no source from which to fetch a lazy page.
var errNobody = errors.New("no source connection for the lazy pages")

func newMemory(number uint32) (*processMemory, error) {
	fd, err := unix.MemfdCreate("pagurus-pages", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make room for the memory of process %d: %w", number, err)
	}
	return &processMemory{number: number, file: os.NewFile(uintptr(fd), "memory"), blocks: map[uint64]*block{}}, nil
}

func (m *processMemory) put(p Piece, content []byte) error {
	a := area{p.Address, p.Address + p.Bytes}
	if p.What == Filled {
		m.mark(a, false, (*block).clear)
		if _, err := m.file.WriteAt(content, int64(p.Address)); err != nil {
			return err
		}
		m.mark(a, true, func(b *block, word int, mask uint64) { b.filled[word] |= mask })
		return nil
	}
	if err := m.drop(a); err != nil {
		return err
	}
	m.mark(a, false, (*block).clear)
	switch p.What {
	case Zero:
		m.mark(a, true, func(b *block, word int, mask uint64) { b.zero[word] |= mask })
	case Lazy:
		m.mark(a, true, func(b *block, word int, mask uint64) { b.lazy[word] |= mask })
	}
	return nil
}

// drop frees what the pages hold.
func (m *processMemory) drop(a area) error {
	kept := false
	m.mark(a, false, func(b *block, word int, mask uint64) {
		kept = kept || b.filled[word]&mask != 0
		b.filled[word] &^= mask
		b.zero[word] &^= mask
		b.lazy[word] &^= mask
	})
	if !kept {
		return nil
	}
	return unix.Fallocate(int(m.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(a.start), int64(a.end-a.start))
}

// clear marks pages as never received.
func (b *block) clear(word int, mask uint64) {
	b.filled[word] &^= mask
	b.zero[word] &^= mask
	b.lazy[word] &^= mask
}

// mark changes the state of pages, 64 at a time. With create it does so also for blocks
// that do not exist yet.
func (m *processMemory) mark(a area, create bool, change func(b *block, word int, mask uint64)) {
	if blocks := (a.end - a.start) / blockBytes; !create && blocks > uint64(len(m.blocks)) {
		for number, b := range m.blocks {
			start := number * blockBytes
			b.change(start, area{max(start, a.start), min(start+blockBytes, a.end)}, change)
		}
		return
	}
	for number := a.start / blockBytes; number*blockBytes < a.end; number++ {
		b := m.blocks[number]
		if b == nil && create {
			b = &block{}
			m.blocks[number] = b
		}
		if b != nil {
			start := number * blockBytes
			b.change(start, area{max(start, a.start), min(start+blockBytes, a.end)}, change)
		}
	}
}

// change applies a change to those pages of the area that are in a block beginning at
// start.
func (b *block) change(start uint64, a area, change func(b *block, word int, mask uint64)) {
	if a.start >= a.end {
		return
	}
	from, to := (a.start-start)/PageBytes, (a.end-start)/PageBytes
	for word := from / 64; word*64 < to; word++ {
		mask := ^uint64(0)
		if from > word*64 {
			mask <<= from - word*64
		}
		if left := to - word*64; left < 64 {
			mask &= 1<<left - 1
		}
		change(b, int(word), mask)
	}
}

// known returns the state of a page, or Gone if it is unknown.
func (m *processMemory) known(address uint64) What {
	b := m.blocks[address/blockBytes]
	if b == nil {
		return Gone
	}
	page := address % blockBytes / PageBytes
	switch {
	case b.filled[page/64]>>(page%64)&1 != 0:
		return Filled
	case b.zero[page/64]>>(page%64)&1 != 0:
		return Zero
	case b.lazy[page/64]>>(page%64)&1 != 0:
		return Lazy
	}
	return Gone
}

func (m *processMemory) read(address uint64, content []byte, rest Rest) ([]byte, error) {
	first := m.known(address)
	size := PageBytes
	for size < len(content) && m.known(address+uint64(size)) == first {
		size += PageBytes
	}
	content = content[:size]
	switch first {
	case Gone:
		return nil, fmt.Errorf("the page at %#x of process %d was not received", address, m.number)
	case Lazy:
		if rest == nil {
			return nil, fmt.Errorf("the page at %#x of process %d: %w", address, m.number, errNobody)
		}
		return content, rest.Fetch(m.number, address, content)
	case Zero:
		clear(content)
		return content, nil
	}
	if _, err := m.file.ReadAt(content, int64(address)); err != nil {
		return nil, fmt.Errorf("read the received memory of process %d: %w", m.number, err)
	}
	return content, nil
}
