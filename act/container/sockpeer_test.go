package container_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"pagurus/fleet"
	"pagurus/internal/testkit"
)

// keeps3 lets three messages wait in a UDP socket while it is moved, and prints their senders
// and lengths.
const keeps3 = `use Socket; socket(S, PF_INET, SOCK_DGRAM, 0) or die; bind(S, sockaddr_in($ARGV[0], INADDR_ANY)) or die;
open(F, ">", "bound"); close F; select(undef, undef, undef, 0.02) until -e "sent" && -e "go";
for (1..3) { my $from = recv(S, my $m, 65536, 0x40) or die "$!"; my ($port, $a) = sockaddr_in($from); print inet_ntoa($a), " $port ", length $m, " ", substr($m, 0, 1), "\n"; }
print "over\n" unless recv(S, my $m, 10, 0x40);`

// sends3 sends the messages.
const sends3 = `use Socket; socket(S, PF_INET, SOCK_DGRAM, 0) or die; bind(S, sockaddr_in($ARGV[2], INADDR_ANY)) or die;
my $to = sockaddr_in($ARGV[1], inet_aton($ARGV[0])); for (["a", 5], ["b", 30000], ["c", 1]) { defined send(S, $_->[0] x $_->[1], 0, $to) or die "$!" }`

// TestMessagesOfOtherGuests: messages of another guest still wait after a move, also one longer
// than the network's MTU.
func TestMessagesOfOtherGuests(t *testing.T) {
	j := newJob(t, "openmpi", 1)
	const here, there = 5000, 5001
	exists := func(name string) bool { _, err := os.Stat(filepath.Join(j.files, name)); return err == nil }
	make := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(j.files, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	perl := func(script string, args ...string) fleet.Program {
		return fleet.Program{Args: append([]string{"perl", "-e", script}, args...)}
	}
	var o outcome
	wait := testkit.Meanwhile(t, func() { o = j.do(0, time.Minute, perl(keeps3, strconv.Itoa(here)), "") })
	until(t, func() bool { return exists("bound") })
	if o := j.do(1, time.Minute, perl(sends3, subnet.GuestAddr(0).String(), strconv.Itoa(here), strconv.Itoa(there)), ""); o.exit.Code != 0 {
		t.Fatalf("send: %+v", o)
	}
	make("sent")
	for n := range 2 {
		j.move(0, n)
	}
	make("go")
	wait()
	from := fmt.Sprintf("%s %d ", subnet.GuestAddr(1), there)
	if want := from + "5 a\n" + from + "30000 b\n" + from + "1 c\nover\n"; o.stdout != want {
		t.Errorf("what waited is\n%snot\n%s%s", o.stdout, want, strings.TrimSpace(o.stderr))
	}
}
