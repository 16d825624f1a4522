package host

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// TestFreezer: files as the kernel shows them for both versions. What the kernel does with them
// package cgroup tests.
func TestFreezer(t *testing.T) {
	for _, c := range []struct {
		says            map[string]string
		legacy          bool
		frozen, settled bool
	}{
		{map[string]string{"freezer.state": "THAWED\n"}, true, false, false},
		{map[string]string{"freezer.state": "FREEZING\n"}, true, true, false},
		{map[string]string{"freezer.state": "FROZEN\n"}, true, true, true},
		{map[string]string{"cgroup.freeze": "0\n", "cgroup.events": "populated 1\nfrozen 0\n"}, false, false, false},
		{map[string]string{"cgroup.freeze": "1\n", "cgroup.events": "populated 1\nfrozen 0\n"}, false, true, false},
		{map[string]string{"cgroup.freeze": "1\n", "cgroup.events": "populated 1\nfrozen 1\n"}, false, true, true},
	} {
		f := Freezer(t.TempDir())
		for name, text := range c.says {
			if err := os.WriteFile(filepath.Join(string(f), name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		frozen, wrong := f.Frozen()
		settled, err := f.Settled()
		if frozen != c.frozen || settled != c.settled || f.Legacy() != c.legacy || wrong != nil || err != nil {
			t.Errorf("%v: frozen %t, settled %t, version 1 %t; %v, %v", c.says, frozen, settled, f.Legacy(), wrong, err)
		}
		if err := f.Set(!c.frozen); err != nil {
			t.Errorf("%v: %v", c.says, err)
		}
		if now, err := f.Frozen(); now == c.frozen || err != nil {
			t.Errorf("%v: after a change frozen is %t, %v", c.says, now, err)
		}
	}
	none := Freezer(t.TempDir())
	if err := none.Set(false); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no group was thawed: %v", err)
	}
	if err := none.Freeze(); err == nil {
		t.Error("no group was frozen")
	}
	if frozen, err := Freezer("").Frozen(); frozen || err != nil || Freezer("").Freeze() != nil || Freezer("").Legacy() {
		t.Errorf("where nothing is frozen: %t, %v", frozen, err)
	}
}
