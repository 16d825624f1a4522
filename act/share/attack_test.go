package share

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// An attacker's own words of NFS 4.0 (RFC 7530).
const (
	opGetFH, opLookupParent, opPutFH, opReadLink, opCreate, opRemove, opSetAttr, opWrite, opLink, opSaveFH = 10, 16, 22, 27, 6, 28, 34, 38, 11, 32

	typeFolder, typeBlock, typeLink = 2, 3, 5
)

// operation is a part of a call, as it is sent.
type operation []byte

func words(all ...uint32) (b operation) {
	for _, w := range all {
		b = binary.BigEndian.AppendUint32(b, w)
	}
	return b
}

// with adds bytes with their number, padded.
func (o operation) with(b []byte) operation {
	o = append(append(o, words(uint32(len(b)))...), b...)
	return append(o, make([]byte, (4-len(b)%4)%4)...)
}

func lookUp(path string) (out []operation) {
	out = append(out, words(opPutRootFH))
	for part := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		out = append(out, words(opLookup).with([]byte(part)))
	}
	return out
}

var readAll = words(opRead, 0, 0, 0, 0, 0, 0, mostRead)

// calls makes a call as anybody, from the guest's network, and returns the status of its last operation and the
// bytes that came last.
func (s *testbed) calls(n fleet.Network, uid uint32, operations ...operation) (status uint32, last []byte) {
	s.t.Helper()
	call := words(7, 0, 2, programNFS, versionNFS, callCompound, flavorUnix, 5*4, 0, 0, uid, uid, 0, flavorNone, 0, 0, 0, uint32(len(operations)))
	call = append(call, slices.Concat(operations...)...)
	var reply []byte
	s.guest.Must(func() error {
		var c net.Conn
		testkit.Until(s.t, startLimit, "the server listens", func() (ok bool) {
			var err error
			c, err = net.Dial("tcp", netip.AddrPortFrom(n.Subnet.ShareAddr(), nfsPort).String())
			return err == nil
		})
		defer c.Close()
		if _, err := c.Write(append(words(uint32(len(call))|1<<31), call...)); err != nil {
			return err
		}
		head := make([]byte, 4)
		if _, err := io.ReadFull(c, head); err != nil {
			return err
		}
		reply = make([]byte, binary.BigEndian.Uint32(head)&^(1<<31))
		_, err := io.ReadFull(c, reply)
		return err
	})
	const before = 6 * 4 // transaction, type, accepted, verifier, success
	if len(reply) < before+4 {
		s.t.Fatalf("it answers %x", reply)
	}
	return binary.BigEndian.Uint32(reply[before:]), reply
}

// handleOf is the server's handle of a path.
func (s *testbed) handleOf(n fleet.Network, path string) []byte {
	s.t.Helper()
	status, reply := s.calls(n, user, append(lookUp(path), words(opGetFH))...)
	// At the end: GETFH, its status, the handle's length, the handle.
	i := bytes.LastIndex(reply, words(opGetFH, 0))
	if status != 0 || i < 0 {
		s.t.Fatalf("the handle of %s: status %d", path, status)
	}
	length := binary.BigEndian.Uint32(reply[i+8:])
	return reply[i+12 : i+12+int(length)]
}

// A guest that forges a handle reaches no other file, neither by another inode or generation nor by another file system or export.
func TestForgedHandles(t *testing.T) {
	n, folder := job(t, user)
	s := stage(t, n)
	s.apply(n)
	closed := filepath.Join(filepath.Dir(folder), "closed") // another user's
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(closed, "open"), "content of another job\n", 0, 0o644)
	write(t, filepath.Join(folder, "input"), "content of this job\n", user, 0o600)
	read := func(handle []byte) (uint32, string) {
		status, reply := s.calls(n, user, words(opPutFH).with(handle), readAll)
		return status, string(reply)
	}
	own := s.handleOf(n, folder+"/input")
	if status, got := read(own); status != 0 || !strings.Contains(got, "content of this job") {
		t.Fatalf("its own handle does not work: %d %q", status, got)
	}
	kernels := func(path string) []byte {
		h, _, err := unix.NameToHandleAt(unix.AT_FDCWD, path, 0)
		if err != nil {
			t.Fatal(err)
		}
		return h.Bytes()
	}
	mine, theirs := kernels(filepath.Join(folder, "input")), kernels(filepath.Join(closed, "open"))
	if len(mine) != len(theirs) || !bytes.Contains(own, mine) {
		t.Fatalf("the server's handle %x does not have the kernel's %x in it", own, mine)
	}
	forged := bytes.Replace(own, mine, theirs, 1)
	if status, got := read(forged); status == 0 || strings.Contains(got, "another job") {
		t.Errorf("a forged handle reads %q", got)
	}
	for i := range own {
		for _, bit := range []byte{1, 0x80} {
			forged := bytes.Clone(own)
			forged[i] ^= bit
			if status, got := read(forged); status == 0 && !strings.Contains(got, "content of this job") {
				t.Errorf("with byte %d changed it reads %q", i, got)
			}
		}
	}
	if status, got := read(own); status != 0 || !strings.Contains(got, "content of this job") {
		t.Errorf("after all this its own handle does not work: %d %q", status, got)
	}
}

