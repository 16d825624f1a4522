package owner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/internal/testkit"
)

// role makes a copy of the test binary another program.
const role = "PAGURUS_OWNER_TEST"

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "logind":
		if err := insideLogind(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// startBusy starts a process that uses all available CPU time and is not a child of this
// one: this process's children count as Pagurus's. Its command line contains word.
func startBusy(t testing.TB, h *testkit.Host, word string) int {
	t.Helper()
	return start(t, h, `setsid sh -c 'while :; do :; done' "$0" >/dev/null 2>&1 & echo $!`, word)
}

// start makes a shell start a process and returns its PID.
func start(t testing.TB, h *testkit.Host, script, word string) int {
	t.Helper()
	cmd := exec.Command("sh", "-c", script, word)
	if h != nil {
		cmd = h.Command(t.Context(), "sh", "-c", script, word)
	}
	text, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Kill(-pid, unix.SIGKILL) })
	return pid
}

// usedBy is a process's CPU time according to the kernel.
func usedBy(t testing.TB, pid int) time.Duration {
	t.Helper()
	tab := &table{buffer: make([]byte, 4096)}
	var p process
	if !tab.read(pid, &p) {
		t.Fatalf("process %d is gone", pid)
	}
	return p.used
}

// onHost opens sensors as an agent in a host's namespace would.
func onHost(t testing.TB, h *testkit.Host, c Config) *Sensors {
	t.Helper()
	var s *Sensors
	h.Must(func() (err error) { s, err = Open(c); return err })
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// A program in a host's namespace counts for that host only, and Pagurus's own programs
// never.
func TestNetworkScopeCountsTheHostsOwnPrograms(t *testing.T) {
	testkit.Root(t, "setsid")
	hosts := testkit.Hosts(t, 2)
	mine, other := onHost(t, hosts[0], Config{Scope: Network}), onHost(t, hosts[1], Config{Scope: Network})
	blind := onHost(t, hosts[0], Config{Scope: Network, Run: "/run/our-own"})
	for _, s := range []*Sensors{mine, other, blind} {
		if got := s.Sample(t.Context(), nil); got.NonGuestCPUs != nil {
			t.Errorf("the first sample tells %v CPUs", *got.NonGuestCPUs)
		}
	}
	pid := startBusy(t, hosts[0], "/run/our-own/program")
	testkit.Until(t, 10*time.Second, "the program runs", func() bool { return usedBy(t, pid) > 0 })
	mine.Sample(t.Context(), nil)
	before, at := usedBy(t, pid), time.Now()
	testkit.Until(t, 60*time.Second, "the program has used half a second", func() bool { return usedBy(t, pid)-before > 500*time.Millisecond })
	got := mine.Sample(t.Context(), nil)
	want := (usedBy(t, pid) - before).Seconds() / time.Since(at).Seconds()
	if got.NonGuestCPUs == nil || math.Abs(*got.NonGuestCPUs-want) > 0.1*want+0.05 {
		t.Errorf("others use %v CPUs, the kernel says %.3f: %v", deref(got.NonGuestCPUs), want, got.Deaf)
	}
	for name, s := range map[string]*Sensors{"the other host": other, "who takes it for Pagurus's own": blind} {
		if got := s.Sample(t.Context(), nil); got.NonGuestCPUs == nil || *got.NonGuestCPUs > 0.01 {
			t.Errorf("%s counts %v CPUs of it", name, deref(got.NonGuestCPUs))
		}
	}
}

// A process that has ended counts once, whichever process waited for it.
func TestNetworkScopeCountsWhatHasEnded(t *testing.T) {
	testkit.Root(t, "setsid")
	hosts := testkit.Hosts(t, 1)
	s := onHost(t, hosts[0], Config{Scope: Network})
	tab := s.nonGuest.table
	if err := tab.scan(); err != nil {
		t.Fatal(err)
	}
	// Two generations of children, some seen by a scan and some not, under a shell that
	// keeps running; setsid makes that shell no child of this process.
	out := filepath.Join(t.TempDir(), "times")
	script := `for i in 1 2 3 4; do sh -c 'n=0; while [ $n -lt 60000 ]; do n=$((n+1)); done; sh -c "n=0; while [ \$n -lt 60000 ]; do n=\$((n+1)); done"'; done; cat /proc/$$/stat > ` + out + `.new; mv ` + out + `.new ` + out + `; sleep 30`
	pid := start(t, hosts[0], `setsid sh -c "$0" >/dev/null 2>&1 & echo $!`, script)
	testkit.Until(t, 60*time.Second, "the shell is through", func() bool {
		if err := tab.scan(); err != nil {
			t.Fatal(err)
		}
		tab.used()
		_, err := os.Stat(out)
		return err == nil
	})
	if err := tab.scan(); err != nil {
		t.Fatal(err)
	}
	got, want := tab.used(), usedBy(t, pid)
	if want < 100*time.Millisecond {
		t.Fatalf("the shell used only %s: this shows nothing", want)
	}
	if diff := got - want; diff.Abs() > 50*time.Millisecond {
		t.Errorf("%s are accounted for, the kernel says %s", got, want)
	}
}

// The machine's scope excludes the group and Pagurus's daemons.
func TestMachineScopeLeavesOutPagurus(t *testing.T) {
	testkit.Root(t, "setsid")
	pid := startBusy(t, nil, "x")
	others := Config{Used: func() (time.Duration, error) { return 0, nil }}
	group := Config{Used: func() (time.Duration, error) { return usedBy(t, pid), nil }}
	whole, less := open(t, others), open(t, group)
	for _, s := range []*Sensors{whole, less} {
		s.Sample(t.Context(), nil)
	}
	before, at := usedBy(t, pid), time.Now()
	testkit.Until(t, 60*time.Second, "the program has used a second", func() bool { return usedBy(t, pid)-before > time.Second })
	used := (usedBy(t, pid) - before).Seconds() / time.Since(at).Seconds()
	a, b := whole.Sample(t.Context(), nil), less.Sample(t.Context(), nil)
	if a.NonGuestCPUs == nil || b.NonGuestCPUs == nil {
		t.Fatalf("no CPUs: %v %v", a.Deaf, b.Deaf)
	}
	if *a.NonGuestCPUs > float64(runtime.NumCPU())+0.1 || *a.NonGuestCPUs < 0.8*used {
		t.Errorf("others use %.2f CPUs of %d, one program alone %.2f", *a.NonGuestCPUs, runtime.NumCPU(), used)
	}
	if diff := *a.NonGuestCPUs - *b.NonGuestCPUs; math.Abs(diff-used) > 0.1*used+0.05 && *b.NonGuestCPUs > 0 {
		t.Errorf("the group took %.2f CPUs off, it used %.2f", diff, used)
	}
	broken := open(t, Config{Used: func() (time.Duration, error) { return 0, io.ErrUnexpectedEOF }})
	if got := broken.Sample(t.Context(), nil); got.NonGuestCPUs != nil || len(got.Deaf) == 0 || !strings.Contains(strings.Join(got.Deaf, " "), "non-guest load") {
		t.Errorf("a broken account counts %v CPUs and says %v", deref(got.NonGuestCPUs), got.Deaf)
	}
}

// A whole group may be the owner's.
func TestGroupScope(t *testing.T) {
	testkit.Root(t, "setsid")
	name := fmt.Sprintf("pagurus-owner-test-%d", os.Getpid())
	folder := ""
	for _, tree := range []string{"/sys/fs/cgroup/cpuacct", "/sys/fs/cgroup"} {
		if _, err := os.Stat(filepath.Join(tree, "cgroup.procs")); err == nil {
			folder = filepath.Join(tree, name)
			break
		}
	}
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		testkit.Until(t, 5*time.Second, "the group is empty", func() bool { return os.Remove(folder) == nil })
	})
	pid := startBusy(t, nil, "x")
	if err := os.WriteFile(filepath.Join(folder, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644); err != nil {
		t.Fatal(err)
	}
	s := open(t, Config{Scope: Scope(groupPrefix + name)})
	s.Sample(t.Context(), nil)
	before, at := usedBy(t, pid), time.Now()
	testkit.Until(t, 60*time.Second, "the program has used half a second", func() bool { return usedBy(t, pid)-before > 500*time.Millisecond })
	got := s.Sample(t.Context(), nil)
	if want := (usedBy(t, pid) - before).Seconds() / time.Since(at).Seconds(); got.NonGuestCPUs == nil || math.Abs(*got.NonGuestCPUs-want) > 0.1*want+0.05 {
		t.Errorf("the group uses %v CPUs, want %.3f: %v", deref(got.NonGuestCPUs), want, got.Deaf)
	}
	gone := open(t, Config{Scope: groupPrefix + "no-such-group"})
	if got := gone.Sample(t.Context(), nil); got.NonGuestCPUs != nil || len(got.Deaf) == 0 {
		t.Errorf("a group that is not there uses %v CPUs: %v", deref(got.NonGuestCPUs), got.Deaf)
	}
}

