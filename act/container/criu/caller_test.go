package criu

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/checkpoint-restore/go-criu/v8/rpc"
	"golang.org/x/sys/unix"
)

// callerVariable holds the orders for a copy of this test that will be killed.
const callerVariable = "PAGURUS_CRIU_TEST_CALLER"

// caller is a process that dumps or restores, and is killed at one of its steps.
type caller struct {
	Criu        Criu
	PID         int // to dump; 0: it restores
	Images      string
	Root, Netns string
	Mounts      map[string]string
	Group       string // a frozen control group for the restored processes
	Hangs       bool   // CRIU hangs from the caller's death on
	DiesAt      string // "frozen", "ready", "restored", "resuming"; otherwise at the end
}

func TestMain(m *testing.M) {
	if text := os.Getenv(callerVariable); text != "" {
		var c caller
		if err := json.Unmarshal([]byte(text), &c); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(c.run())
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func (c caller) run() error {
	die := func(at string) error {
		if at != c.DiesAt {
			return nil
		}
		if c.Hangs {
			holder, err := c.Criu.tracer(c.PID)
			if err == nil {
				err = unix.Kill(holder, unix.SIGSTOP)
			}
			if err != nil {
				return err
			}
		}
		return unix.Kill(os.Getpid(), unix.SIGKILL)
	}
	if c.PID != 0 {
		s := DumpSpec{PID: c.PID, Images: c.Images, Mounts: c.Mounts, Running: true,
			frozen: func() error { return die("frozen") }, ready: func() error { return die("ready") }}
		if err := c.Criu.Dump(context.Background(), s); err != nil {
			return err
		}
		return die(c.DiesAt)
	}
	r := c.Criu.restoring(RestoreSpec{Images: c.Images, Root: c.Root, Netns: c.Netns, Mounts: c.Mounts,
		Resuming: func(pid int) error {
			if err := (group{folder: c.Group}).add(pid); err != nil {
				return err
			}
			return die("resuming")
		}})
	r.call.steps["post-restore"] = func(*rpc.CriuNotify) error { return die("restored") }
	if _, err := r.Do(context.Background()); err != nil {
		return err
	}
	return die(c.DiesAt)
}

// call runs a caller to its end, which must be as wanted.
func (b *box) call(c caller) {
	b.t.Helper()
	c.Criu, c.Root, c.Netns = b.criu, b.root, "/run/netns/"+b.home.Namespace
	c.Mounts = map[string]string{"results": b.out}
	if c.PID != 0 {
		c.Mounts = map[string]string{"/out": "results"}
	}
	text, err := json.Marshal(c)
	if err != nil {
		b.t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), callerVariable+"="+string(text))
	out, _ := cmd.CombinedOutput()
	if st := cmd.ProcessState.Sys().(syscall.WaitStatus); st.Signal() != unix.SIGKILL {
		b.t.Fatalf("the caller says %s", out)
	}
}

// TestCallerDies: the process that dumps or restores may be killed at any step. The dumped
// container lives on. The restored container does not run too early, and does not need its
// maker.
func TestCallerDies(t *testing.T) {
	var g group
	for _, g = range groups(t) { // the version makes no difference here
	}
	b := newBox(t, 1)
	if err := g.add(b.pid); err != nil {
		t.Fatal(err)
	}
	for _, c := range []caller{{DiesAt: "frozen"}, {DiesAt: "ready"}, {DiesAt: "ready", Hangs: true}} {
		c.PID, c.Images = b.pid, b.images()
		b.call(c)
		for range 2 {
			if err := b.criu.Release(t.Context(), b.pid, g.folder); err != nil {
				t.Fatal(err)
			}
			if c.Hangs { // CRIU had to be ended
				b.mustBeSuspended("released")
				g.set(false)
			}
			b.well()
			c.Hangs = false
		}
	}
	images := b.images()
	b.dumped(DumpSpec{Images: images, frozen: func() error { b.cut(); return nil }})
	g.set(true)
	b.tell("check")
	b.call(caller{Images: images, Group: g.folder, DiesAt: "restored"})
	b.mustBeSuspended("half restored")
	inside, err := processesIn(b.home.Namespace) // none, if they ended with their CRIU
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range inside {
		unix.Kill(pid, unix.SIGKILL)
	}
	b.leave()
	b.call(caller{Images: images, Group: g.folder, DiesAt: "resuming"})
	b.join()
	b.silent("frozen")
	g.set(false)
	if got := b.answer(); got != "ok" {
		t.Fatalf("the subject lost: %s", got)
	}
	b.well()
	if inside, err = processesIn(b.home.Namespace); err != nil || len(inside) == 0 {
		t.Fatalf("in its network are %v: %v", inside, err)
	}
	b.pid = inside[0]
}

// processesIn returns the processes in a network, without this one, whose first thread may be
// there because of a test.
func processesIn(namespace string) ([]int, error) {
	var want unix.Stat_t
	if err := unix.Stat("/run/netns/"+namespace, &want); err != nil {
		return nil, err
	}
	all, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var in []int
	for _, e := range all {
		var pid int
		var have unix.Stat_t
		if n, _ := fmt.Sscan(e.Name(), &pid); n == 1 && pid != os.Getpid() && unix.Stat("/proc/"+e.Name()+"/ns/net", &have) == nil && have.Ino == want.Ino {
			in = append(in, pid)
		}
	}
	return in, nil
}

// TestHurry: a CRIU for which a suspended container waits runs before others, also where the kernel compares
// sessions before processes. One for which nobody waits does not.
func TestHurry(t *testing.T) {
	b := newBox(t, 0)
	for patient, want := range map[bool]int{false: hurryNice, true: 0} {
		d, err := b.criu.PrepareDump(DumpSpec{PID: b.pid, Images: b.images(), Patient: patient})
		if err != nil {
			t.Fatal(err)
		}
		is, err := unix.Getpriority(unix.PRIO_PROCESS, d.call.pid)
		session, unknown := os.ReadFile(fmt.Sprintf("/proc/%d/autogroup", d.call.pid)) // some kernels do not compare sessions
		d.Close()
		if err != nil || 20-is != want {
			t.Errorf("patient %v: the nice value is %d, want %d: %v", patient, 20-is, want, err)
		}
		if unknown == nil && !strings.HasSuffix(string(session), fmt.Sprintf(" nice %d\n", want)) {
			t.Errorf("patient %v: the session is %q, want %d", patient, session, want)
		}
	}
	b.well()
}
