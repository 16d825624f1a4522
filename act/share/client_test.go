package share

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/act/host"
	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// hasNFSClient reports whether this kernel can mount. Where it cannot, the tests go as far as
// the mount.
func hasNFSClient() bool {
	_ = exec.Command("modprobe", "nfsv4").Run()
	text, _ := os.ReadFile("/proc/filesystems")
	return slices.Contains(strings.Fields(string(text)), "nfs4")
}

// stageClient is stage with the links of a file client, on the server's own host.
func stageClient(t *testing.T, n fleet.Network) (*testbed, *Clients) {
	t.Helper()
	s := stage(t, n)
	s.host.Run("ip", "link", "add", n.Subnet.ClientName(), "master", n.Subnet.BridgeName(), "type", "veth", "peer", "name", n.Subnet.ClientPeerName())
	s.host.Run("ip", "link", "set", n.Subnet.ClientName(), "up")
	c, err := OpenClients(s.run)
	if err != nil {
		t.Fatal(err)
	}
	s.apply(n)
	t.Cleanup(func() {
		if err := c.KeepClients(context.Background(), nil); err != nil {
			t.Error(err)
		}
		if left, err := host.MountsBelow(c.folder); err != nil || len(left) > 0 {
			t.Errorf("left are %v, %v", left, err)
		}
		if left, err := os.ReadDir(c.folder); err != nil || len(left) > 0 {
			t.Errorf("left are %v, %v", left, err)
		}
	})
	return s, c
}

func clientNetwork(t *testing.T) (fleet.Network, string) {
	n, folder := job(t, user)
	n.Mount = &fleet.Mount{Addr: fleet.ClientAddr(7), MAC: fleet.ClientMAC(7)}
	return n, folder
}

// open opens a directory in the host's network, as the agent does.
func (s *testbed) openMounted(c *Clients, dir string) (f *os.File, err error) {
	err = s.host.Do(func() error {
		f, err = c.Open(s.t.Context(), "j1", dir)
		return err
	})
	return f, err
}

// The client reaches its job's server from a namespace of its own, with nothing of it left
// afterwards. Without a job it is refused.
func TestFileClientReachesItsServer(t *testing.T) {
	n, folder := clientNetwork(t)
	s, c := stageClient(t, n)
	if _, err := s.openMounted(c, folder); err == nil || !strings.Contains(err.Error(), "no way into the network of job j1") {
		t.Errorf("it opened what nobody wants: %v", err)
	}
	if err := c.KeepClients(t.Context(), []fleet.Network{n}); err != nil {
		t.Fatal(err)
	}
	f, err := s.openMounted(c, folder)
	if hasNFSClient() {
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	} else if err == nil || !strings.Contains(err.Error(), "kernel has no NFS client") {
		t.Fatalf("a kernel without NFS: %v", err) // else the server was not reached
	}
	if _, err := s.host.Try("ip", "link", "show", n.Subnet.ClientPeerName()); err == nil {
		t.Error("the client's link is in the host's network")
	}
	next, err := OpenClients(s.run)
	if err != nil {
		t.Fatal(err)
	}
	if err := next.KeepClients(t.Context(), []fleet.Network{n}); err != nil {
		t.Fatal(err)
	}
	before, _ := host.MountsBelow(c.folder)
	if f, err := s.openMounted(next, folder); err == nil {
		f.Close()
	}
	if after, _ := host.MountsBelow(c.folder); !slices.Equal(before, after) || len(after) == 0 {
		t.Errorf("the next one has %v, and found %v", after, before)
	}
}

// What is written through the client is the user's on the server's host; a file that was
// removed while it is open stays; and a server that dies is waited for.
func TestFileClientMounts(t *testing.T) {
	n, folder := clientNetwork(t)
	s, c := stageClient(t, n)
	if !hasNFSClient() {
		t.Log("not applicable: this kernel has no NFS client")
		return
	}
	if err := c.KeepClients(t.Context(), []fleet.Network{n}); err != nil {
		t.Fatal(err)
	}
	f, err := s.openMounted(c, folder)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	at := c.mountPath("j1", folder)
	// Another process writes: this one starts the server, and would wait for it when its
	// child closes files.
	script := fmt.Sprintf(`cd %q; until echo from here 2>/dev/null >output; do sleep 0.1; done
exec 4<>gone; rm gone; echo open >begun
until [ -e killed ]; do sleep 0.1; done
echo still here >&4; echo after its death >later; cat /proc/self/fd/4 >kept`, at)
	cmd := s.host.Command(t.Context(), "sh", "-c", script)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	has := func(name, want string) func() bool {
		return func() bool {
			got, err := os.ReadFile(filepath.Join(folder, name))
			return err == nil && string(got) == want
		}
	}
	testkit.Until(t, time.Minute, "it writes", has("begun", "open\n"))
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(folder, "output"), &st); err != nil || st.Uid != user || st.Size != 10 {
		t.Errorf("%+v, %v", st, err)
	}
	if err := unix.Kill(s.pid(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(folder, "killed"), "", user, 0o644)
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if !has("later", "after its death\n")() || !has("kept", "still here\n")() {
		t.Error("what was written after the server's death is not there")
	}
}
