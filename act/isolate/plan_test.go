package isolate

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

func set(t *testing.T, text string) fleet.CPUSet {
	t.Helper()
	s, err := fleet.ParseCPUs(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// machine has 16 CPUs, interrupts, threads, and some processes.
func machine(t *testing.T) world {
	return world{
		online: set(t, "0-15"), guests: "/pagurus-h",
		settings: []setting{
			{path: "tm", text: "1", form: zero}, {path: "si", text: "1", form: slow}, {path: "wd", text: "0-15", form: list, what: "watchdog"},
			{path: "wq", text: "ffff", form: mask}, {path: "irq1", text: "3", form: list}, {path: "irq2", text: "1", form: list}, {path: "irq3", text: "0-7", form: list},
			{path: "none", form: zero, what: "what is not there", err: os.ErrNotExist}, {path: "odd", form: list, text: "x", what: "what is odd"},
		},
		threads: []thread{
			{id: 2, born: 7, name: "kthreadd", cpus: set(t, "0-15")}, {id: 3, name: "migration/5", bound: true, cpus: set(t, "5")},
			{id: 4, name: "kworker/u8:1", bound: true, cpus: set(t, "0-15")}, {id: 5, name: "irq/3-x", cpus: set(t, "3")}, {id: 6, name: "kswapd0", cpus: set(t, "4")},
			{id: 8, name: "ksoftirqd/0", bound: true, cpus: set(t, "0")},
		},
		processes: []process{
			{pid: 100, name: "100 (bash)", group: "/", cpus: set(t, "0-15")}, {pid: 101, name: "101 (pinned)", group: "/", choosing: true, cpus: set(t, "3")},
			{pid: 102, name: "102 (apart)", group: "/", choosing: true, cpus: set(t, "0-1")}, {pid: 103, name: "103 (parted)", group: "/", parted: true, cpus: set(t, "0-15")},
			{pid: 104, name: "104 (inner)", group: "/docker/a", cpus: set(t, "0-15")}, {pid: 105, name: "105 (qemu)", group: "/", guest: true, choosing: true, cpus: set(t, "2")},
			{pid: 106, name: "106 (there)", group: "/pagurus-h", guest: true, cpus: set(t, "2")}, {pid: 107, name: "107 (irqbalance)", group: "/", cpus: set(t, "0-15")},
			{pid: 108, name: "108 (done)", group: rest, cpus: set(t, "0-1")},
		},
	}
}

func find(todo []change, path string) (change, bool) {
	i := slices.IndexFunc(todo, func(c change) bool { return c.Path == path })
	if i < 0 {
		return change{}, false
	}
	return todo[i], true
}

func TestPlanOfSettingsAndThreads(t *testing.T) {
	r := remarks{}
	w := machine(t)
	todo := plan(w, set(t, "2-15"), r)
	for path, want := range map[string]string{"tm": "0", "si": "10", "wd": "0-1", "wq": "00000003", "irq1": "0-1", "irq3": "0-1"} {
		if c, ok := find(todo, path); !ok || c.after != want || c.Back != c.Before {
			t.Errorf("%s becomes %+v, want %s", path, c, want)
		}
	}
	for _, path := range []string{"irq2", "none", "odd"} {
		if c, ok := find(todo, path); ok {
			t.Errorf("%s becomes %+v", path, c)
		}
	}
	kept := map[int]string{}
	for _, c := range todo {
		if c.Do == keepThread {
			kept[c.Thread] = c.Before + ">" + c.after
		}
	}
	if len(kept) != 2 || kept[2] != "0-15>0-1" || kept[6] != "4>0-1" {
		t.Errorf("threads are kept to %v", kept)
	}
	said := strings.Join(r.words(), "\n")
	for _, want := range []string{"what is not there: this kernel does not have it", "what is odd: ", "migration/5: the kernel binds them", "the timer tick of CPUs 2-15: ",
		"other people's processes: the cpuset controller is not mounted", "irqbalance: "} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is not said in\n%s", want, said)
		}
	}
	if strings.Contains(said, "ksoftirqd/0") || strings.Contains(said, "kworker/u") {
		t.Errorf("too much is said:\n%s", said)
	}
	// After the planned changes nothing is left to do.
	for i, s := range w.settings {
		if c, ok := find(todo, s.path); ok {
			w.settings[i].text = c.after
		}
	}
	for i, k := range w.threads {
		for _, c := range todo {
			if c.Do == keepThread && c.Thread == k.id {
				w.threads[i].cpus = set(t, c.after)
			}
		}
	}
	w.tickless = set(t, "2-15")
	if again := plan(w, set(t, "2-15"), remarks{}); len(again) != 0 {
		t.Errorf("again: %+v", again)
	}
}

