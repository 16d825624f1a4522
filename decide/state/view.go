package state

import (
	"pagurus/fleet"
)

// View is a snapshot with tentative changes.
type View struct {
	Hosts       Overlay[fleet.HostID, fleet.Host]
	Guests      Overlay[fleet.GuestID, fleet.Guest]
	Jobs        Overlay[fleet.JobID, fleet.Job]
	Moves       Overlay[fleet.MoveID, fleet.Move]
	Migrations  Overlay[fleet.MigrationID, fleet.Migration]
	Checkpoints Overlay[fleet.CheckpointID, fleet.Checkpoint]
	Users       Overlay[fleet.UserID, fleet.User]
	Tokens      Overlay[fleet.TokenID, fleet.JoinToken]
}

// ViewOf returns a snapshot's view without changes.
func ViewOf(s fleet.Snapshot) *View { return new(View).over(s) }

// over starts again over a snapshot, with the existing buffers.
func (v *View) over(s fleet.Snapshot) *View {
	v.Hosts.Reuse(s.Hosts)
	v.Guests.Reuse(s.Guests)
	v.Jobs.Reuse(s.Jobs)
	v.Moves.Reuse(s.Moves)
	v.Migrations.Reuse(s.Migrations)
	v.Checkpoints.Reuse(s.Checkpoints)
	v.Users.Reuse(s.Users)
	v.Tokens.Reuse(s.Tokens)
	return v
}

// View is ViewOf the index, with the buffers of a returned view: at a hundred thousand
// steps a second, allocation would dominate.
func (l *Index) View() *View {
	last := len(l.spare) - 1
	if last < 0 {
		return ViewOf(l.snap)
	}
	v := l.spare[last]
	l.spare = l.spare[:last]
	return v.over(l.snap)
}

// Return takes a view back. It must not be used any more.
func (l *Index) Return(v *View) { l.spare = append(l.spare, v.over(fleet.Snapshot{})) }
