package xen

import (
	"pagurus/act/host"
	"pagurus/fleet"
)

// record is what is stored about a guest for later agents, in the guest's folder. Its process is the warden, which knows the rest.
type record struct {
	host.Record
	Need fleet.Resources `json:"need"`
	Copy *copying        `json:"copy,omitempty"` // the last copy from this host
}

// copying is one copy order on the source.
type copying struct {
	Migration fleet.MigrationID `json:"migration"`
	Place     string            `json:"place"`
	Limits    fleet.Limits      `json:"limits"`
	Past      bool              `json:"past,omitempty"` // it was cancelled
}

// Ours returns the record as this agent writes it. It can be changed without changing this one.
func (r record) Ours() record {
	r.Recorded = host.ByUs()
	if r.Copy != nil {
		c := *r.Copy
		r.Copy = &c
	}
	return r
}
