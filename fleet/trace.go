package fleet

import "time"

// CallClass is a kind of MPI call.
type CallClass string

// The classes of MPI calls. What waits for a message that was only begun is in
// a class of its own, since there the time of such messages is spent.
const (
	SendRecv   CallClass = "send-recv"  // point to point, begun or carried out
	Collective CallClass = "collective" // all ranks of a communicator, begun or carried out
	WaitCall   CallClass = "wait"       // Wait and Test in all their forms
	OtherCall  CallClass = "other"      // communicators, windows, MPI_Finalize
)

// CallClasses are the classes of calls in the order they are shown.
var CallClasses = []CallClass{SendRecv, Collective, WaitCall, OtherCall}

// Trace is what one rank has done with MPI so far. It is counted on the
// sending side: MPI tells a receiver less.
type Trace struct {
	Rank    int                 `json:"rank"`
	Ranks   int                 `json:"ranks"`           // of its MPI_COMM_WORLD
	Guest   GuestID             `json:"guest,omitempty"` // that it runs in; set by the agent
	Begun   time.Time           `json:"begun"`           // when it left MPI_Init, guest's clock
	At      time.Time           `json:"at"`              // when this was so, guest's clock
	Ended   bool                `json:"ended"`           // it has left MPI_Finalize
	Elapsed time.Duration       `json:"elapsed_ns"`      // since MPI_Init, by the guest's clock, which stops while the guest is suspended
	Outside time.Duration       `json:"outside_ns"`      // between calls: the rank computes
	Calls   map[CallClass]Calls `json:"calls"`
	// Sent counts the messages that it has sent to other ranks, by Rank.
	Sent []Sent `json:"sent,omitempty"`
	// Elsewhere is what it has sent to ranks that are not in Sent: there are
	// more than are counted each by itself, or they are of another world.
	Elsewhere Sent `json:"elsewhere"`
	// Handed is what it has handed to collective calls, which the MPI library
	// brings to the other ranks on ways of its own: it belongs to no pair.
	Handed Sent          `json:"handed"`
	Normal time.Duration `json:"normal_ns"` // 99 of 100 of its gaps are no longer
	Gaps   []Gap         `json:"gaps,omitempty"`
	// Seconds are the longest gaps that ended in each of the last seconds, the
	// last one that of At.
	Seconds []time.Duration `json:"seconds_ns,omitempty"`
	// Spans are, for each of some equally long times since Begun, by class how much
	// of it the rank was inside of calls, in percent; the last one may not be over.
	// They are by the guest's clock, as Elapsed is.
	Spans      map[CallClass][]int `json:"spans_percent,omitempty"`
	SpanLength time.Duration       `json:"span_ns,omitempty"`
	Newest     []Call              `json:"newest,omitempty"` // its newest calls, the oldest first
}

// Call is one MPI call, or of polls that found nothing many that came one right after the other.
type Call struct {
	At    time.Time     `json:"at"` // when it began, guest's clock
	Took  time.Duration `json:"took_ns"`
	Class CallClass     `json:"class"`
}

// Calls is how often and how long.
type Calls struct {
	Count uint64        `json:"count"`
	Took  time.Duration `json:"took_ns"`
}

// Sent is what went to one rank.
type Sent struct {
	Rank     int    `json:"rank"`
	Messages uint64 `json:"messages"`
	Bytes    uint64 `json:"bytes"`
}

// Traffic is what ranks in two guests of a job have sent to each other since its
// program began, collective calls left out.
type Traffic struct {
	A        int    `json:"a"` // by index, less than B
	B        int    `json:"b"`
	Messages uint64 `json:"messages"`
	Bytes    uint64 `json:"bytes"`
}

// Gap is a time in which a rank made no progress through its MPI calls: inside
// of one, or between two.
type Gap struct {
	Rank  int           `json:"rank"`
	At    time.Time     `json:"at"` // when it began, guest's clock
	Took  time.Duration `json:"took_ns"`
	InMPI bool          `json:"in_mpi"`         // inside an MPI call, otherwise between two
	Call  CallClass     `json:"call,omitempty"` // which, if InMPI
	Open  bool          `json:"open,omitempty"` // it goes on
	Why   []Cause       `json:"why,omitempty"`  // what is known to have happened, the most telling first
}

// End is when the gap was over.
func (g Gap) End() time.Time { return g.At.Add(g.Took) }

// Reason is what can be the cause of a gap.
type Reason string

// The causes of gaps.
const (
	GuestSuspended Reason = "guest-suspended" // Took: a move suspended the guest
	TCPTimeout     Reason = "tcp-timeout"     // Count: TCP in the guest waited in vain for an answer and sent again
	TCPProbe       Reason = "tcp-probe"       // Count: the same of a last segment, which Linux takes for a probe of what is lost
	TCPResent      Reason = "tcp-resent"      // Count: segments that TCP sent again, for whatever reason
	TCPDelayed     Reason = "tcp-delayed"     // Count: acknowledgements that TCP delayed until a timer expired; the peer sends no more while it waits
	VCPUStolen     Reason = "vcpu-stolen"     // Took: the host gave the guest's CPUs to others
	CPUShared      Reason = "cpu-shared"      // Took: the rank could have run, but others had the CPU: in a virtual machine other programs of the guest, in a container also other guests' and the host's
	RankStopped    Reason = "rank-stopped"    // Took: the rank did not run, and nothing but itself or a signal kept it
	Computing      Reason = "computing"       // Took: the rank ran its own code, or a host that was slow without saying so ran it
)

// Cause is one thing that happened during a gap. Counts are those of the
// guest, and may have come up to a second before the gap.
type Cause struct {
	What  Reason        `json:"what"`
	Took  time.Duration `json:"took_ns,omitempty"`
	Count int           `json:"count,omitempty"`
	Rank  *int          `json:"rank,omitempty"` // at which it was seen; nil: the gap's own
}

// TraceQuery asks for traces. With a window they hold the gaps that touch it,
// without one the longest gaps of all and the traffic between ranks.
type TraceQuery struct {
	From time.Time `json:"from,omitzero"`
	To   time.Time `json:"to,omitzero"`
}

// Window reports whether the query is about some time rather than all.
func (q TraceQuery) Window() bool { return !q.To.IsZero() }

// Stall is what the ranks of a job saw of one migration: the longest gap of
// any of them around its switch. Took counts the time the guest was suspended,
// too, in which its own clock did not go on.
type Stall struct {
	Gap
	AtSwitch    time.Duration `json:"at_switch_ns"`   // the longest that lasts while the guest is suspended; the beginning of a copy stalls ranks, too
	Undisturbed time.Duration `json:"undisturbed_ns"` // median of the longest gap in as long a time without a move; 0: there was none
	Ranks       int           `json:"ranks"`          // that were asked
}
