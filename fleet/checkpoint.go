package fleet

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// CheckpointID names a checkpoint, for example "j7c2": checkpoint 2 of job j7.
type CheckpointID string

// CheckpointName is the ID of a job's checkpoint by its number.
func CheckpointName(j JobID, number int) CheckpointID {
	return CheckpointID(string(j) + "c" + strconv.Itoa(number))
}

// Job is the job that the ID names, and false if it is no such ID.
func (id CheckpointID) Job() (JobID, bool) {
	job, number, found := strings.Cut(string(id), "c")
	if n, err := strconv.Atoi(number); !found || err != nil || n < 1 || JobID(job).Number() == 0 {
		return "", false
	}
	return JobID(job), true
}

// Number is the number in the ID; 0: it has none.
func (id CheckpointID) Number() int {
	_, number, _ := strings.Cut(string(id), "c")
	n, err := strconv.Atoi(number)
	if err != nil {
		return 0
	}
	return n
}

// Check refuses a name that cannot be part of a path.
func (id CheckpointID) Check() error {
	if _, is := id.Job(); !is || len(id) > 64 {
		return fmt.Errorf("%.70q is not the name of a checkpoint", string(id))
	}
	return nil
}

// CheckpointPhase is where a checkpoint is. Package lifecycle owns it.
type CheckpointPhase string

// The phases of a checkpoint; docs/protocol.md has the table of changes.
const (
	Due        CheckpointPhase = "due"        // waits for the job's guests to run, none moving or suspended
	Arming     CheckpointPhase = "arming"     // hosts prepare it while the guests run
	Cutting    CheckpointPhase = "cutting"    // hosts suspend the guests
	Continuing CheckpointPhase = "continuing" // all are suspended: hosts let them run on
	Saving     CheckpointPhase = "saving"     // the state as at the cut goes to the vaults
	Taking     CheckpointPhase = "taking"     // a copy of an earlier one comes back to the vaults, from whoever has it
	Kept       CheckpointPhase = "kept"       // all parts are in the vaults
	Releasing  CheckpointPhase = "releasing"  // it has failed: hosts let the guests run, and forget what they had prepared
	Dropping   CheckpointPhase = "dropping"   // vaults remove what they have of it
	Void       CheckpointPhase = "failed"     // there is nothing of it
	Removed    CheckpointPhase = "removed"    // it was kept, and there is nothing of it any more
)

// CheckpointTraits describes a phase of a checkpoint.
type CheckpointTraits struct {
	Phase   CheckpointPhase
	Verb    Verb   // the order to each guest's host or vault that it waits for; empty: none
	AtVault bool   // the order goes to the vault, not to the guest's home
	Label   string // what a phase without an order waits for, for people
	Holds   bool   // moves of its guests wait, since their hosts work on it
	Forward bool   // it may still become kept
}

// CheckpointPhases has a row for each phase in display order.
var CheckpointPhases = []CheckpointTraits{
	{Phase: Due, Label: "its job to run, with no guest moving or suspended", Forward: true},
	{Phase: Arming, Verb: Arm, Holds: true, Forward: true},
	{Phase: Cutting, Verb: Cut, Holds: true, Forward: true},
	{Phase: Continuing, Verb: Continue, Holds: true, Forward: true},
	{Phase: Saving, Verb: Save, Holds: true, Forward: true},
	{Phase: Taking, Label: "the copy that is given back to come to the vaults"},
	{Phase: Kept, Label: "nothing: all parts are in the vaults"},
	{Phase: Releasing, Verb: Drop, Holds: true},
	{Phase: Dropping, Verb: Drop, AtVault: true},
	{Phase: Void, Label: "nothing: the guests run on, and there is nothing of it"},
	{Phase: Removed, Label: "nothing: it was kept, and the vaults have removed it"},
}

