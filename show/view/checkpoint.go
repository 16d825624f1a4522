package view

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"pagurus/fleet"
)

// Checkpoint is a checkpoint with what its parts come to.
type Checkpoint struct {
	fleet.Checkpoint
	Bytes    int64          `json:"bytes"`
	NewBytes int64          `json:"new_bytes"` // by which the vaults grew
	Stop     time.Duration  `json:"stop_ns"`   // for which the guest was suspended that was longest
	Vaults   []fleet.HostID `json:"vaults"`
}

func readCheckpoints(s fleet.Snapshot) []Checkpoint {
	out := []Checkpoint{}
	for _, c := range s.Checkpoints {
		row := Checkpoint{Checkpoint: c, Stop: c.Stop(), Vaults: []fleet.HostID{}}
		row.Bytes, row.NewBytes = c.Bytes()
		for _, p := range c.Guests {
			row.Vaults = append(row.Vaults, p.Vault)
		}
		slices.Sort(row.Vaults)
		row.Vaults = slices.Compact(row.Vaults)
		out = append(out, row)
	}
	slices.SortFunc(out, func(a, b Checkpoint) int {
		return cmp.Or(Compare(string(a.Job), string(b.Job)), cmp.Compare(a.ID.Number(), b.ID.Number()))
	})
	return out
}

// Checkpoint finds a checkpoint.
func (c Cluster) Checkpoint(id fleet.CheckpointID) (Checkpoint, bool) {
	for _, p := range c.Checkpoints {
		if p.ID == id {
			return p, true
		}
	}
	return Checkpoint{}, false
}

// CheckpointsOf are the checkpoints of a job; of all jobs if it is empty.
func (c Cluster) CheckpointsOf(job fleet.JobID) []Checkpoint {
	out := []Checkpoint{}
	for _, p := range c.Checkpoints {
		if job == "" || p.Job == job {
			out = append(out, p)
		}
	}
	return out
}

// CheckpointTable lists checkpoints.
func (c Cluster) CheckpointTable(of []Checkpoint) Table {
	t := Table{
		Columns: []string{"CHECKPOINT", "JOB", "STATE", "BEGUN", "STOP", "SIZE", "NEW", "VAULTS", "WHY"},
		Empty:   "no checkpoints: make one with `pagurus checkpoint JOB`, or let a job have them with `pagurus run --checkpoint`",
	}
	for _, p := range of {
		row := []string{cell(string(p.ID)), cell(string(p.Job)), cell(string(p.Phase)), Ago(c.At, p.Begun), "-", "-", "-", "-", cell(short(p.Why, commandWidth))}
		if p.WasKept {
			row[4], row[5], row[6] = Took(p.Stop), Bytes(p.Bytes), Bytes(p.NewBytes)
		}
		if p.Phase == fleet.Kept {
			row[7] = cell(hosts(p.Vaults))
		}
		t.Rows = append(t.Rows, row)
		if p.Phase == fleet.Void || p.Phase == fleet.Releasing {
			t.Notes = append(t.Notes, fmt.Sprintf("%s failed: %s", p.ID, orElse(Clean(p.Cause), "no cause is known")))
		}
	}
	return t
}

func hosts(ids []fleet.HostID) string {
	words := make([]string, len(ids))
	for i, id := range ids {
		words[i] = string(id)
	}
	return strings.Join(words, ",")
}

// Told says in a sentence how a checkpoint is, or how it went.
func (p Checkpoint) Told() string {
	switch {
	case p.Phase == fleet.Kept:
		return fmt.Sprintf("%s: kept on %s in %s; its guests were suspended for %s at most; %s, %s of it new",
			p.ID, fleet.Enumerate(strings.Split(hosts(p.Vaults), ","), "and"), Took(p.Ended.Sub(p.Begun)), Took(p.Stop), Bytes(p.Bytes), Bytes(p.NewBytes))
	case p.Phase == fleet.Void, p.Phase == fleet.Releasing:
		return fmt.Sprintf("%s: failed: %s", p.ID, orElse(Clean(p.Cause), "no cause is known"))
	case p.Phase.Traits().Verb == "":
		return fmt.Sprintf("%s: %s, waits for %s", p.ID, p.Phase, p.Phase.Traits().Label)
	}
	return fmt.Sprintf("%s: %s", p.ID, p.Phase)
}

// Text shows a checkpoint with its parts.
func (p Checkpoint) Text(c Cluster) string {
	text := p.Told() + "\n"
	t := Table{Columns: []string{"GUEST", "KIND", "HOST", "VAULT", "STOP", "SIZE", "NEW", "MANIFEST"}, Empty: "no parts yet"}
	for _, g := range p.Guests {
		row := []string{cell(string(g.Guest)), cell(string(g.Kind)), cell(string(g.Host)), cell(string(g.Vault)), "-", "-", "-", "-"}
		if g.Manifest != "" {
			row[4], row[5], row[6], row[7] = Took(g.Stop), Bytes(g.Bytes), Bytes(g.NewBytes), cell(short(string(g.Manifest), commandWidth))
		}
		t.Rows = append(t.Rows, row)
	}
	return text + t.Text()
}