// A guest that takes a handle from the directory that it may only read, and says that it is of the other one, writes
// nothing there.
func TestHandleOfAnotherExport(t *testing.T) {
	n, folder := job(t, user)
	_, shown := job(t, user)
	n.Share.Files = []fleet.Directory{{Path: shown, ReadOnly: true}}
	s := stage(t, n)
	for _, dir := range []string{folder, shown} {
		write(t, filepath.Join(dir, "input"), "as it was\n", user, 0o644)
	}
	s.apply(n)
	past := func(operations ...operation) (status uint32) {
		testkit.Until(t, 2*graceSeconds*time.Second, "the server is past its grace", func() bool {
			status, _ = s.calls(n, user, operations...)
			return status != statusGrace && status != statusDelay
		})
		return status
	}
	data := words(opWrite, 0, 0, 0, 0, 0, 0, 2).with([]byte("written"))
	mode := words(opSetAttr, 0, 0, 0, 0, 2, 0, 2, 4, 0o777) // attribute 33
	folderMade := append(words(opCreate, typeFolder).with([]byte("made")), words(0, 0)...)
	removed := words(opRemove).with([]byte("input"))
	// What it may do in its own directory, it does.
	if status := past(words(opPutFH).with(s.handleOf(n, folder+"/input")), data); status != 0 {
		t.Fatalf("it may not write to its own directory: status %d", status)
	}
	file, dir := s.handleOf(n, shown+"/input"), s.handleOf(n, shown)
	const number = 2 // where ganesha's handles have the export's number, in two bytes
	for _, handle := range [][]byte{file, dir} {
		if got := binary.BigEndian.Uint16(handle[number:]); got != 2 {
			t.Fatalf("its handle %x is of export %d", handle, got)
		}
	}
	for _, export := range []uint16{2, 1} {
		for _, handle := range [][]byte{file, dir} {
			binary.BigEndian.PutUint16(handle[number:], export)
		}
		for what, operations := range map[string][]operation{
			"a write":          {words(opPutFH).with(file), data},
			"a change of mode": {words(opPutFH).with(file), mode},
			"a new folder":     {words(opPutFH).with(dir), folderMade},
			"a removed file":   {words(opPutFH).with(dir), removed},
		} {
			if status := past(operations...); status == 0 {
				t.Errorf("by export %d: %s is done", export, what)
			}
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(shown, "input"), &st); err != nil || st.Mode&0o777 != 0o644 {
		t.Errorf("its file has mode %o: %v", st.Mode, err)
	}
	if text, err := os.ReadFile(filepath.Join(shown, "input")); err != nil || string(text) != "as it was\n" {
		t.Errorf("its file has %q: %v", text, err)
	}
	if _, err := os.Stat(filepath.Join(shown, "made")); err == nil {
		t.Error("a folder was made")
	}
}

// Names lead nowhere else, and nothing is made that is more than a file.
func TestNamesLeadNowhereElse(t *testing.T) {
	n, folder := job(t, user)
	s := stage(t, n)
	s.apply(n)
	write(t, filepath.Join(filepath.Dir(folder), "outside"), "beyond the export\n", user, 0o644)
	for link, to := range map[string]string{"up": "../outside", "away": "/etc/passwd", "folder": ".."} {
		if err := os.Symlink(to, filepath.Join(folder, link)); err != nil {
			t.Fatal(err)
		}
	}
	for what, operations := range map[string][]operation{
		"..":                     append(lookUp(folder+"/.."), words(opGetFH)),
		"two names in one":       append(lookUp(folder), words(opLookup).with([]byte("../outside")), readAll),
		"a whole path":           append(lookUp(folder), words(opLookup).with([]byte("/etc/passwd")), readAll),
		"a name with its end":    append(lookUp(folder), words(opLookup).with([]byte("..\x00")), readAll),
		"the parent's file":      append(lookUp(folder), words(opLookupParent), words(opLookup).with([]byte("outside")), readAll),
		"beside the export":      append(lookUp(filepath.Dir(folder)+"/outside"), readAll),
		"a link as a file":       append(lookUp(folder+"/up"), readAll),
		"another link":           append(lookUp(folder+"/away"), readAll),
		"below a link":           append(lookUp(folder+"/folder/outside"), readAll),
		"a device":               append(lookUp(folder), append(words(opCreate, typeBlock, 254, 0).with([]byte("disk")), words(0, 0)...)),
		"a link out of a link":   append(lookUp(folder+"/folder"), append(words(opCreate, typeLink).with([]byte("/etc")).with([]byte("x")), words(0, 0)...)),
		"the root of the server": append(lookUp("/etc/passwd"), readAll),
	} {
		for _, uid := range []uint32{user, 0} {
			if status, reply := s.calls(n, uid, operations...); status == 0 || bytes.Contains(reply, []byte("beyond")) || bytes.Contains(reply, []byte("root:")) {
				t.Errorf("%s, as %d: status %d, %q", what, uid, status, reply)
			}
		}
	}
	// A link's text is only a text, which each guest reads in its own files.
	if status, reply := s.calls(n, user, append(lookUp(folder+"/away"), words(opReadLink))...); status != 0 || !bytes.Contains(reply, []byte("/etc/passwd")) {
		t.Errorf("the text of a link: status %d, %q", status, reply)
	}
	if _, err := os.Lstat(filepath.Join(folder, "disk")); err == nil {
		t.Error("a device was made")
	}
}

// children are the processes that a process has started, from any of its threads.
func children(t *testing.T, pid int) (out []int) {
	t.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range lists {
		text, _ := os.ReadFile(list) // a thread may have ended
		for f := range strings.FieldsSeq(string(text)) {
			var n int
			if _, err := fmt.Sscan(f, &n); err != nil {
				t.Fatal(err)
			}
			out = append(out, n)
		}
	}
	return out
}

// From inside the server's namespaces nothing of the host is seen, and the server has no right but its user's.
func TestServerIsInAJail(t *testing.T) {
	for _, uid := range []uint32{user, 0} {
		t.Run(fmt.Sprint(uid), func(t *testing.T) {
			n, folder := job(t, uid)
			s := stage(t, n)
			s.apply(n)
			write(t, filepath.Join(folder, "input"), "x", int(uid), 0o600)
			guard := s.pid()
			all := children(t, guard)
			if len(all) != 1 {
				t.Fatalf("the guard has the children %v", all)
			}
			for _, pid := range []int{guard, all[0]} {
				for _, kind := range []string{"mnt", "pid", "ipc", "uts", "net"} {
					its, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
					ours, wrong := os.Readlink("/proc/self/ns/" + kind)
					if err != nil || wrong != nil || its == ours {
						t.Errorf("%d is in our namespace %s: %v, %v", pid, kind, err, wrong)
					}
				}
				root := fmt.Sprintf("/proc/%d/root", pid)
				for _, path := range []string{"/etc/shadow", "/etc/passwd", "/root", "/home", "/var", "/sys", "/boot", "/dev/mem", "/proc/kcore", "/run/dbus", "/bin/sh", filepath.Dir(folder)} {
					if _, err := os.Stat(root + path); err == nil {
						t.Errorf("%d sees %s", pid, path)
					}
				}
				if _, err := os.Stat(filepath.Join(root+filesPath(filepath.Dir(s.file("x")), 0), "input")); err != nil {
					t.Errorf("%d does not see the job's files: %v", pid, err)
				}
				status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
				if err != nil || !strings.Contains(string(status), "\nNoNewPrivs:\t1\n") {
					t.Errorf("%d may get new rights: %v", pid, err)
				}
				if pid == guard {
					continue
				}
				wants := []string{"\nSeccomp:\t2\n", fmt.Sprintf("\nUid:\t%d\t%[1]d\t%[1]d\t%[1]d\n", uid), "\nGroups:\t \n"}
				if uid != 0 {
					wants = append(wants, "\nCapPrm:\t0000000000000000\n", "\nCapEff:\t0000000000000000\n", "\nCapAmb:\t0000000000000000\n")
				}
				for _, want := range wants {
					if !strings.Contains(string(status), want) {
						t.Errorf("its status lacks %q: %s", want, status)
					}
				}
				if limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid)); err != nil || strings.Contains(string(limits), "Max address space         unlimited") {
					t.Errorf("its memory has no limit: %v", err)
				}
			}
		})
	}
}
