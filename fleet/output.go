package fleet

import "time"

// OutputLimits bound what the controller keeps of programs' output and input on its disk.
type OutputLimits struct {
	Each   int64         `json:"each_bytes"`  // of one user's jobs; 0: no limit
	All    int64         `json:"all_bytes"`   // of all users' jobs; 0: what the disk has
	Keep   time.Duration `json:"keep_ns"`     // after a job's end
	Oldest bool          `json:"drop_oldest"` // of a user who has reached a limit, ended jobs are removed, the oldest first
}

// Output is what the controller keeps of programs' output and input now.
type Output struct {
	Limits OutputLimits `json:"limits"`
	Bytes  int64        `json:"bytes"`      // of all users
	Free   int64        `json:"free_bytes"` // what its disk has for more of it
	Users  []UserOutput `json:"users"`      // that have any, most first

	Checkpoints CheckpointsKept `json:"checkpoints"`
	Images      ImagesKept      `json:"images"`
	Growth      GrowthUsed      `json:"growth"`
	Changes     ChangesMade     `json:"changes"`
}

// GrowthUsed is by how many guests jobs have grown: those that they have, that start, and that programs wait for.
type GrowthUsed struct {
	Each   int          `json:"each,omitempty"` // the limit of all jobs of one user; 0: no limit
	Guests int          `json:"guests"`         // of all users
	Users  []UserGrowth `json:"users"`          // whose jobs have grown, most first
}

// UserGrowth is one user's part of that.
type UserGrowth struct {
	UID    uint32 `json:"uid"`
	User   UserID `json:"user,omitempty"`
	Guests int    `json:"guests"`
}

// CheckpointLimits bound what all vaults keep of checkpoints, in bytes; 0 is no limit.
type CheckpointLimits struct {
	Each int64 `json:"each,omitempty"` // of one user
	All  int64 `json:"all,omitempty"`
}

// CheckpointsKept is what vaults keep of checkpoints.
type CheckpointsKept struct {
	Limits CheckpointLimits  `json:"limits"`
	Bytes  int64             `json:"bytes"` // of all users
	Users  []UserCheckpoints `json:"users"` // that have any, most first
}

// UserCheckpoints is one user's part of that.
type UserCheckpoints struct {
	UID   uint32 `json:"uid"`
	User  UserID `json:"user,omitempty"`
	Count int    `json:"count"`
	Bytes int64  `json:"bytes"`
}

// ImageLimits bound what a controller, or a host, keeps of images, in bytes; 0 is no limit.
type ImageLimits struct {
	Each int64 `json:"each,omitempty"` // of one user
	All  int64 `json:"all,omitempty"`
}

// ChangeLimits bound what users have the controller change in a minute; 0 is no limit. Root on the controller's machine is not bound.
type ChangeLimits struct {
	Requests  int   `json:"requests"`      // of one user
	Stored    int64 `json:"stored"`        // bytes that one user's requests put into the store
	StoredAll int64 `json:"stored_in_all"` // bytes that all users' do
}

// ChangesMade is what counts now of what users had the controller change: of the last minute at the most.
type ChangesMade struct {
	Limits ChangeLimits  `json:"limits"`
	Bytes  int64         `json:"bytes"` // that all users' requests put into the store
	Users  []UserChanges `json:"users"` // of whom anything counts, most bytes first
}

// UserChanges is one user's part of that.
type UserChanges struct {
	UID      uint32 `json:"uid"`
	User     UserID `json:"user,omitempty"`
	Requests int    `json:"requests"`
	Bytes    int64  `json:"bytes"`
}

// ImagesKept is what the controller keeps of images.
type ImagesKept struct {
	Limits ImageLimits  `json:"limits"`
	Bytes  int64        `json:"bytes"` // of all users, and of the cluster's own
	Users  []UserImages `json:"users"` // that have any, most first
}

// UserImages is one user's part of that.
type UserImages struct {
	UID   uint32   `json:"uid"`
	User  UserID   `json:"user,omitempty"`
	Names []string `json:"names"`
	Bytes int64    `json:"bytes"`
}

// UserOutput is one user's part of that.
type UserOutput struct {
	UID   uint32      `json:"uid"`
	User  UserID      `json:"user,omitempty"`
	Bytes int64       `json:"bytes"`
	Waits string      `json:"waits,omitempty"` // why programs of theirs wait; empty: none does
	Jobs  []JobOutput `json:"jobs"`            // most first
}

// JobOutput is one job's.
type JobOutput struct {
	Job   JobID     `json:"job"`
	Bytes int64     `json:"bytes"`
	Ended time.Time `json:"ended,omitzero"` // zero: it has not
}
