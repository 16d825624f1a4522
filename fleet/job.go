package fleet

import (
	"strconv"
	"strings"
	"time"
)

// JobState is a job's state. Package lifecycle defines the changes.
type JobState string

// The states of a job.
const (
	JobPending   JobState = "pending"   // it waits in the queue for room, and has no guests
	JobStarting  JobState = "starting"  // its guests boot
	JobRunning   JobState = "running"   // its program runs in guest 0
	JobStopping  JobState = "stopping"  // its guests are being stopped
	JobSuspended JobState = "suspended" // it has no guests, and a checkpoint to go on from once it is resumed
	JobEnded     JobState = "ended"
)

// JobResult is how a job ended.
type JobResult string

// The results of a job. A program that exits with a nonzero code has finished, too.
const (
	JobFinished  JobResult = "finished"  // the program exited; Exit says how
	JobFailed    JobResult = "failed"    // Pagurus could not run it to the end; Cause says why
	JobCancelled JobResult = "cancelled" // by request
)

// JobSpec describes a job that a user submits.
type JobSpec struct {
	Args    []string  `json:"args"`          // the program and its arguments
	Env     []string  `json:"env,omitempty"` // NAME=value, added to the guest's own
	Dir     string    `json:"dir"`           // working directory, absolute; the same path in every guest
	Export  string    `json:"export"`        // the directory on the submit host that guests mount at the same path; Dir or above it
	UID     uint32    `json:"uid"`           // set by the controller from the caller, never taken from the request
	GID     uint32    `json:"gid"`           // likewise
	Groups  []uint32  `json:"groups,omitempty"`
	Ranks   int       `json:"ranks"`
	Guests  int       `json:"guests"`
	Need    Resources `json:"need"` // of each guest
	Image   string    `json:"image"`
	Kind    Kind      `json:"kind"`
	On      []HostID  `json:"on,omitempty"` // the only hosts to start on; empty: any
	Machine string    `json:"machine"`      // Facts.Machine of the host that serves Export
	Trace   bool      `json:"trace"`        // preload the MPI tracing library
	Class   Class     `json:"class,omitempty"`
	Cap     float64   `json:"cap,omitempty"` // share of its CPUs that each guest may use, even if others are idle; 0: no cap
	Tune    Tune      `json:"tune,omitzero"` // what its guests mirror of their hosts; virtual machines only

	Source string      `json:"source,omitempty"` // of Export, as in Directory
	Files  []Directory `json:"files,omitempty"`  // more directories, beside Export
	Links  []Link      `json:"links,omitempty"`  // of the names by which its user has the directories

	Time       time.Duration   `json:"time_ns,omitempty"`    // how long its program may run; 0: no limit
	Checkpoint *CheckpointPlan `json:"checkpoint,omitempty"` // nil: checkpoints are made on request only
	Clones     bool            `json:"clones,omitempty"`     // the file systems of its directories can clone files

	Net      Reach `json:"net,omitempty"`      // what its guests reach
	Restarts int   `json:"restarts,omitempty"` // how often it begins again after a loss that is not its program's fault
	Grow     int   `json:"grow,omitempty"`     // how many guests more than Guests its program may ask for while it runs
}

// Directory is a directory that guests see at the same path.
type Directory struct {
	Path     string `json:"path"`
	ReadOnly bool   `json:"read_only,omitempty"`
	Source   string `json:"source,omitempty"` // what it is: directories of two hosts with the same source are the same; empty: no file system that hosts share
}

// Link is a symbolic link that guests have, too, so that a directory keeps the name its user has for it.
type Link struct {
	Path string `json:"path"` // without links but itself
	To   string `json:"to"`   // without links
}

// MostLinks is how many Linux follows for one name.
const MostLinks = 40

// MostDirectories limits the directories of a job beside its Export.
const MostDirectories = 16

// Directories are all directories of the job, Export first.
func (s JobSpec) Directories() []Directory {
	if s.Export == "" {
		return s.Files
	}
	return append([]Directory{{Path: s.Export, Source: s.Source}}, s.Files...)
}

// Slots is how many ranks guest i runs. They are spread evenly; the first guests run one
// more. Those by which the job grows have none at its beginning.
func (s JobSpec) Slots(i int) int {
	if i >= s.Guests {
		return 0
	}
	n := s.Ranks / s.Guests
	if i < s.Ranks%s.Guests {
		n++
	}
	return n
}

// Class is the service class of a job's guests: their share of CPUs and the length of a
// time slice. It moves with the guests.
type Class string

// The classes. The empty one has the share of Normal, with the kernel's time slice.
const (
	Gold   Class = "gold"
	Normal Class = "normal"
	Bronze Class = "bronze"
)

// Known reports whether c is a class or empty.
func (c Class) Known() bool { return c == "" || c == Gold || c == Normal || c == Bronze }

// Exit is how a program ended.
type Exit struct {
	Code   int    `json:"code"`             // as a shell gives it: 128+n after signal n
	Signal string `json:"signal,omitempty"` // "SIGKILL"; empty if it exited by itself
}

// SignalsKept is how many requests that sent signals a job knows.
const SignalsKept = 32

