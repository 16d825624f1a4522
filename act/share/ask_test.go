package share

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

// Debian 13 has /tmp in memory, and its server refuses to export a tmpfs.
func TestDirectoryInMemoryIsServed(t *testing.T) {
	n, folder := job(t, user)
	if os.Geteuid() == 0 {
		if err := unix.Mount("memory", folder, "tmpfs", 0, "mode=700,uid=12345,gid=12345"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Unmount(folder, unix.MNT_DETACH) })
	}
	s := stage(t, n)
	s.apply(n)
	write(t, filepath.Join(folder, "input"), "in memory\n", user, 0o600)
	if got := s.guest.Run("nfs-cat", url(n, folder+"/input", user)); got != "in memory\n" {
		t.Errorf("read %q", got)
	}
}

// A server that runs without its export counts as not started, with its reason. This is
// detected at once, not when a guest waits for it.
func TestServerWithoutItsExportHasNotStarted(t *testing.T) {
	n, _ := job(t, 0)
	s := stage(t, n)
	bad := n
	bad.Share = &fleet.Share{Export: "/sys/kernel"} // cannot be exported by any server
	begun := time.Now()
	for try := range enoughTries {
		if err := s.shares.Failure(n.Job); err != nil {
			t.Errorf("before try %d: %v", try, err)
		}
		err := s.host.Do(func() error { return s.shares.Apply(context.Background(), []fleet.Network{bad}) })
		if err == nil || !strings.Contains(err.Error(), "/sys/kernel") || !strings.Contains(err.Error(), "it said: ") {
			t.Errorf("it serves what cannot be served, or does not say why not: %v", err)
		}
		if pid := s.running(); pid != 0 {
			t.Errorf("process %d serves nothing", pid)
		}
	}
	if took := time.Since(begun); took > startLimit/2 {
		t.Errorf("it took %v to be found out", took)
	}
	if err := s.shares.Failure(n.Job); err == nil || !strings.Contains(err.Error(), "it said: ") {
		t.Errorf("guests that wait would be told: %v", err)
	}
	s.apply(n)
	if err := s.shares.Failure(n.Job); err != nil {
		t.Errorf("it serves, and guests are told: %v", err)
	}
}

// The server is asked for its files and their content.
func TestAskReadsFiles(t *testing.T) {
	n, folder := job(t, user)
	s := stage(t, n)
	s.apply(n)
	write(t, filepath.Join(folder, "input"), "from the host\n", user, 0o600)
	for name, c := range map[string]struct {
		user uint32
		file string
		says string
	}{
		"a file":       {user, "input", ""},
		"another user": {0, "input", ""}, // every user is mapped to the job's
		"none":         {user, "nothing", "it has no " + folder + "/nothing"},
	} {
		as := n
		as.Share = &fleet.Share{Export: folder, UID: c.user, GID: c.user}
		var got []byte
		err := s.guest.Do(func() error { return ask(t.Context(), as, c.file, &got) })
		if c.says == "" && (err != nil || string(got) != "from the host\n") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestReasonsAreForPeople(t *testing.T) {
	const before = "25/11/2026 15:51:01 : epoch 6b0703e5 : host1 : ganesha.nfsd-8715[main] "
	log := before + "main :MAIN :EVENT :ganesha.nfsd Starting\n" +
		before + "main :NFS STARTUP :FATAL :Failed to set PR_SET_IO_FLUSHER\n" +
		before + "gsh_backtrace :NFS STARTUP :MAJ :/usr/bin/ganesha.nfsd(main+0xb0e) [0x55e575de9ede]\n" +
		"setpriv: out of order\n"
	if got := reasons(log); !slices.Equal(got, []string{"Failed to set PR_SET_IO_FLUSHER", "setpriv: out of order"}) {
		t.Errorf("%q", got)
	}
}
