package libpagurus

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pagurus/internal/testkit"
)

func TestLibraryIsBuiltFromItsSource(t *testing.T) {
	testkit.Built(t, "lib/libpagurus.so", "lib/libpagurus.c", "022cde78ede8df5cc8d6d9501a0dec1470f504343a4fc302c2f830bd72a395d7")
	testkit.Built(t, "lib/libpagurus-mpi.so", "lib/libpagurus-mpi.c", "3a4c4dcccc0e738076a5b24a0f6c83d2a1390ca2347bf97c3ac0f686e44b992c")
	testkit.Built(t, "lib/libpagurus-launch.so", "lib/libpagurus-launch.c", "4b4cb3b81dcc8a495a4f17cf4c3053be64867d79c006dc76caa294427ead15ff")
}

// A command that mpirun has put into a group of its own, and that was quicker than mpirun, is no reason for a warning; whatever else the kernel
// refuses is refused. What mpirun starts does not load it.
func TestCommandIsQuickerThanItsLauncher(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "mpirun")
	if out, err := exec.Command("gcc", "-Wall", "-Werror", "-o", program, "testdata/launch.c").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	library, err := filepath.Abs("lib/libpagurus-launch.so")
	if err != nil {
		t.Fatal(err)
	}
	of := func(program string, env ...string) string {
		t.Helper()
		cmd := exec.Command(program)
		cmd.Env = append(env, "KEPT=kept")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%v: %v: %s", env, err, out)
		}
		return string(out)
	}
	const rest = "other group: -1 13\nstranger: -1 3\npreloaded: "
	if got := of(program); got != "own group: -1 13\n"+rest+"nothing\nkept: kept\n" {
		t.Errorf("without it: %q", got)
	}
	if got := of(program, "LD_PRELOAD="+library); got != "own group: 0 0\n"+rest+library+"\nkept: kept\n" {
		t.Errorf("a command that becomes the launcher: %q", got)
	}
	testkit.Root(t, "unshare") // to have it where guests have it
	for _, name := range []string{"prte", "orterun"} {
		if err := os.Link(program, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		for more, left := range map[string]string{"": "nothing", ":/usr/lib/x86_64-linux-gnu/libc.so.6": "/usr/lib/x86_64-linux-gnu/libc.so.6"} {
			const inside = `mount -t tmpfs none /mnt && mkdir /mnt/u /mnt/w && mount -t overlay -o lowerdir=/usr/lib/x86_64-linux-gnu,upperdir=/mnt/u,workdir=/mnt/w none /usr/lib/x86_64-linux-gnu && cp "$1" "$2" && LD_PRELOAD="$2$3" exec "$4"`
			cmd := exec.Command("unshare", "--mount", "sh", "-c", inside, "sh", library, Launcher, more, filepath.Join(dir, name))
			cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "KEPT=kept"}
			if out, err := cmd.CombinedOutput(); err != nil || string(out) != "own group: 0 0\n"+rest+left+"\nkept: kept\n" {
				t.Errorf("%s with %q: %v: %q", name, more, err, out)
			}
		}
	}
}

// placed is a root with the library, and a program that uses all of it but scratch memory.
func placed(t *testing.T) (root, program string) {
	t.Helper()
	return placedFor(t, "all")
}

// placedFor is a root with the library, and a program of testdata.
func placedFor(t *testing.T, name string) (root, program string) {
	t.Helper()
	root = t.TempDir()
	for range 2 {
		if err := Place(root); err != nil {
			t.Fatal(err)
		}
	}
	program = filepath.Join(root, name)
	out, err := exec.Command("gcc", "-Wall", "-Werror", "-pthread", "-I", filepath.Join(root, "usr/include"), "-o", program, "testdata/"+name+".c",
		"-L", filepath.Join(root, libraries), "-lpagurus", "-Wl,-rpath,"+filepath.Join(root, libraries)).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return root, program
}

// run runs a program with the guest's socket at a path.
func run(t *testing.T, socket string, args ...string) string {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "PAGURUS_SOCKET="+socket, "PYTHONDONTWRITEBYTECODE=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v: %s", args, err, out)
	}
	return string(out)
}

func TestWithoutPagurusAllCallsSayThatThereIsNone(t *testing.T) {
	_, program := placed(t)
	if got := run(t, "/nowhere", program); got != "where 1 '' '' '' 0 0\nneighbours 1 0\ndistances 1 0\ncost 1 '' 0\nat a mark 1 '' 0.0 0\nmove 1\nmove 1\ncheckpoint 1\ncheap 1\nnot now 1\nremark 1\ninvalid 2 2 2\n" {
		t.Errorf("%q", got)
	}
}

