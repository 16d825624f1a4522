package fleet

import (
	"net/netip"
	"time"
)

// Setup tells the guest agent how to join its job. It can be sent repeatedly.
type Setup struct {
	Guest    GuestID     `json:"guest"`
	Hostname string      `json:"hostname"`
	Index    int         `json:"index"`
	Addr     netip.Addr  `json:"addr"`
	Prefix   int         `json:"prefix"`
	MAC      string      `json:"mac"`
	MTU      int         `json:"mtu"`
	Peers    []Peer      `json:"peers"`            // all guests of the job, including this one, by index
	Share    netip.Addr  `json:"share"`            // NFS 4.1 server, TCP port 2049; not valid: no share
	Export   string      `json:"export"`           // exported path, mounted at the same path
	Files    []Directory `json:"files,omitempty"`  // more directories of Share
	Links    []Link      `json:"links,omitempty"`  // those are made where nothing is yet
	Gateway  netip.Addr  `json:"gateway,omitzero"` // the way to the Internet, and the name server; not valid: there is none
	UID      uint32      `json:"uid"`              // programs run as this user
	GID      uint32      `json:"gid"`
	Groups   []uint32    `json:"groups,omitempty"`
	MPI      string      `json:"mpi,omitempty"`
	Clock    time.Time   `json:"clock"` // the host's clock; the guest's is set to it when they differ by more than 50 ms
	Seed     []byte      `json:"seed"`  // for its random numbers, 32 bytes; guests started from one snapshot have no other entropy of their own
}

// Peer is a guest of the same job.
type Peer struct {
	Hostname string     `json:"hostname"`
	Addr     netip.Addr `json:"addr"`
	MAC      string     `json:"mac"`
	Slots    int        `json:"slots"` // number of ranks
}

// Program is what a guest should run.
type Program struct {
	ID    string   `json:"id"` // a repeated ID is started once
	Args  []string `json:"args"`
	Env   []string `json:"env,omitempty"`
	Dir   string   `json:"dir"`
	MPI   bool     `json:"mpi"` // run it as Ranks ranks over all guests with the image's mpirun
	Ranks int      `json:"ranks"`
	Trace bool     `json:"trace"`
	Grow  bool     `json:"grow,omitempty"` // its job may get more guests, which it asks for
}

// Spare is what a guest does before it reports its memory.
type Spare struct {
	Drop       bool  `json:"drop"`                  // it drops its page cache
	EmptyBytes int64 `json:"empty_bytes,omitempty"` // it fills as much of its free memory with zeroes, as far as it can do without
}

// Cache is what a guest reports of its memory.
type Cache struct {
	UsedBytes  int64 `json:"used_bytes"`  // used memory
	FreeBytes  int64 `json:"free_bytes"`  // free memory
	CleanBytes int64 `json:"clean_bytes"` // clean file pages that are not part of a running program
	HotBytes   int64 `json:"hot_bytes"`   // part of CleanBytes that was read more than once
	Empties    bool  `json:"empties"`     // the guest can empty its free memory, so that what was there is not sent
}

// The output streams of a program.
const (
	Stdin  = "stdin"
	Stdout = "stdout"
	Stderr = "stderr"
)
