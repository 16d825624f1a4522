package container_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/container"
	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// heldMiB is how much memory the program below has: more than can be put in place between two
// checks of these tests.
const heldMiB = 400

// held fills memory with known content and checks all of it, and so does a child, whenever a
// certain file exists. It records how many words are wrong.
const held = `
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
static long n, *m;
static long what(long i) { return i * 2654435761L + 1; }
static void look(char *who, int round, long n) {
	char old[64], new[64];
	long wrong = 0;
	for (long i = n - 1; i >= 0; i -= 64) wrong += m[i] != what(i);
	snprintf(old, 64, "%s.%d.new", who, round);
	snprintf(new, 64, "%s.%d", who, round);
	FILE *f = fopen(old, "w");
	fprintf(f, "wrong %ld", wrong);
	fclose(f);
	rename(old, new);
}
int main(int c, char **a) {
	n = atol(a[1]) << 17;
	// High up, so that it comes last: without its libraries it would only die of zeros.
	m = mmap((void *)(((long)&c & ~0xfffL) - (4L << 30)), n * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (long i = 0; i < n; i++) m[i] = what(i);
	close(open("filled", O_CREAT, 0600));
	for (int round = 1;; round++) {
		char name[32];
		snprintf(name, 32, "look.%d", round);
		while (access(name, F_OK)) { look("warm", 0, 64); if (!access("end", F_OK)) return 0; usleep(2000); }
		int child = fork();
		if (!child) { look("child", round, n); _exit(0); }
		look("parent", round, n);
		waitpid(child, 0, 0);
	}
}
`

// lazyFillers returns the processes that put a guest's memory in place.
func (w *world) lazyFillers(t *testing.T, i int, id fleet.GuestID) map[string]int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(w.hosts[i].Run, "containers", string(id), "guest.json"))
	var r struct {
		Pager struct{ PID int } `json:"lazy_pager"`
		Proxy struct{ PID int } `json:"page_proxy"`
	}
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil || r.Pager.PID <= 1 || r.Proxy.PID <= 1 {
		t.Fatalf("the guest's memory is put there by %+v: %v", r, err)
	}
	return map[string]int{"lazy pager": r.Pager.PID, "page proxy": r.Proxy.PID}
}

// TestLazyFillersKilled: a guest that runs before all its memory is in place has the right
// memory, or is lost and reported so. That holds whichever lazy-fill process is killed, with an
// agent present or not. No process reads zeros.
func TestLazyFillersKilled(t *testing.T) {
	testkit.Root(t) // before the tries, which no skip ends
	for _, c := range []struct {
		mode   fleet.Mode
		victim string // empty: none
		alone  bool   // no agent runs when it is killed
	}{
		{fleet.PreCopy, "", false},
		{fleet.PreCopy, "lazy pager", false},
		{fleet.PreCopy, "page proxy", false},
		{fleet.PreCopy, "lazy pager", true},
		{fleet.PreCopy, "page proxy", true},
		{fleet.PostCopy, "", false},
		{fleet.PostCopy, "lazy pager", false},
		{fleet.PostCopy, "page proxy", false},
	} {
		// On a busy machine all memory may have come before the pager is stopped.
		for try, late := 0, true; late; try++ {
			if try == 3 {
				t.Fatalf("%s, %q killed: nearly all memory was there each time", c.mode, c.victim)
			}
			t.Run(fmt.Sprintf("%s, %q killed, alone %t", c.mode, c.victim, c.alone), func(t *testing.T) {
				late = !lazyFillerKilled(t, c.mode, c.victim, c.alone)
			})
		}
	}
}

