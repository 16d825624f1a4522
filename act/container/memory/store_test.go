package memory

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// numbered is memory in which every page contains its number.
type numbered struct{}

func (numbered) Fetch(process uint32, address uint64, content []byte) error {
	for i := range content {
		content[i] = byte(process + uint32((address+uint64(i))>>12))
	}
	return nil
}

// TestStoreIsAMap: after any sequence of pieces, the store has the last state of every page.
func TestStoreIsAMap(t *testing.T) {
	type page struct {
		what What
		fill byte
	}
	const pages, base = 4 * blockPages, 0x7f0000000000 - 2*blockBytes
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		store, want := newStore(t), map[uint64]page{}
		store.rest = numbered{}
		for range 300 {
			p := Piece{Process: 1 + uint32(r.IntN(2)), What: What(1 + r.IntN(4)), Address: base + uint64(r.IntN(pages))*PageBytes}
			p.Bytes = uint64(1+r.IntN(1<<r.IntN(11))) * PageBytes
			if r.IntN(20) == 0 {
				p = Piece{Process: p.Process, What: Gone, Bytes: spaceEnd}
			}
			var content []byte
			fill := byte(1 + r.IntN(255))
			if p.What == Filled {
				content = bytes.Repeat([]byte{fill}, int(p.Bytes))
			}
			if err := store.Put(p, content); err != nil {
				t.Fatal(err)
			}
			for at := max(p.Address, base); at < min(p.Address+p.Bytes, base+2*pages*PageBytes); at += PageBytes {
				want[at<<8|uint64(p.Process)] = page{p.What, fill}
			}
		}
		held, lazy := int64(0), int64(0)
		buffer := make([]byte, PageBytes)
		for process := uint32(1); process <= 2; process++ {
			for at := uint64(base); at < base+2*pages*PageBytes; at += PageBytes {
				w := want[at<<8|uint64(process)]
				got, err := store.read(process, at, buffer)
				switch w.what {
				case Filled:
					held += PageBytes
					if err != nil || !bytes.Equal(got, bytes.Repeat([]byte{w.fill}, PageBytes)) {
						t.Fatalf("seed %d: page %#x of %d: %v", seed, at, process, err)
					}
				case Zero:
					if err != nil || !bytes.Equal(got, zeros[:]) {
						t.Fatalf("seed %d: zero page %#x of %d: %v", seed, at, process, err)
					}
				case Lazy:
					lazy += PageBytes
					if err != nil || !bytes.Equal(got, bytes.Repeat([]byte{byte(process + uint32(at>>12))}, PageBytes)) {
						t.Fatalf("seed %d: page %#x of %d, which was lazy: %v", seed, at, process, err)
					}
				default:
					if err == nil {
						t.Fatalf("seed %d: page %#x of %d is there and should not be", seed, at, process)
					}
				}
			}
		}
		if got := store.HeldBytes(); got != held {
			t.Errorf("seed %d: %d bytes are held, want %d", seed, got, held)
		}
		if got := blocksOf(t, store); got > held || got < held-held/4 {
			t.Errorf("seed %d: %d bytes of files for %d", seed, got, held)
		}
	}
}

// blocksOf returns how much memory a store's files use.
func blocksOf(t testing.TB, s *Store) (total int64) {
	t.Helper()
	for _, m := range s.memories {
		st, err := m.file.Stat()
		if err != nil {
			t.Fatal(err)
		}
		total += blocks(st)
	}
	return total
}

// TestStoreReadsInARow: a read returns as many equal pages as there are.
func TestStoreReadsInARow(t *testing.T) {
	store := newStore(t)
	put := func(what What, page, n uint64) {
		t.Helper()
		var content []byte
		if what == Filled {
			content = bytes.Repeat([]byte{1}, int(n)*PageBytes)
		}
		if err := store.Put(Piece{Process: 5, What: what, Address: page * PageBytes, Bytes: n * PageBytes}, content); err != nil {
			t.Fatal(err)
		}
	}
	put(Filled, 500, 30)
	put(Zero, 530, 20)
	put(Gone, 549, 1)
	for page, want := range map[uint64]int{500: 30, 520: 10, 530: 19, 548: 1} {
		got, err := store.read(5, page*PageBytes, make([]byte, 64*PageBytes))
		if err != nil || len(got) != want*PageBytes {
			t.Errorf("from page %d: %d pages, want %d: %v", page, len(got)/PageBytes, want, err)
		}
	}
}

func TestStoreRefuses(t *testing.T) {
	store := newStore(t)
	good := Piece{Process: 1, What: Filled, Address: PageBytes, Bytes: PageBytes}
	for name, c := range map[string]struct {
		change func(*Piece)
		length int
	}{
		"no process":     {func(p *Piece) { p.Process = 0 }, PageBytes},
		"a high process": {func(p *Piece) { p.Process = 1 << 31 }, PageBytes},
		"no page":        {func(p *Piece) { p.Address++ }, PageBytes},
		"half a page":    {func(p *Piece) { p.Bytes /= 2 }, PageBytes / 2},
		"nothing":        {func(p *Piece) { p.Bytes = 0 }, 0},
		"too high":       {func(p *Piece) { p.Address = 1 << 57 }, PageBytes},
		"overflow":       {func(p *Piece) { p.What, p.Address, p.Bytes = Gone, PageBytes, ^uint64(0)&^(PageBytes-1) }, 0},
		"too short":      {func(p *Piece) {}, PageBytes - 1},
		"no content":     {func(p *Piece) {}, 0},
		"content":        {func(p *Piece) { p.What = Zero }, PageBytes},
		"many zeros":     {func(p *Piece) { p.What, p.Bytes = Zero, 1<<50 }, 0},
		"no kind":        {func(p *Piece) { p.What = 0 }, 0},
		"another kind":   {func(p *Piece) { p.What = 9 }, 0},
	} {
		p := good
		c.change(&p)
		if err := store.Put(p, make([]byte, c.length)); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	if err := store.Put(good, make([]byte, PageBytes)); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := store.Put(good, make([]byte, PageBytes)); err == nil {
		t.Error("a closed store took memory")
	}
	if n := store.HeldBytes(); n != 0 {
		t.Errorf("a closed store holds %d bytes", n)
	}
}
