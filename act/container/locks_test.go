package container_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// holds is a program that locks a file, and unlocks it when told.
const holds = `my ($by, $take, $free, $name) = @ARGV;
sub touch { open(my $f, ">", $_[0]) or die; } sub till { select(undef, undef, undef, 0.02) until -e $_[0]; }
sub change { my $s = pack("ssx4qqix4", $_[0], 0, 0, 0, 0); ($by eq "flock" ? flock(F, $_[0]) : fcntl(F, $by, $s)) or die "$by $_[0]: $!"; }
open(F, "+>>", $name) or die $!; change($take); touch("$name.has"); till("$name.let"); change($free); touch("$name.free"); till("$name.end"); print "end";`

// brief is a program that counts in a file, which it locks for a third of the time. It prints
// how often it counted.
const brief = `open(F, "+<", "count") or die $!; my $mine = 0; my $n;
until (-e "over") {
  flock(F, 2) or die; sysseek(F, 0, 0); sysread(F, $n, 20); select(undef, undef, undef, 0.01); sysseek(F, 0, 0); syswrite(F, $n + 1); flock(F, 8);
  if (++$mine == 1) { open(my $f, ">", "began") or die }
  select(undef, undef, undef, 0.02);
} print $mine;`

// locking is a way to lock files: for perl's fcntl, or flock.
type locking struct {
	by                  string
	alone, shared, free string
	try                 func(fd int, alone bool) error // from another process, without waiting
}

var (
	ofFlock = locking{"flock", "2", "1", "8", func(fd int, alone bool) error {
		if alone {
			return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		}
		return unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB)
	}}
	ofPOSIX = locking{"6", "1", "0", "2", tryRange}
	ofOFD   = locking{"37", "1", "0", "2", tryRange}
)

func tryRange(fd int, alone bool) error {
	l := unix.Flock_t{Type: unix.F_RDLCK}
	if alone {
		l.Type = unix.F_WRLCK
	}
	return unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &l)
}

// locker is a program in a guest that has locked one of the job's files.
type locker struct {
	*job
	how  locking
	path string
	done chan outcome
}

func (j *job) locker(how locking, kind string) *locker {
	j.t.Helper()
	name := "locked." + how.by + "." + kind
	l := &locker{j, how, filepath.Join(j.files, name), make(chan outcome, 1)}
	p := fleet.Program{Args: []string{"perl", "-e", holds, how.by, kind, how.free, name}}
	go func() { l.done <- j.do(0, 3*time.Minute, p, "") }()
	l.await(".has")
	return l
}

func (l *locker) await(what string) {
	l.t.Helper()
	until(l.t, func() bool { _, err := os.Stat(l.path + what); return err == nil })
}

func (l *locker) tell(what string) {
	l.t.Helper()
	if err := os.WriteFile(l.path+what, nil, 0o644); err != nil {
		l.t.Fatal(err)
	}
}

// others reports whether a process outside the guest can take the lock.
func (l *locker) others(alone bool) bool {
	l.t.Helper()
	f, err := os.OpenFile(l.path, os.O_RDWR, 0)
	if err != nil {
		l.t.Fatal(err)
	}
	defer f.Close()
	err = l.how.try(int(f.Fd()), alone)
	if err != nil && !errors.Is(err, unix.EAGAIN) {
		l.t.Fatal(err)
	}
	return err == nil
}

// end makes the program unlock the file and end.
func (l *locker) end() {
	l.t.Helper()
	l.tell(".let")
	l.await(".free")
	if !l.others(true) {
		l.t.Errorf("%s is unlocked, and nobody can lock it", l.path)
	}
	l.tell(".end")
	if o := <-l.done; o.stdout != "end" || o.exit != (fleet.Exit{}) {
		l.t.Errorf("it says %q and %q (%v)", o.stdout, o.stderr, o.exit)
	}
}

// short is a stall of a move on a busy machine: much shorter than a restore that hangs.
const short = 10 * time.Second

