package host

import (
	"errors"
	"fmt"

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
