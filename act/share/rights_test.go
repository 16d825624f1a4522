package share

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// takenOver is the name under which this test is a server that was taken over, in its jail.
const takenOver = "pagurus-test-taken-over"

// attackFromWithin tries what such a server must not be able to do, and says what came of it.
func attackFromWithin(args []string) {
	say := func(what string, result any) { fmt.Printf("attack %s: %v\n", what, result) }
	files := filesPath(filepath.Dir(args[2]), 0)
	mem, err := os.OpenFile("/proc/1/mem", os.O_RDWR, 0)
	if err == nil {
		_, err = mem.ReadAt(make([]byte, 1), 0x400000)
	}
	say("guard's memory", err)
	_, err = os.Readlink("/proc/1/fd/1")
	say("guard's files", err)
	_, err = os.Stat("/proc/1/root/")
	say("guard's root", err)
	text, err := os.ReadFile(filepath.Join(files, "handle"))
	if err != nil {
		say("handle", err)
	}
	raw, err := hex.DecodeString(string(text))
	if err != nil {
		say("handle", err)
	}
	mount, err := unix.Open(files, unix.O_RDONLY, 0)
	if err != nil {
		say("directory", err)
	}
	for _, kind := range []int32{1, 2, 0x81, 0x82} {
		fd, err := unix.OpenByHandleAt(mount, unix.NewFileHandle(kind, raw), unix.O_RDONLY)
		if err == nil {
			say("handle opened", fd)
		}
	}
	say("mount", unix.Mount("x", "/", "tmpfs", 0, ""))
	say("device", unix.Mknod(filepath.Join(files, "disk"), unix.S_IFBLK|0o600, int(unix.Mkdev(8, 0))))
}

// A server that was taken over cannot look into its guard, nor have it open what was not signed; nor can root's.
func TestTakenOverServer(t *testing.T) {
	for _, uid := range []uint32{user, 0} {
		t.Run(fmt.Sprint(uid), func(t *testing.T) {
			n, folder := job(t, uid)
			s := stage(t, n)
			self, err := os.ReadFile("/proc/self/exe")
			if err != nil {
				t.Fatal(err)
			}
			program := filepath.Join(t.TempDir(), takenOver)
			write(t, program, string(self), 0, 0o755)
			h, _, err := unix.NameToHandleAt(unix.AT_FDCWD, filepath.Dir(folder), 0)
			if err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(folder, "handle"), hex.EncodeToString(h.Bytes()), int(uid), 0o600)
			bad, err := Open(Config{Run: s.run, Shim: "/proc/self/exe", Program: program})
			if err != nil {
				t.Fatal(err)
			}
			defer bad.Close()
			err = s.host.Do(func() error { return bad.Apply(context.Background(), []fleet.Network{n}) })
			log, wrong := os.ReadFile(s.file("room/ganesha.log"))
			if err == nil || wrong != nil {
				t.Fatalf("%v, %v", err, wrong)
			}
			said := string(log)
			for _, what := range []string{"guard's memory", "guard's files", "guard's root", "mount", "device"} {
				_, after, found := strings.Cut(said, "attack "+what+": ")
				if result, _, _ := strings.Cut(after, "\n"); !found || result == "<nil>" {
					t.Errorf("%s: %q", what, result)
				}
			}
			for _, bad := range []string{"handle opened", "handle:", "directory:"} {
				if strings.Contains(said, "attack "+bad) {
					t.Errorf("it says %q", bad)
				}
			}
			if t.Failed() {
				t.Log(said)
			}
			s.host.Must(func() error { return bad.Apply(context.Background(), nil) })
			testkit.Until(t, startLimit, "the links are gone", func() bool {
				_, err := s.host.Try("ip", "link", "show", n.Subnet.ShareName())
				return err != nil
			})
		})
	}
}