// Traits describes the phase.
func (p CheckpointPhase) Traits() CheckpointTraits {
	for _, t := range CheckpointPhases {
		if t.Phase == p {
			return t
		}
	}
	return CheckpointTraits{}
}

// Ended reports whether there is nothing of the checkpoint any more.
func (p CheckpointPhase) Ended() bool { return p == Void || p == Removed }

// Open reports whether a host works on it, or is to.
func (p CheckpointPhase) Open() bool { return p != Kept && !p.Ended() }

// Checkpoint is the state of all guests of a job at one moment.
type Checkpoint struct {
	ID          CheckpointID     `json:"id"`
	Job         JobID            `json:"job"`
	Born        int64            `json:"born,omitempty"`        // of the job
	Incarnation int              `json:"incarnation,omitempty"` // of the job
	Request     RequestID        `json:"request,omitempty"`
	Asks        string           `json:"asks,omitempty"` // of the request
	Why         string           `json:"why"`            // "asked for", "every 30m"
	Phase       CheckpointPhase  `json:"phase"`
	Guests      []CheckpointPart `json:"guests"`          // by index
	Needs       []Abilities      `json:"needs,omitempty"` // what hosts must be like to make guests of it, without repetition
	Begun       time.Time        `json:"begun"`
	Since       time.Time        `json:"since"`          // when Phase last changed
	Saved       time.Time        `json:"saved,omitzero"` // when the vaults first might have had something of it
	WasKept     bool             `json:"was_kept,omitempty"`
	Share       HostID           `json:"share,omitempty"` // served the job's files
	Cut         time.Time        `json:"cut,omitzero"`    // when all guests were suspended, controller's clock
	Ended       time.Time        `json:"ended,omitzero"`
	Cause       string           `json:"cause,omitempty"`    // why it failed or was removed
	Pinned      bool             `json:"pinned,omitempty"`   // asked for by a person: it is removed only on request
	Suspends    bool             `json:"suspends,omitempty"` // the job is suspended once it is kept
	Subnet      Subnet           `json:"subnet"`             // the guests' addresses follow from it
	Notice      string           `json:"notice,omitempty"`   // the notice of a host for which it is made
	Written     *Written         `json:"written,omitempty"`  // of one that was taken back: how much output there was at its cut
}

// UsualKeep is how many checkpoints of a plan are kept.
const UsualKeep = 2

// CheckpointPlan says when a job's checkpoints are made by themselves.
type CheckpointPlan struct {
	Every time.Duration `json:"every_ns,omitempty"` // 0: the controller chooses, by what checkpoints cost and how often hosts fail
	Keep  int           `json:"keep,omitempty"`     // how many are kept; 0: UsualKeep
}

// LeastInterval is the shortest time between checkpoints that a plan may name.
const LeastInterval = 10 * time.Second

// Refused says what is wrong with a plan; empty: nothing.
func (p CheckpointPlan) Refused() string {
	const mostKeep = 100
	switch {
	case p.Every != 0 && p.Every < LeastInterval:
		return fmt.Sprintf("every=%s is too often: give %s or more", p.Every, LeastInterval)
	case p.Keep < 0 || p.Keep > mostKeep:
		return fmt.Sprintf("keep=%d: between 1 and %d are kept", p.Keep, mostKeep)
	}
	return ""
}

// CheckpointPart is one guest of a checkpoint.
type CheckpointPart struct {
	Guest    GuestID       `json:"guest"`
	Kind     Kind          `json:"kind"`
	Gen      uint64        `json:"gen"`                 // of the guest; orders name it
	Host     HostID        `json:"host"`                // its home
	Vault    HostID        `json:"vault,omitempty"`     // where its state is kept, or is to be
	Shape    *Shape        `json:"shape,omitempty"`     // of a tuned job's guest: what it sees, also where it goes on
	Answered bool          `json:"answered,omitempty"`  // it has done what the phase is about
	Needs    int           `json:"needs,omitempty"`     // in Checkpoint.Needs, from 1; 0: not known
	Attempt  int           `json:"attempt,omitempty"`   // earlier attempts in this phase
	Since    time.Time     `json:"since"`               // when Attempt last changed or the phase began
	Manifest Digest        `json:"manifest,omitempty"`  // names the state in the vault; empty: not there yet
	Bytes    int64         `json:"bytes,omitempty"`     // of the state
	NewBytes int64         `json:"new_bytes,omitempty"` // by which the vault grew
	Stop     time.Duration `json:"stop_ns,omitempty"`   // how long the guest was suspended
}

