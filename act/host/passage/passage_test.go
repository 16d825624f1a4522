package passage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/internal/testkit"
)

func TestMain(m *testing.M) {
	Shims[attackerName] = attackFromRelay
	if become := Shims[os.Args[0]]; become != nil {
		if err := become(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

var move = Move{Guest: "j1g0", Gen: 3, Migration: "m1.j1g0", From: "host1"}

// record is what a listener logs.
type record struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(p)
}

func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

// target listens, and gives what came or why not.
func target(t *testing.T, streams int, earlier string) (*Listener, <-chan []*net.TCPConn, *record) {
	t.Helper()
	log := &record{}
	l, err := Target{
		Address: netip.MustParseAddr("127.0.0.1"), Earlier: earlier, Move: move, Streams: streams, Log: slog.New(slog.NewTextHandler(log, nil)),
	}.Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	came := make(chan []*net.TCPConn, 1)
	go func() {
		all, err := l.Await()
		if err != nil {
			t.Logf("nothing came: %v", err)
		}
		came <- all
	}()
	t.Cleanup(func() { l.Close() })
	return l, came, log
}

// comes dials and sends a word over the first connection, and checks that the target gets it.
func comes(t *testing.T, at Place, streams int, came <-chan []*net.TCPConn) {
	t.Helper()
	out, err := at.Dial(t.Context(), move, streams)
	if err != nil {
		t.Fatal(err)
	}
	defer CloseAll(out)
	for i, c := range out {
		if _, err := fmt.Fprintf(c, "memory %d", i); err != nil {
			t.Fatal(err)
		}
	}
	in := <-came
	defer CloseAll(in)
	if len(in) != streams {
		t.Fatalf("%d connections came of %d", len(in), streams)
	}
	for i, c := range in {
		text := make([]byte, 8)
		if _, err := io.ReadFull(c, text); err != nil || string(text) != fmt.Sprintf("memory %d", i) {
			t.Errorf("over connection %d came %q: %v", i, text, err)
		}
		if _, err := c.Write([]byte("back")); err != nil {
			t.Error(err)
		}
		if _, err := io.ReadFull(out[i], text[:4]); err != nil || string(text[:4]) != "back" {
			t.Errorf("back over connection %d came %q: %v", i, text[:4], err)
		}
	}
}

// TestStrangers: who does not know the secret is turned away and logged, whatever he says, and the
// source is taken in.
func TestStrangers(t *testing.T) {
	for streams := 1; streams <= 2; streams++ {
		l, came, log := target(t, streams, "")
		for name, stranger := range map[string]func(c net.Conn){
			"silent":   func(net.Conn) {},
			"half":     func(c net.Conn) { io.WriteString(c, hello[:5]) },
			"other":    func(c net.Conn) { io.WriteString(c, strings.Repeat("GET / HTTP/1.1\r\n", 8)) },
			"qemu":     func(c net.Conn) { c.Write(append([]byte("QEVM\x00\x00\x00\x03"), make([]byte, 4096)...)) },
			"unproven": func(c net.Conn) { c.Write(append([]byte(hello), make([]byte, nonceBytes+1+32)...)) },
		} {
			c, err := net.Dial("tcp", l.Place.Address.String())
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			defer c.Close()
			stranger(c)
		}
		for what, wrong := range map[string]func() (Place, Move){
			"another secret": func() (Place, Move) { return Place{l.Place.Address, strings.Repeat("A", leastSecret)}, move },
			"another guest":  func() (Place, Move) { m := move; m.Guest = "j1g1"; return l.Place, m },
			"another move":   func() (Place, Move) { m := move; m.Migration = "m2.j1g0"; return l.Place, m },
			"an older order": func() (Place, Move) { m := move; m.Gen--; return l.Place, m },
			"another host":   func() (Place, Move) { m := move; m.From = "host3"; return l.Place, m },
		} {
			at, m := wrong()
			if all, err := at.Dial(t.Context(), m, streams); !errors.Is(err, ErrStranger) || all != nil {
				t.Errorf("%s is taken in: %v, %v", what, all, err)
			}
		}
		if all, err := l.Place.Dial(t.Context(), move, streams+1); err == nil {
			CloseAll(all)
			t.Error("a move has more connections than were agreed")
		}
		comes(t, l.Place, streams, came)
		if got := log.String(); !strings.Contains(got, "was closed that is not the source's") || !strings.Contains(got, "guest=j1g0") || strings.Contains(got, l.Place.Secret) {
			t.Errorf("logged is %s", got)
		}
		// The secret was good once.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if all, err := l.Place.Dial(ctx, move, streams); err == nil {
			CloseAll(all)
			t.Error("a second source was taken in")
		}
		cancel()
	}
}

// TestNotTheTarget: the source sends nothing to who listens in the target's place.
func TestNotTheTarget(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := make(chan []byte, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		text := make([]byte, len(hello)+nonceBytes+1)
		io.ReadFull(c, text)
		c.Write(make([]byte, nonceBytes+32)) // what it cannot know
		rest, _ := io.ReadAll(c)
		got <- append(text, rest...)
	}()
	at := Place{netip.MustParseAddrPort(l.Addr().String()), strings.Repeat("S", leastSecret)}
	if all, err := at.Dial(t.Context(), move, 1); !errors.Is(err, ErrStranger) {
		CloseAll(all)
		t.Errorf("it is taken for the target: %v", err)
	}
	if text := <-got; len(text) != len(hello)+nonceBytes+1 || bytes.Contains(text, []byte(at.Secret)) {
		t.Errorf("it was told %q", text)
	}
}

// TestManyStrangers: those who connect and say nothing do not keep the source out, however many they are.
func TestManyStrangers(t *testing.T) {
	l, came, _ := target(t, 1, "")
	for range 3 * mostUnproven {
		c, err := net.Dial("tcp", l.Place.Address.String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	comes(t, l.Place, 1, came)
}

// TestBeginsAnew: a source that goes away before it has sent anything may come again; and so may one whose target's agent was
// replaced, at the same place.
func TestBeginsAnew(t *testing.T) {
	l, came, _ := target(t, 2, "")
	for range 3 {
		all, err := l.Place.Dial(t.Context(), move, 2)
		if err != nil {
			t.Fatal(err)
		}
		CloseAll(all)
	}
	half, err := l.Place.Dial(t.Context(), move, 1) // and is gone
	if err != nil {
		t.Fatal(err)
	}
	CloseAll(half)
	l.Close()
	if all := <-came; all != nil {
		t.Errorf("there came %v", all)
	}
	next := make(chan error, 1)
	go func() { // while nobody listens
		all, err := l.Place.Dial(t.Context(), move, 2)
		CloseAll(all)
		next <- err
	}()
	time.Sleep(3 * reachAgain)
	again, came, _ := target(t, 2, l.Place.String())
	if again.Place != l.Place {
		t.Errorf("it is at %s, was at %s", again.Place, l.Place)
	}
	if err := <-next; err != nil {
		t.Errorf("the source did not wait for the next agent: %v", err)
	}
	comes(t, again.Place, 2, came)
}

func TestPlaces(t *testing.T) {
	p := Place{netip.MustParseAddrPort("[::1]:77"), strings.Repeat("S", leastSecret)}
	if got, err := ParsePlace(p.String()); err != nil || got != p {
		t.Errorf("%s is read as %s: %v", p, got, err)
	}
	for _, bad := range []string{"", "nowhere", "127.0.0.1:1", "127.0.0.1:1/", "127.0.0.1:1/short", "exec:reboot", "/" + p.Secret} {
		if got, err := ParsePlace(bad); err == nil {
			t.Errorf("%q is read as %s", bad, got)
		}
	}
}

// TestRelay: what is written to a socket of one side's relay comes out of the other's, both ways, on
// the connection of the same number; the relays run as the guest's user and end with the sockets.
func TestRelay(t *testing.T) {
	testkit.Root(t)
	const streams, uid, megabytes = 2, 2_100_000_901, 8
	l, came, _ := target(t, streams, "")
	out, err := l.Place.Dial(t.Context(), move, streams)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for up := dir; up != "/tmp" && up != "/"; up = filepath.Dir(up) {
		if err := os.Chmod(up, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	listen := func(name string) *net.UnixListener {
		socket, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, name), Net: "unix"})
		if err == nil {
			err = os.Chown(filepath.Join(dir, name), uid, uid)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { socket.Close() })
		return socket
	}
	from, to := listen("out.sock"), listen("in.sock")
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if err := (Relay{Shim: "/proc/self/exe", UID: uid, Folder: dir, Streams: out, Log: log}).FromQEMU(from); err != nil {
		t.Fatal(err)
	}
	CloseAll(out)
	var sent, got [streams]net.Conn
	dial := func(i int) {
		if sent[i], err = net.Dial("unix", filepath.Join(dir, "out.sock")); err != nil {
			t.Fatal(err)
		}
	}
	dial(0)
	in := <-came
	folder, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	if err := (Relay{Shim: "/proc/self/exe", UID: uid, Folder: dir, Streams: in, Log: log}).ToQEMU(folder, "in.sock", os.Getpid()); err != nil {
		t.Fatal(err)
	}
	CloseAll(in)
	for i := range streams {
		if i > 0 {
			dial(i)
		}
		if err := to.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if got[i], err = to.Accept(); err != nil {
			t.Fatalf("connection %d was not made at the target before anything was sent: %v", i, err)
		}
	}
	if n := len(relays(t, uid)); n != 2 {
		t.Errorf("%d relays run as user %d", n, uid)
	}
	for _, p := range relays(t, uid) {
		confined(t, p)
	}
	for i := range streams {
		for _, way := range [][2]net.Conn{{sent[i], got[i]}, {got[i], sent[i]}} {
			block := bytes.Repeat([]byte{byte(i), 1, 2, 3}, 256<<10)
			go func() {
				for range megabytes {
					way[0].Write(block)
				}
			}()
			text := make([]byte, len(block))
			for range megabytes {
				if _, err := io.ReadFull(way[1], text); err != nil || !bytes.Equal(text, block) {
					t.Fatalf("over connection %d something else came: %v", i, err)
				}
			}
		}
	}
	for i := range streams { // QEMU closes its sockets
		sent[i].Close()
		if n, err := got[i].Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("connection %d goes on: %d bytes, %v", i, n, err)
		}
		got[i].Close()
	}
	testkit.Until(t, 20*time.Second, "the relays have ended", func() bool { return len(relays(t, uid)) == 0 })
	if text, err := os.ReadFile(log.Name()); err != nil || len(text) > 0 {
		t.Errorf("the relays say %s: %v", text, err)
	}
}

// confined checks all threads of a relay.
func confined(t *testing.T, process string) {
	t.Helper()
	threads, err := filepath.Glob(process + "/task/*/status")
	if err != nil || len(threads) == 0 {
		t.Fatalf("the threads of %s: %v", process, err)
	}
	for _, thread := range threads {
		status, err := os.ReadFile(thread)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range []string{"CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2", "Groups:\t "} {
			if !strings.Contains(string(status), "\n"+line+"\n") {
				t.Errorf("a thread of a relay has not %q:\n%s", line, status)
			}
		}
	}
}

// relays are the processes of a user.
func relays(t *testing.T, uid uint32) (pids []string) {
	t.Helper()
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range all {
		var st unix.Stat_t
		if unix.Stat(p, &st) != nil {
			continue
		}
		status, _ := os.ReadFile(filepath.Join(p, "status"))
		if strings.Contains(string(status), fmt.Sprintf("\nUid:\t%d\t", uid)) && !strings.Contains(string(status), "\nState:\tZ") {
			pids = append(pids, p)
		}
	}
	return pids
}
