package share

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/host"
	"pagurus/fleet"
	"pagurus/internal/note"
	"pagurus/internal/testkit"
)

func TestConfigQuoting(t *testing.T) {
	network := func(path string) fleet.Network {
		return fleet.Network{Job: "j1", Subnet: 1, Share: &fleet.Share{Export: path, UID: 1000, GID: 100}}
	}
	for _, path := range []string{"/home/x", "/home/two words", "/home/a#b;c{}", "/home/it's", "/home/ä"} {
		text, err := configText(network(path), "/run/p/shares/j1")
		if err != nil || !strings.Contains(text, "Pseudo = \""+path+"\";") {
			t.Errorf("%q: %v\n%s", path, err, text)
		}
	}
	for _, path := range []string{"", "/", "home", "/home/../etc", "/home/x/", "/home/\"; Squash = none; #", "/home/a\nb", "/home/a\tb", "/home/\x7f"} {
		text, err := configText(network(path), "/run/p/shares/j1")
		if err == nil {
			t.Errorf("%q was accepted:\n%s", path, text)
		} else if said := err.Error(); !strings.Contains(said, "directory "+path+" ") && !strings.Contains(said, fmt.Sprintf("directory %q ", path)) {
			t.Errorf("%q: the refusal does not name it: %v", path, err)
		}
	}
}

func TestConfigSquash(t *testing.T) {
	n := fleet.Network{Job: "j1", Subnet: 1, Share: &fleet.Share{Export: "/home/x", UID: 1000, GID: 100}}
	text, _ := configText(n, "/run/p")
	for _, line := range []string{"Squash = all_squash;", "Anonymous_Uid = 1000;", "Anonymous_Gid = 100;", "Clients = 10.128.1.0/24, 10.0.0.0/9;", "Bind_addr = 10.128.1.254;"} {
		if !strings.Contains(text, line) {
			t.Errorf("%s is missing in\n%s", line, text)
		}
	}
	n.Share.UID = 0
	if text, _ = configText(n, "/run/p"); !strings.Contains(text, "Squash = no_root_squash;") {
		t.Errorf("root's job is squashed:\n%s", text)
	}
}

func TestPauseGrowsWithDeaths(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	v := new(history)
	if p := v.pause(now); p != 0 {
		t.Errorf("the first start waits %v", p)
	}
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30, 30} {
		v.died(now)
		v.tried(nil)
		if p := v.pause(now); p != want*time.Second {
			t.Errorf("after %d deaths: %v instead of %ds", len(v.deaths), p, want)
		}
	}
	if p := v.pause(now.Add(recent + time.Second)); p != 0 || v.trouble("j1", now.Add(recent+time.Second)) != "" {
		t.Errorf("old deaths still count: %v", p)
	}
}

// testbed is a host with one job's network, made by hand, and a guest: another network
// namespace on that network.
type testbed struct {
	t      *testing.T
	host   *testkit.Host
	guest  *testkit.Host
	run    string
	state  string
	shim   string
	shares *Shares
}

func stage(t *testing.T, n fleet.Network) *testbed {
	t.Helper()
	testkit.Leftovers(t)
	testkit.Root(t, "ganesha.nfsd", "nfs-cp", "nfs-ls", "nfs-cat")
	hosts := testkit.Hosts(t, 2)
	s := &testbed{t: t, host: hosts[0], guest: hosts[1], run: testkit.NoExec(t), state: t.TempDir(), shim: "/proc/self/exe"}
	s.host.Run("ip", "link", "add", n.Subnet.BridgeName(), "type", "bridge")
	s.host.Run("ip", "link", "set", n.Subnet.BridgeName(), "up")
	s.pair(n)
	s.host.Run("ip", "link", "add", "guest", "master", n.Subnet.BridgeName(), "type", "veth", "peer", "name", "eth1", "netns", s.guest.Namespace)
	s.host.Run("ip", "link", "set", "guest", "up")
	s.guest.Run("ip", "addr", "add", n.Subnet.GuestAddr(0).String()+"/24", "dev", "eth1")
	s.guest.Run("ip", "link", "set", "eth1", "up")
	s.open()
	t.Cleanup(func() {
		s.host.Must(func() error { return s.shares.Apply(context.Background(), nil) })
		s.shares.Close()
	})
	return s
}

