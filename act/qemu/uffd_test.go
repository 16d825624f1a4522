package qemu

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"pagurus/act/host"
	"pagurus/internal/testkit"
)

func TestAnswer(t *testing.T) {
	for out, want := range map[string]string{
		"":                                       "none",
		`{"QMP": {}}` + "\n" + `{"return": {}}`:  "none",
		`{"return": {}, "id": "it"}`:             "",
		"{half\n" + `{"return": {}, "id": "it"}`: "",
		`{"id": "it", "error": {"desc": "Not here."}}`: "Not here",
	} {
		refused, answered := answer([]byte(out))
		if got := map[bool]string{true: "", false: "none"}[answered]; refused != nil && refused.Error() != want || refused == nil && got != want {
			t.Errorf("%s: %v, %t", out, refused, answered)
		}
	}
}

// ownDevice sets the device as the kernel makes it, and restores it when the test ends.
func ownDevice(t *testing.T) {
	t.Helper()
	var before unix.Stat_t
	if err := unix.Stat(device, &before); err != nil {
		t.Skip(err) // a kernel without userfaultfd
	}
	t.Cleanup(func() {
		unix.Chown(device, int(before.Uid), int(before.Gid))
		unix.Chmod(device, before.Mode&0o777)
	})
	if err := errors.Join(unix.Chown(device, 0, 0), unix.Chmod(device, closed)); err != nil {
		t.Fatal(err)
	}
}

// TestTry: QEMU's answer agrees with the kernel's permissions.
func TestTry(t *testing.T) {
	testkit.Root(t, "qemu-system-x86_64")
	account, err := host.FindAccount("pagurus")
	if err != nil {
		t.Fatal(err) // scripts/setup makes it
	}
	ownDevice(t)
	binary, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Fatal(err)
	}
	before := UserfaultAccess()
	if err := GrantUserfault(account.GID); err != nil {
		t.Fatal(err)
	}
	version, err := exec.Command(binary, "--version").Output()
	refused := tryUserfault(t.Context(), binary, postCopyCapability, account.Attributes())
	t.Log(before, UserfaultAccess(), refused)
	if err == nil && refused != nil && !strings.Contains(string(version), "version 7.") {
		t.Errorf("it has what it needs and was refused: %v", refused)
	}
	if UserfaultAccess() == before {
		t.Error("nobody would look again")
	}
	if err := RevokeUserfault(account.GID); err != nil {
		t.Fatal(err)
	}
	text, _ := os.ReadFile(setting) // if missing, only root may
	everybody := strings.TrimSpace(string(text)) == "1"
	if err := tryUserfault(t.Context(), binary, postCopyCapability, account.Attributes()); (err == nil) != everybody {
		t.Errorf("returned, and everybody let: %t: %v", everybody, err)
	} else {
		t.Log(err)
	}
	if err := tryUserfault(t.Context(), "false", postCopyCapability, account.Attributes()); err == nil {
		t.Error("no QEMU can")
	}
}

// TestGrantUserfault: the device is granted only if it is as the kernel made it, and is
// restored.
func TestGrantUserfault(t *testing.T) {
	testkit.Root(t)
	ownDevice(t)
	mode := func() (st unix.Stat_t) {
		if err := unix.Stat(device, &st); err != nil {
			t.Fatal(err)
		}
		return st
	}
	const group, other = 54321, 54322
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	is := func(gid, want uint32) {
		t.Helper()
		if st := mode(); st.Uid != 0 || st.Gid != gid || st.Mode&0o777 != want {
			t.Errorf("it is %d:%d %o", st.Uid, st.Gid, st.Mode)
		}
	}
	access := UserfaultAccess()
	for range 2 {
		must(GrantUserfault(group))
		is(group, grantedMode)
	}
	if UserfaultAccess() == access {
		t.Error("nobody would look again")
	}
	must(GrantUserfault(other))
	is(group, grantedMode)
	must(RevokeUserfault(other))
	is(group, grantedMode)
	for range 2 {
		must(RevokeUserfault(group))
		is(0, closed)
	}
	must(unix.Chmod(device, 0o666))
	must(GrantUserfault(group))
	must(RevokeUserfault(group))
	is(0, 0o666)
}

func TestRemedy(t *testing.T) {
	if got := UserfaultRemedy("pagurus", "7.2.22"); !strings.Contains(got, "unprivileged_userfaultfd=1") {
		t.Error(got)
	}
	for _, command := range []string{UserfaultRemedy("pagurus", "7.2.22"), UserfaultRemedy("pagurus", "10.0.2"), UserfaultRemedy("pagurus", "")} {
		if err := exec.Command("sh", "-n", "-c", command).Run(); err != nil {
			t.Errorf("%s: %v", command, err)
		}
	}
}
