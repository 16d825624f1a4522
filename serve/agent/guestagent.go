package agent

import (
	"context"

	"pagurus/fleet"
)

// GuestAgent is the guest agent of one guest, reached over its link. Every call
// may be repeated and means the same; a call cut off by a move is repeated by
// the implementation until ctx ends. Errors of the guest agent itself are
// sentences for people.
type GuestAgent interface {
	Programs
	// Setup makes the guest a member of its job: name, network, files, clock.
	// The clock counts from the call on, however late the guest hears of it.
	Setup(context.Context, fleet.Setup) error
	// Signal passes a signal on to the ranks of a program, in all guests of its
	// job, once for its ID. After an error some may have it; call again.
	Signal(ctx context.Context, program string, s fleet.Signal) error
	// Trace gives what the ranks in this guest have done with MPI.
	Trace(context.Context, fleet.TraceQuery) ([]fleet.Trace, error)
	// Cache gives what the guest could do without, after it has dropped its
	// entry cache if told to.
	Cache(ctx context.Context, drop bool) (fleet.Cache, error)
	// Topology gives what the guest sees of its processors and its memory.
	Topology(context.Context) (fleet.Topology, error)
	// Shutdown ends all programs, flushes files and unmounts the share.
	Shutdown(context.Context) error
}