// TestLocks: a guest with an exclusive lock on one of the job's files is not moved. That is
// reported beforehand. If the lock was taken later, the dump reports it quickly, with the file's
// name. The lock stays. When it is released the guest moves.
func TestLocks(t *testing.T) {
	j := newJob(t, "openmpi", 1)
	n := 0
	found := func() string {
		t.Helper()
		found, err := j.drivers[j.at[0]].Obstacles(t.Context(), j.tasks[0].Guest.ID)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(found, "; ")
	}
	for _, how := range []locking{ofFlock, ofPOSIX, ofOFD} {
		if got := found(); got != "" {
			t.Errorf("before: %q", got)
		}
		l := j.locker(how, how.alone)
		says := "perl (process "
		named := `has locked "/work dir/` + filepath.Base(l.path) + `" for itself alone`
		if got := found(); !strings.HasPrefix(got, says) || !strings.Contains(got, named) || strings.Contains(got, "; ") || !strings.Contains(got, "HDF5_USE_FILE_LOCKING=FALSE") {
			t.Errorf("%s: it says %q", how.by, got)
		}
		begun := time.Now()
		n++
		_, err := j.tryMove(0, n)
		if err == nil || !strings.Contains(err.Error(), named) || time.Since(begun) > 2*short {
			t.Errorf("%s: a move ends after %s with %v", how.by, time.Since(begun), err)
		}
		if l.others(false) {
			t.Errorf("%s: after a move that was cancelled others can lock it", how.by)
		}
		l.tell(".let")
		l.await(".free")
		if got := found(); got != "" {
			t.Errorf("%s: unlocked: %q", how.by, got)
		}
		n++
		if p := j.move(0, n); p.Downtime > short {
			t.Errorf("%s: unlocked, it is suspended for %s", how.by, p.Downtime)
		}
		l.end()
	}
}

// TestSharedLocks: a guest's shared locks move there and back, and no other process can take an
// exclusive lock meanwhile.
func TestSharedLocks(t *testing.T) {
	j := newJob(t, "openmpi", 1)
	var all []*locker
	for _, how := range []locking{ofFlock, ofPOSIX, ofOFD} {
		all = append(all, j.locker(how, how.shared))
	}
	for n := range 4 {
		if p := j.move(0, n); p.Downtime > short {
			t.Errorf("it is suspended for %s", p.Downtime)
		}
		for _, l := range all {
			if l.others(true) || !l.others(false) {
				t.Errorf("move %d: %s is not locked as it was", n, l.path)
			}
		}
	}
	for _, l := range all {
		l.end()
	}
}

// TestBriefLocks: a guest that locks a file briefly, again and again, moves between two locks.
// It shares the file with another process that does the same.
func TestBriefLocks(t *testing.T) {
	j := newJob(t, "openmpi", 1)
	at := func(name string) string { return filepath.Join(j.files, name) }
	is := func(name string) bool { _, err := os.Stat(at(name)); return err == nil }
	f, err := os.Create(at("count"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("0"); err != nil {
		t.Fatal(err)
	}
	if err := f.Chmod(0o666); err != nil {
		t.Fatal(err)
	}
	var o outcome
	inside := testkit.Meanwhile(t, func() { o = j.do(0, 3*time.Minute, fleet.Program{Args: []string{"perl", "-e", brief}}, "") })
	until(t, func() bool { return is("began") })
	ours := 0
	outside := testkit.Meanwhile(t, func() {
		for ; !is("over"); time.Sleep(20 * time.Millisecond) {
			ours += countUp(t, f, 5*time.Millisecond)
		}
	})
	for n := range 4 {
		if p := j.move(0, n); p.Downtime > short {
			t.Errorf("it is suspended for %s", p.Downtime)
		}
	}
	if err := os.WriteFile(at("over"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	inside()
	outside()
	theirs, err := strconv.Atoi(o.stdout)
	if err != nil || o.exit != (fleet.Exit{}) {
		t.Fatalf("it says %q and %q (%v)", o.stdout, o.stderr, o.exit)
	}
	text, err := os.ReadFile(at("count"))
	if err != nil || string(text) != strconv.Itoa(theirs+ours) {
		t.Errorf("the guest counted %d and another %d, and the file says %q, %v", theirs, ours, text, err)
	}
	t.Logf("the guest had the lock %d times, another %d times", theirs, ours)
}

// countUp counts once in a file, which is locked for as long as that takes.
func countUp(t *testing.T, f *os.File, takes time.Duration) int {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX)
	var text [20]byte
	var n, was int
	if err == nil {
		n, _ = f.ReadAt(text[:], 0)
		was, err = strconv.Atoi(string(text[:n]))
	}
	time.Sleep(takes)
	if err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(was+1)), 0)
	}
	if err = errors.Join(err, unix.Flock(int(f.Fd()), unix.LOCK_UN)); err != nil {
		t.Error(err)
		return 0
	}
	return 1
}
