package qemu

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"pagurus/act/host"
	"pagurus/fleet"
)

// hearLimit is how long the last events of a QEMU that has ended may take to be read: they
// are in the socket already.
const hearLimit = time.Second

// hearOut waits until what QEMU said before its end is recorded.
func (g *guest) hearOut() {
	g.Mu.Lock()
	heard := g.heard
	g.Mu.Unlock()
	if heard == nil {
		return
	}
	select {
	case <-heard:
	case <-time.After(hearLimit):
	}
}

func (g *guest) shutdownCause() string {
	g.Mu.Lock()
	defer g.Mu.Unlock()
	return g.shutdown
}

// shutdownReason is the reason in QEMU's event SHUTDOWN.
func shutdownReason(data json.RawMessage) string {
	var out struct {
		Reason string `json:"reason"`
	}
	if json.Unmarshal(data, &out) != nil {
		return ""
	}
	return out.Reason
}

// panicMark begins the line of a Linux console that says why the kernel panicked, and panicked what people are told of it.
const (
	panicMark = "Kernel panic"
	panicked  = "its kernel panicked"
)

// shutdowns are QEMU's reasons, for people.
var shutdowns = map[string]string{
	"guest-shutdown":        "it switched itself off",
	"guest-reset":           "it reset itself, as a kernel does that panics, or that a triple fault stops", // -no-reboot makes QEMU end
	"guest-panic":           panicked,
	"host-error":            "QEMU met an error on this host",
	"host-signal":           "QEMU was told to end by a signal",
	"host-qmp-quit":         "QEMU was told to end by its monitor",
	"host-qmp-system-reset": "QEMU was told by its monitor to reset the guest",
	"subsystem-reset":       "one of its devices reset it",
	"snapshot-load":         "QEMU ended as it loaded a snapshot",
	"host-ui":               "QEMU was told to end by its window",
}

// whyEnded says why a guest ended, from how QEMU ended, the reason that it gave, the guest's
// console and the last line of QEMU's log.
func whyEnded(exit host.Exit, reason, console, log string) string {
	if reason == "guest-reset" || reason == "guest-panic" || reason == "" && exit.Signal == 0 {
		if at := strings.LastIndex(console, panicMark+" - "); at >= 0 {
			line, _, _ := strings.Cut(console[at:], "\n")
			return fmt.Sprintf("%s (%s)", panicked, strings.TrimSpace(line))
		}
	}
	if why := shutdowns[reason]; why != "" {
		return why
	}
	why := cmp.Or(reason, "QEMU "+exit.String())
	if log != "" && exit.Signal == 0 {
		why += ": " + log
	}
	return why
}

// noteEnd keeps what is left of a guest that ended by itself. Without an agent that
// listened, exit and reason are unknown.
func (d *Driver) noteEnd(id fleet.GuestID, exit host.Exit, reason string) {
	console, log := host.OpenLog(d.dir(id), consoleLog), host.OpenLog(d.dir(id), ownLog)
	defer console.Close()
	defer log.Close()
	r, err := d.guests.Remember(id, console, log, func(r *fleet.Remains, shown string) {
		last := ""
		for _, line := range r.Log {
			if !strings.Contains(line, "warning: ") {
				last = line
			}
		}
		r.Reason, r.Why = reason, whyEnded(exit, reason, shown, last)
		r.Killed = exit.Signal != 0 || reason == "host-signal"
		r.Died = r.Killed || reason == "host-error" || strings.HasPrefix(r.Why, panicked)
		if d.config.OOMKills != nil && d.config.OOMKills(id) > 0 {
			r.Killed = false
			r.Why += ", because it used more memory than a guest of this size and its QEMU may"
		}
	})
	d.config.Log.Info("guest ended", "guest", id, "why", r.Why, "reason", reason, "kept", r.Folder)
	if err != nil {
		d.config.Log.Warn("what a guest said last is not kept", "guest", id, "cause", err)
	}
}

// Ending returns what is known of a guest that ended by itself. It returns nil if the guest
// did not end, or was stopped since.
func (d *Driver) Ending(id fleet.GuestID) *fleet.Remains { return d.guests.Ending(id) }

// LastWords returns, for people to read, what a guest that is here said last. It is empty if
// the guest said nothing.
func (d *Driver) LastWords(id fleet.GuestID) string { return d.guests.LastWords(id, words) }
