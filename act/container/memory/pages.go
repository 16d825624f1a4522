package memory

import (
	"errors"
	"fmt"
)

// Piece is a part of the memory of one process, in whole pages.
type Piece struct {
	Process uint32 // its number in its own pid namespace, which is the one that CRIU uses
	What    What
	Address uint64
	Bytes   uint64
}

// What is the state of a piece's memory.
type What uint8

const (
	// Filled: the content comes with the piece.
	Filled What = iota + 1
	// Zero: the pages exist and contain only zeros.
	Zero
	// Gone: the pages no longer exist. Content sent earlier is invalid.
	Gone
	// Lazy: the pages exist, and their content is fetched when it is needed.
	Lazy
)

// PageBytes is the size of a page.
const PageBytes = 4096

const (
	// spaceEnd is above every address a process can have.
	spaceEnd = 1 << 56
	// mostZero is the largest size of a zero or lazy piece, in bytes: the receiver keeps
	// a bit for each page.
	mostZero = 1 << 38
	// mostProcess is the kernel's highest process number.
	mostProcess = 1 << 22
)

// ErrUnsupported says that this machine's kernel cannot report which pages were written,
// so that no memory can be copied while the guest runs.
var ErrUnsupported = errors.New("the kernel cannot tell which pages of a process were written; Linux 6.7 and later can")

// check refuses an impossible piece.
func (p Piece) check(content []byte) error {
	switch {
	case p.Process == 0 || p.Process > mostProcess:
		return fmt.Errorf("no process has the number %d", p.Process)
	case p.Address%PageBytes != 0 || p.Bytes%PageBytes != 0 || p.Bytes == 0:
		return fmt.Errorf("%d bytes at %#x are not whole pages", p.Bytes, p.Address)
	case p.Address > spaceEnd || p.Bytes > spaceEnd-p.Address:
		return fmt.Errorf("%d bytes at %#x: no process has so much memory", p.Bytes, p.Address)
	case (p.What == Zero || p.What == Lazy) && p.Bytes > mostZero:
		return fmt.Errorf("%d bytes at %#x are too many at once", p.Bytes, p.Address)
	case p.What == Filled && uint64(len(content)) != p.Bytes, p.What != Filled && len(content) != 0:
		return fmt.Errorf("%d bytes came for %d at %#x", len(content), p.Bytes, p.Address)
	case p.What < Filled || p.What > Lazy:
		return fmt.Errorf("a piece of kind %d is not known", p.What)
	}
	return nil
}

// AllGone returns the piece that makes everything sent of a process invalid.
func AllGone(process uint32) Piece { return Piece{Process: process, What: Gone, Bytes: spaceEnd} }
