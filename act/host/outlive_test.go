package host

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"pagurus/internal/note"
)

// A process is noted before Start returns, has a session of its own, and what it prints is in its log; without a program, or
// where it cannot be noted, there is none.
func TestOutliving(t *testing.T) {
	dir := t.TempDir()
	o := Outliving{What: "the test's process", Program: "/bin/sh", Args: []string{"sh", "-c", "echo begun; exec sleep 60"}, Log: filepath.Join(dir, "log"), Note: filepath.Join(dir, "process.json")}
	p, ended, err := o.Start()
	if err != nil {
		t.Fatal(err)
	}
	var noted Process
	if err := note.Load(o.Note, &noted); err != nil || noted != p || !p.Lives() {
		t.Errorf("noted %+v, %v; started %+v", noted, err, p)
	}
	if st, err := ReadStat(p.PID); err != nil || st.session != p.PID {
		t.Errorf("its session: %+v, %v", st, err)
	}
	for range 1000 {
		if text, _ := os.ReadFile(o.Log); string(text) == "begun\n" {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if text, err := os.ReadFile(o.Log); string(text) != "begun\n" {
		t.Errorf("its log: %q, %v", text, err)
	}
	if err := p.End(); err != nil {
		t.Error(err)
	}
	<-ended
	unnoted := o
	unnoted.Note = filepath.Join(dir, "none", "process.json")
	if p, _, err := unnoted.Start(); err == nil || !p.Gone() {
		t.Errorf("not noted: %+v, %v", p, err)
	}
	o.Program = ""
	if _, _, err := o.Start(); err == nil {
		t.Error("nothing was started without an error")
	}
}
