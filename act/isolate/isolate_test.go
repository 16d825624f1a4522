package isolate

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/internal/fault"
	"pagurus/internal/testkit"
	threads "pagurus/internal/thread"
)

// part makes a copy of the test binary do "on NOTE CPUS", "off NOTE", or "sleep".
const part = "PAGURUS_QUIET_TEST"

// separate is set in a test that runs in namespaces of its own.
const separate = "PAGURUS_QUIET_APART"

const guests = "pagurus-quiet-test"

func TestMain(m *testing.M) {
	if words := strings.Fields(os.Getenv(part)); len(words) > 0 {
		if err := play(words); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if inside() {
		testkit.Init(m, "TestMachine")
	}
	os.Exit(m.Run())
}

func play(words []string) error {
	switch words[0] {
	case "on":
		cpus, err := fleet.ParseCPUs(words[2])
		if err == nil {
			_, err = New(Config{UndoLog: words[1], Group: guests}).On(cpus)
		}
		return err
	case "foreign":
		fmt.Println(Foreign())
		return nil
	case "off":
		return New(Config{UndoLog: words[1], Group: guests}).Off()
	}
	time.Sleep(time.Minute)
	return nil
}

// inside reports whether this is the only program of a guest, with nothing mounted at its
// start.
var inside = sync.OnceValue(func() bool {
	_, err := os.Stat("/proc/self")
	return err != nil && os.Getpid() == 1
})

// player starts a copy with a part, with faults.
func player(t *testing.T, faults string, words ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), part+"="+strings.Join(words, " "), fault.Environment+"="+faults)
	cmd.Stderr = &bytes.Buffer{}
	return cmd
}

func run(t *testing.T, faults string, words ...string) error {
	t.Helper()
	cmd := player(t, faults, words...)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w: %s", err, cmd.Stderr)
	}
	return nil
}

// sleeper is a process that runs until the test is over.
func sleeper(t *testing.T) int {
	t.Helper()
	cmd := player(t, "", "sleep")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd.Process.Pid
}

// guest is a process in the guests' cgroup.
func guest(t *testing.T) int {
	t.Helper()
	root := "/sys/fs/cgroup"
	if _, err := os.Stat(root + "/cpu"); err == nil {
		root += "/cpu"
	}
	folder := filepath.Join(root, guests)
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		testkit.Until(t, 5*time.Second, "the guests' group is empty", func() bool { return os.Remove(folder) == nil })
	})
	pid := sleeper(t)
	if err := os.WriteFile(filepath.Join(folder, procs), []byte(strconv.Itoa(pid)), 0); err != nil {
		t.Fatal(err)
	}
	return pid
}

// state is everything that On may change.
func state(t *testing.T) map[string]string {
	t.Helper()
	online, err := readCPUs("/sys/devices/system/cpu/online")
	if err != nil {
		t.Fatal(err)
	}
	w, err := readWorld(online, guests)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{"given": w.cpuset.given}
	for _, s := range w.settings {
		out[s.path] = s.text
	}
	for _, k := range w.threads {
		// Those follow their interrupt or work queue, or are temporary.
		if !follows(k.name) && !strings.HasPrefix(k.name, "kworker") {
			out[fmt.Sprintf("thread %d %d %s", k.id, k.born, k.name)] = k.cpus.String()
		}
	}
	for _, g := range w.groups {
		out["group "+g.path] = g.text
	}
	self, err := readText("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range w.processes {
		out["process "+p.name] = p.group
		if strings.HasSuffix(p.name, "("+self+")") { // others may change their CPUs meanwhile
			out["process "+p.name] += " " + p.cpus.String()
		}
	}
	return out
}

// same fails the test if a group or setting has changed. Processes and threads may come
// and go.
func same(t *testing.T, when string, before map[string]string) {
	t.Helper()
	after := state(t)
	for what, was := range before {
		now, there := after[what]
		passing := strings.HasPrefix(what, "process ") || strings.HasPrefix(what, "thread ")
		if now != was && (there || !passing) {
			t.Errorf("%s: %s was %q and is %q", when, what, was, now)
		}
	}
	for what, now := range after {
		if _, there := before[what]; !there && (strings.Contains(what+now, rest) || strings.Contains(what+now, guests)) {
			t.Errorf("%s: there is a new %s, %q", when, what, now)
		}
	}
}

