package container_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pagurus/internal/testkit"
)

// unread maps waiting data that prevents a move to the reason, and to whether it is reported
// before a move.
var unread = map[string]struct {
	says  string
	early bool
}{
	"urgent":     {"urgent data", true},
	"inlined":    {"urgent data", true},
	"savedsyn":   {"TCP_SAVED_SYN", true},
	"half6":      {"a connection by IPv6 that is closed for writing at one end", true},
	"over6":      {"a connection by IPv6 that is closed for writing at one end, or both", true},
	"errors":     {"an error that it has not read", true},
	"stamps":     {"an error that it has not read", true},
	"corked":     {"UDP_CORK", true},
	"ambiguous":  {"could not be given to just this socket", false},
	"named":      {"from a socket with an address", true},
	"control":    {"a control message", true},
	"empty":      {"an empty message", false},
	"unaccepted": {"", false},
	"pending":    {"", false},
	"netlink":    {"a netlink socket with messages", true},
}

// TestSocketsAreWaitedFor: a move waits until data in a socket that cannot move is read, and
// then continues by itself.
func TestSocketsAreWaitedFor(t *testing.T) {
	j := newJobOf(t, "openmpi", 1, jobUser)
	for n, name := range j.compileState("sockwait") {
		h, ok := unread[name]
		if !ok {
			t.Errorf("%s: nothing says what keeps it", name)
		}
		end := j.beginCase("sockwait", name)
		if h.early {
			found, err := j.drivers[j.at[0]].Obstacles(t.Context(), j.tasks[0].Guest.ID)
			if err != nil || !strings.Contains(strings.Join(found, "\n"), h.says) {
				t.Errorf("%s: before it is moved: %q, %v", name, found, err)
			}
		}
		var o outcome
		read := testkit.Meanwhile(t, func() { time.Sleep(400 * time.Millisecond); o = end() })
		_, err := j.tryMove(0, n)
		read()
		if err != nil || o.exit.Code != 0 || o.stdout != "" {
			t.Errorf("%s: the move ends with %v, and the program says %q %q (%v)", name, err, o.stdout, o.stderr, o.exit)
		}
		if found, err := j.drivers[j.at[0]].Obstacles(t.Context(), j.tasks[0].Guest.ID); err != nil || len(found) > 0 {
			t.Errorf("%s: afterwards: %q, %v", name, found, err)
		}
		_ = os.Remove(filepath.Join(j.files, name+".ready"))
	}
}

// TestSocketsThatStay: data that is never read ends the move, with a reason, and the program
// still has it.
func TestSocketsThatStay(t *testing.T) {
	j := newJobOf(t, "openmpi", 1, jobUser)
	j.compileState("sockwait")
	for n, name := range []string{"empty", "ambiguous"} {
		end := j.beginCase("sockwait", name)
		if _, err := j.tryMove(0, n); err == nil || !strings.Contains(err.Error(), unread[name].says) {
			t.Errorf("%s: the move ends with %v", name, err)
		}
		if o := end(); o.exit.Code != 0 || o.stdout != "" {
			t.Errorf("%s: the program says %q (%v)", name, o.stdout, o.exit)
		}
	}
}