// Bytes is how much all parts are.
func (c Checkpoint) Bytes() (all, fresh int64) {
	for _, p := range c.Guests {
		all, fresh = all+p.Bytes, fresh+p.NewBytes
	}
	return all, fresh
}

// Stop is how long the guest was suspended that was longest.
func (c Checkpoint) Stop() (longest time.Duration) {
	for _, p := range c.Guests {
		longest = max(longest, p.Stop)
	}
	return longest
}

// Saved is what a driver says of the state that it has written.
type Saved struct {
	Bytes int64         `json:"bytes"`
	Stop  time.Duration `json:"stop_ns"` // from the cut until it ran on
}

// Deposit says where the state of a task's guest goes to (Save), comes from (Restore), or is to be removed (Drop).
type Deposit struct {
	Vault    HostID `json:"vault"`
	Address  string `json:"address,omitempty"`  // where that host's vault listens; empty: unknown, or it is the task's own host
	Manifest Digest `json:"manifest,omitempty"` // of Restore: nothing else counts as this state
}

// KeptState is what a host says of the state that it has put into a vault.
type KeptState struct {
	Manifest Digest        `json:"manifest"`
	Bytes    int64         `json:"bytes"`
	NewBytes int64         `json:"new_bytes"` // by which the vault grew
	Stop     time.Duration `json:"stop_ns"`
}

// mostKept bounds what a host can say of a guest's state.
const mostKept = 1 << 50

// Refused says what is impossible in what a host says of a state that it has saved; empty: nothing.
func (k *KeptState) Refused() string {
	switch {
	case k == nil || k.Manifest == "":
		return "does not say what it has saved"
	case !strings.HasPrefix(string(k.Manifest), "sha256-") || len(k.Manifest) > 128:
		return "names what it has saved in a way that is not a digest"
	case k.Bytes < 0 || k.Bytes > mostKept || k.NewBytes < 0 || k.NewBytes > mostKept || k.Stop < 0 || k.Stop > time.Hour:
		return fmt.Sprintf("says that it has saved %d bytes, %d of them new, and suspended the guest for %s", k.Bytes, k.NewBytes, k.Stop)
	}
	return ""
}

// VaultFacts is what an agent says of its host's vault.
type VaultFacts struct {
	Listen    string `json:"listen"` // "address:port" where other hosts' agents reach it
	FreeBytes int64  `json:"free_bytes"`
	UsedBytes int64  `json:"used_bytes"`
	EachBytes int64  `json:"each_bytes,omitempty"` // the most of one user's checkpoints, by their size; 0: no limit
}

// VaultGrant allows one other host to write or to read one guest's part of a checkpoint in a host's vault.
type VaultGrant struct {
	Checkpoint CheckpointID `json:"checkpoint"`
	Guest      GuestID      `json:"guest"`
	Host       HostID       `json:"host"`
	Write      bool         `json:"write,omitempty"`      // else it may read it
	MostBytes  int64        `json:"most_bytes,omitempty"` // of writing; 0: an earlier controller has not said
	Manifest   Digest       `json:"manifest,omitempty"`   // of reading
}

// CutHold is how long a guest is suspended for a checkpoint at most: its host then lets it run on by itself,
// and refuses to continue or save that checkpoint. It is longer than the hosts have for Cut, since the first
// waits for the last.
const CutHold = 15 * time.Second