// A listed program is found by name while it runs.
func TestExclusivePrograms(t *testing.T) {
	testkit.Root(t, "setsid", "sleep")
	hosts := testkit.Hosts(t, 1)
	s := onHost(t, hosts[0], Config{Scope: Network})
	program := filepath.Join(t.TempDir(), "blender") // any program by that name
	text := must(os.ReadFile(must(exec.LookPath("sleep"))))
	if err := os.WriteFile(program, text, 0o755); err != nil {
		t.Fatal(err)
	}
	listed := []string{"blender", "no-such-program"}
	if got := s.Sample(t.Context(), listed).Exclusive; len(got) > 0 {
		t.Fatalf("%v run already", got)
	}
	pid := start(t, hosts[0], `setsid "$0" 60 >/dev/null 2>&1 & echo $!`, program)
	testkit.Until(t, 10*time.Second, "it is found", func() bool {
		got := s.Sample(t.Context(), listed).Exclusive
		return len(got) == 1 && got[0] == "blender"
	})
	unix.Kill(pid, unix.SIGKILL)
	testkit.Until(t, 10*time.Second, "it is gone", func() bool { return len(s.Sample(t.Context(), listed).Exclusive) == 0 })
}

// A listed program is found by the next sample, whether it was started since the last or
// a process became it.
func TestExclusiveProgramsAreFoundAtOnce(t *testing.T) {
	testkit.Root(t, "setsid", "sleep")
	s := open(t, Config{})
	folder := t.TempDir()
	program, begin := filepath.Join(folder, "blender"), filepath.Join(folder, "begin") // any program by that name
	text := must(os.ReadFile(must(exec.LookPath("sleep"))))
	if err := errors.Join(os.WriteFile(program, text, 0o755), unix.Mkfifo(begin, 0o600)); err != nil {
		t.Fatal(err)
	}
	listed := []string{"blender"}
	for i, script := range []string{
		`setsid "$0" 60 >/dev/null 2>&1 & echo $!`,
		`setsid sh -c 'read x < "$1"; exec "$0" 60' "$0" "` + begin + `" >/dev/null 2>&1 & echo $!`,
	} {
		if i == 0 {
			s.Sample(t.Context(), listed)
		}
		pid := start(t, nil, script, program)
		if i == 1 {
			s.Sample(t.Context(), listed)
			for range rescanEvery { // not because of the regular rescan
				if (s.nonGuest.table.turn+1)%rescanEvery != pid%rescanEvery {
					break
				}
				s.Sample(t.Context(), listed)
			}
			if err := os.WriteFile(begin, []byte("x\n"), 0); err != nil {
				t.Fatal(err)
			}
		}
		testkit.Until(t, 10*time.Second, "it runs", func() bool {
			name, _ := os.ReadFile(at(pid, "comm"))
			return string(name) == "blender\n"
		})
		if got := s.Sample(t.Context(), listed).Exclusive; len(got) != 1 {
			t.Errorf("of %q nothing is found", script)
		}
		unix.Kill(pid, unix.SIGKILL)
		testkit.Until(t, 10*time.Second, "it is gone", func() bool { return len(s.Sample(t.Context(), listed).Exclusive) == 0 })
	}
}

