package planner

import (
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
)

// A host that was rebooted has lost its guests, and their end says so, also when the
// controller was restarted in between. A guest that dies after that has another reason.
func TestRebootIsTheReason(t *testing.T) {
	const rebooted = "host1 was rebooted"
	for name, boot := range map[string]string{"rebooted": "second", "only its agent came back": "first", "its agent does not say it": ""} {
		t.Run(name, func(t *testing.T) {
			w, j := running(t, 1, "host1")
			w.boots("host1", "first")
			w.tick(time.Second)
			if h := w.s.Hosts["host1"]; h.Boot != "first" || !h.Booted.IsZero() {
				t.Fatalf("the boot that is heard first: %+v", h)
			}
			w.cut("host1")
			w.sleep(time.Minute)
			delete(w.guests["host1"], "j1g0")
			w.boots("host1", boot)
			w.reconnect("host1")
			w.answerAll()
			if job := w.s.Jobs[j]; job.State != fleet.JobEnded || job.Result != fleet.JobFailed || strings.Contains(job.Cause, rebooted) != (boot == "second") {
				t.Errorf("job: %+v", job)
			}
			w.tick(time.Second)
			if h := w.s.Hosts["host1"]; boot == "second" && (h.Boot != "second" || h.Booted.IsZero() || len(h.Losses) != 1) {
				t.Errorf("the reboot is not stored: %+v", h)
			}
			again := w.must(submission(1)).Job
			w.answerAll()
			w.tick(time.Second)
			delete(w.guests["host1"], "j2g0")
			w.answerAll()
			if job := w.s.Jobs[again]; job.Result != fleet.JobFailed || strings.Contains(job.Cause, rebooted) {
				t.Errorf("a guest that began after the reboot: %+v", job)
			}
		})
	}
}

// boots sets the boot that a host reports.
func (w *world) boots(id fleet.HostID, boot string) {
	h := w.s.Hosts[id]
	h.Facts.Boot = boot
	w.s.Hosts[id] = h
}
