package host

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pagurus/internal/testkit"
)

// A device that comes after the account was found counts, with the group that it has by then.
func TestGroupOfADeviceThatComesLater(t *testing.T) {
	testkit.Root(t)
	a := Account{UID: 65534, GID: 65534, device: filepath.Join(t.TempDir(), "kvm")}
	if got := a.Attributes().Credential.Groups; len(got) != 0 {
		t.Errorf("groups %v without a device", got)
	}
	if err := os.WriteFile(a.device, nil, 0o660); err != nil {
		t.Fatal(err)
	}
	for _, gid := range []uint32{103, 104} {
		if err := os.Chown(a.device, 0, int(gid)); err != nil {
			t.Fatal(err)
		}
		if got := a.Attributes().Credential.Groups; !slices.Equal(got, []uint32{gid}) {
			t.Errorf("groups %v, the device is of %d", got, gid)
		}
	}
}