// The kernel threads' use counts for no side, also in a burst.
func TestTheKernelsOwnThreadsDoNotCount(t *testing.T) {
	testkit.Root(t, "setsid", "sleep")
	program := start(t, nil, `setsid sleep 60 >/dev/null 2>&1 & echo $!`, "")
	o := must(openNonGuestLoad(Config{Scope: Machine}))
	var total time.Duration
	o.total = func() (time.Duration, error) { return total, nil }
	if _, err := o.use(false); !errors.Is(err, errEarly) {
		t.Fatal(err)
	}
	var thread *process
	for pid, p := range o.table.known {
		if p.parent == 2 && (p.whose != kernels || !p.kernel) {
			t.Errorf("%s, %d, is not the kernel's", p.name, pid)
		}
		if p.whose == kernels {
			thread = p
		}
	}
	if p := o.table.known[program]; p == nil || p.whose != nobodys || p.kernel {
		t.Errorf("a program is taken for %+v", p)
	}
	if thread == nil {
		t.Skip("the kernel's threads are not seen here")
	}
	// As if only that thread had used a CPU since the last sample.
	o.at = o.at.Add(-time.Second)
	burst := time.Since(o.at)
	total += burst
	thread.counted -= burst
	got, err := o.use(false)
	if err != nil || got > 0.1 {
		t.Errorf("others use %.2f CPUs, all of it by the kernel's threads: %v", got, err)
	}
	o.at = o.at.Add(-time.Second)
	total += time.Since(o.at)
	if got, err = o.use(false); err != nil || got < 0.8 {
		t.Errorf("others use %.2f CPUs, want 1: %v", got, err)
	}
}

