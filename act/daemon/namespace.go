package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"pagurus/internal/thread"
)

// namespaces is the folder of named network namespaces.
const namespaces = "/run/netns"

// Namespace is the name of a network namespace; empty is the machine's own.
type Namespace string

func (n Namespace) path() string { return filepath.Join(namespaces, string(n)) }

// Namespaces lists the names with a prefix.
func Namespaces(prefix string) []Namespace {
	entries, err := os.ReadDir(namespaces)
	if err != nil {
		return nil
	}
	var names []Namespace
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			names = append(names, Namespace(e.Name()))
		}
	}
	return names
}

// Do runs f in the namespace. Programs and sockets that f opens stay in it; goroutines
// that it starts do not.
func (n Namespace) Do(f func() error) error {
	if n == "" {
		return f()
	}
	// The thread ends with f, so that no other code runs in the wrong namespace.
	return thread.Own(func() error {
		ns, err := n.Open()
		if err != nil {
			return err
		}
		err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		if err := errors.Join(err, ns.Close()); err != nil {
			return fmt.Errorf("entering namespace %s: %w", n, err)
		}
		return f()
	})
}

// Open opens the namespace.
func (n Namespace) Open() (*os.File, error) {
	f, err := os.Open(n.path())
	if err != nil {
		return nil, fmt.Errorf("opening namespace %s: %w", n, err)
	}
	return f, nil
}

// Exists reports whether the namespace exists.
func (n Namespace) Exists() bool {
	var st unix.Statfs_t
	return unix.Statfs(n.path(), &st) == nil && st.Type == unix.NSFS_MAGIC
}

// Ensure makes the namespace if it is missing. It uses `ip`, so that all tools agree on
// how its folder is mounted.
func (n Namespace) Ensure() error {
	if n.Exists() {
		return nil
	}
	// A reboot or a crash leaves a name without a namespace.
	if err := n.Remove(); err != nil {
		return err
	}
	if out, err := exec.Command("ip", "netns", "add", string(n)).CombinedOutput(); err != nil {
		return fmt.Errorf("making namespace %s: %w: %s", n, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Remove removes the name; the namespace itself ends with its last process. A missing one
// is not an error.
func (n Namespace) Remove() error {
	for n.Exists() {
		if err := unix.Unmount(n.path(), unix.MNT_DETACH); err != nil {
			return fmt.Errorf("removing namespace %s: %w", n, err)
		}
	}
	if err := os.Remove(n.path()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing namespace %s: %w", n, err)
	}
	return nil
}

// Residents returns a test whether a process is in one of the namespaces.
func Residents(names []Namespace) func(pid int) bool {
	ours := map[string]bool{}
	for _, n := range names {
		var st unix.Stat_t
		if n.Exists() && unix.Stat(n.path(), &st) == nil {
			ours[fmt.Sprintf("net:[%d]", st.Ino)] = true
		}
	}
	return func(pid int) bool {
		link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
		return err == nil && ours[link]
	}
}
