package fleet

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// OpenFile is a file of a job that a guest has open for writing.
type OpenFile struct {
	At     string `json:"at"`   // the job's directory
	Name   string `json:"name"` // from there
	Inode  uint64 `json:"inode"`
	Bytes  int64  `json:"bytes"`            // as long as the guest sees it
	Inside bool   `json:"inside,omitempty"` // it may be written before its end, too
	Odd    string `json:"odd,omitempty"`    // what Amiss says of it
}

// OpenFiles are all of those of a guest.
type OpenFiles struct {
	Files []OpenFile `json:"files,omitempty"`
	Amiss []string   `json:"amiss,omitempty"` // what would not be as it was at a checkpoint now, for people
}

// JobClones says which clones of a job's files are needed: those of checkpoints that are kept, or being made.
type JobClones struct {
	Job    JobID          `json:"job"`
	Born   int64          `json:"born"`
	Share  Share          `json:"share"` // where the files are, and whose
	Groups []uint32       `json:"groups,omitempty"`
	Last   int            `json:"last"` // the number of the last checkpoint that is known of
	Keep   []CheckpointID `json:"keep,omitempty"`
}

// ClonesOf names the folder with the clones of files at a checkpoint of a job, in each of its directories that has some.
func ClonesOf(c CheckpointID, born int64) string { return fmt.Sprintf("%s-%d", c, born) }

// IsClonesOf reports whether a folder is of a checkpoint of such a job.
func IsClonesOf(folder string, job JobID) bool {
	of, born, two := strings.Cut(folder, "-")
	number, ours := strings.CutPrefix(of, string(job)+"c")
	_, err := strconv.Atoi(number)
	_, bad := strconv.ParseInt(born, 10, 64)
	return two && ours && err == nil && bad == nil
}

// Needs reports whether such a folder is needed, or is not this job's.
func (k JobClones) Needs(folder string) bool {
	of, born, _ := strings.Cut(folder, "-")
	number, ours := strings.CutPrefix(of, string(k.Job)+"c")
	n, err := strconv.Atoi(number)
	if !ours || err != nil || born != strconv.FormatInt(k.Born, 10) {
		return true
	}
	return n > k.Last || slices.Contains(k.Keep, CheckpointID(of))
}

// FileHost is the host that serves a job's files.
type FileHost struct {
	Host    HostID `json:"host"`
	Address string `json:"address,omitempty"` // where it listens for other hosts, as for its vault; empty: unknown
}
