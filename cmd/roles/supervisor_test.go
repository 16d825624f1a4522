package roles

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// A service manager hears that a program is ready, lives and stops, in this order, and no
// sign of life when the loop has stopped.
func TestSupervisorHears(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	at, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	t.Setenv("NOTIFY_SOCKET", socket)
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	t.Setenv("WATCHDOG_USEC", "400000")
	hears := func(want string) {
		t.Helper()
		_ = at.SetReadDeadline(time.Now().Add(10 * time.Second))
		text := make([]byte, 100)
		n, err := at.Read(text)
		if err != nil || string(text[:n]) != want {
			t.Fatalf("the service manager hears %q, %v, want %q", text[:n], err, want)
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	s := NewSupervisor(ctx, slog.Default())
	s.Alive()
	hears("READY=1")
	s.Alive() // too early for another
	_ = at.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	if n, _ := at.Read(make([]byte, 100)); n > 0 {
		t.Error("a loop that has stopped gives a sign of life")
	}
	s.Alive()
	hears("WATCHDOG=1")
	stop()
	hears("STOPPING=1")
}

// Without a service manager nothing is said, and nothing is wrong.
func TestNoSupervisor(t *testing.T) {
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"} {
		t.Setenv(name, "")
		os.Unsetenv(name)
	}
	s := NewSupervisor(t.Context(), slog.Default())
	s.Alive()
	if s.every != 0 {
		t.Errorf("signs of life are sent every %s", s.every)
	}
}