// answer answers each connection with the same.
func answer(t *testing.T, said string) (socket string, heard chan string) {
	t.Helper()
	socket, heard = filepath.Join(t.TempDir(), "s"), make(chan string, 100)
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b := make([]byte, 600)
			n, _ := c.Read(b)
			heard <- string(b[:n])
			_, _ = c.Write([]byte(said))
			c.Close()
		}
	}()
	return socket, heard
}

const told = "pagurus1 0 all is well\njob j1\nguest j1g0\nhost host1\nsite here\nguests 3\nhere 2\ncpus 4\nload 1.5\npeer j1g1 host1 here\npeer j1g2 host2 \nfar j1g1 0 0.000000 0 host1\nfar j1g2 2 0.012500 117000000 host2\n" +
	"to host2\nseconds 2.5\nseconds-low 2\nseconds-high 3\ndowntime 0.03\nbytes 1048576\nconverges 1\nmark-seconds 1.5\nmark-bytes 65536\nmark-converges 1\n\n"

func TestWhatTheGuestSays(t *testing.T) {
	root, program := placed(t)
	socket, heard := answer(t, told)
	want := "where 0 'j1' 'host1' 'here' 3 2\nneighbours 0 2 j1g1@host1@here j1g2@host2@\ndistances 0 2 j1g1@host1 0 0.0000 0 j1g2@host2 2 0.0125 117000000\ncost 0 'host2' 2\nat a mark 0 'host2' 1.5 65536\nmove 0\nmove 0\ncheckpoint 0\ncheap 0\nnot now 0\nremark 0\ninvalid 2 2 2\n"
	if got := run(t, socket, program); got != want {
		t.Errorf("%q", got)
	}
	var lines []string
	for len(heard) > 0 {
		lines = append(lines, <-heard)
	}
	if got := strings.Join(lines, ""); got != "pagurus1 where\npagurus1 where\npagurus1 distances\npagurus1 cost me\npagurus1 cost me\npagurus1 move job away\npagurus1 move me rank 3\npagurus1 checkpoint\npagurus1 cheap\npagurus1 not-now 1500\npagurus1 remark ill a disk is slow\n" {
		t.Errorf("%q", got)
	}

	module := "import sys, ctypes; sys.path.insert(0, '" + root + "/usr/lib/python3/dist-packages'); real = ctypes.CDLL; " +
		"ctypes.CDLL = lambda name: real('" + filepath.Join(root, libraries) + "/' + name); import libpagurus as p; "
	if got := run(t, socket, "python3", "-c", module+"print(p.where(), p.neighbours(), p.distances(), p.cost(), p.move(how=p.AWAY), p.not_now(2), p.remark('x'))"); got !=
		"Place(job='j1', guest='j1g0', host='host1', site='here', guests=3, here=2, cpus=4, load=1.5) "+
			"[Place(job='j1', guest='j1g1', host='host1', site='here', guests=0, here=0, cpus=0, load=0.0), Place(job='j1', guest='j1g2', host='host2', site='', guests=0, here=0, cpus=0, load=0.0)] "+
			"[Distance(guest='j1g1', host='host1', place=0, latency=0.0, bandwidth=0.0), Distance(guest='j1g2', host='host2', place=2, latency=0.0125, bandwidth=117000000.0)] "+
			"Price(to='host2', seconds=2.5, seconds_low=2.0, seconds_high=3.0, downtime=0.03, bytes=1048576, converges=1) True True True\n" {
		t.Errorf("%q", got)
	}
	if got := run(t, "/nowhere", "python3", "-c", module+"print(p.where(), p.neighbours(), p.cost(), p.move(), p.cheap_now())"); got != "None [] None False False\n" {
		t.Errorf("%q", got)
	}
	more, heard := answer(t, "pagurus1 0 \ncount 2\nfirst 1\nslots 3\nhosts guest1:3,guest2:3\n\n")
	if got := run(t, more, "python3", "-c", module+"print(p.grow(2, seconds=5), p.grow(ranks=6, seconds=0.001))"); got != strings.Repeat(" Growth(guests=2, first=1, slots=3, hosts='guest1:3,guest2:3')", 2)[1:]+"\n" {
		t.Errorf("%q", got)
	}
	if got := <-heard + <-heard; !strings.HasPrefix(got, "pagurus1 grow guests 2 ") || !strings.HasSuffix(got, "\npagurus1 grow ranks 6 1\n") {
		t.Errorf("%q", got)
	}
	busy, heard := answer(t, "pagurus1 4 busy\n\n") // asked again, as long as there is time
	if got := run(t, busy, "python3", "-c", module+"\ntry: p.grow(1, seconds=2)\nexcept p.Error as e: print(e.code, e)"); got != "4 busy\n" || len(heard) != 2 {
		t.Errorf("%q, asked %d times", got, len(heard))
	}
	refused, _ := answer(t, "pagurus1 3 there is no room\n\n")
	if got := run(t, refused, "python3", "-c", module+"\ntry: p.move()\nexcept p.Error as e: print(e.code, e)"); got != "3 there is no room\n" {
		t.Errorf("%q", got)
	}
}

