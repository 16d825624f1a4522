package thread

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"pagurus/internal/testkit"
)

func network(t *testing.T) string {
	t.Helper()
	name, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// TestNetworks: a function called in another network is there, and no other code is.
func TestNetworks(t *testing.T) {
	testkit.Root(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, no := network(t), errors.New("no")
	path := filepath.Join("/run/netns", testkit.Hosts(t, 1)[0].Namespace)
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var away [2]string
	var threads [2]int
	for i, visit := range []func(func() error) error{
		func(f func() error) error { return In(file, f) }, func(f func() error) error { return Visit(path, f) },
	} {
		if err := visit(func() error { away[i], threads[i] = network(t), unix.Gettid(); return no }); !errors.Is(err, no) {
			t.Errorf("it says %v", err)
		}
	}
	if away[0] != away[1] || away[0] == home || network(t) != home {
		t.Errorf("called in %v, back in %s, was in %s", away, network(t), home)
	}
	if threads[0] == unix.Gettid() || threads[1] != unix.Gettid() {
		t.Errorf("called on the threads %v, this is %d", threads, unix.Gettid())
	}
	called := false
	for _, bad := range []string{"/run/netns/none", "/dev/null"} {
		if err := Visit(bad, func() error { called = true; return nil }); err == nil || called || network(t) != home {
			t.Errorf("%s: %v, called %v", bad, err, called)
		}
	}
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if err := In(null, func() error { called = true; return nil }); err == nil || called {
		t.Errorf("into no network: %v, called %v", err, called)
	}
}