// pair makes the links, in place of the overlay.
func (s *testbed) pair(n fleet.Network) {
	s.t.Helper()
	s.host.Run("ip", "link", "add", n.Subnet.ShareName(), "master", n.Subnet.BridgeName(), "type", "veth", "peer", "name", n.Subnet.SharePeerName())
	s.host.Run("ip", "link", "set", n.Subnet.ShareName(), "up")
}

func (s *testbed) open() {
	s.t.Helper()
	var err error
	if s.shares, err = Open(Config{Run: s.run, State: s.state, Shim: s.shim}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *testbed) apply(networks ...fleet.Network) {
	s.t.Helper()
	s.host.Must(func() error { return s.shares.Apply(context.Background(), networks) })
}

// url names a job's file, as requested by a user.
func url(n fleet.Network, path string, uid int) string {
	return fmt.Sprintf("nfs://%s%s?version=4&uid=%d&gid=%d", n.Subnet.ShareAddr(), path, uid, uid)
}

func (s *testbed) pid() int {
	s.t.Helper()
	pid := s.running()
	if pid == 0 {
		s.t.Fatal("no server runs")
	}
	return pid
}

// running returns the PID of the server's guard, or 0.
func (s *testbed) running() int {
	s.t.Helper()
	var known host.Process
	if err := note.Load(s.file("server.json"), &known); err != nil || known.Gone() {
		return 0
	}
	return known.PID
}

// file is one of the server's files.
func (s *testbed) file(name string) string { return filepath.Join(s.run, "shares", "j1", name) }

// job makes a network and the user's directory for it.
func job(t *testing.T, uid uint32) (fleet.Network, string) {
	t.Helper()
	top, err := os.MkdirTemp("", "pgtest")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(top) })
	folder := filepath.Join(top, "work dir")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	os.Chmod(top, 0o755)
	os.Chown(folder, int(uid), int(uid))
	return fleet.Network{Job: "j1", Subnet: 1, Share: &fleet.Share{Export: folder, UID: uid, GID: uid}}, folder
}

const user = 12345 // has no name on this machine

func write(t *testing.T, path, text string, uid int, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, uid, uid); err != nil {
		t.Fatal(err)
	}
}

func TestGuestsReadAndWriteAsTheUser(t *testing.T) {
	n, folder := job(t, user)
	s := stage(t, n)
	s.apply(n)
	write(t, filepath.Join(folder, "input"), "from the host\n", user, 0o600)
	write(t, filepath.Join(folder, "secret"), "root's\n", 0, 0o600)
	write(t, filepath.Join(filepath.Dir(folder), "outside"), "beyond the export\n", user, 0o644)
	// Every client user is mapped to the job's: the user, the guest's root, another.
	for _, uid := range []int{user, 0, 777} {
		if got := s.guest.Run("nfs-cat", url(n, folder+"/input", uid)); got != "from the host\n" {
			t.Errorf("as %d: read %q", uid, got)
		}
		source := filepath.Join(s.run, "output")
		write(t, source, strings.Repeat("from the guest\n", 200), uid, 0o644)
		target := fmt.Sprintf("%s/output.%d", folder, uid)
		s.guest.Run("nfs-cp", source, url(n, target, uid))
		var stat unix.Stat_t
		if err := unix.Stat(target, &stat); err != nil || stat.Uid != user || stat.Gid != user || stat.Size != 3000 {
			t.Errorf("as %d: wrote %+v, %v", uid, stat, err)
		}
		for _, path := range []string{folder + "/secret", filepath.Dir(folder) + "/outside", "/etc/passwd", folder + "/../outside"} {
			if out, err := s.guest.Try("nfs-cat", url(n, path, uid)); err == nil {
				t.Errorf("as %d: read %s: %q", uid, path, out)
			}
		}
	}
	if out := s.guest.Run("nfs-ls", url(n, folder, user)); !strings.Contains(out, "output.777") {
		t.Errorf("the listing is %s", out)
	}
}