// apart runs a test in namespaces with only its own processes, so that it does not move
// others', and reports whether it did. All other changes affect the machine.
func apart(t *testing.T) bool {
	t.Helper()
	if os.Getenv(separate) != "" || inside() {
		return false
	}
	testkit.Root(t, "unshare")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The shell is the first process there, not the test.
	cmd := exec.Command("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", `"$@"; exit $?`, "sh", self, "-test.run", "^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), separate+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("PASS: "+t.Name()+" ")) {
		t.Errorf("%v:\n%s", err, out)
	}
	t.Logf("%s", out)
	return true
}

// prepare skips the test with too few CPUs. It undoes all changes before the test, in
// case an earlier one was killed, and after it.
func prepare(t *testing.T) (h *Host, note string, online fleet.CPUSet) {
	t.Helper()
	testkit.Root(t)
	online, err := readCPUs("/sys/devices/system/cpu/online")
	if err != nil {
		t.Fatal(err)
	}
	if len(online) < 2 {
		t.Skip("one CPU cannot be shared out")
	}
	note = "/run/pagurus-quiet-test.note"
	if os.Getenv(separate) != "" {
		note += ".apart" // its processes are others
	}
	if err := os.MkdirAll(filepath.Dir(note), 0o755); err != nil {
		t.Fatal(err)
	}
	h = New(Config{UndoLog: note, Group: guests})
	if err := h.Off(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Off(); err != nil {
			t.Error(err)
		}
	})
	return h, note, online
}

func runsOn(t *testing.T, pid int) string {
	t.Helper()
	s, err := threads.CPUs(pid)
	if err != nil {
		t.Fatal(err)
	}
	return s.String()
}

func TestCPUsAreIsolatedAndThenAsTheyWere(t *testing.T) {
	if apart(t) {
		return
	}
	h, note, online := prepare(t)
	inside, outside := guest(t), sleeper(t)
	before := state(t)
	last := online[len(online)-1:]
	others := online.Minus(last)
	q, err := h.On(last)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d changes, left: %q", q.Changed, q.Left)
	if q.CPUs.String() != last.String() || q.Changed < 4 {
		t.Errorf("%+v", q)
	}
	if got := runsOn(t, inside); got != last.String() {
		t.Errorf("a guest runs on %s", got)
	}
	if got := runsOn(t, outside); got != others.String() {
		t.Errorf("somebody's process runs on %s", got)
	}
	if got := runsOn(t, sleeper(t)); got != others.String() {
		t.Errorf("a new process runs on %s", got)
	}
	said := strings.Join(q.Left, "\n")
	w, err := readWorld(online, guests)
	if err != nil {
		t.Fatal(err)
	}
	if todo := plan(w, last, remarks{}); len(todo) > 0 {
		for _, c := range todo {
			if now, err := c.now(); err != nil || c.Do != mkdir && !strings.Contains(said, c.what) && !strings.Contains(said, "more: ") {
				t.Errorf("%s is left to do and was not reported: %s, %v", c.what, now, err)
			}
		}
	}
	again, err := h.On(last)
	if err != nil || again.Changed < q.Changed || again.Changed > q.Changed+8 {
		t.Errorf("again: %+v, %v; before %+v", again, err, q)
	}
	// Other CPUs, by another process.
	if err := run(t, "", "on", note, "0"); err != nil {
		t.Fatal(err)
	}
	if got := runsOn(t, inside); got != "0" {
		t.Errorf("a guest runs on %s", got)
	}
	if now, err := h.Now(); err != nil || now.String() != "0" {
		t.Errorf("now: %s, %v", now, err)
	}
	for range 2 {
		if err := h.Off(); err != nil {
			t.Fatal(err)
		}
		same(t, "after off", before)
	}
	if now, err := h.Now(); err != nil || len(now) != 0 {
		t.Errorf("now: %s, %v", now, err)
	}
	if _, err := os.Stat(note); err == nil {
		t.Error("the note is still there")
	}
}

