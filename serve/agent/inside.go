package agent

import (
	"context"

	"pagurus/fleet"
)

// Inside is the guest agent of one guest, reached over its link. Every call
// may be repeated and means the same; a call cut off by a move is repeated by
// the implementation until ctx ends. Errors of the guest agent itself are
// sentences for people.
type Inside interface {
	Programs
	// Setup makes the guest a member of its job: name, network, files, clock.
	// The clock counts from the call on, however late the guest hears of it.
	Setup(context.Context, fleet.Setup) error
	// Trace gives what the ranks in this guest have done with MPI.
	Trace(context.Context, fleet.TraceQuery) ([]fleet.Trace, error)
	// Cache gives what the guest could do without, after it has dropped its
	// page cache if told to.
	Cache(ctx context.Context, drop bool) (fleet.Cache, error)
	// Shutdown ends all programs, flushes files and unmounts the share.
	Shutdown(context.Context) error
}

// Programs is what runs in a guest; as Inside says of its calls.
type Programs interface {
	// Launch starts a program, once for its ID.
	Launch(context.Context, fleet.Program) error
	// Wait returns when the program ended.
	Wait(ctx context.Context, id string) (fleet.Exit, error)
	// Read gives output from offset on, waiting for some; the guest forgets
	// what is before offset. eof: there is nothing at offset and never will be.
	Read(ctx context.Context, id, stream string, offset int64) (data []byte, eof bool, err error)
	// Write gives the program input that begins at offset and says where to go
	// on; input before the guest's own offset is passed over. eof closes it.
	Write(ctx context.Context, id string, offset int64, data []byte, eof bool) (next int64, err error)
}