// Guard and server have exactly the capabilities that they need. In octal places: CHOWN 1, DAC_OVERRIDE 2,
// DAC_READ_SEARCH 4, FOWNER 8, FSETID 0x10, SETGID 0x40, SETUID 0x80, SYS_PTRACE 0x80000.
func TestCapabilities(t *testing.T) {
	const none = "0000000000000000"
	for uid, want := range map[uint32]struct{ guard, server string }{
		user: {"0000000000000006", none},
		0:    {"00000000000800df", "00000000000000db"},
	} {
		t.Run(fmt.Sprint(uid), func(t *testing.T) {
			n, _ := job(t, uid)
			s := stage(t, n)
			s.apply(n)
			guard := s.pid()
			for pid, wants := range map[int]map[string]string{
				guard:                 {"CapPrm": want.guard, "CapBnd": want.guard, "NoNewPrivs": "1"},
				children(t, guard)[0]: {"CapPrm": want.server, "CapEff": want.server, "CapInh": want.server, "CapAmb": want.server, "CapBnd": want.guard, "NoNewPrivs": "1", "Seccomp": "2"},
			} {
				threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
				if err != nil || len(threads) == 0 {
					t.Fatalf("%d has no threads: %v", pid, err)
				}
				for _, thread := range threads {
					status, err := os.ReadFile(thread)
					if err != nil {
						continue // it has ended
					}
					for name, value := range wants {
						if !strings.Contains(string(status), "\n"+name+":\t"+value+"\n") {
							t.Errorf("guard %v: %s is not %s:\n%s", pid == guard, name, value, status)
						}
					}
				}
			}
		})
	}
}

// A job of root works with its files as root and other users do on one machine.
func TestRootsJobIsRoot(t *testing.T) {
	n, folder := job(t, 0)
	s := stage(t, n)
	write(t, filepath.Join(folder, "secret"), "root's\n", 0, 0o600)
	const other = 777
	theirs, closed := filepath.Join(folder, "theirs"), filepath.Join(folder, "closed")
	for path, owner := range map[string]int{theirs: other, closed: 0} {
		if err := os.Mkdir(path, 0o700); err != nil || os.Chown(path, owner, owner) != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(theirs, "file"), "other's\n", other, 0o600)
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	s.apply(n)
	past := func(uid uint32, operations ...operation) (status uint32) {
		t.Helper()
		testkit.Until(t, 2*graceSeconds*time.Second, "the server is past its grace", func() bool {
			status, _ = s.calls(n, uid, operations...)
			return status != statusGrace && status != statusDelay
		})
		return status
	}
	if got := s.guest.Run("nfs-cat", url(n, folder+"/secret", 0)); got != "root's\n" {
		t.Errorf("read %q", got)
	}
	if out, err := s.guest.Try("nfs-cat", url(n, folder+"/secret", other)); err == nil {
		t.Errorf("somebody else read %q", out)
	}
	made := func(name string, kind operation) operation {
		return append(append(words(opCreate), kind...).with([]byte(name)), words(0, 0)...)
	}
	owned := append(words(opSetAttr, 0, 0, 0, 0, 2, 0, 0x10, 8, 3), []byte("778\x00")...) // attribute 36
	link := func(name string) operation { return words(opLink).with([]byte(name)) }
	for _, c := range []struct {
		what       string
		uid        uint32
		operations []operation
		may        bool
	}{
		// The server acts as the other user, and is not to be looked into afterwards, but by its guard.
		{"mkdir by the other", other, append(lookUp(theirs), made("sub", words(typeFolder))), true},
		{"mkdir by the other where it may not", other, append(lookUp(folder), made("sub", words(typeFolder))), false},
		{"ln by the other", other, append(append(lookUp(theirs+"/file"), words(opSaveFH)), append(lookUp(theirs), link("second"))...), true},
		{"ln by the other where it may not", other, append(append(lookUp(theirs+"/file"), words(opSaveFH)), append(lookUp(folder), link("second"))...), false},
		{"look-up by the other where it may not", other, append(lookUp(closed), words(opLookup).with([]byte("none"))), false},
		{"look-up by root", 0, append(lookUp(theirs+"/second"), readAll), true},
		{"ln -s by root", 0, append(lookUp(theirs), made("link", words(typeLink).with([]byte("file")))), true},
		{"chown -h by root", 0, append(lookUp(theirs+"/link"), owned), true},
		{"chown -h by the other", other, append(lookUp(theirs+"/link"), owned), false},
		{"ln by root", 0, append(append(lookUp(theirs+"/file"), words(opSaveFH)), append(lookUp(closed), link("third"))...), true},
	} {
		if status := past(c.uid, c.operations...); (status == 0) != c.may {
			t.Errorf("%s: status %d", c.what, status)
		}
	}
	for path, owner := range map[string]uint32{theirs + "/sub": other, theirs + "/second": other, theirs + "/link": 778, closed + "/third": other} {
		if found, err := os.Lstat(path); err != nil || found.Sys().(*syscall.Stat_t).Uid != owner {
			t.Errorf("%s is not %d's: %v", path, owner, err)
		}
	}
}