// Version 1: inner groups before outer ones; groups without running processes stay.
func TestPlanOfOldGroups(t *testing.T) {
	w, r := machine(t), remarks{}
	w.settings, w.threads = nil, nil
	w.cpuset = cpuset{version: 1, root: "/c", mems: "0-1"}
	w.groups = []group{{"/pagurus-h", "2-15"}, {"/docker/a", "0-15"}, {"/docker/b", "4"}, {"/docker", "0-15"}, {"/low", "0"}, {rest, "0-1"}}
	todo := plan(w, set(t, "2-15"), r)
	var paths []string
	for _, c := range todo {
		paths = append(paths, string(c.Do)+" "+c.Path+" "+c.after)
	}
	want := []string{"write /c/docker/a/cpuset.cpus 0-1", "write /c/docker/cpuset.cpus 0-1", "mkdir /c/pagurus-rest ", "mkdir /c/pagurus-h "}
	if !slices.Equal(paths, want) || todo[2].first[0][1] != "0-1" || todo[3].first[0][1] != "2-15" || todo[3].first[1][1] != "0-1" || todo[2].Back != "/c" {
		t.Errorf("%q\n%+v", paths, todo)
	}
	var to []string
	for _, m := range moves(w, set(t, "2-15"), r) {
		to = append(to, m.name+m.to)
	}
	if want := []string{"100 (bash)/pagurus-rest", "105 (qemu)/pagurus-h", "107 (irqbalance)/pagurus-rest"}; !slices.Equal(to, want) {
		t.Errorf("they go to %q", to)
	}
	said := strings.Join(r.words(), "\n")
	for _, want := range []string{"/docker/b: their creator keeps them on these CPUs", "process 101 (pinned): they run on CPUs of their own choice", "process 103 (parted): "} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is not said in\n%s", want, said)
		}
	}
	if strings.Contains(said, "apart") {
		t.Errorf("what disturbs no guest is named:\n%s", said)
	}
}

func TestPlanOfNewGroups(t *testing.T) {
	w := machine(t)
	w.settings, w.threads = nil, nil
	w.cpuset = cpuset{version: 2, root: "/c", given: "cpu"}
	w.groups = []group{{"/user.slice", ""}, {"/system.slice", "0-3"}, {"/pagurus-h", ""}, {"/far", "9"}}
	r := remarks{}
	todo := plan(w, set(t, "2-15"), r)
	var paths []string
	for _, c := range todo {
		paths = append(paths, string(c.Do)+" "+c.Path+" "+c.Before+">"+c.after+">"+c.Back)
	}
	want := []string{"write /c/cgroup.subtree_control cpu>+cpuset>-cpuset", "write /c/user.slice/cpuset.cpus >0-1>", "write /c/system.slice/cpuset.cpus 0-3>0-1>0-3",
		"write /c/pagurus-h/cpuset.cpus >2-15>", "mkdir /c/pagurus-rest >>/c"}
	if !slices.Equal(paths, want) || !strings.Contains(strings.Join(r.words(), "\n"), "/far") {
		t.Errorf("%q", paths)
	}
	// With an empty root, and no guests yet.
	w.processes, w.groups, w.cpuset.granted = nil, nil, true
	if todo := plan(w, set(t, "2-15"), r); len(todo) != 1 || todo[0].Path != "/c/pagurus-h" || todo[0].first[0][1] != "2-15" {
		t.Errorf("%+v", todo)
	}
}

func TestMasks(t *testing.T) {
	for text, want := range map[string]string{"3": "0-1", "00000003": "0-1", "1,00000000": "32", "ffffffff,ffffffff": "0-63", "80": "7", "0": ""} {
		got, err := parseMask(text)
		if err != nil || got.String() != want {
			t.Errorf("%s is %s, %v", text, got, err)
		}
		if again, err := parseMask(formatMask(got)); err != nil || again.String() != want {
			t.Errorf("%s is %s again, %v", text, again, err)
		}
	}
	for _, bad := range []string{"", "x", "3 4", "-1"} {
		if got, err := parseMask(bad); err == nil {
			t.Errorf("%q is %v", bad, got)
		}
	}
}

func TestReasonsAreForPeople(t *testing.T) {
	r := remarks{}
	for range 2 {
		for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
			r.refused(change{what: name}, &os.PathError{Op: "write", Path: "/p", Err: unix.EIO})
		}
	}
	if got := r.words(); len(got) != 1 || got[0] != "a, b, c, d and 2 more: the kernel keeps it where it is" {
		t.Errorf("%q", got)
	}
	for err, want := range map[error]string{unix.EPERM: "does not let", unix.EINVAL: "invalid", unix.ENOSPC: "no space", errors.New("odd"): "odd"} {
		if got := reason(err); !strings.Contains(got, want) {
			t.Errorf("%v is %q", err, got)
		}
	}
}