// Kernel threads, which are only visible together with all other processes.
func TestMachineThreads(t *testing.T) {
	h, _, online := prepare(t)
	before := state(t)
	w, err := readWorld(online, guests)
	if err != nil {
		t.Fatal(err)
	}
	last := online[len(online)-1:]
	todo := planThreads(w.threads, last, online.Minus(last), remarks{})
	if len(w.threads) == 0 {
		t.Skip("the kernel's threads cannot be seen here")
	}
	if i := slices.IndexFunc(todo, func(c change) bool { return c.what == "thread kswapd0" }); i < 0 {
		t.Errorf("kswapd0 is not among %+v", todo)
	}
	n, r := &undoLog{path: h.undoLog}, remarks{}
	if err := errors.Join(n.beginLog(last), h.carryOut(n, todo, r)); err != nil {
		t.Fatal(err)
	}
	for _, c := range todo {
		if now, err := c.now(); err == nil && now != c.after && !strings.Contains(strings.Join(r.words(), "\n"), c.what) {
			t.Errorf("%s runs on %s, not on %s, and that was not reported", c.what, now, c.after)
		}
	}
	if err := h.Off(); err != nil {
		t.Fatal(err)
	}
	same(t, "after off", before)
}

// Killed at steps of On and of Off, by itself and by the kernel: another process undoes
// everything.
func TestMachineKilledAtSteps(t *testing.T) {
	if apart(t) {
		return
	}
	h, note, online := prepare(t)
	guest(t)
	sleeper(t)
	before := state(t)
	last := online[len(online)-1:].String()
	var killed *exec.ExitError
	w, err := readWorld(online, guests)
	if err != nil {
		t.Fatal(err)
	}
	steps := len(plan(w, online[len(online)-1:], remarks{}))
	var points []string
	for i := 0; i < steps; i += 1 + steps/8 {
		points = append(points, fmt.Sprintf("noted.%d", i), fmt.Sprintf("done.%d", i))
	}
	points = append(points, fmt.Sprintf("noted.%d", steps-1), fmt.Sprintf("done.%d", steps-1), "moved.1", "moved.2")
	for _, point := range points {
		if err := run(t, "isolate."+point+"=kill", "on", note, last); !errors.As(err, &killed) || !strings.Contains(err.Error(), "killed at") {
			t.Errorf("%s: %v", point, err)
		}
		if err := run(t, "", "off", note); err != nil {
			t.Errorf("off after %s: %v", point, err)
		}
		same(t, "killed at "+point, before)
	}
	for _, i := range []int{0, steps / 2, steps - 1} {
		if err := run(t, "", "on", note, last); err != nil {
			t.Fatal(err)
		}
		if err := run(t, fmt.Sprintf("isolate.undone.%d=kill", i), "off", note); !errors.As(err, &killed) {
			t.Errorf("undone.%d: %v", i, err)
		}
		if err := h.Off(); err != nil {
			t.Error(err)
		}
		same(t, fmt.Sprintf("killed at undone.%d", i), before)
	}
	// Killed during On, followed by On.
	if err := run(t, fmt.Sprintf("isolate.done.%d=kill", steps/2), "on", note, last); !errors.As(err, &killed) {
		t.Error(err)
	}
	if err := run(t, "", "on", note, last); err != nil {
		t.Error(err)
	}
	if err := h.Off(); err != nil {
		t.Error(err)
	}
	same(t, "after on that was begun again", before)
}

// SIGKILL in the middle of the changes.
func TestMachineAfterSIGKILL(t *testing.T) {
	if apart(t) {
		return
	}
	h, note, online := prepare(t)
	before := state(t)
	cmd := player(t, "isolate.done.3=until:"+filepath.Join(t.TempDir(), "never"), "on", note, online[len(online)-1:].String())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, 20*time.Second, "it has made changes", func() bool {
		n, err := openUndoLog(note)
		return err == nil && len(n.changes) >= 4 && !maps.Equal(before, state(t))
	})
	time.Sleep(100 * time.Millisecond)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	if n, err := openUndoLog(note); err != nil || len(n.changes) != 4 {
		t.Errorf("%+v, %v", n, err)
	}
	if err := h.Off(); err != nil {
		t.Fatal(err)
	}
	same(t, "after SIGKILL", before)
}

