package container_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// stays maps the cases of the files area that prevent a move to parts of the reason.
var stays = map[string]string{
	"semaphore": "EFD_SEMAPHORE", "jobpipe": "named pipe /work dir/jobpipe.fifo",
	"unread": "has not read what inotify tells it", "halfread": `is reading the folder "/tmp/halfread.dir"`,
}

// passes lists the cases that are not reported before a move, because most are short.
var passes = map[string]bool{"unread": true, "halfread": true}

// TestFilesThatStay: open files that cannot move prevent their guest's move, with a reason. When
// they are closed or read, the guest moves.
func TestFilesThatStay(t *testing.T) {
	j := newJob(t, "openmpi", 1)
	j.compileState("files")
	n := 0
	for name, says := range stays {
		for _, file := range []string{"has", "let", "go"} {
			_ = os.Remove(filepath.Join(j.files, file))
		}
		var o outcome
		run := testkit.Meanwhile(t, func() { o = j.do(0, 3*time.Minute, fleet.Program{Args: []string{"./files", name}}, "") })
		until(t, func() bool { return j.has("has") })
		found, err := j.drivers[j.at[0]].Obstacles(t.Context(), j.tasks[0].Guest.ID)
		if told := strings.Contains(strings.Join(found, "; "), says); err != nil || told == passes[name] {
			t.Errorf("%s: before, it says %q, %v", name, found, err)
		}
		if passes[name] {
			n++
			if _, err := j.tryMove(0, n); err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: a move ends with %v", name, err)
			}
		}
		j.write("let", "")
		until(t, func() bool { return j.has(name + ".ready") })
		n++
		j.move(0, n)
		j.write("go", "")
		run()
		if o.stdout != "" || o.exit != (fleet.Exit{}) {
			t.Errorf("%s: it says %q and %q (%v)", name, o.stdout, o.stderr, o.exit)
		}
	}
}
