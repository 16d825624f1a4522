package share

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/internal/testkit"
	"pagurus/internal/thread"
)

// asUser does something with the user's rights on files.
func asUser(t *testing.T, do func() error) error {
	t.Helper()
	return thread.Own(func() error {
		if err := become(user, user, nil); err != nil {
			t.Error(err)
		}
		return do()
	})
}

// records opens the folder that the server writes into, as one of the user's processes can that has taken the server over.
func (s *testbed) records() *os.File {
	s.t.Helper()
	dir, err := os.Open(fmt.Sprintf("/proc/%d/cwd", children(s.t, s.pid())[0]))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { dir.Close() })
	return dir
}

// restarted kills the server and waits for the next one.
func (s *testbed) restarted() {
	s.t.Helper()
	before := s.pid()
	unix.Kill(before, unix.SIGKILL)
	testkit.Until(s.t, startLimit, "another server listens", func() bool {
		pid := s.running()
		return pid != 0 && pid != before && listening(pid)
	})
}

// The user swaps folders that the server writes into for links to another's, while servers start: nothing is
// given to the user that is not.
func TestRecordsGiveNothingAway(t *testing.T) {
	n, folder := job(t, user)
	s := stage(t, n)
	s.apply(n)
	foreign := filepath.Join(filepath.Dir(folder), "foreign")
	if err := os.Mkdir(foreign, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(foreign, "shadow"), "root's\n", 0, 0o600)
	write(t, filepath.Join(recordsPath(filepath.Dir(s.file("x"))), "planted"), "root's\n", 0, 0o600)
	dir := s.records()
	defer dir.Close()
	in := int(dir.Fd())
	err := asUser(t, func() error {
		fd := -1
		err := errors.Join(unix.Mkdirat(in, "swapped", 0o700), unix.Symlinkat(foreign, in, "link"))
		if err == nil {
			fd, err = unix.Openat(in, "swapped/shadow", unix.O_CREAT|unix.O_WRONLY, 0o600)
		}
		return errors.Join(err, unix.Close(fd))
	})
	if err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan bool), make(chan error)
	go func() {
		stopped <- asUser(t, func() error {
			for {
				select {
				case <-stop:
					return nil
				default:
				}
				if err := unix.Renameat2(in, "swapped", in, "link", unix.RENAME_EXCHANGE); err != nil {
					return err
				}
				time.Sleep(50 * time.Microsecond)
			}
		})
	}()
	for range 3 {
		s.restarted()
	}
	close(stop)
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{foreign, filepath.Join(foreign, "shadow"), filepath.Join(recordsPath(filepath.Dir(s.file("x"))), "planted")} {
		if found, err := os.Lstat(path); err != nil || found.Sys().(*syscall.Stat_t).Uid != 0 {
			t.Errorf("%s is not root's any more: %v", path, err)
		}
	}
}

// What a server writes on its host is little, and its successor has it.
func TestRoomIsSmall(t *testing.T) {
	n, _ := job(t, user)
	s := stage(t, n)
	s.apply(n)
	dir := s.records()
	defer dir.Close()
	in := int(dir.Fd())
	err := asUser(t, func() error {
		if err := unix.Mkdirat(in, "client", 0o700); err != nil {
			return err
		}
		fd, err := unix.Openat(in, "big", unix.O_CREAT|unix.O_RDWR, 0o600)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.Fallocate(fd, 0, 0, 16<<20); err != unix.ENOSPC {
			return fmt.Errorf("a big file: %w", err)
		}
		for i := range 20000 {
			if err = unix.Mkdirat(in, fmt.Sprint("folder", i), 0o700); err != nil {
				break
			}
		}
		if err != unix.ENOSPC {
			return fmt.Errorf("many folders: %w", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	log, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/1", children(t, s.pid())[0]), os.O_WRONLY, 0) // as the server has it
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if err := unix.Fallocate(int(log.Fd()), 0, 0, 16<<20); err != unix.ENOSPC {
		t.Errorf("a big log: %v", err)
	}
	s.restarted() // it starts with all of it full
	if _, err := os.Stat(filepath.Join(recordsPath(filepath.Dir(s.file("x"))), "client")); err != nil {
		t.Errorf("the next server lacks its records: %v", err)
	}
}

// The records of an earlier version's server are taken over: as names, and without following links.
func TestRecordsAreInherited(t *testing.T) {
	n, folder := job(t, user)
	s := stage(t, n)
	top := filepath.Dir(s.file("x"))
	foreign := filepath.Join(filepath.Dir(folder), "foreign")
	for _, dir := range []string{foreign, filepath.Join(recoveryPath(top), "v4recov", "client", "rest")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(foreign, "shadow"), "root's\n", 0, 0o600)
	write(t, filepath.Join(recoveryPath(top), "v4recov", "client", "\x01revoked"), "", 0, 0o600)
	if err := os.Symlink(foreign, filepath.Join(recoveryPath(top), "v4recov", "link")); err != nil {
		t.Fatal(err)
	}
	v := s.shares.newServer("j1", top)
	v.network = n
	if err := v.makeRoom(); err != nil {
		t.Fatal(err)
	}
	defer v.removeRoom()
	for _, name := range []string{"", "v4recov", "v4recov/client", "v4recov/client/rest", "v4recov/client/\x01revoked"} {
		if found, err := os.Lstat(filepath.Join(recordsPath(top), name)); err != nil || found.Sys().(*syscall.Stat_t).Uid != user {
			t.Errorf("%q was not taken over: %v", name, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(recordsPath(top), "v4recov", "link")); err == nil {
		t.Error("a link was taken over")
	}
	if found, err := os.Lstat(filepath.Join(foreign, "shadow")); err != nil || found.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Errorf("another's file was given away: %v", err)
	}
	if left, err := os.ReadDir(recoveryPath(top)); err != nil || len(left) > 0 {
		t.Errorf("left are %v: %v", left, err)
	}
}