// Guests' memory counts as available; huge pages never do.
func TestMemoryOfGuestsIsNotUsed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "meminfo")
	text := "MemTotal: 20000 kB\nMemFree: 100 kB\nMemAvailable: 400 kB\nHugetlb: 10000 kB\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for held, want := range map[int64]float64{0: 0.04, 6000 << 10: 0.64, 1 << 40: 1} {
		if got, err := available(file, held); err != nil || got != want {
			t.Errorf("guests hold %d bytes: %v can be had, want %v: %v", held, got, want, err)
		}
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		t.Fatal(err)
	}
	s := open(t, Config{})
	s.Holding(func() int64 { return int64(info.Totalram) * int64(info.Unit) })
	if got := s.Sample(t.Context(), nil); got.Available == nil || *got.Available != 1 {
		t.Errorf("guests hold all of the memory and %v of it can be had", deref(got.Available))
	}
}

// The machine's sensors return sensible values or a reason.
func TestMachineSensorsTellOrSayWhy(t *testing.T) {
	s := open(t, Config{})
	got := s.Sample(t.Context(), nil)
	deaf := strings.Join(got.Deaf, "\n")
	for name, v := range map[string]*float64{"waiting for CPUs": got.Waiting, "waiting for memory": got.Starved, "memory": got.Available} {
		switch {
		case v == nil && !strings.Contains(deaf, name+":"):
			t.Errorf("%s tells nothing and does not say why: %v", name, got.Deaf)
		case v != nil && (*v < 0 || *v > 1):
			t.Errorf("%s is %v", name, *v)
		}
	}
	if got.Idle == nil && !strings.Contains(deaf, "input:") {
		t.Errorf("input tells nothing and does not say why: %v", got.Deaf)
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		t.Fatal(err)
	}
	if got.Available == nil || *got.Available < float64(info.Freeram)/float64(info.Totalram)/2 {
		t.Errorf("%v of the memory can be had, %v is free", deref(got.Available), float64(info.Freeram)/float64(info.Totalram))
	}
}

// A sensor's cost, by the kernel's account.
func BenchmarkSample(b *testing.B) {
	for name, c := range map[string]Config{"machine": {}, "network": {Scope: Network}} {
		b.Run(name, func(b *testing.B) {
			host := testkit.Hosts(b, 1)[0] // one program in it
			startBusy(b, host, "x")
			s := onHost(b, host, c)
			ctx := context.Background()
			s.Sample(ctx, nil)
			var before, after syscall.Rusage
			if err := syscall.Getrusage(syscall.RUSAGE_SELF, &before); err != nil {
				b.Fatal(err)
			}
			for n := 0; b.Loop(); n++ {
				s.nonGuest.scanned = time.Now()
				if n%int(scanEvery/time.Second) == 0 { // as with one call a second
					s.nonGuest.scanned = time.Time{}
				}
				s.Sample(ctx, nil)
			}
			if err := syscall.Getrusage(syscall.RUSAGE_SELF, &after); err != nil {
				b.Fatal(err)
			}
			used := time.Duration(after.Utime.Nano() - before.Utime.Nano() + after.Stime.Nano() - before.Stime.Nano())
			b.ReportMetric(float64(used.Microseconds())/float64(b.N), "cpu-µs/op")
			b.ReportMetric(float64(len(must(processes()))), "processes")
		})
	}
}

func TestParseScope(t *testing.T) {
	for _, good := range []string{"machine", "network", "cgroup:user.slice"} {
		if s, err := ParseScope(good); err != nil || string(s) != good {
			t.Errorf("%s: %v %v", good, s, err)
		}
	}
	for _, bad := range []string{"", "x", "cgroup:", "cgroup:../x"} {
		if _, err := ParseScope(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
	if _, err := Open(Config{Scope: "x"}); err == nil {
		t.Error("a scope that means nothing was taken")
	}
}

func open(t testing.TB, c Config) *Sensors {
	t.Helper()
	s, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func deref(v *float64) any {
	if v == nil {
		return "no"
	}
	return *v
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