// The server is only on the job's network, and registers nowhere on the machine. Its capabilities: TestCapabilities.
func TestServerIsConfined(t *testing.T) {
	n, _ := job(t, user)
	s := stage(t, n)
	s.apply(n)
	pid := s.pid()
	for _, where := range []string{s.host.Addr.String(), netip.MustParseAddr("127.0.0.1").String()} {
		if out, err := s.host.Try("nfs-ls", "nfs://"+where+"/?version=4"); err == nil {
			t.Errorf("it is served at %s: %s", where, out)
		}
	}
	if s.host.Run("ss", "-Htln") != "" {
		t.Error("something listens on the host")
	}
	if sid, _ := unix.Getsid(pid); sid != pid {
		t.Errorf("it is in session %d", sid)
	}
	// It passes locks on to the host's kernel, so that they hold there, too.
	if log, err := os.ReadFile(s.file("room/ganesha.log")); err != nil || strings.Contains(string(log), "locktest") {
		t.Errorf("it could not try locks of open files: %v\n%s", err, log)
	}
	before := pid
	s.apply(n)
	if s.pid() != before {
		t.Error("applying again started it again")
	}
}

func TestServerOutlivesTheAgent(t *testing.T) {
	n, folder := job(t, user)
	s := stage(t, n)
	s.apply(n)
	before := s.pid()
	s.shares.Close()
	write(t, filepath.Join(folder, "input"), "meanwhile\n", user, 0o600)
	if got := s.guest.Run("nfs-cat", url(n, folder+"/input", user)); got != "meanwhile\n" {
		t.Errorf("without the agent: %q", got)
	}
	s.open()
	s.apply(n)
	if s.pid() != before {
		t.Error("the new agent started another server")
	}
	if lines := s.shares.Troubles(); len(lines) > 0 {
		t.Errorf("troubles: %v", lines)
	}
	// An agent that starts after the job has ended ends the server.
	s.shares.Close()
	s.open()
	s.apply()
	if pid := s.running(); pid != 0 {
		t.Errorf("process %d still serves", pid)
	}
	if left, _ := os.ReadDir(filepath.Join(s.run, "shares")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestServerIsStartedAgain(t *testing.T) {
	n, folder := job(t, user)
	s := stage(t, n)
	s.apply(n)
	write(t, filepath.Join(folder, "input"), "", user, 0o600)
	// Not by reading: this client speaks NFS 4.0. It cannot report that it has nothing to
	// reclaim, so it may open files only after the whole grace period.
	serves := func() bool {
		got, err := s.guest.Try("nfs-ls", url(n, folder, user))
		return err == nil && strings.Contains(got, "input")
	}
	for _, adopted := range []bool{false, true} {
		if adopted {
			s.shares.Close()
			s.open()
			s.apply(n)
		}
		before := s.pid()
		victim := before // the guard, with which the server ends
		if !adopted {
			victim = children(t, before)[0]
		}
		unix.Kill(victim, unix.SIGKILL)
		testkit.Until(t, startLimit, "another server serves", func() bool {
			pid := s.running()
			return pid != 0 && pid != before && serves()
		})
		testkit.Until(t, startLimit, "the agent tells of it", func() bool {
			lines := s.shares.Troubles()
			return len(lines) == 1 && strings.Contains(lines[0], "j1 died and was started again")
		})
	}
	// Killed without an agent, so that its network is gone, too: the overlay makes the
	// links again, and the next agent the server.
	s.shares.Close()
	unix.Kill(s.pid(), unix.SIGKILL)
	testkit.Until(t, startLimit, "the links are gone", func() bool {
		_, err := s.host.Try("ip", "link", "show", n.Subnet.ShareName())
		return err != nil
	})
	s.open()
	err := s.host.Do(func() error { return s.shares.Apply(context.Background(), []fleet.Network{n}) })
	if err == nil || !strings.Contains(err.Error(), "apply the networks again") {
		t.Errorf("without links: %v", err)
	}
	s.pair(n)
	s.apply(n)
	testkit.Until(t, startLimit, "it serves again", serves)
	// The links disappear while it runs.
	before := s.pid()
	s.host.Run("ip", "link", "del", n.Subnet.ShareName())
	s.pair(n)
	s.apply(n)
	testkit.Until(t, startLimit, "it serves through the new links", serves)
	if s.pid() != before {
		t.Error("with new links it is another server")
	}
}

func TestChangedShareIsServedAnew(t *testing.T) {
	n, _ := job(t, user)
	s := stage(t, n)
	s.apply(n)
	other, folder := job(t, user+1)
	write(t, filepath.Join(folder, "input"), "another\n", user+1, 0o600)
	s.apply(other)
	if got := s.guest.Run("nfs-cat", url(other, folder+"/input", user)); got != "another\n" {
		t.Errorf("read %q", got)
	}
}

func TestRefusals(t *testing.T) {
	n, folder := job(t, user)
	s := stage(t, n)
	closed := filepath.Join(filepath.Dir(folder), "closed")
	os.Mkdir(closed, 0o700)
	os.Mkdir(closed+"/open", 0o777)
	os.Chmod(closed+"/open", 0o777)
	write(t, filepath.Join(folder, "file"), "", user, 0o644)
	for name, c := range map[string]struct {
		alter func(*fleet.Network)
		says  string
	}{
		"missing":               {func(n *fleet.Network) { n.Share.Export = folder + "/none" }, "no such file"},
		"a file":                {func(n *fleet.Network) { n.Share.Export = folder + "/file" }, "not a directory"},
		"in a closed directory": {func(n *fleet.Network) { n.Share.Export = closed + "/open" }, "may not enter"},
		"odd name":              {func(n *fleet.Network) { n.Share.Export = "/home/\"x" }, "another directory"},
		"bad job":               {func(n *fleet.Network) { n.Job = "../j1" }, "cannot be called"},
		"no network":            {func(n *fleet.Network) { n.Subnet = 77 }, "apply the networks again"},
	} {
		bad, share := n, *n.Share
		bad.Share = &share
		c.alter(&bad)
		err := s.host.Do(func() error { return s.shares.Apply(context.Background(), []fleet.Network{bad}) })
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	lost, err := Open(Config{Run: s.run, Shim: "/proc/self/exe", Program: "no-such-server"})
	if err != nil {
		t.Fatal(err)
	}
	err = s.host.Do(func() error { return lost.Apply(context.Background(), []fleet.Network{n}) })
	if err == nil || !strings.Contains(err.Error(), "apt-get install nfs-ganesha") {
		t.Errorf("without the program: %v", err)
	}
	// It had its own namespace with the link. Both disappear with it.
	lost.Close()
	testkit.Until(t, startLimit, "the links are gone", func() bool {
		_, err := s.host.Try("ip", "link", "show", n.Subnet.ShareName())
		return err != nil
	})
	s.pair(n)
	// A program that ends at once: the error has its output, nothing is left.
	broken, err := exec.LookPath("ls") // to which the server's arguments are names of files
	if err != nil {
		t.Fatal(err)
	}
	bad, err := Open(Config{Run: s.run, Shim: "/proc/self/exe", Program: broken})
	if err != nil {
		t.Fatal(err)
	}
	defer bad.Close()
	err = s.host.Do(func() error { return bad.Apply(context.Background(), []fleet.Network{n}) })
	if err == nil || !strings.Contains(err.Error(), "cannot access 'STDERR'") {
		t.Errorf("with a broken program: %v", err)
	}
	s.host.Must(func() error { return bad.Apply(context.Background(), nil) })
}
