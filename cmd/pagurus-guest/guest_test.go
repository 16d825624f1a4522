package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// One guest: what programs see, and how they end. It has a peer for the MPI and trace tests,
// which saves those two guests of their own.
func TestGuest(t *testing.T) {
	guests := bootPair(t, "openmpi")
	g := guests[0]
	t.Run("who programs are", func(t *testing.T) { seen(t, g) })
	t.Run("the job's files", func(t *testing.T) { files(t, g) })
	t.Run("size and sleep", func(t *testing.T) { modest(t, g) })
	t.Run("set up again", func(t *testing.T) { again(t, g) })
	t.Run("link cut", func(t *testing.T) { linkCut(t, g) })
	t.Run("move", func(t *testing.T) { moved(t, g) })
	t.Run("MPI", func(t *testing.T) { checkMPI(t, guests) })
	t.Run("trace", func(t *testing.T) { checkTrace(t, guests) })
	t.Run("shutdown", func(t *testing.T) { shutdown(t, g) })
}

func seen(t *testing.T, g *vm) {
	o := g.do(t, time.Minute, g.sh("id; hostname; pwd; echo $HOME; touch $HOME/x && echo home; cat /etc/hosts; cat; echo error >&2; exit 3"), "input\n")
	contains(t, "output", o.stdout, fmt.Sprintf("uid=%d(user) gid=%d(user) groups=%d(user),3456", jobUser, jobUser+1, jobUser+1),
		"guest0\n", g.export+"\n", "/home/user\nhome\n", "10.129.85.1 guest0", "input\n")
	if o.stderr != "error\n" || o.exit.Code != 3 {
		t.Errorf("%+v", o)
	}
	o = g.do(t, time.Minute, g.sh("kill -SEGV $$"), "")
	if o.exit != (fleet.Exit{Code: 139, Signal: "SIGSEGV"}) {
		t.Errorf("%+v", o)
	}
	o = g.do(t, time.Minute, fleet.Program{Args: []string{"true"}, Dir: "/none"}, "")
	if o.exit.Code != 125 || !strings.Contains(o.stderr, "working directory /none") {
		t.Errorf("%+v", o)
	}
	o = g.do(t, time.Minute, g.sh("trap '' HUP; cat /proc/self/status | grep -e SigIgn -e CapEff -e NoNewPrivs; ulimit -n; cat /proc/1/environ"), "")
	contains(t, "status", o.stdout, "SigIgn:\t0000000000000001", "CapEff:\t0000000000000000", "1024")
	contains(t, "stderr", o.stderr, "Permission denied")
}

func files(t *testing.T, g *vm) {
	g.put(t, "from host", []byte("hello"))
	o := g.do(t, time.Minute, g.sh("cat 'from host' && echo back >guest && chmod 640 guest && stat -c %u:%g guest && grep nfs /proc/mounts"), "")
	contains(t, "output", o.stdout, "hello", fmt.Sprintf("%d:%d", jobUser, jobUser+1), "vers=4.1")
	var st unix.Stat_t
	err := unix.Stat(filepath.Join(g.export, "guest"), &st)
	if err != nil || st.Uid != jobUser || st.Mode&0o777 != 0o640 {
		t.Errorf("%v %d %o %s", err, st.Uid, st.Mode, o.stderr)
	}
}

// modest checks the guest agent's cost: memory, and wake-ups while idle.
func modest(t *testing.T, g *vm) {
	if st, err := os.Stat(builtPath); err != nil || st.Size() > 8<<20 {
		t.Errorf("the guest agent is too large: %v %v", st, err)
	}
	// Output would be a wake-up itself, so all is printed at the end.
	script := "look() { cat /proc/1/task/*/status | grep -e ^VmRSS -e ^volun; }; sleep 1; a=$(look); sleep 5; b=$(look); echo \"$a\"; echo later; echo \"$b\""
	before, after, ok := strings.Cut(g.do(t, 2*time.Minute, g.sh(script), "").stdout, "later\n")
	if !ok {
		t.Fatal(before)
	}
	resident := numbers(before, `VmRSS:\s+(\d+)`)
	if len(resident) == 0 || resident[0] > 12<<10 {
		t.Errorf("the guest agent takes %v KiB", resident)
	}
	sum := func(all []int) (n int) {
		for _, v := range all {
			n += v
		}
		return n
	}
	woken := sum(numbers(after, `switches:\s+(\d+)`)) - sum(numbers(before, `switches:\s+(\d+)`))
	t.Logf("%d KiB resident, woken %d times in five seconds", resident[0], woken)
	if woken > 7 { // two for the script's own processes, which end
		t.Errorf("the guest agent was woken %d times in five seconds in which nothing happened", woken)
	}
}

func numbers(text, pattern string) (all []int) {
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		n, err := strconv.Atoi(m[1])
		if err == nil {
			all = append(all, n)
		}
	}
	return all
}

