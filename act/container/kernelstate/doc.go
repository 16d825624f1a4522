// Package kernelstate carries kernel state of a container's processes that CRIU leaves behind.
//
// NoteState (carry.go) records it at the source while all processes are suspended. Restore gives
// it to the restored processes at the target before any of them runs. transient.go finds
// transient obstacles: connections that are being made, locks, messages not yet read. rows.go
// and its neighbours list every kind of kernel state and what a move does with it;
// docs/moving.md has that table, printed from here.
//
// The package does not know who moves the container, or where to. Its tests compare the
// table with the kernel's headers; the driver's tests move a program for each row.
package kernelstate
