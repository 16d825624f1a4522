package container_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pagurus/act/container/framing"
	"pagurus/act/container/transfer"
	"pagurus/fleet"
)

// TestAgentGoesAlong: a guest keeps its guest agent on a host that has another. That host
// receives the agent with the guest and stores it while the guest is there. A host without
// guests keeps none.
func TestAgentGoesAlong(t *testing.T) {
	j := newJobOf(t, "openmpi", 1, 0)
	cache := func(i int) string { return filepath.Join(j.hosts[i].Run, "container-agents") }
	kept := func(i int) (digests []string) {
		all, err := os.ReadDir(cache(i))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range all {
			digests = append(digests, e.Name())
		}
		return digests
	}
	own := kept(0)[0]

	// Host 1 gets a newer Pagurus, and has no guest of the older one.
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(j.drivers[1].Stop(t.Context(), j.tasks[1].Guest.ID))
	must(j.drivers[1].Close())
	if _, err := os.Stat(cache(1)); !os.IsNotExist(err) {
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
	for n := range 4 { // there and back, by pre-copy and by post-copy
		j.move(0, n)
		if got := runs(); !strings.HasPrefix(got, own) {
			t.Errorf("after move %d it runs %q, and was started with %s", n, got, own)
		}
		if want := 1 + (n+1)%2; len(kept(1)) != want {
			t.Errorf("after move %d host 1 keeps %v", n, kept(1))
		}
	}
	obstacles := func() []string {
		found, err := j.drivers[0].Obstacles(t.Context(), j.tasks[0].Guest.ID)
		must(err)
		return found
	}
	j.do(0, time.Minute, sh("mv /run/pagurus /run/elsewhere"), "")
	if found := obstacles(); len(found) != 1 || !strings.Contains(found[0], "/run/pagurus was moved") {
		t.Errorf("a guest whose agent is elsewhere: %q", found)
	}
	j.do(0, time.Minute, sh("mv /run/elsewhere /run/pagurus"), "")
	if found := obstacles(); len(found) != 0 {
		t.Errorf("with all in its place: %q", found)
	}
	sum := j.do(0, time.Minute, sh("sha256sum </run/pagurus/pagurus-guest"), "").stdout
	if !strings.HasPrefix(sum, own) {
		t.Errorf("a guest's root changed what is the host's: %q", sum)
	}
}

// TestStrangeAgents: a source that names no digest, or that does not send the agent that was
// asked for, is refused. The target waits for another.
func TestStrangeAgents(t *testing.T) {
	w := newWorld(t)
	d := w.open(t, 1)
	defer d.Close()
	tk := task("j1g0")
	tk.Order.Migration = "m1.j1g0"
	listen, err := d.Receive(t.Context(), tk)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Stop(t.Context(), tk.Guest.ID); err != nil {
			t.Error(err)
		}
	}()
	place, err := framing.ParsePlace(listen)
	if err != nil {
		t.Fatal(err)
	}
	greet := func(agent string) (c *framing.Conn, a transfer.Answer, err error) {
		err = w.hosts[0].net.Do(func() error {
			c, err = framing.Dial(t.Context(), place)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		a, err = transfer.Greet(c, transfer.Hello{Protocol: fleet.Protocol(), Guest: tk.Guest.ID, Migration: tk.Order.Migration, Word: place.Word, Agent: agent})
		return c, a, err
	}
	for range 2 {
		for _, digest := range []string{"x", "../../etc/passwd", strings.Repeat("A", 64)} {
			c, a, err := greet(digest)
			c.Close()
			if err == nil {
				t.Errorf("%q is answered with %+v", digest, a)
			}
		}
		c, a, err := greet(strings.Repeat("a", 64))
		if err != nil || !a.Lacks || a.Failure != "" {
			t.Fatalf("one that is not there is answered with %+v: %v", a, err)
		}
		if err := errors.Join(c.Send('R'), c.Flush()); err != nil { // restore the guest from the received data
			t.Error(err)
		}
		if kind, text, err := c.Receive(time.Minute); err != nil || kind != 'A' || !strings.Contains(string(text), "before the guest agent") {
			t.Errorf("told to make a guest of nothing, it says %q: %v", text, err)
		}
		c.Close()
	}
}