// Memory that is not needed is given back where a move waits, whole pages of it and nothing else, and bad arguments do nothing.
func TestScratchMemory(t *testing.T) {
	root, program := placedFor(t, "regions")
	socket, heard := answer(t, "pagurus1 0 \ngive 1\n\n")
	go func() {
		for range heard { // or it fills
		}
	}()
	want := "bad: 2 2 2 2 2 2 2 2 2 2 2 2\ngood: 0 0 2 2\ncheap: 0 left: 2 of which the ends, and 0\na child's: 0, here: 7\nend: 0 2 0\nended: 7\n" +
		"one too many: 3 a process has 64 regions at most\ndone\n"
	if got := run(t, socket, program); got != want {
		t.Errorf("%q", got)
	}
	module := "import sys, ctypes, mmap; sys.path.insert(0, '" + root + "/usr/lib/python3/dist-packages'); real = ctypes.CDLL; " +
		"ctypes.CDLL = lambda name: real('" + filepath.Join(root, libraries) + "/' + name); import libpagurus as p; "
	script := module + "b = bytearray(b'x' * 100000); print(p.scratch(b), p.cheap_now(), b.count(0) >= 23 * 4096, p.scratch_end(b))\n" +
		"try: p.scratch(mmap.mmap(-1, 8192))\nexcept p.Error as e: print(e.code, len(p._scratch))"
	if got := run(t, socket, "python3", "-c", script); got != "True True True True\n2 0\n" {
		t.Errorf("%q", got)
	}
	if got := run(t, "/nowhere", "python3", "-c", module+"b = bytearray(100000); print(p.scratch(b), p.cheap_now(), p.scratch_end(b))"); got != "False False False\n" {
		t.Errorf("%q", got)
	}
}

// A process's scratch memory is told with its marks.
func TestHowMuchScratchMemoryIsTold(t *testing.T) {
	root, _ := placed(t)
	socket, heard := answer(t, "pagurus1 0 \n\n")
	script := "import sys, ctypes, mmap; sys.path.insert(0, '" + root + "/usr/lib/python3/dist-packages'); real = ctypes.CDLL; " +
		"ctypes.CDLL = lambda name: real('" + filepath.Join(root, libraries) + "/' + name); import libpagurus as p; " +
		"b = mmap.mmap(-1, 40960, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS); b[5000] = 7; p.scratch(b); p.cheap_now(); print(b[5000]); p.scratch_end(b)"
	if got := run(t, socket, "python3", "-c", script); got != "7\n" {
		t.Errorf("%q: it is given back though nothing waits", got)
	}
	if got := <-heard + <-heard + <-heard; got != "pagurus1 scratch 40960\npagurus1 cheap 40960\npagurus1 scratch 0\n" {
		t.Errorf("%q", got)
	}
}

// What is not an answer is a fault, and nothing worse.
func TestAnswersThatAreNone(t *testing.T) {
	_, program := placed(t)
	for _, said := range []string{"", "\n\n", "pagurus1 0 cut off\nhost h", "pagurus2 0 x\n\n", "pagurus1 99 x\n\n", strings.Repeat("pagurus1 0 x\n", 2000)} {
		socket, _ := answer(t, said)
		if got := run(t, socket, program); !strings.HasPrefix(got, "where 6 ") {
			t.Errorf("%.40q: %q", said, got)
		}
	}
	long := "pagurus1 0 " + strings.Repeat("t", 4000) + "\nhost " + strings.Repeat("h", 3000) + "\n\n"
	socket, _ := answer(t, long)
	if got := run(t, socket, program); !strings.HasPrefix(got, "where 0 '' '"+strings.Repeat("h", 127)+"' ''") {
		t.Errorf("%.300q", got)
	}
}
