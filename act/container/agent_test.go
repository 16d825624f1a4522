package container_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestAgentGoesAlong: a guest runs the guest agent that it was started with also at a host
// that has another, which gets it with the guest and keeps it as long; of a host without
// guests nothing of them is left.
func TestAgentGoesAlong(t *testing.T) {
	j := newJobOf(t, "openmpi", 1, 0)
	shelf := func(i int) string { return filepath.Join(j.hosts[i].Run, "container-agents") }
	kept := func(i int) (digests []string) {
		all, err := os.ReadDir(shelf(i))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range all {
			digests = append(digests, e.Name())
		}
		return digests
	}
	own := kept(0)[0]

	// Host 1 becomes one with a newer Pagurus, and without a guest of the older one's.
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(j.drivers[1].Stop(t.Context(), j.tasks[1].Guest.ID))
	must(j.drivers[1].Close())
	if _, err := os.Stat(shelf(1)); !os.IsNotExist(err) {
		t.Errorf("a host without guests keeps guest agents when its driver is closed: %v", err)
	}
	text, err := os.ReadFile(j.agent)
	must(err)
	newer := filepath.Join(t.TempDir(), "agent")
	must(os.WriteFile(newer, append(text, 0), 0o755))
	j.agent = newer
	j.drivers[1] = j.open(t, 1)
	if all := kept(1); len(all) != 1 || all[0] == own {
		t.Fatalf("host 1 keeps %v, the guest's is %s", all, own)
	}

	runs := func() string {
		return j.do(0, time.Minute, sh("test /proc/1/exe -ef /run/pagurus/pagurus-guest && sha256sum </proc/1/exe; echo x >/proc/1/exe; echo x >>/run/pagurus/pagurus-guest"), "").stdout
	}
	for n := range 4 { // to and fro, by pre-copy and by post-copy
		j.move(0, n)
		if got := runs(); !strings.HasPrefix(got, own) {
			t.Errorf("after move %d it runs %q, and was started with %s", n, got, own)
		}
		if want := 1 + (n+1)%2; len(kept(1)) != want {
			t.Errorf("after move %d host 1 keeps %v", n, kept(1))
		}
	}
	sum := j.do(0, time.Minute, sh("sha256sum </run/pagurus/pagurus-guest"), "").stdout
	if !strings.HasPrefix(sum, own) {
		t.Errorf("a guest's root changed what is the host's: %q", sum)
	}
}
