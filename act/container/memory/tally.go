package memory

import (
	"encoding/binary"
	"fmt"
	"os"
)

// Tally records what a page server has sent.
type Tally struct {
	Bytes int64
	All   bool // the client needs no more pages
}

const tallyBytes = 16

// write replaces the tally in its file.
func (t Tally) write(f *os.File) error {
	var b [tallyBytes]byte
	binary.BigEndian.PutUint64(b[:], uint64(t.Bytes))
	if t.All {
		b[tallyBytes-1] = 1
	}
	_, err := f.WriteAt(b[:], 0)
	return err
}

// ReadTally reads a tally. An empty file means that nothing was sent.
func ReadTally(path string) (t Tally, err error) {
	b, err := os.ReadFile(path)
	if err != nil || len(b) == 0 {
		return t, err
	}
	if len(b) != tallyBytes {
		return t, fmt.Errorf("%s is not a tally", path)
	}
	return Tally{int64(binary.BigEndian.Uint64(b)), b[tallyBytes-1] == 1}, nil
}
