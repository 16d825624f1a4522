package container

import (
	"cmp"
	"path/filepath"

	"pagurus/act/container/sandbox"
	"pagurus/act/host"
	"pagurus/fleet"
)

// noteEnd keeps what is left of a guest that ended by itself. lost says why it was ended;
// without it the end of its first process tells. Without an agent that watched, neither is
// known.
func (d *Driver) noteEnd(id fleet.GuestID, exit host.Exit, lost string) {
	console := sandbox.OpenConsole(filepath.Join(d.dir(id), storeDir))
	defer console.Close()
	r, err := d.guests.Remember(id, console, nil, func(r *fleet.Remains, _ string) {
		d.noteLimits(id, r)
		r.Why = cmp.Or(lost, "its first process "+exit.String())
		r.Killed = lost == "" && exit.Signal != 0 && len(r.Limits()) == 0
		r.Died = lost != "" || exit.Signal != 0
		for _, limit := range r.Limits() {
			r.Why += ", and " + limit
		}
	})
	d.config.Log.Info("guest ended", "guest", id, "why", r.Why, "kept", r.Folder)
	if err != nil {
		d.config.Log.Warn("what a guest said last is not kept", "guest", id, "cause", err)
	}
}

// Ending returns what is known of a guest that ended by itself, or of one that is here and
// reached a limit. nil: neither is so, or it was stopped since.
func (d *Driver) Ending(id fleet.GuestID) *fleet.Remains {
	g, _ := d.guests.Find(id)
	if g == nil || g.Dead() {
		return d.guests.Ending(id)
	}
	var r fleet.Remains
	if d.noteLimits(id, &r); len(r.Limits()) > 0 {
		return &r
	}
	return nil
}

// noteLimits notes which limits a guest has reached on this host.
func (d *Driver) noteLimits(id fleet.GuestID, r *fleet.Remains) {
	if d.config.OOMKills != nil {
		r.OOMKills = d.config.OOMKills(id)
	}
	if d.config.TasksRefused != nil {
		r.Refused, r.MaxTasks = d.config.TasksRefused(id)
	}
}

// LastWords returns what a guest said last, for people to read. LastWords returns "" if
// the guest said nothing.
func (d *Driver) LastWords(id fleet.GuestID) string {
	return d.guests.LastWords(id, func(dir string) string { return sandbox.LastWords(filepath.Join(dir, storeDir)) })
}
