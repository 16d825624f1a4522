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

// TestSurvives: one object of each kind is unchanged after moves in each mode. So are the
// guest's limits of memory and processes, also for processes made since.
func TestSurvives(t *testing.T) {
	j := newJobOf(t, "openmpi", 1, jobUser)
	j.compileOf("survivor", "survivor")
	var o outcome
	wait := testkit.Meanwhile(t, func() { o = j.do(0, 2*time.Minute, fleet.Program{Args: []string{"./survivor"}}, "") })
	until(t, func() bool { return j.do(0, time.Minute, sh("test -p /tmp/openfifo"), "").exit.Code == 0 })
	time.Sleep(500 * time.Millisecond) // it has made the others by then
	for n := range 2 {
		j.move(0, n+1)
	}
	j.do(0, time.Minute, sh("touch /tmp/go"), "")
	wait()
	if o.stdout != "ready\nok\n" || o.exit.Code != 0 {
		t.Errorf("it says %q and %q, %+v", o.stdout, o.stderr, o.exit)
	}
	held := j.do(0, time.Minute, sh("perl -e '$x = q(x) x (1500 << 20); print length $x'"), "")
	if held.exit.Code == 0 {
		t.Errorf("it took more memory than it has after its moves: %+v", held)
	}
	if r := j.drivers[j.at[0]].Ending(j.tasks[0].Guest.ID); r == nil || r.OOMKills == 0 || r.OutOfMemory() == "" {
		t.Errorf("that it was killed for it is not known: %+v", r)
	}
	fork := j.do(0, time.Minute, sh("i=0; while [ $i -lt 5000 ]; do sleep 30 & i=$((i+1)); done 2>/dev/null; echo did"), "")
	if strings.Contains(fork.stdout, "did") {
		t.Errorf("it started 5000 processes: %+v", fork)
	}
}

// TestOtherNameKeepsIt: a file is open by a name that was removed, and has another name. It
// prevents its guest's move, and that is known beforehand.
func TestOtherNameKeepsIt(t *testing.T) {
	j := newJobOf(t, "openmpi", 1, jobUser)
	done := make(chan outcome, 1)
	go func() {
		done <- j.do(0, time.Minute, sh("exec 3<>/tmp/first; ln /tmp/first /tmp/second; rm /tmp/first; touch began; until [ -e over ]; do sleep 0.05; done; exec 3>&-; until [ -e end ]; do sleep 0.05; done; echo end"), "")
	}()
	until(t, func() bool { _, err := os.Stat(filepath.Join(j.files, "began")); return err == nil })
	says := func() string {
		found, err := j.drivers[j.at[0]].Obstacles(t.Context(), j.tasks[0].Guest.ID)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(found, "; ")
	}
	if got := says(); !strings.Contains(got, "has /tmp/first open, a name that was removed") {
		t.Errorf("found is %q", got)
	}
	j.do(0, time.Minute, sh("touch over"), "")
	until(t, func() bool { return says() == "" })
	j.move(0, 1)
	j.do(0, time.Minute, sh("touch end"), "")
	if o := <-done; o.stdout != "end\n" {
		t.Errorf("it says %+v", o)
	}
}
