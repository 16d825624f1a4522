package share

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/internal/testkit"
)

func TestEnterAsTheUser(t *testing.T) {
	testkit.Root(t)
	n, folder := job(t, user)
	top := filepath.Dir(folder)
	for path, mode := range map[string]os.FileMode{"closed": 0o700, "closed/open": 0o777, "seen": 0o744, "team": 0o710} {
		os.Mkdir(filepath.Join(top, path), mode)
		os.Chmod(filepath.Join(top, path), mode)
	}
	os.Chown(filepath.Join(top, "team"), 0, user) // open to the user's group
	for link, to := range map[string]string{"in": folder, "behind": top + "/closed/open", "magic": "/proc/self/root"} {
		if err := os.Symlink(to, filepath.Join(top, link)); err != nil {
			t.Fatal(err)
		}
	}
	for path, may := range map[string]bool{"work dir": true, "in": true, "team": true,
		"closed": false, "closed/open": false, "behind": false, "seen": false, "magic": false} {
		share := *n.Share
		share.Export = filepath.Join(top, path)
		dir, err := Enter(context.Background(), share)
		if (err == nil) != may {
			t.Errorf("%s: %v", path, err)
		}
		if err == nil {
			dir.Close()
		} else if !strings.Contains(err.Error(), share.Export) || !strings.Contains(err.Error(), "submit from") {
			t.Errorf("%s: the refusal does not say which or what to do: %v", path, err)
		}
	}
	// This process keeps none of it.
	if _, err := os.ReadDir(filepath.Join(top, "closed")); err != nil {
		t.Error(err)
	}
}

// The user repeatedly swaps the directory for a link into a closed one while the server
// starts.
func TestSwappedDirectoryIsNotServed(t *testing.T) {
	n, folder := job(t, user)
	top := filepath.Dir(folder)
	closed := filepath.Join(top, "closed")
	os.Mkdir(closed, 0o700)
	os.Mkdir(closed+"/open", 0o755)
	write(t, closed+"/open/input", "closed in\n", 0, 0o644)
	write(t, folder+"/input", "the user's\n", user, 0o644)
	link := filepath.Join(top, "link")
	if err := os.Symlink(closed+"/open", link); err != nil {
		t.Fatal(err)
	}
	swap := func() {
		if err := unix.Renameat2(unix.AT_FDCWD, folder, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE); err != nil {
			t.Error(err)
		}
	}
	s := stage(t, n)
	served := 0
	for range 20 {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan bool)
		go func() {
			defer close(done)
			for even := true; ctx.Err() == nil || !even; even = !even {
				swap()
				time.Sleep(time.Millisecond)
			}
		}()
		err := s.host.Do(func() error { return s.shares.Apply(context.Background(), []fleet.Network{n}) })
		cancel()
		<-done
		if err != nil {
			if !strings.Contains(err.Error(), "may not enter") {
				t.Fatal(err)
			}
			continue
		}
		served++
		out, err := s.guest.Try("nfs-ls", url(n, folder, user))
		if err != nil || !strings.Contains(out, " 11 input") {
			t.Fatalf("served is %v\n%s", err, out)
		}
		s.shares.Close() // first, because it would start another
		unix.Kill(s.pid(), unix.SIGKILL)
		testkit.Until(t, startLimit, "the links are gone", func() bool {
			_, err := s.host.Try("ip", "link", "show", n.Subnet.ShareName())
			return err != nil
		})
		s.pair(n)
		s.open()
	}
	t.Logf("%d of 20 starts were served", served)
	// A new start with the same configuration opens the directory again.
	testkit.Until(t, startLimit, "it serves", func() bool {
		return s.host.Do(func() error { return s.shares.Apply(context.Background(), []fleet.Network{n}) }) == nil
	})
	swap()
	unix.Kill(s.pid(), unix.SIGKILL)
	testkit.Until(t, startLimit, "the agent says why there is none", func() bool {
		return strings.Contains(strings.Join(s.shares.Troubles(), "\n"), "may not enter")
	})
	swap()
	testkit.Until(t, startLimit, "it serves again", func() bool {
		out, err := s.guest.Try("nfs-ls", url(n, folder, user))
		return err == nil && strings.Contains(out, "input")
	})
}