func TestMachineRefusesNonsense(t *testing.T) {
	if apart(t) {
		return
	}
	h, note, online := prepare(t)
	before := state(t)
	for _, cpus := range []fleet.CPUSet{nil, online, {online[len(online)-1] + 1}, {4096}} {
		if q, err := h.On(cpus); err == nil {
			t.Errorf("%s: %+v", cpus, q)
		}
	}
	if _, err := os.Stat(note); err == nil {
		t.Error("a note was begun")
	}
	same(t, "after nonsense", before)
}

// Logs that cannot be written, are truncated, come from another boot, or are invalid.
func TestMachineWithoutANote(t *testing.T) {
	if apart(t) {
		return
	}
	_, note, online := prepare(t)
	before := state(t)
	last := online[len(online)-1:]
	if _, err := New(Config{UndoLog: "/proc/none/note", Group: guests}).On(last); err == nil {
		t.Error("nothing can be noted there")
	}
	same(t, "without a folder", before)

	// A disk that becomes full, and one full from the start.
	small := t.TempDir()
	if err := unix.Mount("tmpfs", small, "tmpfs", 0, "size=4096"); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(small, 0)
	full := New(Config{UndoLog: filepath.Join(small, "note"), Group: guests})
	now, err := boot()
	if err != nil {
		t.Fatal(err)
	}
	begun := fmt.Sprintf(`{"boot":%q,"cpus":%q,"room":%q}`+"\n", now, last, strings.Repeat("x", 3500))
	if err := os.WriteFile(full.undoLog, []byte(begun), 0o600); err != nil {
		t.Fatal(err)
	}
	if q, err := full.On(last); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a disk that gets full: %+v, %v", q, err)
	}
	if _, err := os.Stat(full.undoLog); err == nil {
		t.Error("all was put back, and the note is there")
	}
	same(t, "after a full disk", before)
	if err := os.WriteFile(filepath.Join(small, "fill"), make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := full.On(last); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a full disk: %v", err)
	}
	same(t, "on a full disk", before)

	if err := os.WriteFile(note, []byte(`{"boot":"other","cpus":"1"}`+"\n"+`{"do":"write","path":"/proc/sys/vm/stat_interval","before":"77","back":"77"}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := New(Config{UndoLog: note, Group: guests}).Off(); err != nil {
		t.Error(err)
	}
	same(t, "by the note of another boot", before)
	if err := os.WriteFile(note, []byte("nonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := New(Config{UndoLog: note, Group: guests}).Off(); err == nil {
		t.Error("nonsense was taken for a note")
	}
	if _, err := New(Config{UndoLog: note, Group: guests}).On(last); err == nil {
		t.Error("nonsense was taken for a note")
	}
	os.Remove(note)
	same(t, "after nonsense", before)
}

// If the controller was already enabled, a group with processes and no CPUs of its own
// has all of them afterwards, which has the same effect.
func TestMachineWhoseGroupsHaveCPUs(t *testing.T) {
	h, _, online := prepare(t)
	c, err := findCPUSet()
	if err != nil {
		t.Fatal(err)
	}
	if c.version != 2 {
		return // version 1 gives every group CPUs; TestUnified covers version 2
	}
	pid := guest(t)
	if !c.granted {
		if err := os.WriteFile(filepath.Join(c.root, control), []byte("+cpuset"), 0); err != nil {
			t.Fatal(err)
		}
		defer os.WriteFile(filepath.Join(c.root, control), []byte("-cpuset"), 0)
	}
	other := filepath.Join(c.root, "pagurus-quiet-other")
	if err := os.Mkdir(other, 0o755); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(other)
	if err := os.WriteFile(filepath.Join(other, cpuFile), []byte(online.String()), 0); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := h.On(online[1:]); err != nil {
			t.Fatal(err)
		}
		if got, err := readText(filepath.Join(other, cpuFile)); err != nil || got != online[:1].String() || runsOn(t, pid) != online[1:].String() {
			t.Errorf("others have %s: %v; the guest %s", got, err, runsOn(t, pid))
		}
		if err := h.Off(); err != nil {
			t.Fatal(err)
		}
		if got, err := readText(filepath.Join(other, cpuFile)); err != nil || got != online.String() || runsOn(t, pid) != online.String() {
			t.Errorf("others have %s afterwards: %v; the guest %s", got, err, runsOn(t, pid))
		}
	}
}

// A partial line belongs to a change that was not made, and the next change overwrites
// it.
func TestNoteThatWasCutOff(t *testing.T) {
	path := filepath.Join(t.TempDir(), "note")
	n, err := openUndoLog(path)
	if err != nil || n.exists {
		t.Fatal(n, err)
	}
	if err := errors.Join(n.beginLog(fleet.CPUSet{1}), n.add(change{Do: write, Path: "/a", Before: "x"}), n.add(change{Do: write, Path: "/b"})); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for cut := range len(text) {
		if err := os.WriteFile(path, text[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		n, err := openUndoLog(path)
		if err != nil || len(n.changes) != max(0, bytes.Count(text[:cut], []byte("\n"))-1) {
			t.Fatalf("cut at %d: %+v, %v", cut, n, err)
		}
		if !n.exists {
			continue
		}
		if err := n.add(change{Do: write, Path: "/c"}); err != nil {
			t.Fatal(err)
		}
		m, err := openUndoLog(path)
		if err != nil || len(m.changes) != len(n.changes) || m.changes[len(m.changes)-1].Path != "/c" {
			t.Fatalf("cut at %d and gone on: %+v, %v", cut, m, err)
		}
	}
}

// The kernel's refusals are not errors, and are reported.
func TestMachineRefusals(t *testing.T) {
	h, _, online := prepare(t)
	before := state(t)
	r, n := remarks{}, &undoLog{path: h.undoLog}
	if err := n.beginLog(online[1:2]); err != nil {
		t.Fatal(err)
	}
	w, err := readWorld(online, guests)
	if err != nil {
		t.Fatal(err)
	}
	if len(w.threads) == 0 {
		t.Skip("the kernel's threads cannot be seen here")
	}
	bound := slices.IndexFunc(w.threads, func(k thread) bool { return strings.HasPrefix(k.name, "migration/") })
	k := w.threads[bound]
	todo := []change{
		{Do: write, Path: "/proc/sys/kernel/watchdog_cpumask", Before: "x", after: "nonsense", what: "the watchdog"},
		{Do: keepThread, Thread: k.id, Born: k.born, Before: k.cpus.String(), Back: k.cpus.String(), after: online.Minus(k.cpus).String(), what: "a bound thread"},
		{Do: write, Path: "/proc/none", after: "1", what: "nothing"},
		{Do: keepThread, Thread: k.id, Born: k.born + 1, after: "0", what: "a thread that is gone"},
	}
	if err := h.carryOut(n, todo[1:], r); err != nil {
		t.Fatal(err)
	}
	if got := r.words(); len(got) != 1 || got[0] != "a bound thread: the kernel refuses it as invalid" {
		t.Errorf("%q", got)
	}
	if err := todo[0].do(); reason(err) == "" || err == nil {
		t.Errorf("nonsense was taken: %v", err)
	}
	if err := h.Off(); err != nil {
		t.Error(err)
	}
	same(t, "after refusals", before)
}

func TestForeign(t *testing.T) {
	testkit.Root(t, "unshare")
	if why := Foreign(); why != "" {
		t.Skip("the tests run on no machine of their own: " + why)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for says, flags := range map[string][]string{"network of its own": {"--net"}, "in a container": {"--pid", "--fork", "--mount-proc"}} {
		cmd := exec.Command("unshare", append(flags, "sh", "-c", `"$@"; exit $?`, "sh", self)...)
		cmd.Env = append(os.Environ(), part+"=foreign")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), says) {
			t.Errorf("%v: %v: %s", flags, err, out)
		}
	}
}

// TestUnified runs the tests with version 2: in a guest, unless this machine has it,
// where they have already run.
func TestUnified(t *testing.T) {
	testkit.Root(t)
	if c, err := findCPUSet(); err == nil && c.version != 2 {
		testkit.InMachine(t, 4)
	}
}