// lazyFillerKilled reports whether memory was still missing at the time.
func lazyFillerKilled(t *testing.T, mode fleet.Mode, victim string, alone bool) bool {
	j := newJob(t, "openmpi", 1)
	if o := j.do(0, time.Minute, sh("cat >held.c && cc -O1 -o held held.c"), held); o.exit.Code != 0 {
		t.Fatalf("compile: %+v", o)
	}
	file := func(name string) string { return filepath.Join(j.files, name) }
	run := fleet.Program{ID: "held", Args: []string{"./held", fmt.Sprint(heldMiB)}, Dir: j.tasks[1].Job.Spec.Export}
	if err := j.inside[1].Launch(t.Context(), run); err != nil {
		t.Fatal(err)
	}
	there := func(name string) func() bool {
		return func() bool { _, err := os.Stat(file(name)); return err == nil }
	}
	until(t, there("filled"))
	// The missing memory is certain only while the filling process is suspended.
	pid := j.switched(mode)
	feeders := j.lazyFillers(t, 0, j.tasks[1].Guest.ID)
	signal := func(who string, s unix.Signal) {
		if err := unix.Kill(feeders[who], s); err != nil {
			t.Fatalf("%s: %v", who, err)
		}
	}
	if err := j.drivers[0].Resume(t.Context(), j.tasks[1].Guest.ID); err != nil {
		t.Fatal(err)
	}
	// Until the programs are there and only their data is missing. It proceeds in steps, because
	// the memory could be complete before the next check.
	step := func(s unix.Signal) bool { return unix.Kill(feeders["lazy pager"], s) == nil } // false: it has ended
	for step(unix.SIGSTOP) && resident(pid()) < 300<<20 && step(unix.SIGCONT) {
		time.Sleep(time.Millisecond)
	}
	missing := heldMiB<<20 - resident(pid())
	t.Logf("%d MiB are missing", missing>>20)
	if missing < 32<<20 {
		step(unix.SIGCONT)
		return false
	}
	if alone {
		j.drivers[0].Close()
	}
	if err := os.WriteFile(file("look.1"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if victim != "" {
		time.Sleep(100 * time.Millisecond) // it waits for memory by then
		signal(victim, unix.SIGKILL)
	}
	if victim != "lazy pager" {
		signal("lazy pager", unix.SIGCONT)
	}
	ended := func(d *container.Driver) bool {
		select {
		case <-d.Ended(j.tasks[1].Guest.ID):
			return true
		case <-time.After(10 * time.Second):
			return false
		}
	}
	j.checkEnd(mode, victim, alone, ended)
	for _, who := range []string{"parent", "child"} {
		said, err := os.ReadFile(file(who + ".1"))
		if victim == "" && err != nil || err == nil && string(said) != "wrong 0" {
			t.Errorf("%s found: %s %v", who, said, err)
		}
	}
	if victim == "" {
		os.WriteFile(file("end"), nil, 0o644)
	}
	return true
}

// checkEnd checks what became of the moved guest.
func (j *job) checkEnd(mode fleet.Mode, victim string, alone bool, ended func(*container.Driver) bool) {
	t, id := j.t, j.tasks[1].Guest.ID
	if alone {
		time.Sleep(time.Second) // nothing is noticed meanwhile
		j.drivers[0] = j.open(t, 0)
	}
	switch d := j.drivers[0]; {
	case victim == "":
		if err := d.FetchRemaining(t.Context(), id); err != nil {
			t.Error(err)
		}
		until(t, func() bool {
			_, parent := os.Stat(filepath.Join(j.files, "parent.1"))
			_, child := os.Stat(filepath.Join(j.files, "child.1"))
			return parent == nil && child == nil
		})
		j.mu.Lock()
		j.at[1] = 0
		j.mu.Unlock()
		if err := j.drivers[1].Stop(t.Context(), id); err != nil {
			t.Error(err)
		}
		j.move(1, 0) // it moves back, as any guest does
	case mode == fleet.PostCopy:
		err := d.FetchRemaining(t.Context(), id)
		if err == nil || errors.Is(err, fleet.ErrUnsure) || !strings.Contains(err.Error(), "memory never comes") {
			t.Errorf("fetching the rest: %v", err)
		}
	default:
		if !ended(d) {
			t.Error("the guest is not ended")
		}
		if said := d.LastWords(id); !strings.Contains(said, "memory never comes") {
			t.Errorf("it is said of it: %q", said)
		} else {
			t.Log(said)
		}
	}
}

// switched switches the second guest, and returns a function that finds its largest process.
func (j *job) switched(mode fleet.Mode) func() int {
	t, tk := j.t, j.tasks[1]
	t.Helper()
	tk.Order.Migration, tk.Limits.Downtime, tk.Limits.Mode = "m.held", time.Minute, mode
	var err error
	if tk.Listen, err = j.drivers[0].Receive(t.Context(), tk); err != nil {
		t.Fatal(err)
	}
	if err := j.drivers[1].Copy(t.Context(), tk, func(fleet.Progress) {}); err != nil {
		t.Fatal(err)
	}
	if _, err := j.drivers[1].Switch(t.Context(), tk, func(bool) { j.lead(t, 1, 0) }); err != nil {
		t.Fatal(err)
	}
	return func() (most int) {
		for _, pid := range family(j.process(t, 0, tk.Guest.ID)) {
			if most == 0 || resident(pid) > resident(most) {
				most = pid
			}
		}
		return most
	}
}

// family returns a process and its descendants.
func family(pid int) []int {
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", all[i]))
		for _, list := range lists {
			text, _ := os.ReadFile(list)
			for _, word := range strings.Fields(string(text)) {
				var child int
				fmt.Sscan(word, &child)
				all = append(all, child)
			}
		}
	}
	return all
}

// resident returns how much memory of a process is resident.
func resident(pid int) int {
	var size, there int
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	fmt.Sscan(string(text), &size, &there)
	return there * os.Getpagesize()
}
