package sampler

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/host"
	"pagurus/internal/testkit"
)

const mib = 1 << 20

// subjectVariable makes a copy of the test binary that uses its memory in a known
// way; it names the folder of its files.
const subjectVariable = "PAGURUS_SAMPLER_TEST_SUBJECT"

func TestMain(m *testing.M) {
	if dir := os.Getenv(subjectVariable); dir != "" {
		use(dir)
	}
	os.Exit(m.Run())
}

// The subject's memory in MiB: filled private memory, private memory of zeros, untouched private
// memory, shared memory without a file, and shared memory of a file. It writes to a part of each
// again and again.
const (
	filledMiB, zeroMiB, untouchedMiB, sharedMiB, fileMiB = 32, 8, 1 << 14, 8, 16
	busyMiB                                              = 4 // of the filled, the shared and the file's: each
)

func use(dir string) {
	end := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	mapped := func(fd, size, how int) []byte {
		b, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, how)
		end(err)
		_ = unix.Madvise(b, unix.MADV_NOHUGEPAGE)
		return b
	}
	own := mapped(-1, (filledMiB+zeroMiB+untouchedMiB)*mib, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	shared := mapped(-1, sharedMiB*mib, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	f, err := os.Create(filepath.Join(dir, "file"))
	end(err)
	end(f.Truncate(fileMiB * mib))
	file := mapped(int(f.Fd()), fileMiB*mib, unix.MAP_SHARED)
	write := func(b []byte, with byte) {
		for i := 0; i < len(b); i += pageBytes {
			b[i] = with
		}
	}
	write(own[:filledMiB*mib], 1)
	write(own[filledMiB*mib:(filledMiB+zeroMiB)*mib], 0)
	write(shared, 1)
	write(file, 1)
	fmt.Println("ready")
	for n := 0; ; n++ {
		for _, b := range [][]byte{own, shared, file} {
			write(b[:busyMiB*mib], byte(n)|1)
			write(b[:busyMiB*mib], byte(n)|2)
		}
		time.Sleep(time.Millisecond)
	}
}

// subject starts a subject with memory for its files.
func subject(t testing.TB) Subject {
	t.Helper()
	testkit.Root(t)
	dir := t.TempDir()
	if err := unix.Mount("pagurus-test", dir, "tmpfs", 0, "size=64m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), subjectVariable+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return Subject{Processes: []int{cmd.Process.Pid}, Files: dir}
}

func near(got, want, slack int64) bool { return got > want-slack && got < want+slack }

// resident returns how much of a process's memory is resident.
func resident(t *testing.T, pid int) (bytes int64) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	var size, pages int64
	if _, err := fmt.Sscan(string(text), &size, &pages); err != nil {
		t.Fatal(err)
	}
	return pages * pageBytes
}

// TestLook: filled and changing memory is found, also in files, at low cost and without effect
// on the process.
func TestLook(t *testing.T) {
	s := subject(t)
	before := resident(t, s.Processes[0])
	s.Processes = append(s.Processes, 1<<22-1) // nobody has that number
	p, err := SampleMemory(t.Context(), s, host.SamplePlan{Pages: 8192, After: []time.Duration{50 * time.Millisecond, 200 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", p)
	// The subject's runtime has a few MiB.
	const filled = (filledMiB + sharedMiB + fileMiB) * mib
	if p.Segments != 1 || p.Mappings < 10 {
		t.Errorf("%d mappings, %d shared without a file", p.Mappings, p.Segments)
	}
	if !near(p.FilledBytes, filled+2*mib, 4*mib) || !near(p.MemoryBytes, p.FilledBytes+zeroMiB*mib, 4*mib) || p.Pages != 8192 || p.Took <= 0 {
		t.Errorf("of %d MiB %d are filled, want %d", p.MemoryBytes/mib, p.FilledBytes/mib, filled/mib)
	}
	if len(p.Changed) != 3 {
		t.Fatalf("%d points, want 3", len(p.Changed))
	}
	for _, c := range p.Changed {
		if !near(c.Bytes, 3*busyMiB*mib+mib/2, 2*mib) {
			t.Errorf("%.1f MiB changed within %s, want %d", float64(c.Bytes)/mib, c.Within, 3*busyMiB)
		}
	}
	if grown := resident(t, s.Processes[0]) - before; grown > mib {
		t.Errorf("looking made %d KiB resident", grown>>10)
	}
}

// TestLookSeesGrowth: memory that appears during the measurement counts as changed.
func TestLookSeesGrowth(t *testing.T) {
	s := subject(t)
	go func() {
		time.Sleep(50 * time.Millisecond)
		_ = os.WriteFile(filepath.Join(s.Files, "more"), make([]byte, 24*mib), 0o600)
	}()
	p, err := SampleMemory(t.Context(), s, host.SamplePlan{Pages: 4096, After: []time.Duration{10 * time.Millisecond, time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	if c := p.Changed[len(p.Changed)-1]; !near(c.Bytes, (24+3*busyMiB)*mib, 3*mib) {
		t.Errorf("%.1f MiB changed within %s, want %d", float64(c.Bytes)/mib, c.Within, 24+3*busyMiB)
	}
}

func TestLookEnds(t *testing.T) {
	s := subject(t)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := SampleMemory(ctx, s, host.SamplePlan{Pages: 16, After: []time.Duration{time.Hour}}); !errors.Is(err, context.Canceled) {
		t.Errorf("a look whose context ended: %v", err)
	}
	soon := []time.Duration{1}
	for _, bad := range []struct {
		s Subject
		p host.SamplePlan
	}{
		{Subject{}, host.SamplePlan{Pages: 1, After: soon}}, {s, host.SamplePlan{}}, {s, host.SamplePlan{Pages: 1}}, {Subject{Processes: []int{1<<22 - 1}}, host.SamplePlan{Pages: 1, After: soon}},
		{Subject{Processes: s.Processes, Files: "/nonexistent"}, host.SamplePlan{Pages: 1, After: soon}},
	} {
		if p, err := SampleMemory(t.Context(), bad.s, bad.p); err == nil {
			t.Errorf("looking at %+v gave %+v", bad, p)
		}
	}
	// A process that has ended meanwhile has no more memory.
	go func() {
		time.Sleep(20 * time.Millisecond)
		_ = unix.Kill(s.Processes[0], unix.SIGKILL)
	}()
	if _, err := SampleMemory(t.Context(), s, host.SamplePlan{Pages: 1024, After: []time.Duration{100 * time.Millisecond}}); err != nil {
		t.Errorf("its process ended: %v", err)
	}
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		line  string
		want  area
		key   string
		moves bool
	}{
		{"7f0000000000-7f0000001000 rw-p 00000000 00:00 0 ", area{start: 0x7f0000000000, end: 0x7f0000001000}, "", true},
		{"7f0000000000-7f0000001000 r--p 00000000 fe:00 12   /usr/lib/libc.so.6", area{start: 0x7f0000000000, end: 0x7f0000001000}, "", true},
		{"7f0000000000-7f0000001000 r-xp 00000000 00:00 0   [vdso]", area{}, "", false},
		{"1000-2000 rw-s 00000000 00:01 7   /dev/zero (deleted)", area{start: 0x1000, end: 0x2000, shared: true}, "00000000 00:01 7", true},
		{"1000-2000 rw-s 00001000 00:2a 7   /dev/shm/a name", area{start: 0x1000, end: 0x2000, shared: true, files: true}, "00001000 00:2a 7", true},
		{"1000-2000 rw-s 00000000 fe:00 7   /home/ada/data", area{}, "", false},
		{"2000-1000 rw-p 00000000 00:00 0", area{}, "", false},
		{"nonsense", area{}, "", false},
		{"", area{}, "", false},
	} {
		a, key, ok := parse(c.line, "00:2a")
		if ok != c.moves || ok && (a != c.want || key != c.key) {
			t.Errorf("%q gave %+v, %q, %t", c.line, a, key, ok)
		}
	}
}

func TestShareOfNothing(t *testing.T) {
	if got := share(1, 0, math.MaxInt64); got != 0 {
		t.Errorf("a share of nothing is %d", got)
	}
}

// BenchmarkLook measures the cost: about the same for every guest of more than 32 MiB.
func BenchmarkLook(b *testing.B) {
	s := subject(b)
	var sum time.Duration
	for b.Loop() {
		p, err := SampleMemory(b.Context(), s, host.SamplePlan{Pages: 4096, After: []time.Duration{1, 2, 3, 4}})
		if err != nil {
			b.Fatal(err)
		}
		sum += p.Took
	}
	b.ReportMetric(sum.Seconds()*1e3/float64(b.N), "ms/look")
}

// TestMarking: pages before, in, between and after the existing regions, in several areas.
func TestMarking(t *testing.T) {
	var sample []page
	for area := range 3 {
		for address := range uint64(10) {
			sample = append(sample, page{area: area, address: address, there: address%2 == 0}) // as before
		}
	}
	m := marking{left: sample}
	m.mark(0, host.PageRegion{Start: 2, End: 4})
	m.mark(0, host.PageRegion{Start: 4, End: 5})
	m.mark(0, host.PageRegion{Start: 7, End: 20})
	m.mark(2, host.PageRegion{Start: 0, End: 1})
	m.absent(3, 0)
	for _, p := range sample {
		want := p.area == 0 && (p.address >= 2 && p.address < 5 || p.address >= 7) || p.area == 2 && p.address == 0
		if p.there != want {
			t.Errorf("page %d of area %d is there: %t", p.address, p.area, p.there)
		}
	}
}
