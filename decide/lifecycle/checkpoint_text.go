package lifecycle

import (
	"fmt"
	"strings"

	"pagurus/fleet"
)

const checkpointText = `
## Checkpoint

A checkpoint is the state of all guests of a job at one moment. Each order goes to
every guest's host (or vault) at a time, and "done" is followed when the last has
answered so. No guest runs on by continue before all are suspended, so that nothing
has been received that was not sent; frames under way are lost, and sent again.

`

const checkpointEnd = `
A host that has cut a guest and hears no continue lets it run on after %s, and
answers failed to continue and save: the cut is void there. What a host or a vault
was told to drop it takes no more. Copies of moves wait while hosts work on a
checkpoint, and a checkpoint that is due waits for moves.

A copy of a checkpoint that a user kept comes back as a new checkpoint, whose parts the
controller passes to the vaults one after the other; no order does.

A job that begins at a checkpoint has the order restore in the place of start. Its
guests are suspended when they are there, and run together when all are.

`

// printCheckpoints prints the table of checkpoints.
func printCheckpoints(b *strings.Builder) {
	b.WriteString(checkpointText)
	all := section[fleet.CheckpointPhase]{first: fleet.Due, stages: checkpointStages, arrows: checkpointArrows}
	all.edges = [][3]string{{"due", "arming", "all guests run"}, {"due", "failed", "removed, or too late"}, {"arming", "releasing", "removed, or a home gone"},
		{"taking", "kept", "all parts have come"}, {"taking", "dropping", "removed, or too late"},
		{"kept", "dropping", "removed"}, {"dropping", "removed", "drop done, and it was kept"}}
	all.print(b)
	fmt.Fprintf(b, checkpointEnd, fleet.CutHold)
	rules(b, checkpointRules)
}
