package container_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// changes is a program that changes files, which another guest has open, until it is told to
// stop.
const changes = `use strict; sub file { open(my $f, $_[0], $_[1]) or die "$_[1]: $!"; syswrite($f, $_[2]); close($f) }
my $n = 0;
until (-e "over") {
  file(">>", "appended", "a" x 300); file(">", "rewritten", "r" x (1 + $n++ % 700));
  truncate("shortened", 100 + $n % 3) or die; select(undef, undef, undef, 0.001);
} print "end";`

// write creates one of the job's files, which its user owns.
func (j *job) write(name, text string) {
	j.t.Helper()
	user := j.tasks[0].Job.Spec
	defer os.Chown(filepath.Join(j.files, name), int(user.UID), int(user.GID))
	path := filepath.Join(j.files, name)
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		j.t.Fatal(err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		j.t.Fatal(err)
	}
}

func (j *job) has(name string) bool {
	_, err := os.Stat(filepath.Join(j.files, name))
	return err == nil
}

// TestChangingFiles: a guest moves while another makes files of the job, which it has open and
// mapped, grow and shrink.
func TestChangingFiles(t *testing.T) {
	j := newJob(t, "openmpi", 1)
	j.compileState("shared")
	page := string(make([]byte, 8192))
	j.write("appended", "aaaa"+page)
	j.write("rewritten", "rrrr")
	j.write("shortened", "ssss"+page)
	end := j.beginCase("shared", "changing")
	var o outcome
	wait := testkit.Meanwhile(t, func() { o = j.do(1, 3*time.Minute, fleet.Program{Args: []string{"perl", "-e", changes}}, "") })
	until(t, func() bool {
		info, err := os.Stat(filepath.Join(j.files, "shortened"))
		return err == nil && info.Size() < 4096
	})
	for n := range 4 {
		j.move(0, n+1)
	}
	j.write("over", "")
	wait()
	if o.stdout != "end" || o.exit != (fleet.Exit{}) {
		t.Errorf("the other guest says %q and %q (%v)", o.stdout, o.stderr, o.exit)
	}
	if o := end(); o.stdout != "" || o.exit != (fleet.Exit{}) {
		t.Errorf("it says %q and %q (%v)", o.stdout, o.stderr, o.exit)
	}
}

// TestReplacedFiles: two guests have a file open whose name is removed or given to another file.
// Each sees the other's writes after moves as before. The program itself is built again while it
// runs.
func TestReplacedFiles(t *testing.T) {
	j := newJob(t, "openmpi", 1)
	j.compileState("shared")
	j.write("replaced", "one"+string(make([]byte, 8189)))
	j.write("removed", "gone"+string(make([]byte, 8188)))
	j.write("linked", "linked")
	open := map[string]*os.File{}
	for _, name := range []string{"replaced", "removed", "linked"} {
		f, err := os.Open(filepath.Join(j.files, name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		open[name] = f
	}
	if err := os.Mkdir(filepath.Join(j.files, "folder"), 0o777); err != nil {
		t.Fatal(err)
	}
	if o := j.do(0, time.Minute, sh("cp shared running"), ""); o.exit.Code != 0 {
		t.Fatalf("%+v", o)
	}
	var o outcome
	run := testkit.Meanwhile(t, func() { o = j.do(0, 3*time.Minute, fleet.Program{Args: []string{"./running", "replaced"}}, "") })
	until(t, func() bool { return j.has("replaced.open") })
	if o := j.do(1, time.Minute, sh("echo new >new && mv new replaced && ln linked other && rm removed linked && rmdir folder && cp shared built && mv built running && touch replaced.done"), ""); o.exit.Code != 0 {
		t.Fatalf("%+v", o)
	}
	until(t, func() bool { return j.has("replaced.ready") })
	for n := range 4 {
		if found, err := j.drivers[j.at[0]].Obstacles(t.Context(), j.tasks[0].Guest.ID); err != nil || len(found) > 0 {
			t.Fatalf("it says %q, %v", found, err)
		}
		j.move(0, n+1)
	}
	j.write("go", "")
	run()
	if o.stdout != "" || o.exit != (fleet.Exit{}) {
		t.Errorf("it says %q and %q (%v)", o.stdout, o.stderr, o.exit)
	}
	for name, want := range map[string]string{"replaced": "ONE", "removed": "GONE", "linked": "LINKED"} {
		text := make([]byte, len(want))
		if _, err := open[name].ReadAt(text, 0); err != nil || string(text) != want {
			t.Errorf("another who has %s open reads %q, %v", name, text, err)
		}
	}
}
