package fleet

import "errors"

// PartName names one guest's part of a checkpoint.
type PartName struct {
	Checkpoint CheckpointID
	Guest      GuestID
}

// ErrNoRoom: a vault may not grow as far as needed. Vaults wrap it.
var ErrNoRoom = errors.New("the vault has no room")

// ErrDamaged: what is in a vault is not what was put there. Vaults wrap it.
var ErrDamaged = errors.New("the vault is damaged")

// ErrNotKept: a vault does not have this part of a checkpoint. Vaults wrap it.
var ErrNotKept = errors.New("the vault has no such checkpoint")

// KeptPart is a part as it should be in a vault.
type KeptPart struct {
	PartName
	Manifest  Digest // nothing else counts as this state
	MostBytes int64  // its files are at most so long together; 0: nobody has said
}

// MostKept is how long the files of a guest's part may be together: its memory, what its mechanism and its own
// files add, and room to spare. Another host that sends more is not saving that guest.
func MostKept(need Resources) int64 { return 3*need.MemoryBytes + 1<<30 }

// VaultAnswer says which checkpoints that a host's vault has the cluster does not know.
type VaultAnswer struct {
	Cluster     string         `json:"cluster"`
	Incarnation string         `json:"incarnation"` // of the store; empty: it knows too little to say anything
	Unknown     []CheckpointID `json:"unknown,omitempty"`
}
