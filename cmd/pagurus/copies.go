package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"pagurus/act/vault"
	"pagurus/fleet"
	"pagurus/show/cli"
	"pagurus/show/view"
)

// copies are folders with copies of checkpoints. They are read and written with the rights of whoever runs the command.
type copies struct{ std streams }

// tellEvery is how often a person hears how far a copy is.
const tellEvery = 5 * time.Second

// Check satisfies cli.Copies.
func (copies) Check(dir string, id fleet.CheckpointID) error { return vault.CheckCopy(dir, id) }

// Write satisfies cli.Copies.
func (c copies) Write(ctx context.Context, dir string, of fleet.SealedCopy, from cli.PartCaller) error {
	is, err := fleet.ReadCopy(of.Text)
	if err != nil {
		return err
	}
	if os.Geteuid() == 0 && is.UID != 0 { // root would follow what the user has put there
		return fmt.Errorf("the job is of uid %d, and a copy is written with that user's rights: `sudo -u '#%d' pagurus checkpoint copy %s --to %s`", is.UID, is.UID, is.Checkpoint.ID, dir)
	}
	return vault.WriteCopy(ctx, dir, of, vault.Over(from), c.tell("copied"))
}

// Read satisfies cli.Copies.
func (copies) Read(dir string) (fleet.SealedCopy, fleet.CheckpointCopy, error) {
	return vault.ReadCopy(dir)
}

// GiveBack satisfies cli.Copies.
func (c copies) GiveBack(ctx context.Context, dir string, as fleet.CheckpointID, to cli.PartCaller) error {
	return vault.GiveBack(ctx, dir, as, vault.Over(to), c.tell("given back"))
}

// tell says now and then how far it is: a disk or a line may be slow.
func (c copies) tell(what string) vault.Copying {
	last := time.Now()
	return func(done, all int64) {
		if time.Since(last) >= tellEvery {
			last = time.Now()
			c.std.say(fmt.Sprintf("%s of %s %s", view.Bytes(done), view.Bytes(all), what))
		}
	}
}
