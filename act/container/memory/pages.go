package memory

import (
	"errors"
	"fmt"
)

// Piece is a part of the memory of one process, in whole pages.
type Piece struct {
	Process uint32 // its number in its own pid namespace, which is what CRIU knows
	What    What
	Address uint64
	Bytes   uint64
}

// What says how the memory of a piece is known.
type What uint8

const (
	// Filled: what it holds comes with it.
	Filled What = iota + 1
	// Zero: there, and nothing but zeros.
	Zero
	// Gone: no longer there. What was sent of it counts no more.
	Gone
	// Owed: there, and what it holds is fetched when it is wanted.
	Lazy
)

// PageBytes is the size of a page.
const PageBytes = 4096

const (
	// spaceEnd is above every address a process can have.
	spaceEnd = 1 << 56
	// mostZero is how much one piece may say to be zeros, or owed: who receives it
	// keeps a bit for each page.
	mostZero = 1 << 38
	// mostProcess is the kernel's highest process number.
	mostProcess = 1 << 22
)

// ErrUnsupported says that this machine's kernel cannot tell which pages were
// written: nothing can be copied beforehand.
var ErrUnsupported = errors.New("the kernel cannot tell which pages of a process were written; Linux 6.7 and later can")

// check refuses a piece that cannot be.
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

// AllGone says that nothing that was sent of a process counts any more.
func AllGone(process uint32) Piece { return Piece{Process: process, What: Gone, Bytes: spaceEnd} }
