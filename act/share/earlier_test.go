package share

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// A server that an earlier version started, as root and in no jail, runs on. Its successor is in a jail, and takes
// the handles that guests have.
func TestServerOfAnEarlierVersionRunsOn(t *testing.T) {
	n, folder := job(t, user)
	s := stage(t, n)
	write(t, filepath.Join(folder, "input"), "since long ago\n", user, 0o600)
	s.shares.Close()
	config, err := configText(n, filepath.Dir(s.file("x")))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{filesPath(filepath.Dir(s.file("x")), 0), recoveryPath(filepath.Dir(s.file("x")))} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write(t, s.file("ganesha.conf"), strings.TrimSuffix(config, jailedText(n)), 0, 0o600)
	const script = `mount --bind "$1" "$2" && for f in /run/rpcbind.sock /run/dbus/system_bus_socket; do [ ! -e $f ] || mount --bind /dev/null $f; done
exec ganesha.nfsd -F -f "$3" -L /dev/null -p "$4"`
	old := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh",
		folder, filesPath(filepath.Dir(s.file("x")), 0), s.file("ganesha.conf"), s.file("ganesha.pid"))
	s.host.Must(func() error {
		p, err := newPlot()
		if err != nil {
			return err
		}
		defer p.close()
		return errors.Join(p.join(serverEnd(n)), p.do(old.Start))
	})
	ended := make(chan error, 1)
	go func() { ended <- old.Wait() }()
	defer func() { old.Process.Kill() }()
	earlier := func() int {
		found, err := findServers("ganesha.nfsd", s.file("ganesha.conf"))
		if err != nil {
			t.Fatal(err)
		}
		pid := 0
		for _, p := range found {
			pid = p.pid
			p.close()
		}
		return pid
	}
	testkit.Until(t, startLimit, "the earlier version's server runs", func() bool { return earlier() != 0 })
	before := earlier()
	s.open()
	s.apply(n)
	s.apply(n)
	if earlier() != before || s.running() != 0 {
		t.Fatal("it does not run on")
	}
	var handle []byte
	testkit.Until(t, startLimit, "it answers", func() bool {
		status, _ := s.calls(n, user, lookUp(folder+"/input")...)
		return status == 0
	})
	handle = s.handleOf(n, folder+"/input")
	if err := unix.Kill(before, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-ended
	testkit.Until(t, startLimit, "another server runs", func() bool { return s.running() != 0 })
	testkit.Until(t, startLimit, "it serves", func() bool {
		status, _ := s.calls(n, user, lookUp(folder+"/input")...)
		return status == 0
	})
	opens := func() (status uint32, got []byte) {
		testkit.Until(t, 2*graceSeconds*time.Second, "it is past its grace", func() bool {
			status, got = s.calls(n, user, operation(words(opPutFH)).with(handle), readAll)
			return status != statusGrace && status != statusDelay
		})
		return status, got
	}
	if status, got := opens(); status != 0 || !strings.Contains(string(got), "since long ago") {
		t.Errorf("a guest's handle of before: status %d, %q", status, got)
	}
	if text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", children(t, s.pid())[0])); !strings.Contains(string(text), "\nCapEff:\t0000000000000000\n") {
		t.Error("its successor is in no jail")
	}
	s.reboot(n)
	s.apply(n)
	if status, got := opens(); status != 0 || !strings.Contains(string(got), "since long ago") {
		t.Errorf("a guest's handle after a reboot: status %d, %q", status, got)
	}
	// A mark ends with its job, also if that ended during a reboot.
	s.reboot(n)
	s.apply()
	if left, err := os.ReadDir(s.shares.marks()); err != nil || len(left) > 0 {
		t.Errorf("left are %v: %v", left, err)
	}
}

// reboot removes what does not outlive a reboot: processes, links, mounts and the folder in memory.
func (s *testbed) reboot(n fleet.Network) {
	s.t.Helper()
	s.shares.Close()
	pid := s.pid()
	unix.Kill(pid, unix.SIGKILL)
	if _, err := unix.Wait4(pid, nil, 0, nil); err != nil { // nobody else waits for it
		s.t.Fatal(err)
	}
	testkit.Until(s.t, startLimit, "the links are gone", func() bool {
		_, err := s.host.Try("ip", "link", "show", n.Subnet.ShareName())
		return err != nil
	})
	if err := unix.Unmount(s.file("room"), unix.MNT_DETACH); err != nil {
		s.t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(s.run, "shares")); err != nil {
		s.t.Fatal(err)
	}
	s.pair(n)
	s.open()
}
