// ROOM pages: it copies the private memory of running processes to another host
// before CRIU dumps them, and gives it to an unmodified CRIU there.
//
// CRIU itself copies a process's memory while the process stands still, or, with
// soft-dirty tracking, which distributions' kernels often lack, in rounds. Here
// the kernel's userfaultfd write protection and PAGEMAP_SCAN (Linux 6.7) tell
// which pages were written, for the price of one fault for each page first
// written after a pass, and nothing of it is left in the process when tracking
// ends.
//
// On the source a Tracker finds what was written and hands it on in Pieces, pass
// by pass; the last pass is made while the processes are frozen. On the target a
// Store takes the pieces and gives them to CRIU in one of two ways: as a page
// server while `criu lazy-pages` fills the memory of processes that run already,
// or put into the images of the dump, for a plain `criu restore`. In the first way
// what was written last may be owed: it is fetched from the source, where the
// processes stand still, while they run at the target. Both times the dump was made with --lazy-pages: its images say which pages there are, and hold
// those that this package does not copy (stacks in use, changed pages of private
// file mappings, shared memory).
//
// What is not seen: writes by devices into memory that was pinned for them before
// a pass, as by a direct read from a disk under way. What CRIU can dump has none
// but those; they are over when the process is frozen.
//
// The package must not know what a container is, how pieces travel, or who runs
// CRIU. Its tests run against the kernel, processes of their own, and the real
// CRIU.

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
	Owed
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
	case (p.What == Zero || p.What == Owed) && p.Bytes > mostZero:
		return fmt.Errorf("%d bytes at %#x are too many at once", p.Bytes, p.Address)
	case p.What == Filled && uint64(len(content)) != p.Bytes, p.What != Filled && len(content) != 0:
		return fmt.Errorf("%d bytes came for %d at %#x", len(content), p.Bytes, p.Address)
	case p.What < Filled || p.What > Owed:
		return fmt.Errorf("a piece of kind %d is not known", p.What)
	}
	return nil
}

// AllGone says that nothing that was sent of a process counts any more.
func AllGone(process uint32) Piece { return Piece{Process: process, What: Gone, Bytes: spaceEnd} }
