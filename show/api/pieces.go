package api

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
)

// Limits of what is written once for many.
const (
	sharedMost = 64      // pieces that are kept for others at the same places, until the next change
	renewed    = 1000    // changes after which a beginning is written again, or
	renewedOf  = 4       // when a part of all things has changed: one of so many
	stored     = 0x7fff  // bytes of a block that is not compressed
	packLeast  = 1 << 10 // bytes that are worth being compressed
)

// piece is some of what follows a place, as it is sent. It is written once, and compressed once, for all who are there.
type piece struct {
	plain []byte
	upTo  int64
	more  bool // it is not all

	packing sync.Once
	packed  []byte
}

// pack compresses the piece, as blocks of a stream that says nothing about other blocks: so they can follow each other in any stream.
func (p *piece) pack() []byte {
	p.packing.Do(func() { p.packed = deflate(p.plain) })
	return p.packed
}

// place is where watchers are who are sent the same.
type place struct {
	at    int64
	kinds string
}

// shared is what was written for watchers. It is bounded, however many read slowly, and each at a place of its own.
type shared struct {
	mu     sync.Mutex
	pieces map[place]*piece

	beginning  sync.Mutex // one is written at a time
	beginnings map[string]*beginning
}

// forget lets go of pieces that are not all any more.
func (s *shared) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.pieces)
}

// piece finds what was written for a place, or writes it.
func (s *shared) piece(at place, write func() *piece) *piece {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pieces[at]
	if p == nil {
		if p = write(); len(s.pieces) < sharedMost {
			s.pieces[at] = p
		}
	}
	return p
}

// beginning is everything, as it was at some time that is not long past. Who gets it is sent what changed since.
type beginning struct {
	pieces []*piece
	upTo   int64
	floor  int64
}

// beginning finds a beginning that is new enough, or writes one.
func (f *feed) beginning(of kinds) *beginning {
	f.shared.beginning.Lock()
	defer f.shared.beginning.Unlock()
	f.mu.RLock()
	defer f.mu.RUnlock()
	b := f.shared.beginnings[of.text]
	if b != nil && b.upTo >= f.floor && f.last-b.upTo <= max(renewed, int64(len(f.objects)/renewedOf)) {
		return b
	}
	b = &beginning{floor: f.floor, upTo: f.last}
	for at, more := int64(0), true; more; {
		p := f.write(at, of, true)
		at, more = p.upTo, p.more
		b.pieces = append(b.pieces, p)
	}
	if len(f.shared.beginnings) >= sharedMost {
		clear(f.shared.beginnings)
	}
	f.shared.beginnings[of.text] = b
	return b
}

// scribe writes events: one for each thing, or in brief one "rows" of all.
type scribe struct {
	feed *feed
	size int
	out  []byte
	by   map[string][][]byte // in brief: rows by kind
	upTo int64
}

func (s *scribe) add(e entry, o object) {
	kind, row := e.of.kind, o.row
	if row == nil {
		kind, row = "gone", goneRow(e.of)
	}
	s.size += len(row)
	s.upTo = e.at
	if !s.feed.brief {
		s.out = fmt.Appendf(s.out, "id: %s-%d\nevent: %s\ndata: %s\n\n", s.feed.epoch, e.at, kind, row)
		return
	}
	if s.by == nil {
		s.by = map[string][][]byte{}
	}
	s.by[kind] = append(s.by[kind], row)
}

func (s *scribe) text() []byte {
	if !s.feed.brief || len(s.by) == 0 {
		return s.out
	}
	s.out = fmt.Appendf(make([]byte, 0, s.size+s.size/16+1024), "id: %s-%d\nevent: rows\ndata: {", s.feed.epoch, s.upTo)
	for _, kind := range append([]string{"gone"}, Kinds...) {
		if rows := s.by[kind]; len(rows) > 0 {
			s.out = fmt.Appendf(s.out, "%q:[%s],", kind, bytes.Join(rows, []byte(",")))
		}
	}
	return append(s.out[:len(s.out)-1], "}\n\n"...)
}

// gzipHeader begins a stream that is compressed. Its end, with a checksum, never comes: a stream of events has none.
var gzipHeader = []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255}

// flushed is an empty block, at which readers give away what they have.
var flushed = []byte{0, 0, 0, 0xff, 0xff}

var deflaters = sync.Pool{New: func() any {
	w, err := flate.NewWriter(nil, flate.BestSpeed)
	if err != nil {
		panic(err) // the level exists
	}
	return w
}}

// deflate compresses to blocks that end at a byte's end, and are not the last.
func deflate(text []byte) []byte {
	var out bytes.Buffer
	if len(text) < packLeast { // as they are
		for part := range slices.Chunk(text, stored) {
			n := uint16(len(part))
			out.WriteByte(0)
			out.Write(binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(nil, n), ^n))
			out.Write(part)
		}
		out.Write(flushed)
		return out.Bytes()
	}
	w := deflaters.Get().(*flate.Writer)
	defer deflaters.Put(w)
	w.Reset(&out)
	_, _ = w.Write(text) // a buffer takes everything
	_ = w.Flush()
	return out.Bytes()
}