// SignalAsked is a request with a key (Idempotency-Key) that sent a job a signal.
type SignalAsked struct {
	Request     RequestID `json:"request"`
	Asks        string    `json:"asks"`
	Incarnation int       `json:"incarnation,omitempty"` // of the job then
}

// Job is one parallel program and its guests.
type Job struct {
	ID        JobID     `json:"id"`
	Born      int64     `json:"born,omitempty"` // when it was submitted, in nanoseconds; tells it from another job to which a store that was put back gave its number
	Request   RequestID `json:"request"`
	Asks      string    `json:"asks,omitempty"` // of the request
	Spec      JobSpec   `json:"spec"`
	State     JobState  `json:"state"`
	Attempt   int       `json:"attempt"`
	Since     time.Time `json:"since"` // when State last changed
	Digest    Digest    `json:"digest"`
	MPI       string    `json:"mpi"` // of the image: "openmpi", "mpich" or ""
	Subnet    Subnet    `json:"subnet"`
	MTU       int       `json:"mtu,omitempty"`      // of its network, as long as it lives; 0: NetworkMTU
	VLAN      uint16    `json:"vlan,omitempty"`     // of its hosts' cards, that is its network as long as it lives; 0: its network is of our tunnels
	ShareHost HostID    `json:"share_host"`         // serves the job's files
	FewCPUs   bool      `json:"few_cpus,omitempty"` // its ranks had fewer CPUs than they are as it began
	Gateway   HostID    `json:"gateway,omitempty"`  // leads its guests to the Internet; empty: none does
	Submitted time.Time `json:"submitted"`
	Started   time.Time `json:"started"` // when the program was first started
	Ended     time.Time `json:"ended"`
	Result    JobResult `json:"result,omitempty"` // set on entering stopping
	Exit      *Exit     `json:"exit,omitempty"`
	Cause     string    `json:"cause,omitempty"`
	Ending    *Ending   `json:"ending,omitempty"`    // the program was told to end, and has a grace period
	LostWith  HostID    `json:"lost_with,omitempty"` // the host that was gone with a guest of it, which is why it failed
	Alone     bool      `json:"alone,omitempty"`     // its guests and moves are forgotten; what is kept is its end and its output
	Exited    time.Time `json:"exited,omitzero"`     // when its program failed, while it is waited for whether a guest was lost first
	Requeue   bool      `json:"requeue,omitempty"`   // it is stopping, and waits in the queue afterwards to begin again
	Traffic   []Traffic `json:"traffic,omitempty"`   // between its guests, most first, as last measured; empty: unknown

	Signals []SignalAsked `json:"signals,omitempty"` // the last requests with a key that sent signals

	Incarnation int      `json:"incarnation,omitempty"` // how often it has begun again; what an earlier one writes is refused
	Reason      string   `json:"reason,omitempty"`      // why it is pending, as when it began to be
	Restarted   int      `json:"restarted,omitempty"`   // how many of Spec.Restarts are used
	Elsewhere   int      `json:"elsewhere,omitempty"`   // how often in a row its start failed because of a host
	Avoid       []HostID `json:"avoid,omitempty"`       // the hosts because of which it did

	Checkpoints    int            `json:"checkpoints,omitempty"`       // how many have been begun
	NextCheckpoint time.Time      `json:"next_checkpoint,omitzero"`    // of its plan, while it runs
	Newest         CheckpointID   `json:"newest_checkpoint,omitempty"` // the newest that is kept
	From           CheckpointID   `json:"from,omitempty"`              // this incarnation begins at it; empty: at the beginning
	RestartFrom    CheckpointID   `json:"restart_from,omitempty"`      // what was asked for the next one
	FromBeginning  bool           `json:"from_beginning,omitempty"`    // likewise
	Unrestorable   []CheckpointID `json:"unrestorable,omitempty"`      // no guest could be made of a part of these
	Suspending     bool           `json:"suspending,omitempty"`        // it is stopping, and is suspended afterwards

	Grown   int      `json:"grown,omitempty"`   // how many guests more than Spec.Guests it has, with those that start
	Growths []Growth `json:"growths,omitempty"` // the last ones that its program asked for, the newest last; only that one may be under way
}

// Computes reports whether its program runs and is to go on.
func (j Job) Computes() bool {
	return j.State == JobRunning && j.Ending == nil && j.Exited.IsZero()
}

// YieldWhenIdle has Open MPI's ranks that wait let others run, again and again. Without it they spin.
const YieldWhenIdle = "OMPI_MCA_mpi_yield_when_idle=1"

// Environment is what its program gets: what was asked for counts more than what fits.
func (j Job) Environment() []string {
	if j.FewCPUs && j.MPI == "openmpi" {
		return append([]string{YieldWhenIdle}, j.Spec.Env...)
	}
	return j.Spec.Env
}

// Number is the number in a job's ID; 0: it has none.
func (id JobID) Number() uint64 {
	n, err := strconv.ParseUint(strings.TrimPrefix(string(id), "j"), 10, 64)
	if err != nil {
		return 0
	}
	return n
}
