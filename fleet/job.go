package fleet

import "time"

// JobState is where a job is in its life. Package lifecycle owns it.
type JobState string

// The states of a job.
const (
	JobStarting JobState = "starting" // its guests boot
	JobRunning  JobState = "running"  // its program runs in guest 0
	JobStopping JobState = "stopping" // its guests are being stopped
	JobEnded    JobState = "ended"
)

// JobResult is how a job ended.
type JobResult string

// The results of a job. A program that exits with a code other than 0 has
// still finished.
const (
	JobFinished  JobResult = "finished"  // the program exited; Exit says how
	JobFailed    JobResult = "failed"    // Pagurus could not run it to its end; Cause says why
	JobCancelled JobResult = "cancelled" // somebody asked for that
)

// JobSpec is what a person asks for.
type JobSpec struct {
	Args    []string  `json:"args"`          // the program and its arguments
	Env     []string  `json:"env,omitempty"` // NAME=value, added to the guest's own
	Dir     string    `json:"dir"`           // working directory, absolute; the same path in every guest
	Export  string    `json:"export"`        // the directory on the submit host that guests mount at the same path; Dir or above it
	UID     uint32    `json:"uid"`           // set by the controller from the caller, never believed from the wire
	GID     uint32    `json:"gid"`           // likewise
	Groups  []uint32  `json:"groups,omitempty"`
	Ranks   int       `json:"ranks"`
	Guests  int       `json:"guests"`
	Need    Resources `json:"need"` // of each guest
	Image   string    `json:"image"`
	Kind    Kind      `json:"kind"`
	On      []HostID  `json:"on,omitempty"` // the only hosts to start on; empty: any
	Machine string    `json:"machine"`      // where Export is: Facts.Machine of the host to share it from
	Trace   bool      `json:"trace"`        // preload the MPI tracing library
	Class   Class     `json:"class,omitempty"`
	Cap     float64   `json:"cap,omitempty"` // share of its own CPUs that each guest may use, even if they are idle otherwise; 0: no cap
	Tune    Tune      `json:"tune,omitzero"` // what its guests mirror of their hosts; only those that are virtual machines
}

// Slots is how many ranks guest i runs: they are spread as evenly as can be, and the
// first guests have one more.
func (s JobSpec) Slots(i int) int {
	n := s.Ranks / s.Guests
	if i < s.Ranks%s.Guests {
		n++
	}
	return n
}

// Class says how much of the CPUs a job's guests get beside others, and for how
// long at a time. It goes where the guests go.
type Class string

// The classes. The empty one gets as much as Normal, and the kernel chooses for
// how long at a time.
const (
	Gold   Class = "gold"
	Normal Class = "normal"
	Bronze Class = "bronze"
)

// Known reports whether there is such a class.
func (c Class) Known() bool { return c == "" || c == Gold || c == Normal || c == Bronze }

// Exit is how a program ended.
type Exit struct {
	Code   int    `json:"code"`             // as a shell gives it: 128+n after signal n
	Signal string `json:"signal,omitempty"` // "SIGKILL"; empty if it exited by itself
}

// Job is one parallel program in its guests.
type Job struct {
	ID        JobID     `json:"id"`
	Request   RequestID `json:"request"`
	Spec      JobSpec   `json:"spec"`
	State     JobState  `json:"state"`
	Attempt   int       `json:"attempt"`
	Since     time.Time `json:"since"` // when State last changed
	Digest    Digest    `json:"digest"`
	MPI       string    `json:"mpi"` // of the image: "openmpi", "mpich" or ""
	Subnet    Subnet    `json:"subnet"`
	ShareHost HostID    `json:"share_host"` // serves the job's files
	Submitted time.Time `json:"submitted"`
	Started   time.Time `json:"started"` // when the program was first told to run
	Ended     time.Time `json:"ended"`
	Result    JobResult `json:"result,omitempty"` // decided when stopping is entered
	Exit      *Exit     `json:"exit,omitempty"`
	Cause     string    `json:"cause,omitempty"`
	Ending    *Ending   `json:"ending,omitempty"`  // its program was told to end, and has some time for that
	Requeue   bool      `json:"requeue,omitempty"` // it is to begin again from nothing when there is room
	Again     JobID     `json:"again,omitempty"`   // the job as which it began again
	Traffic   []Traffic `json:"traffic,omitempty"` // between its guests, most first, when its ranks were last asked; empty: not known
}
