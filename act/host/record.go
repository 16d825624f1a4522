package host

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"pagurus/fleet"
	"pagurus/internal/note"
)

// ErrNewer is the error of LoadRecord when a later agent must not touch what the record is of.
var ErrNewer = errors.New("upgrade the agent of this host, which goes on with its guests then; they run meanwhile")

// Recorded is what every driver's record of a guest begins with.
type Recorded struct {
	Protocol int `json:"protocol,omitempty"` // fleet.Protocol of the agent that wrote it last
}

// ByUs is for records that this agent writes.
func ByUs() Recorded { return Recorded{fleet.Protocol()} }

// LoadRecord reads a driver's record of a guest, in which a Recorded is embedded. A record of
// an older agent can always be read, since guests outlive many agents. One of an agent that is
// one version newer is read as far as it is known here. Any other, and one of a newer agent
// that cannot be understood, is an ErrNewer: it is not damaged, and its guest must not be
// destroyed.
func LoadRecord(path string, into any) error {
	var by Recorded
	err := note.Load(path, &by)
	if err == nil && by.Protocol <= fleet.Protocol()+1 {
		err = note.Load(path, into)
	}
	if by.Protocol > fleet.Protocol()+1 || err != nil && by.Protocol > fleet.Protocol() {
		return fmt.Errorf("an agent that speaks version %d of the protocol left %s, and this one speaks version %d: %w", by.Protocol, path, fleet.Protocol(), ErrNewer)
	}
	return err
}

// Record is what every driver stores about a guest for later agents. A driver's own record
// embeds it.
type Record struct {
	Recorded
	Guest     fleet.GuestID     `json:"guest"`
	Gen       uint64            `json:"gen"`
	Process   Process           `json:"process"` // the first one; before a container has arrived, the process that holds its place
	StartedAt time.Time         `json:"started_at"`
	Complete  bool              `json:"complete"` // Start or Receive finished; incomplete guests are destroyed
	Incoming  fleet.MigrationID `json:"incoming,omitempty"`
	Target    bool              `json:"target,omitempty"` // made by Receive and not yet resumed
	Listen    string            `json:"listen,omitempty"` // where Receive's guest is received

	Restored bool `json:"restored,omitempty"` // made by Restore, which makes targets, too
}

// Shared returns the part of a record that all drivers have.
func (r Record) Shared() Record { return r }

// overtaken reports whether this is what a migration of an older generation was to fill.
func (r Record) overtaken(gen uint64) bool { return r.Target && !r.Restored && r.Gen < gen }

// startAgain answers Start of a guest that is here.
func (r Record) startAgain() error {
	switch {
	case r.Target && r.Restored:
		return errors.New("it is here, restored from a checkpoint")
	case r.Target:
		return fmt.Errorf("it is here as the target of migration %s", r.Incoming)
	}
	return nil
}

// restoreAgain answers Restore of a guest that is here.
func (r Record) restoreAgain(gen uint64) error {
	switch {
	case r.Restored && r.Gen == gen:
		return nil
	case r.Target:
		return r.startAgain()
	}
	return errors.New("it is here already")
}

// receiveAgain answers Receive of a guest that is here.
func (r Record) receiveAgain(m fleet.MigrationID) (listen string, err error) {
	switch {
	case !r.Target:
		return "", fmt.Errorf("it is here already")
	case r.Incoming == m:
		return r.Listen, nil
	}
	// It may be all there is of the guest: only Stop may destroy it.
	return "", r.startAgain()
}

// recordFile is the record's name in a guest's folder.
const recordFile = "guest.json"

// ReadRecord reads the record in a guest's folder. A missing one is an fs.ErrNotExist, one of an
// agent that is too new an ErrNewer.
func ReadRecord[R any](dir string) (r R, err error) {
	err = LoadRecord(filepath.Join(dir, recordFile), &r)
	return r, err
}

// Stored is what Guest asks of a driver's record R. Ours is the same record as this agent writes
// it, with ByUs in it. It can be changed without changing the record.
type Stored[R any] interface {
	Shared() Record
	Ours() R
}

// WriteRecord replaces the record in a guest's folder atomically. A guest's own account may be able to write in the folder, but it is sticky: nobody can replace or pre-create
// root's files there. Nothing is synced: a host that loses power has lost the guest as well.
func WriteRecord[R Stored[R]](dir string, r R) error {
	r = r.Ours()
	if err := note.Replace(filepath.Join(dir, recordFile), r); err != nil {
		return fmt.Errorf("remember guest %s: %w", r.Shared().Guest, err)
	}
	return nil
}
