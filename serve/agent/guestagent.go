package agent

import (
	"context"

	"pagurus/fleet"
)

// GuestAgent is the guest agent of one guest, reached over its link. Every call may be
// repeated with the same effect. The implementation repeats a call that a move cut off,
// until ctx ends. Errors of the guest agent itself are sentences for people.
type GuestAgent interface {
	Programs
	// Setup sets up the guest for its job: name, network, files, clock. The clock counts
	// from the call on, however late the guest gets it.
	Setup(context.Context, fleet.Setup) error
	// Signal sends a signal to a program's ranks in all guests of its job, once for its ID.
	// After an error some ranks may have it; call again.
	Signal(ctx context.Context, program string, s fleet.Signal) error
	// Trace gives the MPI traces of the ranks in this guest.
	Trace(context.Context, fleet.TraceQuery) ([]fleet.Trace, error)
	// Cache gives the memory that the guest could do without, after it has spared what it is to.
	Cache(context.Context, fleet.Spare) (fleet.Cache, error)
	// Topology gives the processors and memory that the guest sees.
	Topology(context.Context) (fleet.Topology, error)
	// Shutdown ends all programs, flushes files and unmounts the share.
	Shutdown(context.Context) error
}
