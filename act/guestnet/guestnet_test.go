package guestnet

import (
	"os"
	"path/filepath"
	"testing"
)

// TestChoose: the job's interface is found beside a card of the host, and a guest that begins as another's copy has the other's address.
func TestChoose(t *testing.T) {
	const mac, other, third = "02:70:67:00:07:01", "02:70:67:00:07:09", "36:8a:10:00:00:01"
	for _, c := range []struct {
		why       string
		addresses map[string]string // by interface
		name      string            // empty: it is refused
		has       bool
	}{
		{"alone", map[string]string{"eth0": mac}, "eth0", true},
		{"another's copy", map[string]string{"eth0": other}, "eth0", false},
		{"beside a card of the host", map[string]string{"enp1s0": third, "eth0": mac}, "eth0", true},
		{"first beside one", map[string]string{"ens1": mac, "ens9": third}, "ens1", true},
		{"not to be told", map[string]string{"eth0": other, "eth1": third}, "", false},
		{"twice", map[string]string{"eth0": mac, "eth1": mac}, "", false},
		{"none", nil, "", false},
	} {
		dir := t.TempDir()
		for name, address := range c.addresses {
			if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
				t.Fatal(err)
			}
			for file, text := range map[string]string{"device": "", "address": address + "\n"} {
				if err := os.WriteFile(filepath.Join(dir, name, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		paths, err := filepath.Glob(filepath.Join(dir, "*/device"))
		if err != nil {
			t.Fatal(err)
		}
		name, has, err := choose(paths, mac)
		if name != c.name || has != c.has || (err != nil) != (c.name == "") {
			t.Errorf("%s: %q, %v, %v", c.why, name, has, err)
		}
	}
}
