package fleet

import "time"

// Image is a built root file system with its kernel.
type Image struct {
	Name     string    `json:"name"`
	Digest   Digest    `json:"digest"` // of the files
	Recipe   Digest    `json:"recipe"` // of its inputs
	Suite    string    `json:"suite"`
	Packages []string  `json:"packages"`
	MPI      string    `json:"mpi,omitempty"`         // "openmpi", "mpich" or ""
	Version  string    `json:"mpi_version,omitempty"` // of the MPI library's package
	Kernel   string    `json:"kernel"`                // release, as uname -r says
	Bytes    int64     `json:"bytes"`
	Built    time.Time `json:"built"`
	UID      uint32    `json:"uid,omitempty"` // the user whom it counts for; 0: the cluster, as all that root builds
}
