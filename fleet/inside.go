package fleet

import (
	"net/netip"
	"time"
)

// Setup is what the guest agent has to know to make its guest a member of a
// job. It is the same however often it is sent.
type Setup struct {
	Guest    GuestID    `json:"guest"`
	Hostname string     `json:"hostname"`
	Index    int        `json:"index"`
	Addr     netip.Addr `json:"addr"`
	Prefix   int        `json:"prefix"`
	MAC      string     `json:"mac"`
	MTU      int        `json:"mtu"`
	Peers    []Peer     `json:"peers"`  // all guests of the job, this one too, by index
	Share    netip.Addr `json:"share"`  // NFS 4.1 server, TCP port 2049; not valid: no share
	Export   string     `json:"export"` // exported path, mounted at the same path
	UID      uint32     `json:"uid"`    // programs run as this user
	GID      uint32     `json:"gid"`
	Groups   []uint32   `json:"groups,omitempty"`
	MPI      string     `json:"mpi,omitempty"`
	Clock    time.Time  `json:"clock"` // the host's; the guest's is set to it when they differ by more than 50 ms
	Seed     []byte     `json:"seed"`  // of its random numbers, 32 bytes; guests started from one snapshot have nothing else of their own
}

// Peer is a guest of the same job.
type Peer struct {
	Hostname string     `json:"hostname"`
	Addr     netip.Addr `json:"addr"`
	MAC      string     `json:"mac"`
	Slots    int        `json:"slots"` // ranks it shall run
}

// Program is what a guest is to run.
type Program struct {
	ID    string   `json:"id"` // launching the same ID again is launching it once
	Args  []string `json:"args"`
	Env   []string `json:"env,omitempty"`
	Dir   string   `json:"dir"`
	MPI   bool     `json:"mpi"` // start it as Ranks ranks over all guests by the image's mpirun
	Ranks int      `json:"ranks"`
	Trace bool     `json:"trace"`
}

// Cache is what a guest says of memory that it could do without.
type Cache struct {
	UsedBytes  int64 `json:"used_bytes"`  // holds anything
	FreeBytes  int64 `json:"free_bytes"`  // holds nothing
	CleanBytes int64 `json:"clean_bytes"` // holds what can be read from files again, and is no program's own
	HotBytes   int64 `json:"hot_bytes"`   // of CleanBytes: read more than once
	Hints      bool  `json:"hints"`       // it tells the mechanism what is free, so that this is not sent
}

// The output streams of a program.
const (
	Stdin  = "stdin"
	Stdout = "stdout"
	Stderr = "stderr"
)
