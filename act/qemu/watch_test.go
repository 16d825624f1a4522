package qemu

import (
	"context"
	"errors"
	"testing"
	"time"

	"pagurus/fleet"
)

func TestPatience(t *testing.T) {
	for _, c := range []struct {
		mode     fleet.Mode
		downtime time.Duration
		want     time.Duration
	}{
		{fleet.PreCopy, 50 * time.Millisecond, SuspendedLimit},
		{fleet.PreCopy, time.Minute, 2 * time.Minute},
		{"", time.Minute, 2 * time.Minute},
		{fleet.StopAndCopy, time.Hour, SuspendedLimit},
		{fleet.PostCopy, time.Minute, SuspendedLimit},
	} {
		if got := patience(fleet.Limits{Mode: c.mode, Downtime: c.downtime}); got != c.want {
			t.Errorf("%s, %s: %s, want %s", c.mode, c.downtime, got, c.want)
		}
	}
}

// With a maximum downtime of a minute, pre-copy has two minutes for the rest. Any answer
// restarts the time, and a dead connection is noticed sooner.
func TestWatch(t *testing.T) {
	w, begun := newPulseWatch(fleet.Limits{Mode: fleet.PreCopy, Downtime: time.Minute}), time.Now()
	for _, c := range []struct {
		after time.Duration
		sent  int64 // 0: QEMU does not answer
		dead  bool
	}{
		{after: 100 * time.Second}, {after: 101 * time.Second, sent: 5}, {after: 200 * time.Second}, {after: 222 * time.Second, dead: true},
		{after: 223 * time.Second, sent: 6}, {after: 230 * time.Second, sent: 6}, {after: 234 * time.Second, sent: 6, dead: true},
	} {
		now, err := begun.Add(c.after), error(nil)
		if c.sent > 0 {
			err = w.Heard(fleet.Progress{SentBytes: c.sent}, now)
		} else {
			err = w.Silent(context.DeadlineExceeded, now)
		}
		if c.dead != errors.Is(err, errDeadLine) || c.dead != (err != nil) {
			t.Errorf("after %s: %v", c.after, err)
		}
	}
}