func again(t *testing.T, g *vm) {
	g.join(t)
	o := g.do(t, time.Minute, g.sh("date +%s.%N; grep -c ' nfs4 ' /proc/mounts; grep -c user /etc/passwd"), "")
	var at float64
	var mounts, users int
	if _, err := fmt.Sscan(o.stdout, &at, &mounts, &users); err != nil || mounts != 1 || users != 1 {
		t.Errorf("after a second setup: %q %v", o.stdout, err)
	}
	if off := time.Since(time.Unix(0, int64(at*1e9))); off.Abs() > time.Minute {
		t.Errorf("the clock is off by %v", off)
	}
	ctx, cancel := context.WithTimeout(t.Context(), bootLimit)
	defer cancel()
	wrong := g.setup
	wrong.MAC = "02:00:00:00:99"
	if err := g.Setup(ctx, wrong); err == nil || !strings.Contains(err.Error(), wrong.MAC) {
		t.Errorf("half an address: %v", err)
	}
	// A guest from a snapshot has another guest's address, and takes its own.
	other := g.setup
	other.MAC, other.Seed = "02:00:00:00:00:99", []byte("thirty-two bytes that are a seed")
	if err := g.Setup(ctx, other); err != nil {
		t.Errorf("another address: %v", err)
	}
	if o := g.do(t, time.Minute, fleet.Program{Args: []string{"sh", "-c", "cat /sys/class/net/*/address"}, Dir: "/"}, ""); !strings.Contains(o.stdout, other.MAC) {
		t.Errorf("another address: %+v", o)
	}
	wrong = g.setup
	wrong.Export = "/usr"
	if err := g.Setup(ctx, wrong); err == nil || !strings.Contains(err.Error(), "hide") {
		t.Errorf("share over /usr: %v", err)
	}
	g.join(t)
}

const many = 60_000 // lines; more than any buffer on the way holds

func lines() string {
	var want strings.Builder
	for i := range many {
		fmt.Fprintf(&want, "%d\n", i+1)
	}
	return want.String()
}

// linkCut has the host's side of the link end repeatedly while output flows.
func linkCut(t *testing.T, g *vm) {
	stop := make(chan struct{})
	var cutter sync.WaitGroup
	cutter.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
				g.cut()
			}
		}
	})
	o := g.do(t, 2*time.Minute, g.sh(fmt.Sprintf("wc -l; seq %d", many)), lines())
	close(stop)
	cutter.Wait()
	if o.stdout != fmt.Sprintf("%d\n%s", many, lines()) || o.exit.Code != 0 {
		t.Errorf("%d bytes came, %v %s", len(o.stdout), o.exit, o.stderr)
	}
}

// moved moves the guest while a program writes and the agent asks nothing.
func moved(t *testing.T, g *vm) {
	var o outcome
	wait := testkit.Meanwhile(t, func() {
		o = g.do(t, 5*time.Minute, g.sh(fmt.Sprintf("until [ -e arrived ]; do seq %d; sleep 0.5; cat /etc/hostname >>beats; done; cat", many)), "end\n")
	})
	testkit.Until(t, time.Minute, "the program runs", func() bool {
		_, err := os.Stat(filepath.Join(g.export, "beats"))
		return err == nil
	})
	g.move(t)
	g.put(t, "arrived", nil)
	wait()
	beats, _ := os.ReadFile(filepath.Join(g.export, "beats"))
	n := strings.Count(string(beats), "\n")
	if o.stdout != strings.Repeat(lines(), n)+"end\n" || o.exit.Code != 0 {
		t.Errorf("after %d beats %d bytes came, %v %s", n, len(o.stdout), o.exit, o.stderr)
	}
	if string(beats) != strings.Repeat("guest0\n", n) {
		t.Errorf("on the job's files: %q", beats)
	}
}

func shutdown(t *testing.T, g *vm) {
	ctx, cancel := context.WithTimeout(t.Context(), bootLimit)
	defer cancel()
	if err := g.Launch(ctx, fleet.Program{ID: "endless", Args: []string{"sh", "-c", "exec 3>last; echo unflushed >&3; echo >begun; sleep 600"}, Dir: g.export}); err != nil {
		t.Fatal(err)
	}
	const written = 8 << 20
	script := fmt.Sprintf(`trap "" TERM; exec 3>large; head -c %d /dev/zero >&3; echo >grown; while :; do sleep 600; done`, written)
	if err := g.Launch(ctx, fleet.Program{ID: "stubborn", Args: []string{"sh", "-c", script}, Dir: g.export}); err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, time.Minute, "the programs run", func() bool {
		_, begun := os.Stat(filepath.Join(g.export, "begun"))
		_, grown := os.Stat(filepath.Join(g.export, "grown"))
		return begun == nil && grown == nil
	})
	if err := g.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(filepath.Join(g.export, "large")); err != nil || st.Size() != written {
		t.Errorf("of a program that had to be killed: %+v %v", st, err)
	}
	least := time.Hour // a busy machine may be slow, but not always
	for range 5 {
		began := time.Now()
		if err := g.Shutdown(ctx); err != nil {
			t.Fatal(err)
		}
		if least = min(least, time.Since(began)); least < endGrace {
			break
		}
	}
	if least >= endGrace {
		t.Errorf("a shutdown without processes to end took %v", least)
	}
	if exit, err := g.Wait(ctx, "endless"); err != nil || exit.Signal != "SIGTERM" {
		t.Errorf("%+v %v", exit, err)
	}
	if b, _ := os.ReadFile(filepath.Join(g.export, "last")); string(b) != "unflushed\n" {
		t.Errorf("%q was written", b)
	}
	g.join(t)
	if o := g.do(t, time.Minute, g.sh("cat last"), ""); o.stdout != "unflushed\n" {
		t.Errorf("after another setup: %+v", o)
	}
}
