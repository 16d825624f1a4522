package fleet

import "time"

// Snapshot is the whole cluster at one revision of the store. Readers must not change it,
// because its maps are shared.
type Snapshot struct {
	At          time.Time                   `json:"at"`        // when it was taken, controller's clock
	LedSince    time.Time                   `json:"led_since"` // when this controller became leader, or went on after a suspension, by its clock; hosts count as silent from then on at the earliest
	Revision    int64                       `json:"revision"`
	Cluster     Cluster                     `json:"cluster"`
	Hosts       map[HostID]Host             `json:"hosts"`
	Guests      map[GuestID]Guest           `json:"guests"`
	Jobs        map[JobID]Job               `json:"jobs"`
	Moves       map[MoveID]Move             `json:"moves"`
	Migrations  map[MigrationID]Migration   `json:"migrations"`
	Checkpoints map[CheckpointID]Checkpoint `json:"checkpoints,omitempty"`
	Users       map[UserID]User             `json:"users,omitempty"`
	Tokens      map[TokenID]JoinToken       `json:"tokens,omitempty"`
	Crowded     map[JobID]string            `json:"crowded,omitempty"` // jobs whose programs wait, since there is no room for their output, and why; never stored
}

// Cluster is the state that exists once.
type Cluster struct {
	ID         string `json:"id"`                  // random, made with the store
	NextJob    uint64 `json:"next_job"`            // the number of the next job
	NextMove   uint64 `json:"next_move"`           // the number of the next move
	NextSubnet Subnet `json:"next_subnet"`         // first candidate for a free subnet
	LastHost   uint32 `json:"last_host,omitempty"` // the highest number of a host
	Rules      Rules  `json:"rules,omitzero"`

	Encryption Encryption `json:"encryption,omitempty"` // between its hosts; empty: none

	Restored *Restored `json:"restored,omitempty"` // nil: the store was never restored from a backup
}

// Restored says that the store came from a backup. What happened between the two times is known
// only to the hosts.
type Restored struct {
	At      time.Time `json:"at"`       // when it was put in place
	Backup  time.Time `json:"backup"`   // when the backup was made
	NextJob uint64    `json:"next_job"` // of the backup: jobs with this number or a higher one are younger
}

// Changeset is the difference that one Step makes. The store commits all of it or
// nothing. Entries in a Gone list are deleted.
type Changeset struct {
	Cluster         *Cluster       `json:"cluster,omitempty"`
	Hosts           []Host         `json:"hosts,omitempty"`
	Guests          []Guest        `json:"guests,omitempty"`
	Jobs            []Job          `json:"jobs,omitempty"`
	Moves           []Move         `json:"moves,omitempty"`
	Migrations      []Migration    `json:"migrations,omitempty"`
	Checkpoints     []Checkpoint   `json:"checkpoints,omitempty"`
	Users           []User         `json:"users,omitempty"`
	Tokens          []JoinToken    `json:"tokens,omitempty"`
	GoneHosts       []HostID       `json:"gone_hosts,omitempty"`
	GoneGuests      []GuestID      `json:"gone_guests,omitempty"`
	GoneJobs        []JobID        `json:"gone_jobs,omitempty"`
	GoneMoves       []MoveID       `json:"gone_moves,omitempty"`
	GoneMigrations  []MigrationID  `json:"gone_migrations,omitempty"`
	GoneCheckpoints []CheckpointID `json:"gone_checkpoints,omitempty"`
	GoneUsers       []UserID       `json:"gone_users,omitempty"`
	GoneTokens      []TokenID      `json:"gone_tokens,omitempty"`
}

// Empty reports whether c changes nothing.
func (c Changeset) Empty() bool {
	return c.Cluster == nil && len(c.Hosts)+len(c.Guests)+len(c.Jobs)+len(c.Moves)+len(c.Migrations)+len(c.Checkpoints)+len(c.Users)+len(c.Tokens) == 0 &&
		len(c.GoneHosts)+len(c.GoneGuests)+len(c.GoneJobs)+len(c.GoneMoves)+len(c.GoneMigrations)+len(c.GoneCheckpoints)+len(c.GoneUsers)+len(c.GoneTokens) == 0
}

// NewSnapshot returns an empty snapshot with its maps made.
func NewSnapshot() Snapshot {
	return Snapshot{
		Hosts: map[HostID]Host{}, Guests: map[GuestID]Guest{}, Jobs: map[JobID]Job{},
		Moves: map[MoveID]Move{}, Migrations: map[MigrationID]Migration{}, Checkpoints: map[CheckpointID]Checkpoint{}, Users: map[UserID]User{}, Tokens: map[TokenID]JoinToken{},
	}
}

// Apply returns the snapshot after c is committed as revision. It does not change s.
func (s Snapshot) Apply(c Changeset, revision int64) Snapshot {
	s.Revision = revision
	if c.Cluster != nil {
		s.Cluster = *c.Cluster
	}
	s.Hosts = applied(s.Hosts, c.Hosts, c.GoneHosts, func(h Host) HostID { return h.ID })
	s.Guests = applied(s.Guests, c.Guests, c.GoneGuests, func(g Guest) GuestID { return g.ID })
	s.Jobs = applied(s.Jobs, c.Jobs, c.GoneJobs, func(j Job) JobID { return j.ID })
	s.Moves = applied(s.Moves, c.Moves, c.GoneMoves, func(m Move) MoveID { return m.ID })
	s.Migrations = applied(s.Migrations, c.Migrations, c.GoneMigrations, func(m Migration) MigrationID { return m.ID })
	s.Checkpoints = applied(s.Checkpoints, c.Checkpoints, c.GoneCheckpoints, func(c Checkpoint) CheckpointID { return c.ID })
	s.Users = applied(s.Users, c.Users, c.GoneUsers, func(u User) UserID { return u.ID })
	s.Tokens = applied(s.Tokens, c.Tokens, c.GoneTokens, func(t JoinToken) TokenID { return t.ID })
	return s
}

func applied[K comparable, V any](old map[K]V, put []V, gone []K, id func(V) K) map[K]V {
	if len(put)+len(gone) == 0 {
		return old
	}
	out := make(map[K]V, len(old)+len(put))
	for k, v := range old {
		out[k] = v
	}
	for _, v := range put {
		out[id(v)] = v
	}
	for _, k := range gone {
		delete(out, k)
	}
	return out
}
