package host

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

func TestUIDs(t *testing.T) {
	u, err := ParseUIDs("70000-70002")
	if err != nil || u.String() != "70000-70002" || u.Has(69999) || !u.Has(70000) || !u.Has(70002) || u.Has(70003) {
		t.Fatalf("it is %s: %v", u, err)
	}
	used := map[uint32]bool{70001: true}
	for _, want := range []uint32{70000, 70002} {
		got, err := u.Free(used)
		if err != nil || got != want {
			t.Errorf("free is %d, want %d: %v", got, want, err)
		}
		used[got] = true
	}
	if got, err := u.Free(used); !errors.Is(err, ErrNoUID) {
		t.Errorf("of a range in use %d is free: %v", got, err)
	}
	used[70001] = false
	if got, err := u.Free(used); err != nil || got != 70001 {
		t.Errorf("given back was 70001, and free is %d: %v", got, err)
	}
	for _, bad := range []string{"", "70000", "-", "70000-", "-70000", "70001-70000", "0-70000", "1000-2000", "65534-70000", "70000-4294967295", "70000-70001-70002", "a-b"} {
		if u, err := ParseUIDs(bad); err == nil {
			t.Errorf("%q is taken for %s", bad, u)
		}
	}
	if again, err := ParseUIDs(UsualUIDs.String()); err != nil || again != UsualUIDs {
		t.Errorf("the usual range is read as %s: %v", again, err)
	}
	// The whole of the largest range can be walked to its end.
	if got, err := (UIDs{mostUID, mostUID}).Free(map[uint32]bool{mostUID: true}); err == nil {
		t.Errorf("%d is free", got)
	}
}

// A user with a process here is in use, whoever started it and whatever may be read of it.
func TestUsers(t *testing.T) {
	used, err := Users()
	if err != nil || !used[uint32(os.Geteuid())] || used[2_099_999_990] {
		t.Fatalf("in use are %v: %v", used, err)
	}
	if os.Geteuid() != 0 {
		return
	}
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 2_099_999_990, Gid: 2_099_999_990}, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	if used, err = Users(); err != nil || !used[2_099_999_990] {
		t.Errorf("a process's user is not in use: %v", err)
	}
}
