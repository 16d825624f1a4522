package fleet

import "time"

// CallClass is a kind of MPI call.
type CallClass string

// The classes of MPI calls. Calls that wait for nonblocking messages are a separate
// class, because the time of such messages is spent there.
const (
	SendRecv   CallClass = "send-recv"  // point to point, started or completed
	Collective CallClass = "collective" // over a communicator, started or completed
	WaitCall   CallClass = "wait"       // Wait and Test in all their forms
	OtherCall  CallClass = "other"      // communicators, windows, MPI_Finalize
)

// CallClasses are the classes in display order.
var CallClasses = []CallClass{SendRecv, Collective, WaitCall, OtherCall}

// Trace is what one rank has done with MPI so far. Messages are counted by the sender,
// because MPI tells a receiver less.
type Trace struct {
	Rank    int                 `json:"rank"`
	Ranks   int                 `json:"ranks"`           // of its MPI_COMM_WORLD
	Guest   GuestID             `json:"guest,omitempty"` // set by the agent
	Begun   time.Time           `json:"begun"`           // when it left MPI_Init, guest's clock
	At      time.Time           `json:"at"`              // when the trace was read, guest's clock
	Ended   bool                `json:"ended"`           // it has left MPI_Finalize
	Elapsed time.Duration       `json:"elapsed_ns"`      // since MPI_Init, by the guest's clock; excludes suspensions if that clock stops
	Outside time.Duration       `json:"outside_ns"`      // between calls, when the rank computes
	Calls   map[CallClass]Calls `json:"calls"`
	// Sent counts messages to other ranks, by Rank.
	Sent []Sent `json:"sent,omitempty"`
	// Elsewhere counts messages to ranks not in Sent: those beyond the limit of ranks
	// counted singly, or in another world.
	Elsewhere Sent `json:"elsewhere"`
	// Handed counts data given to collective calls. The MPI library routes it itself, so
	// it belongs to no pair.
	Handed Sent          `json:"handed"`
	Normal time.Duration `json:"normal_ns"` // 99 of 100 gaps are no longer
	Gaps   []Gap         `json:"gaps,omitempty"`
	// Seconds is the longest gap that ended in each of the last seconds; the last element
	// is the second of At.
	Seconds []time.Duration `json:"seconds_ns,omitempty"`
	// Spans is the percentage of time inside calls, by class, in equal intervals since
	// Begun. The last interval may be incomplete. The guest's clock counts, as for
	// Elapsed.
	Spans      map[CallClass][]int `json:"spans_percent,omitempty"`
	SpanLength time.Duration       `json:"span_ns,omitempty"`
	Newest     []Call              `json:"newest,omitempty"` // its newest calls, oldest first
}

// Call is one MPI call, or a run of successive polls that found nothing.
type Call struct {
	At    time.Time     `json:"at"` // when it began, guest's clock
	Took  time.Duration `json:"took_ns"`
	Class CallClass     `json:"class"`
}

// Calls is how many calls there were and how long they took.
type Calls struct {
	Count uint64        `json:"count"`
	Took  time.Duration `json:"took_ns"`
}

// Sent is what one rank received.
type Sent struct {
	Rank     int    `json:"rank"`
	Messages uint64 `json:"messages"`
	Bytes    uint64 `json:"bytes"`
}

// Traffic is what ranks in two guests have sent to each other since the program began,
// without collective calls.
type Traffic struct {
	A        int    `json:"a"` // guest's index, less than B
	B        int    `json:"b"`
	Messages uint64 `json:"messages"`
	Bytes    uint64 `json:"bytes"`
}

// Gap is a time in which a rank made no progress: inside an MPI call, or between two.
type Gap struct {
	Rank  int           `json:"rank"`
	At    time.Time     `json:"at"` // when it began, guest's clock
	Took  time.Duration `json:"took_ns"`
	InMPI bool          `json:"in_mpi"`         // inside an MPI call, otherwise between two
	Call  CallClass     `json:"call,omitempty"` // which, if InMPI
	Open  bool          `json:"open,omitempty"` // not over yet
	Why   []Cause       `json:"why,omitempty"`  // known events, most relevant first
}

// End is when the gap ended.
func (g Gap) End() time.Time { return g.At.Add(g.Took) }

// Reason is a possible cause of a gap.
type Reason string

// The causes of gaps.
const (
	GuestSuspended Reason = "guest-suspended" // Took: a move suspended the guest
	TCPTimeout     Reason = "tcp-timeout"     // Count: retransmission timeouts in the guest's TCP
	TCPProbe       Reason = "tcp-probe"       // Count: retransmitted last segments, which Linux counts as tail loss probes
	TCPResent      Reason = "tcp-resent"      // Count: all retransmitted segments
	TCPDelayed     Reason = "tcp-delayed"     // Count: acknowledgements delayed until a timer expired, which hold back the peer
	VCPUStolen     Reason = "vcpu-stolen"     // Took: the host gave the guest's CPUs to others
	CPUShared      Reason = "cpu-shared"      // Took: the rank was runnable, but others had the CPU: other programs of the guest, with a container also other guests and the host
	RankStopped    Reason = "rank-stopped"    // Took: the rank did not run, because of itself or a signal
	Computing      Reason = "computing"       // Took: the rank ran its own code, or the host was slow without reporting it
)

// Cause is one event during a gap. Counts are for the whole guest and may begin up to a
// second before the gap.
type Cause struct {
	What  Reason        `json:"what"`
	Took  time.Duration `json:"took_ns,omitempty"`
	Count int           `json:"count,omitempty"`
	Rank  *int          `json:"rank,omitempty"` // where it was seen; nil: the gap's own rank
}

// TraceQuery asks for traces. With a window they have the gaps that overlap it, without
// one the longest gaps and the traffic between ranks.
type TraceQuery struct {
	From time.Time `json:"from,omitzero"`
	To   time.Time `json:"to,omitzero"`
}

// Window reports whether the query is limited to a time window.
func (q TraceQuery) Window() bool { return !q.To.IsZero() }

// Stall is what a job's ranks saw of one migration: the longest gap of any rank around
// its switch. Took includes the time the guest was suspended, in which its own clock may
// stop.
type Stall struct {
	Gap
	AtSwitch    time.Duration `json:"at_switch_ns"`   // the longest that includes the suspension; the start of a copy also stalls ranks
	Undisturbed time.Duration `json:"undisturbed_ns"` // median longest gap in equally long windows without a move; 0: none
	Ranks       int           `json:"ranks"`          // that answered
}
