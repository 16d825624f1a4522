package targets

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"pagurus/bench"
	"pagurus/bench/drive"
	"pagurus/fleet"
)

func TestAPipeTellsWhoListens(t *testing.T) {
	path := filepath.Join(t.TempDir(), "go")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := fifo(path); err != nil { // in place of what is there
		t.Fatal(err)
	}
	heard := make(chan string)
	go func() {
		text, _ := os.ReadFile(path)
		heard <- string(text)
	}()
	if err := writeToPipe(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	if got := <-heard; got != "go\n" {
		t.Errorf("heard %q", got)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := writeToPipe(ctx, path); err == nil {
		t.Error("no process listened")
	}
	if err := writeToPipe(t.Context(), filepath.Join(t.TempDir(), "none")); err == nil || err == unix.ENXIO {
		t.Errorf("no pipe: %v", err)
	}
}

func TestContainersAreFound(t *testing.T) {
	run := t.TempDir()
	folder := filepath.Join(run, "host2", "containers", "j1g0")
	if _, err := find(run, "j1g0"); err == nil {
		t.Error("a container that is nowhere was found")
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	for text, good := range map[string]bool{`{"process":{"pid":77},"image":"/x"}`: true, `{"process":{"pid":77}}`: false, `{`: false} {
		if err := os.WriteFile(filepath.Join(folder, "guest.json"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		c, err := find(run, "j1g0")
		if (err == nil) != good || good && (c.Host != "host2" || c.Process.PID != 77) {
			t.Errorf("%s: %+v, %v", text, c, err)
		}
	}
}

// A program whose job fails is told of with what it printed, and leaves nothing
// that the next one could take for its own.
func TestWhatAProgramPrintedIsToldOfItsFailure(t *testing.T) {
	dir := t.TempDir()
	pagurus := filepath.Join(dir, "pagurus")
	// It runs what is behind "--" here, as pagurus would in a guest.
	script := "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done; shift\nexec \"$@\"\n"
	if err := os.WriteFile(pagurus, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	l := &Lab{Pagurus: drive.Pagurus{Program: pagurus, Dir: dir}, Image: "hpc", Memory: "1M", Kinds: map[string][]string{"vm": {"--kind", "vm"}}}
	for _, c := range []struct{ command, text, failure string }{
		{"cat input", "hello\n", ""},
		{"echo sorry; exit 3", "sorry\n", "exit status 3: "},
	} {
		r, err := l.Open(t.Context(), bench.Program{Command: "sh -c '" + c.command + "'", Files: map[string]string{"input": "hello\n"}}, []string{"vm"})
		if err != nil {
			t.Fatal(err)
		}
		text, err := r.Run(t.Context(), "vm")
		if text != c.text || (err == nil) != (c.failure == "") || err != nil && (!strings.Contains(err.Error(), c.failure) || !strings.Contains(err.Error(), "sorry")) {
			t.Errorf("%s: %q, %v", c.command, text, err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Four ranks in two guests: each is told by itself, also those that share a guest, and
// it is not over before the last of them is.
func TestRanksThatShareAGuestAreToldEach(t *testing.T) {
	l := &Lab{Pagurus: drive.Pagurus{Dir: t.TempDir()}, Ranks: 4, Guests: 2, Image: "hpc", Memory: "1M"}
	if got := strings.Join(l.run(Contained), " "); !strings.HasPrefix(got, "run -n 4 --guests 2 ") {
		t.Errorf("they are run by %q", got)
	}
	r := &round{lab: l, program: bench.Program{Command: `sh -c 'echo '` + RankVariables + `'; [ ! -e fail.'` + RankVariables + `' ]'`}}
	if err := r.pipes(); err != nil {
		t.Fatal(err)
	}
	ranks := make([]*exec.Cmd, 4)
	for i := range ranks {
		ranks[i] = exec.CommandContext(t.Context(), "sh", "-c", waiter(r.program))
		ranks[i].Dir, ranks[i].Env = l.Dir, append(os.Environ(), "OMPI_COMM_WORLD_RANK="+strconv.Itoa(i))
		if err := ranks[i].Start(); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(l.Dir, "fail.3"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := r.beginProgram(t.Context()); err == nil || !strings.Contains(err.Error(), "rank 3 exited with 1: 3") {
		t.Errorf("the last rank failed: %v", err)
	}
	for i, c := range ranks {
		if text, err := os.ReadFile(filepath.Join(l.Dir, outputOf(i))); err != nil || string(text) != strconv.Itoa(i)+"\n" {
			t.Errorf("rank %d printed %q, %v", i, text, err)
		}
		if err := writeToPipe(t.Context(), filepath.Join(l.Dir, over(i))); err != nil {
			t.Error(err)
		}
		if err := c.Wait(); err != nil {
			t.Errorf("rank %d: %v", i, err)
		}
	}
	if err := r.clear(); err != nil {
		t.Error(err)
	}
	if left, err := filepath.Glob(filepath.Join(l.Dir, "output.*")); err != nil || len(left) != 0 {
		t.Errorf("left are %q, %v", left, err)
	}
}

// The same ranks share a network natively as share a guest.
func TestNativeRanksAreSpreadAsGuestsAre(t *testing.T) {
	subnet := fleet.Subnet(258)
	for want, l := range map[string]*Lab{
		"10.129.2.1 slots=1\n10.129.2.2 slots=1\n":                     {},
		"10.129.2.1 slots=2\n10.129.2.2 slots=2\n":                     {Ranks: 4, Guests: 2},
		"10.129.2.1 slots=3\n":                                         {Ranks: 3, Guests: 1},
		"10.129.2.1 slots=2\n10.129.2.2 slots=2\n10.129.2.3 slots=1\n": {Ranks: 5, Guests: 3},
	} {
		if got := hostFile(l.Job(), subnet); got != want {
			t.Errorf("%d ranks in %d guests are\n%s", l.Ranks, l.Guests, got)
		}
	}
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	at := []*outside{{&exec.Cmd{Process: &os.Process{Pid: 71}}}, {&exec.Cmd{Process: &os.Process{Pid: 72}}}}
	for name, text := range map[string]string{"nsenter": "#!/bin/sh\necho \"$@\"\n", "start": remoteStart(at, subnet)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command("start", "10.129.2.2", "prted", "--tree").Output()
	if err != nil || !strings.HasPrefix(string(out), "--target 72 ") || !strings.HasSuffix(string(out), " sh -c prted --tree\n") {
		t.Errorf("started was %q, %v", out, err)
	}
	if out, err := exec.Command("start", "10.129.2.3", "prted").CombinedOutput(); err == nil || !strings.Contains(string(out), "no host is called 10.129.2.3") {
		t.Errorf("a third network: %q, %v", out, err)
	}
}

func TestWhatTCPDidIsCounted(t *testing.T) {
	const netstat = "TcpExt: SyncookiesSent TCPTimeouts TCPLossProbes\nTcpExt: 1 7 9\nIpExt: InNoRoutes TCPTimeouts\nIpExt: 3 4\n"
	for name, want := range map[string]uint64{"TCPTimeouts": 7, "TCPLossProbes": 9, "TCPNone": 0} {
		if got := column(netstat, "TcpExt:", name); got != want {
			t.Errorf("%s is %d", name, got)
		}
	}
	if got := column("TcpExt: TCPTimeouts", "TcpExt:", "TCPTimeouts"); got != 0 {
		t.Errorf("of half a table %d were read", got)
	}
	// What this machine's own kernel says is found.
	for name, at := range counted {
		text, err := os.ReadFile("/proc/net/" + at.file)
		if err != nil || !strings.Contains(string(text), " "+at.column+" ") {
			t.Errorf("the kernel does not tell %s: %v", name, err)
		}
	}
	text := "  1  2.0  3.0\n" + since(map[string]uint64{Resent: 1, Timeouts: 2}, map[string]uint64{Resent: 5, Timeouts: 2, Probes: 1})
	if got := Counted(text); len(got) != 3 || got[Resent] != 4 || got[Timeouts] != 0 || got[Probes] != 1 {
		t.Errorf("%v of %q", got, text)
	}
}

// The folder that is exported is in the root of native processes wherever it is, and so
// is what the image has beside it, though the image cannot be written.
func TestANativeRootHasTheExport(t *testing.T) {
	if testing.Short() || os.Geteuid() != 0 {
		t.Skip("it mounts an image")
	}
	below, err := os.MkdirTemp("/srv", "pagurus-") // not below what is memory in any case
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(below) })
	export := filepath.Join(below, "export")
	if err := os.Mkdir(export, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(export, "program"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	top := "/" + strings.Split(export, "/")[1]
	for name, has := range map[string]string{"all of it": export, "above it": filepath.Dir(export), "the first": top, "nothing": "/"} {
		dir := t.TempDir()
		image := `mount -t tmpfs tmpfs "$1"; for at in proc sys dev tmp run var/tmp "$5"; do mkdir -p "$1/$at"; done; >"$1$5/kept"; >"$1/kept"; mount -o remount,ro "$1"` + "\n"
		look := `[ -e "$root$export/program" ]; [ -e "$root/kept" ]; [ "$5" = "$export" ] || [ -e "$root$5/kept" ]; ! mkdir "$root/new" 2>/dev/null || [ "$5" = / ]` + "\n"
		c := exec.Command("unshare", "--mount", "--uts", "sh", "-ec", image+rootScript+look, "sh", t.TempDir(), "g0", dir, export, has)
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("of the folder %s the image has %s: %v: %s", export, name, err, out)
		}
	}
}

// Who enters the place of a native process as soon as it is there is in the image,
// however long the shell takes to get there itself.
func TestANativePlaceIsReadyInItsOwnRoot(t *testing.T) {
	if testing.Short() || os.Geteuid() != 0 {
		t.Skip("it mounts an image")
	}
	real, err := exec.LookPath("chroot")
	if err != nil {
		t.Fatal(err)
	}
	slow, hidden := t.TempDir(), t.TempDir() // the image, which is this machine's root, has an empty /tmp
	if err := os.WriteFile(filepath.Join(slow, "chroot"), []byte("#!/bin/sh\nsleep 0.5\nexec "+real+" \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", slow+":"+os.Getenv("PATH"))
	c := Container{Image: "/"}
	c.Process.PID = os.Getpid()
	o, err := (&Lab{Pagurus: drive.Pagurus{Dir: t.TempDir()}}).goOutside(t.Context(), c, "g0")
	if err != nil {
		t.Fatal(err)
	}
	defer o.end()
	enter := append(o.enter(), "sh", "-c", "! [ -e "+hidden+" ]")
	if out, err := exec.Command(enter[0], enter[1:]...).CombinedOutput(); err != nil {
		t.Errorf("it is entered where this machine's files are: %v %s", err, out)
	}
}
